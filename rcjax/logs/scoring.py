"""How the labels of a log are written: right or wrong, or a score up to a full one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rcjax.logs.errors import LogError

_CONFIDENCES = ("logprob", "confidence")

#: What a person, or a program, writes for right and for wrong besides 1 and 0, by its small letters.
WORDS = {
    word: right
    for right, words in (
        (True, "true yes y right correct pass passed"),
        (False, "false no n wrong incorrect fail failed"),
    )
    for word in words.split()
}

#: Labels from which their size tells the scale.
_TELLING = 20


class Scoring(NamedTuple):
    """What a label is written as."""

    most: float = 1.0
    """The full score."""
    column: str = "correct"
    """That which is read, of the table at hand."""
    beside: bool = False
    """Labels from elsewhere count: a column `score` of the log is none."""

    def check(self) -> Scoring:
        """Itself; ValueError for a full score that is no positive number."""
        if not 0 < self.most < math.inf:
            raise ValueError(f"score_max is {self.most}; it must be a positive number, such as 10")
        return self

    def of_table(self, columns: Sequence[str]) -> Scoring:
        """The same with the column of a table that tells the labels: `score` where it has no `correct`.

        >>> Scoring().of_table(["query", "score", "logprob"]).column
        'score'
        """
        # A score beside no confidence may be meant for one: it is asked for, as before.
        plain = not self.beside and "correct" not in columns and "score" in columns and {*_CONFIDENCES} & {*columns}
        return self._replace(column="score" if plain else "correct")

    @property
    def advice(self) -> str:
        """What to put into the column, for messages."""
        if self.most != 1:
            return f"give the score, from 0 to {self.most:g}"
        return (
            "give true, false, 1, 0, or a score between, and the full score where it is not 1 (score_max=, --score-max)"
        )

    def require_scale(self, name: str, labels: np.ndarray) -> None:
        """Refuse labels that look like shares of 1 where a larger full score is said: all would be nearly lost.

        Args:
            name: of the log.
            labels: of its answers, scores from 0 to 1.
        """
        if self.most > 1 and labels.size >= _TELLING and labels.max() <= 1 / self.most:
            what = f"no score is above 1, and the full score is said to be {self.most:g}"
            raise LogError(f"{name}: {what}: leave out --score-max (score_max=) where they are shares of it")

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Scores from 0 to 1 of the numbers in the column, which may be NaN.

        >>> Scoring(10.0).scaled(np.array([7.0])).tolist()
        [0.7]
        """
        return values if self.most == 1 else values / self.most


RIGHT_OR_WRONG = Scoring()


def are_scores(labels: np.ndarray) -> bool:
    """Whether some labels are neither right nor wrong."""
    return bool(labels.dtype != bool and ((labels > 0) & (labels < 1)).any())


def as_labels(values: np.ndarray) -> np.ndarray:
    """Labels as bool; as numbers where some are scores between right and wrong. Those that are missing are 0.

    >>> as_labels(np.array([1.0, np.nan])).tolist(), as_labels(np.array([1.0, 0.5])).tolist()
    ([True, False], [1.0, 0.5])
    """
    labels = np.nan_to_num(values)
    return labels if are_scores(labels) else labels == 1
