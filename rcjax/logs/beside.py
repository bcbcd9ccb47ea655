"""What is told beside a log: labels, answers, a reference, the column of segments."""

from __future__ import annotations

from typing import Any, NamedTuple

from rcjax._base.arguments import what_it_is
from rcjax.logs.sameness import Same, Sameness
from rcjax.policy.reference import Reference

__all__ = ["Beside", "sameness_of"]


class Beside(NamedTuple):
    """What is told beside a log, and what is needed of it."""

    labels: Any
    answers: Any
    needed: bool
    """Whether models need labels."""
    fewest: int
    """Models that the log must have."""
    by: str | None = None
    """The column that tells segments."""
    sameness: Sameness | None = None
    """What tells whether answers are those of a reference."""


def sameness_of(reference: str | Reference | None, same: Same | None) -> Sameness | None:
    """What gathers whether answers are those of a reference, for these arguments of `read_log`; None without one.

    ValueError for a function of the same without a reference.
    """
    if reference is None:
        if same is not None:
            what = f"same, {what_it_is(same)}, needs reference"
            raise ValueError(f"{what}: give the model whose answers the others are compared with")
        return None
    return Sameness(Reference(reference) if isinstance(reference, str) else reference, same)
