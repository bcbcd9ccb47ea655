"""The smooth quantile: how far it is from the true one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rcjax.solving import smooth_quantile

pytestmark = pytest.mark.usefixtures("float64")

WIDTHS = (1e-1, 1e-2, 1e-3, 1e-5)


def test_the_smooth_quantile_goes_to_the_true_one():
    values, weights = np.array([3.0, 1.0, 9.0, 4.0]), np.array([0.3, 0.4, 0.1, 0.2])
    for level, expected in ((0.2, 1.0), (0.5, 3.0), (0.8, 4.0), (0.95, 9.0)):
        distance = [abs(float(smooth_quantile(values, weights, level, width)) - expected) for width in WIDTHS]
        assert (np.diff(distance) <= 0).all()
        assert distance[0] > 0.01 > 1e-3 > distance[-1]


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_level_outside_is_refused(level):
    with pytest.raises(ValueError, match="between 0 and 1"):
        smooth_quantile(jnp.ones(2), jnp.ones(2), level, 0.1)


def test_in_float32_too():
    with jax.enable_x64(False):
        values, weights = jnp.array([1.0, 3.0, 9.0]), jnp.array([0.6, 0.3, 0.1])
        assert smooth_quantile(values, weights, 0.9, 0.0) == 3.0  # 0.6 + 0.3 rounds to less than 0.9
