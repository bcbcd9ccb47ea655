"""Checks as the signals of a cascade: who is asked next, what it costs, what a policy may start, what differs."""

import asyncio
import os
import time

import pytest
from chat_server import Response, completion, serving
from checks_of_a_test import FUNCTIONS, PROGRAMS, write_checks
from gateway_service import make_policy

from rcjax.serving.answer_keys import CascadeWarning
from rcjax.serving.call_log import CallLog
from rcjax.serving.cascade import Cascade
from rcjax.serving.running_checks import prepared
from rcjax.signals import Check
from rcjax.signals.records import record_signal

PROMPT = "what nobody is to read"
KEY_OF_THE_CHECK = "sk-of-the-check"
PASSES = Check("length")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHECK_KEY", KEY_OF_THE_CHECK)
    write_checks(tmp_path)
    return tmp_path


def behave(request, headers):
    return Response(completion("B", usage=(100, 10)))


def policy_of(check, **more):
    """small by a check, the others by one that passes, as a policy records them."""
    told = {model: record_signal(PASSES) | {"options": {}} for model in ("middle", "large")}
    return make_policy(provenance={"asked": {"small": record_signal(check) | {"options": {}, **more}, **told}})


def ask(checks, policy=None, log=None, timeout=1.0, **question):
    """By check, the result of a question whose smallest model it judges."""

    async def one(name, client):
        signal = {"small": Check(name), "middle": PASSES, "large": PASSES}
        prices = {model: {"input": 1, "output": 1} for model in signal}
        policies = policy or make_policy()
        async with Cascade(policies, client, signal=signal, prices=prices, timeout=timeout, log=log) as cascade:
            return await cascade.ask(PROMPT, **question)

    async def main():
        async with serving(behave) as (_, client):
            return {name: await one(name, client.with_options(timeout=20)) for name in checks}

    return asyncio.run(main())


def test_a_check_passes_or_the_next_model_is_asked(place):
    names = {f"python:of_a_test:{name}": FUNCTIONS[name][1] for name in ("passes", "scores", "fails", "crashes")}
    names |= {f"command:./check.py {name}": PROGRAMS[name][1] for name in ("passes", "costs", "fails", "hangs")}
    with CallLog("calls.jsonl") as log, pytest.warns(CascadeWarning, match="its confidence cannot be read") as said:
        results = ask(names, log=log)
    for name, outcome in names.items():
        result, first = results[name], results[name].calls[0]
        assert result.model == ("small" if name.endswith(":passes") or name.endswith(" passes") else "middle"), name
        assert result.text == "B"
        if isinstance(outcome, str):
            assert first.error.startswith(outcome), name
            assert (first.text, first.logprob, first.confidence) == ("B", None, None)
        else:
            assert first.error is None
            assert first.confidence == pytest.approx(make_policy().calibrate("small", logprob=first.logprob))
        assert first.cost == pytest.approx(110e-6 + 0.125 * name.endswith("costs"))
        assert first.seconds > (1.0 if name.endswith("hangs") else 0.0)
    words = (place / "calls.jsonl").read_text() + "".join(str(one.message) for one in said)
    assert PROMPT not in words
    assert KEY_OF_THE_CHECK not in words


def test_the_deadline_ends_a_check_that_hangs():
    with pytest.warns(CascadeWarning, match="the check timed out"):  # as its own time is up: it has a second
        assert ask(["python:of_a_test:hangs"])["python:of_a_test:hangs"].model == "middle"
    start = time.monotonic()
    result = ask(["command:./check.py hangs"], timeout=60.0, deadline=2.0)["command:./check.py hangs"]
    assert result.calls[0].error == "the check timed out"
    assert result.calls[0].seconds < 2.0
    assert (result.model, result.status) == ("middle", "answered")
    assert time.monotonic() - start < 20


def test_a_policy_records_a_check_and_says_where_it_is_another_now(place, recwarn):
    check = prepared([Check("command:./check.py passes")])["command:./check.py passes"]
    policy = policy_of(check)
    result = ask([check.name], policy)[check.name]
    assert f'"check": "{check.version}", "options": {{}}' in result.calls[0].asked
    assert [str(one.message) for one in recwarn] == []
    (place / "check.py").write_text((place / "check.py").read_text() + "\n# another\n")
    words = r"the check command:./check.py passes is not that of the policy's log: it is \w{16} now, and was \w{16}"
    with pytest.warns(CascadeWarning, match=words):
        ask([check.name], policy)
    with pytest.raises(ValueError, match="the policy was tuned on another one: signal is 'json'"):
        ask(["json"], policy)


def test_no_file_of_a_policy_starts_what_it_likes(place):
    os.environ["CHECK_KEY"] = "none"
    name = "command:touch started"

    async def start():
        async with serving(behave) as (_, client):
            Cascade(policy_of(Check(name)), client)

    with pytest.raises(ValueError, match=f"of small: the policy was tuned on {name}, which no file of a policy starts"):
        asyncio.run(start())
    assert not (place / "started").exists()
