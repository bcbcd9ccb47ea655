"""The laws of every family, and 400-digit oracles."""

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rcjax.copulas import Copula, Gumbel, Independence, param

pytestmark = pytest.mark.usefixtures("float64")


class FGM(Copula):
    """A family as a user would write it: a parameter and a cdf."""

    theta: jax.Array = param(0.5, support=(-1.0, 1.0))

    def cdf(self, u, v):
        return u * v * (1 + self.theta * (1 - u) * (1 - v))


#: One batch of copulas per family, and the τ of each.
FAMILIES = {
    "gumbel": (Gumbel, [1.0, 1.5, 4.0, 20.0, 50.0], lambda theta: 1 - 1 / theta),
    "independence": (Independence, [1.0], lambda _: 0.0),
    "fgm": (FGM, [-1.0, 0.0, 0.9], lambda theta: 2 * theta / 9),
}
GRID = np.array([1e-12, 1e-6, 0.01, 0.2, 0.5, 0.8, 0.97, 1 - 1e-6])
U, V = (z.ravel() for z in np.meshgrid(GRID, GRID, indexing="ij"))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    cls, values, tau = FAMILIES[request.param]
    return cls(jnp.asarray(values)), np.array([tau(theta) for theta in values])


def batched(method):
    return jax.jit(jax.vmap(method, in_axes=(0, None, None)))


def test_cdf_has_uniform_margins_and_frechets_bounds(family):
    copulas, _ = family
    one, none = np.ones_like(GRID), np.zeros_like(GRID)
    cdf = batched(type(copulas).cdf)
    for first, second, expected in (
        (GRID, one, GRID),
        (one, GRID, GRID),
        (GRID, none, none),
        (none, GRID, none),
    ):
        for row in cdf(copulas, first, second):
            np.testing.assert_allclose(row, expected, atol=1e-12)
    inside = np.asarray(cdf(copulas, U, V))
    assert np.all(inside <= np.minimum(U, V) + 1e-14)
    assert np.all(inside >= np.maximum(U + V - 1, 0) - 1e-14)


def test_conditional_is_a_distribution_and_the_slope_of_the_cdf(family):
    copulas, _ = family
    h = np.asarray(batched(type(copulas).conditional)(copulas, U, V)).reshape(-1, len(GRID), len(GRID))
    assert np.all((h >= 0) & (h <= 1))
    assert np.all(np.diff(h, axis=-1) >= -1e-15)
    u, v = (z.ravel() for z in np.meshgrid(GRID[2:-1], GRID[2:-1]))
    cdf, step = batched(type(copulas).cdf), 1e-6
    slope = (cdf(copulas, u + step, v) - cdf(copulas, u - step, v)) / (2 * step)
    # θ = 50 bends within 1/50 of the diagonal: third derivatives of 1e5 times step² / 6.
    np.testing.assert_allclose(batched(type(copulas).conditional)(copulas, u, v), slope, atol=1e-6)


def test_inverse_conditional_inverts(family):
    copulas, _ = family
    u, p = (z.ravel() for z in np.meshgrid(GRID[1:], [1e-6, 0.01, 0.3, 0.5, 0.9, 0.999]))
    v = batched(type(copulas).inverse_conditional)(copulas, u, p)
    assert np.all((v >= 0) & (v <= 1))
    found = jax.jit(jax.vmap(type(copulas).conditional, in_axes=(0, None, 0)))(copulas, u, v)
    # A rounding of v moves h by eps times the density, which reaches 1e7 in the corners for θ = 50.
    slack = 1e-12 + 8 * np.finfo(float).eps * np.exp(
        jax.jit(jax.vmap(type(copulas).log_density, in_axes=(0, None, 0)))(copulas, u, jnp.minimum(v, 1 - 1e-16))
    )
    assert np.all(np.abs(found - p) <= slack)


def test_density_is_the_slope_of_the_conditional(family):
    copulas, _ = family
    u, v = (z.ravel() for z in np.meshgrid(GRID, GRID))
    pointwise = jax.vmap(jax.grad(type(copulas).conditional, argnums=2), in_axes=(None, 0, 0))
    slope = jax.jit(jax.vmap(pointwise, in_axes=(0, None, None)))(copulas, u, v)
    density = np.exp(batched(type(copulas).log_density)(copulas, u, v))
    np.testing.assert_allclose(density, slope, rtol=1e-8, atol=1e-290)


def test_samples_have_the_tau(family):
    copulas, expected = family
    np.testing.assert_allclose(jax.vmap(type(copulas).tau)(copulas), expected, atol=2e-3)
    n = 4000
    keys = jax.random.split(jax.random.key(3), len(expected))
    u, v = jax.jit(jax.vmap(lambda copula, key: copula.sample(key, (n,))))(copulas, keys)
    for j, tau in enumerate(expected):
        # Four standard errors; that of Kendall's τ is at most √(2 (1 − τ²) / n).
        error = np.sqrt(2 * (1 - tau**2) / n) + 1e-4
        assert abs(scipy.stats.kendalltau(u[j], v[j]).statistic - tau) <= 4 * error
        assert scipy.stats.kstest(u[j], "uniform").pvalue > 1e-4
        assert scipy.stats.kstest(v[j], "uniform").pvalue > 1e-4


def test_copulas_are_pytrees(family):
    copulas, _ = family
    leaves, structure = jax.tree.flatten(copulas)
    assert len(leaves) == 1
    again = jax.tree.unflatten(structure, leaves)
    assert type(again) is type(copulas)
    assert jax.jit(lambda tree: tree)(copulas) is not copulas
    whole = batched(type(copulas).cdf)(copulas, U, V)
    single = jax.tree.map(lambda leaf: leaf[0], copulas)
    np.testing.assert_array_equal(whole[0], jax.jit(type(copulas).cdf)(single, U, V))


def test_gradients_in_the_parameters_are_finite_in_the_corners(family):
    copulas, _ = family
    corners = np.array([0.0, 1e-300, 1e-12, 0.5, 1 - 1e-12, 1.0])
    u, v = (z.ravel() for z in np.meshgrid(corners, corners))

    def every(copula, u, v):
        return copula.cdf(u, v), copula.conditional(u, v)

    slopes = jax.jit(jax.vmap(jax.vmap(jax.jacrev(every), in_axes=(None, 0, 0)), in_axes=(0, None, None)))(
        copulas, u, v
    )
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(slopes))


def oracles(folder, name):
    with open(folder / "copula_oracles.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["family"] == name]
    assert len(rows) >= 12
    columns = ("theta", "u", "v", "cdf", "h", "log_density")
    return tuple(np.array([float(row[column]) for row in rows]) for column in columns)


def compare(cls, rows, tolerance):
    theta, u, v, cdf, h, log_density = rows
    copulas = cls(jnp.asarray(theta))
    smallest = np.finfo(jax.tree.leaves(copulas)[0].dtype).tiny
    for method, oracle in ((cls.cdf, cdf), (cls.conditional, h)):
        ours = np.asarray(jax.jit(jax.vmap(method))(copulas, u, v), float)
        held = oracle > smallest
        error = np.abs(np.log(ours[held]) - np.log(oracle[held]))
        assert np.all(error <= tolerance * np.maximum(1, np.abs(np.log(oracle[held]))))
    ours = np.asarray(jax.jit(jax.vmap(cls.log_density))(copulas, u, v), float)
    assert np.all(np.abs(ours - log_density) <= tolerance * np.maximum(1, np.abs(log_density)))


@pytest.mark.parametrize(("name", "cls"), [("gumbel", Gumbel), ("independence", Independence)])
def test_oracles(shared_reference, name, cls):
    compare(cls, oracles(shared_reference, name), 1e-10)


@pytest.mark.parametrize(("name", "cls"), [("gumbel", Gumbel), ("independence", Independence)])
def test_oracles_in_float32(shared_reference, float32, name, cls):
    rows = oracles(shared_reference, name)
    # Only points that float32 can write: 1 − 1e-12 rounds to 1, another point.
    held = np.all([np.abs(z - z.astype(np.float32)) <= 1e-7 * np.minimum(z, 1 - z) for z in rows[1:3]], axis=0)
    assert held.sum() >= 6
    compare(cls, tuple(column[held] for column in rows), 1e-4)


def test_from_tau():
    taus = jnp.array([-1.0, -0.3, 0.0, 0.5, 0.75, 0.98, 1.0])
    np.testing.assert_allclose(jax.vmap(Gumbel.from_tau)(taus).theta, [1, 1, 1, 2, 4, 50, 50], rtol=1e-12)
    assert np.array_equal(jax.vmap(Independence.from_tau)(taus).tau(), np.zeros(7))
    lower, upper = Gumbel(jnp.array([1.0, 2.0])).tail_dependence()
    assert np.array_equal(lower, [0, 0])
    np.testing.assert_allclose(upper, [0, 2 - np.sqrt(2)], atol=1e-15)
    with pytest.raises(TypeError, match="FGM defines no from_tau"):
        FGM.from_tau(0.1)


def test_the_base_class_says_what_is_missing():
    class Empty(Copula):
        pass

    with pytest.raises(TypeError, match="Empty defines no cdf"):
        Empty().cdf(0.5, 0.5)
    with pytest.raises(ValueError, match="outside the support"):
        param(2.0, support=(0.0, 1.0))
    assert FGM.supports == {"theta": (-1.0, 1.0)}
    assert Gumbel.supports == {"theta": (1.0, np.inf)}
