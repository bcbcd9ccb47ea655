"""Copulas with two marginals, and the chain of a model, as distributions of NumPyro and of TensorFlow Probability."""

import dataclasses
import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.distributions.copula.api as references
from helpers.interop_libraries import NAMES, Library
from scipy import stats

import rcjax
from rcjax.model.interop import Pair

pytestmark = pytest.mark.usefixtures("float64")

REFERENCES = {
    rcjax.copulas.Gumbel(2.5): references.GumbelCopula(2.5),
    rcjax.copulas.Clayton(3.0): references.ClaytonCopula(3.0),
    rcjax.copulas.Frank(4.0): references.FrankCopula(4.0),
    rcjax.copulas.Gaussian(-0.6): references.GaussianCopula(-0.6),
}
POINTS = np.random.default_rng(0).normal(size=(40, 2)) * [1.0, 2.0] + [0.0, 1.0]


@pytest.fixture(scope="module", params=NAMES)
def library(request):
    return Library(request.param)


@pytest.fixture(scope="module")
def margins(library):
    wide = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield library.normal(np.float64(0.0), np.float64(1.0)), library.normal(np.float64(1.0), np.float64(2.0))
    jax.config.update("jax_enable_x64", wide)


def test_densities_match_scipy_and_statsmodels(library, margins):
    normal = library.copula(rcjax.copulas.Gaussian(0.6), margins)
    expected = stats.multivariate_normal([0, 1], [[1, 1.2], [1.2, 4]]).logpdf(POINTS)
    np.testing.assert_allclose(normal.log_prob(POINTS), expected, rtol=1e-10)
    student = library.student_t(np.float64(5.0))
    joint = library.copula(rcjax.copulas.StudentT(0.4, 5.0), (student, student))
    expected = stats.multivariate_t([0, 0], [[1, 0.4], [0.4, 1]], df=5).logpdf(POINTS)
    np.testing.assert_allclose(joint.log_prob(POINTS), expected, rtol=1e-6)
    for copula, reference in REFERENCES.items():
        ours = library.copula(copula, margins)
        theirs = references.CopulaDistribution(reference, [stats.norm(0, 1), stats.norm(1, 2)])
        np.testing.assert_allclose(ours.log_prob(POINTS), theirs.logpdf(POINTS), rtol=1e-8, err_msg=str(copula))
        # As well as the float type resolves ranks.
        far = np.array([[6.0, 13.0], [-6.0, -11.0]])
        np.testing.assert_allclose(
            normal.log_prob(far), stats.multivariate_normal([0, 1], [[1, 1.2], [1.2, 4]]).logpdf(far), rtol=1e-5
        )


def test_a_bare_copula_is_a_distribution_of_ranks(library):
    ranks = library.copula(rcjax.copulas.Frank(4.0))
    inside = np.array([[0.2, 0.7], [0.9, 0.95]])
    expected = np.log(REFERENCES[rcjax.copulas.Frank(4.0)].pdf(inside))
    np.testing.assert_allclose(ranks.log_prob(inside), expected, rtol=1e-8)
    np.testing.assert_array_equal(ranks.log_prob(np.array([[-0.1, 0.5], [0.5, 1.1]])), [-np.inf, -np.inf])
    assert np.isnan(Pair.join(rcjax.copulas.Frank(4.0), None).log_prob(np.array([np.nan, 0.5])))


@pytest.mark.thorough
def test_shapes_batches_and_draws(library, margins):
    theta = jnp.array([1.0, 2.0, 4.0])
    batch = library.copula(rcjax.copulas.Gumbel(theta), margins)
    assert (tuple(batch.batch_shape), tuple(batch.event_shape)) == ((3,), (2,))
    draws = np.asarray(library.sample(batch, 0, (5, 400)))
    assert draws.shape == (5, 400, 3, 2)
    taus = [stats.kendalltau(*draws[..., i, :].reshape(-1, 2).T).statistic for i in range(3)]
    np.testing.assert_allclose(taus, 1 - 1 / theta, atol=0.05)
    for column, law in enumerate((stats.norm(0, 1), stats.norm(1, 2))):
        assert stats.kstest(draws[:, :, 1, column].ravel(), law.cdf).pvalue > 1e-3
    alone = [library.copula(rcjax.copulas.Gumbel(float(t)), margins).log_prob(POINTS) for t in theta]
    np.testing.assert_allclose(batch.log_prob(POINTS[:, None]), np.stack(alone, 1), rtol=1e-10)


@pytest.mark.thorough
def test_a_distribution_is_a_pytree_with_gradients(library, margins):
    own = library.copula(rcjax.copulas.Clayton(3.0), margins)
    leaves, structure = jax.tree.flatten(own)
    repeated = jax.tree.unflatten(structure, leaves)
    np.testing.assert_array_equal(repeated.log_prob(POINTS), own.log_prob(POINTS))
    np.testing.assert_allclose(jax.jit(lambda d: d.log_prob(POINTS))(own), own.log_prob(POINTS), rtol=1e-10)

    def total(theta, scale):
        pair = rcjax.copulas.Clayton(theta), (library.normal(0.0 * scale, scale), margins[1])
        return library.copula(*pair).log_prob(POINTS).sum()

    theta, scale, h = np.float64(3.0), np.float64(1.1), 1e-6  # of Python's floats tfp makes float32
    slopes = jax.grad(total, (0, 1))(theta, scale)
    differences = [
        (total(theta + h, scale) - total(theta - h, scale)) / 2 / h,
        (total(theta, scale + h) - total(theta, scale - h)) / 2 / h,
    ]
    np.testing.assert_allclose(slopes, differences, rtol=1e-6)


@pytest.mark.thorough
def test_coordinates_without_bounds_cover_the_support(library, margins):
    x = np.array([[0.3, -0.4], [2.0, 1.0]])
    for marginals in (None, margins, (margins[0], library.dist.Exponential(np.float64(2.0)))):
        distribution = library.copula(rcjax.copulas.Gumbel(2.0), marginals)
        forward, log_determinant = library.from_reals(distribution)
        jacobian = np.stack([jax.jacobian(forward)(row) for row in x])
        np.testing.assert_allclose(log_determinant(x) * np.ones(2), np.linalg.slogdet(jacobian)[1], atol=1e-9)
        assert np.isfinite(distribution.log_prob(forward(x))).all()


@pytest.mark.thorough
def test_a_cascade_has_its_models_density_and_no_bijector(library):
    log = rcjax.sample_log(96, seed=0)
    model = rcjax.fit(log.select(log.models[:3]))
    values = model.calibrate(log)
    distribution = library.cascade(model)
    np.testing.assert_array_equal(distribution.log_prob(values), model.log_prob(values))
    draws = np.asarray(library.sample(distribution, 0, (20, 3)))
    assert draws.shape == (20, 3, 3)
    assert np.isfinite(distribution.log_prob(draws)).all()
    with pytest.raises(NotImplementedError, match="these values have point masses"):
        library.from_reals(distribution)

    def total(copulas, marginals):
        own = dataclasses.replace(model, copulas=copulas, marginals=marginals)
        return library.cascade(own).log_prob(values).sum()

    slopes = jax.jit(jax.grad(total, (0, 1)))(model.copulas, model.marginals)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
    h = 1e-6
    step = np.array([h, 0.0, 0.0])
    thetas = [dataclasses.replace(model.copulas, theta=model.copulas.theta + sign * step) for sign in (1, -1)]
    difference = float(total(thetas[0], model.marginals) - total(thetas[1], model.marginals)) / 2 / h
    assert float(slopes[0].theta[0]) == pytest.approx(difference, rel=1e-4)
    assert float(slopes[0].theta[1]) == 0.0  # of a pair that are no neighbours


def test_arguments_that_are_no_marginals_are_refused():
    class Vectors:
        event_shape, log_prob = (2,), None

    for margin, name in ((0.5, "a float"), (Vectors(), "a Vectors")):
        with pytest.raises(TypeError, match=f"a marginal must be a distribution of single numbers, not {name}"):
            Pair.join(rcjax.copulas.Gumbel(2.0), (margin, margin))
    with pytest.raises(TypeError, match="copula must be a Copula"):
        Pair.join("gumbel", None)


@pytest.mark.parametrize(
    ("module", "home", "extra"),
    [("numpyro", "numpyro.distributions", "posterior"), ("tfp", "tensorflow_probability.substrates.jax", "tfp")],
)
def test_a_missing_library_is_named_with_its_extra(monkeypatch, module, home, extra):
    monkeypatch.setitem(sys.modules, home, None)
    monkeypatch.delitem(sys.modules, f"rcjax.model.interop.{module}", raising=False)
    with pytest.raises(ImportError, match=rf"this needs {home.split('.')[0]}: pip install .*\[{extra}\]'"):
        importlib.import_module(f"rcjax.model.interop.{module}")
