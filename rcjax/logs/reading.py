"""Reading a log from a file or dataframe, and checking every row of it.

`read_log` turns a long table, one row per query and model, into the (n queries, k models) matrices that the
rest of the package works on.  What it cannot use it refuses with one line: where, what, and what to do. Models of which
there is too little are left out.
"""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Unpack

import numpy as np
import polars as pl

from rcjax._base.checks import takes
from rcjax._base.wording import count
from rcjax.logs.answers import (
    UNKNOWN,
    Answers,
    count_differences,
    equal_answers,
    hold_to,
    query_ids,
    tells_errors,
)
from rcjax.logs.cells import describe_labels
from rcjax.logs.columns import TO_LABEL, as_labels
from rcjax.logs.errors import (
    IncompleteLogWarning,
    LeftOutWarning,
    LogError,
    NoConfidenceWarning,
    Say,
    UnlabelledWarning,
    brief,
    listed,
    near,
)
from rcjax.logs.gathering import UNUSABLE, ReadFields, ReadOptions, gather, require_table
from rcjax.logs.log import Log, mean_cost
from rcjax.logs.prices import prices_of, read_prices
from rcjax.logs.sources import load, name_of
from rcjax.policy.counted import Scores
from rcjax.policy.decisions import NO_CONFIDENCE


def read_log(
    source: Any,
    *,
    prices: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    models: Iterable[str] | None = None,
    task: Literal["generation", "choice"] = "generation",
    labels: Any = None,
    **more: Unpack[ReadFields],
) -> Log:
    """Read and check a log with one row per query and model.

    The columns are `query` (integers or strings), `model`, `correct`, one of `logprob` (at most 0, may be -inf) and
    `confidence` (0 to 1), and either `cost` (money for this call, 0 or from 1e-18 to 1e18) or `input_tokens` and
    `output_tokens`. A column `answer` says what was answered, so that the answers of models can be compared: of
    choices the letter, of texts without regard to case, white space, punctuation around them and how numbers are
    written. A column `answer_key`, what was taken out of a reply, overrides it. A column `seconds`, or `latency_ms`,
    says how long the answer took; a cell may be empty. So may one of the confidence: such an answer counts as less sure
    than all others, and a `NoConfidenceWarning` says how many there are. A log with a column `answer` or `answer_key`
    may tell no confidence: all answers then count as sure, with the same warning. Others are ignored. Names of columns
    may be in capitals, and have spaces for underscores.

    With a column `sample` there are several answers per query and model, as many as at least half of the queries of a
    model have, and they vote: the confidence is the share of the most common answer (of equally common ones, that which
    came first), the cost that of all, the seconds those of the longest, as all are asked for at once, and it is right
    where the first sample that gave this answer is. A query that has fewer lacks the model. Samples come by number, or
    where they are no whole numbers by first appearance. A `LeftOutWarning` says how many vote.

    Args:
        source: the path of a `.csv`, `.tsv`, `.parquet`, `.jsonl` or `.ndjson` file, or a dataframe (pandas, polars,
            pyarrow or any other that narwhals knows).
        prices: what tokens cost, in place of a column `cost`: anything that `read_prices` takes. Models that they do
            not name cost what that column says, and a `PricesWarning` names them.
        models: the models to keep, in this order, at least one; by default all, at least two, sorted by mean cost, ties
            by first appearance.
        task: "choice" or "generation": what the models did, and so what the raw confidence measures.
        labels: a file or dataframe that says which answers are right: by `query`, `model` and `correct` (and `sample`,
            if the log has it), or by `query` and `answer`, a right answer, which the log's own column `answer` must
            equal apart from case and white space. It replaces a full column `correct` of the log, and adds to one with
            empty cells; of two labels this one counts.
        more: what is seldom needed, by the names of `rcjax.logs.ReadOptions`: `answers`, a table of what was answered;
            `unlabelled`, to read a log without labels, too; `reference`, a model whose answers take the place of right
            ones; `score_max`, the full score, where labels are scores.

    `correct`, or where there is none `score`, may be a score: any number from 0 to `score_max`. The error of an answer
    is then the share of the score that is missing, and `Log.scores` tells the scale.

    Labels need not be there for all answers: a cell of `correct` may be empty, and beside verdicts of judges, or with
    `labels`, so may the whole column. Judges (a larger model, a heuristic) have columns `judged`, or `judged_a`,
    `judged_b` and so on: from 0, wrong, to 1, right, or empty. Which answers have labels must be chance.
    An `UnlabelledWarning` says how many labels there are, and `Log.hand` which. A model needs 2 at least; one that has
    none is left out with a `LeftOutWarning`, or refused where `models` names it.

    The separator of a text file (`,` `;` tab or `|`) and its encoding (UTF-8, or UTF-16 or UTF-32 with a byte order
    mark) are told by its beginning. Files, and lazy frames of polars, are read a batch of rows at a time: memory is
    that of the log, not of its text, unless the text is not UTF-8.

    The file of a `CallLog` is read as it is: calls that failed or were cut off, repeated answers, queries that did not
    go to all models (`shadow`), and calls that were asked otherwise than most of their model are left out. To learn
    from queries that were deferred would be to take hard ones for a sample of all; a frame without the columns
    `call_log` and `shadow` is taken as a whole.

    Rows of cost 0 of a model whose other rows cost money have lost their cost, as streamed calls do whose usage is not
    told: they are left out of the mean, and a `LeftOutWarning` counts them. A model of which all rows cost 0 is free.

    A model may be right always or never: calibration then gives it one confidence, (c + 1/2) / (n + 1) for c
    right answers of n. Queries that lack some model are kept, with an `IncompleteLogWarning`; for rows left out
    there is a `LeftOutWarning` with the counts.

    Raises `LogError`, on the first batch of rows with something wrong, where the log, its labels or the prices cannot
    be used; labels that are the log's own answers are refused. It is a `MissingPricesError` where the log counts
    tokens, has no `cost`, and no prices are given.
    """
    require_table("source", source)
    remarks: list[tuple[type[Warning], str]] = []
    rates = None if prices is None else read_prices(prices)
    named = None if models is None else (models,) if isinstance(models, str) else tuple(models)
    how = ReadOptions(rates, named, task, labels, lambda kind, words: remarks.append((kind, words)), **more)
    try:
        return _read(source, how)
    finally:
        for kind, words in remarks:
            warnings.warn(words, kind, stacklevel=2)


def _read(source: Any, how: ReadOptions) -> Log:
    gathered = gather(source, how)
    answers, name, reference, failed = gathered.answers, name_of(source), None, gathered.failed
    if how.held_to is not None:
        answers, reference, silent = hold_to(how.held_to, answers, name, how.say)
        failed += silent
    answers = answers.of(_usable_models(answers, how.models, name))
    _require_answers(answers, name)
    differences = reference is not None and reference.counts == "differences"
    needed = not how.unlabelled and not differences
    if needed:
        answers = answers.of(_labelled_models(answers, how.models is not None, name, how.say))
    if how.models is None:
        answers = answers.of(_by_cost(answers))
    told, names, scores = answers, answers.models, Scores(how.scoring.most)
    answers = count_differences(told) if differences else told
    code = equal_answers(told.matrix("answer", UNKNOWN)) if "answer" in told.frame.columns else None
    log = Log(
        **_labels(answers, scores),
        models=names,
        logprob=answers.matrix("logprob", math.nan),  # type: ignore[arg-type]
        query_cost=answers.matrix("cost", 0.0),  # type: ignore[arg-type]
        answered=answers.answered,  # type: ignore[arg-type]
        cost=np.full(len(names), np.nan),  # type: ignore[arg-type]
        queries=query_ids(answers.queries),
        task=how.task,
        source=str(source) if isinstance(source, str | os.PathLike) else name,
        prices=None if how.rates is None else prices_of(names, how.rates, name, how.say),
        asked={name: gathered.asked[name] for name in names if name in gathered.asked} or None,
        answer=code,  # type: ignore[arg-type]
        compare=None if code is None else gathered.compare,
        seconds=answers.matrix("seconds", math.nan) if "seconds" in answers.frame.columns else None,  # type: ignore[arg-type]
        reference=reference,
        failed=failed,
    )
    if reference is not None and differences and tells_errors(told, name, how.say):
        judging = dataclasses.replace(reference, counts="errors")
        errors = dataclasses.replace(log, **_labels(told, scores), reference=judging)
        log = dataclasses.replace(log, errors=errors)
    # Not those of models without a label; take puts matrices into JAX, too, and averages the costs.
    log = log.take(np.asarray(log.answered).any(1))
    how.scoring.require_scale(log.source, np.asarray(log.correct)[np.asarray(log.labelled)])
    if (unread := log.without_confidence()) is not None:
        how.say(NoConfidenceWarning, f"{name}: {unread}")
    if not log.complete.all():
        how.say(IncompleteLogWarning, log.describe(confidences=False))
    if needed and log.hand is not None and not log.labelled[np.asarray(log.answered)].all():
        said = describe_labels(log.models, np.asarray(log.answered), np.asarray(log.correct), log.hand)
        unused = "; the log's own column correct is not used: if a judge filled it in, call it judged"
        how.say(UnlabelledWarning, f"{os.path.basename(log.source)}: {said}{unused if gathered.replaced else ''}")
    return log


def _labels(answers: Answers, scores: Scores) -> dict[str, Any]:
    """The fields of a log that tell right from wrong; matrices are numpy's."""
    correct = as_labels(answers.matrix("correct", math.nan))
    told = None if correct.dtype == bool else scores
    return {"correct": correct, "hand": answers.hand_labels(), "scores": told}


_FEWEST_LABELS = 2  # of a model


def _usable_models(answers: Answers, wanted: tuple[str, ...] | None, where: str) -> tuple[str, ...]:
    """The models that have answers, by first appearance or as wanted: where nobody named them, two at least."""
    numbers = dict(zip(answers.models, answers.answered.sum(0).tolist(), strict=True))
    names = wanted or tuple(name for name, number in numbers.items() if number)
    unused = [name for name in names if not numbers.get(name)]
    if unused:
        raise LogError(f"{where}, model {brief(unused[0])}: no row can be used: {UNUSABLE}")
    if wanted is None and len(names) < 2:
        raise LogError(f"{where}: only one model, {listed(names)}: a cascade needs at least two")
    return names


def _labelled_models(answers: Answers, named: bool, where: str, say: Say) -> tuple[str, ...]:
    """The models that have labels enough; others are left out, which `say` is told, unless somebody named them.

    Args:
        answers: of the models of which some are taken.
        named: whether somebody named the models.
        where: the log, for messages.
        say: takes what is to be said of the log.
    """
    labels = dict(zip(answers.models, answers.labels.tolist(), strict=True))
    if not any(labels.values()):
        raise LogError(f"{where}: no answer has a label: {TO_LABEL}")
    names = tuple(name for name, number in labels.items() if number or named)
    if len(names) < len(labels):
        what = f"left out, as no answer of theirs has a label: {listed(name for name in labels if name not in names)}"
        say(LeftOutWarning, f"{where}: {what}: label some ({TO_LABEL})")
    few = [name for name in names if labels[name] < _FEWEST_LABELS]
    if few:
        what = f"{count(labels[few[0]], 'label')}, {_FEWEST_LABELS} are needed: label more, or leave it out"
        raise LogError(f"{where}, model {brief(few[0])}: {what}; {TO_LABEL}")
    if not named and len(names) < 2:
        what = f"only one model has labels, {listed(names)}: a cascade needs at least two"
        raise LogError(f"{where}: {what}: {TO_LABEL}")
    return names


def _by_cost(answers: Answers) -> tuple[str, ...]:
    """The names of the models by their mean cost; those of equal cost stay in the order that they have."""
    order = np.argsort(mean_cost(answers.matrix("cost", 0.0), answers.answered), kind="stable")
    return tuple(answers.models[i] for i in order)


def _require_answers(answers: Answers, where: str) -> None:
    """Refuse one of the models that has a single answer, or a confidence in none of them. Raises `LogError`."""
    numbers, read = answers.answered.sum(0), (answers.matrix("logprob", NO_CONFIDENCE) != NO_CONFIDENCE).sum(0)
    for model, number, any_confidence in zip(answers.models, numbers.tolist(), read.tolist(), strict=True):
        if number < 2:
            raise LogError(f"{where}, model {brief(model)}: only 1 answer, 2 are needed: leave it out of the models")
        if not any_confidence:
            what = f"none of its {count(int(number), 'answer')} has a confidence"
            raise LogError(f"{where}, model {brief(model)}: {what}: fill in logprob or confidence, or leave it out")


@takes(log=Log)
def with_segments(log: Log, source: Any, column: str) -> Log:
    """The log with the segment of each of its queries (`Log.segment`), "" where the cell is empty.

    Args:
        log: what was read from the source.
        source: a file or dataframe with columns `query` and the segment's, such as `read_log` reads.
        column: the name of the segment's; its cells are texts, numbers or empty.

    Raises LogError where there is no such column, or the rows of a query differ in it.

    >>> import polars as pl
    >>> from rcjax import read_log
    >>> table = {"query": [1, 1, 2, 2], "model": ["small", "large"] * 2, "subject": ["law", "law", "art", "art"]}
    >>> frame = pl.DataFrame(table | {"correct": [0, 1, 1, 1], "confidence": [0.4, 0.9] * 2, "cost": [1.0, 3.0] * 2})
    >>> with_segments(read_log(frame), frame, "subject").segment
    ('law', 'art')
    """

    def choose(name: str, columns: list[str]) -> list[str]:
        for needed in ("query", column):
            if needed not in columns:
                has = f"it has {listed(columns)}"
                raise LogError(f"{name}: no column {brief(needed)!r}{near(needed, columns)} for segments: {has}")
        return ["query"] if column == "query" else ["query", column]

    told: dict[str, str] = {}
    table = load(source, choose)
    for frame in table.frames:
        if (kind := frame.schema[column]).is_nested():
            raise LogError(f"{table.name}: column {column} holds {kind} values: give texts or numbers")
        texts = pl.col("query").cast(pl.String), pl.col(column).cast(pl.String).alias("segment")
        for query, value in frame.select(texts).drop_nulls("query").unique(maintain_order=True).iter_rows():
            segment = (value or "").strip()
            if told.setdefault(query, segment) != segment:
                both = f"{brief(told[query])!r} and {brief(segment)!r}"
                raise LogError(f"{table.name}, query {brief(query)}: its {column} is {both}: give a query one segment")
    return dataclasses.replace(log, segment=tuple(told[str(query)] for query in log.queries))


def with_times(log: Log, source: Any) -> Log:
    """The log with the time of each of its queries (`Log.time`), that of its first row; as it is without a column time.

    Args:
        log: what was read from the source.
        source: a file or dataframe with columns `query` and `time`: ISO 8601 (UTC where no zone is told), or seconds
            since 1970.

    >>> import polars as pl
    >>> from rcjax import read_log
    >>> table = {"query": [1, 1, 2, 2], "model": ["small", "large"] * 2, "time": ["2026-01-01T00:00:00Z"] * 4}
    >>> frame = pl.DataFrame(table | {"correct": [0, 1, 1, 1], "confidence": [0.4, 0.9] * 2, "cost": [1.0, 3.0] * 2})
    >>> with_times(read_log(frame), frame).time
    (1767225600.0, 1767225600.0)
    """

    def choose(_: str, columns: list[str]) -> list[str]:
        return ["query", "time"] if {"query", "time"} <= {*columns} else columns[:1]

    told: dict[str, float] = {}
    for frame in load(source, choose).frames:
        if "time" not in frame.columns:
            return log
        rows = frame.select(pl.col("query").cast(pl.String), seconds_since_1970(frame["time"]).alias("time"))
        for query, moment in rows.drop_nulls().group_by("query").agg(pl.col("time").min()).iter_rows():
            told[query] = min(moment, told.get(query, math.inf))
    return dataclasses.replace(log, time=tuple(told.get(str(query), math.nan) for query in log.queries))


def seconds_since_1970(times: pl.Series) -> pl.Series:
    """Times as seconds since 1970, null where a cell is none: texts of ISO 8601, numbers, or polars' own.

    >>> seconds_since_1970(pl.Series(["2026-01-01T01:00:00+01:00", "1767225600", "?"])).to_list()
    [1767225600.0, 1767225600.0, None]
    """
    if times.dtype.is_temporal():
        return times.cast(pl.Datetime("us")).dt.timestamp("us") / 1e6
    if times.dtype.is_numeric():
        return times.cast(pl.Float64)
    texts = times.cast(pl.String).str.replace(r"^(\d{4}-\d\d-\d\d)$", "${1}T00:00:00Z")
    zoned = texts.str.contains(r"(Z|[+-]\d\d:?\d\d)$")
    stamps = pl.select(pl.when(zoned).then(texts).otherwise(texts + "Z").alias("time")).to_series()
    moments = stamps.str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
    return (moments.dt.timestamp("us") / 1e6).fill_null(texts.cast(pl.Float64, strict=False)).alias(times.name)
