"""curl, LiteLLM and LangChain before a gateway, and LiteLLM's proxy before and behind it."""

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from acting_models import FORM, ActingModels
from chat_server import KEY
from gateway_service import gateway

#: The program; RCJAX_LITELLM may name one of another environment, as its dependencies are many.
LITELLM = os.environ.get("RCJAX_LITELLM") or shutil.which("litellm")
PYTHON = Path(LITELLM).with_name("python") if LITELLM else None
HERE = Path(__file__).parent
BODY = {"model": "policy", "messages": [{"role": "user", "content": "A or B?"}]}

needs_litellm = pytest.mark.skipif(
    LITELLM is None, reason="no litellm: pip install 'litellm[proxy]', or name it by RCJAX_LITELLM"
)


def asked_by(program, *arguments):
    """What a program of the other environment prints last."""
    settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}  # which is else fetched
    line = [str(PYTHON), str(HERE / program), *arguments]
    result = subprocess.run(line, capture_output=True, text=True, env={**os.environ, **settings}, timeout=300)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def has(module):
    if PYTHON is None:
        return False
    line = [str(PYTHON), "-c", f"import importlib.util as u; raise SystemExit(u.find_spec({module!r}) is None)"]
    return subprocess.run(line, env={**os.environ, "PYTHONPATH": ""}, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def service():
    with gateway(behave=ActingModels(), limits={"retries": 0}) as service:
        yield service


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl: install it")
class TestCurl:
    def curl(self, service, *options, path="/v1/chat/completions", body=None):
        line = ["curl", "--silent", "--show-error", *options, service.url + path]
        content = None if body is None else json.dumps(body).encode()
        result = subprocess.run(line, input=content, capture_output=True, timeout=60)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def test_an_answer(self, service):
        answer = json.loads(self.curl(service, "--data", json.dumps(BODY)))
        assert answer["choices"][0]["message"]["content"] == "B"

    def test_a_stream(self, service):
        lines = self.curl(service, "--no-buffer", "--data", json.dumps(BODY | {"stream": True})).splitlines()
        assert lines[-2:] == [b"data: [DONE]", b""]
        assert {line[:7] for line in lines} == {b"data: {", b"data: [", b""}

    def test_headers_and_the_status(self, service):
        shown = self.curl(service, "--include", "--data", json.dumps(BODY | {"model": "larger"})).decode()
        assert shown.startswith("HTTP/1.1 404")
        assert json.loads(shown.split("\r\n\r\n")[1])["error"]["code"] == "model_not_found"
        assert "x-rcjax-status: answered" in self.curl(service, "--include", "--data", json.dumps(BODY)).decode()
        assert self.curl(service, "--head", path="/health").startswith(b"HTTP/1.1 200")

    def test_a_long_question(self, service):
        """For which curl asks first whether it may send it."""
        body = BODY | {"messages": [{"role": "user", "content": "long " * 400_000}]}
        answer = json.loads(self.curl(service, "--data-binary", "@-", "--expect100-timeout", "30", body=body))
        assert answer["choices"][0]["message"]["content"] == "B"
        assert service.server.requests[-1]["messages"] == body["messages"]
        body = BODY | {"messages": [{"role": "user", "content": "long " * 2_000_001}]}
        refusal = json.loads(self.curl(service, "--data-binary", "@-", "--expect100-timeout", "30", body=body))
        assert refusal["error"]["code"] == "request_too_large"


def check_litellm(replies, total=101):
    for way in ("plain", "streamed", "async"):
        reply = replies[way]
        assert (reply["text"], reply["finish_reason"], reply["total"], reply["logprobs"]) == ("B", "stop", total, False)
    assert replies["async streamed"] == "B"
    for way in ("tools", "tools streamed"):
        assert replies[way]["finish_reason"] == "tool_calls"
        assert [(name, json.loads(text)) for name, text in replies[way]["calls"]] == [("look", {"at": "é look"})]
    assert replies["logprobs"]["logprobs"]
    assert json.loads(replies["json"]["text"]) == FORM
    assert replies["refused"] == ["BadRequestError", 400]
    assert replies["too many"] == ["RateLimitError", 429]


def check_langchain(replies, total=101):
    for way in ("plain", "streamed", "async", *range(5)):
        reply = replies["batch"][way] if isinstance(way, int) else replies[way]
        assert (reply["text"], reply["usage"], reply["finish_reason"], reply["calls"]) == ("B", total, "stop", [])
    assert replies["async streamed"] == "B"
    for way in ("tools", "tools streamed"):
        assert replies[way]["calls"] == [["look", {"at": "é look"}]]
    assert replies["form"] == FORM
    assert replies["form by tool"] == {"letter": "é Letter", "why": "é Letter"}
    assert (replies["logprobs"]["logprobs"], replies["plain"]["logprobs"]) == (True, False)
    assert replies["several"] == ["B", "B"]
    assert "BadRequestError" in replies["refused"]
    assert "RateLimitError" in replies["too many"]


@needs_litellm
@pytest.mark.thorough
def test_litellm(service):
    replies = asked_by("ask_by_litellm.py", f"{service.url}/v1", KEY, "openai")
    check_litellm(replies)
    assert replies["no such model"] == ["NotFoundError", 404]
    told = replies["plain"]["headers"]
    assert told["llm_provider-x-rcjax-status"] == "answered"
    assert told["llm_provider-x-rcjax-models"] == "small"
    assert replies["tools streamed"]["headers"]["llm_provider-x-rcjax-not-judged"] == "tools"


@pytest.mark.thorough
@pytest.mark.skipif(not has("langchain_openai"), reason="no langchain-openai beside the litellm of RCJAX_LITELLM")
def test_langchain(service):
    replies = asked_by("ask_by_langchain.py", f"{service.url}/v1", KEY)
    check_langchain(replies)
    assert (replies["plain"]["model"], replies["streamed"]["model"], replies["tools"]["model"]) == (
        "small",
        "small",
        "large",
    )


def listens(port):
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0
