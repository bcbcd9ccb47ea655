"""Intervals around the points of a frontier."""

import dataclasses
from functools import partial
from typing import Any

import jax
import numpy as np


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
