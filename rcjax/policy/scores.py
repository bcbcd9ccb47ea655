"""Scores in place of right and wrong, and what is counted then. Standard library only.

An answer has a score from 0 to 1, or up to some other full score, and its error is what is missing: 1 − score. All
figures are then of the score that is lost, as a share of the full one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rcjax._base.codec import Positive, check_fields, read
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.reference import Reference, recorded_reference

#: Where a policy records that its errors are lost score, in its provenance.
SCORES = "scores"


@dataclass(frozen=True, slots=True)
class Scores:
    """Answers with scores.

    Args:
        most: the full score, as the log has it; figures are shares of it.

    Raises ValueError for one that is no positive number.

    >>> Scores(10.0).counted.noun
    'score lost'
    """

    most: Positive = 1.0

    def __post_init__(self) -> None:
        check_fields(self)

    def to_json(self) -> dict[str, Any]:
        """As a provenance keeps it."""
        return {"most": self.most}

    def describe(self) -> str:
        """What is counted, in a sentence.

        >>> Scores(10.0).describe()
        'Counted is the score that is lost, as a share of the full score, 10.'
        """
        return f"Counted is the score that is lost, as a share of the full score, {self.most:g}."

    @property
    def counted(self) -> Counted:
        """What is counted, in words.

        >>> Scores(10.0).counted.does("3.0 %")
        'loses 3.0 % of the score'
        """
        return Counted("score lost", "loses", "a full score lost", "mean score", " of the score")


def recorded_scores(provenance: Mapping[str, Any]) -> Scores | None:
    """The scores that a provenance records; None where answers were right or wrong.

    ValueError names the place of what is not as rcjax writes it.

    >>> recorded_scores({}), recorded_scores({"scores": {"most": 10}})
    (None, Scores(most=10.0))
    """
    return read(Scores | None, provenance.get(SCORES), f"provenance.{SCORES}")


def counted_by(reference: Reference | None, scores: Scores | None) -> Counted:
    """What is counted where answers are held to a reference, or have scores.

    >>> counted_by(Reference("large"), None).noun, counted_by(None, None).noun
    ('difference', 'error')
    """
    if reference is not None and reference.counts != "errors":
        return reference.counted
    return ERRORS if scores is None else scores.counted


def recorded_counted(provenance: Mapping[str, Any]) -> Counted:
    """What a provenance records to be counted.

    >>> recorded_counted({"same_as": {"model": "large"}}).noun, recorded_counted({}).noun
    ('difference', 'error')
    """
    return counted_by(recorded_reference(provenance), recorded_scores(provenance))
