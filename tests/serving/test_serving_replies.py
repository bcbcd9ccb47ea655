"""Whatever a server replies and whatever goes wrong in a signal: a query may fail, a batch and a log go on."""

import asyncio
import itertools
import json
import math
import time
import warnings
from copy import deepcopy

import polars as pl
import pytest
from helpers.chat_server import Response, completion, serving, sure
from helpers.gateway_service import MODELS, SURE, UNSURE
from helpers.scripted_cascade import PRICES, ask, good, make_cascade, script

from rcjax import read_log
from rcjax.policy import Calibration, Policy, Rule, signals
from rcjax.serving.call_log import CallLog, Result, call_row
from rcjax.serving.failures import CascadeWarning

ABSURD = (10**400, 10**18, -1, -(10**400), math.nan, math.inf, 1e308, 2.5, True, None, "7", "\ud800", [], [1], {}, "")
BODY = sure("A", SURE) | {"error": {"code": "x", "type": "y"}}


def calibrated(*models):
    identity = Calibration("none", intercept=2.0, slope=4.0, smallest=-9.0, largest=0.0)
    rules = {model: (Rule(0.5, "ask", larger), Rule(1.0, "answer")) for model, larger in itertools.pairwise(models)}
    last = {models[-1]: (Rule(1.0, "answer"),)}
    return Policy(models, dict.fromkeys(models, identity), rules | last, dict.fromkeys(models, 1e-5), PRICES)


def paths(value, before=()):
    """The place of every value in a JSON value, the whole included."""
    yield before
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from paths(inner, (*before, key))


def put(body, path, value):
    """The body with another value at a place."""
    body = deepcopy(body)
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return body


def run_batch(replies, log, *, policy=None, signal=None, **options):
    """The results of a query for each of the replies (bytes), which all models give to it."""

    def behave(request, headers):
        return Response(replies[int(request["messages"][-1]["content"])])

    async def main():
        async with serving(behave) as (_, client):
            reader = signal or signals.Choice()
            cascade = make_cascade(policy or calibrated(*MODELS), client, signal=reader, log=log, **options)
            return await cascade.ask_all([(i, str(i)) for i in range(len(replies))])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CascadeWarning)
        return asyncio.run(main())


GOOD, A = (json.dumps(sure(letter, SURE)).encode() for letter in "BA")


def check_batch(replies, path, **options):
    """Good replies around others are answered, and every call is in a log that can be read."""
    path.unlink(missing_ok=True)
    with CallLog(path) as log:
        results = run_batch([GOOD, *replies, GOOD], log, shadow=1.0, **options)
    assert all(isinstance(result, Result) for result in results)
    assert [results[i].answer for i in (0, -1)] == ["B", "B"]
    rows = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert len(rows) == len(MODELS) * (len(replies) + 2)
    for row in rows:
        assert row["cost"] >= 0
        assert row["cost"] < 1e6
        assert (row["error"] is None) == (row["logprob"] is not None)
    labels = pl.DataFrame({"query": [0, len(replies) + 1], "answer": ["B", "B"]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert read_log(path, labels=labels, task="choice").labelled.all(axis=1).sum() == 2
    return results[1:-1], rows


def test_an_absurd_value_anywhere_in_a_reply_ends_no_batch(tmp_path):
    places = [path for path in paths(BODY) if path]
    values = itertools.cycle(ABSURD)  # four at each place
    replies = [put(BODY, path, next(values)) for _ in range(4) for path in places]
    check_batch([json.dumps(reply).encode() for reply in replies], tmp_path / "calls.jsonl")


def test_a_reply_nested_deeply_is_a_failed_call(tmp_path):
    deep = b'{"choices": [{"finish_reason": ' + b"[" * 900 + b"]" * 900 + b"}]}"
    replies = [deep, b"[" * 10**5, b'{"usage": {"prompt_tokens": 1' + b"0" * 5000 + b"}}"]
    results, _ = check_batch(replies, tmp_path / "calls.jsonl")
    assert [result.status for result in results] == ["failed"] * 3


# Signals


class Broken(signals.Choice):
    """A signal that does as it is told about the second query."""

    def __init__(self, reading, where="read"):
        super().__init__()
        object.__setattr__(self, "reading", reading)
        object.__setattr__(self, "where", where)

    def _perhaps(self, where, usual):
        if where != self.where:
            return usual()
        return self.reading() if callable(self.reading) else self.reading

    def follow_up(self, messages, reply):
        return self._perhaps("follow_up", lambda: None) if messages[0]["content"] == "1" else None

    def read(self, reply, second=None):
        return (
            self._perhaps("read", lambda: super(Broken, self).read(reply)) if reply.text == "A" else super().read(reply)
        )


def fail(error):
    def raising():
        raise error

    return raising


@pytest.mark.parametrize(
    ("reading", "says"),
    [
        (fail(KeyError("the prompt")), "the signal failed: KeyError in test_serving_replies.py, line "),
        (fail(signals.SignalError("no letter")), "no letter"),
        (None, "the signal's read gave None: it must give a rcjax.policy.signals.Reading"),
        (lambda: signals.Reading("A", math.nan), "the signal reads the log-probability nan: it must be at most 0"),
        (lambda: signals.Reading("A", "-0.1"), "the signal reads a text as the log-probability"),
        (lambda: signals.Reading(7, -0.1), "the signal must read texts"),
    ],
)
def test_a_signal_that_fails_fails_a_call(tmp_path, reading, says):
    (result,), rows = check_batch(
        [json.dumps(sure("A", SURE)).encode()],
        tmp_path / "calls.jsonl",
        signal=Broken(reading),
        policy=calibrated(*MODELS),
    )
    assert result.status == "answered"  # by the largest, which needs no confidence
    assert [call.error.startswith(says) for call in result.calls] == [True] * 3
    assert not any("the prompt" in str(row) for row in rows)


@pytest.mark.parametrize("second", [fail(KeyError()), 5, ("x",), (5, {})])
def test_an_invalid_second_question_fails_a_call(tmp_path, second):
    (result,), _ = check_batch([A], tmp_path / "calls.jsonl", signal=Broken(second, "follow_up"))
    assert all(call.error for call in result.calls)


# Logs


def test_what_cannot_be_logged_is_answered_all_the_same(tmp_path):
    odd = [{"role": "user", "content": "0", ("a", "tuple"): 1}]  # no JSON: neither the server nor the log can have it
    with CallLog(tmp_path / "calls.jsonl", prompts=True) as log, pytest.warns(CascadeWarning, match="are not logged"):
        error, _ = ask(script(small=good("A", SURE)), odd, log=log)
    assert error.result.status == "failed"


def test_names_with_control_characters_are_escaped_in_messages(tmp_path):
    evil = "small\x1b]0;x\x07\n\u202etxt"
    policy = calibrated(evil, "large")
    reply = good("Well", UNSURE)
    with CallLog(tmp_path / "calls.jsonl") as log, pytest.warns(CascadeWarning) as caught:
        result, _ = ask(script(**{evil: reply, "large": good("A", SURE)}), query="q\x1b[2J", policy=policy, log=log)
    lines = (tmp_path / "calls.jsonl").read_text().splitlines()
    for text in (result.problem, *(str(each.message) for each in caught), *lines):
        assert text.isprintable()
    assert all("\\u202etxt" in text for text in (result.problem, str(caught[0].message), lines[0]))
    assert json.loads(lines[0])["model"] == evil


# Clocks


@pytest.mark.parametrize("step", [-1e9, 1e9])
def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch, step):
    """A busy machine may take seconds, a jump that gets into a figure is thirty years."""
    wall, jumps = time.time, iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: wall() + step * (next(jumps) % 2))
    # It asks to be called again at a time of day, which such a clock puts years away.
    limited = Response(completion(None), status=429, headers={"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"})
    behave = script(small=[limited, good("A", UNSURE)], middle=good("B", SURE))
    with CallLog(tmp_path / "calls.jsonl") as log:
        result, server = ask(behave, log=log)
    attempts = [call.attempts for call in result.calls]  # the client asks again, unless it is to wait for years
    assert (result.answer, attempts[1], len(server.requests)) == ("B", 1, sum(attempts))
    assert all(0 <= call.seconds < 1e6 for call in result.calls)


def withheld(reason):
    body = completion("B")
    body["choices"][0]["finish_reason"] = reason
    return Response(body)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Response({"error": {"code": "slow_down"}}, status=429), "HTTP 429"),
        (Response({}, status=777), "HTTP other"),
        (Response({"error": {"code": "server_error"}}), "an error in place of an answer"),
        (withheld("error"), "a failure in place of an answer"),
        (withheld("content_filter"), "an answer that a filter held back"),
        (Response(completion("")), "an answer without text"),
        (Response([]), "malformed answer"),
        (Response(completion("no letter")), "signal"),
    ],
)
def test_each_failed_call_has_a_kind_of_a_short_list(reply, kind):
    seen = []
    ask(script(small=reply, middle=good("B", SURE)), observe=seen.append, retries=0)
    assert (seen[0].failure_kind, seen[1].failure_kind) == (kind, None)
    assert "failure_kind" not in call_row(seen[0])
