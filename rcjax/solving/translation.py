"""One policy under several fitted models: its thresholds on the scale of each.

A policy cuts raw confidences. Its thresholds are calibrated confidences of one fitted model, the reference; another
model, fitted to another log, calibrates otherwise, and its confidences are spread otherwise. So a rank u of the
reference is a raw confidence, and that is a rank u_m = F_m(Φ_m(raw)) of model m.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import stack
from rcjax._core.numerics import divide
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER
from rcjax.model.calibration import Calibrator
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.marginals import Atoms, Marginal
from rcjax.model.stated import StatedValues
from rcjax.solving.quadrature import Grid

#: How far beside a stated value its neighbours are looked for, in units in the last place of 1: more than
#: `Marginal.snap`.
_BESIDE = 32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RankMap:
    """u of the reference → u_m of another model, tabulated at the cells' edges; cubic in each cell, and monotone."""

    edges: jax.Array  # (k, G + 1) ranks of the reference
    values: jax.Array  # (k, G + 1) ranks of the other model
    starting: jax.Array  # (k, G) slope at the start of each cell
    ending: jax.Array  # (k, G) and at its end

    def __call__(self, u: jax.Array) -> jax.Array:
        """(k,) ranks of the other model, of ranks (k,) of the reference; differentiable."""
        return jax.vmap(_interpolate)(self.edges, self.values, self.starting, self.ending, u)

    def inverse(self, u: jax.Array) -> jax.Array:
        """(…, k) ranks of the reference, nearly, of ranks (…, k) of the other model."""
        return jax.vmap(jnp.interp, (-1, 0, 0), -1)(u, self.values, self.edges)


def _interpolate(
    edges: jax.Array, values: jax.Array, starting: jax.Array, ending: jax.Array, u: jax.Array
) -> jax.Array:
    """The Hermite cubic of the cell that u is in."""
    cell = jnp.clip(jnp.searchsorted(edges, u, side="right", method="compare_all") - 1, 0, edges.shape[0] - 2)
    width, rise = edges[cell + 1] - edges[cell], values[cell + 1] - values[cell]
    t = jnp.clip(divide(u - edges[cell], width, 0.5), 0.0, 1.0)
    m0, m1 = starting[cell] * width, ending[cell] * width
    return values[cell] + rise * t * t * (3 - 2 * t) + t * (1 - t) * (m0 * (1 - t) - m1 * t)


def rank_map(reference: tuple[Calibrator, Marginal], other: tuple[Calibrator, Marginal], grid: Grid) -> RankMap:
    """The map of one model, from the (calibrator, marginal) of the reference and of the other fitted model.

    `grid`: the quadrature of the reference. A threshold below or above a point mass of the reference is below or above
    the same raw confidence of the other model; between the two ranks it is straight. `vmap` it over models.
    """
    marginal, (_, target) = reference[1], other
    beside = _BESIDE * float(jnp.finfo(grid.u.dtype).eps)

    def rank(confidence: jax.Array) -> jax.Array:
        return target.cdf(translate(reference[0], *other, confidence))

    def at(u: jax.Array) -> jax.Array:
        return rank(marginal.quantile(u))

    # Slopes by the densities; where one of them is infinite, by the cell.
    values, slopes = jax.jvp(at, (grid.edges,), (jnp.ones_like(grid.edges),))
    masses = grid.masses
    below = rank(grid.quantile[masses] - beside)
    values = values.at[masses].set(jnp.where(grid.weight[masses] > 0, below, values[masses]))
    values = jnp.clip(values.at[0].set(0.0).at[-1].set(1.0), 0.0, 1.0)
    values = jax.lax.cummax(values)
    rise = divide(jnp.diff(values), jnp.diff(grid.edges))
    straight = jnp.zeros(rise.shape, bool).at[masses].set(True)
    starting, ending = (
        jnp.where(straight, rise, jnp.clip(jnp.where(jnp.isfinite(slope), slope, rise), 0.0, 3 * rise))
        for slope in (slopes[:-1], slopes[1:])
    )
    return RankMap(grid.edges, values, starting, ending)


def translate(reference: Calibrator, other: Calibrator, marginal: Marginal, confidence: jax.Array) -> jax.Array:
    """The threshold of one model under another calibrator that cuts the same raw confidence; elementwise.

    Between two values that the reference states it lies between those values of the other, and between the point masses
    at the ends, which are answers of raw confidence 0 and 1, between those of the other. Thresholds 0 and 1, beyond
    which everything or nothing is answered, stay.

    Args:
        reference: on whose scale the threshold is.
        other: on whose scale it is wanted.
        marginal: of the confidences on that scale.
        confidence: the threshold.

    >>> from rcjax import demo_model
    >>> from rcjax._core.batching import part
    >>> calibrator, marginal = part((demo_model().calibrators, demo_model().marginals), 0)
    >>> round(float(translate(calibrator, calibrator, marginal, jnp.asarray(0.7))), 4)
    0.7
    """
    confidence = jnp.asarray(confidence)
    info = jnp.finfo(confidence.dtype)
    beside = _BESIDE * float(info.eps)
    translated = other(reference.inverse(jnp.clip(confidence, info.tiny, 1 - info.epsneg)))
    if reference.stated is not None:
        taken = ~jnp.isnan(reference.stated.logprob)
        there = other(jnp.where(taken, reference.stated.logprob, -1.0))
        passed = reference.stated.confidence <= confidence[..., None] + beside / 4
        lowest = jnp.where(taken & passed, there, 0.0).max(-1)
        highest = jnp.where(taken & ~passed, there, jnp.inf).min(-1) - beside
        translated = jnp.maximum(jnp.minimum(translated, highest), lowest)
    translated = jnp.maximum(jnp.minimum(translated, marginal.highest - beside), marginal.lowest)
    same = (reference.coefficients == other.coefficients).all()
    if reference.stated is not None and other.stated is not None:
        same &= jnp.array_equal(reference.stated.confidence, other.stated.confidence, equal_nan=True)
    stays = same | (confidence <= ALWAYS_ANSWER) | (confidence >= NEVER_ANSWER)
    return jnp.where(stays, confidence, translated)


def check_alike(models: Sequence[CascadeModel]) -> None:
    """ValueError where one policy cannot be judged by all of the fitted models."""
    first = models[0]
    rising = np.asarray(first.calibrators.coefficients)[:, 1]
    for number, other in enumerate(models[1:], start=2):
        slopes = rising * np.asarray(other.calibrators.coefficients)[:, 1] if other.models == first.models else []
        for what, one, another in (
            ("models", ", ".join(first.models), ", ".join(other.models)),
            ("task", first.calibrators.transform, other.calibrators.transform),
            ("direction of confidence", "as raw", "falling as it rises" if np.any(np.less(slopes, 0)) else "as raw"),
        ):
            if one != another:
                raise ValueError(f"model must hold fits of one {what}: the first has {one}, number {number} {another}")


def stacked(models: Sequence[CascadeModel]) -> tuple[Calibrator, Marginal]:
    """The calibrators and marginals (M, k) of M fitted models, with as many places for stated values each."""
    stated, atoms = [one.calibrators.stated for one in models], [one.marginals.atoms for one in models]
    calibrators, marginals = [], []
    for model in models:
        highest = np.asarray(model.marginals.highest)
        none = np.full_like(highest, np.nan)
        own = _widened(model.calibrators.stated, stated, StatedValues, (none, none))
        calibrators.append(dataclasses.replace(model.calibrators, stated=own))
        own = _widened(model.marginals.atoms, atoms, Atoms, (highest, np.zeros_like(highest)))
        marginals.append(dataclasses.replace(model.marginals, atoms=own))
    return stack(calibrators), stack(marginals)


def _widened(values: Any, every: Sequence[Any], kind: Callable[..., Any], behind: tuple[np.ndarray, ...]) -> Any:
    """The values of a model, with places for as many as any model has, and of each column (k,) numbers behind them."""
    width = max((jax.tree.leaves(one)[0].shape[-1] for one in every if one is not None), default=0)
    if not width:
        return None
    columns = jax.tree.leaves(values) or [filler[:, None][:, :0] for filler in behind]
    fillers = (np.repeat(filler[:, None], width - own.shape[1], 1) for own, filler in zip(columns, behind, strict=True))
    return kind(*(np.concatenate(both, axis=1) for both in zip(columns, fillers, strict=True)))
