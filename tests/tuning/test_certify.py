"""The guarantee: the sequence of tests on frontiers made by hand, what is counted, honesty by simulation."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
from misses import in_turn

import rcjax
from rcjax.frontier.frontier import Frontier, make_frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.points import Points
from rcjax.frontier.policies import Policies
from rcjax.model.provenance import Details
from rcjax.tuning.betting import refuted, upper_limit
from rcjax.tuning.certify import Certificate, certify

pytestmark = pytest.mark.usefixtures("float64")
N = 200
COST = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


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


def drawn(log):
    """A log's queries in the order of the bets."""
    return np.random.default_rng(0).permutation(log.n_queries)


def losses(log, index):
    """What a single model lost on each query, in the order of the bets."""
    return 1.0 - np.asarray(log.correct)[drawn(log), index]


@in_turn(
    ("errors", "index"),
    [
        ((99, 99, 99, 99, 10), 4),  # only the first of the sequence passes
        ((99, 99, 99, 11, 10), 3),
        ((99, 99, 27, 26, 25), 2),
        ((1, 2, 3, 2, 1), 0),  # all pass
        ((1, 1, 1, 60, 1), 4),  # what comes after a failure does not count
        ((1, 60, 1, 30, 30), 2),
    ],
)
def test_the_last_before_the_first_failure_is_chosen(model, errors, index):
    log = wrong(*errors)
    found = certify(singles(model, ERROR), log, max_error=0.2)
    assert found.index == index
    assert (found.n, found.errors) == (N, errors[index])
    assert found.policy.models == (model.models[index],)
    assert found.error_bound == upper_limit(losses(log, index), 0.05, top=0.2) < 0.2
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


@in_turn("seed", range(12))
def test_the_choice_is_that_of_a_plain_loop(model, seed):
    rng = np.random.default_rng(seed)
    log, max_error, confidence = wrong(*rng.integers(0, 60, 5)), rng.uniform(0.15, 0.4), rng.choice([0.8, 0.95])
    passed = 0
    while passed < 5 and refuted(losses(log, 4 - passed), max_error, 1 - confidence):
        passed += 1
    if passed:
        assert certify(singles(model, ERROR), log, max_error=max_error, confidence=confidence).index == 5 - passed
    else:
        with pytest.raises(rcjax.InfeasibleError):
            certify(singles(model, ERROR), log, max_error=max_error, confidence=confidence)


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
    deferred = (np.asarray(model.calibrate(log.logprob))[drawn(log), :1] <= cuts).T.astype(float)
    shown = refuted(deferred, (9.0 - 1) / 16, 0.05)
    found = certify(frontier, log, max_cost=9.0)
    assert found.index == int(np.argmin(shown)) - 1  # the cheapest first
    assert found.cost == pytest.approx(1 + 16 * deferred[found.index].mean())
    assert found.cost_bound == pytest.approx(1 + 16 * upper_limit(deferred[found.index], 0.05, top=0.5))
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
    assert found.cost < found.cost_bound < 19
    most = certify(frontier, confident(model), max_cost=21.0)  # all three are asked at most
    assert found.cost < most.cost_bound < 19
    with pytest.raises(rcjax.InfeasibleError, match="which guarantees a cost of at most"):
        certify(frontier, confident(model), max_cost=found.cost)


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
    frontier, log = singles(model, ERROR), wrong(1, 1, 1, 1, 9, n=150)
    with pytest.raises(rcjax.InfeasibleError) as told:
        certify(frontier, log, max_error=0.05)
    bound = math.ceil(1e4 * upper_limit(losses(log, 4), 0.05)) / 1e4
    assert 0.09 < bound < 0.12
    assert str(told.value) == (
        "no policy can be guaranteed to have at most 5 % error with 95 % confidence: of 150 held-out queries the "
        f"safest had 6 % error, which guarantees at most {100 * bound:.2f} % error; more queries will not help, as the "
        "error is too high"
    )
    assert certify(frontier, wrong(99, 99, 99, 99, 9, n=150), max_error=bound).index == 4  # so it can be, in truth
    with pytest.raises(rcjax.InfeasibleError, match="the target takes about 70 held-out queries, if it goes on"):
        certify(frontier, wrong(0, 0, 0, 0, 0, n=60), max_error=0.05)
    assert certify(frontier, wrong(0, 0, 0, 0, 0, n=70), max_error=0.05).index == 0


@in_turn(
    ("targets", "message"),
    [
        ({}, "give max_error or max_cost, one of the two"),
        ({"max_error": 0.1, "max_cost": 1.0}, "give max_error or max_cost, one of the two"),
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
    details = Details(provenance={"digest": log.digest, "answers": dict.fromkeys(log.models, N)})
    frontier = singles(dataclasses.replace(model, details=details), ERROR)
    with pytest.raises(rcjax.LogError, match="fitted to this very log"):
        certify(frontier, log, max_error=0.2)


def test_a_log_that_lacks_a_model_is_refused(model):
    with pytest.raises(rcjax.LogError, match="no model"):
        certify(singles(model, ERROR), wrong(1, 1, 1, 1, 1).select(model.models[:3]), max_error=0.2)


def test_models_in_another_order_and_float32(model):
    log = confident(model, 300, seed=3)
    frontier, _ = pairs_of(model, np.linspace(0.3, 0.9, 7))
    found = certify(frontier, log, max_error=0.5)
    shuffled = certify(frontier, log.select(model.models[::-1]), max_error=0.5)
    assert (shuffled.index, shuffled.errors, shuffled.cost) == (found.index, found.errors, found.cost)
    with jax.enable_x64(False):
        rough = certify(frontier, log.take(slice(None)), max_error=0.5)
    assert (rough.index, rough.errors) == (found.index, found.errors)
    assert rough.error_bound == pytest.approx(found.error_bound, abs=1e-4)


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
    found = certify(frontier, log, max_error=0.5)
    phi, right = np.asarray(model.calibrate(log.logprob)), np.asarray(log.correct)
    asked = np.where(phi[:, 0] <= 0.4, 4, np.where(phi[:, 0] <= 0.6, 2, 0))
    last = np.where((asked == 2) & (phi[:, 2] <= 0.5), 4, asked)
    assert {0, 2, 4} == {*last.tolist()}
    cost = (1 + 4.0 * (asked == 2) + 16 * (last == 4)).mean()
    assert found.errors == (~right[np.arange(N), last]).sum()
    assert found.cost == pytest.approx(cost)
    assert found.policy.rules["llama3.2-1b"] == frontier.point(0).rules["llama3.2-1b"]


# -- its honesty


@pytest.mark.thorough
def test_false_promises_are_as_rare_as_stated(model):
    """Many held-out logs of policies whose true errors are known, one of them right at the boundary."""
    true, target, level = np.array([0.30, 0.22, 0.2 + 1e-9, 0.16, 0.1]), 0.2, 0.1
    frontier, rng, repeats, false, made = singles(model, ERROR), np.random.default_rng(0), 600, 0, 0
    for _ in range(repeats):
        right = rng.random((N, 5)) >= true
        log = dataclasses.replace(wrong(0, 0, 0, 0, 0), correct=jax.device_put(right))
        try:
            found = certify(frontier, log, max_error=target, confidence=1 - level)
        except rcjax.InfeasibleError:
            continue
        made, false = made + 1, false + (true[found.index] > target)
    assert made > repeats / 2
    assert false / repeats <= level + 3 * np.sqrt(level * (1 - level) / repeats)
