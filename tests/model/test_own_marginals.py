"""A marginal of one's own is what is fitted, solved, drawn from, saved and tested, in place of the mixture of betas."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from helpers.own_marginals import Kumaraswamy, OneBeta

import rcjax
from rcjax.model import BetaMixture
from rcjax.model.cascade_model import model_from_json
from rcjax.model.fitting import refit
from rcjax.model.goodness_of_fit.marginal_fit import marginal_test
from rcjax.model.weighted import reweigh, rows_of
from rcjax.solving import error_and_cost, solve

pytestmark = pytest.mark.usefixtures("float64")

A, B = np.array([2.0, 5.0]), np.array([3.0, 1.2])
ENDS = {
    "lowest": np.array([0.2, 0.3]),
    "highest": np.array([0.9, 0.95]),
    "mass_lowest": np.array([0.05, 0.1]),
    "mass_highest": np.array([0.1, 0.2]),
}


@pytest.fixture(scope="module")
def log():
    whole = rcjax.sample_log(384, seed=0)
    return whole.select(whole.models[::4])


@pytest.fixture(scope="module")
def fitted(log, float64):
    return rcjax.fit(log, marginal=Kumaraswamy)


def same_law(fitted):
    """The model with one beta as a marginal of one's own, and with the mixture of two betas alike."""
    own = OneBeta(**ENDS, a=A, b=B)
    mixture = BetaMixture(
        **ENDS, proportion=np.full((2, 2), 0.5), a=np.tile(A[:, None], (1, 2)), b=np.tile(B[:, None], (1, 2))
    )
    models = (dataclasses.replace(fitted, marginals=marginals) for marginals in (own, mixture))
    return [jax.tree.map(jnp.asarray, model) for model in models]


def test_the_objective_has_the_marginal_that_the_model_has(fitted):
    own, mixture = same_law(fitted)
    thresholds = np.array([[0.4], [0.6], [0.8]])
    np.testing.assert_allclose(error_and_cost(own, thresholds), error_and_cost(mixture, thresholds), rtol=1e-6)
    other = dataclasses.replace(own, marginals=dataclasses.replace(own.marginals, a=own.marginals.a + 1.0))
    assert np.abs(error_and_cost(own, thresholds).error - error_and_cost(other, thresholds).error).min() > 1e-3


def test_in_single_precision_figures_are_near():
    shape = Kumaraswamy(0.5, 0.45)
    points = np.array([0.0, 1e-6, 0.3, 0.9, 1 - 1e-6, 1.0], np.float32).astype(float)
    mean_above = jax.jit(Kumaraswamy.smooth_mean_above)
    expected = mean_above(shape, points)
    with jax.enable_x64(False):
        narrow = mean_above(Kumaraswamy(jnp.float32(0.5), jnp.float32(0.45)), jnp.asarray(points, jnp.float32))
    np.testing.assert_allclose(narrow, expected, atol=1e-4)


@pytest.mark.thorough
def test_the_chain_has_the_marginal_that_the_model_has(fitted):
    own, mixture = same_law(fitted)
    values = np.array([[0.5, 0.6], [0.2, 0.95], [0.89, 0.31]])
    np.testing.assert_allclose(own.log_prob(values), mixture.log_prob(values), rtol=1e-10)
    key = jax.random.key(0)
    np.testing.assert_allclose(own.sample(key, (50,)), mixture.sample(key, (50,)), atol=1e-9)


@pytest.mark.thorough
def test_the_best_cascade_and_its_slopes_are_those_of_the_marginal(fitted):
    own, mixture = same_law(fitted)

    def loss(cost, model):
        return solve(dataclasses.replace(model, cost=cost), 100.0, "full").loss

    for function in (loss, jax.grad(loss)):
        np.testing.assert_allclose(function(own.cost, own), function(own.cost, mixture), rtol=1e-5)
    slopes = jax.grad(lambda model: solve(model, 100.0, "full").error, allow_int=True)(fitted).marginals
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
    assert np.abs(slopes.a).max() > 1e-4


def test_the_fit_is_the_likeliest_with_its_errors_and_its_status(log, fitted):
    confidence = np.asarray(fitted.calibrate(log))[:, 0]
    low, high = confidence.min(), confidence.max()
    x = (confidence - low) / (high - low)
    x = x[(x > 0) & (x < 1)]

    def loss(shape):
        a, b = shape
        return -np.sum(np.log(a * b) + (a - 1) * np.log(x) + (b - 1) * np.log1p(-(x**a)))

    best = scipy.optimize.minimize(loss, [1.0, 1.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10})
    (row, _), table = fitted.marginal_table, fitted.marginals
    np.testing.assert_allclose([table.a[0], table.b[0]], best.x, rtol=1e-4)
    np.testing.assert_allclose(row["log_likelihood"], -best.fun, rtol=1e-9)
    assert (row["model"], row["family"], row["status"]) == (log.models[0], "Kumaraswamy", "converged")
    np.testing.assert_allclose(row["aic"], 4 + 2 * best.fun, rtol=1e-9)
    curvature = scipy.optimize.approx_fprime(best.x, lambda at: scipy.optimize.approx_fprime(at, loss, 1e-5), 1e-4)
    errors = np.sqrt(np.diag(np.linalg.inv(curvature)))
    np.testing.assert_allclose(list(row["standard_errors"].values()), errors, rtol=0.02)


def test_files_keep_the_family_and_an_unknown_family_is_refused(fitted):
    data = fitted.to_json()
    again = model_from_json(data)
    assert isinstance(again.marginals, Kumaraswamy)
    for one, other in zip(jax.tree.leaves(again.marginals), jax.tree.leaves(fitted.marginals), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.marginal_table == fitted.marginal_table
    data["marginals"] = [row | {"family": "Unheard"} for row in data["marginals"]]
    with pytest.raises(ValueError, match=r"marginals.unknown marginal 'Unheard'; the families are .*kumaraswamy"):
        model_from_json(data)


def test_a_mixture_without_shapes_is_no_marginal():
    data = rcjax.demo_model().to_json()
    del data["marginals"][1]["a"]
    with pytest.raises(ValueError, match=r"marginals\[1\].a: must be a list of 2"):
        model_from_json(data)


@pytest.mark.thorough
def test_fits_again_keep_the_family(log, fitted):
    weighted = reweigh(fitted, rows_of(log), jnp.ones(log.n_queries))
    np.testing.assert_allclose(weighted.marginals.a, fitted.marginals.a, rtol=1e-3)
    assert isinstance(refit(fitted, log).marginals, Kumaraswamy)


@pytest.mark.thorough
def test_its_goodness_of_fit_is_judged_by_itself(fitted):
    drawn = np.asarray(jax.vmap(lambda own: own.sample(jax.random.key(1), (300,)))(fitted.marginals))
    good = marginal_test(fitted.marginals, drawn, 0, jax.random.key(0), replicates=100)
    bad = marginal_test(fitted.marginals, np.clip(drawn, 0.45, 0.6), 0, jax.random.key(0), replicates=100)
    assert good.trained_p.min() > 0.01 > bad.trained_p.min()


def test_what_is_no_family_is_refused(log):
    with pytest.raises(ValueError, match="unknown marginal 'nope'; the families are betamixture, "):
        rcjax.fit(log, marginal="nope")
