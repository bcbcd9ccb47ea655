"""Objectives of one's own: held to Bellman's equation where that is right, and to random search elsewhere."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import thorough

import rcjax
from rcjax import solve_frontier
from rcjax.frontier.points import PointStatus
from rcjax.frontier.policies import Policies
from rcjax.solving import minimise, minimising as module, outcomes, smooth_maximum, smooth_quantile
from rcjax.solving.outcome_search import Goal, outcome_of_ranks

pytestmark = pytest.mark.usefixtures("float64")

THREE = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
LAM = np.geomspace(30.0, 3000.0, 5)
FINE = {PointStatus.CONVERGED, PointStatus.AT_BOUND}


def additive(outcome, lam):
    return outcome.error + lam * outcome.cost


def worst(outcome, lam):
    return smooth_maximum(outcome.error + lam * outcome.cost, outcome.smoothing)


def values(objective, models, frontier):
    return np.asarray(jax.vmap(objective)(outcomes(models, frontier), frontier.lam))


def statuses(frontier):
    return {int(status) for status in frontier.status}


def capped(outcome, lam):
    return outcome.error + lam * 1e4 * jnp.maximum(outcome.cost - 120e-6, 0.0) ** 2


def squared(outcome, lam):
    return outcome.error + 3e3 * lam * (outcome.taken * outcome.path_cost**2).sum()


def fair(outcome, lam):
    return outcome.error + lam * outcome.cost + ((outcome.answered - 1 / 3) ** 2).sum()


def patient(outcome, lam):
    seconds = smooth_quantile(outcome.along(jnp.array([1.0, 2.0, 5.0])), outcome.taken, 0.9, outcome.smoothing)
    return outcome.error + 1e-5 * lam * seconds


@pytest.fixture(scope="module")
def parts(float64):
    """Three logs of 300 queries."""
    log = rcjax.sample_log(900, seed=0).select(THREE)
    return [log.take(np.arange(300 * i, 300 * (i + 1))) for i in range(3)]


@pytest.fixture(scope="module")
def models(parts):
    return [rcjax.fit(part) for part in parts]


@pytest.fixture(scope="module")
def one(models):
    return models[0]


@pytest.fixture(scope="module")
def robust(models):
    """The best cascades in the worst case."""
    return minimise(worst, models, "full", lam=LAM)


def with_thresholds(frontier, thresholds, refusals=None):
    """A frontier of the full cascade at many thresholds (n, k)."""
    cascades = Policies.of_cascades(thresholds, np.ones(thresholds.shape, bool), refusals)
    return dataclasses.replace(frontier, lam=np.zeros(len(thresholds)), policies=cascades)


def random_values(objective, model, frontier, lam, count=5_000):
    """(L,) the least objective of the full cascade at random thresholds of one model or several."""
    first = model[0] if isinstance(model, list) else model
    low, high = (np.asarray(end) for end in (first.marginals.lowest, first.marginals.highest))
    thresholds = low + np.random.default_rng(0).random((count, len(low))) * (high - low)
    thresholds[:, -1] = 0.0
    tried = outcomes(model, with_thresholds(frontier, thresholds))
    return np.array([np.asarray(jax.vmap(objective, (0, None))(tried, price)).min() for price in lam])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mmlu_llama", "triviaqa_qwen_oai", "gsm8k_llama"])
def test_it_is_bellmans_on_real_logs(shared_data, name):
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
def test_no_random_search_beats_it(one, objective):
    ours = minimise(objective, one, "full", lam=LAM)
    value = values(objective, one, ours)
    assert (value <= random_values(objective, one, ours, LAM) + 1e-6).all()
    assert statuses(ours) <= FINE


@pytest.mark.thorough
@pytest.mark.parametrize("several", [False, True])
def test_gradients_are_those_of_differences(models, several, monkeypatch):
    """In the ranks of the search, refusals included."""
    caught = []
    monkeypatch.setattr(module, "_search", lambda goal, problem, *_: caught.append(problem) or 1 / 0)
    goal, fitted = (Goal(worst, True), models) if several else (Goal(fair, False), models[0])
    with pytest.raises(ZeroDivisionError):
        minimise(goal.objective, fitted, "full", lam=[1.0], abstain_price=0.3)
    ranks = jnp.array([0.45, 0.6, 0.15])

    @jax.jit
    def loss(ranks):
        return goal.value(outcome_of_ranks(caught[0], ranks, 0), 500.0, 1e-2)

    step = 1e-5
    moves = step * np.eye(len(ranks))
    differences = [(loss(ranks + move) - loss(ranks - move)) / (2 * step) for move in moves]
    np.testing.assert_allclose(jax.grad(loss)(ranks), differences, rtol=2e-5, atol=1e-7)
    assert np.abs(differences).min() > 1e-4


@pytest.mark.thorough
def test_what_it_says_is_what_its_thresholds_do(models, robust):
    told = outcomes(models, robust)
    np.testing.assert_allclose(told.error.mean(1), robust.error, atol=1e-9)
    np.testing.assert_allclose(told.cost.mean(1), robust.cost, rtol=1e-8)
    error, cost = rcjax.solving.error_and_cost(models[0], robust.thresholds)
    np.testing.assert_allclose(told.error[:, 0], error, atol=1e-8)
    np.testing.assert_allclose(told.cost[:, 0], cost, rtol=1e-8)


@pytest.mark.thorough
def test_refusals_are_bellmans(one):
    def penalised(outcome, lam):
        return outcome.error + 0.3 * outcome.refused + lam * outcome.cost

    exact = solve_frontier(one, lam=LAM, cascades="full", abstain_price=0.3)
    ours = minimise(penalised, one, "full", lam=LAM, abstain_price=0.3)
    loss, least = (np.asarray(own.penalty + own.lam * own.cost) for own in (ours, exact))
    np.testing.assert_allclose(loss, least, rtol=0, atol=1e-6)
    assert float(np.asarray(ours.abstention).max()) > 0.05


@pytest.mark.thorough
def test_its_points_are_policies(robust, parts, tmp_path):
    ours = robust
    policy = ours.point(2)
    assert policy.models == THREE
    assert policy.expected["lam"] == pytest.approx(LAM[2])
    ours.policy(budget=float(ours.cost.max())).save(tmp_path / "policy.json")
    loaded = rcjax.load_policy(tmp_path / "policy.json")
    replay = rcjax.replay(loaded, parts[1])
    assert abs(float(replay.error) - loaded.expected["error"]) < 0.1
    ours.save(tmp_path / "frontier.json")
    again = rcjax.load_frontier(tmp_path / "frontier.json")
    assert again.search == "minimised"
    np.testing.assert_array_equal(again.thresholds, ours.thresholds)
    with pytest.raises(ValueError, match=r"rcjax\.solving\.minimise"):
        rcjax.retune(loaded, parts[1])
    with pytest.raises(ValueError, match="refit=False"):
        rcjax.tuning.bootstrap(ours, parts[0], replicates=20)


def test_fits_of_other_models_are_refused(parts, models):
    two = rcjax.fit(parts[0].select(THREE[:2]))
    with pytest.raises(ValueError, match="fits of one models: the first has llama"):
        minimise(worst, [models[0], two], "full", lam=[1.0])
    turned = dataclasses.replace(
        models[1],
        calibrators=dataclasses.replace(models[1].calibrators, coefficients=-models[1].calibrators.coefficients),
    )
    with pytest.raises(ValueError, match="number 2 falling as it rises"):
        minimise(worst, [models[0], turned], "full", lam=[1.0])
    with pytest.raises(ValueError, match="one threshold per model"):
        outcomes(models, solve_frontier(models[0], lam=[1.0], cascades="adaptive"))


def test_a_slope_that_rounding_leaves_is_no_failure():
    """An objective of 0.25 that varies by a hundredth, in float32, ends with a slope of 0.08 on some processors."""
    value, scale = np.array([0.25, 0.25]), np.array([0.0025, 0.25])
    rounded, steady = module.slope_tolerance(value, scale.astype(np.float32))
    assert rounded > 4 * 0.08 > 4 * steady
    np.testing.assert_array_equal(module.slope_tolerance(value, scale), module.tolerance(np.float64))


@pytest.mark.thorough
def test_no_number_is_no_silent_nan(one):
    broken = minimise(lambda outcome, lam: outcome.error * jnp.nan, one, "full", lam=[100.0, 200.0])
    assert statuses(broken) == {PointStatus.NOT_FINITE}
    assert np.isfinite(broken.error).all()

    def half(most):  # no number where it costs too much
        return lambda outcome, lam: jnp.where(outcome.cost < most, outcome.error, jnp.nan)

    fine = minimise(half(150e-6), one, "full", lam=[1.0])
    most = 150e-6 * (1 + 1e-9)  # the optimum is at the limit, but for rounding
    assert float(fine.cost[0]) < most
    assert np.isfinite(values(half(most), one, fine)).all()


WRONG = {
    "a vector": (lambda outcome, lam: outcome.answered, {}, "one real number that has a slope"),
    "a count": (lambda outcome, lam: (outcome.answered > 0.5).sum(), {}, "real number that has a slope"),
    "no λ": (additive, {"lam": []}, "at least one finite number"),
    "one model alone": (additive, {"cascades": [("llama3.2-1b",)]}, "llama3.2-1b alone has no threshold to choose"),
    "adaptive policies": (additive, {"cascades": "adaptive"}, "adaptive"),
    "a negative price": (additive, {"abstain_price": -1.0}, "abstain_price is -1.0"),
    "no model": (worst, {"model": []}, "at least one"),
}


@pytest.mark.parametrize("what", WRONG)
def test_bad_input_gets_one_line(one, what):
    objective, options, message = WRONG[what]
    arguments = {"model": one, "cascades": "full", "lam": [100.0]} | options
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        minimise(objective, **arguments)
    assert len(str(caught.value).splitlines()) == 1
