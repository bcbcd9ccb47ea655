"""Failing upstreams and clients: every request gets one answer or one error, and each call is logged once."""

import asyncio
import contextlib
import http.client
import json
import re
import socket
import threading

import pytest
from helpers.chat_server import KEY, Response, completion, events_of, raw_server, sure
from helpers.gateway_samples import make_call
from helpers.gateway_service import SURE, UNSURE, gateway, make_policy, until

from rcjax.policy import Ladder
from rcjax.serving.failures import connection_error
from rcjax.serving.gateway import chat, service
from rcjax.serving.gateway.catalog import ServiceSettings
from rcjax.serving.gateway.chat import RequestHandler, Responder
from rcjax.serving.gateway.chat_request import RequestLimits
from rcjax.serving.gateway.clients import upstream_error
from rcjax.serving.gateway.processes import Connection
from rcjax.serving.gateway.service import Gateway

QUICK = {"retry-after-ms": "1"}


def by_model(**responses):
    """Give every model the same response, or the response that a function makes of the request."""

    def behave(request, headers):
        response = responses[request["model"].removeprefix("org/")]
        return response(request) if callable(response) else response

    return behave


def letter(text, logprob):
    return Response(sure(text, logprob))


def refused(status, **headers):
    return Response({"error": {"message": f"quoted: {KEY}", "code": "of_the_server"}}, status, {**QUICK, **headers})


ANSWERS = {"small": letter("A", UNSURE), "middle": letter("B", UNSURE), "large": letter("C", SURE)}


#: What the largest model says: the status and the code of the error, and how long a client is to wait.
FAILURES = [
    (refused(500), 502, "of_the_server", "1"),
    (refused(429, **{"retry-after-ms": "6500"}), 429, "of_the_server", "7"),
    (Response({}, 429), 429, "upstream_rate_limited", "1"),
    (refused(400), 400, "of_the_server", None),
    (refused(401), 502, "upstream_failed", None),  # a key of the gateway's: nothing to wait for
    (Response({"error": {"code": "insufficient_quota"}}, 429, QUICK), 502, "upstream_out_of_credit", None),
    (Response({}, hang=True), 502, "upstream_failed", None),
    (Response(sure("A", SURE), delay=30.0), 504, "upstream_timed_out", None),
]


def test_a_cascade_that_cannot_be_closed_leaves_nothing_else_open():
    async def broken():
        raise RuntimeError("a shadow call broke")

    with gateway(make_policy(), by_model(**ANSWERS)) as service:
        one = service.app.state.gateway
        one.catalog.policies["policy"].cascade.close = broken
    with pytest.raises(OSError, match="closed"):
        one.log.write(make_call())


def test_if_no_model_answers_the_client_gets_one_error():
    plain = Response({"error": {}}, 500)
    with gateway(limits={"timeout": 5.0, "retries": 0}) as service:
        for stream in (False, True):
            for large, status, code, wait in FAILURES:
                service.forget()
                service.server.behave = by_model(small=plain, middle=plain, large=large)
                reply = service.ask(stream=stream)
                assert (reply.status, reply.json["error"]["code"]) == (status, code)
                assert reply.json["error"]["message"].startswith("no model answered: small: HTTP 500")
                assert KEY not in reply.body.decode()
                assert len(service.log_rows()) == 3
                assert reply.headers.get("retry-after") == wait
                is_lasting = large.status == 401 or code == "upstream_out_of_credit"
                assert reply.headers.get("x-should-retry") == ("false" if is_lasting else None)
        page = service.get("/metrics").body.decode()
    # The figures have the gateway's words alone, however many codes an endpoint has.
    reasons = {*re.findall(r'rcjax_refused_requests_total\{reason="(\w+)"', page)}
    words = ("failed", "out_of_credit", "rate_limited", "refused", "timed_out")
    assert reasons == {f"upstream_{word}" for word in words}


def test_a_timeout_is_recognised_by_its_kind_and_not_by_the_words_of_errors():
    """The last failure counts, even if an earlier model timed out, or a model has such a name."""
    calls = [make_call("it timed out", text=None, error="timed out"), make_call(text=None, error="no connection")]
    for timed_out, status in ((False, 502), (True, 504)):
        failure = connection_error(timed_out=timed_out).failure
        assert upstream_error(failure, [f"{call.model}: {call.error}" for call in calls]).status == status


def test_an_answer_that_breaks_off_while_it_is_streamed_ends_with_an_error():
    events = events_of(completion("one two three"))[:3]
    with gateway(behave=by_model(**{**ANSWERS, "large": Response(events, hang=True)})) as service:
        reply = service.ask(stream=True)
        assert reply.status == 200
        *chunks, last = reply.events
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "one two "
        assert last["error"]["code"] == "upstream_failed"
        assert [row["error"] for row in service.log_rows()][-1] in ("no connection", "the answer breaks off")


def test_errors_name_their_query(monkeypatch, caplog):
    """The log has the calls of the query; a fault of rcjax tells the client nothing else."""
    with gateway(behave=lambda *_: Response({}, status=400), limits={"retries": 0}) as service:
        reply = service.post(json.loads(QUESTION), x_rcjax_query="q/1")
        assert (reply.status, reply.headers["x-rcjax-query"]) == (400, "q/1")
        assert {row["query"] for row in service.log_rows()} == {"q/1"}
        assert service.ask().headers["x-rcjax-query"] in {row["query"] for row in service.log_rows()}
        assert service.post(b"{", x_rcjax_query="q2").headers["x-rcjax-query"] == "q2"
        wrong = service.post(b"{}", x_rcjax_query="two words")
        assert (wrong.status, wrong.json["error"]["param"]) == (400, "x-rcjax-query")

        async def broken(self):
            raise RuntimeError(self.request.messages[0]["content"])

        monkeypatch.setattr(RequestHandler, "answer", broken)
        reply = service.post(
            {"model": "policy", "messages": [{"role": "user", "content": "a secret of the client"}]}, x_rcjax_query="q3"
        )
        page = service.get("/metrics").body.decode()
    assert 'rcjax_refused_requests_total{reason="internal_error",status="500"} 1.0' in page
    assert (reply.status, reply.json["error"]["code"]) == (500, "internal_error")
    assert "secret" not in reply.body.decode() + caplog.text
    assert re.search(r"query q3 failed within rcjax: RuntimeError in test_faults\.py, line \d+", caplog.text)


# Clients


HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}"


def raw_request(service, body, head=HEAD + "\r\n\r\n"):
    host, port = service.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=120)
    connection.sendall(head.format(len(body)).encode() + body)
    return connection


QUESTION = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "?"}]}).encode()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_call_upstream(stream):
    slow = Response(completion("word " * 1000), delay=0 if stream else 60.0, pause=0.05 if stream else 0)
    ladder = Ladder((make_policy(expected={"error": 0.1, "cost": 1e-4}),), 0.0, budget=1.0)
    with gateway(ladder, by_model(**{**ANSWERS, "large": slow})) as service:
        body = json.dumps({**json.loads(QUESTION), "stream": stream}).encode()
        with raw_request(service, body) as connection:
            service.server.wait_for(3)
            if stream:
                connection.recv(200)
        rows = service.logged(3)
        assert rows[-1]["error"] == "cancelled: nobody waits for the answer"
        costs = [row["cost"] for row in rows]
        assert costs[-1] >= 3e-4  # the mean of a reply, or what a model writes in the time
        bill = service.app.state.gateway.catalog.policies["policy"].cascade.billing.bill
        assert bill.balance == pytest.approx(1.0 - sum(costs))
        assert 'reason="client_left",status="499"} 1.0' in service.get("/metrics").body.decode()
        assert service.ask("again", model="small").status == 200


def test_a_service_that_stops_is_healthy_and_not_ready(monkeypatch):
    """Open connections see so until the service has ended."""
    has_heard, shutdown, stack = threading.Semaphore(0), Connection.shutdown, contextlib.ExitStack()

    def shutdown_and_tell(self):
        shutdown(self)
        has_heard.release()

    monkeypatch.setattr(Connection, "shutdown", shutdown_and_tell)
    monkeypatch.setattr(Connection, "farewell_seconds", 60.0)
    service = stack.enter_context(gateway())
    open_ones = [http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=120) for _ in range(2)]

    def statuses():
        return [status_of(connection, path) for connection, path in zip(open_ones, ("/health", "/ready"), strict=True)]

    before = statuses()
    stopping = threading.Thread(target=stack.close)
    stopping.start()
    for _ in open_ones:
        assert has_heard.acquire(timeout=120)
    after = statuses()
    stopping.join()
    assert (before, after) == ([200, 200], [200, 503])


def status_of(connection, path):
    connection.request("GET", path)
    with connection.getresponse() as response:
        response.read()
        return response.status


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("answers", [True, False])
def test_a_stream_that_waits_for_its_answer_is_kept_open_by_comments(monkeypatch, path, answers):
    """Load balancers cut connections that are silent for a minute."""
    gate = threading.Event()

    def behave(request, headers):
        assert gate.wait(120)
        return letter("B", SURE) if answers else Response({}, 400)

    monkeypatch.setattr(chat, "COMMENT_SECONDS", 0.02)
    asked = {"input": "?"} if "responses" in path else {"messages": [{"role": "user", "content": "?"}]}
    with gateway(behave=behave, limits={"retries": 0}) as service:
        connection = http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=120)
        body = json.dumps({"model": "policy", "stream": True, **asked})
        kind = {"content-type": "application/json", "x-rcjax-query": "q7"}
        connection.request("POST", path, body, kind)
        with contextlib.closing(connection), connection.getresponse() as response:
            comments = [response.readline() for _ in range(4)]
            gate.set()
            text = response.read().decode()
        page = service.get("/metrics").body.decode()
    assert (response.status, response.headers["x-rcjax-query"]) == (200, "q7")
    assert comments == [b": wait\n", b"\n"] * 2
    events = [part for part in text.split("\n\n") if part and part != ": wait"]
    assert ("upstream_refused" in text, '"B"' in text) == (not answers, answers)
    assert answers or len(events) == 1
    assert ("[DONE]" in events[-1] or "response.completed" in events[-1]) is answers
    assert ('reason="upstream_refused",status="400"} 1.0' in page) is not answers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_stream_that_pauses_is_kept_open_by_comments(monkeypatch, path):
    """A model may think between two chunks."""
    gate = threading.Event()

    async def pausing(head, reader, writer):
        first, *rest = map(encoded, events_of(completion("one two")))
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + first + rest[0]
        )
        await asyncio.to_thread(gate.wait, 120)
        writer.write(b"".join(rest[1:]))
        await writer.drain()
        writer.close()

    def encoded(event):
        return event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() + b"\n\n"

    monkeypatch.setattr(chat, "COMMENT_SECONDS", 0.02)
    asked = {"input": "?"} if "responses" in path else {"messages": [{"role": "user", "content": "?"}]}
    with raw_server(pausing) as (_, url), gateway(base_url=url) as service:
        connection = http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=30)
        body = json.dumps({"model": "large", "stream": True, **asked})
        connection.request("POST", path, body, {"content-type": "application/json"})
        with contextlib.closing(connection), connection.getresponse() as response:
            while b"one " not in response.readline():
                pass
            assert all(response.readline() == b"\n" and response.readline() == b": wait\n" for _ in range(3))
            gate.set()
            text = response.read().decode()
    assert "two" in text
    assert "[DONE]" in text or "response.completed" in text


def test_a_comment_that_waits_to_begin_a_stream_leaves_a_complete_answer_complete():
    """A client that reads slowly holds the head back, until the whole answer has come too."""
    sent, may_begin = [], asyncio.Event()

    async def send(message):
        await may_begin.wait()
        sent.append(message)

    async def main():
        responder = chat.Responder(send)
        comment = asyncio.create_task(responder.send_comment({}))
        await asyncio.sleep(0)
        answer = asyncio.create_task(responder.end_stream())
        await asyncio.sleep(0)
        may_begin.set()
        await asyncio.gather(comment, answer)
        return responder.is_complete

    assert asyncio.run(main())
    assert [message.get("more_body") for message in sent] == [None, False]


def test_a_request_may_be_too_large_or_too_slow():
    limits = {"max_body": 1000, "body_seconds": 5.0}
    with gateway(behave=by_model(**ANSWERS), limits=limits) as service:
        reply = service.ask("x" * 2000)
        assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")
        chunked = HEAD.replace("content-length: {}", "transfer-encoding: chunked\r\n\r\n")
        with raw_request(service, b"7d0\r\n" + b"x" * 2000 + b"\r\n", chunked) as connection:
            assert b"413" in connection.recv(1000)
        slow = HEAD.format(500) + "\r\n\r\n"
        with raw_request(service, QUESTION, slow) as connection:
            assert b"408" in connection.recv(1000)
        assert service.app.state.gateway.in_progress == 0
        assert service.server.requests == []


def test_a_head_that_does_not_come_closes_the_connection(monkeypatch):
    monkeypatch.setattr(Connection, "head_seconds", 1.0)
    with gateway(behave=by_model(**ANSWERS)) as service:
        for start in ("", "POST /v1/chat/comp"):
            with raw_request(service, b"", start) as connection:
                assert connection.recv(1000) == b""


def test_more_requests_than_configured_get_a_retry_after():
    gate = threading.Event()

    def behave(request, headers):
        gate.wait(120)
        return Response(sure("A", SURE))

    with gateway(behave=behave, limits={"concurrency": 4}) as service:
        connections = [raw_request(service, QUESTION) for _ in range(4)]
        until(lambda: service.app.state.gateway.in_progress == 4)
        reply = service.ask()
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")
        gate.set()
        for connection in connections:
            with connection:
                assert b"200 OK" in connection.recv(1000)
        assert service.ask().status == 200


KEYS = {
    "Bearer wrong": 401,
    "Basic first": 401,
    "Bearer ": 401,
    "Bearer größe": 401,
    "Bearer first": 200,
    "bearer second": 200,
}


def test_clients_with_permission_may_call(monkeypatch):
    monkeypatch.setenv("KEYS", "first, second")
    with gateway(behave=by_model(**ANSWERS), key_env="KEYS") as service:
        assert service.post(QUESTION).status == service.get("/v1/models").status == 401
        for key, status in KEYS.items():
            reply = service.post(QUESTION, authorization=key)
            assert {reply.status, service.get("/metrics", authorization=key).status} == {status}
            assert b"first" not in reply.body
        assert service.get("/health").status == service.get("/ready").status == 200


def test_a_service_closes_after_the_end_of_cancelled_requests(monkeypatch):
    """Their clients pay at the end, which Uvicorn does not wait for: what came after the last save was lost."""
    events: list = []

    async def main(gateway_):
        async def answer():
            with gateway_._count_in_progress():
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0.1)  # closes its connection
                    events.append("paid")

        async def close():
            events.append("closed")

        monkeypatch.setattr(service, "CANCEL_SECONDS", 60.0)
        monkeypatch.setattr(gateway_.connections, "close", close)
        task = asyncio.create_task(answer())
        await asyncio.sleep(0)
        task.cancel()
        await gateway_.close()
        await asyncio.wait([task])

    with gateway(None, lambda *_: Response({})) as running:
        models = running.folder / "models.toml"
        asyncio.run(main(Gateway(ServiceSettings({"policy": running.folder / "policy.json"}, models))))
    assert events == ["paid", "closed"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_in_progress_at_shutdown_gets_an_error(stream):
    """There was a traceback in the log, and "Internal Server Error" for the client."""
    sent: list = []
    body = json.dumps({"model": "large", "stream": stream, "messages": [{"role": "user", "content": "x"}]}).encode()

    async def main(gateway_, server):
        asked = [body]

        async def receive():
            if asked:
                return {"type": "http.request", "body": asked.pop()}
            await asyncio.sleep(60)

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
        task = asyncio.create_task(gateway_.answer(scope, receive, Responder(send)))
        await asyncio.to_thread(server.wait_for, 1)
        task.cancel("as Uvicorn does where --drain runs out")
        await task
        await gateway_.close()

    with gateway(None, lambda *_: Response({}, delay=30)) as service:
        models = service.folder / "models.toml"
        settings = ServiceSettings({"policy": service.folder / "policy.json"}, models, limits=RequestLimits(drain=0.1))
        asyncio.run(main(Gateway(settings), service.server))
    assert [message["status"] for message in sent if "status" in message] == [503]
    assert json.loads(sent[-1]["body"])["error"]["code"] == "service_stopped"
