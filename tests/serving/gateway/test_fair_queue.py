"""Streams take turns: waiting chunks are sent by one write, and other requests are answered in between."""

import asyncio
import statistics

import pytest

from benchmarks.gateway.streams import measure
from rcjax.serving.gateway.chat import _MAX_UNSENT_BYTES, Responder
from rcjax.serving.gateway.clients import ApiError
from rcjax.serving.gateway.responses import ResponsesResponder
from rcjax.serving.openai_client import QUEUES, FairQueue


def test_streams_take_turns_and_the_loop_turns_between_them():
    """While a thousand chunks wait, another task has its turns of the loop."""
    (at_once, every), taken = QUEUES["chunks"], []
    turns = FairQueue(at_once, every)

    async def stream(name, chunks):
        for _ in range(chunks):
            await turns.wait_turn()
            taken.append(name)

    async def main():
        streams = [asyncio.create_task(stream(name, 100)) for name in "abcdefghij"]
        leaving = asyncio.create_task(stream("left", 100))
        count = 0
        while not all(one.done() for one in streams):
            count += 1
            await asyncio.sleep(0)
            if count == 200:
                leaving.cancel()
        return count

    count = asyncio.run(main())
    assert count >= every * (len(taken) - 1)
    others = [name for name in taken if name != "left"]
    assert [{*others[place : place + 10]} for place in range(0, 1000, 10)] == [{*"abcdefghij"}] * 100
    assert taken.count("left") < 10


def test_a_turn_of_the_loop_admits_a_limited_number_of_tasks():
    """Tasks are admitted in the order of their arrival; a cancelled task takes no turn."""
    turns, gone = FairQueue(4), []

    async def begin(number):
        await turns.wait_turn()
        gone.append(number)

    async def main():
        tasks = [asyncio.create_task(begin(number)) for number in range(40)]
        await asyncio.sleep(0)
        tasks[9].cancel()
        sizes = []
        while not all(task.done() for task in tasks):
            before = len(gone)
            await asyncio.sleep(0)
            sizes.append(len(gone) - before)
        return sizes

    sizes = asyncio.run(main())
    assert gone == [number for number in range(40) if number != 9]
    assert max(sizes) == 4


class Reader:
    """A client that reads nothing until it is told to."""

    def __init__(self, patient=True):
        self.bodies, self.reads = [], asyncio.Event()
        if patient:
            self.reads.set()

    async def send(self, message):
        await self.reads.wait()
        if message["type"] == "http.response.body":
            self.bodies.append((message["body"], message["more_body"]))


def test_waiting_chunks_are_sent_in_order_by_one_write():
    async def main():
        reader = Reader()
        responder = Responder(reader.send)
        for number in range(5):
            await responder.send_event({"n": number}, {})
        assert reader.bodies == []
        await asyncio.sleep(0)
        await responder.send_event({"n": 5}, {})
        await responder.end_stream()
        return reader.bodies

    first, last = asyncio.run(main())
    assert first == (b"".join(b'data: {"n":%d}\n\n' % number for number in range(5)), True)
    assert last == (b'data: {"n":5}\n\ndata: [DONE]\n\n', False)


def test_a_model_waits_for_a_reader_that_is_slow():
    async def main():
        reader = Reader(patient=False)
        responder = Responder(reader.send)
        responder.has_begun = True

        async def stream():
            for _ in range(20):
                await responder.send_event({"text": "x" * 10_000}, {})
            await responder.end_stream()

        streaming = asyncio.create_task(stream())
        await asyncio.sleep(0.05)
        waiting_bytes = responder._size
        reader.reads.set()
        await streaming
        return waiting_bytes, reader.bodies

    waiting_bytes, bodies = asyncio.run(main())
    assert waiting_bytes <= _MAX_UNSENT_BYTES + 10_100
    assert b"".join(body for body, _ in bodies).count(b"data: ") == 21
    assert [more for _, more in bodies][-1] is False


@pytest.mark.parametrize("kind", [Responder, ResponsesResponder])
def test_a_document_that_is_cut_off_gets_no_error_behind_it(kind):
    """An event of a stream came behind half a document in JSON, and the server said that the body was too long."""
    sent, may_go = [], asyncio.Event()

    async def send(message):
        sent.append(message)
        if message.get("more_body"):
            await may_go.wait()

    async def main():
        responder = kind(send)
        answering = asyncio.create_task(responder.send_document({"error": "x" * 2 * _MAX_UNSENT_BYTES}, {}, 502))
        await asyncio.sleep(0)
        answering.cancel()
        await asyncio.wait([answering])
        may_go.set()
        await responder.send_error(ApiError(503, "the service is shutting down"), {})
        return answering.cancelled()

    assert asyncio.run(main())
    assert [message.get("more_body") for message in sent] == [None, True]


def test_an_error_of_a_write_is_raised():
    async def main():
        async def send(message):
            if message["type"] == "http.response.body":
                raise ConnectionError("gone")

        responder = Responder(send)
        await responder.send_event({}, {})
        await asyncio.sleep(0)
        await responder.send_event({}, {})

    with pytest.raises(ConnectionError, match="gone"):
        asyncio.run(main())


@pytest.mark.thorough
def test_requests_are_answered_beside_streams_that_fill_the_loop():
    (_, _, ready, cheap), chunks, _ = measure(100, 0, 5.0)
    assert statistics.median(ready) < 0.1
    assert statistics.median(cheap) < 0.5  # before streams took turns, none was answered within a minute
    assert chunks > 500
