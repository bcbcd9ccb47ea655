"""A log of answers as matrices: one row per query, one column per model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.tokens import Price
from rcjax._base.wording import count, no_confidence
from rcjax.logs.cells import CELL, MODEL, QUERY, Axis, Cells, HandLabels, describe_labels
from rcjax.logs.errors import LogError, brief, listed, near
from rcjax.policy.counted import Counted, Reference, Scores, counted_by
from rcjax.policy.decisions import NO_CONFIDENCE, Comparison

#: Code of a query that a model gave no answer to, or none that is known (`Log.answer`).
NO_ANSWER = -1


class FailedCalls(NamedTuple):
    """Queries that went to the same models, some of which gave no answer that can be used."""

    asked: frozenset[str]
    failed: frozenset[str]
    """Those of them whose call failed; of a reference, also those that gave no answer."""
    queries: int


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Log(Cells):
    """Answers of k models to n queries, as matrices with one row per query and one column per model.

    Floating-point arrays have JAX's default float dtype: float32, or float64 where the user enabled it.
    """

    models: tuple[str, ...] = field(metadata=MODEL)
    """Names of the k models, cheapest first unless `read_log` was told otherwise."""
    logprob: jax.Array = field(metadata=CELL)
    """(n, k) natural log of the raw confidence, at most 0; NaN if the model did not answer, and `NO_CONFIDENCE`, a
    large negative number, of an answer without a confidence: it counts as less sure than all others."""
    correct: jax.Array = field(metadata=CELL)
    """(n, k) bool: the answer is labelled correct; False where the model did not answer, or nobody labelled it.
    Of a log with `scores` a float: the score as a share of the full one, 0 where there is none."""
    query_cost: jax.Array = field(metadata=CELL)
    """(n, k) money per query; 0 where the model did not answer."""
    answered: jax.Array = field(metadata=CELL)
    """(n, k) bool: the log holds the model's answer to the query."""
    cost: jax.Array = field(metadata=MODEL)
    """(k,) money per query: the mean over the model's answers; NaN for a model without any."""
    queries: tuple[int | str, ...] = field(metadata=QUERY)
    """The n query ids by first appearance; ints where every id is a whole number, else strings."""
    task: Literal["generation", "choice"]
    """What the models did: wrote answers, or picked one of several choices."""
    source: str
    """The path as given, or the kind of dataframe, such as `"pandas.DataFrame"`."""
    prices: dict[str, Price] | None = field(default=None, metadata=MODEL)
    """Money per million tokens by model, where the costs come from prices."""
    asked: dict[str, dict[str, Any]] | None = field(default=None, metadata=MODEL)
    """How each model was asked, where the log tells: signal, options, prices. A policy tuned on the log keeps it."""
    answer: jax.Array | None = field(default=None, metadata=CELL)
    """(n, k) whole numbers: equal ones in a row are equal answers, −1 is none. None if the log tells no answers."""
    compare: Comparison | None = None
    """How answers were compared, as `rcjax.policy.decisions.comparable` says, or None."""
    hand: HandLabels | None = None
    """Which answers a person has labelled, and what judges say; None if all answers are labelled and none is judged.
    `correct` is False where an answer has no label."""
    seconds: jax.Array | None = field(default=None, metadata=CELL)
    """(n, k) how long each answer took, of several that vote the longest; NaN if that is not known or there is no
    answer. None if the log does not tell."""
    reference: Reference | None = None
    """The model whose answers take the place of right ones, and what is counted then: where that is differences,
    `correct` says whether an answer is the reference's. None if right and wrong are known."""
    failed: tuple[FailedCalls, ...] = ()
    """Which queries of what was read lack an answer as a call failed; calls that nobody made are not among them. Where
    the log does not tell of calls, they failed if missing answers go with how sure another model is."""
    errors: Log | None = None
    """Where differences are counted and there are labels besides: the same answers by these labels, `judged_same` a
    judge. None for other logs, and where a model has fewer than two labels."""
    segment: tuple[str, ...] | None = field(default=None, metadata=QUERY)
    """The n queries' segments (`rcjax.logs.reading`), "" where none is told; None if nobody asked for any."""
    time: tuple[float, ...] | None = field(default=None, metadata=QUERY)
    """When each of the n queries came, in seconds since 1970; NaN where that is not known. None if nobody asked, or the
    log has no column time (`rcjax.logs.reading.with_times`)."""
    scores: Scores | None = None
    """The scale of scores, where some label lies between right and wrong; None if all are right or wrong."""

    @property
    def counted(self) -> Counted:
        """What is counted, with the words for it."""
        return counted_by(self.reference, self.scores)

    @property
    def n_queries(self) -> int:
        """Number of queries, n."""
        return len(self.queries)

    @property
    def complete(self) -> np.ndarray:
        """(n,) bool NumPy array: the queries that every model answered."""
        return np.all(np.asarray(self.answered), axis=1)

    @property
    def labelled(self) -> np.ndarray:
        """(n, k) bool NumPy array: the answers whose label is known."""
        return np.asarray(self.answered if self.hand is None else self.hand.labelled)

    @property
    def digest(self) -> str:
        """SHA-256 of the content, in hexadecimal: the same in any order of queries and any float dtype.

        Seconds are no part of it: a log that tells them has the hash that it had without.
        """
        names = [*map(str, self.queries)]
        order = np.array(sorted(range(len(names)), key=names.__getitem__))
        head = [self.task, self.models, [self.queries[i] for i in order.tolist()]]
        by_hand = () if self.hand is None else (self.hand.labelled, self.hand.judged)
        matrices = [self.logprob, self.correct, self.query_cost, self.answered, *by_hand]
        content = b"".join(np.asarray(matrix, "<f4")[order].tobytes() for matrix in matrices)
        return hashlib.sha256(json.dumps(head).encode() + content).hexdigest()

    def take(self, queries: Any) -> Log:
        """Return the log of some queries, with the costs averaged over them.

        `queries` holds positions (integers or a slice; a repeated position repeats its query, as a bootstrap
        does) or is a boolean mask of shape (n,).
        Raises `LogError` for positions outside the log, a mask of another length, or no query at all.
        """
        chosen = queries if isinstance(queries, slice) else np.ravel(queries)
        if not isinstance(chosen, slice) and not chosen.size:
            chosen = slice(0)  # an empty list has no dtype that would fit
        try:
            rows = np.arange(self.n_queries)[chosen]
        except IndexError as error:
            raise LogError(f"{self.source}: not positions or a mask of its queries: {error}") from None
        if not rows.size:
            raise LogError(f"{self.source}: no query taken: a log needs at least one")
        return self._along("query", rows)

    def split(self, fraction: float, seed: int) -> tuple[Log, Log]:
        """Split the queries at random, the same way for the same seed.

        The first log gets round(fraction * n) queries, the second the others; both keep the log's order.
        Raises `LogError` for a fraction outside (0, 1) or one that leaves a side without queries.
        """
        size = round(fraction * self.n_queries) if 0 < fraction < 1 else 0
        if not 0 < size < self.n_queries:
            what = f"split fraction {fraction!r} leaves a side of {self.n_queries} queries empty"
            raise LogError(f"{self.source}: {what}: give one between 0 and 1, nearer to 0.5")
        order = np.random.default_rng(seed).permutation(self.n_queries)
        return self.take(np.sort(order[:size])), self.take(np.sort(order[size:]))

    def select(self, models: Iterable[str]) -> Log:
        """Return the log of some models, in the order given; all queries stay.

        Raises `LogError` for a model the log does not hold, one named twice, or none at all.
        """
        names = (models,) if isinstance(models, str) else tuple(models)
        if names == self.models and self.errors is None:
            return self
        require_models(names, self.models, self.source)
        return self._along("model", np.empty(0, int), names)

    def describe(self, *, confidences: bool = True) -> str:
        """Return a short paragraph: how many queries, which models, who answered what, and what of it is labelled.

        Args:
            confidences: whether it says which answers have no confidence, as a warning of `read_log` does too.

        >>> import polars as pl
        >>> from rcjax import read_log
        >>> table = {"query": [1, 1, 2, 2], "model": ["small", "large"] * 2, "correct": [0, 1, 1, 1]}
        >>> frame = pl.DataFrame(table | {"confidence": [0.4, 0.9, 0.8, 0.7], "cost": [1e-5, 3e-4] * 2})
        >>> print(read_log(frame).describe())
        polars.DataFrame: 2 queries, 2 models (small, large), generation; every model answered every query.
        """
        names = f"{count(len(self.models), 'model')} ({', '.join(self.models)})"
        head = f"{self.source}: {count(self.n_queries, 'query')}, {names}, {self.task}"
        answers = np.asarray(self.answered).sum(axis=0)
        counts = ", ".join(f"{name} {number:,}" for name, number in zip(self.models, answers, strict=True))
        full = f"{self.complete.sum():,} queries have an answer of every model; answers per model: {counts}"
        text = f"{head}; {'every model answered every query' if self.complete.all() else full}."
        unread = self.without_confidence() if confidences else None
        text += f" {unread[:1].upper()}{unread[1:]}." if unread else ""
        text += "" if self.reference is None else f" {self.reference.describe()}"
        text += "" if self.scores is None else f" {self.scores.describe()}"
        if self.hand is None:
            return text
        sentence = describe_labels(self.models, np.asarray(self.answered), np.asarray(self.correct), self.hand)
        return f"{text} {sentence[:1].upper()}{sentence[1:]}."

    __repr__ = describe

    def without_confidence(self) -> str | None:
        """Which models gave answers without a confidence, and how many of them are right; None if all have one."""
        unread = np.asarray(self.logprob) == NO_CONFIDENCE
        labelled = unread & self.labelled
        right = np.where(labelled, np.asarray(self.correct, float), 0.0).sum(0)
        return no_confidence(
            zip(self.models, unread.sum(0).tolist(), labelled.sum(0).tolist(), right.tolist(), strict=True)
        )

    def _along(self, axis: Axis, index: np.ndarray, names: Sequence[str] = ()) -> Log:
        if axis == "model":  # by name: those of `errors` may be in another order
            index = np.array([self.models.index(name) for name in names])
        part = super()._along(axis, index, names)
        # Of costs as held, perhaps rounded to float32: taking every query then keeps the average.
        return dataclasses.replace(part, cost=jax.device_put(mean_cost(part.query_cost, part.answered)))


def mean_cost(query_cost: ArrayLike, answered: ArrayLike) -> np.ndarray:
    """Average over each model's answers; the exact sum does not depend on the order of the rows."""
    counts = np.asarray(answered).sum(axis=0)
    sums = np.array([math.fsum(column) for column in np.asarray(query_cost, np.float64).T.tolist()])
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


def require_models(models: Sequence[str], available: Sequence[str], where: str) -> None:
    """Refuse a choice of models that are not all available, or are named twice."""
    for name in models:
        if name not in available:
            raise LogError(f"{where}: no model {brief(name)!r}{near(name, available)}: it has {listed(available)}")
    if not models or len(models) > len({*models}):
        raise LogError(f"{where}: models {listed(models)!r}: name at least one, and each once")
