"""Objectives of one's own: held to Bellman's equation where that is right, and to random search elsewhere."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.submodels import of_models
from tiers import thorough

import rcjax
from rcjax import solve_frontier
from rcjax.policy.spec import Spec
from rcjax.solving import minimise, minimising as module, outcomes, smoothed_quantile
from rcjax.solving.frontier.frontier import make_frontier
from rcjax.solving.frontier.points import LossTerms, Points, PointStatus, Policies

pytestmark = pytest.mark.usefixtures("float64")

THREE = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
LAM = np.geomspace(30.0, 3000.0, 5)
FINE = {PointStatus.CONVERGED, PointStatus.AT_BOUND}


def additive(outcome, lam):
    return outcome.error + lam * outcome.cost


def values(objective, frontier):
    return np.asarray(jax.vmap(objective)(outcomes(frontier), frontier.lam))


def statuses(frontier):
    return {int(status) for status in frontier.status}


def capped(outcome, lam):
    return outcome.error + lam * 1e4 * jnp.maximum(outcome.cost - 120e-6, 0.0) ** 2


def squared(outcome, lam):
    return outcome.error + 3e3 * lam * (outcome.taken * outcome.path_cost**2).sum()


def fair(outcome, lam):
    return outcome.error + lam * outcome.cost + ((outcome.answered - 1 / 3) ** 2).sum()


def patient(outcome, lam):
    seconds = smoothed_quantile(outcome.along(jnp.array([1.0, 2.0, 5.0])), outcome.taken, 0.9, outcome.smoothing)
    return outcome.error + 1e-5 * lam * seconds


@pytest.fixture(scope="module")
def log(float64):
    return rcjax.sample_log(300, seed=0).select(THREE)


@pytest.fixture(scope="module")
def model(log):
    return rcjax.fit(log)


@pytest.fixture(scope="module")
def additive_frontier(model):
    return minimise(additive, model, "full", lam=LAM)


def random_values(objective, model, lam, count=5_000):
    """(L,) the least objective of the full cascade at random thresholds."""
    low, high = (np.asarray(end) for end in (model.marginals.lowest, model.marginals.highest))
    thresholds = low + np.random.default_rng(0).random((count, len(low))) * (high - low)
    thresholds[:, -1] = 0.0
    nothing, policies = np.zeros(count), Policies.from_cascades(thresholds, np.ones(thresholds.shape, bool))
    points = Points(nothing, nothing.astype(int), LossTerms(nothing, nothing, nothing), policies)
    tried = outcomes(make_frontier(model, points, Spec(cascade="all")))
    return np.array([np.asarray(jax.vmap(objective, (0, None))(tried, price)).min() for price in lam])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mmlu_llama", "triviaqa_qwen_oai", "gsm8k_llama"])
def test_minimise_finds_bellmans_optimum(shared_data, name):
    """All cascades of up to three models."""
    task = "choice" if name.startswith("mmlu") else "generation"
    log = rcjax.read_log(shared_data / f"{name}_train.csv", prices=shared_data / "prices.toml", task=task)
    model = rcjax.fit(log)
    cascades = [c for size in range(1, 4) for c in itertools.combinations(model.models, size)]
    lam = np.geomspace(1e-3, 1.0, 4) / float(model.cost[-1])
    exact = solve_frontier(model, lam=lam, cascades=cascades)
    ours = minimise(additive, model, cascades, lam=lam, starts=2)
    loss, least = (np.asarray(own.error + own.lam * own.cost) for own in (ours, exact))
    np.testing.assert_allclose(loss, least, rtol=0, atol=1e-6)
    assert statuses(ours) <= FINE


@pytest.mark.thorough
@pytest.mark.parametrize("objective", thorough([capped, squared, fair, patient], {squared, fair}.__contains__))
def test_no_random_search_beats_minimise(model, objective):
    ours = minimise(objective, model, "full", lam=LAM)
    assert (values(objective, ours) <= random_values(objective, model, LAM) + 1e-6).all()
    assert statuses(ours) <= FINE


@pytest.mark.thorough
def test_points_have_the_figures_of_their_policies(additive_frontier, log, tmp_path):
    ours = additive_frontier
    told = outcomes(ours)
    np.testing.assert_allclose(told.error, ours.error, atol=1e-9)
    np.testing.assert_allclose(told.cost, ours.cost, rtol=1e-8)
    policy = ours.policy_at(2)
    assert policy.models == THREE
    assert policy.expected["lam"] == pytest.approx(LAM[2])
    ours.save(tmp_path / "frontier.json")
    loaded = rcjax.load_frontier(tmp_path / "frontier.json")
    assert loaded.search == "objective"
    np.testing.assert_array_equal(loaded.thresholds, ours.thresholds)
    with pytest.raises(ValueError, match=r"rcjax\.solving\.minimise"):
        rcjax.retune(policy, log)
    with pytest.raises(ValueError, match="refit=False"):
        rcjax.tuning.bootstrap(ours, log, replicates=20)
    with pytest.raises(ValueError, match="one threshold per model"):
        outcomes(solve_frontier(ours.model, lam=[1.0], cascades="adaptive"))


def test_a_slope_of_rounding_errors_counts_as_converged():
    """An objective of 0.25 that varies by a hundredth, in float32, ends with a slope of 0.08 on some processors."""
    value, scale = np.array([0.25, 0.25]), np.array([0.0025, 0.25])
    rounded, steady = module.slope_tolerance(value, scale.astype(np.float32))
    assert rounded > 4 * 0.08 > 4 * steady
    np.testing.assert_array_equal(module.slope_tolerance(value, scale), module.tolerance(np.float64))


@pytest.mark.thorough
def test_an_objective_that_is_nan_has_a_status(model):
    broken = minimise(lambda outcome, lam: outcome.error * jnp.nan, model, "full", lam=[100.0, 200.0])
    assert statuses(broken) == {PointStatus.NOT_FINITE}
    assert np.isfinite(broken.error).all()

    def half(most):  # no number where it costs too much
        return lambda outcome, lam: jnp.where(outcome.cost < most, outcome.error, jnp.nan)

    fine = minimise(half(150e-6), model, "full", lam=[1.0])
    most = 150e-6 * (1 + 1e-9)  # the optimum is at the limit, but for rounding
    assert float(fine.cost[0]) < most
    assert np.isfinite(values(half(most), fine)).all()


WRONG = {
    "a vector": (lambda outcome, lam: outcome.answered, {}, "one real number that has a slope"),
    "a count": (lambda outcome, lam: (outcome.answered > 0.5).sum(), {}, "real number that has a slope"),
    "no λ": (additive, {"lam": []}, "at least one finite number"),
    "one model alone": (additive, {"cascades": [("llama3.2-1b",)]}, "llama3.2-1b alone has no threshold to choose"),
    "adaptive policies": (additive, {"cascades": "adaptive"}, "adaptive"),
}


@pytest.mark.parametrize("what", WRONG)
def test_bad_input_gets_one_line(demo, what):
    objective, options, message = WRONG[what]
    arguments = {"model": of_models(demo, np.array([0, 4])), "cascades": "full", "lam": [100.0]} | options
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        minimise(objective, **arguments)
    assert len(str(caught.value).splitlines()) == 1
