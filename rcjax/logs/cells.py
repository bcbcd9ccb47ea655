"""Records of what is known of n queries and k models: each field says once over which of the two it runs.

One of them is which answers have a label by hand.
"""

from __future__ import annotations

import dataclasses
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


def describe_labels(models: Sequence[str], answered: np.ndarray, correct: np.ndarray, hand: HandLabels) -> str:
    """How many answers have labels, and how often judges agree with them, in words without a full stop at the end.

    Args:
        models: names of the k models.
        answered: (n, k) whether there is an answer.
        correct: (n, k) whether it is right, where it has a label.
        hand: its labels and judges.

    >>> right, answered = np.array([[1, 1], [0, 0], [0, 0]], bool), np.ones((3, 2), bool)
    >>> labelled, judged = np.array([[1, 1], [0, 0], [0, 0]], bool), np.full((3, 2, 1), 1.0)
    >>> describe_labels(("small", "large"), answered, right, HandLabels(labelled, judged, ("judged",)))
    '1 of 3 queries is labelled; judged judges all and agrees with 100 % of the labels'
    """
    labelled, answers = np.asarray(hand.labelled) & answered, int(answered.sum())
    said = [_labels_in_words(models, labelled, answers)]
    for name, verdicts in zip(hand.judges, np.moveaxis(np.asarray(hand.judged), -1, 0), strict=True):
        there = np.isfinite(verdicts)
        number, both = int((there & answered).sum()), labelled & there
        sentence = f"{name} judges {'all' if number == answers else f'{number:,} answers'}"
        if both.any():
            agreement = float(1 - np.abs(correct - verdicts)[both].mean())
            sentence += f" and agrees with {percent(agreement, 0)} of the labels"
        said.append(sentence)
    return "; ".join(said)


def _labels_in_words(models: Sequence[str], labelled: np.ndarray, answers: int) -> str:
    labels, some = int(labelled.sum()), int(labelled.any(1).sum())
    if labels in (0, answers):
        return f"{'every' if labels else 'no'} answer is labelled"
    queries = f"{some:,} of {count(len(labelled), 'query')}"
    if labels == some * len(models):
        return f"{queries} {'is' if some == 1 else 'are'} labelled"
    by_model = ", ".join(f"{model} {number:,}" for model, number in zip(models, labelled.sum(0).tolist(), strict=True))
    return f"{labels:,} of {count(answers, 'answer')} are labelled, of {queries} ({by_model})"
