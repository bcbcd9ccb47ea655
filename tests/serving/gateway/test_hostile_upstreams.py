"""Hostile upstreams: odd numbers, answers without text, redirects, cookies, endless replies."""

import asyncio
import gzip
import json

import pytest
from helpers.chat_server import Response, completion, events_of, raw_server, served, sure
from helpers.gateway_service import MODELS, SURE, gateway

TEXTLESS = {
    "held back by a filter": {"message": {"role": "assistant", "content": ""}, "finish_reason": "content_filter"},
    "null": {"message": {"role": "assistant", "content": None}, "finish_reason": "stop"},
    "reasoning alone": {
        "message": {"role": "assistant", "content": None, "reasoning_content": "Well …"},
        "finish_reason": "length",
    },
    "empty": {"message": {"role": "assistant", "content": "", "refusal": ""}, "finish_reason": "stop"},
}


@pytest.mark.parametrize("choice", list(TEXTLESS.values()), ids=list(TEXTLESS))
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_text_is_an_answer(service, choice, stream):
    """The policy and the named model send it with its finish reason, and no model is asked twice."""
    body = completion("") | {"choices": [{"index": 0, "logprobs": None, **choice}]}
    service.server.behave = lambda request, headers: Response(body)
    reply = service.ask(stream=stream)
    assert (reply.status, reply.headers["x-rcjax-status"]) == (200, "answered")
    assert [request["model"] for request in service.server.requests] == [f"org/{model}" for model in MODELS]
    if stream:
        assert reply.events[-1] == "[DONE]"
        last = [one for event in reply.events[:-1] for one in event["choices"] if one.get("finish_reason")]
    else:
        last = reply.json["choices"]
        assert last[0]["message"].get("reasoning_content") == choice["message"].get("reasoning_content")
        assert reply.json["rcjax"]["model"] == "large"
    assert last[-1]["finish_reason"] == choice["finish_reason"]
    assert service.ask(model="large", stream=stream).status == 200


def test_an_answer_without_text_is_sent_if_the_models_after_it_fail(service):
    """The client got 502, because only the last model's reply was looked at."""
    withheld = completion("") | {"choices": [{"index": 0, "logprobs": None, **TEXTLESS["held back by a filter"]}]}
    service.server.behave = lambda request, headers: (
        Response(withheld) if request["model"] == f"org/{MODELS[0]}" else Response({}, 400)
    )
    reply = service.ask()
    assert (reply.status, reply.json["rcjax"]["model"]) == (200, MODELS[0])
    assert reply.json["choices"][0]["finish_reason"] == "content_filter"


def test_a_redirect_is_not_followed_with_a_prompt(service):
    with served(lambda request, headers: Response(sure("A", SURE))) as (other, url):
        here = {"location": f"{url}/chat/completions"}
        service.server.behave = lambda request, headers: Response({}, 307, here)
        for fields in ({}, {"stream": True}, {"model": "large"}):
            reply = service.ask(**fields)
            assert (reply.status, "HTTP 307" in reply.json["error"]["message"]) == (502, True)
        assert other.requests == []


def test_an_invalid_header_is_refused_at_the_start():
    tables = dict.fromkeys(MODELS, 'options = { extra_headers = { "X-Own" = "é" } }')
    says = r"model small.options.extra_headers: the header 'X-Own' cannot be sent"
    with pytest.raises(ValueError, match=says), gateway(tables=tables):
        pass


def test_an_attempt_ends_in_time_however_slowly_bytes_arrive():
    """The limit held for each read alone, so that the whole --deadline went by."""

    async def drips(head, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.1)

    limits = {"timeout": 1.0, "deadline": 60.0, "retries": 1}
    with raw_server(drips) as (came, url), gateway(base_url=url, limits=limits) as service:
        reply = service.ask(model="large")
        assert (reply.status, reply.json["error"]["code"]) == (504, "upstream_timed_out")
        assert len(came) <= 1  # where the machine is slow, its time is over before it is sent
        assert [(row["error"], row["attempts"]) for row in service.log_rows()] == [("timed out", 1)]


def test_an_event_of_several_lines_is_one(service):
    def lines(event):
        return b"".join(b"data: " + line + b"\n" for line in json.dumps(event, indent=1).encode().split(b"\n")) + b"\n"

    events = [one if isinstance(one, bytes) else lines(one) for one in events_of(completion("one two three"))]
    service.server.behave = lambda request, headers: Response(events)
    reply = service.ask(model="large", stream=True)
    assert (reply.text, reply.events[-1]) == ("one two three", "[DONE]")
    half = [b'data: {"choices": [\n\n', b"data: [DONE]\n\n"]
    service.server.behave = lambda request, headers: Response(half)
    assert "malformed" in service.ask(model="large", stream=True).json["error"]["message"]


BOMB = gzip.compress(json.dumps(completion("A" * 10_000_000)).encode())
LARGE = {
    "larger than is read": Response(json.dumps(completion("A" * 300_000)).encode()),
    "of no length that is told": Response([b" " * 65_536] * 8, headers={"content-type": "application/json"}),
    "compressed": Response(BOMB, headers={"content-encoding": "gzip"}),
    "of very many parts": Response(b'{"choices": [' + b"[]," * 50_000 + b"[]]}"),
    "an error that is large": Response(b"x" * 300_000, 400),
    "a stream": Response([b"x" * 65_536] * 6),
    "nested": Response(b'{"choices": [' + b"[" * 5_000),
}


@pytest.mark.parametrize("reply", list(LARGE.values()), ids=list(LARGE))
def test_an_endless_reply_is_cut_off(service, reply, monkeypatch):
    """The limits are a hundredth of the real limits, which benchmarks/attack.py tries with a gigabyte."""
    monkeypatch.setattr("rcjax.serving.openai_client.MAX_REPLY_BYTES", 200_000)
    monkeypatch.setattr("rcjax.serving.completions.MAX_PARTS", 40_000)
    good = Response(sure("B", SURE))
    service.server.behave = lambda request, headers: good if request["model"] == "org/large" else reply
    answer = service.ask()
    assert (answer.status, answer.json["choices"][0]["message"]["content"]) == (200, "B")
    first, second, _ = (row["error"] for row in service.log_rows())
    assert first == second
    assert first == "HTTP 400" or first.startswith("malformed answer: ")
    assert len(service.server.requests) == 3


def test_an_endless_line_of_a_stream_is_cut_off(service, monkeypatch):
    monkeypatch.setattr("rcjax.serving.openai_client.MAX_REPLY_BYTES", 200_000)
    endless = [b"data: ", *[b"x" * 65_536] * 20]
    service.server.behave = lambda request, headers: Response(endless, hang=True)
    reply = service.ask(model="large", stream=True)
    assert (reply.status, "a line of more than" in reply.json["error"]["message"]) == (502, True)


def test_a_compressed_stream_is_named_in_the_error(service):
    packed = Response([BOMB], headers={"content-encoding": "gzip"})
    service.server.behave = lambda request, headers: packed
    error = service.ask(model="large", stream=True).json["error"]
    assert "compressed, which was not asked for" in error["message"]
    assert service.log_rows()[0]["error"].startswith("malformed answer: compressed")


@pytest.mark.parametrize("by", ["policy", "large"])
@pytest.mark.parametrize(
    ("choices", "status"),
    [
        ([{}], 502),  # they were answers, in which clients found no message
        ([{"index": 0, "finish_reason": "stop", "message": None}], 502),
        ([None], 502),
        ([None, completion("B")["choices"][0]], 200),  # a policy answered, and a model did not
        ([{"index": 0, "finish_reason": "content_filter"}], 200),
    ],
)
def test_a_choice_without_a_message_is_no_answer(choices, status, by):
    body = completion("B") | {"choices": choices}
    with gateway(behave=lambda request, headers: Response(body), limits={"retries": 0}) as service:
        reply = service.ask(model=by)
        assert reply.status == status
        if status == 200:
            assert reply.json["choices"][0]["message"]["role"] == "assistant"
