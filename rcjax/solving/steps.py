"""Ranks that are steps: where a threshold passes all of a point mass or none of it.

Within a mass the objective goes straight from the one to the other, which is what a policy would do that passes a share
of the ties at random. No threshold does. So a rank within a mass goes to the nearer end, and which ends are best is
found by trying them.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax.model.marginals import Marginal
from rcjax.solving.descent import Bounds

#: How often every model is given every step: what was best for one need not be after another has moved.
_ROUNDS = 2


class MassSteps(NamedTuple):
    """The ranks of k models at which point masses begin and end, E of them, rising, with 0 and 1 among them."""

    edges: jax.Array  # (k, E)
    smooth: jax.Array  # (k, E − 1) bool, whether there is no mass between one and the next

    @property
    def smooth_range(self) -> Bounds:
        """(k,) the ranks between the masses at the ends."""
        return Bounds(self.edges[:, 1], self.edges[:, -2])


def steps_of(marginals: Marginal) -> MassSteps:
    """The steps of marginals (k,)."""
    bottom, top = jnp.asarray(marginals.mass_lowest)[:, None], 1 - jnp.asarray(marginals.mass_highest)[:, None]
    masses = [(jnp.zeros_like(bottom), bottom), (top, jnp.ones_like(top))]
    if marginals.atoms is not None:
        masses.insert(1, jax.vmap(Marginal.atom_ranks)(marginals))
    starts, ends = (jnp.concatenate(parts, axis=1) for parts in zip(*masses, strict=True))
    edges = jnp.sort(jnp.concatenate([starts, ends], axis=1), axis=1)
    middle = (edges[:, 1:] + edges[:, :-1]) / 2
    inside = (middle[..., None] > starts[:, None]) & (middle[..., None] < ends[:, None])
    return MassSteps(edges, ~inside.any(-1) & (jnp.diff(edges, axis=1) > 0))


def on_steps(steps: MassSteps, u: jax.Array) -> jax.Array:
    """(k,) the ranks (k,), those within a mass at its nearer end."""
    piece, start, end = _piece(steps, u, "right")
    smooth = jnp.take_along_axis(steps.smooth, piece[:, None], axis=1)[:, 0]
    return jnp.where(smooth, u, jnp.where(u - start < end - u, start, end))


def smooth_pieces(steps: MassSteps, u: jax.Array) -> Bounds:
    """The smooth piece that each rank (k,) lies in, or that begins or ends there; of none, the rank alone."""
    low, high = u, u
    for side in ("left", "right"):
        piece, start, end = _piece(steps, u, side)
        smooth = jnp.take_along_axis(steps.smooth, piece[:, None], axis=1)[:, 0] & (start <= u) & (u <= end)
        low, high = jnp.where(smooth, start, low), jnp.where(smooth, end, high)
    return Bounds(low, high)


def _piece(steps: MassSteps, u: jax.Array, side: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(number, start, end), each (k,), of the piece between two steps that each rank lies in."""

    def single(edges: jax.Array, u: jax.Array) -> jax.Array:
        return jnp.clip(jnp.searchsorted(edges, u, side=side, method="compare_all") - 1, 0, edges.shape[0] - 2)

    piece = jax.vmap(single)(steps.edges, u)
    rows = np.arange(len(steps.edges))
    return piece, steps.edges[rows, piece], steps.edges[rows, piece + 1]


def best_steps(loss: Callable[[jax.Array], jax.Array], u: jax.Array, steps: MassSteps) -> jax.Array:
    """The ranks (k,), each at a step where that lowers the loss.

    One rank after the other is moved to every step, and stays at the best.
    """
    count, many = steps.edges.shape
    ranks = np.tile(np.arange(count), _ROUNDS)
    trials = jnp.asarray(np.repeat(ranks, many)), jnp.tile(steps.edges.reshape(-1), _ROUNDS)

    def attempt(carry: tuple[jax.Array, jax.Array], trial: tuple[jax.Array, jax.Array]) -> tuple[tuple, None]:
        u, least = carry
        rank, edge = trial
        moved = u.at[rank].set(edge)
        value = loss(moved)
        better = value < least
        return (jnp.where(better, moved, u), jnp.where(better, value, least)), None

    return lax.scan(attempt, (u, loss(u)), trials)[0][0]
