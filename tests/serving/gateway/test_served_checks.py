"""Checks as the signals of a service: answers, metrics, waiting, and messages at the start."""

import re
import threading
from collections import Counter

import pytest
from helpers.chat_server import Response, completion
from helpers.checks_of_a_test import FUNCTIONS, SECRET, expected, write_checks, write_program
from helpers.gateway_service import MODELS, gateway, make_policy
from openai import AsyncOpenAI

from rcjax.policy.signals import ReplyCheck
from rcjax.policy.signals.signal import record_signal
from rcjax.serving import check_processes
from rcjax.serving.cascade import Cascade
from rcjax.serving.check_processes import CheckPool

CHECK = ReplyCheck("python:of_a_test:by_word")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Each is a process that imports much.
    monkeypatch.setattr(check_processes, "CheckPool", lambda name, max_processes=2: CheckPool(name, 2))
    write_checks(tmp_path)
    return tmp_path


def behave(request, headers):
    """The smallest model repeats the question; the other models give answers that pass."""
    word = request["messages"][-1]["content"].split()[0] if request["model"] == "org/small" else "passes"
    return Response(completion(f"{word} B"))


def recorded(check):
    return make_policy(
        provenance={"request_settings": {model: record_signal(check) | {"options": {}} for model in MODELS}}
    )


def errors_by_kind(page):
    pattern = r'rcjax_call_errors_total\{kind="([^"]*)",model="small"\} (\d+)'
    return {kind: int(number) for kind, number in re.findall(pattern, page)}


def test_a_check_that_passes_fails_hangs_breaks_down_or_talks_nonsense(place, monkeypatch):
    table = expected(FUNCTIONS)
    with open(place / "of_a_test.py", "a") as file:
        file.write("def waits(call):\n    while not os.path.exists('go'):\n        time.sleep(0.01)\n    return 1.0\n")
    with gateway(None, behave, signal=CHECK.name) as service:
        beside = threading.Thread(target=service.ask, args=["waits"])
        beside.start()
        assert service.ask("passes").status == 200
        assert beside.is_alive()
        (place / "go").touch()
        beside.join()
        checks = service.app.state.gateway.catalog.policies["policy"].cascade._model_caller._checks
        for word, outcome in table.items():
            with monkeypatch.context() as patch:
                if word == "hangs":
                    patch.setattr(checks, "seconds", 1.0)
                service.ask(f"{word} {SECRET}")
            reply = service.ask(f"{word} {SECRET}") if word != "hangs" else None
            assert reply is None or reply.headers["x-rcjax-model"] == ("small" if word == "passes" else "middle"), word
            rows = [row for row in service.log_rows() if row["model"] == "small"]
            assert (rows[-1]["error"] or "").startswith(outcome if isinstance(outcome, str) else ""), word
        counted = errors_by_kind(service.get("/metrics").body.decode())
        log = (service.folder / "calls.jsonl").read_text()
    kinds = Counter(outcome.partition(":")[0] for outcome in table.values() if isinstance(outcome, str))
    assert counted == {kind: 1 if kind == "the check timed out" else 2 * number for kind, number in kinds.items()}
    assert SECRET not in log


def test_a_policy_file_starts_no_program(place):
    policy = recorded(ReplyCheck("command:touch started"))
    with pytest.raises(ValueError, match="tuned on command:touch started, which runs code, so the policy file"):
        Cascade(policy, AsyncOpenAI(api_key="x"))
    assert not (place / "started").exists()


def test_a_check_that_cannot_run_ends_the_start_with_one_line():
    for signal, says in (
        ("python:no_such:f", "policy.json: python:no_such:f: cannot be run: there is no module no_such"),
        ("regex:(", r"models.toml, model small.signal: 'regex:\(': no regular expression"),
    ):
        with pytest.raises(ValueError, match=f"^{says}[^\n]*$"), gateway(None, behave, signal=signal):
            pass


FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "required": ["city"]}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "B"}'}}


def by_form(request, headers):
    """Only the largest model makes the right call: the others forget the city, or call no tool."""
    large = request["model"] == "org/large"
    if "tools" in request:
        body = completion(None if large else "I would have to look that up.")
        body["choices"][0]["message"] |= {"tool_calls": [CALL]} if large else {}
        return Response(body)
    return Response(completion('{"city": "Paris"}' if large else '{"town": "Paris"}'))


def test_the_schema_of_a_request_is_judged_by_the_check_of_json_alone():
    with gateway(None, by_form, signal="json") as service:
        reply = service.ask(response_format=FORM)
        assert reply.json["rcjax"]["models"] == [*MODELS]
        assert (reply.json["rcjax"]["status"], reply.json["rcjax"]["not_judged"]) == ("answered", [])
        assert [request["response_format"] for request in service.server.requests] == [FORM] * 3
        assert [row["logprob"] for row in service.log_rows()] == ["-inf", "-inf", 0.0]
        assert service.ask().json["rcjax"]["models"] == ["small"]  # without a schema, JSON is enough
        assert service.ask(tools=TOOLS).json["rcjax"]["status"] == "not judged"
    with gateway(None, lambda request, headers: Response(completion("{}")), signal="stated") as service:
        assert service.ask(response_format=FORM).json["rcjax"]["not_judged"] == ["response_format"]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_tools_are_judged_by_checks_that_see_them(place, stream):
    body = "calls = len(call['tool_calls'])\nprint(calls, file=open('seen', 'a'))\nprint(min(1, calls))"
    write_program(place / "calls", body)
    with gateway(None, by_form, signal="command:./calls") as service:
        reply = service.ask(tools=TOOLS, tool_choice="auto", stream=stream)
        assert reply.headers["x-rcjax-status"] == "answered", reply.body
        if stream:
            deltas = [choice["delta"] for event in reply.events[:-1] for choice in event["choices"]]
            calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
            assert "".join(call["function"]["arguments"] for call in calls) == CALL["function"]["arguments"]
        else:
            assert reply.json["choices"][0]["message"]["tool_calls"] == [CALL]
            assert reply.json["rcjax"]["models"] == [*MODELS]
        assert [(row["logprob"], row["error"]) for row in service.log_rows()] == [("-inf", None)] * 2 + [(0.0, None)]
    assert (place / "seen").read_text().split() == ["0", "0", "1"]
