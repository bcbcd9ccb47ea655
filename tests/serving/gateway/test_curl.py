"""curl before a gateway."""

import json
import shutil
import subprocess

import pytest
from acting_models import ActingModels
from gateway_service import gateway

BODY = {"model": "policy", "messages": [{"role": "user", "content": "A or B?"}]}
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl: install it")


@pytest.fixture(scope="module")
def service():
    with gateway(behave=ActingModels(), limits={"retries": 0}) as service:
        yield service


def curl(service, *options, path="/v1/chat/completions", body=None):
    line = ["curl", "--silent", "--show-error", *options, service.url + path]
    content = None if body is None else json.dumps(body).encode()
    result = subprocess.run(line, input=content, capture_output=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_an_answer(service):
    answer = json.loads(curl(service, "--data", json.dumps(BODY)))
    assert answer["choices"][0]["message"]["content"] == "B"


def test_a_stream(service):
    lines = curl(service, "--no-buffer", "--data", json.dumps(BODY | {"stream": True})).splitlines()
    assert lines[-2:] == [b"data: [DONE]", b""]
    assert {line[:7] for line in lines} == {b"data: {", b"data: [", b""}


def test_headers_and_the_status(service):
    shown = curl(service, "--include", "--data", json.dumps(BODY | {"model": "larger"})).decode()
    assert shown.startswith("HTTP/1.1 404")
    assert json.loads(shown.split("\r\n\r\n")[1])["error"]["code"] == "model_not_found"
    assert "x-rcjax-status: answered" in curl(service, "--include", "--data", json.dumps(BODY)).decode()
    assert curl(service, "--head", path="/health").startswith(b"HTTP/1.1 200")


def test_a_long_question(service):
    """For which curl asks first whether it may send it."""
    body = BODY | {"messages": [{"role": "user", "content": "long " * 400_000}]}
    answer = json.loads(curl(service, "--data-binary", "@-", "--expect100-timeout", "30", body=body))
    assert answer["choices"][0]["message"]["content"] == "B"
    assert service.server.requests[-1]["messages"] == body["messages"]
    body = BODY | {"messages": [{"role": "user", "content": "long " * 2_000_001}]}
    refusal = json.loads(curl(service, "--data-binary", "@-", "--expect100-timeout", "30", body=body))
    assert refusal["error"]["code"] == "request_too_large"
