"""Policies of segments: one for all where nothing differs, own ones where something does, budgets, promises, again."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from tiers import thorough

import rcjax
from rcjax.tuning.segment_trials import WEIGHTS, pooled_rows, segment_names, try_segments
from rcjax.tuning.tuned_segments import TunedSegments

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("llama3.1-8b", "llama3.1-70b", "llama3.1-405b")


def segmented(n, seed, names=("de", "en"), weak=None):
    """A log whose queries are dealt to segments; in the segment `weak` all but the largest model err far oftener."""
    log, rng = rcjax.sample_log(n, seed=seed).select(MODELS), np.random.default_rng(seed + 7)
    segment = rng.choice(names, n)
    hurt = (segment == weak)[:, None] & (np.arange(len(MODELS)) < 2) & (rng.random((n, len(MODELS))) < 0.7)
    right = jnp.asarray(np.asarray(log.correct) & ~hurt)
    return dataclasses.replace(log, correct=right, by="language", segment=tuple(segment.tolist()))


@pytest.fixture(scope="module")
def alike(float64):
    return segmented(400, seed=1)


@pytest.fixture(scope="module")
def differing(float64):
    return segmented(700, seed=2, weak="de")


@pytest.fixture(scope="module")
def tuned(differing):
    return rcjax.tune_segments(differing, budget=2e-4, intervals=False)


TARGETS = [{"budget": 1.5e-4}, {"max_error": 0.3}, {"error_cost": 0.001}, {"lam": 2000.0}]


@pytest.mark.thorough
@pytest.mark.parametrize("target", thorough(TARGETS, lambda target: "lam" in target or "error_cost" in target))
def test_where_no_segment_gains_it_is_the_policy_of_tune(alike, target):
    tuned = rcjax.tune_segments(alike, intervals=False, **target)
    one = rcjax.tune(dataclasses.replace(alike, by=None, segment=None), intervals=False, **target).policy
    assert tuned.policy.own == ()
    assert tuned.policy.common.rules == one.rules
    assert tuned.policy.common.expected == one.expected
    for name in ("error", "cost"):
        assert tuned.policy.expected[name] == pytest.approx(one.expected[name], rel=1e-12)
        parts = sum(tuned.policy.shares[key] * tuned.policy.segment(key).expected[name] for key in ("de", "en"))
        assert parts == pytest.approx(one.expected[name], rel=1e-9)
    assert tuned.remarks == (
        "one policy for all: no segment is shown to gain by a policy of its own (cross-validated)",
    )


@pytest.mark.thorough
def test_a_segment_that_differs_has_its_own(tuned):
    assert "de" in tuned.policy.own
    assert tuned.gain > 2 * tuned.gain_se > 0
    assert tuned.policy.expected["cost"] <= 2e-4 * (1 + 1e-9)
    assert "a policy of its own for" in tuned.remarks[0]
    assert tuned.one_policy is not None
    told = json.loads(json.dumps(tuned.to_json(), allow_nan=False))
    assert [row["name"] for row in told["segments"]] == list(segment_names(tuned.log))


@pytest.mark.thorough
def test_it_gains_on_fresh_queries_and_keeps_what_is_told(tuned, differing):
    fresh = segmented(6_000, seed=50, weak="de")
    own, one = rcjax.replay(tuned.policy, fresh), rcjax.replay(tuned.one_policy, fresh)
    lam = float(tuned.policy.expected["lam"])
    assert float(own.error) + lam * float(own.cost) < float(one.error) + lam * float(one.cost)
    n = differing.n_queries
    assert float(own.cost) == pytest.approx(
        tuned.policy.expected["cost"], abs=4 * float(own.cost_se) * np.sqrt(6_000 / n)
    )
    assert float(own.error) == pytest.approx(tuned.policy.expected["error"], abs=4 * np.sqrt(0.25 / n))


def test_a_replay_is_that_of_each_segment(tuned, differing):
    whole = rcjax.replay(tuned.policy, differing)
    names = np.array(differing.segment)
    parts = {name: rcjax.replay(tuned.policy.segment(name), differing.take(names == name)) for name in ("de", "en")}
    for figure in ("error", "cost", "spent"):
        mean = sum((names == name).mean() * float(getattr(part, figure)) for name, part in parts.items())
        assert float(getattr(whole, figure)) == pytest.approx(mean)
    assert float(np.sum(whole.share)) == pytest.approx(1)
    unknown = dataclasses.replace(differing, segment=("fr",) * differing.n_queries)
    assert float(rcjax.replay(tuned.policy, unknown).error) == float(rcjax.replay(tuned.policy.common, differing).error)
    with pytest.raises(rcjax.LogError, match="the policy has segments by language, and the log tells none"):
        rcjax.replay(tuned.policy, dataclasses.replace(differing, segment=None, by=None))


@pytest.mark.thorough
def test_shares_are_of_the_traffic(differing):
    some = rcjax.tune_segments(differing, budget=2e-4, shares={"de": 0.9, "en": 0.1}, intervals=False)
    assert some.policy.shares == {"de": 0.9, "en": 0.1} or some.policy.shares == {"en": 0.1, "de": 0.9}
    parts = sum(share * some.policy.segment(name).expected["cost"] for name, share in some.policy.shares.items())
    assert some.policy.expected["cost"] == pytest.approx(parts)
    assert parts <= 2e-4 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"de": 1.0}, "shares lack en: give one of each segment of the log"),
        ({"de": 0.5, "en": 0.4, "fr": 0.1}, "shares name fr"),
        ({"de": 0.5, "en": 0.4}, "shares sum to 0.9: they must be above 0 and sum to 1"),
        ({"de": 1.0, "en": 0.0}, "they must be above 0"),
    ],
)
def test_shares_that_cannot_be_are_refused(alike, shares, message):
    with pytest.raises(rcjax.LogError, match=message):
        rcjax.tune_segments(alike, budget=2e-4, shares=shares)


def test_logs_without_segments_are_refused(alike):
    with pytest.raises(rcjax.LogError, match="it tells no segments: read it with by="):
        rcjax.tune_segments(dataclasses.replace(alike, segment=None), budget=1.0)
    with pytest.raises(rcjax.LogError, match="tells only one segment, de"):
        rcjax.tune_segments(dataclasses.replace(alike, segment=("de",) * 400), budget=1.0)
    with pytest.raises(ValueError, match="give exactly one of"):
        rcjax.tune_segments(alike)
    with pytest.raises(ValueError, match="needs max_error or budget"):
        rcjax.tune_segments(alike, lam=1.0, confidence=0.9)
    with pytest.raises(rcjax.InfeasibleError, match="the cheapest costs"):
        rcjax.tune_segments(alike, budget=1e-9, intervals=False)


def test_queries_of_no_segment_and_small_segments_share(alike):
    names = ["", "tiny", *alike.segment[2:]]
    tuned = rcjax.tune_segments(dataclasses.replace(alike, segment=tuple(names)), budget=1.5e-4, intervals=False)
    assert set(tuned.policy.segments) == {"tiny", "de", "en"}
    assert "tiny" in tuned.policy.sharing
    assert sum(tuned.policy.shares.values()) == pytest.approx(1 - 1 / 400)
    assert any("too few for a policy of its own: tiny" in remark for remark in tuned.remarks)


def test_a_guarantee_is_of_the_whole_and_limits_each_segment(differing):
    tuned = rcjax.tune_segments(differing, max_error=0.45, confidence=0.9, intervals=False)
    certificate = tuned.certificate
    assert certificate is not None
    assert certificate.p_value <= 0.1
    assert certificate.n == tuned.held_out.n_queries
    replayed = rcjax.replay(tuned.policy, tuned.held_out)
    assert certificate.error == pytest.approx(float(replayed.error))
    for name, limit in certificate.segments.items():
        part = tuned.held_out.take(np.array(tuned.held_out.segment) == name)
        own = rcjax.replay(tuned.policy.segment(name), part)
        assert limit.errors == round(float(own.error) * own.n)
        assert limit.error_bound > limit.errors / limit.n
    assert tuned.policy.provenance["guarantee"]["confidence"] == 0.9
    assert any("of each segment, all together with 90 % confidence" in remark for remark in tuned.remarks)
    with pytest.raises(rcjax.InfeasibleError, match="no policies of the segments can be guaranteed"):
        rcjax.tune_segments(differing, max_error=0.05, confidence=0.9, intervals=False)


def test_pooled_rows_weigh_what_they_should():
    own, others = np.arange(40), np.arange(40, 1_000)
    for weight in WEIGHTS:
        rows = pooled_rows(own, others, weight)
        assert (rows >= 40).mean() == pytest.approx(weight)
        assert set(rows[rows < 40]) == set(own)


@pytest.mark.thorough
def test_trials_are_on_queries_left_out(differing):
    """Labels of a segment that say nothing cannot make it look better: no gain is told where there is none."""
    rng = np.random.default_rng(0)
    noise = dataclasses.replace(differing, correct=jnp.asarray(rng.random((700, 3)) < 0.5))
    trials = try_segments(noise, rcjax.fit(noise))
    for one in trials.segments.values():
        assert one.gain.mean < 3 * one.gain.se + 0.01


def test_check_says_which_segment_drifted(tuned):
    fresh = segmented(500, seed=60, weak="de")
    assert not rcjax.diagnostics.check_segments(tuned.policy, fresh).drifted
    moved = segmented(500, seed=61, weak="en")
    check = rcjax.diagnostics.check_segments(tuned.policy, moved)
    assert "en" in check.drifted_segments
    json.dumps(check.to_json(), allow_nan=False)
    strange = ["fr"] * 100 + list(fresh.segment[100:])
    check = rcjax.diagnostics.check_segments(tuned.policy, dataclasses.replace(fresh, segment=tuple(strange)))
    assert check.unknown == 100
    assert any("100 queries are of no known segment" in remark for remark in check.remarks)
    with pytest.raises(rcjax.LogError, match="tuned on this very log"):
        rcjax.diagnostics.check_segments(tuned.policy, tuned.log)


@pytest.mark.thorough
def test_retune_spends_the_same_budget_on_a_fresh_log(tuned):
    again = rcjax.retune(tuned.policy, segmented(500, seed=70, weak="de"), bands=False)
    assert isinstance(again.policy, rcjax.SegmentedPolicy)
    assert again.policy.by == "language"
    assert again.policy.provenance["tuning"]["target"] == {"budget": 2e-4}
    assert again.policy.expected["cost"] <= 2e-4 * (1 + 1e-9)


def test_what_it_gives_is_a_tuned_segments(tuned):
    assert isinstance(tuned, TunedSegments)
    assert {one.name for one in tuned.figures} == {"de", "en"}
    assert all(one.share == pytest.approx(one.queries / 700) for one in tuned.figures)
