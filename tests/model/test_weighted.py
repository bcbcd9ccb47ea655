"""Fits by weights: against fits of logs whose queries are drawn again, and their derivatives against differences."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tiers import thorough

import rcjax
from rcjax.logs.log import Log
from rcjax.model.weighted import WeightedRows, reweigh, rows_of, weighted_taus

pytestmark = pytest.mark.usefixtures("float64")

MODELS = ("llama3.2-1b", "llama3.1-70b")
N = 192


@pytest.fixture(scope="module")
def log() -> Log:
    return rcjax.sample_log(N, seed=0).select(MODELS)


@pytest.fixture(scope="module")
def model(log):
    return rcjax.fit(log)


@pytest.fixture(scope="module")
def weighed():
    return jax.jit(reweigh)


def means(model):
    """(k,) of the mixtures, on the scale of confidences."""
    m = model.marginals
    return m.lowest + (m.highest - m.lowest) * (m.proportion * m.a / (m.a + m.b)).sum(-1)


def the_same_but_for_mixtures(model, other):
    for name in ("coefficients", "smallest", "largest"):
        np.testing.assert_allclose(getattr(model.calibrators, name), getattr(other.calibrators, name), rtol=1e-9)
    for name in ("lowest", "highest", "mass_lowest", "mass_highest"):
        np.testing.assert_allclose(getattr(model.marginals, name), getattr(other.marginals, name), rtol=1e-9)
    np.testing.assert_allclose(model.copulas.theta, other.copulas.theta, rtol=1e-9)
    np.testing.assert_allclose(model.cost, other.cost, rtol=1e-12)


def test_whole_weights_are_queries_drawn_again(log, model, weighed):
    draw = np.random.default_rng(0).integers(0, N, N)
    weights = np.bincount(draw, minlength=N).astype(float)
    again, fitted = weighed(model, rows_of(log), jnp.asarray(weights)), rcjax.fit(log.take(draw))
    the_same_but_for_mixtures(again, fitted)
    np.testing.assert_allclose(means(again), means(fitted), rtol=5e-3)  # drawn twice, a value is a peak to some starts


def described(model):
    """All that the fit depends on, in one row."""
    m = model.marginals
    parts = model.calibrators.coefficients, m.lowest, m.highest, m.mass_lowest, m.proportion, jnp.log(m.a), jnp.log(m.b)
    return jnp.concatenate([part.reshape(-1) for part in (*parts, model.copulas.theta, model.cost * 1e4)])


@pytest.mark.thorough
def test_derivatives_by_weights_and_by_confidences(log, model):
    rows, rng = rows_of(log), np.random.default_rng(1)
    by_weight, by_logprob = jnp.asarray(rng.standard_normal(N)), jnp.asarray(rng.standard_normal((N, 2)))

    def along(step):
        moved = rows._replace(logprob=rows.logprob * (1 + 0.1 * step[1] * by_logprob))
        return described(reweigh(model, WeightedRows(*moved), 1 + step[0] * by_weight))

    run, slopes = jax.jit(along), jax.jit(jax.jacfwd(along))(jnp.zeros(2))
    for place in range(2):
        step = np.zeros(2)
        step[place] = 1e-5
        difference = (run(jnp.asarray(step)) - run(jnp.asarray(-step))) / 2e-5
        # τ goes by ranks: by a confidence it jumps, or has no slope.
        count = len(difference) - 3 * place
        np.testing.assert_allclose(slopes[:count, place], difference[:count], rtol=2e-4, atol=2e-4)


@pytest.mark.thorough
def test_taus_are_those_of_queries_repeated():
    rng = np.random.default_rng(2)
    columns, weights = rng.integers(0, 6, (150, 2)).astype(float), rng.integers(0, 4, 150)
    repeated = np.repeat(columns, weights, axis=0)
    tau = weighted_taus(jnp.asarray(columns), jnp.asarray(np.stack([weights] * 2, 1).astype(float)))
    np.testing.assert_allclose(tau[0], stats.kendalltau(*repeated.T).statistic, atol=1e-12)
    np.testing.assert_allclose(weighted_taus(jnp.ones((9, 2)), jnp.ones((9, 2))), 0.0, atol=1e-12)


@jax.jit
def slopes_by_weights(model, rows, weights):
    return jax.jacrev(lambda weights: described(reweigh(model, rows, weights)))(weights)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", thorough(["always right", "told apart", "one confidence"], "one confidence".__eq__))
def test_corners_stay_finite(log, weighed, kind):
    correct, logprob = np.asarray(log.correct).copy(), np.asarray(log.logprob).copy()
    if kind == "always right":
        correct[:, 1] = True
    elif kind == "told apart":
        correct[:, 1] = logprob[:, 1] > np.median(logprob[:, 1])
    else:
        logprob[:, 1] = np.log(0.7)
    odd = dataclasses.replace(log, correct=jnp.asarray(correct), logprob=jnp.asarray(logprob))
    model = rcjax.fit(odd)
    same = weighed(model, rows_of(odd), jnp.ones(N))
    np.testing.assert_allclose(same.calibrators.coefficients, model.calibrators.coefficients, rtol=2e-3, atol=1e-6)
    assert np.isfinite(np.asarray(slopes_by_weights(model, rows_of(odd), jnp.ones(N)))).all()
