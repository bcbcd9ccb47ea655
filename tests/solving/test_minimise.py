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
from stated_samples import KINDS, stated_log
from tiers import thorough

import rcjax
from rcjax import solve_frontier
from rcjax.frontier.policies import Policies
from rcjax.solving import minimise, minimising as module, outcomes, smooth_maximum
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
def test_no_other_is_better_in_the_worst_case(models, robust):
    assert statuses(robust) <= FINE
    value = values(worst, models, robust)
    for own in models:
        assert (value <= values(worst, models, solve_frontier(own, lam=LAM, cascades="full")) + 1e-8).all()
    assert (value <= random_values(worst, models, robust, LAM) + 1e-6).all()


@pytest.mark.thorough
def test_a_worst_regret_is_below_that_of_every_models_own_optimum(models):
    """What is lost against the best for each model, at the worst model."""
    fine = np.geomspace(LAM[0], LAM[-1], 9)
    optima = [solve_frontier(own, lam=fine, cascades="full") for own in models]
    best = jnp.stack([own.error + own.lam * own.cost for own in optima])

    def regret(outcome, lam):
        least = jax.vmap(lambda losses: jnp.interp(lam, fine, losses))(best)
        return smooth_maximum(outcome.error + lam * outcome.cost - least, outcome.smoothing)

    ours = minimise(regret, models, "full", lam=LAM)
    value = values(regret, models, ours)
    own = np.array([values(regret, models, solve_frontier(one, lam=LAM, cascades="full")) for one in models])
    assert (value < own.min(0) - 1e-5).all(), (value, own)
    assert (own.min(0) - value).max() > 1e-3
    assert (value <= random_values(regret, models, ours, LAM) + 1e-6).all()
    assert statuses(ours) <= FINE


@pytest.mark.thorough
def test_thresholds_mean_the_same_raw_confidence_under_every_model(models, robust):
    """By samples: what each model's own draws do under the policy of the frontier, deployed."""
    policy = robust.point(2)
    expected = outcomes(models, robust)
    for number, model in enumerate(models):
        draws = rcjax.model.sample_confidences(model, jax.random.key(0), 40_000)
        logprob = jax.vmap(lambda own, column: own.inverse(column), (0, 1), 1)(model.calibrators, draws)
        by_first = np.asarray(models[0].calibrate(logprob))
        waiting, right = np.ones(len(draws), bool), 0.0
        for j, name in enumerate(policy.models):
            threshold = float(robust.thresholds[2, j])
            answers = waiting & ((by_first[:, j] > threshold) | (name == policy.models[-1]))
            assert answers.mean() == pytest.approx(float(expected.answered[2, number, j]), abs=0.01)
            right += (answers * np.asarray(draws)[:, j]).mean()
            waiting &= ~answers
        assert 1 - right == pytest.approx(float(expected.error[2, number]), abs=0.01)


@pytest.mark.thorough
@pytest.mark.parametrize("objective", thorough([capped, squared, fair, patient], {squared, fair}.__contains__))
def test_no_random_search_beats_it(one, objective):
    ours = minimise(objective, one, "full", lam=LAM)
    value = values(objective, one, ours)
    assert (value <= random_values(objective, one, ours, LAM) + 1e-6).all()
    assert statuses(ours) <= FINE


@pytest.mark.thorough
def test_a_cap_is_kept_where_it_is_dear(one):
    free = solve_frontier(one, lam=LAM, cascades="full")
    ours = minimise(capped, one, "full", lam=np.full(len(LAM), 3e5))
    assert float(free.cost[0]) > 125e-6
    assert float(np.asarray(ours.cost).max()) < 121e-6


@pytest.mark.thorough
def test_fairness_moves_the_shares(one):
    ours = minimise(fair, one, "full", lam=LAM)
    shares, plain = (
        np.asarray(outcomes(one, own).answered[1]) for own in (ours, solve_frontier(one, lam=LAM, cascades="full"))
    )
    assert np.abs(shares - 1 / 3).max() < np.abs(plain - 1 / 3).max() - 0.05
    assert shares.sum() == pytest.approx(1, abs=1e-9)


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
def test_shares_and_paths_add_up(demo, demo_lam):
    frontier = solve_frontier(demo, lam=demo_lam, abstain_price=0.4)
    told = outcomes(demo, frontier)
    np.testing.assert_allclose(told.taken.sum(-1), 1.0, atol=1e-8)
    np.testing.assert_allclose((told.taken * told.path_cost).sum(-1), told.cost, rtol=1e-6)
    np.testing.assert_allclose(told.error, frontier.error, atol=1e-8)
    np.testing.assert_allclose(told.refused, frontier.abstention, atol=1e-8)
    assert float(np.abs(told.refused).max()) > 0.01
    assert (np.asarray(told.answered) <= np.asarray(told.asked) + 1e-12).all()


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
@pytest.mark.parametrize("kind", thorough(KINDS, lambda kind: kind != "stated"))
def test_stated_values_are_passed_whole_or_not(kind):
    model = rcjax.fit(stated_log(kind))
    lam = np.geomspace(10.0, 1e4, 5)
    exact = solve_frontier(model, lam=lam)
    ours = minimise(additive, model, "all", lam=lam)
    loss, least = (np.asarray(own.error + own.lam * own.cost) for own in (ours, exact))
    np.testing.assert_allclose(loss, least, rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_steps_are_searched_by_the_objective_itself():
    """Against every combination of thresholds between values, where nothing is smooth."""
    model = next(
        own for own in (rcjax.fit(stated_log(kind)) for kind in KINDS) if not np.asarray(own.marginals.smooth).any()
    )

    def steep(outcome, lam):
        return outcome.error + lam * (outcome.taken * outcome.path_cost**2).sum()

    lam = np.array([1e2, 1e4, 1e6]) / float(model.cost[-1])
    ours = minimise(steep, model, "full", lam=lam)
    columns = []
    for j in range(2):
        own = jax.tree.map(lambda leaf, j=j: leaf[j], model.marginals)
        stated = np.asarray(own.atoms.value)[np.asarray(own.atoms.mass) > 0]
        ends = [float(own.lowest)] * (float(own.mass_lowest) > 0) + [float(own.highest)]
        inside = np.unique([*ends, *stated])
        columns.append(np.concatenate([[0.0], (inside[1:] + inside[:-1]) / 2, [1.0]]))
    thresholds = np.array([[*pair, 0.0] for pair in itertools.product(*columns)])
    tried = outcomes(model, with_thresholds(ours, thresholds))
    least = [np.asarray(jax.vmap(steep, (0, None))(tried, price)).min() for price in lam]
    np.testing.assert_allclose(values(steep, model, ours), least, atol=1e-9)


@pytest.mark.thorough
@pytest.mark.usefixtures("robust")
def test_a_second_call_compiles_nothing(models, compilations):
    with compilations() as compiled:
        minimise(worst, models[::-1], "full", lam=2 * LAM)
    assert not compiled


@pytest.mark.thorough
@pytest.mark.usefixtures("float32")
def test_in_float32_it_is_nearly_as_good():
    model = rcjax.demo_model()
    lam = np.geomspace(3e-3, 0.3, 4) / float(model.cost[-1])
    exact = solve_frontier(model, lam=lam, cascades="full")
    ours = minimise(additive, model, "full", lam=lam)
    assert ours.error.dtype == np.float32
    loss, least = (np.asarray(own.error + own.lam * own.cost) for own in (ours, exact))
    np.testing.assert_allclose(loss, least, rtol=0, atol=2e-5)
    assert statuses(ours) <= FINE


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
