"""A copula with two marginals as a distribution of NumPyro and of TensorFlow Probability."""

import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.distributions.copula.api as references
from interop_libraries import NAMES, Library
from scipy import stats

import rcjax
from rcjax.interop import pair
from rcjax.model import chain
from rcjax.model.marginals import Atoms, Marginal

pytestmark = pytest.mark.usefixtures("float64")

REFERENCES = {
    rcjax.copulas.Gumbel(2.5): references.GumbelCopula(2.5),
    rcjax.copulas.Clayton(3.0): references.ClaytonCopula(3.0),
    rcjax.copulas.Frank(4.0): references.FrankCopula(4.0),
    rcjax.copulas.Gaussian(-0.6): references.GaussianCopula(-0.6),
}
POINTS = np.random.default_rng(0).normal(size=(40, 2)) * [1.0, 2.0] + [0.0, 1.0]
MASSES = Marginal(0.1, 0.9, 0.2, 0.3, np.array([0.4, 0.6]), np.array([2.0, 5.0]), np.array([3.0, 1.5]))
ATOMS = Marginal(
    *(0.2, 1.0, 0.1, 0.15, np.array([0.5, 0.5]), np.array([2.0, 5.0]), np.array([3.0, 1.5])),
    Atoms(np.array([0.5, 0.7, 1.0]), np.array([0.25, 0.2, 0.0])),
)


@pytest.fixture(scope="module", params=NAMES)
def library(request):
    return Library(request.param)


@pytest.fixture(scope="module")
def margins(library):
    wide = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield library.normal(np.float64(0.0), np.float64(1.0)), library.normal(np.float64(1.0), np.float64(2.0))
    jax.config.update("jax_enable_x64", wide)


def test_densities_are_those_of_scipy_and_statsmodels(library, margins):
    normal = library.ours.CopulaDistribution(rcjax.copulas.Gaussian(0.6), margins)
    expected = stats.multivariate_normal([0, 1], [[1, 1.2], [1.2, 4]]).logpdf(POINTS)
    np.testing.assert_allclose(normal.log_prob(POINTS), expected, rtol=1e-10)
    student = library.student_t(np.float64(5.0))
    joint = library.ours.CopulaDistribution(rcjax.copulas.StudentT(0.4, 5.0), (student, student))
    expected = stats.multivariate_t([0, 0], [[1, 0.4], [0.4, 1]], df=5).logpdf(POINTS)
    np.testing.assert_allclose(joint.log_prob(POINTS), expected, rtol=1e-6)
    for copula, reference in REFERENCES.items():
        ours = library.ours.CopulaDistribution(copula, margins)
        theirs = references.CopulaDistribution(reference, [stats.norm(0, 1), stats.norm(1, 2)])
        np.testing.assert_allclose(ours.log_prob(POINTS), theirs.logpdf(POINTS), rtol=1e-8, err_msg=str(copula))
        # As well as the float type resolves ranks.
        far = np.array([[6.0, 13.0], [-6.0, -11.0]])
        np.testing.assert_allclose(
            normal.log_prob(far), stats.multivariate_normal([0, 1], [[1, 1.2], [1.2, 4]]).logpdf(far), rtol=1e-5
        )


def test_a_bare_copula_is_a_distribution_of_ranks(library):
    ranks = library.ours.CopulaDistribution(rcjax.copulas.Frank(4.0))
    inside = np.array([[0.2, 0.7], [0.9, 0.95]])
    expected = np.log(REFERENCES[rcjax.copulas.Frank(4.0)].pdf(inside))
    np.testing.assert_allclose(ranks.log_prob(inside), expected, rtol=1e-8)
    np.testing.assert_array_equal(ranks.log_prob(np.array([[-0.1, 0.5], [0.5, 1.1]])), [-np.inf, -np.inf])
    assert np.isnan(chain.log_prob(pair(rcjax.copulas.Frank(4.0), None), np.array([np.nan, 0.5])))


@pytest.mark.thorough
def test_shapes_batches_and_draws(library, margins):
    theta = jnp.array([1.0, 2.0, 4.0])
    batch = library.ours.CopulaDistribution(rcjax.copulas.Gumbel(theta), margins)
    assert (tuple(batch.batch_shape), tuple(batch.event_shape)) == ((3,), (2,))
    draws = np.asarray(library.sample(batch, 0, (5, 400)))
    assert draws.shape == (5, 400, 3, 2)
    taus = [stats.kendalltau(*draws[..., i, :].reshape(-1, 2).T).statistic for i in range(3)]
    np.testing.assert_allclose(taus, 1 - 1 / theta, atol=0.05)
    for column, law in enumerate((stats.norm(0, 1), stats.norm(1, 2))):
        assert stats.kstest(draws[:, :, 1, column].ravel(), law.cdf).pvalue > 1e-3
    alone = [library.ours.CopulaDistribution(rcjax.copulas.Gumbel(float(t)), margins).log_prob(POINTS) for t in theta]
    np.testing.assert_allclose(batch.log_prob(POINTS[:, None]), np.stack(alone, 1), rtol=1e-10)


@pytest.mark.thorough
def test_a_distribution_is_a_pytree_with_gradients(library, margins):
    own = library.ours.CopulaDistribution(rcjax.copulas.Clayton(3.0), margins)
    leaves, structure = jax.tree.flatten(own)
    again = jax.tree.unflatten(structure, leaves)
    np.testing.assert_array_equal(again.log_prob(POINTS), own.log_prob(POINTS))
    np.testing.assert_allclose(jax.jit(lambda d: d.log_prob(POINTS))(own), own.log_prob(POINTS), rtol=1e-10)

    def total(theta, scale):
        pair = rcjax.copulas.Clayton(theta), (library.normal(0.0 * scale, scale), margins[1])
        return library.ours.CopulaDistribution(*pair).log_prob(POINTS).sum()

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
    smooth = Marginal(0.1, 0.9, 0.0, 0.0, jnp.array([0.4, 0.6]), jnp.array([2.0, 5.0]), jnp.array([3.0, 1.5]))
    for marginals in (None, margins, (margins[0], smooth)):
        distribution = library.ours.CopulaDistribution(rcjax.copulas.Gumbel(2.0), marginals)
        forward, log_determinant = library.from_reals(distribution)
        jacobian = np.stack([jax.jacobian(forward)(row) for row in x])
        np.testing.assert_allclose(log_determinant(x) * np.ones(2), np.linalg.slogdet(jacobian)[1], atol=1e-9)
        assert np.isfinite(distribution.log_prob(forward(x))).all()


def cell(copula, u, v):
    """P(U in (u0, u1], V in (v0, v1]), by the reference's cdf."""
    corners = [(u[i], v[j], (-1) ** (i + j)) for i in (0, 1) for j in (0, 1)]
    return sum(
        s * (copula.cdf([a, b]) if 0 < a < 1 and 0 < b < 1 else min(a, 1) * b if a == 1 or b == 1 else 0)
        for a, b, s in corners
    )


@pytest.mark.thorough
def test_masses_and_the_density_between_sum_to_one():
    nodes, weights = np.polynomial.legendre.leggauss(80)
    joint = pair(rcjax.copulas.Gumbel(2.5), (MASSES, ATOMS))
    lines = []
    for m in (MASSES, ATOMS):
        x = (m.lowest + m.highest) / 2 + nodes * (m.highest - m.lowest) / 2
        at = [m.lowest, m.highest, *([] if m.atoms is None else (0.5, 0.7))]
        lengths = weights * (m.highest - m.lowest) / 2
        lines.append((np.concatenate([x, at]), np.concatenate([lengths, np.ones(len(at))])))
    (x, by_x), (y, by_y) = lines
    density = np.exp(chain.log_prob(joint, np.stack(np.meshgrid(x, y, indexing="ij"), -1)))
    assert by_x @ density @ by_y == pytest.approx(1.0, abs=2e-4)
    # A value between masses and outside the support, and a mass of one beside a distribution of a library.
    assert np.asarray(chain.log_prob(joint, np.array([[0.05, 0.5], [0.5, 1.01]]))).tolist() == [-np.inf, -np.inf]


def test_what_is_no_marginal_is_refused():
    class Vectors:
        batch_shape, event_shape, cdf, log_prob = (), (2,), None, None

    for marginals, kind, message in (
        ((MASSES,), TypeError, "marginals must be a pair of distributions or None, not a tuple"),
        (MASSES, TypeError, "a pair of distributions"),
        ((MASSES, 0.5), TypeError, "a marginal must be a distribution or a rcjax Marginal, not a float"),
        ((MASSES, Vectors()), ValueError, r"event shape \(2,\); it must be of single numbers"),
    ):
        with pytest.raises(kind, match=message):
            pair(rcjax.copulas.Gumbel(2.0), marginals)
    with pytest.raises(TypeError, match="copula must be a Copula"):
        pair("gumbel", None)
    with pytest.raises(ValueError, match=r"value has shape \(3,\); its last axis must be the 2 margins"):
        chain.log_prob(pair(rcjax.copulas.Gumbel(2.0), None), np.zeros(3))


@pytest.mark.parametrize(
    ("module", "home", "extra"),
    [("numpyro", "numpyro.distributions", "posterior"), ("tfp", "tensorflow_probability.substrates.jax", "tfp")],
)
def test_a_missing_library_is_named_with_its_extra(monkeypatch, module, home, extra):
    monkeypatch.setitem(sys.modules, home, None)
    monkeypatch.delitem(sys.modules, f"rcjax.interop.{module}", raising=False)
    with pytest.raises(ImportError, match=rf"this needs {home.split('.')[0]}: pip install .*\[{extra}\]'"):
        importlib.import_module(f"rcjax.interop.{module}")
