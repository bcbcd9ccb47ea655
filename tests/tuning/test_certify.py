"""The guarantee: the sequence of tests on frontiers made by hand, what is counted, honesty by simulation."""

import dataclasses
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import rcjax
from rcjax.policy.spec import Spec, Target
from rcjax.solving.frontier.frontier import Frontier, make_frontier
from rcjax.solving.frontier.points import LossTerms, Points, Policies
from rcjax.tuning.certify import Certificate, _explain_failure, certify, refutes_mean, upper_limit

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
    expected = LossTerms(error, cost, nothing)
    policies = Policies.from_cascades(thresholds, members)
    return make_frontier(model, Points(nothing, nothing.astype(int), expected, policies), Spec(cascade="all"))


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


def losses(log, position):
    """What single models lose on each query at a position, in the order of the bets."""
    low, share = divmod(position, 1)
    lost = 1.0 - np.asarray(log.correct)[np.random.default_rng(0).permutation(log.n_queries)]
    return (1 - share) * lost[:, int(low)] + share * lost[:, int(low) + (share > 0)]


@pytest.mark.parametrize("seed", range(30))
def test_the_position_is_that_of_a_plain_loop(model, seed):
    """From the dearest rung down, a quarter of the way at a time, until a limit is not refuted."""
    rng = np.random.default_rng(seed)
    log, limit, confidence = wrong(*rng.integers(0, 60, 5)), rng.uniform(0.15, 0.4), rng.choice([0.8, 0.95])
    frontier, position = singles(model, ERROR), 4.25
    while position > 0 and refutes_mean(losses(log, position - 0.25), limit, 1 - confidence):
        position -= 0.25
    if position > 4:
        with pytest.raises(rcjax.InfeasibleError):
            certify(frontier, log, max_error=limit, confidence=confidence)
        return
    found = certify(frontier, log, max_error=limit, confidence=confidence)
    lost = losses(log, position)
    assert (found.position, found.n_queries, found.errors) == (position, N, round(lost.sum()))
    assert found.error_bound == upper_limit(lost, 1 - confidence, top=limit) <= limit
    assert (found.policy.position, found.policy.budget) == (position, None)
    assert [rung.models for rung in found.policy.rungs] == [(name,) for name in model.models]
    assert float(rcjax.replay(found.policy, log).error) == pytest.approx(lost.mean())


# -- the certificate


def test_the_policy_carries_the_guarantee(model, tmp_path):
    log = wrong(99, 99, 99, 11, 10)
    found = certify(singles(model, ERROR), log, max_error=0.2, confidence=0.9)
    assert isinstance(found, Certificate)
    found.policy.save(tmp_path / "policy.json")
    guarantee = rcjax.load_policy(tmp_path / "policy.json").provenance["guarantee"]
    data = {name: value for name, value in vars(found).items() if name not in ("policy", "position", "match")}
    assert guarantee == data | {"source": "made", "digest": log.digest}
    assert (guarantee["max_error"], guarantee["confidence"], guarantee["n_queries"]) == (0.2, 0.9, N)
    assert found.policy.provenance["digest"] == model.provenance["digest"]  # and what was fitted on what


@pytest.mark.parametrize(
    ("more", "said"), [(0, ""), (0.05, "chance explains the difference"), (0.4, "more than chance explains")]
)
def test_the_error_that_was_seen_stands_beside_the_expected_one(model, more, said):
    """A reader must not find two errors on one screen, and no word of why."""
    certificate = certify(singles(model, ERROR), wrong(100, 80, 60, 40, 20), max_error=0.45, confidence=0.9)
    expected = certificate.policy.expected["error"]
    seen = dataclasses.replace(certificate, errors=round((expected + more) * certificate.n_queries))
    message = f"it had {100 * (expected + more):.1f} % error"
    assert seen.describe("error").endswith(
        f"{message}, where {100 * expected:.1f} % was expected: {said}" if said else message
    )


def test_what_could_be_guaranteed_instead(model):
    frontier, log = singles(model, ERROR), wrong(1, 1, 1, 1, 9, n=150)
    with pytest.raises(rcjax.InfeasibleError) as caught:
        certify(frontier, log, max_error=0.05)
    bound = math.ceil(1e4 * upper_limit(losses(log, 4.0), 0.05)) / 1e4
    assert 0.09 < bound < 0.12
    assert str(caught.value) == (
        "no policy can be guaranteed to have at most 5 % error with 95 % confidence: of 150 held-out queries the "
        f"safest had 6 % error, which guarantees at most {100 * bound:.2f} % error"
    )
    assert certify(frontier, wrong(99, 99, 99, 99, 9, n=150), max_error=bound).position == 4  # so it can be, in truth
    with pytest.raises(rcjax.InfeasibleError):
        certify(frontier, wrong(0, 0, 0, 0, 0, n=60), max_error=0.05)
    assert certify(frontier, wrong(0, 0, 0, 0, 0, n=70), max_error=0.05).position == 0


def test_an_abstention_counts_as_its_price():
    at = SimpleNamespace(wrong=np.zeros(9), abstained=np.arange(9) < 3, penalty=lambda price: np.full(9, price))
    lost = np.full((1, 9), 0.2), 0.0
    told_of = {"at": lambda positions: at, "losses": lambda positions: lost, "rival": None}
    held_out = SimpleNamespace(abstain_price=0.2, error_bound=lambda position, level: 0.25, **told_of)
    message = (
        "the safest had 20 % error and abstained on 3, each counted as 20 %, which guarantees at most 25.00 % error"
    )
    assert message in _explain_failure(held_out, 0.0, Target("max_error", 0.1), 0.05, "error")


def test_models_in_another_order_and_float32(model):
    members = np.tile([True, False, False, False, True], (7, 1))
    cuts = np.linspace(0.3, 0.9, 7)
    thresholds = np.where(members, np.array([1.0, 0, 0, 0, 0]) * cuts[:, None], 1.0)
    frontier = build(model, thresholds, members, 0.5 - 0.6 * cuts + 0.2 * cuts**2, 1 + 16 * cuts)
    log = rcjax.sample_log(300, seed=3)
    found = certify(frontier, log, max_error=0.5)
    shuffled = certify(frontier, log.select(model.models[::-1]), max_error=0.5)
    assert (shuffled.position, shuffled.errors) == (found.position, found.errors)
    with jax.enable_x64(False):
        rough = certify(frontier, log.take(slice(None)), max_error=0.5)
    assert (rough.position, rough.errors) == (found.position, found.errors)
    assert rough.error_bound == pytest.approx(found.error_bound, abs=1e-4)


# -- its honesty


@pytest.mark.thorough
def test_false_promises_are_as_rare_as_stated(model):
    """Many held-out logs of policies whose true errors are known, one of them right at the boundary."""
    true, target, level = np.array([0.30, 0.22, 0.2, 0.16, 0.1]) + 1e-9, 0.2, 0.1
    frontier, rng, repeats, false, made = singles(model, ERROR), np.random.default_rng(0), 600, 0, 0
    for _ in range(repeats):
        right = rng.random((N, 5)) >= true
        log = dataclasses.replace(wrong(0, 0, 0, 0, 0), correct=jax.device_put(right))
        try:
            found = certify(frontier, log, max_error=target, confidence=1 - level)
        except rcjax.InfeasibleError:
            continue
        made, false = made + 1, false + (np.interp(found.position, np.arange(5), true) > target)
    assert made > repeats / 2
    assert false / repeats <= level + 3 * np.sqrt(level * (1 - level) / repeats)
