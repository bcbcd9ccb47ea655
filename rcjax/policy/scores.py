"""Scores in place of right and wrong: what is counted then, and the words for it. Standard library only.

An answer has a score from 0 to 1, or up to some other full score, and its error is what is missing: 1 − score. All
figures are then of the score that is lost, as a share of the full one, and `Scores.say` has the words for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rcjax._base import json_checks as check
from rcjax.policy.counted import ERRORS, Counted, Words
from rcjax.policy.reference import Reference, recorded_reference

#: Where a policy records that its errors are lost score, in its provenance.
SCORES = "scores"


@dataclass(frozen=True, slots=True)
class Scores:
    """Answers with scores.

    Args:
        most: the full score, as the log has it; figures are shares of it.

    Raises ValueError for one that is no positive number.

    >>> Scores(10.0).say("at most 5 % wrong: the policy errs on 3 %, an error of 0.03")
    'at most 5 % of the score lost: the policy loses 3 % of the score, a score loss of 0.03'
    """

    most: float = 1.0

    def __post_init__(self) -> None:
        check.positive(self.most, "score_max")

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

    def say(self, text: str) -> str:
        """A text on errors, in the words of scores; a heading tells the full score, where that is not 1.

        >>> Scores(10.0).say("expected error"), Scores().say("error")
        ('expected score lost of 10', 'score lost')
        """
        heading = self.most != 1 and text.rstrip() in _HEADINGS
        return _WORDS.say(text) + (f" of {self.most:g}" if heading else "")


def recorded_scores(provenance: Mapping[str, Any]) -> Scores | None:
    """The scores that a provenance records; None where answers were right or wrong.

    ValueError names the place of what is not as rcjax writes it.

    >>> recorded_scores({}), recorded_scores({"scores": {"most": 10}})
    (None, Scores(most=10.0))
    """
    if provenance.get(SCORES) is None:
        return None
    where = f"provenance.{SCORES}"
    record = check.items(provenance[SCORES], where, check.as_it_is)
    return Scores(check.positive(record.get("most"), f"{where}.most"))


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


_HEADINGS = ("error", "expected error", "Error")


_SHARE = r"(about )?([\d.]+(?: ± [\d.]+)?\s%(?: \([^()]*interval [^()]*\))?)"


_WORDS = Words.of(
    (rf"(?:is|was) wrong on {_SHARE}(?: of (?:the|these|its) queries)?", "loses {1}{2} of the score"),
    (rf"be wrong on {_SHARE}", "lose {1}{2} of the score"),
    (rf"errs (?:on|in) {_SHARE}", "loses {1}{2} of the score"),
    (rf"erred on {_SHARE}", "lost {1}{2} of the score"),
    (rf"err on (at most )?{_SHARE}", "lose {1}{2}{3} of the score"),
    (rf"{_SHARE} were answered wrongly", "{1}{2} of the score were lost"),
    (rf"{_SHARE} wrong", "{1}{2} of the score lost"),
    (rf"{_SHARE} of its answers are right", "its score is {1}{2} of the full one"),
    ("one wrong answer costs", "a full score lost costs"),
    ("wrong answers", "score lost"),
    ("the right ones among them from the wrong ones", "high scores among them from low ones"),
    ("the probability that an answer is right", "the share of the score that an answer is expected to get"),
    ("an answer is right", "an answer gets its score"),
    ("against 1 for right and 0 for wrong", "against the score"),
    ("share of right answers", "mean score"),
    ("right answers from wrong ones", "high scores from low ones"),
    ("a right answer of", "a high score of"),
    ("a right answer", "an answer of a high score"),
    ("right answers", "high scores"),
    ("than a wrong one", "than a low one"),
    ("above a wrong", "above a low one"),
    ("right is surer", "the higher is surer"),
    ("Right is surer", "The higher is surer"),
    ("errors of single models are", "the score lost by single models is"),
    ("fewer errors", "less score lost"),
    ("more errors", "more score lost"),
    ("the fewest errors", "the least score lost"),
    ("wrong label", "label that is off"),
    ("what is wrong in", "what is off in"),
    ("both wrong", "both without a score"),
    ("whether its answer is labelled right", "its score"),
    ("is right as often as", "has the score that"),
    ("share right", "mean score"),
    ("accuracy", "mean score"),
    ("Accuracy", "Mean score"),
    ("wrong", "lost"),
    ("errs", "loses score"),
    ("erred", "lost score"),
    ("err", "lose score"),
    ("an error", "a score loss"),
    ("An error", "A score loss"),
    ("errors?", "score lost"),
    ("Errors?", "Score lost"),
)
