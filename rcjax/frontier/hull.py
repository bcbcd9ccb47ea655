"""Points that no other beats: the Pareto set, the lower convex hull, few of its corners; and the point for a target."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rcjax._base.wording import choose_unit, figure
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.spec import Target

_Point = tuple[float, float]  # cost, error

_MAX_ROWS = 15

_HARDLY, _POINTS = 0.05, 0.02  # a share of a price, and of the queries, that make one point worse than another


def pareto(cost: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Places of the points that no other beats in both, by rising cost and falling error; of equal ones, the first.

    What is not finite has no say.

    >>> pareto(np.array([3.0, 1.0, 2.5, 9.0]), np.array([0.1, 0.5, 0.4, 0.3])).tolist()
    [1, 2, 0]
    """
    order = np.lexsort((error, cost))
    order = order[np.isfinite(cost + error)[order]]
    least = np.minimum.accumulate(np.append(np.inf, error[order]))[:-1]
    return order[error[order] < least]


def lower_hull(cost: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Places of the corners of the lower convex hull, by rising cost and falling error; what is not finite has no say.

    Each corner is best at some price of cost against error (the monotone chain of Andrew 1979).

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


def thinned(cost: np.ndarray, error: np.ndarray, most: int, tolerance: float = 0.0) -> np.ndarray:
    """Places of corners (H,) of a hull that stand for all of it, its ends among them.

    Between two that stay, none that goes lies below their line by more than the tolerance, which is doubled until few
    enough are left.

    Args:
        cost, error: (H,) of the corners, cost rising.
        most: corners that may stay; 2 or more.
        tolerance: on the scale of errors.

    >>> cost, error = np.array([1.0, 2.0, 3.0, 9.0]), np.array([0.5, 0.3, 0.19, 0.1])
    >>> thinned(cost, error, 9).tolist(), thinned(cost, error, 3).tolist()
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
    return thinned(cost, error, most, max(2 * tolerance, 1e-6 * float(np.ptp(error))))


def position_weights(positions: np.ndarray, count: int) -> np.ndarray:
    """(P, R) the shares of the queries that go by each of R rungs at positions (P,) of a ladder.

    >>> position_weights(np.array([0.0, 1.25]), 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.75, 0.25]]
    """
    return np.maximum(0.0, 1 - np.abs(positions[:, None] - np.arange(count)))


def _deepest(cost: np.ndarray, error: np.ndarray) -> float:
    """How far points lie below the line between the first and the last of them."""
    return float((np.interp(cost, cost[[0, -1]], error[[0, -1]]) - error).max())


def _above(middle: _Point, left: _Point, right: _Point) -> bool:
    """Whether a point lies on or above the line between its neighbours."""
    (x, y), (x_left, y_left), (x_right, y_right) = middle, left, right
    return (x - x_left) * (y_right - y_left) <= (x_right - x_left) * (y - y_left)


def best_as_printed(cost: ArrayLike, error: ArrayLike) -> list[int]:
    """Return positions of the points that no other one beats, cheapest first, by three digits of each figure.

    Nor does one that costs hardly more and errs by points less: such a point is on the brink of a better price.

    >>> best_as_printed([3.0, 1.0, 1.0004, 2.0], [0.1, 0.3, 0.25, 0.2504]), best_as_printed([1.0, 1.01], [0.4, 0.36])
    ([2, 0], [1])
    """
    figures = [(float(f"{c:.3g}"), round(float(e), 3)) for c, e in zip(np.ravel(cost), np.ravel(error), strict=True)]
    best, least = [], np.inf
    for i in sorted(range(len(figures)), key=lambda i: figures[i]):
        if figures[i][1] < least:
            best.append(i)
            least = figures[i][1]

    def beaten(i: int) -> bool:
        (cost, error), most = figures[i], figures[i][0] * (1 + _HARDLY)
        return any(cost < figures[j][0] <= most and figures[j][1] <= error - _POINTS for j in best)

    return [i for i in best if not beaten(i)]


def spread(cost: ArrayLike, error: ArrayLike, most: int = _MAX_ROWS) -> list[int]:
    """Return positions of at most `most` distinct points, cheapest first, spread evenly along the curve.

    >>> spread([3.0, 1.0, 2.0, 2.0], [0.1, 0.3, 0.2, 0.2])
    [1, 2, 0]
    """
    costs, errors = np.asarray(cost, float), np.asarray(error, float)
    # Points that would be printed alike are one point.
    positions = {(f"{c:.3g}", f"{e:.3f}"): i for i, (c, e) in reversed([*enumerate(zip(costs, errors, strict=True))])}
    order = sorted(positions.values(), key=lambda i: (costs[i], errors[i]))
    if len(order) <= most:
        return order
    steps = np.hypot(*(np.abs(np.diff(x[order])) / max(np.ptp(x[order]), 1e-300) for x in (costs, errors)))
    along = np.concatenate([[0.0], np.cumsum(steps)])
    nearest = [int(np.argmin(np.abs(along - goal))) for goal in np.linspace(0, along[-1], most)]
    return [order[i] for i in dict.fromkeys(nearest)]


class InfeasibleError(ValueError):
    """No point of the frontier meets the target; the message names the best reachable figure."""

    #: What `rcjax.tune` had come to by then: a `Tuned` without a policy; None where nothing was tuned.
    tuned: Any = None


def point_for(
    target: Target,
    cost: np.ndarray,
    penalty: np.ndarray,
    abstain_price: float | None,
    counted: Counted = ERRORS,
) -> int:
    """The place of the point that meets a target.

    Args:
        target: a budget: the least error whose cost keeps to it;
            a limit on the error: the least cost that keeps to it; a price: the least error + λ·cost.
        cost: (L,) money per query.
        penalty: (L,) errors, and refusals at their price.
        abstain_price: what a refusal counts, in errors, or None.
        counted: what errors are, in words.

    Raises InfeasibleError where no point meets it.

    >>> cost, error = np.array([1.0, 2.0, 3.0]), np.array([0.3, 0.2, 0.1])
    >>> point_for(Target("budget", 2.5), cost, error, None)
    1
    """
    value, limit = target.value, target.value * (1 + 1e-9)
    if target.name == "budget":
        if not (cost <= limit).any():
            raise InfeasibleError(too_dear(value, float(cost.min())))
        return int(np.lexsort((cost, np.where(cost <= limit, penalty, np.inf)))[0])
    if target.name == "max_error":
        if not (penalty <= limit).any():
            refusing = "" if abstain_price is None else f", a refusal counted as {100 * abstain_price:.4g} %"
            best = f"the best {counted.does(f'{penalty.min():.3%}')}{refusing}"
            raise InfeasibleError(f"no cascade {counted.does(f'{value:.3%}')} or less; {best}")
        return int(np.lexsort((penalty, np.where(penalty <= limit, cost, np.inf)))[0])
    return int(np.argmin(penalty + (1 / value if target.name == "error_cost" else value) * cost))


def too_dear(budget: float, cheapest: float) -> str:
    """The message that no cascade keeps to a budget; both sums are money per query.

    >>> too_dear(1e-6, 1.82154e-5)
    'no cascade costs $1.00 per million queries or less; the cheapest costs $18.22'
    """
    money = choose_unit([cheapest])
    enough = figure(cheapest * money.scale * (1 + 5e-4), 4)  # rounded up: a budget that will do
    return f"no cascade costs {money.full(budget)} or less; the cheapest costs ${enough}"
