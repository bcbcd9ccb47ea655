"""The objective against simulation, compiled as for users: drawing is most of its time."""

import jax
import numpy as np
import pytest
from cascade_references import random_chains, take, walk

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.optimised]


@pytest.mark.thorough
def test_chains_match_simulation():
    models, thresholds, (error, cost) = random_chains()
    draw = jax.jit(lambda model, key: model.sample(key, (100_000,)))
    for i in range(2):
        drawn = np.asarray(draw(take(models, i), jax.random.key(i)))
        for t, row in enumerate(thresholds[i]):
            (mean, se), (spent, spent_se) = walk(drawn, np.asarray(models.cost[i]), row)
            assert abs(error[i, t] - mean) < 4 * se + 1e-9, (i, t)
            assert abs(cost[i, t] - spent) < 4 * spent_se + 1e-9, (i, t)
