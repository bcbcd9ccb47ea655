"""A model whose answers count as right, and what is counted then. Standard library only.

Where nobody knows right answers, those of a model that is trusted take their place: an answer is the same, or it
differs. All figures are then of differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rcjax._base.codec import check_fields, read
from rcjax._base.wording import visible
from rcjax.policy.counted import ERRORS, Counted

Counts = Literal["differences", "errors"]


#: How answers are the same where nobody says it: as a policy compares them (`rcjax.policy.answers`).
BY_ANSWER = "answer"


#: Where a policy records its reference, in its provenance, and a file of answers whose answers others were held to.
SAME_AS = "same_as"


#: The column of a log with what a judge says of whether an answer is that of the reference.
JUDGED_SAME = "judged_same"


@dataclass(frozen=True, slots=True)
class Reference:
    """A model whose answers take the place of right ones.

    Args:
        model: its name in the log.
        same: what tells whether an answer is that of the reference: `"answer"`, as policies compare answers, or what a
            grader is called, such as `"exact"` or `"judge:large"`.
        counts: what is counted: answers that differ from the reference's (`"differences"`), or errors by labels, of
            which the reference is a judge (`"errors"`); None for errors where there are labels, else differences.

    Raises ValueError for a name that is empty.

    >>> Reference("large").counted.noun, Reference("large", counts="errors").counted.noun
    ('difference', 'error')
    """

    model: str
    same: str = BY_ANSWER
    counts: Counts | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def to_json(self) -> dict[str, Any]:
        """As a provenance keeps it."""
        return {"model": self.model, "same": self.same, "counts": self.counts}

    def describe(self) -> str:
        """What is counted, in a sentence.

        >>> Reference("large", "exact", "differences").describe()
        'Counted is whether answers differ from those of large (the same by exact), not whether they are right.'
        """
        by = f"(the same by {self.same})"
        if self.counts == "errors":
            return f"That an answer is that of {self.model} {by} is a judge's verdict, judged_same."
        return f"Counted is whether answers differ from those of {self.model} {by}, not whether they are right."

    @property
    def counted(self) -> Counted:
        """What is counted, in words.

        >>> Reference("large").counted.does("3.0 %")
        'differs from large on 3.0 %'
        """
        if self.counts == "errors":
            return ERRORS
        return Counted("difference", f"differs from {visible(self.model)} on", "one difference", "share alike")


def recorded_reference(provenance: Mapping[str, Any]) -> Reference | None:
    """The reference that a provenance records; None where right answers were known.

    ValueError names the place of what is not as rcjax writes it.

    >>> recorded_reference({}), recorded_reference({"same_as": {"model": "large", "same": "exact"}}).same
    (None, 'exact')
    """
    reference = read(Reference | None, provenance.get(SAME_AS), f"provenance.{SAME_AS}")
    return reference and replace(reference, counts=reference.counts or "differences")
