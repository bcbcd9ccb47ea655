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
        return tuple(map(value.__getitem__, index.tolist()))
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


@dataclasses.dataclass(frozen=True)
class ModelLabels:
    """How many answers of a model there are, and how many have a label."""

    model: str
    answers: int
    labelled: int


@dataclasses.dataclass(frozen=True)
class ModelVerdicts:
    """What a judge says of the answers of a model."""

    model: str
    judged: int
    """Answers that it has looked at."""
    compared: int
    """Those of them that have a label."""
    agreement: float
    """Mean over the latter of 1 − |label − verdict|; NaN if there are none."""


@dataclasses.dataclass(frozen=True)
class JudgeCounts:
    """What a judge says of the answers of all models."""

    judge: str
    """Its column."""
    agreement: float
    """Over all models' answers."""
    models: tuple[ModelVerdicts, ...]

    def describe(self, answers: int) -> str:
        """In words; so many answers are there in all."""
        number = sum(model.judged for model in self.models)
        sentence = f"{self.judge} judges {'all' if number == answers else f'{number:,} answers'}"
        if not any(model.compared for model in self.models):
            return sentence
        return f"{sentence} and agrees with {percent(self.agreement, 0)} of the labels"


@dataclasses.dataclass(frozen=True)
class LabelCounts:
    """How many answers of a log have labels, by model."""

    queries: int
    """Of the log."""
    labelled_queries: int
    """Queries of which some answer has a label."""
    models: tuple[ModelLabels, ...]
    judges: tuple[JudgeCounts, ...]

    def describe(self) -> str:
        """In words, without a full stop at the end.

        >>> right, answered = np.array([[1, 1], [0, 0], [0, 0]], bool), np.ones((3, 2), bool)
        >>> labelled, judged = np.array([[1, 1], [0, 0], [0, 0]], bool), np.full((3, 2, 1), 1.0)
        >>> hand = HandLabels(labelled, judged, ("judged",))
        >>> label_counts(("small", "large"), answered, right, hand).describe()
        '1 of 3 queries is labelled; judged judges all and agrees with 100 % of the labels'
        """
        answers = sum(model.answers for model in self.models)
        return "; ".join([self._labels(answers), *(judge.describe(answers) for judge in self.judges)])

    def _labels(self, answers: int) -> str:
        labelled, some = sum(model.labelled for model in self.models), self.labelled_queries
        if labelled in (0, answers):
            return f"{'every' if labelled else 'no'} answer is labelled"
        queries = f"{some:,} of {count(self.queries, 'query')}"
        if labelled == some * len(self.models):
            return f"{queries} {'is' if some == 1 else 'are'} labelled"
        by_model = ", ".join(f"{model.model} {model.labelled:,}" for model in self.models)
        return f"{labelled:,} of {count(answers, 'answer')} are labelled, of {queries} ({by_model})"


def label_counts(models: Sequence[str], answered: np.ndarray, correct: np.ndarray, hand: HandLabels) -> LabelCounts:
    """The counts of a log.

    Args:
        models: names of the k models.
        answered: (n, k) whether there is an answer.
        correct: (n, k) whether it is right, where it has a label.
        hand: its labels and judges.
    """
    labelled, judges = np.asarray(hand.labelled) & answered, []
    for name, verdicts in zip(hand.judges, np.moveaxis(np.asarray(hand.judged), -1, 0), strict=True):
        both = labelled & np.isfinite(verdicts)
        alike, compared = np.where(both, 1 - np.abs(correct - verdicts), 0.0).sum(0), both.sum(0)
        judged = (np.isfinite(verdicts) & answered).sum(0)
        of_models = tuple(
            ModelVerdicts(model, int(looked), int(n), float(same) / int(n) if n else math.nan)
            for model, looked, n, same in zip(models, judged, compared, alike, strict=True)
        )
        agreement = float(alike.sum() / compared.sum()) if compared.any() else math.nan
        judges.append(JudgeCounts(name, agreement, of_models))
    numbers = zip(models, answered.sum(0).tolist(), labelled.sum(0).tolist(), strict=True)
    some = int(labelled.any(1).sum())
    return LabelCounts(len(answered), some, tuple(ModelLabels(*one) for one in numbers), tuple(judges))
