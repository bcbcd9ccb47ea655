"""Areas under error–cost curves as pure functions: beside those of numpy, and slopes beside differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rcjax.replaying import area_under_curve

pytestmark = pytest.mark.usefixtures("float64")


def curve(seed):
    rng = np.random.default_rng(seed)
    cost = np.round(rng.uniform(1.0, 3.0, 12), 1)  # some are equal
    return np.concatenate([cost, [0.9, 3.1]]), rng.uniform(0.1, 0.5, 14)


def area(cost, error):
    return area_under_curve(cost, error, 1.0, 3.0)


def test_it_is_the_same_under_jit_and_vmap():
    costs, errors = map(np.stack, zip(*map(curve, range(4)), strict=True))
    alone = [area(cost, error) for cost, error in zip(costs, errors, strict=True)]
    np.testing.assert_allclose(jax.jit(jax.vmap(area))(costs, errors), alone, rtol=1e-12)
    assert isinstance(alone[0], float)


def test_slopes_are_those_of_differences():
    cost, error = curve(5)
    cost = cost + 1e-3 * np.arange(len(cost))  # at equal costs the mean has no slope in either
    slopes = jax.jit(jax.grad(area, (0, 1)))(jnp.asarray(cost), jnp.asarray(error))
    step = 1e-6 * np.eye(len(cost))
    np.testing.assert_allclose(
        slopes[0], [(area(cost + s, error) - area(cost - s, error)) / 2e-6 for s in step], atol=1e-7
    )
    np.testing.assert_allclose(
        slopes[1], [(area(cost, error + s) - area(cost, error - s)) / 2e-6 for s in step], atol=1e-8
    )


def test_a_range_that_is_not_covered_is_no_number_where_nothing_can_be_raised():
    cost, error = curve(6)
    assert np.isnan(jax.jit(lambda c, e: area_under_curve(c, e, 0.5, 3.0))(cost, error))
    with pytest.raises(ValueError, match="the curve covers the costs from"):
        area_under_curve(cost, error, 0.5, 3.0)
