"""The lower convex hull of points (cost, error), and the mixtures of its corners at positions of a ladder."""

import numpy as np

from rcjax._core.batching import Array

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
        while len(corners) > 1 and _is_on_or_above(points[corners[-1]], points[corners[-2]], point):
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

    Rungs are taken in the order of the ladder, by rising expected cost, although their bills on a log may not rise. For
    each amount of money, the service stands at the last position in this order whose bill is within the money, or else
    on the rung with the least bill. Only neighbouring rungs are mixed.

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


def _is_on_or_above(middle: _Point, left: _Point, right: _Point) -> bool:
    """Return whether a point lies on or above the line between its neighbours."""
    (x, y), (x_left, y_left), (x_right, y_right) = middle, left, right
    return (x - x_left) * (y_right - y_left) <= (x_right - x_left) * (y - y_left)
