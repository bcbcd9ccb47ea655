"""From a cut in u-space to the best threshold near it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.numerics import divide
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER
from rcjax.model.marginals import Marginal
from rcjax.solving.quadrature import Grid

_ULPS, _SETTLING_STEPS = 16, 5


def settle_threshold(
    marginal: Marginal, grid: Grid, u: jax.Array, worth: jax.Array, slope: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The best threshold φ near a cut, and what it really does: (φ, F(φ), E[Φ; Φ > φ]), each scalar.

    Deferring is worth `worth` + `slope`·(F(φ) − u) to a query of confidence φ, so the loss is stationary where that
    equals φ: Newton's method on the exact gradient, between the nodes around u. φ is 0 or 1 where u cuts a point mass,
    since a threshold passes all of it or none. A threshold beside a mass keeps a few units in the last place away from
    it, so that the rounding of a calibrated confidence, here or in a service, does not move a whole mass across.

    Args:
        marginal: of the model.
        grid: its quadrature nodes.
        u: () the cut, on the scale of ranks.
        worth: () of deferring at the cut, in right answers; where it is NaN, φ solves F(φ) = u instead.
        slope: () of that worth, per unit of rank.
    """
    eps = jnp.finfo(grid.u.dtype).eps
    bottom, top = grid.edges[1], grid.edges[-2]
    always, never = (u < bottom - 4 * eps) | (u <= 0), (u > top + 4 * eps) | (u >= 1)
    nodes = jnp.concatenate([bottom[None], grid.u[1:-1], top[None]])
    last = nodes.shape[0] - 1
    right = jnp.clip(jnp.searchsorted(nodes, u, method="compare_all"), 1, last)
    beside, around = jnp.stack([nodes, grid.quantile])[:, jnp.clip(right + np.arange(-2, 2), 0, last)]
    margin = jnp.minimum(_ULPS * eps, (marginal.highest - marginal.lowest) / 4)
    low, high = jnp.clip(around[np.array([0, 3])], marginal.lowest + margin, marginal.highest - margin)
    if marginal.atoms is not None:
        u, low, high = _between_atoms(marginal, u, (low, high), margin)
    low, high = (jnp.where(always, ALWAYS_ANSWER, jnp.where(never, NEVER_ANSWER, end)) for end in (low, high))
    worth = jnp.where((u > bottom + 4 * eps) & (u < top - 4 * eps), worth, jnp.nan)

    def newton(_, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        threshold = state[0]
        cdf, density, above = marginal.profile(threshold)
        to_optimum = divide(worth + slope * (cdf - u) - threshold, 1 - jnp.minimum(slope * density, 0.9))
        step = jnp.where(jnp.isnan(worth), divide(u - cdf, density), to_optimum)
        return jnp.clip(threshold + jnp.nan_to_num(step), low, high), threshold, cdf, above

    share = divide(u - beside[1], beside[2] - beside[1], 0.5)
    guess = jnp.clip(around[1] + share * (around[2] - around[1]), low, high)
    return lax.fori_loop(0, _SETTLING_STEPS, newton, (guess, guess, guess, guess))[1:]


def _between_atoms(
    marginal: Marginal, u: jax.Array, around: tuple[jax.Array, jax.Array], margin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(cut, lowest, highest threshold) of a cut that passes all of every point mass or none of it.

    A cut within an atom goes to its nearer end. Where nothing smooth lies between two masses, the threshold is midway.

    Args:
        marginal: of the model; with atoms.
        u: () the cut.
        around: thresholds between which it lies.
        margin: how far from a mass a threshold stays.
    """
    atoms = marginal.atoms
    assert atoms is not None
    bottom, top = jnp.asarray(marginal.mass_lowest)[None], 1 - jnp.asarray(marginal.mass_highest)[None]
    start, end = (
        jnp.concatenate([first, middle, last])
        for first, middle, last in zip((0 * bottom, bottom), marginal.atom_ranks(), (top, 1 + 0 * top), strict=True)
    )
    value = jnp.concatenate([marginal.lowest[None], atoms.value, marginal.highest[None]])
    there = end > start
    inside = there & (u > start) & (u < end) & (value > marginal.lowest) & (value < marginal.highest)
    nearer = jnp.where(u - start < end - u, start, end)
    u = jnp.where(inside.any(), (inside * nearer).sum(), u)
    rounding = 8 * jnp.finfo(u.dtype).eps
    passed, ahead = there & (end <= u + rounding), there & (start >= u - rounding) & ~(there & (end <= u + rounding))
    below = jnp.where(passed, value, marginal.lowest).max()
    above = jnp.where(ahead, value, marginal.highest).min()
    reached, next_start = jnp.where(passed, end, 0.0).max(), jnp.where(ahead, start, 1.0).min()
    empty = next_start - reached <= rounding * value.shape[0]
    margin = jnp.minimum(margin, (above - below) / 4)
    low, high = jnp.clip(jnp.stack(around), below + margin, above - margin)
    middle = (below + above) / 2
    return u, jnp.where(empty, middle, low), jnp.where(empty, middle, high)
