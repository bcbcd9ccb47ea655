"""Policies of least expected loss, and what draws say of a frontier."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rcjax
from rcjax._core.batching import part
from rcjax.bayes.expected_loss import accuracy
from rcjax.model.sampling import sample_confidences

pytest.importorskip("numpyro")
pytestmark = pytest.mark.usefixtures("float64")

LAM = np.geomspace(1.0, 30_000.0, 7)


@pytest.fixture(scope="module")
def drawn(float64):
    log = rcjax.sample_log(100, seed=1)
    return rcjax.sample_posterior(log.select(log.models[:3]), method="laplace", draws=40)


@pytest.fixture(scope="module")
def frontier(drawn):
    return rcjax.solve_expected(drawn, lam=LAM)


@pytest.fixture(scope="module")
def plug_in(drawn):
    return rcjax.solve_frontier(drawn.reference, lam=LAM)


def mean_loss(drawn, frontier):
    error, cost = rcjax.posterior_figures(drawn, frontier)
    return np.asarray(error).mean(0) + LAM * np.asarray(cost).mean(0)


def test_g_is_the_draws_calibrator_on_the_scale_of_the_reference(drawn):
    logprob = jnp.log(jnp.array([0.3, 0.6, 0.9, 0.99]))
    for j in range(3):
        reference, draw = part(drawn.reference.calibrators, j), part(part(drawn.model.calibrators, 7), j)
        np.testing.assert_allclose(accuracy(draw, reference, reference(logprob)), draw(logprob), rtol=1e-9)


def test_without_doubt_it_is_the_plug_in_frontier(drawn, plug_in):
    copies = jax.tree.map(lambda leaf: jnp.stack([leaf] * 40), drawn.reference)
    sure = dataclasses.replace(drawn, model=copies)
    found = rcjax.solve_expected(sure, lam=LAM)
    expected = plug_in.error + LAM * plug_in.cost
    np.testing.assert_allclose(found.error + LAM * found.cost, expected, atol=1e-4)
    error, cost = rcjax.posterior_figures(sure, plug_in)
    np.testing.assert_allclose(error, np.broadcast_to(plug_in.error, error.shape), atol=1e-4)
    np.testing.assert_allclose(cost, np.broadcast_to(plug_in.cost, cost.shape), atol=1e-4 * plug_in.cost.max())


def test_no_policy_is_worse_in_the_mean_than_the_plug_in(drawn, frontier, plug_in):
    ours, theirs = mean_loss(drawn, frontier), mean_loss(drawn, plug_in)
    assert (ours <= theirs + 1e-12).all()
    assert (ours < theirs - 1e-6).any()


def test_the_frontier_holds_posterior_means(drawn, frontier):
    error, cost = rcjax.posterior_figures(drawn, frontier)
    assert error.shape == cost.shape == (40, len(LAM))
    np.testing.assert_allclose(error.mean(0), frontier.error, rtol=1e-12)
    np.testing.assert_allclose(cost.mean(0), frontier.cost, rtol=1e-12)
    assert (np.diff(frontier.cost) <= 1e-15).all()
    assert (np.diff(frontier.error) >= -1e-12).all()
    assert frontier.model is drawn.reference


def test_a_draws_figures_are_those_of_its_simulation(drawn, frontier):
    place, n = 5, 200_000
    error, cost = (figure[place] for figure in rcjax.posterior_figures(drawn, frontier))
    draw, reference = part(drawn.model, place), drawn.reference
    confidence = np.asarray(sample_confidences(draw, jax.random.key(0), n))
    right = np.stack(
        [accuracy(part(draw.calibrators, j), part(reference.calibrators, j), confidence[:, j]) for j in range(3)], 1
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


def test_where_models_may_refuse(drawn):
    refusing = {"lam": LAM, "abstain_price": 0.2}
    found = rcjax.solve_expected(drawn, **refusing)
    error, cost, abstention = rcjax.posterior_figures(drawn, found)
    np.testing.assert_allclose(error.mean(0), found.error, rtol=1e-9)
    np.testing.assert_allclose(cost.mean(0), found.cost, rtol=1e-9)
    np.testing.assert_allclose(abstention.mean(0), found.abstention, atol=1e-12)
    assert 0.05 < float(found.abstention.max()) < 1
    plug_in = rcjax.solve_frontier(drawn.reference, **refusing)
    wrong, spent, refused = (np.asarray(each).mean(0) for each in rcjax.posterior_figures(drawn, plug_in))
    gain = wrong + 0.2 * refused + LAM * spent - np.asarray(found.penalty + LAM * found.cost)
    assert (gain >= -1e-12).all()
    assert (gain > 1e-6).any()
    bands = rcjax.credible_bands(drawn, found)
    low, high = np.asarray(bands.abstention).T
    assert (low <= found.abstention + 1e-12).all()
    assert (found.abstention <= high + 1e-12).all()
    assert found.with_bands(bands).policy(lam=float(LAM[3])).expected["abstain_price"] == 0.2


def test_too_dear_a_refusal_changes_nothing(drawn, frontier):
    found = rcjax.solve_expected(drawn, lam=LAM, abstain_price=1.0)
    np.testing.assert_array_equal(found.thresholds, frontier.thresholds)
    np.testing.assert_array_equal(found.error, frontier.error)
    assert not np.asarray(found.abstention).any()


def test_a_policy_can_be_deployed(frontier):
    policy = frontier.policy(lam=float(LAM[3]))
    assert set(policy.models) <= set(frontier.models)
    assert policy.expected["error"] == pytest.approx(float(frontier.error[3]))


def test_which_cascades_compete(drawn):
    short = np.asarray(rcjax.solve_expected(drawn, lam=LAM, max_length=2).members)
    assert set(short.sum(1).tolist()) == {1, 2}
    a, b, c = drawn.models
    named = np.asarray(rcjax.solve_expected(drawn, lam=LAM, cascades=[(a,), (b,), (c,), (a, b), (b, c)]).members)
    assert not (named[:, 0] & named[:, 2]).any()


def test_a_second_call_compiles_nothing(drawn, frontier, plug_in, compilations):
    other = rcjax.sample_log(100, seed=4)
    other = rcjax.sample_posterior(other.select(other.models[:3]), method="laplace", draws=40)
    mean_loss(drawn, plug_in)
    with compilations() as compiled:
        found = rcjax.solve_expected(other, lam=LAM)
        mean_loss(other, found)
    assert not compiled


def test_what_cannot_be_is_refused(drawn, plug_in):
    with pytest.raises(ValueError, match="adaptive"):
        rcjax.solve_expected(drawn, lam=LAM, cascades="adaptive")
    with pytest.raises(ValueError, match="at least 1"):
        rcjax.solve_expected(drawn, lam=LAM, draws=0)
    with pytest.raises(ValueError, match="none below 0"):
        rcjax.solve_expected(drawn, lam=[-1.0])
    adaptive = rcjax.solve_frontier(drawn.reference, lam=LAM, cascades="adaptive")
    with pytest.raises(ValueError, match="adaptive policies"):
        rcjax.posterior_figures(drawn, adaptive)
    nowhere = dataclasses.replace(drawn, model=dataclasses.replace(drawn.model, cost=drawn.model.cost * jnp.nan))
    with pytest.raises(FloatingPointError, match="no finite error or cost"):
        rcjax.posterior_figures(nowhere, plug_in)
    calibrators = dataclasses.replace(
        drawn.reference.calibrators, coefficients=drawn.reference.calibrators.coefficients * 1.1
    )
    elsewhere = dataclasses.replace(plug_in, model=dataclasses.replace(drawn.reference, calibrators=calibrators))
    with pytest.raises(ValueError, match="another scale"):
        rcjax.posterior_figures(drawn, elsewhere)
