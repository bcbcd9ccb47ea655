"""The answers of a log as a frame of numbers with one row per answer, and as matrices (n queries, k models).

Answers are normalised for comparison (`rcjax.policy.decisions`) and hashed; equal answers to a query have the same
hash, and in a `Log` the same small number. Several answers of a model to a query vote. With a reference model, an
answer is right if it equals the reference's answer. If the log has labels too, this equality is the verdict of a judge,
`judged_same`, which the labels correct.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import polars as pl

from rcjax._base.figures import count
from rcjax.logs.checked_rows import Rows
from rcjax.logs.columns import SAMPLE, judge_columns
from rcjax.logs.errors import LeftOutWarning, LogError, Warn, join_names, shorten
from rcjax.logs.log import NO_ANSWER, FailedCalls, HandLabels
from rcjax.policy.decisions import AnswerForm, canonical_answer
from rcjax.policy.error_kind import BY_ANSWER, JUDGED_SAME, SAME_AS, Reference
from rcjax.policy.signals.answers import PLAIN_FORM

#: The hash of a missing answer.
NO_HASH = 0

#: Reason why a model has no usable rows.
UNUSABLE = "its calls failed, or did not go to all models"


@dataclass(frozen=True)
class Answers:
    """The answers of some models to some queries."""

    frame: pl.DataFrame
    """One row per answer: `query` and `model` by number, `row` in the source, `logprob`, `correct` (the label from 0 to
    1, or NaN) and `cost`; if the log has them, `signal_cost`, `answer` (a hash), `seconds`, `sample` by number, and
    judges' verdicts.
    """
    queries: tuple[str, ...]
    models: tuple[str, ...]
    samples: tuple[str, ...] = ()

    @property
    def answered(self) -> np.ndarray:
        """(n, k) bool: the model answered the query."""
        return self.matrix("row", -1) >= 0

    @property
    def labels(self) -> np.ndarray:
        """(k,) number of labelled answers of each model."""
        return np.isfinite(self.matrix("correct", np.nan)).sum(0)

    def models_by_query(self) -> dict[int, frozenset[str]]:
        """Return the names of the models that answered each query, by the query's number."""
        by_query = self.frame.group_by("query", maintain_order=True).agg("model")
        return {query: frozenset(self.models[model] for model in models) for query, models in by_query.iter_rows()}

    def matrix(self, name: str, empty: float) -> np.ndarray:
        """Return a column of the frame as an (n, k) matrix, with `empty` where a model did not answer."""
        values = self.frame[name].to_numpy()
        matrix = np.full((len(self.queries), len(self.models)), empty, values.dtype)
        matrix[self.frame["query"].to_numpy(), self.frame["model"].to_numpy()] = values
        return matrix

    def select(self, models: Sequence[str]) -> Answers:
        """Return the answers of the models named, in the order given."""
        if (*models,) == self.models:
            return self
        numbers = {self.models.index(name): number for number, name in enumerate(models)}
        frame = self.frame.filter(pl.col("model").is_in([*numbers]))
        frame = frame.with_columns(pl.col("model").replace_strict(numbers, return_dtype=pl.Int64))
        return replace(self, frame=frame, models=tuple(models))

    def hand_labels(self) -> HandLabels | None:
        """Return labels by hand and judges' verdicts; None if all answers have labels and there are no verdicts."""
        labelled = np.isfinite(self.matrix("correct", np.nan))
        judges = [name for name in judge_columns(self.frame.columns) if self.frame[name].is_not_nan().any()]
        if labelled[self.answered].all() and not judges:
            return None
        verdicts = [self.matrix(name, np.nan) for name in judges]
        judged = np.stack(verdicts, axis=-1) if verdicts else np.zeros((*labelled.shape, 0))
        numbers = self.matrix(SAMPLE, len(self.samples)) if SAMPLE in self.frame.columns else None
        names = None if numbers is None else np.array([*self.samples, ""])[numbers]
        return HandLabels(*jax.device_put([labelled, judged]), judges=tuple(judges), samples=names)


def number_entries(frame: pl.DataFrame, column: str) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Replace the texts of a column by numbers, in order of first appearance; return the frame and the texts."""
    runs = frame[column].rle_id()  # rows of a query mostly stand together: look up one row of each run
    first = frame.select(column).filter(runs.diff().ne_missing(0))
    texts = first.unique(maintain_order=True)
    numbers = texts.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("number"))
    joined = first.join(numbers, on=column, how="left", maintain_order="left", nulls_equal=True)
    return frame.with_columns(joined["number"].gather(runs).alias(column)), tuple(texts[column].to_list())


def query_ids(texts: Iterable[str]) -> tuple[int | str, ...]:
    """Return the query ids: as ints if all are whole numbers, else as texts.

    Text files do not distinguish 7 from "7". The rule makes the same log of a text file and of a dataframe.
    """
    are_whole = pl.Series([*texts], dtype=pl.String).str.contains("^(0|-?[1-9][0-9]*)$").all()
    return tuple(map(int, texts) if are_whole else texts)


def comparison_form(column: str, task: str) -> AnswerForm:
    """Return the kind of comparison of the answers in a column.

    >>> comparison_form("answer", "choice"), comparison_form("answer_key", "choice")
    ('choice', 'key')
    """
    if column == "answer_key":
        return "key"
    return "choice" if task == "choice" else "text"


def hash_answers(answers: pl.Series, compare: AnswerForm) -> np.ndarray:
    """Return the (m,) hashes of normalised answers; 0 for a missing answer.

    >>> one, other, none = hash_answers(pl.Series(["1,000", "1000.0", None]), "text").tolist()
    >>> one == other, none
    (True, 0)
    """
    texts = answers.unique()
    forms = pl.Series([canonical_answer(text, compare) for text in texts], dtype=pl.String)
    hashes = (forms.hash() // 2).cast(pl.Int64).clip(1)
    return answers.replace_strict(texts, hashes.set(forms.is_null(), NO_HASH), return_dtype=pl.Int64).to_numpy()


def equal_answers(hashes: np.ndarray) -> np.ndarray | None:
    """Return (n, k) codes of answers: the position of the first model with the same hash, or NO_ANSWER.

    Return None if no query has two answers to compare.

    >>> equal_answers(np.array([[7, 0, 7], [5, 6, 6]])).tolist()
    [[0, -1, 0], [0, 1, 1]]
    """
    if not ((hashes != NO_HASH).sum(1) > 1).any():
        return None
    codes = np.full(hashes.shape, NO_ANSWER, np.int32)
    for j in reversed(range(hashes.shape[1])):
        codes[hashes == hashes[:, j : j + 1]] = j
    return np.where(hashes == NO_HASH, NO_ANSWER, codes).astype(np.int32)


_MIN_SHARE = 0.5  # least share of a model's queries that have as many answers as vote

_KEY = ("model", "query")


def vote(answers: Answers) -> tuple[Answers, dict[str, int]]:
    """Reduce the samples of each query and model to one answer, their vote; return (answers, votes by model).

    Samples are in numeric order if all are whole numbers, else in order of first appearance.
    """
    are_whole = all(re.fullmatch(r"\d{1,18}", text) for text in answers.samples)
    order = [int(text) for text in answers.samples] if are_whole else range(len(answers.samples))
    frame = answers.frame.with_columns(order=pl.Series(np.array(order, np.int64)[answers.frame[SAMPLE]]))
    frame, votes = reduce_to_votes(frame.sort(*_KEY, "order"), len(answers.models))
    return replace(answers, frame=frame), dict(zip(answers.models, votes, strict=True))


def reduce_to_votes(frame: pl.DataFrame, models: int) -> tuple[pl.DataFrame, list[int]]:
    """Reduce the samples of each query and model to one row; return (rows, number of votes of each model).

    `logprob`: log of the share of votes for the winning answer (a single answer keeps its own). `answer`: the most
    common answer (ties: the first). `cost` and `signal_cost`: the sum. `seconds`: the maximum, since samples are
    requested at once. Other columns: of the first row with the winning answer. An empty answer is a vote for no answer;
    the confidence is 0 if all answers are empty. A query with fewer samples than the number of votes is dropped.

    Args:
        frame: frame of an `Answers`, with the samples of a query in order.
        models: number of models.

    >>> answers = {"model": [0] * 6, "query": [0] * 3 + [1] * 3, "answer": [7, 7, 5] * 2, "cost": [1.0, 1.0, 2.0] * 2}
    >>> frame = pl.DataFrame(answers | {"logprob": [-0.1, -0.2, -0.4] * 2, "correct": [1.0, 1.0, 0.0] * 2})
    >>> vote, numbers = reduce_to_votes(frame, 1)
    >>> numbers, round(math.exp(vote["logprob"][0]), 4), vote["correct"][0], vote["cost"][0], vote["answer"][0]
    ([3], 0.6667, 1.0, 4.0, 7)
    """
    counts = frame.group_by(*_KEY).len()
    numbers = [_count_votes(counts.filter(pl.col("model") == model)["len"].to_numpy()) for model in range(models)]
    frame = frame.with_columns(number=pl.Series(np.array(numbers, np.int64)[frame["model"]]))
    samples, rank = pl.len().over(_KEY), pl.int_range(pl.len()).over(_KEY)
    voting = frame.filter(samples >= pl.col("number"), rank < pl.col("number"))
    equal = pl.when(pl.col("answer") != NO_HASH).then(pl.len().over(*_KEY, "answer")).otherwise(0)
    sums = [pl.col(name).sum().over(_KEY) for name in ("cost", "signal_cost") if name in frame.columns]
    longest = [pl.col(name).nan_max().over(_KEY) for name in ("seconds",) if name in frame.columns]
    votes = voting.with_columns(*sums, *longest, equal=equal)
    votes = votes.filter(pl.col("equal").arg_max().over(_KEY) == rank)  # ties: the first
    share = pl.when(pl.col("number") > 1).then((pl.col("equal") / pl.col("number")).log()).otherwise("logprob")
    return votes.with_columns(logprob=share).drop("number", "equal"), numbers


def _count_votes(answers: np.ndarray) -> int:
    """Return how many answers of a model vote: the largest number that at least half of its queries, and two, have.

    `answers` holds the model's number of answers to each query.

    >>> _count_votes(np.array([3, 2, 3, 1])), _count_votes(np.array([5, 1, 1]))
    (3, 1)
    """
    answers = np.sort(answers)[::-1]
    queries = max(2, math.ceil(_MIN_SHARE * len(answers)))
    return int(answers[queries - 1]) if len(answers) >= queries else 1


def vote_settings(
    numbers: Mapping[str, int], compare: str, single: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the request settings of the models whose answers vote, by name, as a policy stores them.

    The options and prices are those of a `single` answer.
    """
    return {
        name: {
            **{key: value for key, value in single.get(name, {}).items() if key in ("options", "prices")},
            **{"signal": "votes", "samples": number, "separate": True, "compare": compare},
        }
        for name, number in numbers.items()
        if number > 1
    }


#: The column with the name of the grader behind `judged_same`; `SAME_AS` holds the reference model's name.
SAME_BY = f"graded_by_{JUDGED_SAME}"


def verdict_columns(reference: Reference, name: str, columns: Sequence[str]) -> list[str]:
    """Return the further columns to read if a grader has compared the answers of a log with the reference's answers.

    Raises `LogError` if a column is missing. `name` is the name of the log, for messages.
    """
    if reference.same == BY_ANSWER:
        return []
    missing = [column for column in (JUDGED_SAME, SAME_AS, SAME_BY) if column not in columns]
    if missing:
        is_service_log = "call_log" in columns and "call" not in columns
        place = ", in another log, to be read in place of this log" if is_service_log else ""
        problem = f"no column {missing[0]}, with the verdicts of {reference.same}"
        raise LogError(f"{name}: {problem}: {_how_to_grade(reference, name)}{place}")
    return [SAME_AS, SAME_BY]


def _how_to_grade(reference: Reference, name: str) -> str:
    models = " --models models.toml" if reference.same.startswith("judge:") else ""
    return f"rcjax grade {name} --reference {reference.model} --grade {reference.same}{models} gives them"


def require_verdicts(reference: Reference, rows: Rows) -> None:
    """Raise `LogError` for a verdict that compares with another model's answers, or that another grader gave."""
    if reference.same != BY_ANSWER:
        has_verdict = rows.frame[JUDGED_SAME].is_not_null()
        for column, wanted in ((SAME_AS, reference.model), (SAME_BY, reference.same)):
            other = has_verdict & (rows.frame[column].fill_null("") != wanted)
            rows.refuse(other, column, f"is not {shorten(wanted)}: {_how_to_grade(reference, rows.name)}")


def compare_with_reference(
    reference: Reference, answers: Answers, name: str, warn: Warn
) -> tuple[Answers, Reference, tuple[FailedCalls, ...]]:
    """Compare all answers with the reference's answers, and drop the queries that the reference did not answer.

    Return (the answers with a column `judged_same`, the reference with the kind of error, the dropped queries as
    failed calls). Raises `LogError` if the log has no answer of the reference, or no answers to compare.

    Args:
        reference: the model, and the way to tell whether two answers are the same.
        answers: the answers of the log.
        name: name of the log, for messages.
        warn: receives warnings about the log.
    """
    model = reference.model
    if model not in answers.models:
        problem = f"no row of {shorten(model)}, the reference, can be used"
        raise LogError(f"{name}: {problem}: {UNUSABLE}: look at the column error")
    frame = _judge_by_reference(reference, answers, name)
    if not frame.height:
        raise LogError(f"{name}: {model} has answered none of its queries: does the log hold its answers?")
    lost = replace(answers, frame=answers.frame.join(frame, on="query", how="anti")).models_by_query()
    if lost:
        reason = f"as {model}, the reference, gave no answer"
        warn(LeftOutWarning, f"{name}: {count(len(lost), 'query')} of {len(answers.queries):,} left out, {reason}")
    counts = reference.counts or ("errors" if frame["correct"].is_not_nan().any() else "differences")
    failed_models = Counter(models for models in lost.values() if model in models)
    failed = tuple(FailedCalls(models, frozenset([model]), queries) for models, queries in failed_models.items())
    return replace(answers, frame=frame), replace(reference, counts=counts), failed


def _judge_by_reference(reference: Reference, answers: Answers, name: str) -> pl.DataFrame:
    """Return the rows of the queries that the reference answered; `judged_same` is 1 for the same answer, else 0."""
    frame = answers.frame
    is_reference = pl.col("model") == answers.models.index(reference.model)
    if reference.same == BY_ANSWER:
        if "answer" not in frame.columns:
            raise LogError(f"{name}: the log has no answers: add a column answer, or give answers by --answers")
        answered = frame.filter(is_reference, pl.col("answer") != NO_HASH).select("query", expected="answer")
        frame = frame.join(answered, on="query", maintain_order="left")
        same = (pl.col("answer") == pl.col("expected")).cast(pl.Float64)
        frame = frame.with_columns(same.alias(JUDGED_SAME)).drop("expected")
    else:
        frame = frame.join(frame.filter(is_reference).select("query"), on="query", how="semi", maintain_order="left")
    return frame.with_columns(pl.when(is_reference).then(1.0).otherwise(JUDGED_SAME).alias(JUDGED_SAME))


def count_differences(answers: Answers) -> Answers:
    """Replace all labels and verdicts by labels that say whether an answer equals the reference's."""
    frame, same = answers.frame, pl.col(JUDGED_SAME)
    labels = pl.when(same.is_nan()).then(same).otherwise((same == 1).cast(pl.Float64))
    frame = frame.with_columns(correct=labels).drop(judge_columns(frame.columns))
    return replace(answers, frame=frame)


def warn_of_few_labels(answers: Answers, name: str, warn: Warn) -> None:
    """Warn of labels that are left out, as some models have fewer than two."""
    models = [model for model, number in zip(answers.models, answers.labels, strict=True) if number < 2]
    if models and answers.labels.any():
        labels = f"{count(int(answers.labels.sum()), 'label')} left out, as {join_names(models)} has fewer than 2"
        warn(LeftOutWarning, f"{name}: {labels}: label more to know errors besides")


_REQUESTS, _PRICES = "requests", "prices"

_IGNORED_SETTINGS = frozenset({"choices", _REQUESTS, _PRICES})  # calls with other values are of the same kind


def keep_common_settings(
    answers: Answers, texts: list[str | None], name: str, warn: Warn
) -> tuple[pl.DataFrame, dict[str, dict[str, Any]]]:
    """Drop the rows whose request settings differ from most of their model's; return the rest, and settings by model.

    Settings count as equal if they differ only in the choices, the form of the question or the prices. If no settings
    are those of more than half of a model's calls, all calls are kept, with the settings that they share.

    Raises LogError if a model has confidences of two signals, whose values cannot be compared.

    Args:
        answers: answers whose column `settings` holds positions in `texts`.
        texts: distinct request settings, as JSON.
        name: name of the log, for messages.
        warn: receives warnings about the log.
    """
    records, kept, left_out = [_record(text) for text in texts], dict[str, dict[str, Any]](), dict[str, int]()
    counts, mixed = answers.frame.group_by("model", "settings").len().sort("model", "settings"), list[str]()
    dropped = counts.clear()
    for number, model in enumerate(answers.models):
        settings = counts.filter(model=number)["settings"]
        known = {index: record for index in settings if (record := records[index]) is not None}
        if not known:
            continue
        signals = dict.fromkeys(str(record.get("signal")) for record in known.values())
        if len(signals) > 1:
            problem = f"was asked for its confidence in several ways, {join_names(signals)}"
            raise LogError(f"{name}, model {shorten(model)}: {problem}: keep the rows of one")
        of_model = counts.filter(pl.col("settings").is_in([*known]), model=number)
        keys, calls = {index: _settings_key(record) for index, record in known.items()}, Counter[str]()
        for _, index, rows in of_model.iter_rows():
            calls[keys[index]] += rows
        most, rows = calls.most_common(1)[0]
        common = [index for index in known if 2 * rows <= calls.total() or keys[index] == most]
        kept[model] = _common_settings([known[index] for index in common])
        mixed += [model] if len(common) == len(known) and len(calls) > 1 else []
        uncommon = of_model.filter(~pl.col("settings").is_in(common))
        dropped, left_out[model] = dropped.vstack(uncommon), int(uncommon["len"].sum())
    if dropped.height:
        by_model = join_names(f"{model} ({number:,})" for model, number in left_out.items() if number)
        rows = f"{sum(left_out.values()):,} of {answers.frame.height:,} rows"
        warn(LeftOutWarning, f"{name}: {rows} are left out: asked otherwise than most: {by_model}")
    if mixed:
        reason = "asked in several ways, none of them in most calls"
        effect = "all calls are used, and only the settings that they share are kept"
        warn(LeftOutWarning, f"{name}: {count(len(mixed), 'model')}, {join_names(mixed)}: {reason}: {effect}")
    return answers.frame.join(dropped, on=["model", "settings"], how="anti", maintain_order="left"), kept


def _record(text: str | None) -> dict[str, Any] | None:
    try:
        record = json.loads(text or "null")
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        return None
    return record if isinstance(record, dict) else None


def _settings_key(record: Mapping[str, Any]) -> str:
    # A single answer is compared with none: `compare` tells how a vote would count.
    ignored = _IGNORED_SETTINGS | ({"compare"} if record.get("samples") == 1 else set())
    return json.dumps({k: v for k, v in record.items() if k not in ignored}, sort_keys=True)


def _common_settings(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the settings and options that all records share, with the prices of the last record that has any.

    `requests` lists the forms of all records, if any record has one.
    """
    first = records[0]
    shared = {name: value for name, value in first.items() if all(record.get(name) == value for record in records)}
    options = [record["options"] for record in records if isinstance(record.get("options"), dict)]
    if "options" not in shared and len(options) == len(records):
        items = options[0].items()
        shared["options"] = {
            name: value for name, value in items if all(value == other.get(name, ...) for other in options)
        }
    prices = [record[_PRICES] for record in records if record.get(_PRICES) is not None]
    has_form = any(_REQUESTS in record for record in records)
    forms = {_REQUESTS: sorted({record.get(_REQUESTS, PLAIN_FORM) for record in records})} if has_form else {}
    return shared | forms | ({_PRICES: prices[-1]} if prices else {})
