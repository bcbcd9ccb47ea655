"""What draws of the posterior say of a frontier, and the bands from them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.posterior_samples import three

import rcjax
from rcjax._core.batching import take_entries
from rcjax.bayes.posterior import accuracy_at_reference

pytest.importorskip("numpyro")
pytestmark = pytest.mark.usefixtures("float64")

LAM = np.geomspace(1.0, 30_000.0, 7)


@pytest.fixture(scope="module")
def drawn(float64):
    return rcjax.bayes.sample_posterior(three(100, seed=1), method="laplace", draws=40)


@pytest.fixture(scope="module")
def frontier(drawn):
    return rcjax.solve_frontier(drawn.reference, lam=LAM)


@pytest.mark.thorough
def test_a_posterior_without_spread_has_the_figures_of_the_frontier(drawn, frontier):
    copies = jax.tree.map(lambda leaf: jnp.stack([leaf] * 40), drawn.reference)
    error, cost, _ = rcjax.bayes.posterior_figures(dataclasses.replace(drawn, model=copies), frontier)
    np.testing.assert_allclose(error, np.broadcast_to(frontier.error, error.shape), atol=1e-4)
    np.testing.assert_allclose(cost, np.broadcast_to(frontier.cost, cost.shape), atol=1e-4 * frontier.cost.max())


@pytest.mark.thorough
def test_the_figures_of_a_draw_match_a_simulation(drawn, frontier):
    place, n = 5, 200_000
    error, cost, _ = (figure[place] for figure in rcjax.bayes.posterior_figures(drawn, frontier))
    draw, reference = take_entries(drawn.model, place), drawn.reference
    confidence = np.asarray(draw.sample(jax.random.key(0), (n,)))
    right = np.stack(
        [
            accuracy_at_reference(
                take_entries(draw.calibrators, j), take_entries(reference.calibrators, j), confidence[:, j]
            )
            for j in range(3)
        ],
        1,
    )
    chained = [row for row in range(len(LAM)) if frontier.members[row].tolist() in ([1, 1, 0], [0, 1, 1], [1, 1, 1])]
    assert chained
    for row in chained:
        answered, spent, correct = np.zeros(n, bool), np.zeros(n), np.zeros(n)
        for j in np.flatnonzero(frontier.members[row]):
            spent += np.where(answered, 0.0, draw.cost[j])
            now = ~answered & (confidence[:, j] > frontier.thresholds[row, j])
            correct += np.where(now, right[:, j], 0.0)
            answered |= now
        assert answered.all()
        assert float(error[row]) == pytest.approx(1 - correct.mean(), abs=4 * correct.std() / np.sqrt(n))
        assert float(cost[row]) == pytest.approx(spent.mean(), abs=4 * spent.std() / np.sqrt(n))


@pytest.mark.thorough
def test_invalid_arguments_are_refused(drawn, frontier):
    with pytest.raises(ValueError, match="at least 1"):
        rcjax.bayes.credible_bands(drawn, frontier, draws=0)
    with pytest.raises(ValueError, match="level"):
        rcjax.bayes.credible_bands(drawn, frontier, level=1.0)
    adaptive = rcjax.solve_frontier(drawn.reference, lam=LAM, cascades="adaptive")
    with pytest.raises(ValueError, match="adaptive policies"):
        rcjax.bayes.posterior_figures(drawn, adaptive)
    nowhere = dataclasses.replace(drawn, model=dataclasses.replace(drawn.model, cost=drawn.model.cost * jnp.nan))
    with pytest.raises(FloatingPointError, match="error or cost that is not finite"):
        rcjax.bayes.posterior_figures(nowhere, frontier)
    calibrators = dataclasses.replace(
        drawn.reference.calibrators, coefficients=drawn.reference.calibrators.coefficients * 1.1
    )
    elsewhere = dataclasses.replace(frontier, model=dataclasses.replace(drawn.reference, calibrators=calibrators))
    with pytest.raises(ValueError, match="another scale"):
        rcjax.bayes.posterior_figures(drawn, elsewhere)
