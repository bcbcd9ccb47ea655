"""The policies of a frontier: those that no other beats in both error and cost.

The corners of their convex hull are best at some price of an error; between two corners, where no price leads, stand
the best that a budget or a limit on the error can have there.
"""

import numpy as np

from rcjax.frontier.hull import lower_hull, pareto
from rcjax.frontier.statuses import PointStatus
from rcjax.tuning.trials import Trial

_MOST_POINTS = 250


def undominated(points: Trial) -> tuple[Trial, np.ndarray, np.ndarray]:
    """(policies, λ, status), each of L, the dearest first: CONVERGED at the corners of the hull, else INTERPOLATED."""
    hull, front = lower_hull(points.cost, points.penalty), pareto(points.cost, points.penalty)
    points, instead = _instead_of_models(points, front)
    places = _thinned(front, np.concatenate([hull, instead]))[::-1]
    slopes = -np.diff(points.penalty[hull]) / np.diff(points.cost[hull])
    lam, corner = _prices(points.cost[places], points.cost[hull], slopes)
    return points.take(places), lam, np.where(corner, PointStatus.CONVERGED, PointStatus.INTERPOLATED)


def _instead_of_models(points: Trial, front: np.ndarray) -> tuple[Trial, np.ndarray]:
    """(the policies, places of cascades) with less in hand for cascades that stand instead of a single model.

    A single model needs nothing in hand. Where only that sets it above a cascade, which errs less and costs less, a
    budget that pays for the model pays for the cascade: else it would get what is worse than either.
    """
    models, (error, cost) = np.flatnonzero(points.alone), (points.penalty, points.cost)
    reserve, instead = points.reserve.copy(), []
    for model in models[pareto(cost[models], error[models])]:
        better = front[(cost[front] <= cost[model]) & (error[front] <= error[model])]
        place = better[(cost + reserve)[better].argmin()]
        if cost[place] + reserve[place] > cost[model]:
            reserve[place] = cost[model] - cost[place]
            instead.append(place)
    return points._replace(reserve=reserve), np.array(instead, int)


def _thinned(places: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """At most so many of the places, spread evenly; some are kept in any case."""
    if len(places) <= _MOST_POINTS:
        return places
    spread = places[np.linspace(0, len(places) - 1, _MOST_POINTS).round().astype(int)]
    return places[np.isin(places, spread) | np.isin(places, kept)]


def _prices(cost: np.ndarray, corners: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(λ, whether it is a corner of the hull) of points with these costs: λ is the slope, amid both at a corner.

    Corners by rising cost, slopes (falling) between neighbours.
    """
    if not slopes.size:
        return np.where(cost > 0, 1 / np.where(cost > 0, cost, 1.0), 1.0), np.ones(len(cost), bool)
    around = np.concatenate([[4 * slopes[0]], slopes, [slopes[-1] / 4]])
    place = np.searchsorted(corners, cost)
    corner = corners[np.minimum(place, len(corners) - 1)] == cost
    amid = np.sqrt(around[place] * around[np.minimum(place + 1, len(around) - 1)])
    return np.where(corner, amid, around[place]), corner
