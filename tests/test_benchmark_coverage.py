"""Intervals beside the jackknife's: what is counted of them, and that the logs are the known model's."""

import jax.numpy as jnp
import numpy as np
import pytest

import rcjax
from benchmarks import coverage


def test_shares_tell_width_from_bias():
    true, predicted, half = np.array([0.3, 0.3]), np.array([0.25, 0.31]), np.array([0.04, 0.02])
    ends = np.array([[0.25, 0.33], [0.31, 0.35]])
    counted = coverage.shares(true, predicted, half, ends)
    np.testing.assert_allclose(counted, (0.5, 0.5, 0.5, 0.06, 0.06, 0.01, -0.02))


@pytest.mark.thorough
def test_a_drawn_log_is_the_models(float64):
    model = rcjax.demo_model()
    log = coverage.drawn(model, 4000, 3)
    frontier = rcjax.solve_frontier(model, lam=[1e-6, 1e6], cascades=[(name,) for name in model.models])
    wrong = 1 - np.asarray(log.correct, float).mean(0)
    for place in (0, 1):
        number = model.models.index(frontier.point(place).models[0])
        error = float(frontier.error[place])
        assert abs(wrong[number] - error) < 4 * np.sqrt(error * (1 - error) / 4000)
    assert jnp.array_equal(log.query_cost[0], model.cost)
    assert jnp.isfinite(log.logprob).all()
