"""The guarantee: p-values against scipy, the sequence of tests on frontiers made by hand, honesty by simulation."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from misses import in_turn
from scipy import stats
from tiers import examples

import rcjax
from rcjax.frontier.frontier import Frontier, make_frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.points import Points
from rcjax.frontier.policies import Policies
from rcjax.model.provenance import Details
from rcjax.tuning.certify import Certificate, certify
from rcjax.tuning.p_values import binomial_tail, bounded_mean_p_value, upper_limit

pytestmark = pytest.mark.usefixtures("float64")
N = 200
COST = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


# -- p-values and limits


@in_turn("n", [1, 7, 60, 1000, 100_000])
def test_the_binomial_tail_is_that_of_scipy(n):
    for successes in {0, 1, n // 20, n // 3, n - 1, n}:
        for probability in (1e-6, 0.01, 0.05, 0.3, 0.5, 0.9, 1 - 1e-6):
            expected = stats.binom.cdf(successes, n, probability)
            assert binomial_tail(successes, n, probability) == pytest.approx(expected, abs=1e-12, rel=1e-9)


def test_the_binomial_tail_at_the_ends():
    assert binomial_tail(-1, 5, 0.3) == 0
    assert binomial_tail(3, 5, 0.0) == 1
    assert binomial_tail(3, 5, 1.0) == 0
    assert binomial_tail(5, 5, 1.0) == 1


@in_turn("n", [1, 10, 59, 300, 20_000])
@in_turn("level", [0.001, 0.05, 0.2])
def test_the_limit_is_that_of_clopper_and_pearson(n, level):
    for errors in {0, 1, n // 10, n // 2, n - 1, n}:
        limit = upper_limit(lambda p, k=errors: binomial_tail(k, n, p), level)
        assert limit == pytest.approx(
            1.0 if errors == n else stats.beta.ppf(1 - level, errors + 1, n - errors), abs=1e-9
        )


def test_no_precision_of_jax_matters():
    with jax.enable_x64(False):
        assert binomial_tail(300, 1000, 0.33) == pytest.approx(stats.binom.cdf(300, 1000, 0.33), rel=1e-9)


@settings(max_examples=examples(200), deadline=None)
@given(st.floats(0, 1), st.integers(1, 500), st.floats(0, 1), st.floats(0, 1))
def test_the_p_value_of_a_mean_is_a_probability_and_monotone(mean, n, one, other):
    low, high = sorted((one, other))
    assert 0 <= bounded_mean_p_value(mean, n, high) <= bounded_mean_p_value(mean, n, low) * (1 + 1e-9) <= 1 + 1e-9
    assert bounded_mean_p_value(low, n, mean) <= bounded_mean_p_value(high, n, mean) * (1 + 1e-9)


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 300), st.data(), st.floats(0.01, 0.99))
def test_of_counts_it_is_never_below_the_exact_one(n, data, limit):
    successes = data.draw(st.integers(0, n))
    assert bounded_mean_p_value(successes / n, n, limit) >= stats.binom.cdf(successes, n, limit) * (1 - 1e-9)


@in_turn("values", [(0.0, 1.0), (0.0, 0.1, 1.0), (0.0, 0.3, 0.4, 0.5)])
@in_turn("n", [30, 200])
def test_the_p_value_of_a_mean_holds_what_it_promises(values, n):
    drawn = np.random.default_rng(n).choice(values, (20_000, n))
    means, counts = np.unique(drawn.mean(1), return_counts=True)
    p_values = np.array([bounded_mean_p_value(mean, n, np.mean(values)) for mean in means])
    for level in (0.01, 0.05, 0.2):
        share = counts[p_values <= level].sum() / counts.sum()
        assert share <= level + 3 * np.sqrt(level / 20_000)


# -- the sequence of tests


@pytest.fixture(scope="module")
def model() -> rcjax.CascadeModel:
    return dataclasses.replace(rcjax.demo_model(), cost=jax.device_put(COST))


def singles(model, error, cost=COST) -> Frontier:
    """A frontier of single models, with predictions made up."""
    k = len(error)
    members = np.eye(k, 5, dtype=bool)
    thresholds = np.where(members, 0.0, 1.0)
    return build(model, thresholds, members, error, cost)


def build(model, thresholds, members, error, cost) -> Frontier:
    error, cost = np.asarray(error, float), np.asarray(cost, float)[: len(error)]
    nothing = np.zeros(len(error))
    expected = Outcomes(error, cost, nothing)
    policies = Policies.of_cascades(thresholds, members)
    return make_frontier(model, Points(nothing, nothing.astype(int), expected, policies))


def wrong(*errors: int, n: int = N) -> rcjax.Log:
    """A log in which model j errs on so many queries."""
    right = np.arange(n)[:, None] >= np.array(errors)
    cost = np.full((n, 5), 1e6)  # what the answers were billed plays no part
    answered = np.ones((n, 5), bool)
    logprob = np.full((n, 5), -0.5)
    models = rcjax.demo_model().models
    arrays = map(jax.device_put, (logprob, right, cost, answered, cost.mean(0)))
    return rcjax.Log(models, *arrays, tuple(range(n)), "choice", "made")


ERROR = (0.5, 0.4, 0.3, 0.2, 0.1)


@in_turn(
    ("errors", "index"),
    [
        ((99, 99, 99, 99, 10), 4),  # only the first of the sequence passes
        ((99, 99, 99, 11, 10), 3),
        ((99, 99, 29, 28, 27), 2),
        ((1, 2, 3, 2, 1), 0),  # all pass
        ((1, 1, 1, 60, 1), 4),  # what comes after a failure does not count
        ((1, 60, 1, 30, 30), 2),
    ],
)
def test_the_last_before_the_first_failure_is_chosen(model, errors, index):
    found = certify(singles(model, ERROR), wrong(*errors), max_error=0.2)
    assert found.index == index
    assert (found.n, found.errors) == (N, errors[index])
    assert found.policy.models == (model.models[index],)
    assert found.p_value == pytest.approx(stats.binom.cdf(errors[index], N, 0.2))
    assert found.error_bound == pytest.approx(stats.beta.ppf(0.95, errors[index] + 1, N - errors[index]))
    assert found.error_bound <= 0.2
    assert found.cost == found.cost_bound == COST[index]


def test_the_order_is_by_prediction_and_not_by_place(model):
    found = certify(singles(model, ERROR[::-1], COST[::-1]), wrong(1, 2, 99, 99, 99), max_error=0.2)
    assert found.index == 1


def test_what_another_beats_and_what_is_not_finite_is_left_out(model):
    log = wrong(99, 1, 99, 1, 1)
    assert certify(singles(model, (0.5, 0.4, 0.45, 0.2, 0.1)), log, max_error=0.2).index == 1
    assert certify(singles(model, (0.5, 0.4, math.nan, 0.2, 0.1)), log, max_error=0.2).index == 1
    assert certify(singles(model, (0.4, 0.4, 0.2, 0.2, 0.1)), wrong(1, 99, 1, 99, 1), max_error=0.2).index == 0
    with pytest.raises(rcjax.InfeasibleError, match="finite"):
        certify(singles(model, (math.nan,) * 5), log, max_error=0.2)


def test_more_confidence_takes_more(model):
    log = wrong(99, 99, 30, 28, 10)
    found = [certify(singles(model, ERROR), log, max_error=0.2, confidence=c).index for c in (0.9, 0.95, 0.99)]
    assert found == [2, 2, 4]


@given(st.lists(st.integers(0, N), min_size=5, max_size=5), st.floats(0.05, 0.6), st.sampled_from([0.8, 0.95]))
@settings(max_examples=examples(50), deadline=None)
def test_the_choice_is_that_of_a_plain_loop(errors, max_error, confidence):
    with jax.enable_x64(True):
        made = dataclasses.replace(rcjax.demo_model(), cost=jax.device_put(COST))
        frontier, log = singles(made, ERROR), wrong(*errors)
        passed = 0
        while passed < 5 and stats.binom.cdf(errors[4 - passed], N, max_error) <= 1 - confidence:
            passed += 1
        if not passed:
            with pytest.raises(rcjax.InfeasibleError):
                certify(frontier, log, max_error=max_error, confidence=confidence)
        else:
            found = certify(frontier, log, max_error=max_error, confidence=confidence)
            assert found.index == 5 - passed
            assert found.error_bound <= max_error + 1e-12


# -- costs


def pairs_of(model, cuts) -> tuple[Frontier, np.ndarray]:
    """Model 0, then model 4 where the confidence is at most each cut, and the cuts' predicted costs."""
    members = np.tile([True, False, False, False, True], (len(cuts), 1))
    thresholds = np.tile([0.0, 1.0, 1.0, 1.0, 0.0], (len(cuts), 1))
    thresholds[:, 0] = cuts
    cost = 1 + 16 * np.asarray(cuts)
    return build(model, thresholds, members, 0.5 - 0.4 * np.asarray(cuts), cost), cost


def confident(model, n: int = N, seed: int = 0) -> rcjax.Log:
    """A log of the demo's five models at the costs of these tests."""
    return rcjax.sample_log(n, seed=seed)


def test_a_pair_costs_one_of_two_sums(model):
    cuts = np.linspace(0.3, 0.9, 7)
    frontier, _ = pairs_of(model, cuts)
    log = confident(model)
    deferred = (np.asarray(model.calibrate(log.logprob))[:, :1] <= cuts).sum(0)
    tails = stats.binom.cdf(deferred, N, (9.0 - 1) / 16)
    found = certify(frontier, log, max_cost=9.0)
    assert found.index == int(np.argmax(tails > 0.05)) - 1  # the cheapest first
    assert found.cost == pytest.approx(1 + 16 * deferred[found.index] / N)
    assert found.p_value == pytest.approx(tails[found.index])
    limit = stats.beta.ppf(0.95, deferred[found.index] + 1, N - deferred[found.index])
    assert found.cost_bound == pytest.approx(1 + 16 * limit)
    assert found.cost_bound <= 9


def test_a_single_model_costs_what_it_costs(model):
    frontier = singles(model, ERROR)
    assert certify(frontier, wrong(9, 9, 9, 9, 9), max_cost=4.0).index == 2
    told = r"the cheapest cost 1 per query, which guarantees a cost of at most 1\.0"
    with pytest.raises(rcjax.InfeasibleError, match=told):
        certify(frontier, wrong(9, 9, 9, 9, 9), max_cost=0.9)


def test_a_longer_cascade_costs_a_bounded_sum(model):
    members = np.array([[True, False, True, False, True]])
    thresholds = np.array([[0.6, 1.0, 0.7, 1.0, 0.0]])
    frontier = build(model, thresholds, members, [0.2], [9.0])
    found = certify(frontier, confident(model), max_cost=19.0)
    assert found.p_value == pytest.approx(bounded_mean_p_value((found.cost - 1) / 20, N, 18 / 20))
    assert found.cost < found.cost_bound < 19
    assert found.p_value > 0
    assert certify(frontier, confident(model), max_cost=21.0).p_value == 0  # all three are asked at most


def test_both_targets_at_once(model):
    frontier = singles(model, ERROR)
    log = wrong(99, 60, 20, 10, 5)
    assert certify(frontier, log, max_error=0.2).index == 2
    found = certify(frontier, log, max_error=0.2, max_cost=8.0)  # not the dearest, which costs 16
    assert (found.index, found.max_error, found.max_cost) == (2, 0.2, 8.0)
    # No single model both costs at most 2 and errs rarely enough; the first tested is named.
    with pytest.raises(rcjax.InfeasibleError, match=r"to have .* and to cost .* promising had .* and cost"):
        certify(frontier, log, max_error=0.2, max_cost=2.0)


# -- the certificate


def test_the_policy_carries_the_guarantee(model, tmp_path):
    log = wrong(99, 99, 99, 11, 10)
    found = certify(singles(model, ERROR), log, max_error=0.2, confidence=0.9)
    assert isinstance(found, Certificate)
    found.policy.save(tmp_path / "policy.json")
    guarantee = rcjax.load_policy(tmp_path / "policy.json").provenance["guarantee"]
    assert guarantee["max_error"] == 0.2
    assert guarantee["max_cost"] is None
    assert guarantee["confidence"] == 0.9
    assert (guarantee["n"], guarantee["errors"]) == (N, 11)
    assert guarantee["error_bound"] == found.error_bound
    assert guarantee["digest"] == log.digest
    assert found.policy.provenance["digest"] == model.provenance["digest"]  # and what was fitted on what
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["index"] == 3
    assert data["policy"] == found.policy.to_json()


def test_what_could_be_guaranteed_instead(model):
    frontier = singles(model, ERROR)
    with pytest.raises(rcjax.InfeasibleError) as told:
        certify(frontier, wrong(1, 1, 1, 1, 9, n=150), max_error=0.05)
    assert str(told.value) == (
        "no policy can be guaranteed to have at most 5 % error with 95 % confidence: of 150 held-out queries the "
        "safest had 6 % error, which guarantees at most 10.24 % error; more queries will not help, as the error is too "
        "high (at most 1.3% on 150 queries)"
    )
    assert certify(frontier, wrong(99, 99, 99, 99, 9, n=150), max_error=0.1025).index == 4  # so it can be, in truth
    assert certify(frontier, wrong(9, 9, 9, 9, 2, n=150), max_error=0.05).index == 4
    with pytest.raises(rcjax.InfeasibleError, match="takes at least 59 held-out queries, without any error"):
        certify(frontier, wrong(0, 0, 0, 0, 0, n=58), max_error=0.05)
    assert certify(frontier, wrong(0, 0, 0, 0, 0, n=59), max_error=0.05).index == 0
    with pytest.raises(rcjax.InfeasibleError, match="the target takes about 580 held-out queries, if it goes on"):
        certify(frontier, wrong(1, 1, 1, 1, 5, n=150), max_error=0.05)
    assert binomial_tail(20, 580, 0.05) < 0.05 < binomial_tail(19, 540, 0.05)  # 5 of 150 are 20 of 580, 18 of 540


@in_turn(
    ("targets", "message"),
    [
        ({}, "give max_error, max_cost or both"),
        ({"max_error": 0}, "max_error is 0; it must lie between 0 and 1"),
        ({"max_error": 5}, "max_error is 5"),
        ({"max_error": math.nan}, "max_error is nan"),
        ({"max_error": 0.1, "confidence": 95}, "confidence is 95; it must lie between 0 and 1"),
        ({"max_error": 0.1, "confidence": 1.0}, "confidence is 1.0"),
        ({"max_cost": 0}, "max_cost is 0; it must be a positive number"),
        ({"max_cost": math.inf}, "max_cost is inf"),
        ({"max_cost": math.nan}, "max_cost is nan"),
    ],
)
def test_targets_that_make_no_sense_are_refused(model, targets, message):
    with pytest.raises(ValueError, match=message):
        certify(singles(model, ERROR), wrong(1, 1, 1, 1, 1), **targets)


def test_the_log_of_the_fit_is_refused(model):
    log = wrong(1, 1, 1, 1, 1)
    details = Details(provenance={"digest": log.digest})
    frontier = singles(dataclasses.replace(model, details=details), ERROR)
    with pytest.raises(rcjax.LogError, match="fitted to this very log"):
        certify(frontier, log, max_error=0.2)


def test_a_log_that_lacks_a_model_is_refused(model):
    with pytest.raises(rcjax.LogError, match="no model"):
        certify(singles(model, ERROR), wrong(1, 1, 1, 1, 1).select(model.models[:3]), max_error=0.2)


def test_models_in_another_order_and_float32(model):
    log = confident(model, 300, seed=3)
    frontier, _ = pairs_of(model, np.linspace(0.3, 0.9, 7))
    found = certify(frontier, log, max_error=0.5, max_cost=16.0)
    shuffled = certify(frontier, log.select(model.models[::-1]), max_error=0.5, max_cost=16.0)
    assert (shuffled.index, shuffled.errors, shuffled.cost) == (found.index, found.errors, found.cost)
    with jax.enable_x64(False):
        rough = certify(frontier, log.take(slice(None)), max_error=0.5, max_cost=16.0)
    assert (rough.index, rough.errors) == (found.index, found.errors)
    assert rough.p_value == pytest.approx(found.p_value, rel=1e-4)


def test_an_adaptive_frontier(model):
    """The first model asks the largest where it is very unsure, and the middle one where it is a little."""
    bounds = np.ones((1, 5, 3))
    bounds[0, 0], bounds[0, 2] = (0.4, 0.6, 1.0), (0.5, 0.5, 1.0)
    actions = np.tile(np.arange(5)[:, None], (1, 1, 3))
    actions[0, 0], actions[0, 2] = (4, 2, 0), (4, 4, 2)
    members = np.array([[True, False, True, False, True]])
    made = build(model, np.ones((1, 5)), members, [0.2], [9.0])
    frontier = dataclasses.replace(made, policies=Policies(made.first, bounds, actions, made.members))
    log = confident(model)
    found = certify(frontier, log, max_error=0.5, max_cost=19.0)
    phi, right = np.asarray(model.calibrate(log.logprob)), np.asarray(log.correct)
    asked = np.where(phi[:, 0] <= 0.4, 4, np.where(phi[:, 0] <= 0.6, 2, 0))
    last = np.where((asked == 2) & (phi[:, 2] <= 0.5), 4, asked)
    assert {0, 2, 4} == {*last.tolist()}
    cost = (1 + 4.0 * (asked == 2) + 16 * (last == 4)).mean()
    assert found.errors == (~right[np.arange(N), last]).sum()
    assert found.cost == pytest.approx(cost)
    errs = stats.binom.cdf(found.errors, N, 0.5)
    assert found.p_value == pytest.approx(max(errs, bounded_mean_p_value((cost - 1) / 20, N, 18 / 20)))
    assert found.policy.rules["llama3.2-1b"] == frontier.point(0).rules["llama3.2-1b"]


# -- its honesty


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_false_promises_are_as_rare_as_stated(model, confidence):
    """Many held-out logs of policies whose true errors are known, one of them right at the boundary."""
    true, target = np.array([0.30, 0.22, 0.2 + 1e-9, 0.16, 0.1]), 0.2
    frontier = singles(model, ERROR)
    rng, repeats, false, made = np.random.default_rng(0), 1000, 0, 0
    draws = rng.binomial(N, true, (repeats, 5))
    for errors in np.unique(draws, axis=0):
        times = (draws == errors).all(1).sum()
        tails = stats.binom.cdf(errors[[4, 3, 2]], N, target)
        if not (tails <= 1 - confidence).all():  # it stops before the boundary: nothing to look at
            continue
        found = certify(frontier, wrong(*errors), max_error=target, confidence=confidence)
        made, false = made + times, false + times * (true[found.index] > target)
    level = 1 - confidence
    assert made > 0
    assert false / repeats <= level + 3 * np.sqrt(level * confidence / repeats)
