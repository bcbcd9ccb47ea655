"""Whether answers are those of a reference model: a source of labels where nobody knows right answers.

What is counted is then whether an answer differs. Where there are labels besides, that it is the reference's is what a
judge says, under the name `judged_same`, and the labels correct it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rcjax._base.wording import count
from rcjax.logs.answer_codes import UNKNOWN
from rcjax.logs.answers import Answers, Say
from rcjax.logs.checked_rows import Rows
from rcjax.logs.columns import ANSWERS, SAMPLE, judge_columns
from rcjax.logs.errors import LogError, brief, listed, near
from rcjax.logs.log import FailedCalls, LeftOutWarning
from rcjax.policy.counted import BY_ANSWER, JUDGED_SAME, SAME_AS, Reference

if TYPE_CHECKING:
    import polars as pl

#: (query, answer, the reference's answer) → whether they are the same; None if that cannot be told.
Same = Callable[[str, str, str], bool | None]

#: The column that tells which grader said what is in `judged_same`; `SAME_AS` tells of which model's answers.
SAME_BY = f"graded_by_{JUDGED_SAME}"

_GRADE = "rcjax grade {log} --reference {model} --grade {same} gives them"


class Sameness:
    """Tells which answers of a log are the reference's, from its rows.

    Args:
        reference: the model, and what tells whether answers are the same.
        same: the same as a function of texts; None if answers are compared as policies do, or a judge has said it.
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

    def texts(self, rows: Rows) -> dict[str, pl.Series]:
        """What some rows tell besides, by the column of the answers (`Answers.frame`).

        Raises `LogError` for verdicts on another model's answers, or of another judge.
        """
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
            return {} if column is None else {"said": rows.frame[column]}
        return {}

    def settle(
        self, answers: Answers, name: str, every: Sequence[str], say: Say
    ) -> tuple[Answers, Reference, tuple[FailedCalls, ...]]:
        """(the answers with what is the same, as the verdicts of a judge, what is counted, which queries lack it).

        Queries that the reference did not answer are left out, which `say` is told. Raises `LogError` where
        the log has no reference, or no answers to compare.

        Args:
            answers: what was read.
            name: of the log.
            every: all models that the log names, those without a row to use too.
            say: takes what is to be said of the log.
        """
        model = self.reference.model
        if model in every and model not in answers.models:
            what = f"no row of {brief(model)}, the reference, can be used: all its calls failed, or did not go to all"
            raise LogError(f"{name}: {what} models: look at the column error")
        if model not in answers.models:
            what = f"no model {brief(model)}{near(model, answers.models)}, which is to be the reference"
            raise LogError(f"{name}: {what}: it has {listed(answers.models)}")
        frame = self._compared(answers, answers.models.index(model), name)
        if not frame.height:
            raise LogError(f"{name}: {model} has answered none of its queries: does the log hold its answers?")
        lost = dataclasses.replace(answers, frame=answers.frame.join(frame, on="query", how="anti")).models_by_query()
        if lost:
            why = f"as {model}, the reference, gave no answer"
            say(LeftOutWarning, f"{name}: {count(len(lost), 'query')} of {len(answers.queries):,} left out, {why}")
        labelled = frame["correct"].is_not_nan().any()
        counts = self.reference.counts or ("errors" if labelled else "differences")
        silent = Counter(models for models in lost.values() if model in models)
        failed = tuple(FailedCalls(models, frozenset([model]), queries) for models, queries in silent.items())
        return dataclasses.replace(answers, frame=frame), dataclasses.replace(self.reference, counts=counts), failed

    def _compared(self, answers: Answers, reference: int, name: str) -> pl.DataFrame:
        """The rows of the queries that the reference, a model by number, has answered.

        `judged_same` is 1 for answers that are the reference's, 0 for others, NaN if that is unknown.
        """
        import polars as pl

        frame, column = answers.frame, JUDGED_SAME if self._judged else "answer" if self._same is None else "said"
        if column not in frame.columns:
            raise LogError(f"{name}: the log has no answers: add a column answer, or give answers by --answers")
        own = frame.filter(pl.col("model") == reference).select("query", theirs=column)
        if column == "answer":
            own = own.filter(pl.col("theirs") != UNKNOWN)
        elif column == "said":
            own = own.filter(pl.col("theirs").str.strip_chars().fill_null("") != "")
        frame = frame.join(own, on="query", maintain_order="left")
        if column == "answer":
            frame = frame.with_columns((pl.col("answer") == pl.col("theirs")).cast(pl.Float64).alias(JUDGED_SAME))
        elif column == "said":
            frame = frame.with_columns(pl.Series(JUDGED_SAME, self._by_texts(frame, answers.queries), pl.Float64))
        one = pl.when(pl.col("model") == reference).then(1.0).otherwise(JUDGED_SAME)
        return frame.with_columns(one.alias(JUDGED_SAME)).drop("theirs")

    def _by_texts(self, frame: pl.DataFrame, queries: tuple[str, ...]) -> list[float]:
        """The same by the function of texts; an answer without a text differs."""
        assert self._same is not None
        verdicts = []
        for query, text, theirs in frame.select("query", "said", "theirs").rows():
            verdict = False if text is None else self._same(queries[query], text, theirs)
            verdicts.append(math.nan if verdict is None else float(verdict))
        return verdicts


def count_differences(answers: Answers) -> Answers:
    """The answers with what is the same in the place of all labels and judges."""
    import polars as pl

    frame, same = answers.frame, pl.col(JUDGED_SAME)
    labels = pl.when(same.is_nan()).then(same).otherwise((same == 1).cast(pl.Float64))
    frame = frame.with_columns(correct=labels).drop(judge_columns(frame.columns))
    return dataclasses.replace(answers, frame=frame)


def tells_errors(answers: Answers, name: str, say: Say) -> bool:
    """Whether labels tell errors besides: each model has two at least; `say` is told where labels are few."""
    few = [model for model, number in zip(answers.models, answers.labels, strict=True) if number < 2]
    if few and answers.labels.any():
        what = f"{count(int(answers.labels.sum()), 'label')} left out, as {listed(few)} has fewer than 2"
        say(LeftOutWarning, f"{name}: {what}: label more to know errors besides")
    return not few
