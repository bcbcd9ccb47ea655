"""What is counted of a policy's answers: errors, differences from a reference, or score that is lost.

All code counts errors; what was read says what an error is, and sentences are made with its noun. Where nobody knows
right answers, those of a model that is trusted take their place: an answer is the same, or it differs. An answer with a
score, from 0 to 1 or up to some other full score, loses what is missing: 1 − score. Standard library
only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rcjax._base.codec import Positive, Record, read
from rcjax._base.wording import visible

Counts = Literal["differences", "errors"]

#: How answers are the same where nobody says it: as a policy compares them (`rcjax.policy.decisions`).
BY_ANSWER = "answer"
#: Where a policy records its reference, in its provenance, and a file of answers whose answers others were held to.
SAME_AS = "same_as"
#: The column of a log with what a judge says of whether an answer is that of the reference.
JUDGED_SAME = "judged_same"
#: Where a policy records that its errors are lost score, in its provenance.
SCORES = "scores"


@dataclass(frozen=True, slots=True)
class Counted:
    """What is counted of a policy's answers, as the words that sentences, tables and figures are made with.

    >>> ERRORS.noun, ERRORS.does("3.0 %"), Counted("score lost", "loses", "a full score lost", "mean score").does("3 %")
    ('error', 'errs on 3.0 %', 'loses 3 %')
    """

    noun: str
    """Of a share, without an article: "3 % error"."""
    verb: str
    """Before a share: "errs on"."""
    one: str
    """What `error_cost` is the price of."""
    success: str
    """What the rest of the answers are, as a share: 1 less what is counted."""
    after: str = ""
    """What follows a share, behind the verb."""

    def does(self, share: str) -> str:
        """The verb with a share, in words."""
        return f"{self.verb} {share}{self.after}"


#: Right and wrong answers.
ERRORS = Counted("error", "errs on", "one error", "share right")


@dataclass(frozen=True, slots=True)
class Reference(Record):
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
    """The reference that a provenance records; None if right answers were known.

    ValueError names the place of what is not as rcjax writes it.

    >>> recorded_reference({}), recorded_reference({"same_as": {"model": "large", "same": "exact"}}).same
    (None, 'exact')
    """
    reference = read(Reference | None, provenance.get(SAME_AS), f"provenance.{SAME_AS}")
    return reference and replace(reference, counts=reference.counts or "differences")


@dataclass(frozen=True, slots=True)
class Scores(Record):
    """Answers with scores.

    Args:
        most: the full score, as the log has it; figures are shares of it.

    Raises ValueError for one that is no positive number.

    >>> Scores(10.0).counted.noun
    'score lost'
    """

    most: Positive = 1.0

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
    """The scores that a provenance records; None if answers were right or wrong.

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
