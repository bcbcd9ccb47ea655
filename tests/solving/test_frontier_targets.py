"""Policies of a frontier: for a budget, an error, the price of one or λ, and with the thresholds of their point."""

import numpy as np
import pytest

from rcjax import solve_frontier

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def automatic(demo):
    return solve_frontier(demo)


@pytest.mark.thorough
def test_policies_of_the_targets(demo, automatic):
    cost, error, lam = (np.asarray(x) for x in (automatic.cost, automatic.error, automatic.lam))
    middle = len(cost) // 2
    cheap = automatic.policy(budget=float(cost[middle]))
    assert cheap.expected["cost"] <= cost[middle] * (1 + 1e-9)
    # A ladder has twenty of the frontier's corners at most: between two of them it errs a little more than the curve.
    least = error[cost <= cost[middle] * (1 + 1e-9)].min()
    assert least * (1 - 1e-9) <= cheap.expected["error"] <= least * (1 + 1e-3)
    good = automatic.policy(max_error=float(error[middle]))
    assert good.expected["error"] <= error[middle] * (1 + 1e-9)
    least = cost[error <= error[middle] * (1 + 1e-9)].min()
    assert least * (1 - 1e-9) <= good.expected["cost"] <= least * (1 + 1e-2)
    price = float(1 / lam[middle])
    by_price, by_lam = automatic.policy(error_cost=price), automatic.policy(lam=1 / price)
    assert (by_price.rules, by_price.expected) == (by_lam.rules, by_lam.expected)
    assert by_price.provenance["tuning"]["error_cost"] == price
    value = by_lam.expected["error"] + by_lam.expected["cost"] / price
    assert value <= (error + cost / price).min() + 1e-15
