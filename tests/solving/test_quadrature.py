"""Grids in u-space: weights, cuts, interpolation, cell means, and the kernels between two of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cascade_references import random_models

from rcjax._core.batching import take_entries
from rcjax.copulas import Gumbel
from rcjax.model import Marginal
from rcjax.solving.quadrature import ORDER, QuadratureGrid, build_grid, transition_kernel

pytestmark = pytest.mark.usefixtures("float64")


below_all = jax.jit(jax.vmap(QuadratureGrid.weights_below, in_axes=(None, 0)))


def degenerate() -> Marginal:
    """No masses; nothing but masses; one distinct value; one spike beside a mass; a tiny range."""
    rows = [
        (0.1, 0.9, 0.0, 0.0, (0.5, 0.5), (1.0, 1.0), (1.0, 1.0)),
        (0.1, 0.9, 0.4, 0.6, (0.5, 0.5), (1.0, 1.0), (1.0, 1.0)),
        (0.7, 0.7, 0.0, 1.0, (0.5, 0.5), (1.0, 1.0), (1.0, 1.0)),
        (0.2, 0.9, 0.3, 0.0, (1e-9, 1.0), (3e3, 7e3), (7e3, 3e3)),
        (0.5, 0.5 + 1e-9, 0.1, 0.1, (0.3, 0.7), (0.5, 2.0), (2.0, 0.5)),
    ]
    return Marginal(*(jnp.asarray(column) for column in zip(*rows, strict=True)))


@pytest.fixture(scope="module")
def marginals(float64) -> Marginal:
    """(43,) random marginals and the degenerate ones."""
    random = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), random_models(3, 2, 19).marginals)
    return jax.tree.map(lambda *x: jnp.concatenate(x), random, degenerate())


@pytest.fixture(scope="module")
def grids(marginals) -> QuadratureGrid:
    return jax.jit(jax.vmap(build_grid))(marginals)


@pytest.mark.thorough
def test_weights_are_a_distribution_over_ordered_cells(grids, marginals):
    assert (np.asarray(grids.weight) >= 0).all()
    np.testing.assert_allclose(grids.weight.sum(-1), 1.0, atol=1e-14)
    np.testing.assert_allclose(np.diff(grids.edges), grids.weight, atol=1e-14)
    assert (np.diff(grids.edges) >= -1e-15).all()
    assert (np.asarray(grids.edges[:, 0]) == 0).all()
    assert (np.asarray(grids.edges[:, -1]) == 1).all()
    np.testing.assert_allclose(grids.weight[:, 0], marginals.mass_lowest, atol=1e-15)
    np.testing.assert_allclose(grids.weight[:, -1], marginals.mass_highest, atol=1e-15)
    slack = 1e-14
    assert (np.asarray(grids.u) >= np.asarray(grids.edges[:, :-1]) - slack).all()
    assert (np.asarray(grids.u) <= np.asarray(grids.edges[:, 1:]) + slack).all()


def test_below_integrates_polynomials_of_each_panel_exactly(grids):
    """Σ below(c) · f(nodes) = ∫₀ᶜ f for the degrees that ORDER nodes determine."""
    grid = take_entries(grids, 38)  # no masses
    cut, u = np.linspace(0, 1, 23), np.asarray(grid.u)
    below = np.asarray(below_all(grid, cut))
    for degree in range(ORDER):
        np.testing.assert_allclose(below @ u**degree, cut ** (degree + 1) / (degree + 1), atol=1e-13)


def test_quantiles_integrate_to_the_mean(grids, marginals):
    mean = jax.jit(jax.vmap(lambda m: m.mean_above(m.lowest - 1)))(marginals)
    np.testing.assert_allclose((grids.weight * grids.quantile).sum(-1), mean, atol=1e-13)


def test_transition_keeps_the_uniform_law(grids):
    """Without a threshold the second model's rank is uniform again, but for cells of little weight in the corners."""
    source, target = take_entries(grids, 38), take_entries(grids, 38)
    density = source.weight @ jax.jit(transition_kernel)(Gumbel(jnp.asarray(2.0)), source, target)
    # Measured: 1.02e-5, all of it in the corner cells.
    assert (np.abs(density - 1) * target.weight).sum() < 2e-5
    np.testing.assert_allclose((density * target.weight).sum(), 1.0, atol=1e-13)


@pytest.mark.thorough
def test_gradients_are_finite(marginals):
    """Also where a component is empty, the masses hold everything, or all values are equal."""

    def total(marginal):
        grid = build_grid(marginal)
        kernel = transition_kernel(Gumbel(jnp.asarray(2.0)), grid, grid)
        return (grid.weight * grid.quantile) @ kernel @ (grid.weights_below(jnp.asarray(0.37)) * grid.quantile)

    few = take_entries(marginals, jnp.array([0, 7, 38, 39, 40, 41, 42]))
    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(total)))(few)
    assert np.isfinite(value).all()
    bad = [name for name, leaf in vars(gradient).items() if leaf is not None and not np.isfinite(leaf).all()]
    assert not bad
