"""What `tune` says of money: bills in place of mean prices, what is left of a budget, what a mixture brings."""

import dataclasses
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cross_validation_references import columns, walk_by_hand
from helpers.selection_references import fixed_frontier

import rcjax
from rcjax.solving.frontier.points import Bands
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
    replayed = rcjax.replay(frontier, log)
    billed, notes = with_bills(frontier, replayed)
    confidence, (_, right, _, query_cost) = np.asarray(model.calibrate(log.logprob)), columns(log)
    policies = frontier.policies.on_host()
    bills = [walk_by_hand(policies, place, confidence, right, query_cost)[1].mean() for place in range(6)]
    np.testing.assert_allclose(billed.cost, bills, rtol=1e-9)
    np.testing.assert_array_equal(billed.error, frontier.error)
    ratio = np.array(bills) / np.asarray(frontier.cost)
    # The bands are around replayed costs already: only mean prices are replaced.
    price_ratio = np.array(bills) / replayed.cost
    np.testing.assert_allclose(billed.bands.cost, np.asarray(frontier.bands.cost) * price_ratio[:, None], rtol=1e-9)
    assert ratio.max() > 1.05
    assert f"up to {100 * np.abs(ratio - 1).max():.0f} %" in notes[0]


def test_bands_stay_where_the_replay_has_put_them():
    """The log defers more queries than the model predicts, and deferred ones are a tenth longer than others."""
    predicted, at_mean_prices = np.array([8.0, 6.0, 4.0, 2.0, 1.0]), np.array([10.0, 7.0, 5.0, 2.0, 1.0])
    ends = jnp.asarray(at_mean_prices[:, None] * [0.9, 1.1])
    frontier = dataclasses.replace(
        fixed_frontier(None, rcjax.demo_model()), cost=jnp.asarray(predicted), bands=Bands(ends / 100, ends, 0.9, 20)
    )
    billed, _ = with_bills(frontier, SimpleNamespace(spent=1.1 * at_mean_prices, cost=at_mean_prices))
    np.testing.assert_allclose(billed.cost, 1.1 * at_mean_prices)
    np.testing.assert_allclose(billed.bands.cost, 1.1 * ends)
