"""What is told beside a log: labels, answers, a reference."""

from __future__ import annotations

from typing import Any, NamedTuple

from rcjax._base.arguments import what_it_is
from rcjax.logs.sameness import Same, Sameness
from rcjax.logs.scoring import RIGHT_OR_WRONG, Scoring
from rcjax.policy.reference import Reference


class Beside(NamedTuple):
    """What is told beside a log, and what is needed of it."""

    labels: Any
    answers: Any
    needed: bool
    """Whether models need labels."""
    sameness: Sameness | None = None
    """What tells whether answers are those of a reference."""
    scoring: Scoring = RIGHT_OR_WRONG
    """How labels are written."""


def scoring_of(score_max: float, labels: Any) -> Scoring:
    """How labels are written, for these arguments of `read_log`; ValueError for what cannot be."""
    return Scoring(float(score_max), beside=labels is not None).check()


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
