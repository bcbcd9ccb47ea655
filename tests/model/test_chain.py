"""A model's chain of confidences: its density against SciPy and quadrature, and its draws."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.submodels import of_models
from scipy import stats

import rcjax
from rcjax.model.marginals import Atoms, Marginal

pytestmark = pytest.mark.usefixtures("float64")

RHO, N = 0.6, 20_000
#: Two models: one of masses at both ends, one of an atom between them too.
MASSES = {0: [(0.1, 0.2), (0.9, 0.1)], 1: [(0.2, 0.1), (0.6, 0.25), (1.0, 0.2)]}
ENDS, SHAPES, PROPORTION = [(0.1, 0.9), (0.2, 1.0)], ([2.0, 5.0], [3.0, 1.5]), [0.4, 0.6]


@pytest.fixture(scope="module")
def model(float64):
    """Joined by a Gaussian copula, of which SciPy knows every probability."""
    lowest, highest = np.array(ENDS).T
    marginals = Marginal(
        *(lowest, highest, np.array([0.2, 0.1]), np.array([0.1, 0.2])),
        *(np.tile(row, (2, 1)) for row in (PROPORTION, *SHAPES)),
        atoms=Atoms(np.array([[0.9], [0.6]]), np.array([[0.0], [0.25]])),
    )
    demo = of_models(rcjax.demo_model(), np.arange(2))
    copulas = rcjax.copulas.Gaussian(np.array([RHO]))
    return jax.tree.map(jnp.asarray, dataclasses.replace(demo, marginals=marginals, copulas=copulas))


@pytest.fixture(scope="module")
def draws(model):
    return np.asarray(model.sample(jax.random.key(0), (N,)))


def margin(j, value):
    """(where the ranks of what ties with a value start and end, the density there or 1 in a mass), by SciPy."""
    low, high = ENDS[j]
    laws = [stats.beta(a, b, low, high - low) for a, b in zip(*SHAPES, strict=True)]
    smooth = 1 - sum(mass for _, mass in MASSES[j])
    start = sum(mass for at, mass in MASSES[j] if at < value)
    start += smooth * sum(p * law.cdf(value) for p, law in zip(PROPORTION, laws, strict=True))
    mass = dict(MASSES[j]).get(value)
    if mass is not None:
        return start, start + mass, None
    return start, start, smooth * sum(p * law.pdf(value) for p, law in zip(PROPORTION, laws, strict=True))


def reference(first, second):
    """The density of a pair, by SciPy's normal distributions: smooth with smooth, in strips, in cells of masses."""
    (a, b, f), (c, d, g) = margin(0, first), margin(1, second)
    (x0, x1), (y0, y1) = stats.norm.ppf([a, b]), stats.norm.ppf([c, d])
    spread = np.sqrt(1 - RHO**2)
    if f is not None and g is not None:
        joint = stats.multivariate_normal([0, 0], [[1, RHO], [RHO, 1]]).pdf([x0, y0])
        return f * g * joint / stats.norm.pdf(x0) / stats.norm.pdf(y0)
    if f is not None:
        return f * np.diff(stats.norm.cdf((np.array([y0, y1]) - RHO * x0) / spread))[0]
    if g is not None:
        return g * np.diff(stats.norm.cdf((np.array([x0, x1]) - RHO * y0) / spread))[0]
    law = stats.multivariate_normal([0, 0], [[1, RHO], [RHO, 1]], abseps=1e-12, releps=1e-12)
    return law.cdf(np.clip([x1, y1], -38, 38), lower_limit=np.clip([x0, y0], -38, 38))


def line(j, count=80):
    """(points, weights) of one model: Gauss–Legendre nodes of the smooth part, and the masses with weight one."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    (low, high), at = ENDS[j], [value for value, _ in MASSES[j]]
    points = np.concatenate([(low + high) / 2 + nodes * (high - low) / 2, at])
    return points, np.concatenate([weights * (high - low) / 2, np.ones(len(at))])


def grid(count=80):
    """(points (S, 2), weights (S,)) of both."""
    (x, by_x), (y, by_y) = line(0, count), line(1, count)
    return np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2), np.outer(by_x, by_y).ravel()


@pytest.mark.thorough
def test_log_densities_match_scipy_and_integrate_to_one(model):
    values = np.array([[x, y] for x in (0.1, 0.43, 0.8, 0.9) for y in (0.2, 0.43, 0.6, 0.8, 1.0)])
    expected = [reference(*value) for value in values]
    np.testing.assert_allclose(np.exp(model.log_prob(values)), expected, rtol=1e-7)
    points, weights = grid()
    assert weights @ np.exp(model.log_prob(points)) == pytest.approx(1.0, abs=2e-4)
    # A value outside, and none at all.
    odd = model.log_prob(np.array([[0.05, 0.5], [0.5, 1.01], [np.nan, 0.5]]))
    assert odd[:2].tolist() == [-np.inf, -np.inf]
    assert np.isnan(odd[2])
    with pytest.raises(ValueError, match=r"value has shape \(3,\); its last axis must be the 2 models"):
        model.log_prob(np.zeros(3))


@pytest.mark.thorough
def test_draws_lie_in_masses_as_often_as_the_density_says(model, draws):
    cells = np.array([[x, y] for x, _ in MASSES[0] for y, _ in MASSES[1]])
    for cell, share in zip(cells, np.exp(model.log_prob(cells)), strict=True):
        assert (draws == cell).all(1).mean() == pytest.approx(share, abs=4.5 * np.sqrt(share / N))


@pytest.mark.thorough
def test_clip_counts_values_beyond_an_end_with_the_mass_of_the_end(model):
    inside, outside = np.array([[0.1, 0.5], [0.9, 1.0]]), np.array([[0.05, 0.5], [0.95, 1.2]])
    assert (np.asarray(model.log_prob(outside)) == -np.inf).all()
    np.testing.assert_array_equal(model.log_prob(outside, clip=True), model.log_prob(inside))
    np.testing.assert_array_equal(model.log_prob(inside, clip=True), model.log_prob(inside))
    massless = dataclasses.replace(model.marginals, mass_lowest=jnp.zeros(2))
    bare = dataclasses.replace(model, marginals=massless)
    assert np.asarray(bare.log_prob(outside, clip=True) == -np.inf).tolist() == [True, False]
    assert np.isnan(model.log_prob(np.array([np.nan, 0.5]), clip=True))


def test_a_chain_of_three_is_made_of_its_pairs():
    """p(1, 2, 3) · p(2) = p(1, 2) · p(2, 3), in masses and between; and draws lie in masses as often as that says."""
    model = of_models(rcjax.demo_model(), np.arange(3))
    draws = np.asarray(model.sample(jax.random.key(0), (N,)))
    ends = np.stack([model.marginals.lowest, model.marginals.highest])
    cells = np.stack([ends[np.array(place), np.arange(3)] for place in np.ndindex(2, 2, 2)])
    values = np.concatenate([draws[:100], cells])
    density = np.asarray(model.log_prob(values))

    def of(*places):
        return np.asarray(of_models(model, np.array(places)).log_prob(values[:, places]))

    np.testing.assert_allclose(density + of(1), of(0, 1) + of(1, 2), rtol=1e-9, atol=1e-9)
    expected = np.append(np.exp(density[100:]), 0.0) * N
    expected[-1] = N - expected.sum()
    counts = np.array([(draws == cell).all(1).sum() for cell in cells])
    counts, often = np.append(counts, N - counts.sum()), expected >= 5
    statistic = ((counts - expected)[often] ** 2 / expected[often]).sum()
    assert stats.chi2(often.sum() - 1).sf(statistic) > 1e-4


@pytest.mark.thorough
def test_stacked_models_agree_under_vmap_and_as_a_batch(model):
    other = dataclasses.replace(model, copulas=rcjax.copulas.Gaussian(jnp.array([-0.3])))
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), model, other)
    values = model.sample(jax.random.key(0), (6,))
    apart = np.stack([m.log_prob(values) for m in (model, other)])
    np.testing.assert_allclose(jax.vmap(lambda m: m.log_prob(values))(both), apart, rtol=1e-12)
    np.testing.assert_allclose(both.log_prob(values[:, None]).T, apart, rtol=1e-12)
    keys = jax.random.split(jax.random.key(1))
    drawn = jax.jit(jax.vmap(lambda m, key: m.sample(key, (3,))))(both, keys)
    np.testing.assert_allclose(drawn[1], other.sample(keys[1], (3,)), rtol=1e-9)
    assert both.sample(keys[0], (4,)).shape == (4, 2, 2)
