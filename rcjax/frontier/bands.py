"""Intervals around the points of a frontier, as arrays and as JSON values."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._base import json_checks as check


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("error", "cost", "abstention"),
    meta_fields=("level", "replicates"),
)
@dataclasses.dataclass(frozen=True)
class Bands:
    """How sure we are of each point of a frontier: L points; an interval's ends come last."""

    error: jax.Array  # (L, 2) interval for the error probability in service, of `select_frontier` for the point's money
    cost: jax.Array  # (L, 2) interval for its expected cost where nobody follows the bill, in money per query
    level: float  # probability that an interval is to cover the truth
    replicates: int  # how often the log was drawn again
    abstention: jax.Array | None = None  # (L, 2) interval for the share of queries without answer; None: models answer


def check_level(level: float) -> None:
    """ValueError unless it is a probability that an interval can have."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it is a probability between 0 and 1, such as 0.9")


def bands_to_json(bands: Bands, index: int) -> dict[str, Any]:
    """The intervals of one point as JSON values."""
    ends = {"error_interval": bands.error, "cost_interval": bands.cost, "abstention_interval": bands.abstention}
    return {name: np.asarray(interval[index]).tolist() for name, interval in ends.items() if interval is not None}


def bands_from_json(points: Sequence[Mapping[str, Any]], head: Any) -> Bands:
    """The inverse of `bands_to_json` for all points.

    `head` holds `level` and `replicates`. ValueError names the place of what cannot be right.
    """
    whole = check.items(head, "bands", check.as_it_is)
    level = check.share(whole.get("level"), "bands.level")
    check.require(0 < level < 1, "bands.level", "must lie between 0 and 1", level)
    replicates = check.whole(whole.get("replicates"), "bands.replicates", 1)

    def column(name: str) -> jax.Array:
        return jnp.asarray([_interval(point.get(name), f"frontier[{row}].{name}") for row, point in enumerate(points)])

    refused = column("abstention_interval") if "abstention_interval" in points[0] else None
    return Bands(column("error_interval"), column("cost_interval"), level, replicates, refused)


def _interval(value: Any, where: str) -> tuple[float, ...]:
    ends = check.of_length(value, where, 2, check.number)
    check.require(ends[0] <= ends[1], where, "must have its lower end first", ends)
    return ends
