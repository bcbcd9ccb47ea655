"""The paper's factorisation, as the benchmarks reproduce it: against quadrature and grids."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cascade_references import PlainMarginal, gumbel_cdf, mean_above, random_models, random_thresholds, take

from benchmarks.paper.factorisation import error_and_cost, solve_frontier
from rcjax.model import CascadeModel, Marginal

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.thorough]
LAM = np.geomspace(1e-3, 0.1, 8)


def paper_reference(model: CascadeModel, thresholds: np.ndarray) -> tuple[float, float]:
    """(error, cost) by proposition 2 of the paper at thresholds (k − 1,), by adaptive quadrature in φ-space.

    P(correct) = Σ_j P(j is reached) · ∫_{φ_j} φ dF_j(φ given Φ_{j−1} ≤ φ_{j−1}).
    """
    k, theta = len(model.models), np.asarray(model.copulas.theta)
    place = {pair: p for p, pair in enumerate((i, j) for i in range(k) for j in range(i + 1, k))}
    reach, correct, cost = 1.0, 0.0, 0.0
    law = np.asarray
    for j in range(k):
        marginal = PlainMarginal(model.marginals, j)
        phi = thresholds[j] if j < k - 1 else marginal.low - 1
        cost += reach * float(model.cost[j])
        correct += reach * float(mean_above(law, marginal, phi))
        u = float(marginal.cdf(phi))
        reach *= float(law(u))
        if j == k - 1 or reach == 0:
            break
        exponent = theta[place[j, j + 1]]

        def law(v, u=u, exponent=exponent):
            return gumbel_cdf(exponent, u, v) / u

    return 1 - correct, cost


@pytest.fixture(scope="module")
def models(float64):
    return random_models(51, 3, 2)


def test_it_matches_adaptive_quadrature_of_proposition_2(float64):
    models = random_models(31, 3, 8)
    thresholds = random_thresholds(32, models, 3)
    for i in range(8):
        error, cost = error_and_cost(take(models, i), thresholds[i])
        reference = np.array([paper_reference(take(models, i), cuts) for cuts in thresholds[i]])
        np.testing.assert_allclose(error, reference[:, 0], rtol=0, atol=1e-6)
        np.testing.assert_allclose(cost, reference[:, 1], rtol=1e-6)


def test_no_grid_beats_the_solver(models):
    for i in range(2):
        model = take(models, i)
        quantiles = [
            np.array([0.0, *Marginal.quantile(take(model.marginals, j), jnp.linspace(0, 1, 38)), 1.0]) for j in (0, 1)
        ]
        cuts = np.array(list(itertools.product(*quantiles)))
        error, cost = (np.asarray(figure) for figure in error_and_cost(model, cuts))
        result = solve_frontier(model, lam=LAM)
        assert (result.error + LAM * result.cost <= (error + LAM[:, None] * cost).min(1) + 1e-5).all(), i


def test_reported_figures_are_those_of_the_reported_thresholds(models):
    model = take(models, 0)
    frontier = solve_frontier(model)
    full = np.asarray(frontier.members).all(1)
    error, cost = error_and_cost(model, frontier.thresholds)
    np.testing.assert_allclose(error[full], np.asarray(frontier.error)[full], rtol=0, atol=1e-10)
    np.testing.assert_allclose(cost[full], np.asarray(frontier.cost)[full], rtol=1e-10)
    assert full.sum() > 10


def test_extreme_thresholds(models):
    """0 everywhere is the first model alone, 1 everywhere asks them all and leaves the last one's mean."""
    model = take(models, 0)
    error, cost = error_and_cost(model, np.array([[0.0, 0.0], [1.0, 1.0]]))
    mean = jax.vmap(lambda marginal: marginal.mean_above(marginal.lowest - 1))(model.marginals)
    np.testing.assert_allclose(error, 1 - mean[jnp.array([0, 2])], atol=1e-6)
    np.testing.assert_allclose(cost, [model.cost[0], model.cost.sum()], rtol=1e-12)
