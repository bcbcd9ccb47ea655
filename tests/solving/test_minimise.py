"""Objectives of one's own: held to Bellman's equation where that is right, and to random search elsewhere."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from minimise_samples import (
    FINE,
    LAM,
    THREE,
    additive,
    capped,
    fair,
    fits,
    patient,
    squared,
    statuses,
    thirds,
    values,
    worst,
)
from tiers import thorough

import rcjax
from rcjax import solve_frontier
from rcjax.frontier.policies import Policies
from rcjax.solving import minimise, minimising as module, outcomes
from rcjax.solving.outcome_search import Goal, outcome_of_ranks

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def parts(float64):
    return thirds()


@pytest.fixture(scope="module")
def models(float64):
    return fits()


@pytest.fixture(scope="module")
def one(float64):
    return fits()[0]


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
@pytest.mark.parametrize("whole", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_the_optimum_of_error_and_cost_is_bellmans(demo, demo_lam, whole):
    search = "full" if whole else [demo.models[:2], demo.models[1:4], demo.models[2:3]]
    exact = solve_frontier(demo, lam=demo_lam, cascades=search)
    ours = minimise(additive, demo, search, lam=demo_lam)
    loss, least = (np.asarray(own.error + own.lam * own.cost) for own in (ours, exact))
    np.testing.assert_allclose(loss, least, rtol=0, atol=1e-6)
    assert statuses(ours) <= FINE
    np.testing.assert_array_equal(ours.lam, exact.lam)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["mmlu_llama", "mmlu_qwen_oai", "triviaqa_llama", "triviaqa_qwen_oai", "gsm8k_llama", "gsm8k_qwen_oai"]
)
def test_it_is_bellmans_on_real_logs(shared_data, name):
    """All cascades of up to four models."""
    task = "choice" if name.startswith("mmlu") else "generation"
    log = rcjax.read_log(shared_data / f"{name}_train.csv", prices=shared_data / "prices.toml", task=task)
    model = rcjax.fit(log)
    cascades = [c for size in range(1, 5) for c in itertools.combinations(model.models, size)]
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


def problem_of(models, cascade="full", price=None):
    """What the search works on, and the goal's gradient in ranks."""
    caught = {}

    def keep(goal, problem, proposed, lam, starts):
        caught.update(problem=problem, proposed=proposed)
        raise StopIteration

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_search", keep)
        with pytest.raises(StopIteration):
            minimise(
                additive if not isinstance(models, list) else worst, models, cascade, lam=[1.0], abstain_price=price
            )
    return caught["problem"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("several", "refusing"),
    [
        (True, True),
        pytest.param(False, False, marks=pytest.mark.thorough),
        pytest.param(False, True, marks=pytest.mark.thorough),
        pytest.param(True, False, marks=pytest.mark.thorough),
    ],
)
def test_gradients_are_those_of_differences(models, several, refusing):
    problem = problem_of(models if several else models[0], price=0.3 if refusing else None)
    goal = Goal(worst if several else fair, None, several)
    ranks = jnp.array([0.45, 0.6, 0.15])

    @jax.jit
    def loss(ranks):
        return goal.value(outcome_of_ranks(problem, ranks, 0), 500.0, 1e-2)

    step = 1e-5
    free = [0, 1, 2] if refusing else [0, 1]
    moves = step * np.eye(len(ranks))[free]
    differences = [(loss(ranks + move) - loss(ranks - move)) / (2 * step) for move in moves]
    np.testing.assert_allclose(jax.grad(loss)(ranks)[np.array(free)], differences, rtol=2e-5, atol=1e-7)
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
    with pytest.raises(ValueError, match="same models in the same order: the first has llama"):
        minimise(worst, [models[0], two], "full", lam=[1.0])
    turned = dataclasses.replace(
        models[1],
        calibrators=dataclasses.replace(models[1].calibrators, coefficients=-models[1].calibrators.coefficients),
    )
    with pytest.raises(ValueError, match="falls in the other"):
        minimise(worst, [models[0], turned], "full", lam=[1.0])
    with pytest.raises(ValueError, match="one threshold per model"):
        outcomes(models, solve_frontier(models[0], lam=[1.0], cascades="adaptive"))
