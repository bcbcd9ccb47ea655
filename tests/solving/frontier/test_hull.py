"""Points of a frontier: what nothing beats, the corners of their convex hull, the area under them."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from hypothesis.extra import numpy as arrays
from tiers import examples

from rcjax.policy.spec import Target
from rcjax.solving.frontier.frontier import best_point
from rcjax.solving.frontier.points import area_under_curve, lower_hull, pareto

UNIT = st.integers(0, 20).map(lambda n: n / 20)  # many ties


@given(arrays.arrays(float, st.tuples(st.integers(1, 30), st.just(2)), elements=UNIT))
@example(np.array([[0.15, 0.5], [0.05, 0.95], [0.25, 0.05]]))
def test_every_corner_of_the_hull_is_best_at_some_lambda(points):
    cost, error = points.T
    hull = lower_hull(cost, error)
    assert (np.diff(cost[hull]) > 0).all()
    assert (np.diff(error[hull]) < 0).all()
    for price in (0.0, 0.03, 0.4, 1.0, 2.5, 100.0):
        loss = error + price * cost
        assert loss[hull].min() <= loss.min() + 1e-12
    slopes = np.diff(error[hull]) / np.diff(cost[hull])
    # Of three on one line the middle one may stay, as rounding has it.
    assert (np.diff(slopes) > -1e-12 * np.abs(slopes[1:])).all()


def test_points_that_are_not_finite_are_ignored():
    cost, error = np.array([np.nan, 1.0, 2.0, 0.0]), np.array([0.0, 0.5, -np.inf, np.nan])
    assert lower_hull(cost, error).tolist() == [1]
    assert lower_hull(cost[:1], error[:1]).size == 0


def test_no_point_dominates_the_pareto_front():
    rng = np.random.default_rng(1)
    cost, error = rng.integers(0, 12, (2, 60)) / 12.0
    kept = pareto(cost, error)
    assert (np.diff(cost[kept]) > 0).all()
    assert (np.diff(error[kept]) < 0).all()
    for c, e in zip(cost, error, strict=True):
        assert ((cost[kept] <= c) & (error[kept] <= e)).any()
    assert pareto(np.append(cost, np.nan), np.append(error, 0.0)).tolist() == kept.tolist()


def test_a_margin_is_refused_as_a_frontier_has_no_error_of_today():
    with pytest.raises(ValueError, match=r"use tune\(log, match=\.\.\.\)"):
        best_point(Target("match", 0.01), np.ones(2), np.array([0.3, 0.2]), None)


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(2, 30), st.integers(0, 1000))
def test_the_area_is_that_of_a_fine_grid(points, seed):
    rng = np.random.default_rng(seed)
    cost, error = rng.uniform(1, 100, points), rng.uniform(0, 0.5, points)
    cost[-1], error[-1] = cost[0], 0.5  # equal costs: the errors are averaged
    span = np.ptp(cost)
    if span == 0:
        return
    low, high = cost.min() + 0.1 * span, cost.max() - 0.2 * span
    knots, place = np.unique(cost, return_inverse=True)
    grid = np.linspace(low, high, 200_001)
    fine = np.interp(grid, knots, np.bincount(place, weights=error) / np.bincount(place))
    expected = ((fine[1:] + fine[:-1]) / 2 * np.diff(grid)).sum() / (high - low)
    assert area_under_curve(cost, error, low, high) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], [0.1, 0.2], 2, 1), "low must be less than high"),
        (([1, 2], [0.1, 0.2], 0.5, 2), "covers the costs from 1 to 2"),
        (([1, 2, 3], [0.1, 0.2], 1, 2), "shapes"),
        (([1, math.nan], [0.1, 0.2], 1, 2), "finite"),
    ],
)
def test_a_curve_that_cannot_be_integrated_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        area_under_curve(*arguments)
