"""Errors tell the query that they are about, as answers do: its calls are in the log."""

from chat_server import Response
from gateway_service import gateway

from rcjax.serving.gateway.chat import Conversation


def test_an_error_tells_its_query_once_it_is_known():
    with gateway(behave=lambda request, headers: Response({}, status=400), limits={"retries": 0}) as service:
        reply = service.post({"model": "policy", "messages": [{"role": "user", "content": "?"}]}, x_rcjax_query="q/1")
        assert (reply.status, reply.headers["x-rcjax-query"]) == (400, "q/1")
        assert {row["query"] for row in service.log_rows()} == {"q/1"}
        own = service.ask().headers["x-rcjax-query"]
        assert own in {row["query"] for row in service.log_rows()}
        assert service.post(b"{", x_rcjax_query="q2").headers["x-rcjax-query"] == "q2"
        assert service.post({"model": "huge", "messages": [{}]}, x_rcjax_query="q3").headers["x-rcjax-query"] == "q3"
        wrong = service.post(b"{}", x_rcjax_query="two words")
        assert (wrong.status, wrong.json["error"]["param"]) == (400, "x-rcjax-query")
        assert "x-rcjax-query" not in wrong.headers


def test_a_fault_within_tells_its_query_and_nothing_else(monkeypatch, caplog):
    async def broken(self):
        raise RuntimeError(self.request.messages[0]["content"])

    monkeypatch.setattr(Conversation, "answer", broken)
    with gateway() as service, caplog.at_level("ERROR", "rcjax.serving"):
        reply = service.ask("a secret of the client")
    assert (reply.status, reply.json["error"]["code"]) == (500, "internal_error")
    assert len(reply.headers["x-rcjax-query"]) == 32
    assert "secret" not in reply.body.decode() + caplog.text
    assert "RuntimeError" in caplog.text
