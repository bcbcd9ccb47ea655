"""The rows of a log that can be learnt from, gathered into one frame, with what is told beside them: labels, answers,
a reference."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rcjax.logs.answer_codes import AnswerTable, comparison, hash_answers
from rcjax.logs.answers import Answers, Say, numbered
from rcjax.logs.checked_rows import Rows, logprobs, measured_cells, name_of, numbers, read_rows, require_models
from rcjax.logs.columns import ADVICE, ANSWERS, SAMPLE, judge_columns, tells_no_confidence
from rcjax.logs.costs import cost_cells, describe_caches, describe_estimates, mend_all, tell_lost
from rcjax.logs.errors import LogError, listed
from rcjax.logs.labels import UsableCalls, read_labels
from rcjax.logs.log import FailedCalls, LeftOutWarning, NoConfidenceWarning, PricesWarning
from rcjax.logs.sameness import Sameness
from rcjax.logs.scoring import RIGHT_OR_WRONG, Scoring
from rcjax.logs.votes import asked_to_vote, describe_votes, in_order, voted
from rcjax.logs.ways_of_asking import WaysOfAsking
from rcjax.policy.answers import Comparison

if TYPE_CHECKING:
    import polars as pl


class Beside(NamedTuple):
    """What is told beside a log, and what is needed of it."""

    labels: Any
    answers: Any
    needed: bool
    """Whether models need labels."""
    sameness: Sameness | None = None
    """What tells whether answers are those of a reference."""
    scoring: Scoring = RIGHT_OR_WRONG
    """How labels are written."""


class Gathered(NamedTuple):
    """What the rows of a log come to."""

    answers: Answers
    """One per query and model."""
    models: list[str]
    """All of the log, by first appearance, those with no row to use too."""
    source: str
    """The path as it was given, or the kind of dataframe."""
    name: str
    """The log's, for messages."""
    compare: Comparison
    """How answers are compared."""
    asked: dict[str, dict[str, Any]]
    """How models were asked, as far as the log tells."""
    samples: tuple[str, ...]
    """The names of the samples."""
    failed: tuple[FailedCalls, ...]
    """Which queries lack an answer as a call failed."""
    replaced: bool
    """Whether the log's own labels are replaced by others."""


_ONE_ROW = "keep one row per query and model, or tell several answers apart by a column sample"


class _Reader:
    """Makes numbers of the rows of a log, some at a time, and gathers them."""

    def __init__(self, rates: Mapping | None, task: str, beside: Beside) -> None:
        self.rates, self.task, self.sameness = rates, task, beside.sameness
        self.table = None if beside.answers is None else AnswerTable(beside.answers, task)
        self.ways = WaysOfAsking()
        self.compare: Comparison = comparison("answer", task)
        self.queries, self.models, self.samples = dict[str, int](), dict[str, int](), dict[str, int]()
        self.parts: list[pl.DataFrame] = []
        self.last: Rows | None = None

    def add(self, rows: Rows) -> None:
        """Take some rows. Raises `LogError` for one that cannot be used."""
        import polars as pl

        rows.refuse(rows.frame["query"].is_null(), "query", f"is missing: {ADVICE['query']}")
        by_query = numbered(self.queries, rows.frame["query"].cast(pl.String))
        by_model = numbered(self.models, rows.frame["model"])
        rows = rows if self.table is None else self.table.put(rows)
        told = rows.frame.columns
        cells: dict[str, Any] = {"query": by_query, "model": by_model, "row": rows.position, "way": self.ways.of(rows)}
        cells |= {"logprob": logprobs(rows), **measured_cells(rows)}
        cells |= {judge: numbers(rows, judge, optional=True) for judge in judge_columns(told)}
        own = numbers(rows, "correct", optional=True) if "correct" in told else np.full(len(by_query), math.nan)
        cells |= {"correct": own, "own": own}
        cells |= {"correct": rows.frame["label"].fill_null(math.nan)} if "label" in told else {}
        cells |= cost_cells(rows, self.rates, list(self.models), by_model)
        cells |= {"estimated": rows.frame["estimated"] == "true"} if "estimated" in told else {}
        cells |= {} if self.sameness is None else self.sameness.texts(rows)
        answer = next((name for name in ANSWERS if name in told), None)
        if answer is not None:
            self.compare = comparison(answer, self.task)
            cells["answer"] = hash_answers(rows.frame[answer], self.compare)
        if SAMPLE in told:
            rows.refuse(rows.frame[SAMPLE].is_null(), SAMPLE, "is missing: number the answers of a model to a query")
            if answer is None:
                what = "column sample, but no column answer (or answer_key) to tell which samples agree"
                raise LogError(f"{rows.name}: {what}: add it, or keep one row per query and model")
            cells[SAMPLE] = numbered(self.samples, rows.frame[SAMPLE])
        self.parts.append(pl.DataFrame(cells))
        self.last = rows

    def answers(self) -> Answers:
        """All that were taken."""
        import polars as pl

        nothing = {"query": pl.Int64, "model": pl.Int64, "row": pl.Int64, "way": pl.Int32}
        nothing |= dict.fromkeys(("logprob", "correct", "own", "cost"), pl.Float64)
        frame = pl.concat(self.parts) if self.parts else pl.DataFrame(schema=nothing)
        return Answers(frame, tuple(self.queries), tuple(self.models))

    def refuse_repeated(self, frame: pl.DataFrame) -> None:
        """Refuse a second answer of a model to a query, or of the same sample."""
        import polars as pl

        key = [name for name in ("query", "model", SAMPLE) if name in frame.columns]
        again = frame.with_columns(first=pl.col("row").first().over(key)).filter(pl.col("row") != pl.col("first"))
        if not again.height:
            return
        assert self.last is not None
        one = again.row(0, named=True)
        first, here = self.last.row_in_words(one["first"]), self.last.row_in_words(one["row"])
        query, model = list(self.queries)[one["query"]], list(self.models)[one["model"]]
        what = f"query {query} was answered already in {first}: {_ONE_ROW}"
        if SAMPLE in key:
            sample = list(self.samples)[one[SAMPLE]]
            what = f"sample {sample} of the query is there already in {first}: number the samples"
        raise LogError(f"{self.last.name}, {here}, model {model}: {what}")


def gather(
    source: Any, rates: Mapping | None, wanted: tuple[str, ...] | None, task: str, beside: Beside, say: Say
) -> Gathered:
    """Read a log, row by row. Raises `LogError` for a row that cannot be used.

    Args:
        source: as `read_log` takes it.
        rates: money per million tokens of input and of output, by model; None if the log tells costs.
        wanted: the models whose rows are used; None for all.
        task: what the models did.
        beside: what is told beside the log.
        say: takes what is to be said of the log, such as which rows are left out.
    """
    reader, calls, name = _Reader(rates, task, beside), UsableCalls(), name_of(source)
    models = dict[str, None]()
    for rows in _usable_rows(source, rates is not None, beside, calls, models, say):
        if wanted is not None:
            rows = rows.keep(rows.frame["model"].is_in(list(wanted)))
        if rows.frame.height:
            reader.add(rows)
    answers = reader.answers()
    if reader.table is not None:
        reader.table.finish(name, answers.queries, answers.models)
    answers, numbers = _settled_rows(answers, reader, name, say)
    answers, replaced = _settled_labels(answers, beside.labels is not None)
    return Gathered(
        answers=answers,
        models=list(models),
        source=str(source) if isinstance(source, str | os.PathLike) else name,
        name=name,
        compare=reader.compare,
        asked=reader.ways.asked | asked_to_vote(numbers, reader.compare, reader.ways.asked),
        samples=tuple(reader.samples),
        failed=calls.failed(answers),
        replaced=replaced,
    )


def _settled_labels(answers: Answers, from_elsewhere: bool) -> tuple[Answers, bool]:
    """Labels from elsewhere together with the log's own; and whether these are replaced.

    A full column of the log is replaced. One that is filled in part is added to: of an answer that has two labels, that
    from elsewhere counts.
    """
    import polars as pl

    full = not answers.frame["own"].is_nan().any()
    if not from_elsewhere or full:
        return answers, from_elsewhere and full
    both = pl.when(pl.col("correct").is_nan()).then("own").otherwise("correct")
    return answers.with_columns(correct=both), False


def _settled_rows(answers: Answers, reader: _Reader, name: str, say: Say) -> tuple[Answers, dict[str, int]]:
    """The answers without those asked otherwise than most, and one of several; how many of each model vote."""
    import polars as pl

    reader.refuse_repeated(answers.frame)
    if reader.rates is not None and (said := describe_caches(answers, reader.rates)) is not None:
        say(PricesWarning, f"{name}: {said}")
    if (said := describe_estimates(answers)) is not None:
        say(PricesWarning, f"{name}: {said}")
    by_model, ways = answers.frame["model"].to_numpy(), answers.frame["way"].to_numpy()
    otherwise = reader.ways.settle(name, reader.models, by_model, ways, say)
    frame = answers.frame.filter(pl.Series(~otherwise, dtype=pl.Boolean))
    # After that: a mean must not count what calls cost that are left out.
    costs, lost = mend_all(frame["model"].to_list(), frame["cost"].to_list())
    if (said := tell_lost({answers.models[model]: pair for model, pair in lost.items()})) is not None:
        say(LeftOutWarning, f"{name}: {said}")
    frame, numbers = frame.with_columns(cost=pl.Series(costs)), dict[str, int]()
    if SAMPLE in frame.columns:
        frame, several = voted(in_order(frame, [*reader.samples]), len(answers.models))
        numbers = dict(zip(answers.models, several, strict=True))
    if (said := describe_votes(numbers)) is not None:
        say(LeftOutWarning, f"{name}: {said}")
    return Answers(frame, answers.queries, answers.models), numbers


def _usable_rows(
    source: Any, priced: bool, beside: Beside, calls: UsableCalls, models: dict[str, None], say: Say
) -> Iterator[Rows]:
    """The rows to use, some at a time, with labels from elsewhere in a column `label`; at the end the others are told.

    `models` gets the names of all models of the source by first appearance, those with no row to use too.
    """
    labeller = None if beside.labels is None else read_labels(beside.labels, source, beside.scoring)
    sameness = beside.sameness
    needed_label = "answer" if labeller and labeller.by == "answer" else "correct"
    needed = needed_label == "answer" or (labeller is None and beside.needed and sameness is None)
    read, usable, untold = 0, set[str](), False
    name, more = name_of(source), None if sameness is None else sameness.columns
    all_rows, cut = read_rows(source, priced, needed_label if needed else None, more, beside.scoring)
    for rows in all_rows:
        untold = tells_no_confidence(rows.frame.columns)
        read += rows.frame.height
        models |= dict.fromkeys(rows.frame["model"].drop_nulls().unique(maintain_order=True))
        rows = calls.keep(rows)
        rows = labeller.mark(rows) if labeller else rows
        require_models(rows)
        usable |= {*rows.frame["model"].unique()}
        yield rows
    calls.finish(name)
    left_out = {"cut off": cut, **calls.left_out}
    if labeller:
        labeller.finish(name)
    if untold:
        what = "every answer counts as sure, and only whether models agree counts"
        say(NoConfidenceWarning, f"{name}: no column logprob or confidence: {what}")
    if any(left_out.values()):
        reasons = "; ".join(f"{count:,} {why}" for why, count in left_out.items() if count)
        lost = [model for model in models if model not in usable]
        whole = f"; that is all of {listed(lost)}" if lost else ""
        what = f"{sum(left_out.values()):,} of {read + cut:,} rows are left out: {reasons}{whole}"
        say(LeftOutWarning, f"{name}: {what}")
