"""Which models of a log there is enough of to use, and in which order."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from rcjax.logs.columns import TO_LABEL
from rcjax.logs.errors import LogError
from rcjax.logs.listing import brief, listed
from rcjax.logs.log import LeftOutWarning, _chosen, _mean_cost
from rcjax.logs.matrices import Matrices

_FEWEST_LABELS = 2  # of a model


def models_named(held: Matrices, every: list[str], wanted: tuple[str, ...] | None, where: str) -> tuple[str, ...]:
    """The models, by first appearance or as wanted: where nobody named them, two at least.

    Args:
        held: what was read.
        every: all models of the log, by first appearance.
        wanted: the models that somebody named; None for all.
        where: the log, for messages.
    """
    names = tuple(held.models) if wanted is None else _chosen(wanted, every, where)
    unused = [name for name in (every if wanted is None else names) if name not in held.models]
    if unused and (wanted is not None or not held.models):
        why = "its calls failed, or did not go to all models"
        raise LogError(f"{where}, model {brief(unused[0])}: no row can be used: {why}")
    if wanted is None and len(names) < 2:
        raise LogError(f"{where}: only one model, {', '.join(names)}: a cascade needs at least two")
    return names


def labelled_models(
    held: Matrices, names: tuple[str, ...], wanted: tuple[str, ...] | None, where: str
) -> tuple[str, ...]:
    """The models that have labels enough; others are left out with a warning, unless somebody named them.

    Args:
        held: what was read.
        names: the models of which some are taken.
        wanted: the models that somebody named; None for all.
        where: the log, for messages.
    """
    labels = dict(zip(held.models, held.take("labelled").sum(0).tolist(), strict=True))
    if not any(labels.values()):
        raise LogError(f"{where}: no answer has a label: {TO_LABEL}")
    unknown = [name for name in names if not labels[name]]
    if unknown and wanted is not None:
        what = f"none of its answers has a label: label {_FEWEST_LABELS} or more, or leave it out of the models"
        raise LogError(f"{where}, model {brief(unknown[0])}: {what}; {TO_LABEL}")
    if unknown:
        what = f"left out, as no answer of theirs has a label: {listed(unknown)}"
        warnings.warn(f"{where}: {what}: label some ({TO_LABEL})", LeftOutWarning, stacklevel=4)
    names = tuple(name for name in names if name not in unknown)
    rare = [name for name in names if labels[name] < _FEWEST_LABELS]
    if rare:
        what = f"only 1 label, {_FEWEST_LABELS} are needed: label more, or leave it out of the models"
        raise LogError(f"{where}, model {brief(rare[0])}: {what}; {TO_LABEL}")
    if wanted is None and len(names) < 2:
        what = f"only one model has labels, {', '.join(names)}: a cascade needs at least two"
        raise LogError(f"{where}: {what}: {TO_LABEL}")
    return names


def by_cost(held: Matrices, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of models by their mean cost; those of equal cost stay in the order that they have."""
    columns = [held.models[name] for name in names]
    order = np.argsort(_mean_cost(held.take("cost")[:, columns], held.take("row")[:, columns] >= 0), kind="stable")
    return tuple(names[i] for i in order)


def require_answers(answered: np.ndarray, names: Sequence[str], where: str) -> None:
    """Refuse a model with a single answer. `answered` is (n, k), of the models named. Raises `LogError`."""
    answers = answered.sum(axis=0)
    if answers.min() < 2:
        rare = names[int(answers.argmin())]
        raise LogError(f"{where}, model {rare}: only 1 answer, 2 are needed: leave it out of the models")
