"""Find the points that are not dominated: the Pareto set, the lower convex hull, and the point for a target."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from rcjax._base.figures import choose_unit, distinct_percentages, format_number
from rcjax._core.batching import Array
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.ladder import Period
from rcjax.policy.spec import Target

#: Least gain, in errors, for which a cascade is preferred to a single model.
LEAST_GAIN = 0.001

_Point = tuple[float, float]  # (cost, error)


def pareto(cost: Array, error: Array) -> np.ndarray:
    """Return the indices of the points that are not dominated, by rising cost and falling error.

    The first of equal points is kept. Points with a figure that is not finite are ignored.

    >>> pareto(np.array([3.0, 1.0, 2.5, 9.0]), np.array([0.1, 0.5, 0.4, 0.3])).tolist()
    [1, 2, 0]
    """
    order = np.lexsort((error, cost))
    order = order[np.isfinite(cost + error)[order]]
    least = np.minimum.accumulate(np.append(np.inf, error[order]))[:-1]
    return order[error[order] < least]


def lower_hull(cost: Array, error: Array) -> np.ndarray:
    """Return the indices of the corners of the lower convex hull, by rising cost and falling error.

    Each corner is the best point at some λ (the monotone chain of Andrew 1979). Points with a figure that is not
    finite are ignored.

    >>> lower_hull(np.array([3.0, 1.0, 2.0, 9.0]), np.array([0.1, 0.5, 0.2, 0.3])).tolist()
    [1, 2, 0]
    """
    front = pareto(cost, error)
    points = list(zip(cost[front].tolist(), error[front].tolist(), strict=True))
    corners: list[int] = []
    for place, point in enumerate(points):
        while len(corners) > 1 and _above(points[corners[-1]], points[corners[-2]], point):
            corners.pop()
        corners.append(place)
    return front[corners]


def thin_hull(cost: Array, error: Array, most: int, tolerance: float = 0.0) -> np.ndarray:
    """Thin the corners of a hull, and return the indices of the corners that stay, both ends among them.

    A dropped corner lies below the line between its kept neighbours by at most a tolerance, which is doubled until few
    enough corners are left.

    Args:
        cost, error: (H,) figures of the corners, by rising cost.
        most: number of corners that may stay, 2 or more.
        tolerance: tolerance to start with, in errors.

    >>> cost, error = np.array([1.0, 2.0, 3.0, 9.0]), np.array([0.5, 0.3, 0.19, 0.1])
    >>> thin_hull(cost, error, 9).tolist(), thin_hull(cost, error, 3).tolist()
    ([0, 1, 2, 3], [0, 2, 3])
    """
    last, places = len(cost) - 1, [0]
    while places[-1] < last:
        start = places[-1]
        end = start + 1
        while end < last and _deepest(cost[start : end + 2], error[start : end + 2]) <= tolerance:
            end += 1
        places.append(end)
    if len(places) <= most:
        return np.array(places)
    return thin_hull(cost, error, most, max(2 * tolerance, 1e-6 * float(np.ptp(error))))


def position_weights(positions: np.ndarray, count: int) -> np.ndarray:
    """Return the shares of the queries that go by each of R rungs at positions (…) of a ladder: (…, R).

    >>> position_weights(np.array([0.0, 1.25]), 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.75, 0.25]]
    """
    return np.maximum(0.0, 1 - np.abs(positions[..., None] - np.arange(count)))


def shares_at_bill(bills: np.ndarray, money: np.ndarray) -> np.ndarray:
    """Return the shares of the queries that go by each of R rungs of a ladder that follows its bill: (…, M, R).

    For each amount of money, the service stands at the last position of the ladder whose bill is within the money, or
    else on the rung with the least bill. Bills on a log may be in another order than the expected costs of the rungs.
    Only neighbouring rungs are mixed.

    Args:
        bills: (…, R) bill of each rung, in dollars per query, in the order of the ladder.
        money: (M,) dollars per query.

    >>> shares_at_bill(np.array([1.0, 4.0, 2.0]), np.array([0.5, 2.5, 9.0])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    >>> shares_at_bill(np.array([4.0, 3.0, 9.0]), np.array([6.0])).tolist()
    [[0.0, 0.5, 0.5]]
    """
    count = bills.shape[-1]
    bills, money = bills[..., None, :], money[:, None]
    within = bills <= money
    last = count - 1 - within[..., ::-1].argmax(-1, keepdims=True)
    rung = np.where(within.any(-1, keepdims=True), last, bills.argmin(-1, keepdims=True))
    low, high = (np.take_along_axis(bills, np.minimum(place, count - 1), -1) for place in (rung, rung + 1))
    is_between = (low <= money) & (money < high)
    share = np.where(is_between, (money - low) / np.where(is_between, high - low, 1.0), 0.0)
    return position_weights((rung + share)[..., 0], count)


def _deepest(cost: Array, error: Array) -> float:
    """Return the greatest distance of points below the line from the first to the last, in errors."""
    return float((np.interp(cost, cost[[0, -1]], error[[0, -1]]) - error).max())


def _above(middle: _Point, left: _Point, right: _Point) -> bool:
    """Return whether a point lies on or above the line between its neighbours."""
    (x, y), (x_left, y_left), (x_right, y_right) = middle, left, right
    return (x - x_left) * (y_right - y_left) <= (x_right - x_left) * (y - y_left)


def choose_rows(
    cost: npt.ArrayLike, error: npt.ArrayLike, most: int, refusing: bool = False, kept: Sequence[int] = ()
) -> list[int]:
    """Choose the points that a table shows, cheapest first: at most `most` corners of the hull.

    The hull is computed from figures as printed, with three digits, so that equal rows appear once. Where models may
    refuse, the hull of cost and error misses points that refuse less, so points are spread evenly instead.

    Args:
        cost, error: (L,) figures of the points.
        most: number of rows at most, beside `kept`.
        refusing: whether models may refuse.
        kept: indices that are shown unless a point dominates them as printed, such as single models'.

    >>> choose_rows([3.0, 1.0, 2.0, 9.0], [0.1, 0.5, 0.2, 0.3], 9), choose_rows([3.0, 1.0, 2.0], [0.1] * 3, 2, True)
    ([1, 2, 0], [1, 0])
    >>> choose_rows([1.0, 2.0, 3.0, 4.0], [0.4, 0.3, 0.21, 0.1], 2, kept=[1])
    [0, 1, 3]
    >>> choose_rows([1.0, 1.0], [0.1, 0.1], 9, kept=[1])
    [1]
    """
    costs = np.array([float(f"{figure:.3g}") for figure in np.ravel(cost)])
    errors = np.round(np.ravel(np.asarray(error, float)), 3)
    others = (place for place in range(len(costs)) if place not in {*kept})
    first = [*kept, *others]  # kept points go first among points that are printed alike
    front = np.array(first)[pareto(costs[first], errors[first])]
    if refusing:
        order = np.argsort(costs, kind="stable")
        chosen = order[np.unique(np.linspace(0, len(order) - 1, most).round().astype(int))]
    else:
        hull = front[lower_hull(costs[front], errors[front])]
        chosen = hull[thin_hull(costs[hull], errors[hull], most)]
    shown = {*chosen.tolist(), *({*front.tolist()} & {*kept})}
    return sorted(shown, key=lambda place: (costs[place], -errors[place]))


def list_best_buys(
    cost: npt.ArrayLike, error: npt.ArrayLike, single_cost: npt.ArrayLike, single_error: npt.ArrayLike
) -> list[int]:
    """Return the indices of the single models that no policy beats.

    A policy beats a model if it makes `LEAST_GAIN` errors fewer for the same money, or no more errors for less money.

    Args:
        cost, error: (L,) figures of the corners of a hull; ladders lie on the lines between them.
        single_cost, single_error: (k,) figures of the single models.

    >>> list_best_buys([1.0, 3.0], [0.3, 0.1], [1.0, 2.0, 2.0, 4.0], [0.3, 0.2005, 0.21, 0.1])
    [0, 1]
    """
    costs, errors = np.ravel(np.asarray(cost, float)), np.ravel(np.asarray(error, float))
    order = np.lexsort((-errors, costs))
    alone, wrong = np.ravel(np.asarray(single_cost, float)), np.ravel(np.asarray(single_error, float))
    near = wrong < np.interp(alone, costs[order], errors[order]) + LEAST_GAIN
    beaten = [bool(((costs < c) & (errors <= e)).any()) for c, e in zip(alone, wrong, strict=True)]
    return np.flatnonzero(near & ~np.array(beaten, bool)).tolist()


class InfeasibleError(ValueError):
    """Raised if no point of the frontier meets the target; the message names the best figure that is reached."""

    #: The `Tuned` of `rcjax.tune`, without a policy; None if nothing was tuned.
    tuned: Any = None


def index_for_target(
    target: Target, cost: np.ndarray, penalty: np.ndarray, abstain_price: float | None, counted: Counted = ERRORS
) -> int:
    """Return the index of the point that meets a target.

    Args:
        target: a budget, for the least error within it; a limit on the error, for the least cost within it; or a
            price, for the least error + λ·cost.
        cost: (L,) money per query.
        penalty: (L,) errors, and refusals at their price.
        abstain_price: price of a refusal, in errors; None: models do not refuse.
        counted: kind of error, for the message.

    Raises InfeasibleError if no point meets the target; ValueError for a margin.

    >>> cost, error = np.array([1.0, 2.0, 3.0]), np.array([0.3, 0.2, 0.1])
    >>> index_for_target(Target("budget", 2.5), cost, error, None)
    1
    """
    if target.name == "match":
        raise ValueError("match is a margin beside today's error, which is not on a frontier: use tune(log, match=...)")
    value, limit = target.value, target.value * (1 + 1e-9)
    if target.name == "budget":
        if not (cost <= limit).any():
            raise InfeasibleError(over_budget_message(value, float(cost.min())))
        return int(np.lexsort((cost, np.where(cost <= limit, penalty, np.inf)))[0])
    if target.name == "max_error":
        if not (penalty <= limit).any():
            refusing = "" if abstain_price is None else f", a refusal counted as {100 * abstain_price:.4g} %"
            least, most = distinct_percentages(float(penalty.min()), value)
            advice = f"give --max-error {_round_up(100 * float(penalty.min()))}% or more"
            best = f"the best {counted.does(least)}{refusing}"
            raise InfeasibleError(f"no cascade {counted.does(most)} or less; {best}: {advice}")
        return int(np.lexsort((penalty, np.where(penalty <= limit, cost, np.inf)))[0])
    return int(np.argmin(penalty + (1 / value if target.name == "error_cost" else value) * cost))


def over_budget_message(budget: float, cheapest: float, period: Period | None = None) -> str:
    """Return the message that no cascade keeps to a budget.

    Args:
        budget: budget, in money per query.
        cheapest: cost of the cheapest cascade, in money per query.
        period: the budget for a period, if it was given so.

    >>> print(over_budget_message(1e-6, 1.82154e-5))
    no cascade costs $1.00 per million queries or less; the cheapest costs $18.22: give --budget 18.3/M or more
    >>> print(over_budget_message(1e-6, 1.82154e-5, Period(2.0, "month"))[-32:])
    give --budget 36.5/month or more
    """
    money = choose_unit([cheapest])
    least = format_number(cheapest * money.scale * (1 + 5e-4), 4)  # rounded up: a budget that will do
    message = f"no cascade costs {money.full(budget)} or less; the cheapest costs ${least}"
    amount, unit = (
        (1e6 * cheapest, "M") if period is None or budget == 0 else (cheapest / budget * period.money, period.every)
    )
    return f"{message}: give --budget {_round_up(amount)}/{unit} or more"


def _round_up(amount: float) -> str:
    """Return an amount, rounded up to three digits, as options take it."""
    if amount <= 0:
        return "0"
    step = Decimal(10) ** (Decimal(amount).adjusted() - 2)
    rounded = (Decimal(amount * (1 - 1e-12)) / step).to_integral_value(ROUND_CEILING) * step
    return f"{rounded.normalize():f}"
