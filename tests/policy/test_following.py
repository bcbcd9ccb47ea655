"""Following a bill: what it comes to on streams of queries, whatever they cost, and where on a ladder it stands."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rcjax.policy.following import WINDOW, Bill, position_at

COSTS = (2e-5, 5e-5, 1e-4, 3e-4)
BUDGET = 8e-5
#: What queries cost, times what was tuned, by the place in the stream and a generator of random numbers.
CHANGES = {
    "as tuned": (lambda place, rng: 1.0, 0.01, 120),
    "40 % more": (lambda place, rng: 1.4, 0.01, 120),
    "30 % less": (lambda place, rng: 0.7, 0.01, 120),
    "rising to twice": (lambda place, rng: 1 + place, 0.01, 120),
    "doubled midway": (lambda place, rng: 1 + (place > 0.5), 0.01, 250),
    "heavy tails": (lambda place, rng: math.exp(1.5 * rng.standard_normal() - 1.125), 0.06, 600),
}


def stream(bill, change, n=6000, flight=1):
    """(what each of n queries cost, the bill after them), so many of them in flight; a rung's queries cost ± 60 %."""
    rng, paid, waiting = np.random.default_rng(0), [], []
    for index in range(n):
        low, share = divmod(bill.position(COSTS), 1)
        expected = COSTS[int(low) + (rng.random() < share)]
        cost = expected * rng.choice([0.4, 1.6]) * change(index / n, rng)
        paid.append(cost)
        waiting.append((cost, expected))
        if len(waiting) == flight:
            bill = bill.pay(*waiting.pop(0))
    return np.array(paid), bill


@pytest.mark.parametrize("flight", [1, 64])
@pytest.mark.parametrize("name", CHANGES)
def test_the_budget_is_used_and_kept(name, flight):
    change, off, most = CHANGES[name]
    paid, bill = stream(Bill.of(BUDGET), change, flight=flight)
    assert paid.mean() / BUDGET == pytest.approx(1, abs=off)
    over = np.cumsum(paid - BUDGET).max() / BUDGET
    assert over < most  # queries' budgets that were overspent on the way
    assert bill.balance == pytest.approx((BUDGET - paid[: len(paid) - flight + 1]).sum(), rel=1e-6, abs=1e-9)


def test_what_cannot_be_followed_stands_on_the_last_rung():
    cheap, bill = stream(Bill.of(1e-3), lambda place, rng: 1.0, n=2000)
    assert bill.position(COSTS) == 3
    assert bill.balance == WINDOW * 1e-3  # not all that was never needed
    assert cheap[-500:].mean() == pytest.approx(COSTS[-1], rel=0.1)
    _, bill = stream(Bill.of(1e-5), lambda place, rng: 1.0, n=2000)
    assert bill.position(COSTS) == 0
    free = Bill.of(BUDGET)
    for _ in range(5000):
        free = free.pay(0.0, expected=0.0)
    assert free.position(COSTS) == position_at(COSTS, 2 * BUDGET)


@given(
    figures=st.lists(st.integers(1, 1000), min_size=1, max_size=9, unique=True).map(sorted),
    value=st.floats(0, 1200),
)
def test_positions_are_inverse_to_interpolation(figures, value):
    position = position_at(figures, value)
    assert 0 <= position <= len(figures) - 1
    assert np.interp(position, range(len(figures)), figures) == pytest.approx(np.clip(value, figures[0], figures[-1]))


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="budget: must be"):
        Bill.of(0.0)
    with pytest.raises(ValueError, match="window: must be at least one query"):
        Bill.of(1.0, window=0.5)
