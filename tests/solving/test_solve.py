"""The frontier: global optima, order between families of policies, corner cases, no recompilation."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cascade_references import make_model, pair_reference, random_models, take
from helpers.submodels import of_models

from rcjax import solve_frontier
from rcjax.copulas import Gumbel
from rcjax.model import Marginal
from rcjax.solving import error_and_cost
from rcjax.solving.frontier.points import LossTerms, Points, Policies
from rcjax.solving.tradeoff import keep_best

pytestmark = pytest.mark.usefixtures("float64")

#: Costs of the random models lie between 1 and 30.
LAM = np.geomspace(1e-3, 0.1, 8)
GLOBAL = 1e-5


@pytest.fixture(scope="module")
def triples(float64):
    return random_models(51, 3, 6)


@pytest.fixture(scope="module")
def fours(float64):
    return random_models(52, 4, 3)


@pytest.fixture(scope="module")
def automatic(demo):
    return solve_frontier(demo)


quantiles = jax.jit(Marginal.quantile)


def loss(frontier):
    return np.asarray(frontier.error + frontier.lam * frontier.cost)


def grid_losses(model, names, lam, count):
    """(L,) the least loss of a cascade over an exhaustive grid of thresholds, evenly spaced in probability."""
    columns = []
    for j in map(model.models.index, names[:-1]):
        inside = quantiles(take(model.marginals, j), jnp.linspace(0, 1, count - 2))
        columns.append(np.concatenate([[0.0], inside, [1.0]]))
    cuts = np.array(list(itertools.product(*columns)))
    error, cost = (np.asarray(x) for x in error_and_cost(model, cuts, names))
    return (error + np.asarray(lam)[:, None] * cost).min(1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("which", "count", "fineness"),
    [("triples", 3, 40), ("fours", 2, 20)],
)
def test_no_grid_beats_the_solver(request, which, count, fineness):
    for i in range(count):
        model = take(request.getfixturevalue(which), i)
        result = loss(solve_frontier(model, lam=LAM, cascades="full"))
        assert (result <= grid_losses(model, model.models, LAM, fineness) + GLOBAL).all(), i


@pytest.fixture(scope="module")
def of_all_cascades(demo, demo_lam):
    return solve_frontier(demo, lam=demo_lam)


@pytest.fixture(scope="module")
def best(of_all_cascades):
    """The least loss of all cascades at each λ."""
    return loss(of_all_cascades)


def test_a_cascade_of_two_is_the_best_of_a_search_over_a_grid(demo, demo_lam, of_all_cascades):
    """Error, cost, threshold and optimum, against scipy's quadrature at 33 thresholds and the one that was found."""
    row, two = 5, [2, 3]
    np.testing.assert_array_equal(np.flatnonzero(of_all_cascades.members[row]), two)
    pair, found = of_models(demo, np.array(two)), float(of_all_cascades.thresholds[row, two[0]])
    grid = np.linspace(0.02, 0.98, 33)
    error, cost = pair_reference(pair, np.append(grid, found))
    evaluated = error_and_cost(demo, grid[:, None], pair.models)
    np.testing.assert_allclose(evaluated, (error[:-1], cost[:-1]), rtol=0, atol=1e-8)
    np.testing.assert_allclose(of_all_cascades.error[row], error[-1], rtol=0, atol=1e-8)
    np.testing.assert_allclose(of_all_cascades.cost[row], cost[-1], rtol=1e-9)
    *losses, least = error + demo_lam[row] * cost
    assert abs(grid[np.argmin(losses)] - found) < grid[1] - grid[0]
    assert least <= min(losses) + 1e-8


def test_adaptive_beats_all_beats_single_models(demo, demo_lam, best):
    """Up to 1e-6: the programme integrates the adaptive policy on the nodes without a polish."""
    adaptive = solve_frontier(demo, lam=demo_lam, cascades="adaptive")
    single = np.min([1 - demo_mean(demo, j) + demo_lam * float(demo.cost[j]) for j in range(5)], axis=0)
    assert (loss(adaptive) <= best + 1e-6).all()
    assert (best <= single + 1e-9).all()
    assert (best < single - 1e-3).any()


@pytest.mark.thorough
def test_all_beats_fixed(demo, demo_lam, best):
    for cascades in ("full", [(demo.models[0], demo.models[4])]):
        assert (best <= loss(solve_frontier(demo, lam=demo_lam, cascades=cascades)) + 1e-9).all()


def demo_mean(model, j):
    marginal = take(model.marginals, j)
    return float(marginal.mean_above(marginal.lowest - 1))


@pytest.mark.thorough
def test_reported_figures_are_those_of_the_reported_thresholds(demo, demo_lam, of_all_cascades):
    frontier = of_all_cascades
    for row in range(len(demo_lam)):
        names = tuple(n for n, used in zip(demo.models, frontier.members[row], strict=True) if used)
        error, cost = error_and_cost(demo, frontier.thresholds[row], names)
        assert abs(error - frontier.error[row]) < 1e-10
        assert abs(cost - frontier.cost[row]) < 1e-10 * float(demo.cost[-1])


def test_thresholds_and_members_agree(automatic):
    thresholds, members = np.asarray(automatic.thresholds), np.asarray(automatic.members)
    k = members.shape[1]
    last = k - 1 - members[:, ::-1].argmax(1)
    rows = np.arange(len(members))
    assert (thresholds[~members] == 1).all()
    assert (thresholds[rows, last] == 0).all()
    np.testing.assert_array_equal(automatic.policies.first, members.argmax(1))
    # Nobody is asked after a model that always answers.
    assert ((thresholds == 0) & members).sum(1).max() == 1


def test_free_and_priceless_errors(demo, demo_lam):
    """λ = 0 buys the least error there is, a huge λ the cheapest model."""
    frontier = solve_frontier(demo, lam=np.concatenate([[0.0], demo_lam[:6], [1e12]]))
    assert np.isfinite(np.asarray(frontier.error)).all()
    cheapest = np.flatnonzero(np.asarray(demo.cost) == demo.cost.min())  # two models cost the same
    np.testing.assert_allclose(frontier.cost[-1], demo.cost.min(), rtol=1e-12)
    np.testing.assert_allclose(frontier.error[-1], min(1 - demo_mean(demo, j) for j in cheapest), atol=1e-12)
    best_single = min(1 - demo_mean(demo, j) for j in range(5))
    assert frontier.error[0] <= best_single + 1e-9


def perturbed(model, factor):
    return make_model(
        jax.tree.map(lambda leaf: leaf * 1.0, model.marginals),
        Gumbel(1 + (model.copulas.theta - 1) * factor),
        model.cost * factor,
    )


@pytest.mark.parametrize("cascades", ["all", pytest.param("adaptive", marks=pytest.mark.thorough)])
def test_a_second_call_compiles_nothing(demo, demo_lam, cascades, compilations):
    first, second = perturbed(demo, 1.0), perturbed(demo, 0.9)
    solve_frontier(first, lam=demo_lam, cascades=cascades)
    solve_frontier(first, cascades=cascades)
    with compilations() as compiled:
        solve_frontier(second, lam=2 * demo_lam, cascades=cascades)
        solve_frontier(second, cascades=cascades)
    assert not compiled


@pytest.mark.thorough
@pytest.mark.parametrize("cascades", ["all", "adaptive"])
def test_many_lambdas_are_solved_in_batches_as_each_batch_alone(demo, demo_lam, cascades):
    lam = np.geomspace(demo_lam[0], demo_lam[-1], 72)  # two batches on two cores
    many = solve_frontier(demo, lam=lam, cascades=cascades)
    few = [solve_frontier(demo, lam=lam[start : start + 8], cascades=cascades) for start in range(0, len(lam), 8)]
    np.testing.assert_allclose(many.error, np.concatenate([one.error for one in few]), rtol=0, atol=1e-12)
    bounds = np.concatenate([one.policies.bounds for one in few])
    np.testing.assert_allclose(many.policies.bounds, bounds, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(many.lam, lam)


@pytest.mark.thorough
def test_float32_is_close_to_float64(demo, demo_lam):
    double = solve_frontier(demo, lam=demo_lam)
    leaves = jax.tree.map(np.asarray, demo)
    with jax.enable_x64(False):
        lower = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32 if x.dtype.kind == "f" else jnp.int32), leaves)
        single = solve_frontier(lower, lam=demo_lam)
        assert single.error.dtype == single.thresholds.dtype == jnp.float32
        np.testing.assert_allclose(single.error, double.error, rtol=0, atol=1e-3)
        # The loss is flat at its optimum: that is what float32 must not move.
        np.testing.assert_allclose(loss(single), loss(double), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cascades": [("llama3.1-70b", "llama3.2-1b")]}, "does not follow the model's order"),
        ({"cascades": []}, "empty"),
        ({"cascades": "some"}, "'all', 'full', 'adaptive'"),
        ({"lam": []}, "at least one"),
        ({"lam": [np.nan]}, "finite"),
    ],
)
def test_bad_arguments_are_refused(demo, options, message):
    with pytest.raises(ValueError, match=message):
        solve_frontier(demo, **options)


def test_automatic_grid_covers_every_trade_off(demo, automatic):
    """From the least error of all to the cheapest model; in order; infilled."""
    cost, error = np.asarray(automatic.cost), np.asarray(automatic.error)
    assert (np.diff(automatic.lam) >= 0).all()
    assert (np.diff(cost) <= 1e-9 * cost.max()).all()
    assert (np.diff(error) >= -1e-9).all()
    np.testing.assert_allclose(cost[-1], demo.cost.min(), rtol=1e-9)
    least = solve_frontier(demo, lam=[0.0]).error[0]
    assert error[0] <= least + 2e-4
    # Without cost in steps: no neighbours of one cascade are far apart.
    same = (np.asarray(automatic.members)[1:] == np.asarray(automatic.members)[:-1]).all(1)
    assert np.abs(np.diff(error))[same].max() < 0.01


@pytest.mark.parametrize("cascade", [(0, 1, 2), (1, 3, 4)], ids=str)
def test_infill_stays_near_the_optima(demo, cascade):
    """Also where one of two neighbouring optima asks the middle model nothing, so that its cut there is free."""
    frontier = solve_frontier(demo, cascades=[tuple(demo.models[j] for j in cascade)])
    cost, error, lam = (np.asarray(x) for x in (frontier.cost, frontier.error, frontier.lam))
    assert (np.diff(cost) <= 1e-9 * cost.max()).all()
    least = (error + lam[:, None] * cost).min(1)
    assert (loss(frontier) - least).max() < 0.01


def test_a_failed_lambda_takes_the_best_solution_of_another():
    expected = LossTerms(*map(jnp.array, ([0.1, 0.5, 0.3], [0.3, 0.4, 0.1], [0.0] * 3)))
    lam, members = [0.5, 0.8, 3.0], np.eye(3, dtype=bool)
    policies = Policies.from_cascades(np.where(members, 0.0, 1.0), members)
    chosen = keep_best(Points(jnp.array(lam), jnp.zeros(3, int), expected, policies), None)
    np.testing.assert_allclose([chosen.lam, chosen.expected.cost], [lam, [0.3, 0.3, 0.1]], rtol=1e-6)


def degenerate(case):
    """Two models of a kind that breaks things, as Marginal columns, θ and costs."""
    plain = (0.2, 0.9, 0.1, 0.1, (0.4, 0.6), (2.0, 3.0), (3.0, 1.5))
    better = (0.5, 0.98, 0.05, 0.2, (0.5, 0.5), (4.0, 3.0), (1.5, 1.0))
    constant = (0.6, 0.6, 0.0, 1.0, (0.5, 0.5), (1.0, 1.0), (1.0, 1.0))
    masses = (0.2, 0.9, 0.5, 0.5, (0.5, 0.5), (1.0, 1.0), (1.0, 1.0))
    return {
        "constant first": ((constant, better), 1.0, (1.0, 10.0)),
        "constant last": ((plain, constant), 1.0, (1.0, 10.0)),
        "masses only": ((masses, better), 2.0, (1.0, 10.0)),
        "equal cost": ((plain, better), 2.0, (5.0, 5.0)),
        "first is free": ((plain, better), 2.0, (0.0, 5.0)),
        "both free": ((plain, better), 2.0, (0.0, 0.0)),
        "tau is one": ((plain, plain), 50.0, (1.0, 2.0)),
    }[case]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    ["constant first", "constant last", "masses only", "equal cost", "first is free", "both free", "tau is one"],
)
def test_degenerate_models(float64, case):
    rows, theta, cost = degenerate(case)
    marginals = Marginal(*(jnp.asarray(column) for column in zip(*rows, strict=True)))
    model = make_model(marginals, Gumbel(jnp.array([theta])), jnp.asarray(cost))
    automatic = solve_frontier(model)
    given = solve_frontier(model, lam=LAM)
    adaptive = solve_frontier(model, lam=LAM, cascades="adaptive")
    for frontier in (automatic, given, adaptive):
        for name in ("lam", "error", "cost"):
            assert np.isfinite(getattr(frontier, name)).all(), name
        assert np.isfinite(frontier.policies.bounds).all()
        assert (np.diff(frontier.cost) <= 1e-12).all()
    every = [grid_losses(model, names, LAM, 200) for names in (("m0", "m1"), ("m0",), ("m1",))]
    assert (loss(given) <= np.min(every, axis=0) + GLOBAL).all()
    assert (loss(adaptive) <= loss(given) + 1e-6).all()
    automatic.policy(lam=0.01)


@pytest.mark.thorough
def test_policies_of_the_targets(demo, automatic):
    cost, error, lam = (np.asarray(x) for x in (automatic.cost, automatic.error, automatic.lam))
    middle = len(cost) // 2
    cheap = automatic.policy(budget=float(cost[middle]))
    assert cheap.expected["cost"] <= cost[middle] * (1 + 1e-9)
    # A ladder has twenty of the frontier's corners at most: between two of them it errs a little more than the curve.
    least = error[cost <= cost[middle] * (1 + 1e-9)].min()
    assert least * (1 - 1e-9) <= cheap.expected["error"] <= least * (1 + 1e-3)
    good = automatic.policy(max_error=float(error[middle]))
    assert good.expected["error"] <= error[middle] * (1 + 1e-9)
    least = cost[error <= error[middle] * (1 + 1e-9)].min()
    assert least * (1 - 1e-9) <= good.expected["cost"] <= least * (1 + 1e-2)
    price = float(1 / lam[middle])
    by_price, by_lam = automatic.policy(error_cost=price), automatic.policy(lam=1 / price)
    assert (by_price.rules, by_price.expected) == (by_lam.rules, by_lam.expected)
    assert by_price.provenance["tuning"]["error_cost"] == price
    value = by_lam.expected["error"] + by_lam.expected["cost"] / price
    assert value <= (error + cost / price).min() + 1e-15
