"""The usable rows of a log in one frame of numbers, joined with labels and answers from other tables.

A service logs every call. Only queries that went to all models, regardless of the answers, are a fair sample: a query
that was deferred to a large model is a hard one. The service marks fair queries with `shadow`, and the others are
dropped. Each model keeps only the calls with the settings of most of its calls.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypedDict

import numpy as np
import polars as pl

from rcjax._base.codec import describe_type
from rcjax._base.tokens import Price
from rcjax.logs.answers import (
    UNUSABLE,
    Answers,
    comparison_form,
    hash_answers,
    keep_common_settings,
    number_entries,
    require_verdicts,
    verdict_columns,
    vote,
    vote_settings,
)
from rcjax.logs.checked_rows import Rows, numbers, read_logprobs, require_names, seconds_cells, typed_rows
from rcjax.logs.columns import ANSWERS, PROMPT_DIGEST, SAMPLE, Scoring, judge_columns, lacks_confidence, needed_columns
from rcjax.logs.errors import LeftOutWarning, LogError, NoConfidenceWarning, PricesWarning, Warn, join_names, shorten
from rcjax.logs.labels import Labels, join_answers, join_labels, normalise_answers, read_labels
from rcjax.logs.log import FailedCalls, require_models
from rcjax.logs.oddities import measure_unevenness
from rcjax.logs.prices import cost_cells, describe_caches, describe_estimates, impute_lost_costs
from rcjax.logs.sources import Table, load_table, name_source
from rcjax.policy.decisions import AnswerForm
from rcjax.policy.error_kind import Reference

_ONE_ROW = "keep one row per query and model, or tell several answers apart by a column sample"
_OWN_NAMES = ", or give the queries of each file names of their own"


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading a log; `read_log` takes the fields with a default as keywords."""

    rates: Mapping[str, Price] | None
    """Money per million tokens by model; None if the log has costs."""
    models: tuple[str, ...] | None
    """Names of the models to keep, in this order; None keeps all, by mean cost."""
    task: Literal["generation", "choice"]
    """Task of the models: to write answers, or to pick choices."""
    labels: object
    """File or dataframe of labels, or None."""
    warn: Warn
    """Receiver of warnings about the log: class and text."""
    answers: object = None
    """File or dataframe with answers in place of the log's, by `query`, `model` and `answer` or `answer_key`."""
    unlabelled: bool = False
    """Whether a log is read even if it lacks the labels of some or all models."""
    reference: str | Reference | None = None
    """Model whose answers count as right: any other answer is wrong. If the log has labels too, errors are counted, and
    equality with the reference is the verdict of a judge, `judged_same`, which the labels correct. A `Reference` with
    `counts="differences"` counts differences even then. Answers are compared as policies compare answers, or by the
    grader in `Reference.same`, whose verdicts `rcjax grade` writes into the log."""
    score_max: float = 1.0
    """Full score, by which all labels are divided; the label True is a full score."""

    def __post_init__(self) -> None:
        require_table("labels", self.labels, optional=True)
        require_table("answers", self.answers, optional=True)
        if self.task not in ("generation", "choice"):
            raise LogError(f"task {shorten(self.task)!r} is unknown: choose generation or choice")

    @cached_property
    def reference_model(self) -> Reference | None:
        """The reference model, whose answers count as right; None without one."""
        return Reference(self.reference) if isinstance(self.reference, str) else self.reference

    @cached_property
    def wanted(self) -> tuple[str, ...] | None:
        """Names of the models whose rows are read: the models to keep, and the reference; None for all."""
        if self.models is None or self.reference_model is None:
            return self.models
        return (*self.models, self.reference_model.model)

    @cached_property
    def scoring(self) -> Scoring:
        """Scale of the labels. Raises ValueError unless the full score is a positive number."""
        return Scoring(float(self.score_max), in_second_table=self.labels is not None).check()

    @property
    def needed(self) -> str | None:
        """Name of the required label column; None if labels come from elsewhere, or none are needed."""
        return None if self.unlabelled or self.labels is not None or self.reference_model is not None else "correct"


class ReadFields(TypedDict, total=False):
    """The fields of `ReadOptions` that `read_log` takes as keywords."""

    answers: object
    unlabelled: bool
    reference: str | Reference | None
    score_max: float


def require_table(name: str, table: Any, optional: bool = False) -> None:
    """Raise TypeError for a value that cannot be a table."""
    if (table is None and not optional) or isinstance(table, bytes | int | float | list | type):
        raise TypeError(f"{name} must be the path of a file, or a dataframe, not {describe_type(table)}")


@dataclass(frozen=True)
class Gathered:
    """The usable rows of a log, its failed calls and its request settings."""

    answers: Answers
    """Answers, one per query and model."""
    compare: AnswerForm
    """Kind of comparison of the answers."""
    request_settings: dict[str, dict[str, object]]
    """Request settings by model, if the log records them."""
    failed: tuple[FailedCalls, ...]
    """Queries that lack an answer because a call failed."""
    replaced: bool
    """Whether the labels of a second table replace a full column of labels in the log."""


def gather(source: Any, options: ReadOptions) -> Gathered:
    """Read a log, batch by batch. Raises `LogError` for a row that cannot be used."""
    labels = None if options.labels is None else read_labels(options.labels, source, options.scoring)
    name, reader = name_source(source), _Reader(options, labels)
    frame = reader.read(source)
    models = list(reader.models)
    for names in (options.models, options.reference_model and (options.reference_model.model,)):
        if names is not None:
            require_models(names, models, name)
    if not frame.height:
        raise LogError(f"{name}, model {shorten((options.models or models)[0])}: no row can be used: {UNUSABLE}")
    answers, settings, votes = _reduce_to_one_each(_number_answers(frame, reader), reader, name)
    is_full = not answers.frame["correct"].is_nan().any()
    if labels is not None:  # labels of a second table complete a partly filled column, and win over its labels
        is_replaced = pl.lit(is_full) | pl.col("label").is_not_nan()
        right = pl.when(is_replaced).then("label").otherwise("correct")
        answers = replace(answers, frame=answers.frame.with_columns(correct=right))
    settings |= vote_settings(votes, reader.compare, settings)
    failed = _count_failed_calls(reader, frame, answers)
    return Gathered(answers, reader.compare, settings, failed, labels is not None and is_full)


class _Reader:
    """The reader of a log, which turns usable rows into numbers, batch by batch, and counts the rows left out."""

    def __init__(self, options: ReadOptions, labels: Labels | None) -> None:
        self.options, self.labels = options, labels
        self.compare: AnswerForm = comparison_form("answer", options.task)
        self.models, self.settings = dict[str, None](), dict[str | None, int]()
        self.left_out = Counter[str]()  # numbers of rows; a key completes "n rows are left out, …"
        self.failed = list[pl.DataFrame]()  # (digest of the prompt, or query; model) of failed calls
        self.prompts = list[pl.DataFrame]()  # (query, digest of the prompt) of all calls of a call log
        self.rows: Rows | None = None  # the last batch

    def read(self, source: Any) -> pl.DataFrame:
        """Return the cells of all usable rows, with queries and models as texts; LogError for the first bad row."""
        options, texts, scoring = self.options, list[str](), self.options.scoring
        needed = "answer" if self.labels is not None and self.labels.kind == "answer" else options.needed

        def choose(name: str, columns: list[str]) -> list[str]:
            nonlocal texts, scoring
            texts = [] if options.reference_model is None else verdict_columns(options.reference_model, name, columns)
            scoring = scoring.for_columns(columns)
            names = ["correct" if column == scoring.column else column for column in columns]
            names = needed_columns(name, names, options.rates is not None, needed)
            return [scoring.column if column == "correct" else column for column in names] + texts

        table, rows_read, parts = load_table(source, choose), 0, list[pl.DataFrame]()
        columns: list[str] = []
        for rows in typed_rows(table, scoring, texts):
            rows_read, columns = rows_read + rows.frame.height, rows.frame.columns
            rows = self._keep_usable(rows)
            parts += [pl.DataFrame(self._cells(rows))] if rows.frame.height else []
        if not parts and "shadow" in columns and any(self.left_out.values()):
            problem = "no query of it went to all models, and deferred queries are not a fair sample"
            advice = "run the cascade with a share of shadow queries, such as ServiceOptions(shadow=0.05)"
            raise LogError(f"{table.name}: {problem}: {advice} or rcjax serve --shadow 5%")
        frame = pl.concat(parts, rechunk=True) if parts else pl.DataFrame(schema={"model": pl.String})
        if frame.height:
            frame = self._join_tables(self._drop_ambiguous_ids(frame), table.name)
        if "call_log" in columns:
            frame = self._without_repeats(frame)
        if lacks_confidence(columns):
            effect = "every answer counts as sure, and only whether models agree counts"
            options.warn(NoConfidenceWarning, f"{table.name}: no column logprob or confidence: {effect}")
        self._warn_of_rows_left_out(table, rows_read, {*frame["model"].unique()})
        return frame

    def _keep_usable(self, rows: Rows) -> Rows:
        """Keep the rows of wanted models.

        Of a call log, also drop and count failed calls, requests that no policy judges and, if the log has a column
        shadow, queries that did not go to all models.
        """
        columns, models, error = rows.frame.columns, self.options.wanted, pl.col("error")
        self.models |= dict.fromkeys(rows.frame["model"].drop_nulls().unique(maintain_order=True))
        if models is not None:
            rows = rows.keep(pl.col("model").is_in([*models]) | pl.col("model").is_null())
        if "call_log" not in columns:
            return rows
        if PROMPT_DIGEST in columns:
            self.prompts.append(rows.frame.select(pl.col("query").cast(pl.String), PROMPT_DIGEST).drop_nulls().unique())
        version = rows.frame["call_log"].cast(pl.Int64, strict=False)
        rows.refuse(version.ne_missing(1), "call_log", "is not the version of a call log that rcjax reads, 1")
        if "not_judged" in columns:
            rows = self._drop(rows, pl.col("not_judged").is_not_null(), "that no policy judges")
        if "error" in columns:
            rows = rows.keep(pl.col("query").is_not_null() | error.is_null())  # errors that belong to no query
            is_answer = (
                pl.col("has_no_confidence").eq_missing("true") if "has_no_confidence" in columns else pl.lit(False)
            )
            has_failed = error.is_not_null() & ~is_answer
            calls = rows.frame.filter(has_failed, pl.col("shadow") == "true" if "shadow" in columns else True)
            prompt = pl.coalesce(pl.col(name).cast(pl.String) for name in (PROMPT_DIGEST, "query") if name in columns)
            self.failed.append(calls.select(prompt.alias("prompt"), "model").drop_nulls())
            rows = self._drop(rows, has_failed, "failed")
        if "shadow" in columns:
            rows = self._drop(rows, pl.col("shadow").ne_missing("true"), "of queries that did not go to all models")
        return rows

    def _drop(self, rows: Rows, is_dropped: pl.Expr, reason: str) -> Rows:
        kept = rows.keep(~is_dropped.fill_null(False))
        self.left_out[reason] += rows.frame.height - kept.frame.height
        return kept

    def _cells(self, rows: Rows) -> dict[str, Any]:
        """Return the cells of rows for `Answers.frame`, with queries and models as texts; LogError for a bad cell."""
        require_names(rows)
        self.rows, frame, columns = rows, rows.frame, rows.frame.columns
        cells: dict[str, Any] = {"query": frame["query"].cast(pl.String), "model": frame["model"]}
        cells |= {"row": rows.position, "logprob": read_logprobs(rows), **seconds_cells(rows)}
        cells |= {judge: numbers(rows, judge, optional=True) for judge in judge_columns(columns)}
        unlabelled = np.full(frame.height, np.nan)
        cells["correct"] = numbers(rows, "correct", optional=True) if "correct" in columns else unlabelled
        cells |= cost_cells(rows, self.options.rates)
        cells |= {"estimated": frame["estimated"] == "true"} if "estimated" in columns else {}
        cells |= {name: frame[name] for name in (PROMPT_DIGEST, "call") if name in columns}
        if self.options.reference_model is not None:
            require_verdicts(self.options.reference_model, rows)
        if "request_settings" in columns:
            texts = frame["request_settings"].unique(maintain_order=True)
            codes = [self.settings.setdefault(text, len(self.settings)) for text in texts]
            cells["settings"] = frame["request_settings"].replace_strict(texts, codes, return_dtype=pl.Int32)
        if self.labels is not None and self.labels.kind == "answer":
            cells["words"] = normalise_answers(frame["answer"])
        answer = next((name for name in ANSWERS if name in columns), None)
        if answer is not None:
            self.compare = comparison_form(answer, self.options.task)
            cells["answer"] = hash_answers(frame[answer], self.compare)
        if SAMPLE in columns:
            rows.refuse(frame[SAMPLE].is_null(), SAMPLE, "is missing: number the answers of a model to a query")
            if answer is None and self.options.answers is None:
                problem = "column sample, but no column answer (or answer_key) to tell which samples agree"
                raise LogError(f"{rows.name}: {problem}: add it, or keep one row per query and model")
            cells[SAMPLE] = frame[SAMPLE]
        return cells

    def _join_tables(self, frame: pl.DataFrame, name: str) -> pl.DataFrame:
        """Join the rows with the labels, as a column `label`, and with the answers of other tables."""
        if self.labels is not None:
            frame = join_labels(frame, self.labels, name, list(self.models))
        if self.options.answers is not None:
            frame, self.compare = join_answers(frame, self.options.answers, name, self.options.task)
        return frame

    def _drop_ambiguous_ids(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Drop the rows of a query id that stands for several prompts, since a label could belong to any prompt."""
        if not self.prompts or not frame.height:
            return frame
        counts = pl.concat(self.prompts).unique().group_by("query").len()
        kept = frame.join(counts.filter(pl.col("len") > 1), on="query", how="anti", maintain_order="left")
        self.left_out["of ids under which different questions were asked"] += frame.height - kept.height
        return kept

    def _without_repeats(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Keep one of several queries with equal prompts, so that a flood counts once, and drop repeated answers.

        The query with the most labelled models stays; of equals, the query with the most answers; of equals, the first.
        An answer is repeated if its query, its model and, with a column sample, its sample number recur. Of several
        lines of one call only the last counts: a run appends a line with the verdict, and a kill leaves both lines.
        """
        if "call" in frame.columns:
            frame = frame.filter(pl.col("call").is_null() | pl.col("call").is_last_distinct()).drop("call")
        first = frame
        if PROMPT_DIGEST in frame.columns:
            labelled = pl.col("label" if "label" in frame.columns else "correct").is_not_nan()
            if "label" in frame.columns and frame["correct"].is_nan().any():  # the labels complete this column
                labelled |= pl.col("correct").is_not_nan()
            counts = {"labels": pl.col("model").filter(labelled).n_unique(), "models": pl.col("model").n_unique()}
            queries = (
                frame.drop_nulls(PROMPT_DIGEST).group_by(PROMPT_DIGEST, "query", maintain_order=True).agg(**counts)
            )
            kept = queries.sort(*counts, descending=True, maintain_order=True).unique(PROMPT_DIGEST, keep="first")[
                "query"
            ]
            first = frame.filter(pl.col(PROMPT_DIGEST).is_null() | pl.col("query").is_in(kept.implode()))
        once = first.filter(pl.struct(_key(first)).is_first_distinct()) if first.height else first
        self.left_out["of queries with the prompt of another query"] += frame.height - first.height
        self.left_out["repeated"] += first.height - once.height
        return once

    def _warn_of_rows_left_out(self, table: Table, rows_read: int, usable_models: set[str]) -> None:
        left_out = {"cut off": table.cut, **self.left_out}
        if any(left_out.values()):
            reasons = "; ".join(f"{number:,} {reason}" for reason, number in left_out.items() if number)
            wanted = [model for model in self.options.wanted or self.models if model in self.models]
            lost = join_names(model for model in wanted if model not in usable_models)
            models = f"; that is all of {lost}" if lost else ""
            counts = f"{sum(left_out.values()):,} of {rows_read + table.cut:,} rows are left out: {reasons}{models}"
            self.options.warn(LeftOutWarning, f"{table.name}: {counts}")


def _key(frame: pl.DataFrame) -> list[str]:
    return [name for name in ("query", "model", SAMPLE) if name in frame.columns]


def _number_answers(frame: pl.DataFrame, reader: _Reader) -> Answers:
    """Number the queries, models and samples of a frame; LogError for a repeated answer."""
    names = dict[str, tuple[str, ...]]()
    for name in _key(frame):
        frame, names[name] = number_entries(frame, name)
    answers = Answers(frame, names["query"], names["model"], names.get(SAMPLE, ()))
    cell = pl.lit(0, pl.Int64)
    for name, texts in names.items():
        cell = cell * len(texts) + pl.col(name)
    cells = frame.select(cell).to_series()
    if cells.n_unique() == len(cells):
        return answers
    assert reader.rows is not None
    repeated = frame.row(int(cells.is_first_distinct().arg_min() or 0), named=True)
    earlier = frame.filter(*(pl.col(name) == repeated[name] for name in names))["row"][0]
    earlier_place, repeated_place = reader.rows.row_in_words(earlier), reader.rows.row_in_words(repeated["row"])
    advice = f"{_ONE_ROW}{_OWN_NAMES if len(reader.rows.parts) > 1 else ''}"
    problem = f"query {shorten(answers.queries[repeated['query']])} was answered already in {earlier_place}: {advice}"
    if SAMPLE in names:
        sample = answers.samples[repeated[SAMPLE]]
        problem = f"sample {shorten(sample)} of the query is there already in {earlier_place}: number the samples"
    raise LogError(
        f"{reader.rows.name}, {repeated_place}, model {shorten(answers.models[repeated['model']])}: {problem}"
    )


def _reduce_to_one_each(
    answers: Answers, reader: _Reader, name: str
) -> tuple[Answers, dict[str, dict[str, Any]], dict[str, int]]:
    """Reduce the answers to one per query and model; return (answers, request settings by model, votes by model).

    Calls with other settings than most of their model's are dropped; lost costs become the model's mean cost.
    """
    options, frame, settings, votes = reader.options, answers.frame, dict[str, dict[str, Any]](), dict[str, int]()
    caches = None if options.rates is None else describe_caches(frame, answers.models, options.rates)
    for sentence in filter(None, (caches, describe_estimates(frame, answers.models))):
        options.warn(PricesWarning, f"{name}: {sentence}")
    if reader.settings:
        frame, settings = keep_common_settings(answers, [*reader.settings], name, options.warn)
    # The mean cost is that of the remaining calls.
    frame = impute_lost_costs(frame, answers.models, options.rates, name, options.warn)
    answers = replace(answers, frame=frame)
    if answers.samples:
        answers, votes = vote(answers)
    if counts := join_names(f"of {model} {number:,}" for model, number in votes.items() if number > 1):
        effect = "the confidence is the share of equal answers, the cost that of all answers"
        options.warn(LeftOutWarning, f"{name}: several answers to a query ({counts}): {effect}")
    return answers, settings, votes


def _count_failed_calls(reader: _Reader, frame: pl.DataFrame, answers: Answers) -> tuple[FailedCalls, ...]:
    """Count the queries that lack an answer because a call failed, by the models asked and the models failed.

    Queries with the same prompt count once. A log without records of calls leaves failed calls to be inferred.
    """
    if reader.rows is not None and "call_log" not in reader.rows.frame.columns:
        return _infer_failed_calls(answers)
    if not any(part.height for part in reader.failed):
        return ()
    first = dict(frame.select(PROMPT_DIGEST, "query").reverse().rows()) if PROMPT_DIGEST in frame.columns else {}
    failed: dict[str, set[str]] = {}
    for prompt, model in pl.concat(reader.failed).iter_rows():
        failed.setdefault(first.get(prompt, prompt), set()).add(model)
    number_of, by_query = {query: n for n, query in enumerate(answers.queries)}, answers.models_by_query()
    patterns = Counter[tuple[frozenset[str], frozenset[str]]]()
    for query, models in failed.items():
        answered = by_query.get(number_of.get(query, -1), frozenset())
        if models - answered:
            patterns[answered | models, frozenset(models - answered)] += 1
    return tuple(FailedCalls(asked, models, queries) for (asked, models), queries in patterns.items())


#: Significance level: of logs whose answers are missing at random, the largest share that is called biased.
_LEVEL = 0.01


def _infer_failed_calls(answers: Answers) -> tuple[FailedCalls, ...]:
    """Infer the failed calls of a log without records of calls.

    A missing answer counts as a failed call if the missing answers of its model depend on the confidence of another
    model (a test at level `_LEVEL`, Bonferroni-corrected); otherwise the call was never made.
    """
    answered, models = answers.answered, answers.models
    if answered.all() or len(models) < 2:
        return ()
    logprob, tests = answers.matrix("logprob", -math.inf), len(models) * (len(models) - 1)

    def depends_on(j: int, i: int) -> bool:  # whether missing answers of model j depend on the confidence of model i
        rows = answered[:, i]
        return (
            i != j and bool(rows.any()) and tests * measure_unevenness(logprob[rows, i], answered[rows, j])[1] < _LEVEL
        )

    positions = range(len(models))
    lost = frozenset(models[j] for j in positions if any(depends_on(j, i) for i in positions))
    patterns = Counter(answers.models_by_query().values())
    return tuple(FailedCalls(names | lost, lost - names, n) for names, n in patterns.items() if lost - names)
