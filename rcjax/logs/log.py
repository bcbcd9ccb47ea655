"""A log of answers as matrices with one row per query and one column per model, and its labels by hand.

The fields of the two records declare their axes (`Cells`), by which queries and models are taken.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import jax
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.figures import capitalised, count, describe_missing_confidences, percent
from rcjax._base.tokens import Price
from rcjax.logs.errors import LogError, MissingModelError, join_names, shorten, suggest_name
from rcjax.policy.decisions import NO_CONFIDENCE, AnswerForm
from rcjax.policy.error_kind import ErrorKind, Reference, Scores, choose_error_kind

Axis = Literal["query", "model"]

#: Metadata of a field with an entry per query and model (an array (n, k, …)), per query (an array or a tuple), or per
#: model (an array, a tuple or a dictionary by name).
CELL, QUERY, MODEL = ({"axes": axes} for axes in (("query", "model"), ("query",), ("model",)))


@dataclasses.dataclass(frozen=True, eq=False)
class Cells:
    """A record whose fields declare their axes in their metadata.

    Queries or models are taken from these fields and from nested records; fields without axes stay.
    """

    def _along(self, axis: Axis, index: np.ndarray, names: Sequence[str] = ()) -> Self:
        """Return the record with the entries at positions `index` of an axis; dictionaries keep the models `names`."""
        changes = {}
        for entry in dataclasses.fields(self):
            value, axes = getattr(self, entry.name), entry.metadata.get("axes", ())
            if isinstance(value, Cells):
                changes[entry.name] = value._along(axis, index, names)
            elif value is not None and axis in axes:
                changes[entry.name] = _entries(value, axes.index(axis), index, names)
        return dataclasses.replace(self, **changes)


def _entries(value: Any, axis: int, index: np.ndarray, names: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return {name: value[name] for name in names if name in value}
    if isinstance(value, Sequence):
        return tuple(map(value.__getitem__, index.tolist()))
    part = np.take(np.asarray(value), index, axis)
    # Texts stay numpy arrays. jnp.asarray would compile a program for each shape.
    return part if part.dtype.kind in "OSU" else jax.device_put(part)


@dataclasses.dataclass(frozen=True, eq=False)
class HandLabels(Cells):
    """Labels by hand of some of the answers of n queries by k models, and the verdicts of J judges."""

    labelled: jax.Array = field(metadata=CELL)
    """(n, k) bool: a person has labelled the answer (`Log.correct`)."""
    judged: jax.Array = field(metadata=CELL)
    """(n, k, J) judges' verdicts, from 0 (wrong) to 1 (right); NaN without a verdict."""
    judges: tuple[str, ...]
    """Names of the J judges: their columns in the log."""
    samples: np.ndarray | None = field(default=None, metadata=CELL)
    """(n, k) sample number of each answer and its label, as in the column `sample`; "" without an answer. None if the
    log has one answer per query and model."""


def describe_labels(models: Sequence[str], answered: np.ndarray, correct: np.ndarray, hand_labels: HandLabels) -> str:
    """Say how many answers have labels and how often judges agree with them, without a final full stop.

    Args:
        models: names of the k models.
        answered: (n, k) bool: the log holds the answer.
        correct: (n, k) label of the answer; any value for an answer without a label.
        hand_labels: mask of labels, and judges' verdicts.

    >>> right, answered = np.array([[1, 1], [0, 0], [0, 0]], bool), np.ones((3, 2), bool)
    >>> labelled, judged = np.array([[1, 1], [0, 0], [0, 0]], bool), np.full((3, 2, 1), 1.0)
    >>> describe_labels(("small", "large"), answered, right, HandLabels(labelled, judged, ("judged",)))
    '1 of 3 queries is labelled; judged judges all and agrees with 100 % of the labels'
    """
    labelled, answers = np.asarray(hand_labels.labelled) & answered, int(answered.sum())
    sentences = [_labels_in_words(models, labelled, answers)]
    for name, verdicts in zip(hand_labels.judges, np.moveaxis(np.asarray(hand_labels.judged), -1, 0), strict=True):
        is_judged = np.isfinite(verdicts)
        number, judged_labels = int((is_judged & answered).sum()), labelled & is_judged
        sentence = f"{name} judges {'all' if number == answers else f'{number:,} answers'}"
        if judged_labels.any():
            agreement = float(1 - np.abs(correct - verdicts)[judged_labels].mean())
            sentence += f" and agrees with {percent(agreement, 0)} of the labels"
        sentences.append(sentence)
    return "; ".join(sentences)


def _labels_in_words(models: Sequence[str], labelled: np.ndarray, answers: int) -> str:
    labels, labelled_queries = int(labelled.sum()), int(labelled.any(1).sum())
    if labels in (0, answers):
        return f"{'every' if labels else 'no'} answer is labelled"
    queries = f"{labelled_queries:,} of {count(len(labelled), 'query')}"
    if labels == labelled_queries * len(models):
        return f"{queries} {'is' if labelled_queries == 1 else 'are'} labelled"
    by_model = ", ".join(f"{model} {number:,}" for model, number in zip(models, labelled.sum(0).tolist(), strict=True))
    return f"{labels:,} of {count(answers, 'answer')} are labelled, of {queries} ({by_model})"


#: Code of a missing or unknown answer (`Log.answer`).
NO_ANSWER = -1

#: Least number of complete queries on which policies are judged. Of fewer, figures are of different queries.
MIN_COMPLETE_QUERIES = 20


class FailedCalls(NamedTuple):
    """A group of queries that went to the same models and lack usable answers of the same models."""

    asked: frozenset[str]
    """Models that the queries went to."""
    failed: frozenset[str]
    """Models whose call failed; or the reference model, if it gave no answer."""
    queries: int
    """Number of the queries."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Log(Cells):
    """Answers of k models to n queries, as matrices with one row per query and one column per model.

    Floating-point arrays have JAX's default float dtype: float32, or float64 where the user enabled it.
    """

    models: tuple[str, ...] = field(metadata=MODEL)
    """Names of the k models, cheapest first unless `read_log` was given an order."""
    logprob: jax.Array = field(metadata=CELL)
    """(n, k) natural log of the raw confidence, at most 0; NaN if the model did not answer. An answer without a
    confidence has `NO_CONFIDENCE`, a large negative number, and counts as less sure than all others."""
    correct: jax.Array = field(metadata=CELL)
    """(n, k) bool: the answer is labelled correct; False without an answer or a label. In a log with `scores`, a
    float: the score as a share of the full score, 0 without an answer or a label."""
    query_cost: jax.Array = field(metadata=CELL)
    """(n, k) money per query; 0 if the model did not answer."""
    answered: jax.Array = field(metadata=CELL)
    """(n, k) bool: the log holds the model's answer to the query."""
    cost: jax.Array = field(metadata=MODEL)
    """(k,) money per query: the mean over the model's answers; NaN for a model without any."""
    queries: tuple[int | str, ...] = field(metadata=QUERY)
    """The n query ids by first appearance; ints where every id is a whole number, else strings."""
    task: Literal["generation", "choice"]
    """Task of the models: to write answers, or to pick choices."""
    source: str
    """Path of the log as given, or type of the dataframe, such as `"pandas.DataFrame"`."""
    prices: dict[str, Price] | None = field(default=None, metadata=MODEL)
    """Money per million tokens by model, if the costs come from prices."""
    request_settings: dict[str, dict[str, object]] | None = field(default=None, metadata=MODEL)
    """Request settings by model (signal, options, prices), if the log records them. A policy tuned on the log keeps
    them."""
    answer: jax.Array | None = field(default=None, metadata=CELL)
    """(n, k) integer codes: equal codes in a row are equal answers, −1 is no answer. None for a log without answers."""
    compare: AnswerForm | None = None
    """Kind of comparison of the answers (`rcjax.policy.decisions.canonical_answer`); None for a log without answers."""
    hand_labels: HandLabels | None = None
    """Labels by hand and judges' verdicts; None if all answers are labelled and none is judged. `correct` is False for
    an answer without a label."""
    seconds: jax.Array | None = field(default=None, metadata=CELL)
    """(n, k) latency in seconds, the maximum of answers that vote; NaN if it is unknown or there is no answer. None for
    a log without latencies."""
    signal_cost: jax.Array | None = field(default=None, metadata=CELL)
    """(n, k) money of a second question for the confidence, a part of `query_cost`. None for a log without it."""
    reference: Reference | None = None
    """Model whose answers count as right, and the kind of error. If differences are counted, `correct` says whether
    an answer equals the reference's. None if right and wrong are known."""
    failed: tuple[FailedCalls, ...] = ()
    """Queries that lack an answer because a call failed. For a log without records of calls, failed calls are inferred:
    a model's answers are then missing more often at some confidences of another model."""
    labelled_log: Log | None = None
    """The same answers with the hand labels, if the log counts differences and every model has two labels."""
    segment: tuple[str, ...] | None = field(default=None, metadata=QUERY)
    """Segments of the n queries (`rcjax.logs.with_segments`), "" for a query without one; None if none were read."""
    time: tuple[float, ...] | None = field(default=None, metadata=QUERY)
    """Arrival times of the n queries in seconds since 1970, NaN if unknown; None if none were read
    (`rcjax.logs.reading.with_times`)."""
    scores: Scores | None = None
    """Scale of the scores, if some label lies strictly between right and wrong; None otherwise."""

    @property
    def error_kind(self) -> ErrorKind:
        """Kind of error that the log counts: wrong answers, differences or lost score."""
        return choose_error_kind(self.reference, self.scores)

    @cached_property
    def derived(self) -> dict[str, Log]:
        """Logs that functions compute from this one, by name, so that each is computed once; no other log has them."""
        return {}

    @property
    def n_queries(self) -> int:
        """Number of queries, n."""
        return len(self.queries)

    @property
    def complete(self) -> np.ndarray:
        """(n,) bool NumPy array: every model answered the query."""
        return np.all(np.asarray(self.answered), axis=1)

    @property
    def has_enough_complete(self) -> bool:
        """Whether at least `MIN_COMPLETE_QUERIES` queries are complete, or all are."""
        return bool(self.complete.sum() >= min(MIN_COMPLETE_QUERIES, self.n_queries))

    @property
    def comparable(self) -> Log:
        """The queries that figures of policies are means over: the complete queries, or all if too few are complete."""
        return self if self.complete.all() or not self.has_enough_complete else self.take(self.complete)

    @property
    def labelled(self) -> np.ndarray:
        """(n, k) bool NumPy array: the answer has a label."""
        return np.asarray(self.answered if self.hand_labels is None else self.hand_labels.labelled)

    @property
    def answer_cost(self) -> np.ndarray:
        """(n, k) money per query of answers that are kept in any case, without a question for the confidence."""
        cost = np.asarray(self.query_cost)
        return cost if self.signal_cost is None else cost - np.asarray(self.signal_cost)

    @property
    def single_cost(self) -> np.ndarray:
        """(k,) money per query of each model alone: the mean of `answer_cost` over its answers."""
        return np.asarray(self.cost) if self.signal_cost is None else mean_cost(self.answer_cost, self.answered)

    @property
    def digest(self) -> str:
        """SHA-256 of the queries, models, confidences, labels, verdicts and costs, in hexadecimal.

        The order of queries and the float dtype do not change it, nor do other fields, such as latencies, segments or
        prices. It identifies queries that were tuned on, and the logs of a sweep, which uses no other fields.
        """
        names = [*map(str, self.queries)]
        order = np.array(sorted(range(len(names)), key=names.__getitem__))
        head = [self.task, self.models, [self.queries[i] for i in order.tolist()]]
        by_hand = () if self.hand_labels is None else (self.hand_labels.labelled, self.hand_labels.judged)
        signal = () if self.signal_cost is None else (self.signal_cost,)
        matrices = [self.logprob, self.correct, self.query_cost, self.answered, *signal, *by_hand]
        content = b"".join(np.asarray(matrix, "<f4")[order].tobytes() for matrix in matrices)
        return hashlib.sha256(json.dumps(head).encode() + content).hexdigest()

    def take(self, queries: Any) -> Log:
        """Return the log of some queries, with costs averaged over them.

        `queries` are positions (integers or a slice; a repeated position repeats its query) or a boolean mask of shape
        (n,). Raises `LogError` for positions outside the log, a mask of another length, or no query at all.
        """
        positions = queries if isinstance(queries, slice) else np.ravel(queries)
        if not isinstance(positions, slice) and not positions.size:
            positions = slice(0)  # an empty list has no dtype that would fit
        try:
            rows = np.arange(self.n_queries)[positions]
        except IndexError as error:
            raise LogError(f"{self.source}: not positions or a mask of its queries: {error}") from None
        if not rows.size:
            raise LogError(f"{self.source}: no query taken: a log needs at least one")
        return self._along("query", rows)

    def split(self, fraction: float, seed: int) -> tuple[Log, Log]:
        """Split the queries at random, the same way for the same seed.

        The first log gets round(fraction * n) queries, the second the others; both keep the log's order.
        Raises `LogError` for a fraction outside (0, 1), or a fraction that leaves a side without queries.
        """
        size = round(fraction * self.n_queries) if 0 < fraction < 1 else 0
        if not 0 < size < self.n_queries:
            problem = f"split fraction {fraction!r} leaves a side of {self.n_queries} queries empty"
            raise LogError(f"{self.source}: {problem}: give one between 0 and 1, nearer to 0.5")
        order = np.random.default_rng(seed).permutation(self.n_queries)
        return self.take(np.sort(order[:size])), self.take(np.sort(order[size:]))

    def select(self, models: Iterable[str]) -> Log:
        """Return the log of some models, in the order given; all queries stay.

        Raises `LogError` for a model that the log does not hold or that is named twice, and for no model at all.
        """
        names = (models,) if isinstance(models, str) else tuple(models)
        if names == self.models and self.labelled_log is None:
            return self
        require_models(names, self.models, self.source)
        return self._along("model", np.empty(0, int), names)

    def describe(self, *, confidences: bool = True) -> str:
        """Return a short paragraph about the queries, the models, their answers and the labels.

        Args:
            confidences: mention answers without a confidence, as a warning of `read_log` does too.

        >>> import polars as pl
        >>> from rcjax import read_log
        >>> table = {"query": [1, 1, 2, 2], "model": ["small", "large"] * 2, "correct": [0, 1, 1, 1]}
        >>> frame = pl.DataFrame(table | {"confidence": [0.4, 0.9, 0.8, 0.7], "cost": [1e-5, 3e-4] * 2})
        >>> print(read_log(frame).describe())
        polars.DataFrame: 2 queries, 2 models (small, large), task generation; every model answered every query.
        """
        names = f"{count(len(self.models), 'model')} ({', '.join(self.models)})"
        head = f"{self.source}: {count(self.n_queries, 'query')}, {names}, task {self.task}"
        answers = np.asarray(self.answered).sum(axis=0)
        counts = ", ".join(f"{name} {number:,}" for name, number in zip(self.models, answers, strict=True))
        full = f"{self.complete.sum():,} queries have an answer of every model; answers per model: {counts}"
        text = f"{head}; {'every model answered every query' if self.complete.all() else full}."
        remark = self.describe_missing_confidence() if confidences else None
        text += f" {capitalised(remark)}." if remark else ""
        text += "" if self.reference is None else f" {self.reference.describe()}"
        text += "" if self.scores is None else f" {self.scores.describe()}"
        if self.hand_labels is None:
            return text
        sentence = describe_labels(self.models, np.asarray(self.answered), np.asarray(self.correct), self.hand_labels)
        return f"{text} {capitalised(sentence)}."

    __repr__ = describe

    @property
    def has_confidences(self) -> bool:
        """Whether an answer has a confidence below 1: answers count as sure if the log has no confidences."""
        logprob = np.asarray(self.logprob)
        return bool(((logprob > NO_CONFIDENCE) & (logprob != 0.0)).any())

    def describe_missing_confidence(self) -> str | None:
        """Count each model's answers without a confidence, and the right answers among them; None without any."""
        unsure, labels = np.asarray(self.logprob) == NO_CONFIDENCE, np.where(self.labelled, self.correct, np.nan)
        return describe_missing_confidences(
            (name, label) for j, name in enumerate(self.models) for label in labels[unsure[:, j], j].tolist()
        )

    def _along(self, axis: Axis, index: np.ndarray, names: Sequence[str] = ()) -> Log:
        if axis == "model":  # by name: the models of `labelled_log` may be in another order
            index = np.array([self.models.index(name) for name in names])
        part = super()._along(axis, index, names)
        # Average the costs as held, perhaps rounded to float32: taking every query then keeps the average.
        return dataclasses.replace(part, cost=jax.device_put(mean_cost(part.query_cost, part.answered)))


def sort_by_time(log: Log) -> Log:
    """Return a log with its queries in the order of their times; parts of a log may come in any order."""
    return log if log.time is None else log.take(np.argsort(np.asarray(log.time, float), kind="stable"))


def sort_by_name(log: Log) -> Log:
    """Return a log with its queries in the order of their names, shorter names first: random draws then depend on them.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> sort_by_name(log) is log, sort_by_name(log.take(range(299, -1, -1))).queries == log.queries
    (True, True)
    """
    names = [str(query) for query in log.queries]
    order = sorted(range(len(names)), key=lambda row: (len(names[row]), names[row]))
    return log if order == [*range(len(names))] else log.take(order)


def mean_cost(query_cost: ArrayLike, answered: ArrayLike) -> np.ndarray:
    """Return each model's mean cost over its answers; an exact sum makes it independent of the order of rows."""
    counts = np.asarray(answered).sum(axis=0)
    sums = np.array([math.fsum(column) for column in np.asarray(query_cost, np.float64).T.tolist()])
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


def require_models(models: Sequence[str], available: Sequence[str], place: str) -> None:
    """Refuse models that are not available, a model named twice, and an empty choice."""
    for name in models:
        if name not in available:
            models_there = f"it has {join_names(available)}"
            raise MissingModelError(
                f"{place}: no model {shorten(name)!r}{suggest_name(name, available)}: {models_there}"
            )
    if not models or len(models) > len({*models}):
        raise LogError(f"{place}: models {join_names(models)!r}: name at least one, and each once")
