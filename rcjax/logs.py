"""A log of answers: reading it from a file or dataframe, checking every row, splitting it.

`read_log` turns a long table, one row per query and model, into the (n queries, k models) matrices that the
rest of the package works on.  What it cannot use it refuses with one line: where, what, and what to do.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from rcjax._arguments import check_arguments, what_it_is
from rcjax._labels import Labeller, UsableCalls, read_labels
from rcjax._matrices import Matrices
from rcjax._price_files import read_prices
from rcjax._rows import (
    TOKENS,
    LogError,
    MissingPricesError,
    Rows,
    brief,
    listed,
    near,
    numbers,
    read_rows,
    require_models,
    require_money,
)
from rcjax._wording import count

__all__ = [
    "IncompleteLogWarning",
    "LeftOutWarning",
    "Log",
    "LogError",
    "MissingPricesError",
    "read_answers",
    "read_log",
    "read_prices",
]


class IncompleteLogWarning(UserWarning):
    """Some queries of a log lack the answers of some models."""


class LeftOutWarning(UserWarning):
    """Some rows of a call log, or of a log with labels, are left out."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Log:
    """Answers of k models to n queries, as matrices with one row per query and one column per model.

    Floating-point arrays have JAX's default float dtype: float32, or float64 where the user enabled it.
    """

    models: tuple[str, ...]
    """Names of the k models, cheapest first unless `read_log` was told otherwise."""
    logprob: jax.Array
    """(n, k) natural log of the raw confidence, at most 0; NaN where the model did not answer."""
    correct: jax.Array
    """(n, k) bool: the answer was judged correct; False where the model did not answer."""
    query_cost: jax.Array
    """(n, k) money per query; 0 where the model did not answer."""
    answered: jax.Array
    """(n, k) bool: the log holds the model's answer to the query."""
    cost: jax.Array
    """(k,) money per query: the mean over the model's answers; NaN for a model without any."""
    queries: tuple[int | str, ...]
    """The n query ids by first appearance; ints where every id is a whole number, else strings."""
    task: Literal["generation", "choice"]
    """What the models did: wrote answers, or picked one of several choices."""
    source: str
    """The path as given, or the kind of dataframe, such as `"pandas.DataFrame"`."""
    prices: dict[str, tuple[float, float]] | None = None
    """(input, output) money per million tokens by model, where the costs come from prices."""

    @property
    def n_queries(self) -> int:
        """Number of queries, n."""
        return len(self.queries)

    @property
    def complete(self) -> np.ndarray:
        """(n,) bool NumPy array: the queries that every model answered."""
        return np.all(np.asarray(self.answered), axis=1)

    @property
    def digest(self) -> str:
        """SHA-256 of the content, in hexadecimal: the same in any order of queries and any float dtype."""
        order = sorted(range(self.n_queries), key=lambda i: str(self.queries[i]))
        head = [self.task, self.models, [self.queries[i] for i in order]]
        content = b"".join(matrix[order].astype("<f4").tobytes() for matrix in self._matrices())
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
        ids = tuple(self.queries[i] for i in rows)
        return self._with(*(matrix[rows] for matrix in self._matrices()), queries=ids)

    def split(self, fraction: float, seed: int) -> tuple[Log, Log]:
        """Split the queries at random, the same way for the same seed.

        The first log gets round(fraction * n) queries, the second the others; both keep the log's order.
        Raises `LogError` for a fraction outside (0, 1) or one that leaves a side without queries.
        """
        check_arguments(Log.split, locals())
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
        check_arguments(Log.select, locals())
        names = _chosen(models, self.models, self.source)
        columns = [self.models.index(name) for name in names]
        prices = self.prices and {name: self.prices[name] for name in names}
        return self._with(*(matrix[:, columns] for matrix in self._matrices()), models=names, prices=prices)

    def describe(self) -> str:
        """Return a short paragraph: how many queries, which models, and who answered what.

        >>> import polars as pl
        >>> table = {"query": [1, 1, 2, 2], "model": ["small", "large"] * 2, "correct": [0, 1, 1, 1]}
        >>> frame = pl.DataFrame(table | {"confidence": [0.4, 0.9, 0.8, 0.7], "cost": [1e-5, 3e-4] * 2})
        >>> print(read_log(frame).describe())
        polars.DataFrame: 2 queries, 2 models (small, large), generation; every model answered every query.
        """
        names = f"{count(len(self.models), 'model')} ({', '.join(self.models)})"
        head = f"{self.source}: {count(self.n_queries, 'query')}, {names}, {self.task}"
        answers = np.asarray(self.answered).sum(axis=0)
        each = ", ".join(f"{name} {number:,}" for name, number in zip(self.models, answers, strict=True))
        full = f"{self.complete.sum():,} queries have an answer of every model; answers per model: {each}"
        return f"{head}; {'every model answered every query' if self.complete.all() else full}."

    __repr__ = describe

    def _matrices(self) -> list[np.ndarray]:
        return [np.asarray(m) for m in (self.logprob, self.correct, self.query_cost, self.answered)]

    def _with(self, *matrices: np.ndarray, **changes: Any) -> Log:
        kept = {name: getattr(self, name) for name in ("models", "queries", "task", "source", "prices")}
        return _log(*matrices, **kept | changes)


def read_log(
    source: Any,
    *,
    prices: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    models: Iterable[str] | None = None,
    task: Literal["generation", "choice"] = "generation",
    labels: Any = None,
) -> Log:
    """Read and check a log with one row per query and model.

    `source` is the path of a `.csv`, `.tsv`, `.parquet`, `.jsonl` or `.ndjson` file, or a dataframe (pandas, polars,
    pyarrow or any other that narwhals knows).  Its columns are `query` (integers or strings), `model`,
    `correct`, one of `logprob` (at most 0, may be -inf) and `confidence` (0 to 1), and either `cost` (money
    for this call, 0 or from 1e-18 to 1e18) or `input_tokens` and `output_tokens` with `prices`, which go before
    `cost`.  Others are ignored.  Names of columns may be in capitals, and have spaces for underscores.  The
    separator of a text file (`,` `;` tab or `|`) and its encoding (UTF-8, or UTF-16 or UTF-32 with a byte order mark)
    are told by its beginning.  Files, and lazy frames of polars, are read a batch of rows at a time: memory is that
    of the log, not of its text, unless the text is not UTF-8.  `prices` is anything `read_prices` takes.  `models`
    chooses and orders the models; without it all are kept and sorted by mean cost, ties by first appearance.

    `labels`, a file or dataframe, tells right from wrong in place of the column `correct`: by `query`, `model` and
    `correct`, or by `query` and `answer`, a right answer, with which the log's own column `answer` is compared but
    for case and white space.  Rows without a label are left out.  Labels that are the log's own answers are refused.

    The file of a `CallLog` is read as it is: calls that failed or were cut off, repeated answers, and queries that
    did not go to all models (`shadow`) are left out.  To learn from the latter would be to take hard queries for
    a sample of all; a frame without the columns `call_log` and `shadow` is taken as a whole.

    A model may be right always or never: calibration then gives it one confidence, (c + 1/2) / (n + 1) for c
    right answers of n.  Queries that lack some model are kept, with an `IncompleteLogWarning`; for rows left out
    there is a `LeftOutWarning` with the counts.
    Raises `LogError`, on the first batch of rows with something wrong, where the log or the prices cannot be used; it
    is a `MissingPricesError` where the log counts tokens, has no `cost`, and no prices are given.
    """
    check_arguments(read_log, locals())
    for name, table in (("source", source), *((("labels", labels),) if labels is not None else ())):
        if table is None or isinstance(table, bytes | int | float | list | type):
            raise TypeError(f"{name} must be the path of a file, or a dataframe, not {what_it_is(table)}")
    return _read(source, prices, models, task, labels, fewest=2)


def read_answers(
    source: Any,
    models: Iterable[str],
    *,
    prices: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    task: Literal["generation", "choice"] = "generation",
    labels: Any = None,
) -> Log:
    """Read what some models answered, as `read_log` does, except that one model is enough.

    There is nothing to tune on one model, but a policy that asks only one can be replayed.

    >>> import polars as pl
    >>> table = {"query": [1, 2], "model": ["small"] * 2, "correct": [0, 1], "confidence": [0.4, 0.9]}
    >>> read_answers(pl.DataFrame(table | {"cost": [1.0, 3.0]}), ["small"]).cost.tolist()
    [2.0]
    """
    return _read(source, prices, models, task, labels, fewest=1)


def _read(source: Any, prices: Any, models: Iterable[str] | None, task: Any, labels: Any, fewest: int) -> Log:
    if task not in ("generation", "choice"):
        raise LogError(f"task {brief(task)!r} is unknown: choose generation or choice")
    rates = None if prices is None else read_prices(prices)
    wanted = None if models is None else (models,) if isinstance(models, str) else tuple(models)
    held, every, name = _scattered(source, rates, wanted, labels)
    names = _names(held, every, wanted, name, fewest)
    columns = [held.models[model] for model in names]
    answered = held.take("row") >= 0
    _require_answers(answered[:, columns], names, name)
    matrices = [held.take("logprob"), held.take("correct"), held.take("cost"), answered]
    if models is None:  # a stable sort: models of equal cost stay in order of first appearance
        columns = np.argsort(_mean_cost(matrices[2], answered), kind="stable")
        names = tuple(names[j] for j in columns)
    queries = _ids(held.queries)
    used = rates and {name: rates[name] for name in names}
    origin = str(source) if isinstance(source, str | os.PathLike) else name
    matrices = [np.ascontiguousarray(matrix[:, columns]) for matrix in matrices]
    del held  # before jax has matrices of its own
    log = _log(*matrices, models=names, queries=queries, task=task, source=origin, prices=used)
    if not log.complete.all():
        warnings.warn(log.describe(), IncompleteLogWarning, stacklevel=3)
    return log


def _scattered(
    source: Any, rates: Mapping | None, wanted: tuple[str, ...] | None, labels: Any
) -> tuple[Matrices, list[str], str]:
    """(matrices of all rows to use, all models' names by first appearance, the source's name for messages)."""
    held, name = Matrices(logprob=math.nan, correct=False, cost=0.0), ""
    every: dict[str, None] = {}
    for rows in _judged_rows(source, rates is not None, labels, every):
        name = rows.name
        require_models(rows)
        if wanted is not None:
            rows = rows.keep(rows.frame["model"].is_in(list(wanted)))
        if not rows.frame.height:
            continue
        place = held.place(rows)
        again = held.repeated(rows, place)
        if again.any():
            i = int(np.argmax(again))
            first = rows.place(int(held.take("row")[place[0][i], place[1][i]]))
            rows.refuse(again, "query", f"was answered already in {first}: keep one row per query and model")
        logprob, correct = _logprob(rows), numbers(rows, "correct") == 1
        held.put(place, logprob=logprob, correct=correct, cost=_cost(rows, list(held.models), place[1], rates))
    return held, list(every), name


def _judged_rows(source: Any, priced: bool, labels: Any, every: dict[str, None]) -> Iterator[Rows]:
    """The rows to use, some at a time, each with its column correct; at the end a warning counts the others.

    `every` gets the names of all models of the source by first appearance, those with no row to use too.
    """
    known = None if labels is None else read_labels(labels, source)
    judged = {None: "correct", "correct": None, "answer": "answer"}[known and known.by]
    labeller = known and Labeller(known)
    calls = UsableCalls()
    batches, cut = read_rows(source, priced, judged)
    read, name = cut, ""
    usable: set[str] = set()
    for rows in batches:
        read, name = read + rows.frame.height, rows.name
        every |= dict.fromkeys(rows.frame["model"].drop_nulls().unique(maintain_order=True))
        rows = calls.keep(rows)
        rows = labeller.keep(rows) if labeller else rows
        if rows.frame.height:
            usable |= {*rows.frame["model"].drop_nulls().unique()}
            yield rows
    calls.finish(name)
    left_out = {"cut off": cut, **calls.left_out}
    if labeller:
        labeller.finish(name)
        left_out["without a label"] = labeller.left_out
    if any(left_out.values()):
        reasons = "; ".join(f"{count:,} {why}" for why, count in left_out.items() if count)
        lost = [model for model in every if model not in usable]
        whole = f"; that is all of {listed(lost)}" if lost else ""
        message = f"{name}: {sum(left_out.values()):,} of {read:,} rows are left out: {reasons}{whole}"
        warnings.warn(message, LeftOutWarning, stacklevel=5)


def _names(
    held: Matrices, every: list[str], wanted: tuple[str, ...] | None, where: str, fewest: int
) -> tuple[str, ...]:
    """The models, by first appearance or as wanted."""
    names = tuple(held.models) if wanted is None else _chosen(wanted, every, where)
    unused = [name for name in (every if wanted is None else names) if name not in held.models]
    if unused and (wanted is not None or not held.models):
        why = "its calls failed, did not go to all models or have no label"
        raise LogError(f"{where}, model {brief(unused[0])}: no row can be used: {why}")
    if len(names) < fewest:
        raise LogError(f"{where}: only one model, {', '.join(names)}: a cascade needs at least two")
    return names


def _require_answers(answered: np.ndarray, names: Sequence[str], where: str) -> None:
    answers = answered.sum(axis=0)
    if answers.min() < 2:
        rare = names[int(answers.argmin())]
        raise LogError(f"{where}, model {rare}: only 1 answer, 2 are needed: leave it out of the models")


def _ids(texts: Iterable[str]) -> tuple[int | str, ...]:
    """Query ids as ints, where all are whole numbers.

    Text files do not tell 7 from "7": one rule for every source makes the same log of each.
    """
    whole = re.compile(r"0|-?[1-9][0-9]*").fullmatch
    return tuple(map(int, texts)) if all(map(whole, texts)) else tuple(texts)


def _logprob(rows: Rows) -> np.ndarray:
    with np.errstate(divide="ignore"):  # a confidence of 0 is -inf, as meant
        given = "logprob" in rows.frame.columns
        return numbers(rows, "logprob") if given else np.log(numbers(rows, "confidence"))


def _cost(rows: Rows, names: Sequence[str], by_model: np.ndarray, rates: Mapping | None) -> np.ndarray:
    """Return the money that each row cost."""
    if rates is None:
        cost = numbers(rows, "cost")
        require_money(rows, cost, "cost")
        return cost
    for name in names:
        if name not in rates:
            meant = f"{near(name, {*rates} - {*names})}; the prices know {listed(rates)}"
            raise LogError(f"{rows.name}, model {brief(name)}: no price{meant}: add one, or leave it out of the models")
    tokens = np.stack([numbers(rows, column) for column in TOKENS], axis=1)
    per_million = np.array([rates[name] for name in names])[by_model]
    with np.errstate(over="ignore"):  # what overflows is refused
        cost = (tokens * per_million).sum(axis=1) / 1e6
    require_money(rows, cost, TOKENS[0])
    return cost


def _mean_cost(cost: np.ndarray, answered: np.ndarray) -> np.ndarray:
    """Average over each model's answers; the exact sum does not depend on the order of the rows."""
    counts = answered.sum(axis=0)
    sums = np.array([math.fsum(column) for column in cost.T.astype(np.float64)])
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


def _log(*matrices: np.ndarray, **facts: Any) -> Log:
    """Move the matrices to JAX, each in one step, and average the costs."""
    # Not jnp.asarray, which compiles a programme for each shape.
    logprob, correct, query_cost, answered = jax.device_put(matrices)
    # The average is over the costs as held, perhaps rounded to float32: taking every query then keeps it.
    cost = jax.device_put(_mean_cost(np.asarray(query_cost), matrices[3]))
    return Log(logprob=logprob, correct=correct, query_cost=query_cost, answered=answered, cost=cost, **facts)


def _chosen(models: Iterable[str], known: Sequence[str], where: str) -> tuple[str, ...]:
    """Check a choice of models against the known ones."""
    names = (models,) if isinstance(models, str) else tuple(models)
    for name in names:
        if name not in known:
            raise LogError(f"{where}: no model {brief(name)!r}{near(name, known)}: it has {listed(known)}")
    if not names or len(names) > len({*names}):
        raise LogError(f"{where}: models {listed(names)!r}: name at least one, and each once")
    return names
