"""Which cascades a search goes through, and under which factorisation: as they are named and checked."""

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rcjax.model.calibrated import positions

Chain = Literal["exact", "paper"]


def check_cascade(models: tuple[str, ...], cascade: Sequence[str]) -> tuple[int, ...]:
    """Positions of a cascade's models; ValueError where it is empty, repeats a model, or is out of order."""
    if isinstance(cascade, str) or not len(cascade):
        raise ValueError(f"a cascade is a non-empty tuple of model names, not {cascade!r}")
    members = positions(models, cascade)
    if any(i >= j for i, j in itertools.pairwise(members)):
        raise ValueError(
            f"the cascade {' → '.join(cascade)} does not follow the model's order {' → '.join(models)}; "
            "read the log with models= in the order in which they are to be asked"
        )
    return members


Search = Literal["all", "full", "adaptive"] | Sequence[Sequence[str]]


def cascade_names(members: Any, models: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The names of the models of each of C cascades, from their members (C, k).

    >>> cascade_names(np.array([[True, False], [True, True]]), ("small", "large"))
    (('small',), ('small', 'large'))
    """
    return tuple(tuple(models[j] for j in np.flatnonzero(row)) for row in np.asarray(members))
