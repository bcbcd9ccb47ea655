"""Laws of families and their rotations, at points and parameters that Hypothesis draws."""

# Parameters are annotated as arrays, and a rotation has those of its family, which a type checker cannot see.
# pyright: reportArgumentType=false, reportCallIssue=false

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from own_families import Lopsided
from tiers import examples, thorough

from rcjax.copulas import (
    Clayton,
    Frank,
    Gaussian,
    Gumbel,
    Joe,
    Rotation,
    StudentT,
)

pytestmark = pytest.mark.usefixtures("float64")


#: A member of each family for a t in [0, 1] that goes through its support.
THROUGHOUT = {
    "gumbel": lambda t: Gumbel(1 / (1 - 0.98 * t)),
    "clayton": lambda t: Clayton(98 * t**3),
    "frank": lambda t: Frank(70 * (t - 0.5)),
    "joe": lambda t: Joe(1 + 97 * t**3),
    "gaussian": lambda t: Gaussian(1.999 * (t - 0.5)),
    "student": lambda t: StudentT(1.999 * (t - 0.5), 2 + t),
    "lopsided": Lopsided,
}
RADIAL = {"frank", "gaussian", "student"}
UNIT = st.floats(0.0, 1.0, allow_subnormal=False)


@functools.cache
def facts(name):
    """C, h and log c at (u, v), turned points included, of the family and of its rotations."""
    family = type(THROUGHOUT[name](0.5))
    turned = [types.new_class("Turned", (Rotation,), {"of": family, "degrees": angle}) for angle in (90, 180, 270)]

    def call(t, u, v):
        base = THROUGHOUT[name](t)
        first, second = jnp.array([u, 1 - u, 1 - u, u, v]), jnp.array([v, v, 1 - v, 1 - v, u])
        own = [method(first, second) for method in (base.cdf, base.conditional, base.conditional_on_v)]
        rotated = [cls(*jax.tree.leaves(base)) for cls in turned]
        return jnp.stack(own), jnp.stack(
            [jnp.stack([c.cdf(u, v), c.conditional(u, v), c.conditional_on_v(u, v)]) for c in rotated]
        )

    return jax.jit(call)


@pytest.mark.parametrize("name", thorough(THROUGHOUT, "student".__eq__))
def test_random_points_keep_the_laws(name):
    @settings(max_examples=examples(60), deadline=None, derandomize=True)
    @given(t=UNIT, u=UNIT, v=UNIT)
    def laws(t, u, v):
        (cdf, h, on_v), (by_90, by_180, by_270) = (np.asarray(fact) for fact in facts(name)(t, u, v))
        assert np.all(np.isfinite([cdf, h, on_v]))
        assert max(u + v - 1, 0) - 1e-12 <= cdf[0] <= min(u, v) + 1e-12
        assert np.all((h >= 0) & (h <= 1) & (on_v >= 0) & (on_v <= 1))
        if name != "lopsided":
            np.testing.assert_allclose(cdf[0], cdf[4], atol=1e-12)
            np.testing.assert_allclose(h[0], on_v[4], atol=1e-12)
        if name in RADIAL:
            np.testing.assert_allclose(cdf[0], u + v - 1 + cdf[2], atol=1e-12)
        np.testing.assert_allclose(by_90[0], v - cdf[1], atol=1e-12)
        np.testing.assert_allclose(by_180[0], u + v - 1 + cdf[2], atol=1e-12)
        np.testing.assert_allclose(by_270[0], u - cdf[3], atol=1e-12)
        # 1 − u is another point than u by a rounding, which moves h by as much times the density.
        if min(u, v, 1 - u, 1 - v) > 1e-2:
            np.testing.assert_allclose(by_90[1:], [h[1], 1 - on_v[1]], atol=1e-10)
            np.testing.assert_allclose(by_180[1:], [1 - h[2], 1 - on_v[2]], atol=1e-10)
            np.testing.assert_allclose(by_270[1:], [1 - h[3], on_v[3]], atol=1e-10)

    laws()
