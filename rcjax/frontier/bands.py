"""Intervals around the points of a frontier, as arrays and as JSON values."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._base import json_checks as check
from rcjax.frontier.searches import cascade_names

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
    frequent = [{"models": list(models), "share": share} for share, models in shares if share >= _LEAST_SHARE]
    refused = {} if bands.abstention is None else {"abstention_interval": np.asarray(bands.abstention[index]).tolist()}
    return refused | {
        "error_interval": np.asarray(bands.error[index]).tolist(),
        "cost_interval": np.asarray(bands.cost[index]).tolist(),
        "threshold_intervals": {
            name: ends.tolist() for name, ends in zip(names, thresholds, strict=True) if np.isfinite(ends).all()
        },
        "optimism": float(bands.optimism[index]),
        "chosen_by_replicates": sorted(frequent, key=lambda entry: (-entry["share"], entry["models"])),
    }


def bands_from_json(names: Sequence[str], points: Sequence[Mapping[str, Any]], head: Any) -> Bands:
    """The inverse of `bands_to_json` for all points, but for cascades that few replicates choose.

    `head` holds `level` and `replicates`. ValueError names the place of what cannot be right.
    """
    level, replicates = _head(head)
    refusing = "abstention_interval" in points[0]
    read = [_intervals(point, f"frontier[{row}]", names, refusing) for row, point in enumerate(points)]
    cascades = tuple(dict.fromkeys(models for point in read for models in point["chosen"]))
    nothing = (np.nan, np.nan)
    return Bands(
        error=jnp.asarray([point["error_interval"] for point in read]),
        cost=jnp.asarray([point["cost_interval"] for point in read]),
        thresholds=jnp.asarray([[point["threshold_intervals"].get(name, nothing) for name in names] for point in read]),
        optimism=jnp.asarray([point["optimism"] for point in read]),
        frequency=jnp.asarray([[point["chosen"].get(models, 0.0) for models in cascades] for point in read]),
        cascades=cascades,
        level=level,
        replicates=replicates,
        abstention=jnp.asarray([point["abstention_interval"] for point in read]) if refusing else None,
    )


def _head(value: Any) -> tuple[float, int]:
    """The level of the intervals, and how many replicates they rest on."""
    head = check.items(value, "bands", check.as_it_is)
    level = check.share(head.get("level"), "bands.level")
    check.require(0 < level < 1, "bands.level", "must lie between 0 and 1", level)
    return level, check.whole(head.get("replicates"), "bands.replicates", 1)


def _intervals(point: Mapping[str, Any], where: str, names: Sequence[str], refusing: bool) -> dict[str, Any]:
    """The intervals of a point, checked; `chosen` is the share of each cascade."""
    checks: dict[str, Any] = {"error_interval": _interval, "cost_interval": _interval, "optimism": check.number}
    if refusing:
        checks["abstention_interval"] = _interval
    checks["threshold_intervals"] = partial(check.items, check=_interval)
    figures = {name: read(point.get(name), f"{where}.{name}") for name, read in checks.items()}
    at = f"{where}.threshold_intervals"
    unknown = [name for name in figures["threshold_intervals"] if name not in names]
    check.require(not unknown, at, f"must have as keys some of {', '.join(names)}", unknown)
    name = "chosen_by_replicates"
    chosen = check.entries(point.get(name), f"{where}.{name}", partial(_chosen, names=names))
    return figures | {"chosen": dict(chosen)}


def _interval(value: Any, where: str) -> tuple[float, ...]:
    ends = check.of_length(value, where, 2, check.number)
    check.require(ends[0] <= ends[1], where, "must have its lower end first", ends)
    return ends


def _chosen(value: Any, where: str, names: Sequence[str]) -> tuple[tuple[str, ...], float]:
    """A cascade, and the share of the replicates that choose it."""
    data = check.items(value, where, check.as_it_is)
    models = check.names_among(data.get("models"), f"{where}.models", names)
    return models, check.share(data.get("share"), f"{where}.share")
