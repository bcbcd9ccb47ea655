"""Intervals around the points of a frontier, as arrays and as JSON values."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._points import cascade_names

_LEAST_SHARE = 0.02  # of the replicates that must choose a cascade for it to be listed in JSON


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("error", "cost", "thresholds", "optimism", "frequency", "abstention"),
    meta_fields=("cascades", "level", "replicates"),
)
@dataclasses.dataclass(frozen=True)
class Bands:
    """How sure we are of each point of a frontier: L points, k models, C cascades; an interval's ends come last.

    The k models are in the order of the frontier's `models`.
    """

    error: jax.Array  # (L, 2) interval for the error probability of the policy in service
    cost: jax.Array  # (L, 2) interval for its expected cost, in money per query
    thresholds: jax.Array  # (L, k, 2) interval for the best threshold; NaN where no replicate has one
    optimism: jax.Array  # (L,) what is minimised (error + λ·cost) of a replicate's policy out of its bag, less in it
    frequency: jax.Array  # (L, C) share of the replicates that choose each cascade at this λ
    cascades: tuple[tuple[str, ...], ...]  # the C cascades, by their models' names
    level: float  # probability that an interval is to cover the truth
    replicates: int  # how often the log was drawn again
    abstention: jax.Array | None = None  # (L, 2) interval for the share of queries without answer; None: models answer


def check_level(level: float) -> None:
    """ValueError unless it is a probability that an interval can have."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it is a probability between 0 and 1, such as 0.9")


def frequencies(members: np.ndarray, models: tuple[str, ...]) -> tuple[tuple[tuple[str, ...], ...], np.ndarray]:
    """(the cascades, their shares (L, C)) among what B replicates choose at L points, members (B, L, k)."""
    kinds, which = np.unique(members.reshape(-1, members.shape[-1]), axis=0, return_inverse=True)
    which = which.reshape(members.shape[:2])
    shares = np.stack([(which == kind).mean(0) for kind in range(len(kinds))], axis=-1)
    return cascade_names(kinds, models), shares


def bands_to_json(bands: Bands, names: Sequence[str], index: int) -> dict[str, Any]:
    """The intervals of one point as JSON values; `names` are all k models."""
    thresholds = np.asarray(bands.thresholds[index])
    shares = zip(np.asarray(bands.frequency[index]).tolist(), bands.cascades, strict=True)
    kept = [{"models": list(models), "share": share} for share, models in shares if share >= _LEAST_SHARE]
    refused = {} if bands.abstention is None else {"abstention_interval": np.asarray(bands.abstention[index]).tolist()}
    return refused | {
        "error_interval": np.asarray(bands.error[index]).tolist(),
        "cost_interval": np.asarray(bands.cost[index]).tolist(),
        "threshold_intervals": {
            name: ends.tolist() for name, ends in zip(names, thresholds, strict=True) if np.isfinite(ends).all()
        },
        "optimism": float(bands.optimism[index]),
        "chosen_by_replicates": sorted(kept, key=lambda each: -each["share"]),
    }


def bands_from_json(names: Sequence[str], points: Sequence[Mapping[str, Any]], head: Mapping[str, Any]) -> Bands:
    """The inverse of `bands_to_json` for all points, but for cascades that few replicates choose.

    `head` holds `level` and `replicates`. Raises KeyError, TypeError or ValueError for anything else.
    """
    chosen = [{tuple(each["models"]): each["share"] for each in point["chosen_by_replicates"]} for point in points]
    cascades = tuple(dict.fromkeys(models for point in chosen for models in point))
    nothing = [np.nan, np.nan]
    thresholds = [[point["threshold_intervals"].get(name, nothing) for name in names] for point in points]
    return Bands(
        error=jnp.asarray([point["error_interval"] for point in points]),
        cost=jnp.asarray([point["cost_interval"] for point in points]),
        thresholds=jnp.asarray(thresholds),
        optimism=jnp.asarray([point["optimism"] for point in points]),
        frequency=jnp.asarray([[point.get(models, 0.0) for models in cascades] for point in chosen]),
        cascades=cascades,
        level=float(head["level"]),
        replicates=int(head["replicates"]),
        abstention=_abstention(points),
    )


def _abstention(points):
    if "abstention_interval" not in points[0]:
        return None
    return jnp.asarray([point["abstention_interval"] for point in points])
