"""What one query changes: against fits without it, and standard errors against queries drawn again."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stated_samples import stated_log

import rcjax
from rcjax.diagnostics.influences import influence
from rcjax.logs.errors import LogError
from rcjax.model.weighted import reweigh, rows_of
from rcjax.solving.solution import solve

pytestmark = pytest.mark.usefixtures("float64")

N, LAM = 192, 300.0


@pytest.fixture(scope="module")
def log():
    return rcjax.sample_log(N, seed=0).select(["llama3.2-1b", "llama3.1-70b"])


@pytest.fixture(scope="module")
def policy(log):
    return rcjax.solve_frontier(rcjax.fit(log), lam=[LAM], cascades="full").point(0)


@pytest.fixture(scope="module")
def moved(policy, log):
    return influence(policy, log)


@pytest.mark.thorough
def test_leaving_a_query_out_and_fitting_again_changes_as_much(moved, log):
    whole = solve(rcjax.fit(log), LAM, "full")
    rows = [*moved.top(2), 0]
    for row in rows:
        without = solve(rcjax.fit(log.take(np.setdiff1d(np.arange(N), row))), LAM, "full")
        change = np.array([without.error - whole.error, without.thresholds[0] - whole.thresholds[0]])
        expected = np.array([moved.error[row], moved.thresholds[row, 0]])
        np.testing.assert_allclose(change, expected, rtol=0.35, atol=1.5e-4)
    assert np.abs(moved.thresholds[rows[0]]) >= np.abs(moved.thresholds[:, 0]).max() - 1e-12
    assert moved.queries == tuple(map(str, log.queries))
    np.testing.assert_allclose(moved.error.sum(), 0.0, atol=1e-6)  # twice the log is the same log


@pytest.mark.thorough
def test_standard_errors_are_those_of_queries_drawn_again(moved, log):
    model, rows = rcjax.fit(log), rows_of(log)

    def figures(weights):
        solution = solve(reweigh(model, rows, weights), LAM, "full")
        return jnp.stack([solution.error, solution.cost])

    draws = np.random.default_rng(0).multinomial(N, np.full(N, 1 / N), 100).astype(float)
    drawn = np.asarray(jax.jit(lambda all_: jax.lax.map(figures, all_))(jnp.asarray(draws)))
    np.testing.assert_allclose([moved.error_se, moved.cost_se], drawn.std(0, ddof=1), rtol=0.25)


@pytest.mark.thorough
def test_what_it_is_not_for(policy, log):
    with pytest.raises(ValueError, match=r"cascade of two models or more that knows its λ"):
        influence(dataclasses.replace(policy, expected={}), log)
    few = stated_log("stated", N, models=5).select(policy.models)
    with pytest.raises(LogError, match=r"so few values that copulas are fitted by likelihood.*bootstrap"):
        influence(policy, few)
