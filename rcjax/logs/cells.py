"""Records of n queries and k models, whose fields declare their axes; and the record of labels by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import jax
import numpy as np

from rcjax._base.wording import count, percent

Axis = Literal["query", "model"]

#: Metadata of a field with an entry per query and model (an array (n, k, …)), per query (an array or a tuple), or per
#: model (an array, a tuple or a dictionary by name).
CELL, QUERY, MODEL = ({"axes": axes} for axes in (("query", "model"), ("query",), ("model",)))


@dataclasses.dataclass(frozen=True, eq=False)
class Cells:
    """A record whose fields declare their axes in their metadata. Taking queries or models indexes these fields and
    nested records; fields without axes stay."""

    def _along(self, axis: Axis, index: np.ndarray, names: Sequence[str] = ()) -> Self:
        """Return the record with the entries at positions `index` of an axis; dictionaries keep the models `names`."""
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
    # Texts stay numpy arrays. jnp.asarray would compile a program for each shape.
    return part if part.dtype.kind in "OSU" else jax.device_put(part)


@dataclasses.dataclass(frozen=True, eq=False)
class HandLabels(Cells):
    """Labels by hand of some of the answers of n queries by k models, and the verdicts of J judges."""

    labelled: jax.Array = dataclasses.field(metadata=CELL)
    """(n, k) bool: a person labelled the answer (`Log.correct`)."""
    judged: jax.Array = dataclasses.field(metadata=CELL)
    """(n, k, J) judges' verdicts, from 0 (wrong) to 1 (right); NaN without a verdict."""
    judges: tuple[str, ...]
    """Names of the J judges: their columns in the log."""
    samples: np.ndarray | None = dataclasses.field(default=None, metadata=CELL)
    """(n, k) sample that each answer and its label belong to, from the column `sample`; "" without an answer. None if
    the log has one answer per query and model."""


def describe_labels(models: Sequence[str], answered: np.ndarray, correct: np.ndarray, hand: HandLabels) -> str:
    """Say how many answers have labels and how often judges agree with them, without a final full stop.

    Args:
        models: names of the k models.
        answered: (n, k) bool: the log holds the answer.
        correct: (n, k) label of the answer, where it has one.
        hand: mask of labels, and judges' verdicts.

    >>> right, answered = np.array([[1, 1], [0, 0], [0, 0]], bool), np.ones((3, 2), bool)
    >>> labelled, judged = np.array([[1, 1], [0, 0], [0, 0]], bool), np.full((3, 2, 1), 1.0)
    >>> describe_labels(("small", "large"), answered, right, HandLabels(labelled, judged, ("judged",)))
    '1 of 3 queries is labelled; judged judges all and agrees with 100 % of the labels'
    """
    labelled, answers = np.asarray(hand.labelled) & answered, int(answered.sum())
    sentences = [_labels_in_words(models, labelled, answers)]
    for name, verdicts in zip(hand.judges, np.moveaxis(np.asarray(hand.judged), -1, 0), strict=True):
        there = np.isfinite(verdicts)
        number, both = int((there & answered).sum()), labelled & there
        sentence = f"{name} judges {'all' if number == answers else f'{number:,} answers'}"
        if both.any():
            agreement = float(1 - np.abs(correct - verdicts)[both].mean())
            sentence += f" and agrees with {percent(agreement, 0)} of the labels"
        sentences.append(sentence)
    return "; ".join(sentences)


def _labels_in_words(models: Sequence[str], labelled: np.ndarray, answers: int) -> str:
    labels, with_label = int(labelled.sum()), int(labelled.any(1).sum())
    if labels in (0, answers):
        return f"{'every' if labels else 'no'} answer is labelled"
    queries = f"{with_label:,} of {count(len(labelled), 'query')}"
    if labels == with_label * len(models):
        return f"{queries} {'is' if with_label == 1 else 'are'} labelled"
    by_model = ", ".join(f"{model} {number:,}" for model, number in zip(models, labelled.sum(0).tolist(), strict=True))
    return f"{labels:,} of {count(answers, 'answer')} are labelled, of {queries} ({by_model})"
