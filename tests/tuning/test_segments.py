"""Rungs with a cascade for each segment: what they promise, what replays make of them, and what is refused."""

import asyncio
import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from helpers.chat_server import serving
from helpers.scripted_cascade import good, make_cascade, script

import rcjax
from rcjax.logs import with_segments
from rcjax.policy.error_kind import ERRORS
from rcjax.policy.ladder import policy_from_json
from rcjax.policy.signals import Choice
from rcjax.policy.spec import Target, recorded_tuning
from rcjax.solving.frontier.frontier import InfeasibleError
from rcjax.tuning.target_policy import _at_target

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("small", "large")


@pytest.fixture(scope="module")
def log(float64):
    """384 queries: of `easy` ones the small model is right, of `hard` ones never, of the few others at random."""
    rng = np.random.default_rng(0)
    segment = np.repeat(["easy", "hard", "rare"], [170, 170, 44])
    right = np.where(segment == "easy", True, np.where(segment == "hard", False, rng.random(384) < 0.5))
    confidence = rng.uniform(0.2, 0.9, 384)
    rows = {"query": np.repeat(np.arange(384), 2), "model": [*MODELS] * 384, "kind": np.repeat(segment, 2)}
    rows |= {"correct": np.stack([right, rng.random(384) < 0.9], 1).ravel().astype(int)}
    rows |= {"confidence": np.stack([confidence, rng.uniform(0.8, 0.99, 384)], 1).ravel(), "cost": [1e-5, 2e-4] * 384}
    frame = pl.DataFrame(rows)
    return with_segments(rcjax.read_log(frame), frame, "kind")


@pytest.fixture(scope="module")
def tuned(log):
    return rcjax.tune(log, budget=1.1e-4, segment="kind", intervals=False)


def test_money_goes_where_it_saves_errors(log, tuned):
    """One bill: at the budget of all, easy queries stay with the small model, and hard ones go to the large one."""
    ladder = tuned.policy
    assert [ladder.choose("q", segment=kind).models for kind in ("easy", "hard")] == [("small",), ("large",)]
    whole = rcjax.tune(log, budget=1.1e-4, intervals=False).policy
    assert ladder.expected["error"] < 0.7 * whole.expected["error"]
    assert any("the other 44 queries go by the cascades for all" in note for note in tuned.notes)
    costs, errors = np.array([(rung.expected["cost"], rung.expected["error"]) for rung in ladder.rungs]).T
    slopes = np.diff(errors) / np.diff(costs)
    assert (slopes < 0).all()
    assert (np.diff(slopes) > -1e-9).all()  # one price of an error everywhere: each step saves less than those before


def test_rungs_by_segments_have_intervals_and_seconds(log):
    seconds = np.random.default_rng(1).uniform(1.0, 3.0, log.query_cost.shape)
    timed = dataclasses.replace(log, seconds=jnp.asarray(seconds))
    policy = rcjax.tune(timed, budget=1.1e-4, segment="kind").policy
    for figures in (policy.expected, *(rung.expected for rung in policy.rungs)):
        assert figures["error_low"] <= figures["error"] <= figures["error_high"]
    for rung in policy.rungs:
        assert rung.expected["cost_low"] <= rung.expected["cost"] <= rung.expected["cost_high"]
        assert rung.expected["level"] == 0.9
        assert rung.expected["seconds"] == pytest.approx(float(rcjax.replay(rung, timed).seconds.mean))
    plain = rcjax.tune(timed, budget=1.1e-4, segment="kind", intervals=False).policy
    assert "error_low" not in plain.expected
    assert plain.expected["seconds"] == pytest.approx(policy.expected["seconds"])


def test_at_a_price_the_rung_is_the_one_that_costs_least_with_its_errors(tuned):
    rungs, chosen = tuned.policy.rungs, []
    for price in (1e-9, 1e-4, 1.0):
        best = min(rungs, key=lambda rung: price * rung.expected["error"] + rung.expected["cost"])
        chosen.append(best)
        for target in (Target("error_cost", price), Target("lam", 1 / price)):
            assert _at_target(rungs, target, ERRORS) is best
    assert (chosen[0], chosen[-1]) == (rungs[0], rungs[-1])


def test_the_policy_for_another_target_has_segments_and_the_options_of_its_tuning(tuned):
    policy = tuned.policy_for(Target("budget", 9e-5))
    assert [set(rung.segments) for rung in policy.rungs] == [set(rung.segments) for rung in tuned.policy.rungs]
    assert policy.expected["cost"] == pytest.approx(9e-5)
    spec = recorded_tuning(policy).spec
    assert (spec.target, spec.segment, spec.today) == (Target("budget", 9e-5), "kind", tuned.spec.today)


def test_a_limit_that_no_rung_meets_is_refused(log):
    with pytest.raises(InfeasibleError, match="or less; the best errs on"):
        rcjax.tune(log, max_error=1e-4, segment="kind", intervals=False)


def test_a_replay_answers_each_segment_by_its_own_cascade(log, tuned):
    kinds = np.asarray(log.segment)
    for rung in (tuned.policy.rungs[0], tuned.policy.rungs[-1], tuned.policy):
        figures = []
        for kind in ("easy", "hard", "rare"):
            part = log.take(kinds == kind)
            for share, one in zip(rung.weights, rung.adjacent_rungs, strict=True):
                alone = rcjax.replay(one.for_segment(kind if kind != "rare" else None), part)
                figures.append(share * part.n_queries / log.n_queries * np.array([alone.error, alone.spent]))
        replayed = rcjax.replay(rung, log)
        np.testing.assert_allclose([replayed.error, replayed.spent], np.sum(figures, 0), rtol=1e-9)
        np.testing.assert_allclose(replayed.spent, rung.expected["cost"], rtol=1e-6)


def test_the_advice_names_the_column_and_not_an_order_that_no_query_takes(tuned):
    assert tuned.advice.startswith("use cascades by kind: by estimate it ")
    assert "for the target cascades by kind: " in tuned.describe()


def test_files_keep_segments(tuned):
    for policy in (tuned.policy, tuned.policy.rungs[0]):
        data = json.loads(json.dumps(policy.to_json()))
        again = policy_from_json(data)
        assert again == policy
        assert again.choose("q", segment="hard") == policy.choose("q", segment="hard")
    assert tuned.policy.segment_column == "kind"
    broken = data | {"segments": {"easy": {"models": ["nobody"], "rules": {}}}}
    with pytest.raises(ValueError, match=r"segments\['easy'\]\.models: must be of small"):
        policy_from_json(broken)


def test_the_sample_that_a_policy_keeps_has_segments(log, tuned):
    assert set(tuned.policy.provenance["kept_sample"]["segment"]) == {"easy", "hard", "rare"}


@pytest.mark.parametrize("shadow", [0.0, 1.0])
def test_a_service_asks_by_the_segment_and_logs_it(tuned, tmp_path, shadow):
    policy = dataclasses.replace(tuned.policy, budget=None)
    calls = tmp_path / "calls.jsonl"

    async def main():
        async with serving(script(small=good("A", -0.3), large=good("B", -0.1))) as (_, client):
            with rcjax.CallLog(calls) as to:
                async with make_cascade(policy, client, signal=Choice(), log=to, shadow=shadow) as cascade:
                    return [(await cascade.ask("?", f"q{kind}", segment=kind)).model for kind in ("easy", "hard")]

    assert asyncio.run(main()) == ["small", "large"]
    rows = [json.loads(line) for line in calls.read_text().splitlines()]
    assert {(row["query"], row["segment"]) for row in rows} == {("qeasy", "easy"), ("qhard", "hard")}


def test_impossible_segments_are_refused(log, tuned):
    bare = dataclasses.replace(log, segment=None)
    with pytest.raises(rcjax.logs.LogError, match="goes by segments of queries, and the log has none"):
        rcjax.replay(tuned.policy, bare)
    with pytest.raises(rcjax.logs.LogError, match=r"the log has no segments: .*with_segments\(log, source, 'kind'\)"):
        rcjax.retune(tuned.policy, bare)
    few = log.take(np.asarray(log.segment) == "rare")
    with pytest.raises(rcjax.logs.LogError, match=r"no segment of kind has 60 queries .*, the largest has 44"):
        rcjax.tune(few, budget=1.1e-4, segment="kind", intervals=False)
    mostly_without = dataclasses.replace(few, segment=("",) * 30 + few.segment[30:])
    with pytest.raises(rcjax.logs.LogError, match="the largest has 14"):
        rcjax.tune(mostly_without, budget=1.1e-4, segment="kind", intervals=False)
    for options, what in (({}, "needs a target"), ({"budget": 1e-4, "cascade": "all"}, "leave cascade out")):
        with pytest.raises(ValueError, match=what):
            rcjax.tune(log, segment="kind", **options)
    frame = pl.DataFrame({"query": [1, 1], "kind": ["a", "b"]})
    with pytest.raises(rcjax.logs.LogError, match="query 1: its kind is 'a' and 'b': give a query one segment"):
        with_segments(log, frame, "kind")
    with pytest.raises(rcjax.logs.LogError, match="no column 'sort' for segments: it has query, kind"):
        with_segments(log, frame, "sort")
    assert with_segments(few, pl.DataFrame({"query": few.queries}), "query").segment == tuple(map(str, few.queries))
    with pytest.raises(rcjax.logs.LogError, match="383 queries of the log without a row, such as 1: give every query"):
        with_segments(log, pl.DataFrame({"query": [0], "kind": ["easy"]}), "kind")
    with pytest.raises(rcjax.logs.LogError, match="column kind holds List"):
        with_segments(log, frame.with_columns(pl.concat_list("kind")), "kind")


def test_a_price_is_the_same_in_all_segments(log):
    whole, cut = (rcjax.tune(log, lam=2000.0, segment=name, intervals=False).policy for name in (None, "kind"))
    loss = [policy.expected["error"] + 2000 * policy.expected["cost"] for policy in (whole, cut)]
    assert loss[1] < loss[0]
    assert [cut.choose(segment=kind).models for kind in ("easy", "hard")] == [("small",), ("large",)]
