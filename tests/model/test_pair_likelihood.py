"""The nine cells of the mixed likelihood, and ranks without a model of the margin."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.own_families import FGM
from tiers import slow_to_compile, thorough

from rcjax.copulas import Clayton, Frank, Gaussian, Gumbel, Independence, Joe, Rotation, StudentT, SurvivalGumbel
from rcjax.model import likelihood
from rcjax.model.goodness_of_fit.dependence import present_counts, ranks_of_values
from rcjax.model.likelihood import SMOOTH, Ranks, weighted_sum

pytestmark = pytest.mark.usefixtures("float64")


class TurnedClayton(Rotation, family=Clayton, degrees=90):
    """Not exchangeable: both conditionals are needed."""


COPULAS = [
    Independence(),
    Gumbel(4.0),
    SurvivalGumbel(1.7),
    Clayton(2.5),
    Frank(-6.0),
    Joe(3.0),
    Gaussian(-0.7),
    StudentT(0.6, 4.0),
    TurnedClayton(2.0),
    FGM(0.8),
]
#: By one of them, one that is not exchangeable, and one of several, for what compiles a derivative of each.
SLOPES = pytest.mark.parametrize(
    "copula",
    thorough(COPULAS, lambda copula: not isinstance(copula, Gumbel)),
    ids=lambda copula: type(copula).__name__,
)
MASSES = {"first": (0.2, 0.3), "second": (0.15, 0.4)}  # (w_min, w_max)
PLACES = LOWEST, SMOOTH, HIGHEST = 0, SMOOTH, 1

#: One programme each, where every operation would be one.
log_likelihood = jax.jit(likelihood.log_likelihood)
cdf = jax.jit(lambda copula, u, v: copula.cdf(u, v))


@pytest.fixture(params=thorough(COPULAS, slow_to_compile), ids=lambda copula: type(copula).__name__)
def copula(request):
    return request.param


def placed(u, name, side=None):
    """Ranks of places u under a margin with the masses of `name`."""
    low, high = MASSES[name][0], 1 - MASSES[name][1]
    side = np.where(u <= low, LOWEST, np.where(u >= high, HIGHEST, SMOOTH)) if side is None else side
    return Ranks(jnp.asarray(u, float), jnp.asarray(side), jnp.array([0.0, high]), jnp.array([low, 1.0]))


def cell(name, side, u, width):
    """[low, high] of the u-scale that an observation stands for: its mass, or a cell of some width around its place."""
    low, high = MASSES[name][0], 1 - MASSES[name][1]
    return {LOWEST: (0.0, low), HIGHEST: (high, 1.0), SMOOTH: (u - width / 2, u + width / 2)}[side]


def test_each_cell_is_a_volume_of_the_cdf(copula):
    # Smooth coordinates stand for a cell of width 1e-4, whose volume over its size is the density up to 1e-8 of its
    # curvature; rounding of the four corners adds 1e-16 over the size.
    u, v, width = 0.41, 0.37, 1e-4
    first, second = (side.ravel() for side in np.meshgrid(PLACES, PLACES))
    a, b = np.array([cell("first", side, u, width) for side in first]).T
    c, d = np.array([cell("second", side, v, width) for side in second]).T
    volume = cdf(copula, b, d) - cdf(copula, a, d) - cdf(copula, b, c) + cdf(copula, a, c)
    size = np.where(first == SMOOTH, width, 1.0) * np.where(second == SMOOTH, width, 1.0)
    ours = log_likelihood(copula, placed(np.full(9, u), "first", first), placed(np.full(9, v), "second", second))
    np.testing.assert_allclose(np.exp(ours), volume / size, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "copula",
    [Gumbel(2.0), pytest.param(TurnedClayton(2.0), marks=pytest.mark.thorough)],
    ids=lambda copula: type(copula).__name__,
)
def test_the_sum_is_that_of_the_observations(copula):
    # In all nine cells, some twice, and one that does not count, whose place is no number.
    side_u, side_v = (np.append(side.ravel(), SMOOTH) for side in np.meshgrid(PLACES, PLACES))
    u, v = np.append(np.linspace(0.25, 0.65, 9), np.nan), np.append(np.linspace(0.55, 0.2, 9), np.nan)
    weights = np.array([1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 0.5, 1.0, 2.0, 0.0])
    first, second = placed(u, "first", side_u), placed(v, "second", side_v)
    likelihoods = log_likelihood(copula, first, second)[:9]
    total = jax.jit(lambda copula: weighted_sum(copula, first, second, jnp.asarray(weights))(copula))
    np.testing.assert_allclose(total(copula), weights[:9] @ likelihoods, rtol=1e-12)
    slopes = jax.jacfwd(total)(copula)  # as fits take them
    assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(slopes))


@pytest.mark.thorough
@SLOPES
def test_gradients_are_those_of_differences(copula):
    u, v = np.array([0.1, 0.1, 0.4, 0.5, 0.8, 0.9, 0.3]), np.array([0.1, 0.3, 0.05, 0.4, 0.5, 0.9, 0.95])

    def total(scale, low):
        bent = jax.tree.map(lambda leaf: leaf if isinstance(leaf, int) else leaf * scale, copula)
        first, second = placed(u, "first"), placed(v, "second")
        first = dataclasses.replace(first, end=first.end * jnp.array([low, 1.0]))
        return log_likelihood(bent, first, second).sum()

    total = jax.jit(total)
    point = (jnp.asarray(1.0), jnp.asarray(1.0))
    gradient = jax.jit(jax.grad(total, argnums=(0, 1)))(*point)
    step = 1e-5
    for place, ours in enumerate(gradient):
        ahead, behind = ([p + sign * step * (i == place) for i, p in enumerate(point)] for sign in (1, -1))
        np.testing.assert_allclose(ours, (total(*ahead) - total(*behind)) / (2 * step), rtol=1e-5, atol=1e-6)


def test_ranks_without_masses_have_the_density_as_likelihood():
    u, v = np.array([0.2, 0.9]), np.array([0.3, 0.7])
    full = [Ranks(jnp.asarray(z)) for z in (u, v)]
    np.testing.assert_allclose(log_likelihood(Gumbel(2.0), *full), Gumbel(2.0).log_density(u, v), rtol=1e-14)
    with pytest.raises(ValueError, match="one margin has point masses"):
        log_likelihood(Gumbel(2.0), full[0], placed(v, "second"))


def mid_ranks(values: jax.Array) -> Ranks:
    rows = values, jnp.ones(len(values), bool)
    return ranks_of_values(*rows, present_counts(*rows), None)


@pytest.mark.thorough
def test_ranks_of_values_are_mid_ranks_and_ties_at_the_ends_are_masses():
    ranked = mid_ranks(jnp.array([1.0, 1.0, 2.0, 3.0, 3.0, 5.0, 5.0, 5.0]))
    assert ranked.mass.tolist() == [0, 0, -1, -1, -1, 1, 1, 1]
    np.testing.assert_allclose(ranked.u[2:5], np.array([3, 4.5, 4.5]) / 9)
    np.testing.assert_allclose(ranked.masses, [[0, 1 - 3 / 9], [2 / 9, 1]])
    lone = mid_ranks(jnp.array([3.0, 1.0, 2.0]))
    assert lone.mass.tolist() == [SMOOTH] * 3
    np.testing.assert_allclose(lone.u, np.array([3, 1, 2]) / 4)
    assert mid_ranks(jnp.ones(4)).mass.tolist() == [0] * 4  # all ties: one mass
