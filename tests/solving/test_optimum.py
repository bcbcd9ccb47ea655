"""`solve`: the frontier as a pure function, and its derivatives against differences of what it solves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.stated_samples import stated_log
from helpers.submodels import of_models

import rcjax
from rcjax.solving.frontier.points import PointStatus
from rcjax.solving.optimum import solve

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def three(demo):
    return of_models(demo, np.array([0, 2, 4]))


@pytest.fixture(scope="module")
def lam(three):
    return np.geomspace(3e-3, 0.3, 5) / float(three.cost[-1])


def with_arrays(model, theta, cost, lowest):
    copulas = dataclasses.replace(model.copulas, theta=theta)
    marginals = dataclasses.replace(model.marginals, lowest=lowest)
    return dataclasses.replace(model, copulas=copulas, marginals=marginals, cost=cost)


def figures(solution):
    of_query = jnp.stack([solution.error, solution.cost, solution.loss], axis=-1)
    return jnp.concatenate([of_query, solution.thresholds], axis=-1)


@pytest.mark.thorough
def test_it_finds_what_solve_frontier_finds_or_better(three, lam):
    frontier, solution = rcjax.solve_frontier(three, lam=lam), solve(three, lam)
    other = np.asarray(frontier.error + lam * frontier.cost)
    assert (np.asarray(solution.loss) <= other + 1e-12).all()
    np.testing.assert_allclose(solution.loss, other, atol=1e-8)
    np.testing.assert_array_equal(solution.members, frontier.members)
    np.testing.assert_allclose(solution.thresholds, frontier.thresholds, atol=1e-3)
    np.testing.assert_array_equal(solution.status, frontier.status)
    for row, names in enumerate(np.asarray(solution.members)):
        cascade = tuple(np.array(three.models)[names])
        error, cost = rcjax.solving.error_and_cost(three, solution.thresholds[row], cascade)
        np.testing.assert_allclose([error, cost], [solution.error[row], solution.cost[row]], rtol=1e-9)


@pytest.mark.thorough
def test_derivatives_are_those_of_differences(demo, lam):
    model = of_models(demo, np.array([0, 4]))
    values = model.copulas.theta, model.cost, model.marginals.lowest, jnp.asarray(lam[2])

    def solved(theta, cost, lowest, price):
        return figures(solve(with_arrays(model, theta, cost, lowest), price, "full"))

    run, forward = jax.jit(solved), jax.jit(jax.jacfwd(solved, (0, 1, 2, 3)))(*values)
    for argument, value in enumerate(values):
        flat = np.atleast_1d(np.asarray(value))
        for entry in range(flat.size):
            step = np.zeros_like(flat)
            step[entry] = 1e-5 * abs(flat[entry])
            ends = [(flat + sign * step).reshape(np.shape(value)) for sign in (1, -1)]
            high, low = (run(*values[:argument], jnp.asarray(end), *values[argument + 1 :]) for end in ends)
            slope = np.asarray(forward[argument]).reshape(-1, flat.size)[:, entry]
            scale = np.abs(slope).max()
            np.testing.assert_allclose(slope, (high - low) / (2 * step[entry]), rtol=1e-5, atol=1e-5 * scale)


def constant(model, j, value):
    """The model whose j-th LLM always has one confidence."""
    ends = {"lowest": value, "highest": value, "mass_lowest": 0.0, "mass_highest": 1.0}
    columns = {name: getattr(model.marginals, name).at[j].set(x) for name, x in ends.items()}
    return dataclasses.replace(model, marginals=dataclasses.replace(model.marginals, **columns))


@pytest.mark.thorough
def test_derivatives_at_corners_are_those_of_differences_and_of_float32(three):
    """λ of nothing and of everything; a free model, tied costs, a model that is never right, one that always is.

    Figures and derivatives are along one direction of all parameters; float32 is within 1e-3 of float64.
    """
    step, scale = 1e-5, float(three.cost[-1])
    corners = (
        three,
        dataclasses.replace(three, cost=three.cost.at[0].set(0.0)),
        dataclasses.replace(three, cost=three.cost.at[0].set(three.cost[1])),
        constant(three, 1, 0.0),
        constant(three, 2, 1.0),
    )
    prices = np.array([1e-6, 0.01, 0.1, 0.3, 1e4]) / scale

    def solved(model, t):
        moved = with_arrays(
            model,
            model.copulas.theta * (1 + 0.1 * t),
            model.cost * (1 + t * jnp.array([0.1, 0.2, 0.3])),
            model.marginals.lowest * (1 - 0.01 * t),
        )
        result = solve(moved, jnp.asarray(prices, model.cost.dtype) * (1 + 0.7 * t), "all")
        return figures(
            dataclasses.replace(result, cost=result.cost / scale, loss=result.loss / (1 + result.lam * scale))
        )

    run = jax.jit(lambda model, t: jax.jvp(lambda t: solved(model, t), (t,), (jnp.ones_like(t),)))
    for model in corners:
        figure, slope = run(model, jnp.array(0.0))
        (high, _), (low, _) = (run(model, jnp.array(t)) for t in (step, -step))
        np.testing.assert_allclose(slope, (high - low) / (2 * step), rtol=1e-5, atol=1e-7)
        with jax.enable_x64(False):
            lower = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32 if x.dtype.kind == "f" else jnp.int32), model)
            single, of_single = run(lower, jnp.array(0.0))
            assert of_single.dtype == jnp.float32
            np.testing.assert_allclose(single, figure, rtol=0, atol=1e-3)
            np.testing.assert_allclose(of_single, slope, rtol=1e-3, atol=1e-3)


@pytest.mark.thorough
def test_it_is_vmapped_over_models_and_compiles_once(three, lam, compilations):
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), three)
    many = dataclasses.replace(many, cost=many.cost * jnp.array([[1.0], [1.2]]))
    over_models = jax.jit(jax.vmap(lambda model: solve(model, jnp.asarray(lam), "full")))
    both = over_models(many)
    for row, factor in enumerate((1.0, 1.2)):
        own = solve(dataclasses.replace(three, cost=three.cost * factor), lam, "full")
        np.testing.assert_allclose(both.thresholds[row], own.thresholds, atol=1e-9)
        np.testing.assert_allclose(both.loss[row], own.loss, rtol=1e-12)
    assert both != own
    assert len({both, own}) == 2
    dearer = dataclasses.replace(many, cost=many.cost * 1.01)
    with compilations() as messages:
        over_models(dearer)
    assert not messages


@pytest.mark.thorough
def test_a_threshold_beside_a_point_mass_is_held(lam):
    model = rcjax.fit(stated_log("stated", 300))
    price = 0.05 / float(model.cost[-1])
    solution = solve(model, price, "full")
    frontier = rcjax.solve_frontier(model, lam=[price], cascades="full")
    np.testing.assert_allclose(solution.loss, frontier.error[0] + price * frontier.cost[0], atol=1e-9)
    moved = jax.jit(jax.jacfwd(lambda price: solve(model, price, "full").thresholds))(jnp.asarray(price))
    assert not np.isnan(moved).any()


@pytest.mark.thorough
def test_single_models_are_solved_and_unknown_names_refused(three):
    alone = solve(three, [0.0, 1e3], [(three.models[1],)])
    error, cost = rcjax.solving.error_and_cost(three, jnp.array([0.5]), (three.models[1],))
    np.testing.assert_allclose(alone.error, error, rtol=1e-9)
    np.testing.assert_allclose(alone.cost, cost, rtol=1e-12)
    assert alone.members.tolist() == [[False, True, False]] * 2
    with pytest.raises(ValueError, match=r"adaptive.* has intervals instead of thresholds: use solve_frontier"):
        solve(three, 1.0, "adaptive")
    with pytest.raises(ValueError, match="unknown model 'nobody'"):
        solve(three, 1.0, [("nobody",)])


@pytest.mark.parametrize("lam", [-1.0, float("nan"), float("inf"), [300.0, -2.0]])
def test_an_invalid_lambda_is_refused(lam):
    with pytest.raises(ValueError, match="lam must be finite and at least 0"):
        solve(rcjax.demo_model(), lam, "full")


@pytest.mark.thorough
def test_an_invalid_traced_lambda_has_a_status():
    prices = jnp.array([300.0, jnp.nan, -1.0])
    result = jax.jit(lambda lam: solve(rcjax.demo_model(), lam, "full"))(prices)
    assert result.status.tolist()[1:] == [PointStatus.INVALID_LAMBDA] * 2
    assert result.status[0] <= PointStatus.AT_BOUND
    assert np.isnan(result.loss).tolist() == [False, True, True]
    assert result.members.any(1).tolist() == [True, False, False]


@pytest.mark.thorough
def test_the_loss_has_second_derivatives(demo, lam):
    """The slope of the loss by λ is the cost, and the second one that of the cost; by shapes, differences."""
    model, closed_over = of_models(demo, np.array([0, 4])), jnp.asarray(lam[2])

    def loss(a, price):
        own = dataclasses.replace(model, marginals=dataclasses.replace(model.marginals, a=a))
        return solve(own, price, "full").loss

    a, step = model.marginals.a, 1e-4
    slope = jax.jit(jax.grad(loss, (0, 1)))
    curvature = jax.jit(jax.jacfwd(jax.grad(loss, (0, 1)), 1))(a, closed_over)
    costs = jax.jit(lambda price: solve(model, price, "full").cost)
    high, low = (closed_over * (1 + sign * step) for sign in (1, -1))
    np.testing.assert_allclose(slope(a, closed_over)[1], costs(closed_over), rtol=1e-9)
    width = 2 * step * closed_over
    np.testing.assert_allclose(curvature[1], (costs(high) - costs(low)) / width, rtol=1e-5)
    by_shapes = (slope(a, high)[0] - slope(a, low)[0]) / width
    np.testing.assert_allclose(curvature[0], by_shapes, rtol=1e-4, atol=1e-6 * np.abs(by_shapes).max())


@pytest.mark.thorough
def test_lambdas_closed_over_by_a_compiled_function_are_checked(demo, lam):
    model, prices = of_models(demo, np.array([0, 4])), jnp.asarray(lam)
    assert (jax.jit(lambda model: solve(model, prices, "full"))(model).lam == prices).all()
