"""A log of answers: reading it from a file or dataframe, checking every row, splitting it.

`read_log` turns a long table, one row per query and model, into the (n queries, k models) matrices that the
rest of the package works on.  What it cannot use it refuses with one line: where, what, and what to do.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import os
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._text import csv_records, find_damage

if TYPE_CHECKING:  # polars and narwhals are imported where a log is read: holding one does not need them
    import polars as pl

__all__ = ["IncompleteLogWarning", "Log", "LogError", "MissingPricesError", "read_answers", "read_log", "read_prices"]

_TOKENS = ["input_tokens", "output_tokens"]
_ADVICE = {
    "query": "give an integer or a string that names the query",
    "model": "give the model's name, a string",
    "correct": "give true, false, 1 or 0",
    "logprob": "log-probabilities are at most 0; if these are probabilities, name the column confidence",
    "confidence": "confidences lie in [0, 1]; divide percentages by 100, name log-probabilities logprob",
    "cost": "give the money that the call cost, 0 or more",
    **dict.fromkeys(_TOKENS, "give the number of tokens, 0 or more"),
}
_LIMITS = {"correct": (0, 1), "logprob": (-math.inf, 0), "confidence": (0, 1)}


class LogError(ValueError):
    """A log that cannot be used: says what is wrong, where and what to do."""


class MissingPricesError(LogError):
    """A log counts tokens, but nobody said what a token costs: read it again with prices."""


class IncompleteLogWarning(UserWarning):
    """Some queries of a log lack the answers of some models."""


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
        try:
            rows = np.arange(self.n_queries)[queries if isinstance(queries, slice) else np.ravel(queries)]
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
        names = f"{len(self.models)} models ({', '.join(self.models)})"
        head = f"{self.source}: {self.n_queries:,} queries, {names}, {self.task}"
        answers = np.asarray(self.answered).sum(axis=0)
        each = ", ".join(f"{name} {count:,}" for name, count in zip(self.models, answers, strict=True))
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
) -> Log:
    """Read and check a log with one row per query and model.

    `source` is the path of a `.csv`, `.parquet`, `.jsonl` or `.ndjson` file, or a dataframe (pandas, polars,
    pyarrow or any other that narwhals knows).  Its columns are `query` (integers or strings), `model`,
    `correct`, one of `logprob` (at most 0, may be -inf) and `confidence` (0 to 1), and either `cost` (money
    for this call) or `input_tokens` and `output_tokens` with `prices`, which go before `cost`.  Others are
    ignored.  `prices` is anything `read_prices` takes.  `models` chooses and orders the models; without it
    all are kept and sorted by mean cost, ties by first appearance.

    A model may be right always or never: calibration then gives it one confidence, (c + 1/2) / (n + 1) for c
    right answers of n.  Queries that lack some model are kept, with an `IncompleteLogWarning`.
    Raises `LogError`, on the first thing wrong, where the log or the prices cannot be used; it is a
    `MissingPricesError` where the log counts tokens, has no `cost`, and no prices are given.
    """
    return _read(source, prices, models, task, fewest=2)


def read_answers(
    source: Any,
    models: Iterable[str],
    *,
    prices: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    task: Literal["generation", "choice"] = "generation",
) -> Log:
    """Read what some models answered, as `read_log` does, except that one model is enough.

    There is nothing to tune on one model, but a policy that asks only one can be replayed.

    >>> import polars as pl
    >>> table = {"query": [1, 2], "model": ["small"] * 2, "correct": [0, 1], "confidence": [0.4, 0.9]}
    >>> read_answers(pl.DataFrame(table | {"cost": [1.0, 3.0]}), ["small"]).cost.tolist()
    [2.0]
    """
    return _read(source, prices, models, task, fewest=1)


def _read(source: Any, prices: Any, models: Iterable[str] | None, task: Any, fewest: int) -> Log:
    if task not in ("generation", "choice"):
        raise LogError(f"task {task!r} is unknown: choose generation or choice")
    rates = None if prices is None else read_prices(prices)
    names, rows = _models(_rows(source, rates is not None), models, fewest)
    queries, place = _places(rows, names)
    values = (_logprob(rows), _numbers(rows, "correct") == 1, _cost(rows, names, place[1], rates), np.True_)
    matrices = [np.full((len(queries), len(names)), empty) for empty in (math.nan, False, 0.0, False)]
    for matrix, value in zip(matrices, values, strict=True):
        matrix[place] = value
    if models is None:  # a stable sort: models of equal cost stay in order of first appearance
        cheapest = np.argsort(_mean_cost(matrices[2], matrices[3]), kind="stable")
        names, matrices = tuple(names[j] for j in cheapest), [matrix[:, cheapest] for matrix in matrices]
    used = rates and {name: rates[name] for name in names}
    origin = str(source) if isinstance(rows.source, Path) else rows.name
    log = _log(*matrices, models=names, queries=queries, task=task, source=origin, prices=used)
    if not log.complete.all():
        warnings.warn(log.describe(), IncompleteLogWarning, stacklevel=3)
    return log


def read_prices(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Read prices: (input, output) by model, in money per million tokens.

    `source` is the path of a TOML or JSON file, or a mapping, of the form
    `{model: {"input": price, "output": price}}`; a pair may stand for the inner mapping.
    Raises `LogError` for a file that cannot be read and for prices that are not finite numbers of at least 0.

    >>> read_prices({"small": {"input": 0.1, "output": 0.4}})
    {'small': (0.1, 0.4)}
    """
    if isinstance(source, Mapping):
        name, content = "prices", source
    else:
        path = Path(source)
        name = path.name
        _require_file(path, (".toml", ".json"))
        try:
            text = path.read_text(encoding="utf-8-sig")
            content = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
        except (ValueError, OSError) as error:  # the parsers' own errors say in which line
            raise LogError(f"{name}: cannot be read: {error}: correct the file") from None
    if not isinstance(content, Mapping) or not content:
        raise LogError(f"{name}: no prices: give a table of input and output prices for each model")
    return {str(model): _price(entry, f"{name}, model {model}") for model, entry in content.items()}


def _price(entry: Any, where: str) -> tuple[float, float]:
    if isinstance(entry, Mapping):
        for key in ("input", "output"):
            if key not in entry:  # TOML reads the bare header [llama3.2-1b] as table 2-1b within llama3
                advice = "give input and output, and in TOML put a model's name with a dot in quotes"
                raise LogError(f"{where}: no {key} price{_near(key, entry)}: {advice}")
        entry = (entry["input"], entry["output"])
    if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 2:
        raise LogError(f"{where}: {entry!r} is no price: give an input and an output price")
    for key, price in zip(("input", "output"), entry, strict=True):
        number = isinstance(price, int | float | np.number) and not isinstance(price, bool)
        if not number or not 0 <= price < math.inf:
            raise LogError(f"{where}: {key} price {price!r}: give money per million tokens, 0 or more")
    return float(entry[0]), float(entry[1])


def _require_file(path: Path, kinds: Sequence[str]) -> None:
    if not path.is_file():
        raise LogError(f"{path.name}: {path} is {'a directory' if path.is_dir() else 'missing'}: give a file")
    if path.suffix.lower() not in kinds:
        raise LogError(f"{path.name}: a file of kind {path.suffix!r} cannot be read: give {', '.join(kinds)}")
    if path.stat().st_size == 0:
        raise LogError(f"{path.name}: the file is empty: was it written completely?")


def _open(source: Any) -> Any:
    """Open a source (a path or a dataframe) as a narwhals frame."""
    import narwhals as nw
    import polars as pl

    if not isinstance(source, Path):
        return nw.from_native(source)
    if source.suffix.lower() == ".parquet":
        return nw.from_native(pl.scan_parquet(source, glob=False))
    # Text files are read as text: inferred types would refuse a value without telling which row it is in,
    # and a column of JSON may mix numbers with "-inf", which JSON cannot spell as a number.
    if source.suffix.lower() == ".csv":
        return nw.from_native(pl.scan_csv(source, infer_schema=False, glob=False))
    found = pl.scan_ndjson(source, infer_schema_length=None).collect_schema().names()
    text = dict.fromkeys({*found} & {*_ADVICE}, pl.String)
    return nw.from_native(pl.scan_ndjson(source, infer_schema_length=None, schema_overrides=text))


def _load(source: Any, name: str, priced: bool) -> pl.DataFrame:
    """Load the columns needed, turning the errors of the readers into a `LogError`."""
    import narwhals as nw
    import polars as pl

    try:
        frame = _open(source)
        needed = _needed(name, [str(column) for column in frame.collect_schema().names()], priced)
        frame = frame.select(*needed)
        frame = frame.collect(backend="polars") if isinstance(frame, nw.LazyFrame) else frame
        if not frame.implementation.is_pandas_like():
            return frame.to_polars()
        # By way of lists: the direct way needs pyarrow, and refuses columns of mixed types.
        pairs = {c: zip(frame[c].to_list(), frame[c].is_null().to_list(), strict=True) for c in needed}
        plain = {c: [None if null else value for value, null in pairs[c]] for c in needed}
        return pl.DataFrame(plain, strict=False)
    except LogError:
        raise
    except (pl.exceptions.PolarsError, nw.exceptions.NarwhalsError, OSError, TypeError, ValueError) as error:
        why = find_damage(source) if isinstance(source, Path) else None
        first = str(error).partition("\n")[0].rstrip(".")
        raise LogError(f"{name}{why or f': cannot be read: {first}: give a sound log'}") from None


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Rows under check; `position` holds their places in the source, counted from 0."""

    name: str
    source: Any
    frame: pl.DataFrame
    position: np.ndarray

    def keep(self, mask: pl.Series) -> _Rows:
        position = self.position[mask.to_numpy()]
        return dataclasses.replace(self, frame=self.frame.filter(mask), position=position)

    def place(self, i: int) -> str:
        """Put the place of row i into words, as an editor or a dataframe's user would look for it."""
        row = int(self.position[i])
        if isinstance(self.source, Path) and self.source.suffix.lower() == ".csv":
            return f"line {next(iter(csv_records(self.source)[0][row + 1 :]), row + 2)}"  # or stray quotes
        return f"row {row + 1}"

    def refuse(self, bad: pl.Series | np.ndarray, column: str, why: str) -> None:
        """Raise a `LogError` about the column's value in the first bad row, if there is one."""
        if bad.any():
            i = int(np.argmax(np.asarray(bad)))
            model, value = self.frame["model"][i], self.frame[column][i]
            of_model = f", model {model}" if model and column != "model" else ""
            shown = "" if value is None else " ".join(str(value).split())[:60] + " "
            raise LogError(f"{self.name}, {self.place(i)}{of_model}: {column} {shown}{why}")


def _needed(name: str, found: list[str], priced: bool) -> list[str]:
    """Return the columns to read: query, model, correct, the confidence and what the costs come from."""
    for column in _ADVICE:
        if found.count(column) > 1 or f"{column}_duplicated_0" in found:  # the latter is polars' new name
            raise LogError(f"{name}: column {column} occurs twice: drop one of the two")
    if {"logprob", "confidence"} <= {*found}:
        raise LogError(f"{name}: columns logprob and confidence both occur: drop one of the two")
    confidence = "confidence" if "confidence" in found else "logprob"
    money = _TOKENS if priced or ("cost" not in found and {*_TOKENS} & {*found}) else ["cost"]
    needed = ["query", "model", "correct", confidence, *money]
    missing = [column for column in needed if column not in found]
    if missing:
        either = {"logprob": "logprob (or confidence)", "cost": "cost (or input_tokens and output_tokens)"}
        listed = ", ".join(either.get(column, column) for column in missing)
        near = "".join(_near(column, {*found} - {*_ADVICE}) for column in missing)
        raise LogError(f"{name}: rename or add missing columns {listed}{near}; found: {', '.join(found)}")
    if money == _TOKENS and not priced:
        raise MissingPricesError(f"{name}: token counts but no prices: give prices=, or add a column cost")
    return needed


def _rows(source: Any, priced: bool) -> _Rows:
    """Read the columns needed, text stripped and empty text missing, without the blank lines of a file."""
    import polars as pl

    name = f"{type(source).__module__.partition('.')[0]}.{type(source).__name__}"
    if isinstance(source, str | os.PathLike):
        source = Path(source)
        name = source.name
        _require_file(source, (".csv", ".parquet", ".jsonl", ".ndjson"))
    frame = _load(source, name, priced)
    text = pl.col(pl.String, pl.Categorical, pl.Enum, pl.Null).cast(pl.String)
    frame = frame.with_columns(text.str.strip_chars().replace("", None))
    for column, kind in frame.schema.items():
        number = kind.is_integer() if column == "query" else kind.is_numeric() and column != "model"
        if not (number or kind == pl.String or (kind == pl.Boolean and column == "correct")):
            raise LogError(f"{name}: column {column} holds {kind} values: {_ADVICE[column]}")
    truth = pl.col("correct").cast(str).str.to_lowercase().replace({"true": "1", "false": "0"})
    frame = frame.with_columns(truth)
    rows = _Rows(name, source, frame, np.arange(frame.height))
    if set(frame.dtypes) == {pl.String}:
        rows = rows.keep(frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series())
    if not rows.frame.height:
        raise LogError(f"{name}: no rows: a log needs one for each query and model")
    return rows


def _models(rows: _Rows, chosen: Iterable[str] | None, fewest: int) -> tuple[tuple[str, ...], _Rows]:
    """Return the models, by first appearance or as chosen, and the rows about them."""
    column = rows.frame["model"]
    rows.refuse(column.is_null(), "model", f"is missing: {_ADVICE['model']}")
    names = tuple(column.unique(maintain_order=True))
    if chosen is not None:
        names = _chosen(chosen, names, rows.name)
        rows = rows.keep(column.is_in(list(names)))
    if len(names) < fewest:
        raise LogError(f"{rows.name}: only one model, {', '.join(names)}: a cascade needs at least two")
    return names, rows


def _places(rows: _Rows, names: Sequence[str]) -> tuple[tuple[int | str, ...], tuple[np.ndarray, np.ndarray]]:
    """Return the query ids by first appearance, and the place of each row in the (n, k) matrices."""
    texts = rows.frame["query"].cast(str)
    rows.refuse(texts.is_null(), "query", f"is missing: {_ADVICE['query']}")
    ids = texts.unique(maintain_order=True)
    by_query = texts.replace_strict(ids, range(len(ids)))
    by_model = rows.frame["model"].replace_strict(names, range(len(names)))
    pairs = by_query * len(names) + by_model
    again = ~pairs.is_first_distinct()
    if again.any():
        first = rows.place(int(np.argmax(pairs == pairs[int(np.argmax(again))])))
        rows.refuse(again, "query", f"was answered already in {first}: keep one row per query and model")
    answers = np.bincount(by_model, minlength=len(names))
    if answers.min() < 2:
        rare = names[int(answers.argmin())]
        raise LogError(f"{rows.name}, model {rare}: only 1 answer, 2 are needed: give models= without it")
    # Text files do not tell 7 from "7": one rule for every source makes the same log of each.
    whole = ids.str.contains(r"^(0|-?[1-9][0-9]*)$").all()
    return tuple(int(id) for id in ids) if whole else tuple(ids), (by_query.to_numpy(), by_model.to_numpy())


def _numbers(rows: _Rows, column: str) -> np.ndarray:
    """Return a column as float64 within the limits of its meaning."""
    given = rows.frame[column]
    low, high = _LIMITS.get(column, (0, 1e300))
    values, advice = given.cast(float, strict=False), _ADVICE[column]
    rows.refuse(given.is_null() | values.is_nan().fill_null(False), column, f"is missing: {advice}")
    unclear = (values % 1 != 0).fill_null(True) if column == "correct" else values.is_null()
    rows.refuse(unclear, column, f"is not clear: {advice}")
    rows.refuse(values > high, column, f"> {high:g}: {advice}")
    rows.refuse(values < low, column, f"< {low:g}: {advice}")
    return values.to_numpy()


def _logprob(rows: _Rows) -> np.ndarray:
    with np.errstate(divide="ignore"):  # a confidence of 0 is -inf, as meant
        given = "logprob" in rows.frame.columns
        return _numbers(rows, "logprob") if given else np.log(_numbers(rows, "confidence"))


def _cost(rows: _Rows, names: Sequence[str], by_model: np.ndarray, rates: Mapping | None) -> np.ndarray:
    """Return the money that each row cost."""
    if rates is None:
        return _numbers(rows, "cost")
    for name in names:
        if name not in rates:
            near = f"{_near(name, {*rates} - {*names})}; the prices know {', '.join(rates)}"
            raise LogError(f"{rows.name}, model {name}: no price{near}: add one, or give models= without it")
    tokens = np.stack([_numbers(rows, column) for column in _TOKENS], axis=1)
    per_million = np.array([rates[name] for name in names])[by_model]
    return (tokens * per_million).sum(axis=1) / 1e6


def _mean_cost(cost: np.ndarray, answered: np.ndarray) -> np.ndarray:
    """Average over each model's answers; the exact sum does not depend on the order of the rows."""
    counts = answered.sum(axis=0)
    sums = np.array([math.fsum(column) for column in cost.T.astype(np.float64)])
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


def _log(*matrices: np.ndarray, **facts: Any) -> Log:
    """Move the matrices to JAX, each in one step, and average the costs."""
    logprob, correct, query_cost, answered = map(jnp.asarray, matrices)
    # The average is over the costs as held, perhaps rounded to float32: taking every query then keeps it.
    cost = jnp.asarray(_mean_cost(np.asarray(query_cost), matrices[3]))
    return Log(logprob=logprob, correct=correct, query_cost=query_cost, answered=answered, cost=cost, **facts)


def _chosen(models: Iterable[str], known: Sequence[str], where: str) -> tuple[str, ...]:
    """Check a choice of models against the known ones."""
    names = (models,) if isinstance(models, str) else tuple(models)
    for name in names:
        if name not in known:
            raise LogError(f"{where}: no model {name!r}{_near(name, known)}: it has {', '.join(known)}")
    if not names or len(names) > len({*names}):
        raise LogError(f"{where}: models {', '.join(names)!r}: name at least one, and each once")
    return names


def _near(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(word), [str(name) for name in known], n=1, cutoff=0.55)
    return f" (did you mean {close[0]!r} for {word!r}?)" if close else ""
