"""What `tune` says of money: bills in place of mean prices, what is left of a budget, what a mixture brings."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cross_validation_references import columns, walk_by_hand

import rcjax
from rcjax.tuning.tune import with_bills

pytestmark = pytest.mark.usefixtures("float64")

MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")


@pytest.fixture(scope="module")
def log(float64):
    """Queries of which the smallest model is unsure cost up to three times as much as others."""
    plain = rcjax.sample_log(200, seed=3).select(MODELS)
    longer = 1 + 2 * (np.asarray(plain.logprob)[:, :1] < -0.4)
    money = jnp.asarray(np.asarray(plain.query_cost) * longer)
    return dataclasses.replace(plain, query_cost=money, cost=money.mean(0))


@pytest.fixture(scope="module")
def model(log):
    return rcjax.fit(log)


@pytest.mark.thorough
def test_every_point_is_at_its_bill_and_bands_with_it(log, model):
    frontier = rcjax.solve_frontier(model, lam=np.geomspace(1e2, 1e5, 6))
    frontier = dataclasses.replace(frontier, bands=rcjax.tuning.bootstrap(frontier, log, replicates=20))
    billed, notes = with_bills(frontier, rcjax.replay(frontier, log))
    confidence, (_, right, _, query_cost) = np.asarray(model.calibrate(log.logprob)), columns(log)
    policies = frontier.policies.on_host()
    bills = [walk_by_hand(policies, place, confidence, right, query_cost)[1].mean() for place in range(6)]
    np.testing.assert_allclose(billed.cost, bills, rtol=1e-9)
    np.testing.assert_array_equal(billed.error, frontier.error)
    ratio = np.array(bills) / np.asarray(frontier.cost)
    np.testing.assert_allclose(billed.bands.cost, np.asarray(frontier.bands.cost) * ratio[:, None], rtol=1e-9)
    assert ratio.max() > 1.05
    assert f"up to {100 * np.abs(ratio - 1).max():.0f} %" in notes[0]
