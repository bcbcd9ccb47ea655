"""Points that no other beats: the Pareto set, the lower convex hull, and few of its corners."""

import numpy as np


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
    corners: list[int] = []
    for index in pareto(cost, error).tolist():
        while len(corners) > 1 and _above(corners[-1], corners[-2], index, cost, error):
            corners.pop()
        corners.append(index)
    return np.array(corners, int)


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


def _above(middle: int, left: int, right: int, x: np.ndarray, y: np.ndarray) -> bool:
    """Whether a point lies on or above the line between its neighbours."""
    return (x[middle] - x[left]) * (y[right] - y[left]) <= (x[right] - x[left]) * (y[middle] - y[left])
