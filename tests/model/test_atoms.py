"""Point masses between the ends: marginals with atoms, and the likelihood of pairs of them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from helpers.stated_samples import KINDS, stated_log
from tiers import thorough

import rcjax
from rcjax._core.batching import take_entries
from rcjax.copulas import Clayton, Frank, Gaussian, Gumbel, Independence, Joe, Rotation, StudentT, SurvivalGumbel
from rcjax.model.fitting import fit_near
from rcjax.model.likelihood import SMOOTH, Ranks, cell_likelihoods, log_likelihood
from rcjax.model.marginals import Atoms, Marginal, cramer_von_mises
from rcjax.model.maximum_likelihood import fit_marginal, fit_pair

pytestmark = pytest.mark.usefixtures("float64")


def marginal(values=(0.3, 0.5, 0.8), masses=(0.1, 0.2, 0.15), bottom=0.05, top=0.2, places=4):
    """Between 0.1 and 0.95, the rest a mixture of betas; a place more than there are atoms."""
    rest = places - len(values)
    atoms = Atoms(jnp.array([*values, *[0.95] * rest]), jnp.array([*masses, *[0.0] * rest]))
    ends = map(jnp.asarray, (0.1, 0.95, bottom, top))
    return Marginal(*ends, jnp.array([0.4, 0.6]), jnp.array([2.0, 5.0]), jnp.array([3.0, 1.5]), atoms=atoms)


def nothing_smooth():
    return marginal((0.3, 0.5), (0.4, 0.3), 0.1, 0.2)


U = np.linspace(0.0003, 0.9997, 3001)

distance, likelihood, masses = jax.jit(cramer_von_mises), jax.jit(log_likelihood), jax.jit(Marginal.mass_ranks)


@partial(jax.jit, static_argnums=2)
def draw(marginal, key, shape):
    return marginal.quantile(jax.random.uniform(key, shape))


conditional, conditional_on_v = (
    jax.jit(lambda copula, u, v, name=name: getattr(copula, name)(u, v)) for name in ("conditional", "conditional_on_v")
)


@pytest.mark.parametrize("make", [marginal, nothing_smooth])
def test_the_quantile_is_the_generalised_inverse_of_the_cdf(make):
    own = make()
    q = np.asarray(jax.jit(Marginal.quantile)(own, U))
    at, before = (np.asarray(jax.jit(Marginal.cdf)(own, x)) for x in (q, q - 1e-9))
    assert (np.diff(q) >= 0).all()
    assert (at >= U - 1e-12).all()
    assert (before <= U + 1e-7).all()


@pytest.mark.thorough
def test_the_distance_is_the_integral():
    own = marginal()
    x = np.sort(np.asarray(draw(own, jax.random.key(1), (40,))))
    fine = np.linspace(0, 1, 100_001)[:-1] + 5e-6
    q = np.asarray(jax.jit(Marginal.quantile)(own, fine))
    empirical, cdf = np.searchsorted(x, q + 1e-12, side="right") / len(x), np.asarray(jax.jit(Marginal.cdf)(own, q))
    expected = np.sqrt(np.mean((empirical - cdf) ** 2))
    assert float(cramer_von_mises(own, jnp.asarray(x))) == pytest.approx(expected, abs=1e-4)


def test_atoms_without_answers_add_no_distance():
    x = jnp.linspace(0.1, 0.95, 20)
    few, many = jax.jit(lambda x: [cramer_von_mises(marginal(places=places), x) for places in (3, 6)])(x)
    assert float(few) == pytest.approx(float(many), rel=1e-9)
    assert 0 < few < 0.5


@pytest.mark.thorough
def test_a_fit_counts_the_atoms_and_fits_the_rest():
    own = marginal()
    x = draw(own, jax.random.key(2), (5000,))
    stated = np.array([0.5, 0.3, np.inf, 0.8, 0.1, 0.77])  # in any order, an end and a value that nobody has too
    fitted = jax.jit(fit_marginal)(x, np.ones(5000, bool), stated=stated)
    mass = np.asarray(fitted.atoms.mass)
    np.testing.assert_allclose(fitted.atoms.value, [0.3, 0.5, 0.8, 0.95, 0.95, 0.95])
    for place, value in enumerate((0.3, 0.5, 0.8)):
        assert mass[place] == np.mean(np.asarray(x) == value)
    assert not mass[3:].any()
    assert float(distance(fitted, x)) < 0.01
    repeated = jax.jit(fit_marginal)(x, np.ones(5000, bool), start=fitted)
    np.testing.assert_array_equal(repeated.atoms.mass, mass)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", thorough(KINDS, lambda kind: kind != "stated"))
def test_a_fit_of_few_values_matches_the_empirical_distribution(kind):
    log = stated_log(kind)
    model = rcjax.fit(log)
    phi = np.asarray(model.calibrate(log))
    for j in range(len(log.models)):
        assert float(cramer_von_mises(take_entries(model.marginals, j), phi[:, j])) < 0.01


class TurnedClayton(Rotation, family=Clayton, degrees=90):
    """Not exchangeable."""


COPULAS = [
    Independence(),
    Gumbel(2.5),
    SurvivalGumbel(1.7),
    Clayton(2.5),
    Frank(-6.0),
    Joe(3.0),
    Gaussian(-0.7),
    StudentT(0.6, 4.0),
    TurnedClayton(2.0),
]
#: The default family, one of another formula, and one that is not exchangeable, for what compiles each.
FEW = thorough(COPULAS, lambda copula: not isinstance(copula, Frank | TurnedClayton))


def test_a_table_of_counts_has_the_probabilities_of_scipys_normal():
    """All values of both margins are atoms: cells are rectangles of the bivariate normal distribution."""
    first, second = (np.cumsum(masses) for masses in ((0.1, 0.4, 0.3, 0.2), (0.25, 0.05, 0.7)))
    table = jax.jit(
        lambda c: cell_likelihoods(c, *((jnp.append(0.0, e[:-1]), jnp.asarray(e)) for e in (first, second)))(c)
    )
    normal = scipy.stats.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]])
    x, y = (scipy.stats.norm.ppf(np.append(0.0, edges)).clip(-9, 9) for edges in (first, second))
    cdf = normal.cdf(np.stack(np.meshgrid(x, y, indexing="ij"), -1))
    expected = np.diff(np.diff(cdf, axis=0), axis=1)
    np.testing.assert_allclose(np.exp(table(Gaussian(0.6))), expected, atol=1e-5)
    assert float(np.exp(table(Gaussian(0.6))).sum()) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("copula", FEW, ids=lambda copula: type(copula).__name__)
def test_a_strip_is_the_difference_of_conditional_probabilities(copula):
    start, end = map(np.asarray, masses(marginal()))
    u = np.array([0.06, 0.5, 0.79])
    smooth = Ranks(u, np.full(3, SMOOTH), start, end)
    for place in range(1, 4):
        atom = Ranks(np.full(3, 0.5), np.full(3, place), start, end)
        ahead = np.subtract(*(conditional(copula, u, edge[place]) for edge in (end, start)))
        np.testing.assert_allclose(np.exp(likelihood(copula, smooth, atom)), ahead, rtol=1e-7)
        back = np.subtract(*(conditional_on_v(copula, edge[place], u) for edge in (end, start)))
        np.testing.assert_allclose(np.exp(likelihood(copula, atom, smooth)), back, rtol=1e-7)


def of_few_values(u, count, seed):
    """Ranks of u (n,) on a margin of so many values."""
    masses = np.random.default_rng(seed).dirichlet(np.full(count, 3.0))
    ends = np.append(np.cumsum(masses)[:-1], 1.0)
    starts = np.append(0.0, ends[:-1])
    place = np.searchsorted(ends, u).clip(0, count - 1)
    return Ranks(*map(jnp.asarray, (np.full(len(u), 0.5), place, starts, ends)))


@pytest.mark.thorough
@pytest.mark.parametrize("values", [3, 5, 10])
@pytest.mark.parametrize(("family", "theta"), [(Gumbel, 1.5), (Frank, 4.0)])
def test_the_likelihood_fit_of_few_values_recovers_the_copula(family, theta, values):
    """θ within 5 %, over 200 samples of 300 queries; Kendall's τ-b is off by more than twice its error somewhere."""
    u, v = map(np.asarray, family(theta).sample(jax.random.key(values), (200, 300)))
    pairs = [[of_few_values(x, values, seed) for x, seed in ((u[r], 1), (v[r], 2))] for r in range(200)]
    first, second = (jax.tree.map(lambda *x: jnp.stack(x), *column) for column in zip(*pairs, strict=True))
    fits = jax.jit(jax.vmap(lambda a, b: fit_pair(family, a, b, jnp.ones(300))))(first, second)
    thetas = np.asarray(fits.copula.theta)
    assert thetas.mean() == pytest.approx(theta, rel=0.05)
    # The standard errors are those of the spread.
    assert np.median(fits.standard_errors["theta"]) == pytest.approx(thetas.std(), rel=0.25)


@pytest.mark.thorough
def test_pairs_of_few_values_are_fitted_by_likelihood():
    log = stated_log("stated")
    by_tau, by_likelihood = rcjax.fit(log), rcjax.fit(log, method="likelihood")
    np.testing.assert_allclose(by_tau.copulas.theta, by_likelihood.copulas.theta, rtol=1e-9)


@pytest.mark.thorough
def test_bootstrap_refits_keep_the_atoms():
    """Queries that are drawn twice are no values that a model states."""
    plain = rcjax.sample_log(200, seed=0)
    twice = plain.take(np.repeat(np.arange(100), 2))
    assert rcjax.fit(twice).marginals.atoms is None
    assert rcjax.fit(plain.take(np.random.default_rng(0).integers(0, 200, 200))).marginals.atoms is None
    fitted = fit_near(rcjax.fit(plain), twice.logprob, twice.correct, twice.answered, twice.cost)
    assert fitted.marginals.atoms is None
    log = stated_log("votes")
    model = rcjax.fit(log)
    few = log.take(np.arange(12))
    fitted = fit_near(model, few.logprob, few.correct, few.answered, few.cost)
    assert fitted.marginals.atoms.mass.shape == model.marginals.atoms.mass.shape
    total = np.asarray(fitted.marginals.atoms.mass.sum(-1) + fitted.marginals.mass_lowest)
    np.testing.assert_allclose(total + np.asarray(fitted.marginals.mass_highest), 1.0, atol=1e-9)
