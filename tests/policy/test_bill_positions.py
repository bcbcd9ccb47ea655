"""Following a bill: the money spent on streams of queries, whatever they cost, and the position on the ladder."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rcjax.policy.bills import WINDOW, Bill, PeriodBill
from rcjax.policy.ladder import DAYS_PER_PERIOD, Period, position_at

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
    """Return (cost of each of n queries, the bill after them), `flight` of them under way; costs vary by 60 %."""
    rng, paid, waiting = np.random.default_rng(0), [], []
    for index in range(n):
        low, share = divmod(bill.position(COSTS, 0.0), 1)
        expected = COSTS[int(low) + (rng.random() < share)]
        cost = expected * rng.choice([0.4, 1.6]) * change(index / n, rng)
        paid.append(cost)
        waiting.append((cost, expected))
        if len(waiting) == flight:
            bill = bill.after_query(*waiting.pop(0), 0.0)
    return np.array(paid), bill


@pytest.mark.parametrize("flight", [1, 64])
@pytest.mark.parametrize("name", CHANGES)
def test_the_budget_is_used_and_kept(name, flight):
    change, off, most = CHANGES[name]
    paid, bill = stream(Bill.open(BUDGET), change, flight=flight)
    assert paid.mean() / BUDGET == pytest.approx(1, abs=off)
    over = np.cumsum(paid - BUDGET).max() / BUDGET
    assert over < most  # queries' budgets that were overspent on the way
    assert bill.balance == pytest.approx((BUDGET - paid[: len(paid) - flight + 1]).sum(), rel=1e-6, abs=1e-9)


def test_a_budget_beyond_the_ladder_stays_on_its_last_rung():
    cheap, bill = stream(Bill.open(1e-3), lambda place, rng: 1.0, n=2000)
    assert bill.position(COSTS, 0.0) == 3
    assert bill.balance == WINDOW * 1e-3  # not all that was never needed
    assert cheap[-500:].mean() == pytest.approx(COSTS[-1], rel=0.1)
    _, bill = stream(Bill.open(1e-5), lambda place, rng: 1.0, n=2000)
    assert bill.position(COSTS, 0.0) == 0
    free = Bill.open(BUDGET)
    for _ in range(5000):
        free = free.after_query(0.0, 0.0, 0.0)
    assert free.position(COSTS, 0.0) == position_at(COSTS, 2 * BUDGET)


def test_expensive_requests_move_all_queries_for_as_long_as_serving_says():
    """`serving_money.md` says so: of 2,000 queries one in twenty costs a hundred times as much, or ten times."""
    for dearer, during, back, used in ((100, 0.03, 1000, 1.1), (10, 1.1, 10, 1.01)):
        rng, bill, positions, paid = np.random.default_rng(0), Bill.open(BUDGET), [], 0.0
        for index in range(8000):
            dear = 2000 <= index < 4000 and rng.random() < 0.05
            positions.append(bill.position(COSTS, 0.0))
            low, share = divmod(positions[-1], 1)
            expected = COSTS[int(low) + (rng.random() < share)]
            cost = expected * (dearer if dear else rng.choice([0.4, 1.6]))
            bill, paid = bill.after_query(cost, expected, 0.0), paid + cost
        assert np.mean(positions[:2000]) == pytest.approx(1.6, abs=0.05)
        assert np.mean(positions[2000:4000]) == pytest.approx(during, abs=0.05)
        assert np.argmax(np.array(positions[4000:]) > 1.3) < back
        assert 0.99 <= paid / 8000 / BUDGET <= used


@pytest.mark.parametrize(("number", "dearer"), [(1, 1e9), (500, 100.0), (500, 1e9)])
def test_wrong_counts_are_forgotten_within_a_thousand_queries(number, dearer):
    """The bill forgets costs beyond a window's budgets: wrong counts, or a hundred times the usual cost."""
    rng, bill, positions = np.random.default_rng(0), Bill.open(BUDGET), []
    for index in range(number + 1000):
        low, share = divmod(bill.position(COSTS, 0.0), 1)
        expected = COSTS[int(low) + (rng.random() < share)]
        bill = bill.after_query(expected * (dearer if index < number else rng.choice([0.4, 1.6])), expected, 0.0)
        positions.append(bill.position(COSTS, 0.0))
    assert positions[number - 1] == 0
    assert np.argmax(np.array(positions[number:]) > 1.3) > 0


@given(
    figures=st.lists(st.integers(1, 1000), min_size=1, max_size=9, unique=True).map(sorted),
    value=st.floats(0, 1200),
)
def test_position_at_is_the_inverse_of_interpolation(figures, value):
    position = position_at(figures, value)
    assert 0 <= position <= len(figures) - 1
    assert np.interp(position, range(len(figures)), figures) == pytest.approx(np.clip(value, figures[0], figures[-1]))


def test_an_impossible_budget_or_window_is_refused():
    with pytest.raises(ValueError, match="budget: must be"):
        Bill.open(0.0)
    with pytest.raises(ValueError, match="window: must be at least one query"):
        Bill.open(1.0, window=0.5)


DAY = 86_400.0
NOVEMBER = 1_793_491_200.0  # 2026-11-01, a Sunday, in UTC
N, MONEY = 5_000, 5_000 * BUDGET
#: Of the queries of a month, how many a day come, by the day; and of the money what is used by it, at least.
TRAFFIC = {
    "even": (lambda day: 1.0, 0.999),
    "by day": (lambda day: 2.0 * (8 <= 24 * (day % 1) < 20), 0.99),
    "doubled midway": (lambda day: 1.0 + (day > 15), 0.999),
    "stopped": (lambda day: float(not 8 < day < 20), 0.999),
    "in bursts": (lambda day: 0.5 + 20.0 * (int(24 * day) % 97 == 0), 0.99),
    "growing": (lambda day: 0.2 + 1.6 * day / 30, 0.999),
}


def arrivals(rate):
    rng = np.random.default_rng(1)
    hours = [(hour + rng.random(rng.poisson(N / 720 * rate(hour / 24)))) / 24 for hour in range(720)]
    return NOVEMBER + DAY * np.sort(np.concatenate(hours))


def spend(bill, times, clock=lambda time: time, dearer=1.0):
    """Return (cost of each query, its position, the bill after all)."""
    rng, paid, positions = np.random.default_rng(0), [], []
    for time in times:
        positions.append(bill.position(COSTS, clock(time)))
        low, share = divmod(positions[-1], 1)
        expected = COSTS[int(low) + (rng.random() < share)]
        paid.append(expected * rng.choice([0.4, 1.6]) * dearer)
        bill = bill.after_query(paid[-1], expected, clock(time))
    return np.array(paid), np.array(positions), bill


@pytest.mark.parametrize("name", TRAFFIC)
def test_the_money_of_a_month_is_used_and_kept(name):
    rate, least = TRAFFIC[name]
    paid, _, bill = spend(PeriodBill.open(Period(MONEY, "month"), BUDGET, NOVEMBER), arrivals(rate), dearer=1.4)
    assert least < paid.sum() / MONEY < 1.01
    assert bill.money_left(NOVEMBER + 29.9 * DAY) == pytest.approx(MONEY - paid.sum())
    assert bill.money_left(NOVEMBER + 30 * DAY) == MONEY


@pytest.mark.parametrize("every", ["day", "week", "month"])
def test_clocks_that_jump_change_no_spending_of_the_true_period(every):
    """The clock jumps a month forward and back, and some hours back; the money of the true periods is kept."""
    days = {"day": 1, "week": 7, "month": 30}[every]
    period, start = Period(MONEY * days / 30, every), NOVEMBER + (DAY if every == "week" else 0)
    times = start + DAY * days * np.linspace(0, 1, N * days // 30, endpoint=False)
    third, late = times[len(times) // 3], times[len(times) // 2]

    def clock(time):
        return time + 31 * DAY * (third < time < third + 0.02 * DAY * days) - 0.1 * DAY * days * (time > late)

    paid, positions, _ = spend(PeriodBill.open(period, BUDGET, start), times, clock)
    true = np.array([period.bounds(clock(time))[0] == start for time in times])
    assert 0.85 < paid[true].sum() / period.money < 1.01  # a tenth of the period is still to come
    assert np.ptp(positions[true]) < 1.2


@given(time=st.floats(0, 4e9), every=st.sampled_from([*DAYS_PER_PERIOD]))
def test_periods_follow_each_other(time, every):
    period = Period(1.0, every)
    start, end = period.bounds(time)
    assert (start <= time < end, period.bounds(end)[0], period.bounds(start)) == (True, end, (start, end))
    assert (end - start) / DAY / DAYS_PER_PERIOD[every] == pytest.approx(1, abs=0.09)
