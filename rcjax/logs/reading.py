"""The reader of logs from files and dataframes, which checks every row.

`read_log` turns a long table, one row per query and model, into the (n queries, k models) matrices that the rest of the
package uses. For an unusable log, it raises an error whose one line tells the problem, its place and an advice.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Unpack

import numpy as np
import polars as pl

from rcjax._base.codec import takes
from rcjax._base.figures import count
from rcjax.logs.answers import (
    NO_HASH,
    UNUSABLE,
    Answers,
    compare_with_reference,
    count_differences,
    equal_answers,
    query_ids,
    warn_of_few_labels,
)
from rcjax.logs.checked_rows import read_times
from rcjax.logs.columns import HOW_TO_LABEL, as_labels
from rcjax.logs.errors import (
    IncompleteLogWarning,
    LeftOutWarning,
    LogError,
    NoConfidenceWarning,
    UnlabelledError,
    UnlabelledWarning,
    Warn,
    join_names,
    shorten,
    suggest_name,
    warn_caller,
)
from rcjax.logs.gathering import ReadFields, ReadOptions, gather, require_table
from rcjax.logs.log import Log, describe_labels, mean_cost
from rcjax.logs.prices import look_up_prices, read_prices
from rcjax.logs.sources import load_table, name_source
from rcjax.policy.decisions import NO_CONFIDENCE
from rcjax.policy.error_kind import Scores


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

    Columns (names may be in capitals, with spaces for underscores; other columns are ignored):

    - `query` (integers or strings), `model` and `correct`;
    - `logprob` (at most 0, may be -inf) or `confidence` (0 to 1). An empty cell counts as less sure than all others,
      with a `NoConfidenceWarning`. A log with answers may lack the column: all answers then count as equally sure;
    - `cost` (money for this call, 0 or from 1e-18 to 1e18), or `input_tokens` and `output_tokens`;
    - `signal_cost`: the part of the cost that a second question for the confidence cost, or empty;
    - `answer`, or `answer_key`, the answer extracted from a reply, which precedes it: models' answers are compared.
      Choices compare by letter; texts without regard to case, white space, outer punctuation and formats of numbers;
    - `seconds` or `latency_ms`: latency of the answer, or empty.

    With a column `sample`, a query has several answers of a model, which vote. The confidence is the share of the most
    common answer (ties: the first), the cost is the sum, the latency the maximum; the answer is right if the first
    sample that gave it is. The first m samples vote; m is the largest number that at least half of the model's queries
    have. A query with fewer samples lacks the model. Samples are in numeric order, or in order of first appearance if
    they are not whole numbers. A `LeftOutWarning` says how many vote.

    Args:
        source: the path of a `.csv`, `.tsv`, `.parquet`, `.jsonl` or `.ndjson` file, or a dataframe (pandas, polars,
            pyarrow or any other that narwhals knows).
        prices: prices of tokens, in place of a column `cost`: anything that `read_prices` takes. A model without a
            price has the costs of that column, and a `PricesWarning` names it.
        models: the models to keep, in this order, at least one; by default all, at least two, sorted by mean cost, ties
            by name.
        task: "choice" or "generation": the task of the models, and so the meaning of the raw confidence.
        labels: a file or dataframe with columns `query`, `model`, `correct` (and `sample`, if the log has it), or with
            `query` and `answer`. The latter holds right answers, which the log's column `answer` must equal apart from
            case and white space. The labels replace a full column `correct` of the log, complete a partly filled one,
            and win over its labels.
        more: fields of `rcjax.logs.ReadOptions`: `answers`, a table of answers; `unlabelled`, to read a log without
            labels; `reference`, a model whose answers count as right; `score_max`, the full score of labels.

    `correct`, or without it `score`, may hold scores from 0 to `score_max`. The error of an answer is then the share of
    the score that is missing, and `Log.scores` holds the scale.

    Labels may be incomplete: cells of `correct` may be empty, and with judges or `labels` the column may be missing.
    Judges (a larger model, a heuristic) have columns `judged`, or `judged_a`, `judged_b` and so on, from 0 (wrong) to 1
    (right), or empty. The labelled answers must be a random sample. An `UnlabelledWarning` counts the labels, and
    `Log.hand_labels` holds their mask. A model needs two labels; a model without any is left out with a
    `LeftOutWarning`, or refused if `models` names it.

    The beginning of a text file tells its separator (`,` `;` tab or `|`) and its encoding (UTF-8, or UTF-16 or UTF-32
    with a byte order mark). Files, and lazy frames of polars, are read in batches. Memory grows with the number of
    rows; a file that is not UTF-8 is held whole.

    The file of a `CallLog` is read as it is. Failed or truncated calls, repeated answers, queries that did not go to
    all models (`shadow`), and calls with other settings than most of their model's are left out. Deferred queries are
    hard ones, not a sample of all. A frame without the columns `call_log` and `shadow` is not filtered.

    A cost of 0 counts as missing if other rows of the model cost money, as for streamed calls without usage: it is left
    out of the mean, and a `LeftOutWarning` counts these rows. A model whose rows all cost 0 is free.

    A model may be always or never right: calibration then gives it one confidence, (c + 1/2) / (n + 1) for c right
    answers of n. Queries that lack some model are kept, with an `IncompleteLogWarning`; a `LeftOutWarning` counts the
    rows left out.

    Raises `LogError`, at the first bad batch of rows, if the log, its labels or the prices cannot be used, and for
    labels that are the log's own answers. Raises `MissingPricesError` if the log has tokens, but neither `cost` nor
    prices.
    """
    require_table("source", source)
    remarks: list[tuple[type[Warning], str]] = []
    rates = None if prices is None else read_prices(prices)
    named = None if models is None else (models,) if isinstance(models, str) else tuple(models)
    options = ReadOptions(rates, named, task, labels, lambda category, text: remarks.append((category, text)), **more)
    try:
        return _read(source, options)
    finally:
        for category, text in remarks:
            warn_caller(text, category)


def _read(source: Any, options: ReadOptions) -> Log:
    gathered, name = gather(source, options), name_source(source)
    answers, failed, reference = gathered.answers, gathered.failed, None
    if options.reference_model is not None:
        answers, reference, silent = compare_with_reference(options.reference_model, answers, name, options.warn)
        failed += silent
    differences = reference is not None and reference.counts == "differences"
    needs_labels = not options.unlabelled and not differences
    compared = _select_models(answers, options, name, labelled=needs_labels)
    names = compared.models
    scores = Scores(options.scoring.most)
    answers = count_differences(compared) if differences else compared
    code = equal_answers(compared.matrix("answer", NO_HASH)) if "answer" in compared.frame.columns else None
    log = Log(
        **_matrices(answers, code),
        **_labels(answers, scores),
        models=names,
        queries=query_ids(answers.queries),
        task=options.task,
        source=str(source) if isinstance(source, str | os.PathLike) else name,
        prices=None if options.rates is None else look_up_prices(names, options.rates, name, options.warn),
        request_settings={name: settings for name, settings in gathered.request_settings.items() if name in names}
        or None,
        compare=None if code is None else gathered.compare,
        reference=reference,
        failed=failed,
    )
    if reference is not None and differences:
        warn_of_few_labels(compared, name, options.warn)
        if (compared.labels >= 2).all():  # an estimate of a model's error needs two labels
            judging = dataclasses.replace(reference, counts="errors")
            labelled = dataclasses.replace(log, **_labels(compared, scores), reference=judging)
            log = dataclasses.replace(log, labelled_log=labelled)
    # Drop queries that only models left out have answered; `take` also moves matrices to JAX and averages the costs.
    log = log.take(np.asarray(log.answered).any(1))
    options.scoring.require_scale(log.source, np.asarray(log.correct)[np.asarray(log.labelled)])
    _warn_of_gaps(log, options.warn)
    if needs_labels:
        _warn_of_missing_labels(log, options.warn, gathered.replaced)
    return log


def _warn_of_gaps(log: Log, warn: Warn) -> None:
    """Warn if answers lack a confidence, or queries an answer."""
    if (remark := log.describe_missing_confidence()) is not None:
        warn(NoConfidenceWarning, f"{os.path.basename(log.source)}: {remark}")
    if not log.complete.all():
        warn(IncompleteLogWarning, log.describe(confidences=False))


def _select_models(answers: Answers, options: ReadOptions, name: str, *, labelled: bool) -> Answers:
    """Select the usable models of a log, by rising cost, ties by name, unless the user named models.

    If `labelled`, a usable model has labels. Raises LogError if a named model is not usable, or if too few are left.
    """
    answers = answers.select(_usable_models(answers, options.models, name))
    _require_answers(answers, name)
    if labelled:
        answers = answers.select(_labelled_models(answers, options.models is not None, name, options.warn))
    if options.models is not None:
        return answers
    order = np.lexsort((np.array(answers.models), mean_cost(answers.matrix("cost", 0.0), answers.answered)))
    return answers.select([answers.models[i] for i in order])


def _warn_of_missing_labels(log: Log, warn: Warn, replaced: bool) -> None:
    """Warn if answers lack labels; if `replaced`, other labels have replaced the log's own column."""
    if log.hand_labels is None or log.labelled[np.asarray(log.answered)].all():
        return
    labels = describe_labels(log.models, np.asarray(log.answered), np.asarray(log.correct), log.hand_labels)
    unused = "; the log's own column correct is not used: if a judge filled it in, call it judged"
    warn(UnlabelledWarning, f"{os.path.basename(log.source)}: {labels}{unused if replaced else ''}")


def _matrices(answers: Answers, code: np.ndarray | None) -> dict[str, Any]:
    """Return the fields of a log that hold numbers but no labels, as numpy matrices; `cost` is NaN."""
    columns = answers.frame.columns
    return {
        "logprob": answers.matrix("logprob", math.nan),
        "query_cost": answers.matrix("cost", 0.0),
        "signal_cost": answers.matrix("signal_cost", 0.0) if "signal_cost" in columns else None,
        "answered": answers.answered,
        "answer": code,
        "cost": np.full(len(answers.models), np.nan),
        "seconds": answers.matrix("seconds", math.nan) if "seconds" in columns else None,
    }


def _labels(answers: Answers, scores: Scores) -> dict[str, Any]:
    """Return the fields `correct`, `hand_labels` and `scores` of a log, as numpy matrices."""
    correct = as_labels(answers.matrix("correct", math.nan))
    return {
        "correct": correct,
        "hand_labels": answers.hand_labels(),
        "scores": None if correct.dtype == bool else scores,
    }


_MIN_LABELS = 2  # per model


def _usable_models(answers: Answers, named: tuple[str, ...] | None, place: str) -> tuple[str, ...]:
    """Return the named models, or all with answers, by first appearance.

    Raises LogError for a named model without answers, and for a single model.
    """
    numbers = dict(zip(answers.models, answers.answered.sum(0).tolist(), strict=True))
    names = named or tuple(name for name, number in numbers.items() if number)
    unusable = [name for name in names if not numbers.get(name)]
    if unusable:
        raise LogError(f"{place}, model {shorten(unusable[0])}: no row can be used: {UNUSABLE}")
    if named is None and len(names) < 2:
        raise LogError(f"{place}: only one model, {join_names(names)}: a cascade needs at least two")
    return names


def _labelled_models(answers: Answers, named: bool, place: str, warn: Warn) -> tuple[str, ...]:
    """Return the models with labels; a model without labels is left out with a warning, or refused if `named`."""
    labels = dict(zip(answers.models, answers.labels.tolist(), strict=True))
    if not any(labels.values()):
        raise UnlabelledError(f"{place}: no answer has a label: {HOW_TO_LABEL}")
    names = tuple(name for name, number in labels.items() if number or named)
    if len(names) < len(labels):
        left_out = join_names(name for name in labels if name not in names)
        warn(LeftOutWarning, f"{place}: left out, as no answer has a label: {left_out}: label some ({HOW_TO_LABEL})")
    if few := [name for name in names if labels[name] < _MIN_LABELS]:
        problem = f"{count(labels[few[0]], 'label')}, {_MIN_LABELS} are needed: label more, or leave it out"
        raise LogError(f"{place}, model {shorten(few[0])}: {problem}; {HOW_TO_LABEL}")
    if not named and len(names) < 2:
        problem = f"only one model has labels, {join_names(names)}: a cascade needs at least two"
        raise LogError(f"{place}: {problem}: {HOW_TO_LABEL}")
    return names


def _require_answers(answers: Answers, place: str) -> None:
    """Raise `LogError` for a model with fewer than two answers, or without a confidence in any of them."""
    numbers = answers.answered.sum(0)
    confident = (answers.matrix("logprob", NO_CONFIDENCE) != NO_CONFIDENCE).sum(0)
    for model, number, any_confidence in zip(answers.models, numbers.tolist(), confident.tolist(), strict=True):
        if number < 2:
            raise LogError(f"{place}, model {shorten(model)}: only 1 answer, 2 are needed: leave it out of the models")
        if not any_confidence:
            problem = f"none of its {count(int(number), 'answer')} has a confidence"
            raise LogError(
                f"{place}, model {shorten(model)}: {problem}: fill in logprob or confidence, or leave it out"
            )


@takes(log=Log)
def with_segments(log: Log, source: Any, column: str) -> Log:
    """Return the log with the segment of each query (`Log.segment`), "" for an empty cell.

    Args:
        log: a log read from the source.
        source: a file or dataframe that `read_log` can read, with columns `query` and `column`.
        column: name of the column of segments; its cells are texts, numbers or empty.

    Raises LogError if a column or a query of the log is missing, or the rows of a query have different segments.

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
                has = f"it has {join_names(columns)}"
                raise LogError(
                    f"{name}: no column {shorten(needed)!r}{suggest_name(needed, columns)} for segments: {has}"
                )
        return ["query"] if column == "query" else ["query", column]

    segments: dict[str, str] = {}
    table = load_table(source, choose)
    for frame in table.frames:
        if (dtype := frame.schema[column]).is_nested():
            raise LogError(f"{table.name}: column {column} holds {dtype} values: give texts or numbers")
        texts = pl.col("query").cast(pl.String), pl.col(column).cast(pl.String).alias("segment")
        for query, value in frame.select(texts).drop_nulls("query").unique(maintain_order=True).iter_rows():
            segment = (value or "").strip()
            if segments.setdefault(query, segment) != segment:
                problem = f"its {column} is {shorten(segments[query])!r} and {shorten(segment)!r}"
                raise LogError(f"{table.name}, query {shorten(query)}: {problem}: give a query one segment")
    if missing := [query for query in log.queries if str(query) not in segments]:
        problem = f"{count(len(missing), 'query')} of the log without a row, such as {shorten(missing[0])}"
        raise LogError(f"{table.name}: {problem}: give every query a row, its {column} may be empty")
    return dataclasses.replace(log, segment=tuple(segments[str(query)] for query in log.queries))


def with_times(log: Log, source: Any) -> Log:
    """Return the log with the time of each query (`Log.time`), its earliest row; without a column time, unchanged.

    Args:
        log: a log read from the source.
        source: a file or dataframe with columns `query` and `time`: ISO 8601 (UTC without a zone), or seconds since
            1970.

    Raises LogError as `rcjax.logs.checked_rows.read_times` does.

    >>> import polars as pl
    >>> from rcjax import read_log
    >>> table = {"query": [1, 1, 2, 2], "model": ["small", "large"] * 2, "time": ["2026-01-01T00:00:00Z"] * 4}
    >>> frame = pl.DataFrame(table | {"correct": [0, 1, 1, 1], "confidence": [0.4, 0.9] * 2, "cost": [1.0, 3.0] * 2})
    >>> with_times(read_log(frame), frame).time
    (1767225600.0, 1767225600.0)
    """

    def choose(_: str, columns: list[str]) -> list[str]:
        return ["query", "time"] if {"query", "time"} <= {*columns} else columns[:1]

    earliest: dict[str, float] = {}
    for frame in load_table(source, choose).frames:
        if "time" not in frame.columns:
            return log
        rows = frame.select(
            pl.col("query").cast(pl.String), read_times(frame["time"], name_source(source)).alias("time")
        )
        for query, moment in rows.drop_nulls().group_by("query").agg(pl.col("time").min()).iter_rows():
            earliest[query] = min(moment, earliest.get(query, math.inf))
    return dataclasses.replace(log, time=tuple(earliest.get(str(query), math.nan) for query in log.queries))
