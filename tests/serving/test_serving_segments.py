"""A cascade with policies of segments: who is asked for which, what the log keeps, and that it comes back."""

import asyncio
import json

import pytest
from chat_server import Response, serving, sure
from gateway_service import SURE, UNSURE, make_policy

from rcjax import signals
from rcjax.logs import read_log
from rcjax.policy import Mixture, Policy, Rule, SegmentedPolicy
from rcjax.serving.call_log import CallLog
from rcjax.serving.cascade import Cascade

PRICES = {name: {"input": 1.0, "output": 1.0} for name in ("small", "middle", "large")}
COMMON = make_policy(prices=PRICES)
LARGE = Policy(
    ("large",),
    {"large": COMMON.calibrations["large"]},
    {"large": [Rule(1, "answer")]},
    {"large": 3e-4},
    prices={"large": PRICES["large"]},
)
POLICIES = SegmentedPolicy(COMMON, {"de": LARGE, "en": COMMON}, {"de": 0.3, "en": 0.7}, by="language")


def ask_of(segments, policy=POLICIES, **options):
    """(the results for these segments, what was asked for each)."""

    async def main():
        async with (
            serving(lambda request, _: Response(sure("B", UNSURE if request["model"] == "small" else SURE))) as (
                server,
                client,
            ),
            Cascade(policy, client, signal=signals.Choice(), **options) as cascade,
        ):
            results = [await cascade.ask("?", f"q{i}", segment=segment) for i, segment in enumerate(segments)]
            await cascade.close()
            return results, [request["model"] for request in server.requests]

    return asyncio.run(main())


def test_each_segment_is_answered_by_its_policy():
    results, _ = ask_of(["de", "en", "fr", None])
    assert [[call.model for call in result.calls] for result in results] == [["large"], *[["small", "middle"]] * 3]
    assert [result.segment for result in results] == ["de", "en", "fr", ""]


def test_other_policies_take_no_notice():
    for policy in (COMMON, Mixture((COMMON,), (1.0,))):
        results, _ = ask_of(["de", None], policy)
        assert [[call.model for call in result.calls] for result in results] == [["small", "middle"]] * 2
        assert [result.segment for result in results] == ["de", None]


@pytest.mark.parametrize("policy", [POLICIES, COMMON])
def test_the_log_keeps_the_segment_and_is_read_by_it(tmp_path, policy):
    path = tmp_path / "calls.jsonl"
    with CallLog(path) as log:
        ask_of(["de", "en", "fr"], policy, log=log, shadow=1.0)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(row["query"], row["segment"]) for row in rows} == {("q0", "de"), ("q1", "en"), ("q2", "fr")}
    labels = tmp_path / "labels.csv"
    labels.write_text("query,answer\nq0,B\nq1,A\nq2,B\n")
    told = read_log(path, labels=labels, by="language")
    assert dict(zip(told.queries, told.segment, strict=True)) == {"q0": "de", "q1": "en", "q2": "fr"}


def test_without_segments_the_log_is_as_it_was(tmp_path):
    path = tmp_path / "calls.jsonl"
    with CallLog(path) as log:
        ask_of([None], COMMON, log=log)
    assert all("segment" not in json.loads(line) for line in path.read_text().splitlines())


def test_a_query_without_a_segment_is_read_as_of_none(tmp_path):
    path = tmp_path / "calls.jsonl"
    with CallLog(path) as log:
        ask_of([None, "de"], log=log, shadow=1.0)
    labels = tmp_path / "labels.csv"
    labels.write_text("query,answer\nq0,B\nq1,A\n")
    assert read_log(path, labels=labels, by="language").segment == ("", "de")


def test_a_segment_is_a_text():
    with pytest.raises(TypeError, match="segment must be a text or None, not an int"):
        ask_of([5])
