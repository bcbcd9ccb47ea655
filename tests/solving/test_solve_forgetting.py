"""What a frontier compiles, counted where nothing is yet: a module of its own, as it has JAX forget the rest."""

import jax
import numpy as np
import pytest

from rcjax import solve_frontier
from rcjax.frontier.points import PointStatus

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.forgetful]


@pytest.mark.thorough
def test_a_grid_and_what_lies_between_share_one_programme(demo, demo_lam, compilations):
    jax.clear_caches()
    with compilations() as compiled:
        solve_frontier(demo, lam=demo_lam)
        frontier = solve_frontier(demo)
    assert (np.asarray(frontier.status) == PointStatus.INTERPOLATED).any()
    assert len([message for message in compiled if message.startswith("Finished XLA") and "points_at" in message]) == 1
