"""Abstention: hand calculation, simulation, grids, laws of its price, targets, and what does not exist.

The references know the confidences' distribution by scipy or by draws, and nothing of Bellman's equation.
"""

import dataclasses

import jax
import numpy as np
import pytest
from helpers.cascade_references import PlainMarginal, mean_above, random_models, take
from tiers import thorough

from rcjax import solve_frontier
from rcjax.policy.spec import Target
from rcjax.solving.frontier.frontier import InfeasibleError

pytestmark = pytest.mark.usefixtures("float64")

#: Costs of the random models lie between 1 and 30.
LAM = np.geomspace(1e-3, 0.1, 8)
CASCADE_SETS = ("all", "full", "adaptive")


def loss(frontier):
    return np.asarray(frontier.penalty + frontier.lam * frontier.cost)


# -- one model, by hand


@pytest.mark.thorough
@pytest.mark.parametrize("price", [0.05, 0.3])
def test_one_model_abstains_below_the_worth_of_an_abstention(price):
    models = random_models(82, 1, 5)
    for i in range(5):
        model = take(models, i)
        plain = PlainMarginal(model.marginals, 0)
        frontier = solve_frontier(model, lam=[0.01], abstain_price=price)
        worth = 1 - price
        abstained = float(plain.cdf(worth))
        right = float(mean_above(lambda v: v, plain, worth))
        assert float(frontier.abstention[0]) == pytest.approx(abstained, abs=2e-6)
        assert float(frontier.error[0]) == pytest.approx(1 - abstained - right, abs=2e-6)
        assert float(frontier.cost[0]) == pytest.approx(float(model.cost[0]))
        assert float(frontier.thresholds[0, 0]) == float(frontier.abstain_thresholds[0, 0])
        # Where hardly any confidence lies, no threshold is better than its neighbours.
        if float(take(model.marginals, 0).density(worth)) > 0.01:
            assert float(frontier.abstain_thresholds[0, 0]) == pytest.approx(worth, abs=1e-12)


# -- against draws and grids


def walked(confidence, cost, first, bounds, actions):
    """(error, cost, abstention) of each draw (n, k) under one policy: a loop over models, as a service would."""
    n, k = confidence.shape
    error, spent, abstained = np.zeros(n), np.zeros(n), np.zeros(n)
    at = np.full(n, first)
    for j in range(k):
        here = at == j
        spent += here * cost[j]
        action = actions[j][np.searchsorted(bounds[j], confidence[:, j], side="left")]
        error += here * (action == j) * (1 - confidence[:, j])
        abstained += here * (action < 0)
        at = np.where(here, np.where(action == j, -1, action), at)
    return error, spent, abstained


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("search", "theta"),
    [("full", 8.0), ("adaptive", 1.0)],
)
def test_predictions_match_draws(search, theta):
    """Draws are of the chain through every model, which policies that skip one share where models are independent."""
    model = take(random_models(83, 3, 1, theta=(1.0, theta)), 0)
    frontier = solve_frontier(model, lam=LAM, cascades=search, abstain_price=0.2)
    confidence = np.asarray(model.sample(jax.random.key(3), (20_000,)))
    assert float(frontier.abstention.max()) > 0.05
    policies = frontier.policies
    for row in range(0, len(LAM), 2):
        policy = (np.asarray(table)[row] for table in (policies.first, policies.bounds, policies.actions))
        seen = walked(confidence, np.asarray(model.cost), *policy)
        for name, figure in zip(("error", "cost", "abstention"), seen, strict=True):
            spread = figure.std() / np.sqrt(len(figure)) + 1e-9
            assert abs(figure.mean() - float(getattr(frontier, name)[row])) < 4.5 * spread, (row, name)


# -- laws


@pytest.mark.parametrize("search", thorough(["all", "full"], "full".__eq__))
def test_the_last_model_of_a_cascade_abstains_and_no_other(demo, demo_lam, search):
    frontier = solve_frontier(demo, lam=demo_lam, cascades=search, abstain_price=0.3)
    abstains = np.asarray(frontier.abstain_thresholds) > 0
    last = len(demo.models) - 1 - np.asarray(frontier.members)[:, ::-1].argmax(1)
    assert (abstains == (np.arange(len(demo.models)) == last[:, None])).all()


@pytest.mark.parametrize("search", thorough(CASCADE_SETS, lambda search: search != "all"))
def test_no_model_abstains_for_more_than_an_error(demo, demo_lam, search):
    without = solve_frontier(demo, lam=demo_lam, cascades=search)
    assert without.abstention is None
    assert without.abstain_thresholds is None
    for price in (1.0, 50):
        result = solve_frontier(demo, lam=demo_lam, cascades=search, abstain_price=price)
        for name in ("error", "cost", "members", "status"):
            np.testing.assert_array_equal(getattr(result, name), getattr(without, name), err_msg=name)
        for name in ("bounds", "actions"):
            np.testing.assert_array_equal(getattr(result.policies, name), getattr(without.policies, name), err_msg=name)
        assert result.abstain_price == price
        assert not np.any(result.abstention)
        assert result.policy_at(3).rules == without.policy_at(3).rules
    nearly = solve_frontier(demo, lam=demo_lam, cascades=search, abstain_price=1 - 1e-12)
    np.testing.assert_allclose(loss(nearly), loss(without), rtol=1e-9)


# -- targets


def test_an_abstention_counts_at_its_price_in_every_target(demo):
    frontier = solve_frontier(demo, abstain_price=0.25)
    penalty, cost = np.asarray(frontier.penalty), np.asarray(frontier.cost)
    at = frontier.index_for(Target("max_error", 0.15))
    assert penalty[at] <= 0.15
    assert cost[at] == cost[penalty <= 0.15].min()
    at = frontier.index_for(Target("budget", 2e-4))
    assert penalty[at] == penalty[cost <= 2e-4].min()
    at = frontier.index_for(Target("error_cost", 0.002))
    assert penalty[at] + 500 * cost[at] == (penalty + 500 * cost).min()
    policy = frontier.policy_at(at)
    assert policy.expected["abstention"] == float(frontier.abstention[at]) > 0
    assert policy.expected["abstain_price"] == 0.25
    with pytest.raises(InfeasibleError, match=r"an abstention counted as 25 %"):
        frontier.index_for(Target("max_error", 0.001))


def test_shares_of_a_policy_are_clipped_where_rounding_puts_them_outside(demo, demo_lam):
    frontier = solve_frontier(demo, lam=demo_lam, cascades="full", abstain_price=0.3)
    frontier = dataclasses.replace(
        frontier, error=frontier.error * 0 - 1e-5, abstention=frontier.abstention * 0 - 1e-16
    )
    expected = frontier.policy_at(0).expected
    assert (expected["error"], expected["abstention"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"abstain_price": -0.1}, "abstain_price must be between 0 and 1e"),
        ({"abstain_price": np.nan}, "abstain_price must be .*, but it is nan"),
        ({"abstain_price": "0.3"}, "abstain_price must be a number"),
    ],
)
def test_invalid_abstain_prices_are_refused(demo, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        solve_frontier(demo, lam=[1.0], **options)
