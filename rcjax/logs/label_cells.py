"""Labels in the cells of a log's matrices: which answers have one, how likely that was, and what judges say of them."""

from __future__ import annotations

import math

import jax
import numpy as np

from rcjax.logs.cells import HandLabels
from rcjax.logs.checked_rows import Rows, numbers
from rcjax.logs.columns import SAMPLE, judge_columns
from rcjax.logs.matrices import Matrices
from rcjax.logs.scoring import as_labels


def label_cells(rows: Rows) -> dict[str, np.ndarray]:
    """What rows say of right and wrong, by the name of the matrix: `correct`, `labelled`, and others as they are there.

    Those whose names begin with `own_` are the log's own, where labels come from elsewhere (`Labeller.mark`).
    """
    cells: dict[str, np.ndarray] = {}
    for prefix in ("", "own_"):
        if f"{prefix}correct" in rows.frame.columns:
            right = _labels(rows, prefix)
            cells |= {f"{prefix}correct": as_labels(right), f"{prefix}labelled": ~np.isnan(right)}
    nothing = np.zeros(rows.frame.height, bool)
    verdicts = {judge: numbers(rows, judge, optional=True) for judge in judge_columns(rows.frame.columns)}
    return {"correct": nothing, "labelled": nothing} | cells | verdicts


def _labels(rows: Rows, prefix: str) -> np.ndarray:
    if prefix:
        frame = rows.frame.drop("correct", strict=False).rename({f"{prefix}correct": "correct"})
        rows = Rows(rows.name, rows.source, frame, rows.position, rows.own_scoring)
    return numbers(rows, "correct", optional=True)


def empty_cell(name: str) -> bool | float:
    """What stands in a matrix of `label_cells` where there is no answer."""
    return False if name.endswith(("correct", "labelled")) else math.nan


def settle_labels(held: Matrices) -> bool:
    """Bring labels from elsewhere together with the log's own; True where these are replaced, False where they stay.

    A full column of the log is replaced. One that is filled in part is added to: of an answer that has two labels, that
    from elsewhere counts.
    """
    if not held.has("own_labelled"):
        return False
    labelled_by_log, answered = held.take("own_labelled"), held.take("row") >= 0
    if labelled_by_log[answered].all():
        return True
    labelled = held.take("labelled").copy()
    for name in ("correct", "labelled"):
        held.replace(name, np.where(labelled, held.take(name), held.take(f"own_{name}")))
    return False


def hand_labels_of(held: Matrices, columns: np.ndarray | list[int]) -> HandLabels | None:
    """Who has labelled what of the answers of some models, by their columns; None where that is all, and nobody judges.

    Judges that say nothing are left out.
    """
    answered, labelled = held.take("row")[:, columns] >= 0, held.take("labelled")[:, columns]
    verdicts = {name: held.take(name)[:, columns] for name in judge_columns(held.names)}
    verdicts = {name: verdict for name, verdict in verdicts.items() if np.isfinite(verdict).any()}
    if labelled[answered].all() and not verdicts:
        return None
    judged = np.stack([*verdicts.values()], axis=-1) if verdicts else np.zeros((*labelled.shape, 0))
    matrices = [np.ascontiguousarray(matrix) for matrix in (labelled, judged)]
    samples = held.take(SAMPLE)[:, columns] if held.has(SAMPLE) else None
    return HandLabels(*jax.device_put(matrices), judges=tuple(verdicts), samples=samples)
