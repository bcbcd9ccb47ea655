"""Solvers of `minimise`, where they do not arrive, and what cannot be minimised."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from minimise_samples import additive, fits, statuses, values, worst

from rcjax.frontier.points import PointStatus
from rcjax.solving import minimise, minimising as module
from rcjax.solving.descent import Bounds, descend

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def one(float64):
    return fits()[0]


def test_a_solver_of_optax_descends_from_anywhere():
    """From the middle of all ranks, where no optimum is: `minimise` itself starts from Bellman's."""
    solver, bounds = optax.lbfgs(), Bounds(jnp.full(4, 0.05), jnp.full(4, 0.95))
    goal = jnp.array([0.2, 0.4, 0.6, 0.95])

    def loss(u):
        return ((u - goal) ** 2 * (1 + u)).sum()

    reached = jax.jit(lambda u: descend(loss, u, bounds, solver))(jnp.full(4, 0.5))
    assert float(loss(reached)) < 1e-6


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
    "a vector": (lambda outcome, lam: outcome.answered, {}, "one number, not an array of shape"),
    "a pair": (lambda outcome, lam: (outcome.error, outcome.cost), {}, "one number, not a tuple"),
    "a count": (lambda outcome, lam: (outcome.answered > 0.5).sum(), {}, "real number that has a slope"),
    "negative λ": (additive, {"lam": [-1.0]}, "none below 0"),
    "no λ": (additive, {"lam": []}, "at least one finite number"),
    "an unknown model": (additive, {"cascades": [("llama3.2-1b", "gpt-5")]}, "unknown model 'gpt-5'"),
    "one model alone": (additive, {"cascades": [("llama3.2-1b",)]}, "llama3.2-1b alone has no threshold to choose"),
    "adaptive policies": (additive, {"cascades": "adaptive"}, "adaptive"),
    "no start": (additive, {"starts": 0}, "starts must be at least 1"),
    "no solver": (additive, {"solver": "adam"}, "solver must be a transformation of optax's"),
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
