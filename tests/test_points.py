"""Points of a frontier: the corners of their convex hull."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rcjax._points import lower_hull

UNIT = st.integers(0, 20).map(lambda n: n / 20)  # many ties


@given(arrays.arrays(float, st.tuples(st.integers(1, 30), st.just(2)), elements=UNIT))
def test_a_corner_is_the_best_at_every_price(points):
    cost, error = points.T
    hull = lower_hull(cost, error)
    assert (np.diff(cost[hull]) > 0).all()
    assert (np.diff(error[hull]) < 0).all()
    for price in (0.0, 0.03, 0.4, 1.0, 2.5, 100.0):
        loss = error + price * cost
        assert loss[hull].min() <= loss.min() + 1e-12
    slopes = np.diff(error[hull]) / np.diff(cost[hull])
    assert (np.diff(slopes) > 0).all()


def test_what_is_not_finite_has_no_say():
    cost, error = np.array([np.nan, 1.0, 2.0, 0.0]), np.array([0.0, 0.5, -np.inf, np.nan])
    assert lower_hull(cost, error).tolist() == [1]
    assert lower_hull(cost[:1], error[:1]).size == 0
