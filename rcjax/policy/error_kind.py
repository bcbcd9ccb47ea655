"""Kinds of error: wrong answers, differences from the answers of a trusted model, or lost score.

All code counts errors; the log defines an error, and messages use its noun. If right answers are not known, the
answers of a trusted model take their place: an answer is the same, or it differs. An answer with a score loses the
rest of the full score: 1 − score, as a share. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rcjax._base.codec import Positive, Record, read_value, visible

Counts = Literal["differences", "errors"]

#: The default test of whether two answers are the same: as a policy compares them (`rcjax.policy.decisions`).
BY_ANSWER = "answer"
#: The entry of a policy's provenance, and of a file of answers, that records the reference.
SAME_AS = "same_as"
#: The column of a log with a judge's verdicts on whether an answer is the same as the reference's.
JUDGED_SAME = "judged_same"
#: The entry of a policy's provenance which records that errors are lost score.
SCORES = "scores"


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """A kind of error, with its words for sentences, tables and figures.

    >>> ERRORS.noun, ERRORS.predicate("3.0 %"), Scores(10.0).error_kind.predicate("3 %")
    ('error', 'errs on 3.0 %', 'loses 3 % of the score')
    """

    noun: str
    """Noun after a share, without an article: "error" in "3 % error"."""
    verb: str
    """Verb before a share: "errs on"."""
    unit: str
    """Unit that `error_cost` is the price of: "one error"."""
    success: str
    """Noun for 1 minus the share of errors: "share right"."""
    after: str = ""
    """Words that follow verb and share: " of the score"."""
    answers: str = ""
    """Noun for a number of counted answers: "wrong answers"; empty for a score, of which a part is lost."""

    def predicate(self, share: str) -> str:
        """Return the predicate of a sentence, for a share in words."""
        return f"{self.verb} {share}{self.after}"


#: Right and wrong answers.
ERRORS = ErrorKind("error", "errs on", "one error", "share right", answers="wrong answers")


@dataclass(frozen=True, slots=True)
class Reference(Record):
    """A model whose answers take the place of right ones.

    Args:
        model: name of the model in the log.
        same: test of whether an answer is the same as the reference's: `"answer"`, as policies compare answers, or the
            name of a grader, such as `"exact"` or `"judge:large"`.
        counts: the kind of error: answers that differ from the reference's (`"differences"`), or errors by labels,
            with the reference as a judge (`"errors"`); None: errors if there are labels, else differences.

    Raises ValueError for an empty name.

    >>> Reference("large").error_kind.noun, Reference("large", counts="errors").error_kind.noun
    ('difference', 'error')
    """

    model: str
    same: str = BY_ANSWER
    counts: Counts | None = None

    def describe(self) -> str:
        """Return a sentence on the kind of error.

        >>> Reference("large", "exact", "differences").describe()
        'Errors are answers that differ from those of large (compared by exact), not wrong answers.'
        """
        test = f"(compared by {self.same})"
        if self.counts == "errors":
            return f"A judge's verdict, judged_same, says whether an answer is that of {self.model} {test}."
        return f"Errors are answers that differ from those of {self.model} {test}, not wrong answers."

    @property
    def error_kind(self) -> ErrorKind:
        """The kind of error, with its words.

        >>> Reference("large").error_kind.predicate("3.0 %")
        'differs from large on 3.0 %'
        """
        if self.counts == "errors":
            return ERRORS
        verb = f"differs from {visible(self.model)} on"
        return ErrorKind("difference", verb, "one difference", "share alike", answers="different answers")


def recorded_reference(provenance: Mapping[str, Any]) -> Reference | None:
    """Read the reference from a provenance; None if right answers were known.

    ValueError names the place of a damaged entry.

    >>> recorded_reference({}), recorded_reference({"same_as": {"model": "large", "same": "exact"}}).same
    (None, 'exact')
    """
    reference = read_value(Reference | None, provenance.get(SAME_AS), f"provenance.{SAME_AS}")
    return reference and replace(reference, counts=reference.counts or "differences")


@dataclass(frozen=True, slots=True)
class Scores(Record):
    """The scale of a log whose answers have scores.

    Args:
        most: the full score, in the units of the log; figures are shares of it.

    Raises ValueError for a full score that is not a positive number.

    >>> Scores(10.0).error_kind.noun
    'score lost'
    """

    most: Positive = 1.0

    def describe(self) -> str:
        """Return a sentence on the kind of error.

        >>> Scores(10.0).describe()
        'Errors are lost score, as a share of the full score, 10.'
        """
        return f"Errors are lost score, as a share of the full score, {self.most:g}."

    @property
    def error_kind(self) -> ErrorKind:
        """The kind of error, with its words.

        >>> Scores(10.0).error_kind.predicate("3.0 %")
        'loses 3.0 % of the score'
        """
        return ErrorKind("score lost", "loses", "a full score lost", "mean score", " of the score")


def recorded_scores(provenance: Mapping[str, Any]) -> Scores | None:
    """Read the scale of scores from a provenance; None if answers were right or wrong.

    ValueError names the place of a damaged entry.

    >>> recorded_scores({}), recorded_scores({"scores": {"most": 10}})
    (None, Scores(most=10.0))
    """
    return read_value(Scores | None, provenance.get(SCORES), f"provenance.{SCORES}")


def choose_error_kind(reference: Reference | None, scores: Scores | None) -> ErrorKind:
    """Return the kind of error of a log, given its reference and its scale of scores.

    >>> choose_error_kind(Reference("large"), None).noun, choose_error_kind(None, None).noun
    ('difference', 'error')
    """
    if reference is not None and reference.counts != "errors":
        return reference.error_kind
    return ERRORS if scores is None else scores.error_kind


def recorded_error_kind(provenance: Mapping[str, Any]) -> ErrorKind:
    """Read the kind of error from a provenance.

    >>> recorded_error_kind({"same_as": {"model": "large"}}).noun, recorded_error_kind({}).noun
    ('difference', 'error')
    """
    return choose_error_kind(recorded_reference(provenance), recorded_scores(provenance))


def penalised(error: Any, abstention: Any, price: float | None) -> Any:
    """Return errors plus abstentions at their price, None if models do not abstain; numbers, or arrays of one shape.

    >>> penalised(0.1, 0.5, 0.2), penalised(0.1, 0.5, None)
    (0.2, 0.1)
    """
    return error if price is None else error + price * abstention
