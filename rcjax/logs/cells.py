"""Records of what is known of n queries and k models: each field says once over which of the two it runs.

One of them is which answers have a label by hand.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import jax
import numpy as np

from rcjax._base.wording import count, percent

Axis = Literal["query", "model"]

#: Metadata of a field that has an entry for each query and model, an array (n, k, …); for each query, an array or a
#: tuple; for each model, an array, a tuple or a dictionary by name.
CELL, QUERY, MODEL = ({"axes": axes} for axes in (("query", "model"), ("query",), ("model",)))


@dataclasses.dataclass(frozen=True, eq=False)
class Cells:
    """A record whose fields have axes by their metadata. Those without stay as they are when queries or models are
    taken; those that are such records follow."""

    def _along(self, axis: Axis, index: np.ndarray, names: Sequence[str] = ()) -> Self:
        """The record with the entries at positions (`index`) on an axis; `names` are those of the models there."""
        changes = {}
        for field in dataclasses.fields(self):
            value, axes = getattr(self, field.name), field.metadata.get("axes", ())
            if isinstance(value, Cells):
                changes[field.name] = value._along(axis, index, names)
            elif value is not None and axis in axes:
                changes[field.name] = _entries(value, axes.index(axis), index, names)
        return dataclasses.replace(self, **changes)


def _entries(value: Any, axis: int, index: np.ndarray, names: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return {name: value[name] for name in names if name in value}
    if isinstance(value, Sequence):
        return tuple(value[i] for i in index.tolist())
    part = np.take(np.asarray(value), index, axis)
    # Texts stay with numpy; not jnp.asarray, which compiles a program for each shape.
    return part if part.dtype.kind in "OSU" else jax.device_put(part)


@dataclasses.dataclass(frozen=True, eq=False)
class HandLabels(Cells):
    """Labels by hand of some of the answers of n queries by k models, and the verdicts of J judges."""

    labelled: jax.Array = dataclasses.field(metadata=CELL)
    """(n, k) bool: a person said whether the answer is right (`Log.correct`)."""
    judged: jax.Array = dataclasses.field(metadata=CELL)
    """(n, k, J) the judges' verdicts, from 0 (wrong) to 1 (right); NaN if there is none."""
    judges: tuple[str, ...]
    """Names of the J judges, as the columns are called."""
    samples: np.ndarray | None = dataclasses.field(default=None, metadata=CELL)
    """(n, k) which of several samples each answer is, as the column `sample` says, and so its label; "" where there is
    no answer. None if the log has one answer of each model."""


_LEAST_GAP = 0.05  # of a judge's agreement with the labels between two models that is worth telling

_ERRORS = 2.0  # so many standard errors


@dataclasses.dataclass(frozen=True)
class JudgeCounts:
    """What a judge says of the answers of k models."""

    name: str
    """Its column."""
    judged: np.ndarray
    """(k,) answers that it has looked at."""
    compared: np.ndarray
    """(k,) those of them that have a label."""
    agreement: np.ndarray
    """(k,) mean over the latter of 1 − |label − verdict|; NaN if there are none."""

    @property
    def overall(self) -> float:
        """Agreement over all models' answers."""
        n = self.compared.sum()
        return float(np.nansum(self.agreement * self.compared) / n) if n else math.nan

    def describe(self, models: Sequence[str], whole: int) -> str:
        """In words; `whole` answers are there in all."""
        number = int(self.judged.sum())
        sentence = f"{self.name} judges {'all' if number == whole else f'{number:,} answers'}"
        if not self.compared.sum():
            return sentence
        agrees = f"{sentence} and agrees with {percent(self.overall, 0)} of the labels"
        return f"{agrees} ({self._apart(models)})" if self._apart(models) else agrees

    def _apart(self, models: Sequence[str]) -> str:
        """The models with which it agrees most and least, where that is no chance."""
        comparable = np.flatnonzero(self.compared > 0)
        least, most = (int(comparable[pick(self.agreement[comparable])]) for pick in (np.argmin, np.argmax))
        ends = np.array([self.agreement[least], self.agreement[most]])
        spread = math.sqrt((ends * (1 - ends) / self.compared[[least, most]]).sum())
        if ends[1] - ends[0] < max(_LEAST_GAP, _ERRORS * spread):
            return ""
        return ", ".join(f"{models[j]} {percent(self.agreement[j], 0)}" for j in (most, least))


@dataclasses.dataclass(frozen=True)
class LabelCounts:
    """How many answers of a log have labels, by model."""

    models: tuple[str, ...]
    """The k models."""
    queries: int
    """Of the log."""
    whole: int
    """Queries of which every answer has a label."""
    some: int
    """Queries of which some answer has one."""
    answers: np.ndarray
    """(k,) of each model."""
    labelled: np.ndarray
    """(k,) of those, how many have a label."""
    judges: tuple[JudgeCounts, ...]
    """What judges say."""

    def describe(self) -> str:
        """In words, without a full stop at the end.

        >>> right, answered = np.array([[1, 1], [0, 0], [0, 0]], bool), np.ones((3, 2), bool)
        >>> labelled, judged = np.array([[1, 1], [0, 0], [0, 0]], bool), np.full((3, 2, 1), 1.0)
        >>> hand = HandLabels(labelled, judged, ("judged",))
        >>> label_counts(("small", "large"), answered, right, hand).describe()
        '1 of 3 queries is labelled; judged judges all and agrees with 100 % of the labels'
        """
        return "; ".join(
            [self._labels(), *(judge.describe(self.models, int(self.answers.sum())) for judge in self.judges)]
        )

    def _labels(self) -> str:
        if self.labelled.sum() == self.answers.sum():
            return "every answer is labelled"
        if not self.some:
            return "no answer is labelled"
        if self.some == self.whole:
            verb = "is" if self.whole == 1 else "are"
            return f"{self.whole:,} of {count(self.queries, 'query')} {verb} labelled"
        by_model = ", ".join(f"{name} {number:,}" for name, number in zip(self.models, self.labelled, strict=True))
        answers = f"{self.labelled.sum():,} of {count(int(self.answers.sum()), 'answer')}"
        return f"{answers} are labelled, of {self.some:,} of {count(self.queries, 'query')} ({by_model})"

    def to_json(self) -> dict[str, Any]:
        """As JSON values: of each model `answers` and `labelled`, and by judge what it says."""
        judges = [
            {
                "judge": judge.name,
                "agreement": judge.overall,
                "models": [
                    {"model": name, "judged": int(number), "compared": int(both), "agreement": float(share)}
                    for name, number, both, share in zip(
                        self.models, judge.judged, judge.compared, judge.agreement, strict=True
                    )
                ],
            }
            for judge in self.judges
        ]
        models = [
            {"model": name, "answers": int(answers), "labelled": int(labelled)}
            for name, answers, labelled in zip(self.models, self.answers, self.labelled, strict=True)
        ]
        return {"queries": self.queries, "labelled_queries": self.some, "models": models, "judges": judges}


def label_counts(models: Sequence[str], answered: np.ndarray, correct: np.ndarray, hand: HandLabels) -> LabelCounts:
    """The counts of a log.

    Args:
        models: names of the k models.
        answered: (n, k) whether there is an answer.
        correct: (n, k) whether it is right, where it has a label.
        hand: its labels and judges.
    """
    labelled, judged = np.asarray(hand.labelled) & answered, np.asarray(hand.judged)
    some = labelled.any(1)
    judges = []
    for j, name in enumerate(hand.judges):
        verdict = judged[..., j]
        both = labelled & np.isfinite(verdict)
        alike = np.where(both, 1 - np.abs(correct - verdict), 0.0).sum(0)
        number = both.sum(0)
        agreement = np.divide(alike, number, out=np.full(len(models), np.nan), where=number > 0)
        judges.append(JudgeCounts(name, (np.isfinite(verdict) & answered).sum(0), number, agreement))
    return LabelCounts(
        models=tuple(models),
        queries=len(answered),
        whole=int((some & (labelled == answered).all(1)).sum()),
        some=int(some.sum()),
        answers=answered.sum(0),
        labelled=labelled.sum(0),
        judges=tuple(judges),
    )
