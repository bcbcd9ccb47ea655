"""What a program of the user's raises while a cascade runs costs no answer and no line of the log."""

import asyncio
import json

import pytest
from chat_server import Response, completion, serving, sure
from scripted_cascade import POLICY, good

from rcjax import signals
from rcjax.serving.answer_keys import CascadeWarning
from rcjax.serving.call_log import CallLog
from rcjax.serving.cascade import Cascade, CascadeError


def run(tmp_path, behave, **asked):
    """(the result, the rows of the log) of one question; `observe` is one of the cascade's arguments."""
    observe = asked.pop("observe", None)

    async def main():
        async with serving(behave) as (_, client):
            with CallLog(tmp_path / "calls.jsonl") as log:
                cascade = Cascade(POLICY, client, signal=signals.Choice(("A", "B")), log=log, observe=observe)
                return await cascade.ask("A or B?", "q", **asked)

    result = asyncio.run(main())
    return result, [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]


def fail(_):
    raise RuntimeError("s3cret")


async def fail_to_deliver(_):
    fail(_)


def test_an_observer_that_fails(tmp_path):
    with pytest.warns(CascadeWarning, match="observe= failed, .* RuntimeError in test_callbacks.py") as told:
        result, rows = run(tmp_path, lambda request, headers: Response(sure("A", -0.01)), observe=fail)
    assert (result.status, result.text, len(rows)) == ("answered", "A", 1)
    assert "s3cret" not in str([one.message for one in told])


def test_an_observer_hears_which_calls_a_shadow_query_adds():
    calls = []

    async def main():
        async with (
            serving(lambda request, headers: good("A", -0.01)) as (_, client),
            Cascade(POLICY, client, signal=signals.Choice(("A", "B")), shadow=1.0, observe=calls.append) as cascade,
        ):
            await cascade.ask("A or B?", "q")

    asyncio.run(main())
    assert all(call.shadow for call in calls)
    assert {call.model: call.added for call in calls} == {"small": False, "middle": True, "large": True}


def test_whoever_takes_the_pieces_fails(tmp_path):
    unsure = Response(sure("B", -0.7))

    def behave(request, headers):
        return Response(completion("one two three")) if request["model"] == "large" else unsure

    with pytest.warns(CascadeWarning, match="deliver= failed: RuntimeError in test_callbacks.py"):
        result, rows = run(tmp_path, behave, deliver=fail_to_deliver)
    assert (result.status, result.text) == ("answered", "one two three")
    assert [row["model"] for row in rows] == ["small", "middle", "large"]


def test_where_no_model_was_asked_the_error_says_so(tmp_path):
    late = Response(sure("A", -0.01), delay=30)

    async def main():
        async with serving(lambda request, headers: late) as (_, client):
            cascade = Cascade(POLICY, client, signal=signals.Choice(("A", "B")), retries=0)
            await cascade.ask("A or B?", "q", deadline=1e-9)

    with pytest.raises(CascadeError, match=r"^query q: no model could answer in time$"):
        asyncio.run(main())
