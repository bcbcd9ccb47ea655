"""Points of a curve, few enough to show."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

_MAX_ROWS = 15

_HARDLY, _POINTS = 0.05, 0.02  # a share of a price, and of the queries, that make one point worse than another


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
