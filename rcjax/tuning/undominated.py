"""The policies of a frontier: near the convex hull of all, and beaten by none in both error and cost.

A policy that is best for no λ is kept where it is near one that is, so that a budget finds one near it. Policies that
compare answers are few and far between: where they leave a gap, a budget would get what lies below it, which may be
worse than what it got without answers. So all that is kept without them stays, unless it is beaten.
"""

import jax
import numpy as np

from rcjax.frontier.hull import lower_hull, pareto
from rcjax.frontier.statuses import PointStatus
from rcjax.tuning.trials import SLACK, Trial

_MOST_POINTS = 250  # of all policies, and of those that do not compare answers


def undominated(
    pairs: Trial, chains: Trial, n: float, agreeing: Trial | None = None
) -> tuple[Trial, np.ndarray, np.ndarray]:
    """(policies, λ, status), each of L, the dearest first.

    Args:
        pairs, chains: policies that do not compare answers.
        n: the number of queries that they were judged on.
        agreeing: policies that do; None: there are none.
    """
    points: Trial = jax.tree.map(lambda *several: np.concatenate(several), pairs, chains)
    places = _near_hull(points, n)
    if agreeing is not None:
        points = jax.tree.map(lambda *several: np.concatenate(several), points, agreeing)
        places = np.union1d(places, _near_hull(points, n))
        places = places[pareto(points.cost[places], points.penalty[places])]
    hull, places = lower_hull(points.cost, points.penalty), places[::-1]
    slopes = -np.diff(points.penalty[hull]) / np.diff(points.cost[hull])
    lam, corner = _prices(points.cost[places], points.cost[hull], slopes)
    return points.take(places), lam, np.where(corner, PointStatus.CONVERGED, PointStatus.INTERPOLATED)


def _near_hull(points: Trial, n: float) -> np.ndarray:
    """Places of the policies near the convex hull that no other beats, by rising cost, its corners among them."""
    hull = lower_hull(points.cost, points.penalty)
    line = np.interp(points.cost, points.cost[hull], points.penalty[hull])  # beyond its end, that end beats all
    near = np.flatnonzero(points.penalty <= line + SLACK * np.sqrt(np.maximum(line * (1 - line), 0) / n))
    return _thinned(near[pareto(points.cost[near], points.penalty[near])], hull)


def _thinned(places: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """At most so many of the places, spread evenly; the corners stay."""
    if len(places) <= _MOST_POINTS:
        return places
    spread = places[np.linspace(0, len(places) - 1, _MOST_POINTS).round().astype(int)]
    return places[np.isin(places, spread) | np.isin(places, corners)]


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
