"""Atoms in quadrature, in the objective and in Bellman's equation: a threshold passes all of a value or none of it."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.stated_samples import KINDS, stated_log
from tiers import thorough

import rcjax
from rcjax import solve_frontier
from rcjax.copulas import Gumbel
from rcjax.model.marginals import Atoms, Marginal
from rcjax.solving import error_and_cost, outcomes
from rcjax.solving.optimum import settle_threshold
from rcjax.solving.quadrature import build_grid, transition_kernel

pytestmark = pytest.mark.usefixtures("float64")

LAM = np.geomspace(10.0, 1e5, 25)
CASES = [
    ((0.3, 0.5, 0.8, 0.95), (0.1, 0.2, 0.15, 0.0), 0.05, 0.2),
    ((0.3, 0.5, 0.95, 0.95), (0.4, 0.3, 0.0, 0.0), 0.1, 0.2),  # nothing smooth
    ((0.101, 0.102, 0.949, 0.9499), (0.05, 0.05, 0.05, 0.05), 0.0, 0.0),  # close to the ends
    ((0.95, 0.95, 0.95, 0.95), (0.0, 0.0, 0.0, 0.0), 0.3, 0.3),  # places alone
]


@pytest.fixture(scope="module")
def marginals(float64):
    rows = [
        Marginal(
            *map(jnp.asarray, (0.1, 0.95, bottom, top)),
            jnp.array([0.4, 0.6]),
            jnp.array([2.0, 5.0]),
            jnp.array([3.0, 1.5]),
            atoms=Atoms(jnp.array(values), jnp.array(masses)),
        )
        for values, masses, bottom, top in CASES
    ]
    return jax.tree.map(lambda *x: jnp.stack(x), *rows)


@pytest.fixture(scope="module")
def grids(marginals):
    return jax.jit(jax.vmap(build_grid))(marginals)


def test_a_transition_conserves_mass_and_averages_within_an_atom(grids):
    kernel = jax.jit(jax.vmap(transition_kernel, (None, 0, 0)))(Gumbel(jnp.asarray(2.0)), grids, grids)
    rows = np.asarray(jnp.einsum("gij,gj->gi", kernel, grids.weight))
    inside = (np.asarray(grids.u) > 0) & (np.asarray(grids.u) < 1)  # an end without a mass is no place to come from
    np.testing.assert_allclose(rows[inside], 1.0, atol=1e-9)
    # All who come, whatever from, are spread as the target is.
    columns = np.asarray(jnp.einsum("gi,gij->gj", grids.weight, kernel))
    np.testing.assert_allclose(columns[np.asarray(grids.weight) > 1e-6], 1.0, atol=1e-3)
    assert np.isfinite(kernel).all()


def test_a_cut_at_the_end_of_a_mass_is_settled_beside_it(marginals, grids):
    """Where nothing tells what deferring is worth: all of the lowest value pass, and nothing else does."""
    settle = jax.jit(jax.vmap(lambda *at: settle_threshold(*at, jnp.nan, 0.0)))
    threshold, cdf, _ = settle(marginals, grids, marginals.mass_lowest)
    np.testing.assert_allclose(cdf, marginals.mass_lowest, atol=1e-9)
    assert ((threshold > 0.1) == (marginals.mass_lowest > 0)).all()


@functools.cache
def fitted(kind):
    return rcjax.fit(stated_log(kind))


@pytest.fixture(params=thorough(KINDS, lambda kind: kind != "certain"))
def model(request, float64):
    return fitted(request.param)


@pytest.fixture(params=thorough(KINDS, lambda kind: kind != "certain"))
def steps_only(request, float64):
    """A model none of whose confidences is smooth."""
    model = fitted(request.param)
    if not (np.asarray(model.marginals.smooth_mass) < 1e-9).all():
        pytest.skip("some confidences are smooth: there are thresholds without end")
    return model


def middles(values):
    return np.concatenate([[0.0], (values[1:] + values[:-1]) / 2, [1.0]])


def values_of(model):
    draws = np.asarray(model.sample(jax.random.key(0), (20_000,)))
    return [np.unique(column) for column in draws.T]


@pytest.mark.thorough
def test_error_and_cost_are_those_of_samples(model):
    draws = np.asarray(model.sample(jax.random.key(1), (400_000,)))
    for thresholds in ((0.5, 0.7), (0.65, 0.6), (0.8, 0.85)):
        error, cost = error_and_cost(model, np.array(thresholds))
        first = draws[:, 0] > thresholds[0]
        second = ~first & (draws[:, 1] > thresholds[1])
        third = ~first & ~second
        right = first * draws[:, 0] + second * draws[:, 1] + third * draws[:, 2]
        spent = np.asarray(model.cost) @ np.array([1.0, (~first).mean(), third.mean()])
        assert float(error) == pytest.approx(1 - right.mean(), abs=3e-3)
        assert float(cost) == pytest.approx(spent, rel=1e-2)


@pytest.mark.thorough
def test_the_optimum_is_the_best_of_all_thresholds_between_values(steps_only):
    model = steps_only
    thresholds = np.array(list(itertools.product(*(middles(values) for values in values_of(model)[:2]))))
    error, cost = error_and_cost(model, thresholds)
    best = (np.asarray(error)[:, None] + LAM * np.asarray(cost)[:, None]).min(0)
    full = solve_frontier(model, lam=LAM, cascades="full")
    np.testing.assert_allclose(full.error + LAM * full.cost, best, atol=1e-10)


@pytest.mark.thorough
def test_a_threshold_lies_midway_between_two_values(steps_only):
    values = values_of(steps_only)
    frontier = solve_frontier(steps_only, lam=LAM)
    for j, own in enumerate(values):
        thresholds = np.asarray(frontier.thresholds)[np.asarray(frontier.members)[:, j], j]
        assert all(np.abs(middles(own) - threshold).min() < 1e-6 for threshold in thresholds)


@pytest.mark.thorough
def test_abstentions_pass_all_of_a_value_or_none(model):
    frontier = solve_frontier(model, lam=LAM, abstain_price=0.3)
    outcome = outcomes(frontier)
    for figure, repeated in (
        (frontier.error, outcome.error),
        (frontier.cost, outcome.cost),
        (frontier.abstention, outcome.abstention),
    ):
        np.testing.assert_allclose(repeated, figure, atol=1e-9)
