"""Whether answers are those of a reference model: a source of labels where nobody knows right answers.

What is counted is then whether an answer differs. Where there are labels besides, that it is the reference's is what a
judge says, under the name `judged_same`, and the labels correct it.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from rcjax._base.wording import count
from rcjax.logs.answer_codes import UNKNOWN
from rcjax.logs.checked_rows import Rows
from rcjax.logs.columns import ANSWERS, SAMPLE, judge_columns
from rcjax.logs.errors import LogError, brief, listed, near
from rcjax.logs.log import FailedCalls, LeftOutWarning
from rcjax.logs.matrices import Matrices
from rcjax.policy.reference import BY_ANSWER, JUDGED_SAME, SAME_AS, Reference

#: (query, answer, the reference's answer) → whether they are the same; None where that cannot be told.
Same = Callable[[str, str, str], bool | None]


#: The column that tells which grader said what is in `judged_same`; `SAME_AS` tells of which model's answers.
SAME_BY = f"graded_by_{JUDGED_SAME}"


_GRADE = "rcjax grade {log} --reference {model} --grade {same} gives them"


class Sameness:
    """Tells which answers of a log are the reference's, from its rows.

    Args:
        reference: the model, and what tells whether answers are the same.
        same: the same as a function of texts; None where answers are compared as policies do, or a judge has said it.
    """

    def __init__(self, reference: Reference, same: Same | None) -> None:
        self.reference, self._same = reference, same
        if same is not None and reference.same == BY_ANSWER:
            name = getattr(same, "__name__", type(same).__name__)
            self.reference = dataclasses.replace(reference, same=f"python:{name}")

    @property
    def _judged(self) -> bool:
        """Whether the log itself must say it."""
        return self._same is None and self.reference.same != BY_ANSWER

    def columns(self, name: str, columns: Sequence[str]) -> list[str]:
        """The columns of a log to read besides. Raises `LogError` where the one that is needed is not there."""
        if not self._judged:
            return []
        missing = [column for column in (JUDGED_SAME, SAME_AS, SAME_BY) if column not in columns]
        if missing:
            of_service = "call_log" in columns and "call" not in columns
            where = ", in a log beside it, to be read in its place" if of_service else ""
            raise LogError(
                f"{name}: no column {missing[0]}, what {self.reference.same} says of them: {self._how(name)}{where}"
            )
        return [SAME_AS, SAME_BY]

    def _how(self, name: str) -> str:
        return _GRADE.format(log=name, model=self.reference.model, same=self.reference.same)

    def put(self, held: Matrices, cells: tuple[np.ndarray, np.ndarray], rows: Rows) -> None:
        """Take what some rows tell. Raises `LogError` for verdicts on another model's answers, or of another judge."""
        if self._judged:
            said = rows.frame[JUDGED_SAME].is_not_null()
            for column, wanted in ((SAME_AS, self.reference.model), (SAME_BY, self.reference.same)):
                other = said & (rows.frame[column].fill_null("") != wanted)
                rows.refuse(other, column, f"is not {brief(wanted)}: {self._how(rows.name)}")
        elif self._same is not None:
            if SAMPLE in rows.frame.columns:
                what = f"{self.reference.same} does not tell the samples of a model apart"
                raise LogError(f"{rows.name}: {what}: leave out --same (same=), or keep one answer of each model")
            column = next((name for name in ANSWERS if name in rows.frame.columns), None)
            if column is None:
                return
            held.add("said", None)
            held.put(cells, said=rows.frame[column].to_numpy())

    def settle(self, held: Matrices, name: str, every: Sequence[str]) -> tuple[Reference, tuple[FailedCalls, ...]]:
        """Put what is the same beside the labels, as the verdicts of a judge; what is counted, which lack it.

        Queries that the reference did not answer are left out, with a warning that counts them. Raises `LogError` where
        the log has no reference, or no answers to compare.

        Args:
            held: what was read.
            name: of the log.
            every: all models that the log names, those without a row to use too.
        """
        model = self.reference.model
        if model in every and model not in held.models:
            what = f"no row of {brief(model)}, the reference, can be used: all its calls failed, or did not go to all"
            raise LogError(f"{name}: {what} models: look at the column error")
        if model not in held.models:
            what = f"no model {brief(model)}{near(model, held.models)}, which is to be the reference"
            raise LogError(f"{name}: {what}: it has {listed(held.models)}")
        same, there = self._compared(held, name)
        answered = held.take("row") >= 0
        lost, silent = answered.any(1) & ~there, ()
        if not there.any():
            raise LogError(f"{name}: {model} has answered none of its queries: does the log hold its answers?")
        if lost.any():
            queries = f"{count(int(lost.sum()), 'query')} of {len(lost):,} left out"
            why = f"as {model}, the reference, gave no answer"
            warnings.warn(f"{name}: {queries}, {why}", LeftOutWarning, stacklevel=4)
            silent = _silent(held, model, answered[lost])
            row, column = np.nonzero(answered & lost[:, None])
            held.clear((row, column))
        labelled = bool((held.take("labelled") & (held.take("row") >= 0)).any())
        counts = self.reference.counts or ("errors" if labelled else "differences")
        held.add(JUDGED_SAME, math.nan)
        held.take(JUDGED_SAME)[:] = np.where(held.take("row") >= 0, same, math.nan)
        return dataclasses.replace(self.reference, counts=counts), silent

    def _compared(self, held: Matrices, name: str) -> tuple[np.ndarray, np.ndarray]:
        """((n, k) 1 for answers that are the reference's, 0 for others, NaN where that is unknown, (n,) whether the
        reference has answered)."""
        reference = held.models[self.reference.model]
        if self._judged:
            same = held.take(JUDGED_SAME).copy()
            there = held.take("row")[:, reference] >= 0
        elif self._same is not None and held.has("said"):
            same, there = self._by_texts(held, reference)
        elif self._same is None and held.has("answer"):
            codes = held.take("answer")
            there = codes[:, reference] != UNKNOWN
            same = (codes == codes[:, [reference]]).astype(float)
        else:
            raise LogError(
                f"{name}: nothing tells what models answered: add a column answer, or give answers by --answers"
            )
        same[:, reference] = 1.0
        return same, there

    def _by_texts(self, held: Matrices, reference: int) -> tuple[np.ndarray, np.ndarray]:
        """The same by the function of texts; an answer without a text differs."""
        assert self._same is not None
        texts, same = held.take("said"), np.zeros(held.take("said").shape)
        there = np.array([bool(text and text.strip()) for text in texts[:, reference]])
        for query, row in held.queries.items():
            for column in np.flatnonzero(texts[row] != None) if there[row] else ():  # noqa: E711 - of an array
                verdict = self._same(query, texts[row, column], texts[row, reference])
                same[row, column] = math.nan if verdict is None else float(verdict)
        return same, there


def _silent(held: Matrices, reference: str, answered: np.ndarray) -> tuple[FailedCalls, ...]:
    """Queries (n, k), by whom they were answered, to which the reference replied without an answer."""
    names = np.array([*held.models])
    asked = Counter(frozenset(names[row].tolist()) for row in answered if row[held.models[reference]])
    return tuple(FailedCalls(models, frozenset([reference]), queries) for models, queries in asked.items())


def count_differences(held: Matrices) -> None:
    """Put what is the same in the place of all labels and judges."""
    same = held.take(JUDGED_SAME).copy()
    for other in judge_columns(held.names):
        held.take(other)[:] = math.nan
    held.replace("correct", same == 1)
    held.take("labelled")[:] = np.isfinite(same)


def tells_errors(held: Matrices, columns: Sequence[int], name: str) -> bool:
    """Whether labels tell errors besides: each of some models has two at least. A warning says where labels are few."""
    labelled = (held.take("labelled") & (held.take("row") >= 0))[:, columns].sum(0)
    few = [model for model, number in zip(np.array([*held.models])[columns], labelled, strict=True) if number < 2]
    if few and labelled.any():
        what = f"{count(int(labelled.sum()), 'label')} left out, as {listed(few)} has fewer than 2"
        warnings.warn(f"{name}: {what}: label more to know errors besides", LeftOutWarning, stacklevel=4)
    return not few
