"""What the copulas of the normal and Student's t distributions share: formulas in ρ that keep their digits near ±1."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rcjax.copulas.unit import Unit


def off_the_ends(rho: ArrayLike) -> jax.Array:
    """ρ, and beside ±1, where 1 − ρ² would be 0, as little off it as can be told; its slope is 1 there too.

    >>> bool(off_the_ends(1.0) < 1), float(off_the_ends(0.5))
    (True, 0.5)
    """
    rho = jnp.asarray(rho, jnp.result_type(float))
    last = 1 - 2 * jnp.finfo(rho.dtype).eps
    return jnp.where(jnp.abs(rho) <= last, rho, rho * last)


def spread(rho: jax.Array) -> jax.Array:
    """√(1 − ρ²), the standard deviation of y given x.

    >>> round(float(spread(0.6)), 4)
    0.8
    """
    return jnp.sqrt((1 - rho) * (1 + rho))


def gap(rho: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """x − y for ρ ≥ 0 and x + y for ρ < 0: how far (x, y) lies off the line that ρ = ±1 would put it on.

    >>> float(gap(0.5, 3.0, 1.0)), float(gap(-0.5, 3.0, 1.0))
    (2.0, 4.0)
    """
    return jnp.where(rho < 0, x + y, x - y)


def quadratic_form(rho: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """(x² − 2ρxy + y²)/(1 − ρ²), by the gap: near ρ = ±1 the terms of the numerator agree in most digits.

    It scales as x² does, so who fears an overflow passes x and y in larger units.

    >>> round(float(quadratic_form(0.5, 2.0, 1.0)), 4)
    4.0
    """
    return (gap(rho, x, y) / spread(rho)) ** 2 + jnp.where(rho < 0, -2, 2) * x * y / (1 + jnp.abs(rho))


def residual(rho: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """(y − ρx)/√(1 − ρ²), with y ∓ x apart from what is left of ρ: near ρ = ±1 that is all there is.

    >>> round(float(residual(0.6, 1.0, 1.0)), 4)
    0.5
    """
    rest = jnp.sqrt((1 - jnp.abs(rho)) / (1 + jnp.abs(rho)))
    return gap(rho, y, x) / spread(rho) + jnp.where(rho < 0, -x, x) * rest


def nearer_tail(u: Unit) -> tuple[jax.Array, jax.Array]:
    """(whether u is in the lower half, the smaller of u and 1 − u).

    >>> lower, tail = nearer_tail(Unit(jnp.asarray(1.0), jnp.asarray(1e-30)))
    >>> bool(lower), f"{float(tail):.1g}"
    (False, '1e-30')
    """
    lower = u.value <= u.complement
    return lower, jnp.where(lower, u.value, u.complement)
