"""Points that no other beats: the Pareto set, the lower convex hull, and mixtures of its corners."""

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


def meet(values: np.ndarray, target: float) -> tuple[list[int], list[float]]:
    """Places in values, which rise, and the weights with which they average to a target of at least the first.

    Two neighbours, or one place where a value is the target (to 1e-9 of it) or none is above it.

    >>> meet(np.array([1.0, 2.0, 6.0]), 3.0), meet(np.array([1.0, 2.0, 6.0]), 2.0), meet(np.array([1.0]), 9.0)
    (([1, 2], [0.75, 0.25]), ([1], [1.0]), ([0], [1.0]))
    """
    above = int(np.searchsorted(values, target * (1 + 1e-9), side="right"))
    if above == len(values) or values[above - 1] >= target * (1 - 1e-9):
        return [above - 1], [1.0]
    share = float((target - values[above - 1]) / (values[above] - values[above - 1]))
    return [above - 1, above], [1 - share, share]


def _above(middle: int, left: int, right: int, x: np.ndarray, y: np.ndarray) -> bool:
    """Whether a point lies on or above the line between its neighbours."""
    return (x[middle] - x[left]) * (y[right] - y[left]) <= (x[right] - x[left]) * (y[middle] - y[left])
