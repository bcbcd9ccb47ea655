"""The answers of a log as one frame of numbers, a row for each query and model, and as matrices (n queries, k models).

Which answers to a query are equal is told by hashes of what is left of them for comparing (`rcjax.policy.decisions`),
and in the end by a small number that the equal answers share. Where a model has several answers, they vote. Where a
reference model's answers take the place of right ones, what is counted is whether an answer differs; where there are
labels besides, that it is the reference's is what a judge says, named `judged_same`, and the labels correct it.
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

from rcjax._base.wording import count
from rcjax.logs.cells import HandLabels
from rcjax.logs.checked_rows import Rows
from rcjax.logs.columns import SAMPLE, judge_columns
from rcjax.logs.errors import LeftOutWarning, LogError, Say, brief, listed
from rcjax.logs.log import NO_ANSWER, FailedCalls
from rcjax.policy.counted import BY_ANSWER, JUDGED_SAME, SAME_AS, Reference
from rcjax.policy.decisions import Comparison, comparable
from rcjax.signals.request_form import PLAIN

#: Hash of no answer.
UNKNOWN = 0


@dataclass(frozen=True)
class Answers:
    """The answers of some models to some queries."""

    frame: pl.DataFrame
    """`query` and `model` by number, `row` in the source, `logprob`, `correct` (the label, from 0 to 1; NaN for none),
    `cost`; and where the log tells them `answer` (a hash), `seconds`, `sample` by number and the verdicts of judges."""
    queries: tuple[str, ...]
    models: tuple[str, ...]
    samples: tuple[str, ...] = ()

    @property
    def answered(self) -> np.ndarray:
        """(n, k) whether there is an answer."""
        return self.matrix("row", -1) >= 0

    @property
    def labels(self) -> np.ndarray:
        """(k,) how many answers of each model have a label."""
        return np.isfinite(self.matrix("correct", np.nan)).sum(0)

    def models_by_query(self) -> dict[int, frozenset[str]]:
        """Which models have answered each query, by number."""
        by_query = self.frame.group_by("query", maintain_order=True).agg("model")
        return {query: frozenset(self.models[model] for model in models) for query, models in by_query.iter_rows()}

    def matrix(self, name: str, empty: float) -> np.ndarray:
        """(n, k) a column of the frame; `empty` stands where a model did not answer."""
        values = self.frame[name].to_numpy()
        whole = np.full((len(self.queries), len(self.models)), empty, values.dtype)
        whole[self.frame["query"].to_numpy(), self.frame["model"].to_numpy()] = values
        return whole

    def of(self, models: Sequence[str]) -> Answers:
        """Those of some models, in their order."""
        if (*models,) == self.models:
            return self
        numbers = {self.models.index(name): number for number, name in enumerate(models)}
        frame = self.frame.filter(pl.col("model").is_in([*numbers]))
        frame = frame.with_columns(pl.col("model").replace_strict(numbers, return_dtype=pl.Int64))
        return replace(self, frame=frame, models=tuple(models))

    def hand_labels(self) -> HandLabels | None:
        """Who has labelled what; None if all answers have a label, and nobody judges."""
        labelled = np.isfinite(self.matrix("correct", np.nan))
        judges = [name for name in judge_columns(self.frame.columns) if self.frame[name].is_not_nan().any()]
        if labelled[self.answered].all() and not judges:
            return None
        verdicts = [self.matrix(name, np.nan) for name in judges]
        judged = np.stack(verdicts, axis=-1) if verdicts else np.zeros((*labelled.shape, 0))
        numbers = self.matrix(SAMPLE, len(self.samples)) if SAMPLE in self.frame.columns else None
        names = None if numbers is None else np.array([*self.samples, ""])[numbers]
        return HandLabels(*jax.device_put([labelled, judged]), judges=tuple(judges), samples=names)


def numbered(frame: pl.DataFrame, column: str) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """A frame with the number of each text of a column in its place, by first appearance; the texts."""
    runs = frame[column].rle_id()  # rows of a query mostly stand together: one of them is looked up
    first = frame.select(column).filter(runs.diff().ne_missing(0))
    texts = first.unique(maintain_order=True)
    numbers = texts.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("number"))
    joined = first.join(numbers, on=column, how="left", maintain_order="left", nulls_equal=True)
    return frame.with_columns(joined["number"].gather(runs).alias(column)), tuple(texts[column].to_list())


def query_ids(texts: Iterable[str]) -> tuple[int | str, ...]:
    """Query ids as ints, where all are whole numbers.

    Text files do not tell 7 from "7": one rule for every source makes the same log of each.
    """
    whole = pl.Series([*texts], dtype=pl.String).str.contains("^(0|-?[1-9][0-9]*)$").all()
    return tuple(map(int, texts) if whole else texts)


def comparison(column: str, task: str) -> Comparison:
    """How the answers of a column are compared.

    >>> comparison("answer", "choice"), comparison("answer_key", "choice")
    ('choice', 'key')
    """
    if column == "answer_key":
        return "key"
    return "choice" if task == "choice" else "text"


def hash_answers(answers: pl.Series, compare: Comparison) -> np.ndarray:
    """(m,) a number for each answer, by what is left of it for comparing; 0 for none.

    >>> one, other, none = hash_answers(pl.Series(["1,000", "1000.0", None]), "text").tolist()
    >>> one == other, none
    (True, 0)
    """
    texts = answers.unique()
    bare = pl.Series([comparable(text, compare) for text in texts], dtype=pl.String)
    hashes = (bare.hash() // 2).cast(pl.Int64).clip(1)
    return answers.replace_strict(texts, hashes.set(bare.is_null(), UNKNOWN), return_dtype=pl.Int64).to_numpy()


def equal_answers(hashes: np.ndarray) -> np.ndarray | None:
    """(n, k) codes of answers, from their hashes: of each the first model that gave the same; NO_ANSWER for none.

    None if no query has two answers to compare.

    >>> equal_answers(np.array([[7, 0, 7], [5, 6, 6]])).tolist()
    [[0, -1, 0], [0, 1, 1]]
    """
    if not ((hashes != UNKNOWN).sum(1) > 1).any():
        return None
    codes = np.full(hashes.shape, NO_ANSWER, np.int32)
    for j in reversed(range(hashes.shape[1])):
        codes[hashes == hashes[:, j : j + 1]] = j
    return np.where(hashes == UNKNOWN, NO_ANSWER, codes).astype(np.int32)


_ENOUGH = 0.5  # of a model's queries, with as many answers as are to vote

_CELL = ("model", "query")


def vote(answers: Answers) -> tuple[Answers, dict[str, int]]:
    """(the answers, of several to a query their vote; how many of each model vote, by name).

    Samples come by number where all of the log are whole numbers, else by first appearance.
    """
    whole = all(re.fullmatch(r"\d{1,18}", text) for text in answers.samples)
    order = [int(text) for text in answers.samples] if whole else range(len(answers.samples))
    frame = answers.frame.with_columns(order=pl.Series(np.array(order, np.int64)[answers.frame[SAMPLE]]))
    frame, numbers = voted(frame.sort(*_CELL, "order"), len(answers.models))
    return replace(answers, frame=frame), dict(zip(answers.models, numbers, strict=True))


def voted(frame: pl.DataFrame, models: int) -> tuple[pl.DataFrame, list[int]]:
    """(a row for each query and model, the vote of the first so many answers; how many of each model vote).

    Confidence is the share of the most common answer. Of equally common ones the one that came first counts, and of
    those who gave it what is known of the first one, but of `cost` the sum of all that vote and of `seconds` the
    longest, as all are asked for at once. An empty answer votes for nothing, but counts; where all are empty, the
    confidence is 0. One answer keeps its own confidence. A query that has fewer answers is left out.

    Args:
        frame: as `Answers` has it, answers to a query in order.
        models: how many there are.

    >>> answers = {"model": [0] * 6, "query": [0] * 3 + [1] * 3, "answer": [7, 7, 5] * 2, "cost": [1.0, 1.0, 2.0] * 2}
    >>> frame = pl.DataFrame(answers | {"logprob": [-0.1, -0.2, -0.4] * 2, "correct": [1.0, 1.0, 0.0] * 2})
    >>> vote, numbers = voted(frame, 1)
    >>> numbers, round(math.exp(vote["logprob"][0]), 4), vote["correct"][0], vote["cost"][0], vote["answer"][0]
    ([3], 0.6667, 1.0, 4.0, 7)
    """
    counts = frame.group_by(*_CELL).len()
    numbers = [_number(counts.filter(pl.col("model") == model)["len"].to_numpy()) for model in range(models)]
    frame = frame.with_columns(number=pl.Series(np.array(numbers, np.int64)[frame["model"]]))
    there, rank = pl.len().over(_CELL), pl.int_range(pl.len()).over(_CELL)
    voting = frame.filter(there >= pl.col("number"), rank < pl.col("number"))
    several = pl.col("number") > 1
    alike = pl.when(pl.col("answer") != UNKNOWN).then(pl.len().over(*_CELL, "answer")).otherwise(0)
    longest = [pl.col(name).nan_max().over(_CELL) for name in ("seconds",) if name in frame.columns]
    votes = voting.with_columns(pl.col("cost").sum().over(_CELL), *longest, alike=alike)
    votes = votes.filter(pl.col("alike").arg_max().over(_CELL) == rank)  # the first of the largest
    share = pl.when(several).then((pl.col("alike") / pl.col("number")).log()).otherwise("logprob")
    return votes.with_columns(logprob=share).drop("number", "alike"), numbers


def _number(answers: np.ndarray) -> int:
    """How many answers of a model vote: as many as enough queries have, of which each has so many answers.

    >>> _number(np.array([3, 2, 3, 1])), _number(np.array([5, 1, 1]))
    (3, 1)
    """
    answers = np.sort(answers)[::-1]
    enough = max(2, math.ceil(_ENOUGH * len(answers)))
    return int(answers[enough - 1]) if len(answers) >= enough else 1


def asked_to_vote(
    numbers: Mapping[str, int], compare: str, alone: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """How the models whose answers vote are asked, by name, as a policy keeps it.

    Args:
        numbers: how many answers of each model vote.
        compare: how answers are compared.
        alone: how single answers are asked for, by model; votes have their options and prices.
    """
    return {
        name: {
            **{key: value for key, value in alone.get(name, {}).items() if key in ("options", "prices")},
            **{"signal": "votes", "samples": number, "apart": True, "compare": compare},
        }
        for name, number in numbers.items()
        if number > 1
    }


#: The column that tells which grader said what is in `judged_same`; `SAME_AS` tells of which model's answers.
SAME_BY = f"graded_by_{JUDGED_SAME}"


def verdict_columns(reference: Reference, name: str, columns: Sequence[str]) -> list[str]:
    """The columns of a log, called `name`, to read besides where a grader has said what is the reference's.

    Raises `LogError` where one is not there.
    """
    if reference.same == BY_ANSWER:
        return []
    missing = [column for column in (JUDGED_SAME, SAME_AS, SAME_BY) if column not in columns]
    if missing:
        of_service = "call_log" in columns and "call" not in columns
        where = ", in a log beside it, to be read in its place" if of_service else ""
        what = f"no column {missing[0]}, what {reference.same} says of them"
        raise LogError(f"{name}: {what}: {_how_to_grade(reference, name)}{where}")
    return [SAME_AS, SAME_BY]


def _how_to_grade(reference: Reference, name: str) -> str:
    return f"rcjax grade {name} --reference {reference.model} --grade {reference.same} gives them"


def require_verdicts(reference: Reference, rows: Rows) -> None:
    """Raise `LogError` for verdicts on another model's answers, or of another grader."""
    if reference.same != BY_ANSWER:
        said = rows.frame[JUDGED_SAME].is_not_null()
        for column, wanted in ((SAME_AS, reference.model), (SAME_BY, reference.same)):
            other = said & (rows.frame[column].fill_null("") != wanted)
            rows.refuse(other, column, f"is not {brief(wanted)}: {_how_to_grade(reference, rows.name)}")


def hold_to(
    reference: Reference, answers: Answers, name: str, say: Say
) -> tuple[Answers, Reference, tuple[FailedCalls, ...]]:
    """(the answers with what is the reference's, as verdicts of a judge, what is counted, which queries lack it).

    Queries that the reference did not answer are left out, which `say` is told. Raises `LogError` where the log has no
    reference, or no answers to compare.

    Args:
        reference: the model, and what tells whether answers are the same.
        answers: what was read.
        name: of the log.
        say: takes what is to be said of the log.
    """
    model = reference.model
    if model not in answers.models:
        what = f"no row of {brief(model)}, the reference, can be used: all its calls failed, or did not go to all"
        raise LogError(f"{name}: {what} models: look at the column error")
    frame = _compared(reference, answers, name)
    if not frame.height:
        raise LogError(f"{name}: {model} has answered none of its queries: does the log hold its answers?")
    lost = replace(answers, frame=answers.frame.join(frame, on="query", how="anti")).models_by_query()
    if lost:
        why = f"as {model}, the reference, gave no answer"
        say(LeftOutWarning, f"{name}: {count(len(lost), 'query')} of {len(answers.queries):,} left out, {why}")
    counts = reference.counts or ("errors" if frame["correct"].is_not_nan().any() else "differences")
    silent = Counter(models for models in lost.values() if model in models)
    failed = tuple(FailedCalls(models, frozenset([model]), queries) for models, queries in silent.items())
    return replace(answers, frame=frame), replace(reference, counts=counts), failed


def _compared(reference: Reference, answers: Answers, name: str) -> pl.DataFrame:
    """The rows of the queries that the reference has answered, with `judged_same`: 1 for its answers, 0 for others."""
    frame, own = answers.frame, pl.col("model") == answers.models.index(reference.model)
    if reference.same == BY_ANSWER:
        if "answer" not in frame.columns:
            raise LogError(f"{name}: the log has no answers: add a column answer, or give answers by --answers")
        theirs = frame.filter(own, pl.col("answer") != UNKNOWN).select("query", theirs="answer")
        frame = frame.join(theirs, on="query", maintain_order="left")
        same = (pl.col("answer") == pl.col("theirs")).cast(pl.Float64)
        frame = frame.with_columns(same.alias(JUDGED_SAME)).drop("theirs")
    else:
        frame = frame.join(frame.filter(own).select("query"), on="query", how="semi", maintain_order="left")
    return frame.with_columns(pl.when(own).then(1.0).otherwise(JUDGED_SAME).alias(JUDGED_SAME))


def count_differences(answers: Answers) -> Answers:
    """The answers with what is the same in the place of all labels and judges."""
    frame, same = answers.frame, pl.col(JUDGED_SAME)
    labels = pl.when(same.is_nan()).then(same).otherwise((same == 1).cast(pl.Float64))
    frame = frame.with_columns(correct=labels).drop(judge_columns(frame.columns))
    return replace(answers, frame=frame)


def tells_errors(answers: Answers, name: str, say: Say) -> bool:
    """Whether labels tell errors besides: each model has two at least; `say` is told where labels are few."""
    few = [model for model, number in zip(answers.models, answers.labels, strict=True) if number < 2]
    if few and answers.labels.any():
        what = f"{count(int(answers.labels.sum()), 'label')} left out, as {listed(few)} has fewer than 2"
        say(LeftOutWarning, f"{name}: {what}: label more to know errors besides")
    return not few


_FORM, _OF_THE_DAY = "requests", "prices"

_DIFFERING = frozenset({"choices", _FORM, _OF_THE_DAY})  # what differs between calls that are asked alike


def asked_alike(
    answers: Answers, texts: list[str | None], name: str, say: Say
) -> tuple[pl.DataFrame, dict[str, dict[str, Any]]]:
    """(the rows without those asked otherwise than most of their model; how each model was asked, where that is told).

    Two ways are alike where they differ in the choices or the form of the question, or in prices alone. Where no way is
    that of more than half of a model's calls, all of them are used, and what they share is kept.

    Raises LogError where a model was asked for its confidence in two ways: their values cannot be compared.

    Args:
        answers: with the numbers of ways.
        texts: the ways, as JSON.
        name: the log's, for messages.
        say: takes what is to be said of the log.
    """
    records, asked, left = [_record(text) for text in texts], dict[str, dict[str, Any]](), dict[str, int]()
    counts, various = answers.frame.group_by("model", "way").len().sort("model", "way"), list[str]()
    drop = counts.clear()
    for number, model in enumerate(answers.models):
        told = {way: record for way in counts.filter(model=number)["way"] if (record := records[way]) is not None}
        if not told:
            continue
        signals = dict.fromkeys(str(record.get("signal")) for record in told.values())
        if len(signals) > 1:
            what = f"was asked for its confidence in several ways, {listed(signals)}"
            raise LogError(f"{name}, model {brief(model)}: {what}: keep the rows of one")
        own = counts.filter(pl.col("way").is_in([*told]), model=number)
        plain, calls = {way: _alike(record) for way, record in told.items()}, Counter[str]()
        for _, way, times in own.iter_rows():
            calls[plain[way]] += times
        most, times = calls.most_common(1)[0]
        alike = [way for way in told if 2 * times <= calls.total() or plain[way] == most]
        asked[model] = _shared([told[way] for way in alike])
        various += [model] if len(alike) == len(told) and len(calls) > 1 else []
        others = own.filter(~pl.col("way").is_in(alike))
        drop, left[model] = drop.vstack(others), int(others["len"].sum())
    if drop.height:
        by_model = listed(f"{model} ({number:,})" for model, number in left.items() if number)
        what = f"{sum(left.values()):,} of {answers.frame.height:,} rows are left out: asked otherwise than most"
        say(LeftOutWarning, f"{name}: {what}: {by_model}")
    if various:
        what = f"{listed(various)}: asked in several ways, none of them in most calls"
        advice = "all are used, and only what they share is kept"
        say(LeftOutWarning, f"{name}: {count(len(various), 'model')}, {what}: {advice}")
    return answers.frame.join(drop, on=["model", "way"], how="anti", maintain_order="left"), asked


def _record(text: str | None) -> dict[str, Any] | None:
    try:
        record = json.loads(text or "null")
    except (ValueError, RecursionError):  # the latter of one that is nested too deeply
        return None
    return record if isinstance(record, dict) else None


def _alike(record: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in record.items() if k not in _DIFFERING}, sort_keys=True)


def _shared(records: list[dict[str, Any]]) -> dict[str, Any]:
    """What is the same in all records, and of options those that are; with the prices of the last that tells them.

    Forms of requests are all that there are, if any record tells one.
    """
    first = records[0]
    shared = {name: value for name, value in first.items() if all(one.get(name) == value for one in records)}
    options = [one["options"] for one in records if isinstance(one.get("options"), dict)]
    if "options" not in shared and len(options) == len(records):
        alike = {name for name in options[0] if all(name in one and one[name] == options[0][name] for one in options)}
        shared["options"] = {name: value for name, value in options[0].items() if name in alike}
    prices = [one[_OF_THE_DAY] for one in records if one.get(_OF_THE_DAY) is not None]
    told = any(_FORM in one for one in records)
    forms = {_FORM: sorted({one.get(_FORM, PLAIN) for one in records})} if told else {}
    return shared | forms | ({_OF_THE_DAY: prices[-1]} if prices else {})
