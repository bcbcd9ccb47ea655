"""The rows of a log under check, some at a time: reading any source, and saying in which row something is wrong."""

from __future__ import annotations

import dataclasses
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rcjax.logs.columns import (
    ANSWERS,
    CALL_COLUMNS,
    SAMPLE,
    SECONDS,
    TOKENS,
    advice_on,
    as_named,
    judge_columns,
    known_columns,
    limits_of,
    needed_columns,
    rounding_of,
    tells_no_confidence,
)
from rcjax.logs.dialects import SEPARATED, known_names, open_text
from rcjax.logs.errors import LogError, brief
from rcjax.logs.scoring import RIGHT_OR_WRONG, WORDS, Scoring
from rcjax.logs.text_files import TextFile, csv_line, find_damage, sound_calls
from rcjax.policy.calibrations import NO_CONFIDENCE

if TYPE_CHECKING:
    import polars as pl

#: Rows that are read and under check at a time.
BATCH = 250_000

#: What a query costs lies between these, or is 0: ratios of such sums, and what follows from them, then are finite
#: in float32 too, squares in float64, and every policy can be written (`_base.json_checks` allows 1e100).
LEAST, MOST = 1e-18, 1e18

_WHOLE = "give the number of tokens, without a point or a comma between thousands"

_DECIMALS = "write decimals with a point, and nothing between thousands"


def require_file(path: Path, kinds: Sequence[str]) -> None:
    """Refuse a path that is no file, is empty or is of a kind that cannot be read."""
    if not path.is_file():
        raise LogError(f"{path} is {'a directory' if path.is_dir() else 'missing'}: give a file")
    if path.suffix.lower() not in kinds:
        raise LogError(f"{path.name}: a file of kind {path.suffix!r} cannot be read: give {', '.join(kinds)}")
    if path.stat().st_size == 0:
        raise LogError(f"{path.name}: the file is empty: was it written completely?")


def _open(source: Any, columns: Iterable[str] | None = None) -> Any:
    """Open a Parquet file, a text file or a dataframe as a narwhals frame; of text files, columns as text.

    All columns of JSON Lines, to be found by reading the file, where none are named.
    """
    import narwhals as nw
    import polars as pl

    if isinstance(source, Path):
        return nw.from_native(pl.scan_parquet(source, glob=False))
    # Text files are read as text: inferred types would refuse a value without telling which row it is in,
    # and a column of JSON may mix numbers with "-inf", which JSON cannot spell as a number.
    if not isinstance(source, TextFile):
        return nw.from_native(source)
    content = io.BytesIO(source.content) if isinstance(source.content, bytes) else source.content
    if source.separator is None:
        text = None if columns is None else dict.fromkeys(columns, pl.String)
        return nw.from_native(pl.scan_ndjson(content, infer_schema_length=None, schema=text))
    return nw.from_native(pl.scan_csv(content, infer_schema=False, glob=False, separator=source.separator))


Choose = Callable[[str, list[str]], list[str]]
"""Takes the columns to read from those that there are, by the log's name and them."""


class Table(NamedTuple):
    """A table that is read as it is gone through: larger than memory, perhaps."""

    name: str
    source: Any  # a dataframe, the path of a Parquet file, or a `TextFile`
    frames: Iterator[pl.DataFrame]  # at most `BATCH` rows each, in order
    cut: int  # lines of a call log that are cut off
    columns: list[str]  # all that there are, as the source calls them


def load(source: Any, choose: Choose, named: Mapping[str, str] | None = None, name: str | None = None) -> Table:
    """The columns of any source that `choose` takes from those that there are, under the names that are ours.

    Text is stripped, and empty text missing; of ids, letters are composed. Errors of the readers become a `LogError`.

    Args:
        source: a file, or a dataframe.
        choose: takes columns by our names.
        named: what the source calls some columns, by our names; those that it lacks are passed over.
        name: what messages call the source.
    """
    import narwhals as nw

    name, cut = name or name_of(source), 0
    if isinstance(source, str | os.PathLike):
        source = Path(source)
        require_file(source, (*SEPARATED, ".parquet", ".jsonl", ".ndjson"))
        source = source if source.suffix.lower() == ".parquet" else _text(name, source)
    with _readable(name, source):
        sound = source
        if isinstance(source, TextFile) and source.separator is None:
            sound, cut = sound_calls(source)
            if sound.content == b"":
                raise LogError(f"{name}: no rows: its {cut} lines are cut off")
        columns = [str(column) for column in _open(sound).collect_schema().names()]
        ours = known_names(columns, known_columns(columns))
        theirs, ours = as_named(columns, ours, named or {})
        needed = choose(name, ours)
        theirs = [theirs[ours.index(column)] for column in needed]
        renamed = [nw.col(column).alias(our_name) for column, our_name in zip(theirs, needed, strict=True)]
        frame = _open(sound, theirs).select(*renamed)
    return Table(name, source, _frames(name, source, frame), cut, columns)


def name_of(source: Any) -> str:
    """What messages call a source: the name of a file, or the type of a dataframe.

    >>> name_of("logs/calls.jsonl"), name_of([])
    ('calls.jsonl', 'builtins.list')
    """
    if isinstance(source, str | os.PathLike):
        return Path(source).name
    return f"{type(source).__module__.partition('.')[0]}.{type(source).__name__}"


def _text(name: str, path: Path) -> TextFile:
    try:
        return open_text(path, known_columns(()))
    except (ValueError, OSError) as error:
        raise LogError(f"{name}: {error}") from None


@contextmanager
def _readable(name: str, source: Any) -> Iterator[None]:
    """Turn what the readers say into a `LogError` that tells where a file is damaged."""
    import narwhals as nw
    import polars as pl

    try:
        yield
    except LogError:
        raise
    except (pl.exceptions.PolarsError, nw.exceptions.NarwhalsError, OSError, TypeError, ValueError) as error:
        why = find_damage(source) if isinstance(source, TextFile) else None
        first = str(error).partition("\n")[0].rstrip(".")
        raise LogError(f"{name}{why or f': cannot be read: {first}: give a sound log'}") from None


def _frames(name: str, source: Any, frame: Any) -> Iterator[pl.DataFrame]:
    import polars as pl

    text = pl.col(pl.String, pl.Categorical, pl.Enum, pl.Null).cast(pl.String)
    with _readable(name, source):
        for part in _parts(frame):
            stripped = part.with_columns(text.str.strip_chars().replace("", None))
            names = [name for name in ("query", "model") if stripped.schema.get(name) == pl.String]
            yield stripped.with_columns(pl.col(names).str.normalize("NFC"))  # one name, however it is composed


def _parts(frame: Any) -> Iterator[pl.DataFrame]:
    """The rows of a narwhals frame, so many at a time."""
    import narwhals as nw
    import polars as pl

    native = frame.to_native()
    if isinstance(native, pl.LazyFrame):  # before polars 1.37 this ended without a word where a file is broken
        yield from native.collect_batches(chunk_size=BATCH, maintain_order=True, lazy=True)
        return
    frame = frame.collect(backend="polars") if isinstance(frame, nw.LazyFrame) else frame
    if not frame.implementation.is_pandas_like():
        yield from frame.to_polars().iter_slices(BATCH)
        return
    for start in range(0, len(frame), BATCH):  # by way of lists: the direct way needs pyarrow, and one type a column
        part = frame[start : start + BATCH]
        pairs = {c: zip(part[c].to_list(), part[c].is_null().to_list(), strict=True) for c in part.columns}
        yield pl.DataFrame({c: [None if null else value for value, null in pairs[c]] for c in pairs}, strict=False)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows under check; `position` holds their places in the source, counted from 0, and `correct` labels as `scoring`
    says."""

    name: str
    source: Any
    frame: pl.DataFrame
    position: np.ndarray
    scoring: Scoring = RIGHT_OR_WRONG

    def keep(self, mask: pl.Series) -> Rows:
        """The rows where the mask is true."""
        position = self.position[mask.to_numpy()]
        return dataclasses.replace(self, frame=self.frame.filter(mask), position=position)

    def row_in_words(self, position: int) -> str:
        """Put the place of a row in the source into words, as an editor or a dataframe's user would look for it."""
        if isinstance(self.source, TextFile) and self.source.separator is not None:
            return f"line {csv_line(self.source, position + 1)}"
        return f"row {position + 1}"

    def refuse(self, bad: pl.Series | np.ndarray, column: str, why: str) -> None:
        """Raise a `LogError` about the column's value in the first bad row, if there is one."""
        if bad.any():
            i = int(np.argmax(np.asarray(bad)))
            model, value = self.frame["model"][i], self.frame[column][i]
            of_model = f", model {brief(model)}" if model and column != "model" else ""
            shown = "" if value is None else brief(value) + " "
            called = self.scoring.column if column == "correct" else column
            raise LogError(f"{self.name}, {self.row_in_words(int(self.position[i]))}{of_model}: {called} {shown}{why}")


def read_rows(
    source: Any,
    priced: bool,
    needed_label: str | None = "correct",
    more: Choose | None = None,
    scoring: Scoring = RIGHT_OR_WRONG,
) -> tuple[Iterator[Rows], int]:
    """(the rows, some at a time, without the blank lines of a file; how many lines of a call log were cut off).

    Args:
        source: a file or dataframe.
        priced: whether tokens have prices.
        needed_label: the column that is to tell right from wrong, as `needed_columns` takes it.
        more: which columns to read as texts besides, of the log's name and columns.
        scoring: how its labels are written.
    """
    texts: list[str] = []
    written = [RIGHT_OR_WRONG]

    def choose(name: str, columns: list[str]) -> list[str]:
        texts[:] = [] if more is None else more(name, columns)
        written[:] = [scoring.of_table(columns)]
        label = written[0].column
        labelled = [column for column in columns if column != "correct" or label == "correct"]
        needed = needed_columns(
            name, ["correct" if column == label else column for column in labelled], priced, needed_label
        )
        return [label if column == "correct" else column for column in needed] + texts

    table = load(source, choose)
    return typed(table, written[0], texts), table.cut


def typed(table: Table, scoring: Scoring = RIGHT_OR_WRONG, texts: Sequence[str] = ()) -> Iterator[Rows]:
    """The rows of a table: refuses columns of a type that cannot be used, and tables without a row."""
    import polars as pl

    name, source, start, any_rows = table.name, table.source, 0, False
    for frame in table.frames:
        frame = frame.rename({scoring.column: "correct"}, strict=False)
        free = [column for column in (*ANSWERS, SAMPLE, *CALL_COLUMNS, *texts) if column in frame.columns]
        for column in free:
            if frame.schema[column].is_nested():
                raise LogError(f"{name}: column {column} holds {frame.schema[column]} values: give texts or numbers")
        for column, kind in frame.drop(free).schema.items():
            number = kind.is_integer() if column == "query" else kind.is_numeric() and column != "model"
            verdict = column == "correct" or judge_columns([column])
            if not (number or kind == pl.String or (kind == pl.Boolean and verdict)):
                called, advice = _called(column, scoring)
                raise LogError(f"{name}: column {called} holds {kind} values: {advice}")
        frame = frame.with_columns(pl.col(free).cast(pl.String)).with_columns(truth(frame, scoring))
        rows = Rows(name, source, frame, np.arange(start, start + frame.height), scoring)
        start += frame.height
        if set(frame.dtypes) == {pl.String}:
            rows = rows.keep(frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series())
        if rows.frame.height:
            any_rows = True
            yield rows
    if not any_rows:
        raise LogError(f"{name}: no rows: a log needs one for each query and model")


def _called(column: str, scoring: Scoring) -> tuple[str, str]:
    """(what a column is called in the source, what to put into it)."""
    return (scoring.column, scoring.advice) if column == "correct" else (column, advice_on(column))


def truth(frame: pl.DataFrame, scoring: Scoring = RIGHT_OR_WRONG) -> list[pl.Expr]:
    """Columns of labels and of judges' verdicts as text, `WORDS` as numbers; nothing where there are none.

    Of labels, right is the full score.
    """
    import polars as pl

    columns = []
    for name in frame.columns:
        if name == "correct" or judge_columns([name]):
            whole = f"{scoring.most:.17g}" if name == "correct" else "1"
            words = {word: whole if right else "0" for word, right in WORDS.items()}
            columns.append(pl.col(name).cast(pl.String).str.to_lowercase().replace(words))
    return columns


def require_models(rows: Rows) -> None:
    """Refuse a row that names no model."""
    rows.refuse(rows.frame["model"].is_null(), "model", f"is missing: {advice_on('model')}")


def numbers(rows: Rows, column: str, optional: bool = False) -> np.ndarray:
    """A column as float64 within the limits of its meaning; where cells may be empty (`optional`), NaN there.

    Labels are scores from 0 to 1, however the source writes them.
    """
    texts = with_points(rows, column)
    low, high = (0.0, rows.scoring.most) if column == "correct" else limits_of(column)
    values, advice = texts.cast(float, strict=False), _called(column, rows.scoring)[1]
    missing = texts.is_null() | values.is_nan().fill_null(False)
    if not optional:
        rows.refuse(missing, column, f"is missing: {advice}")
    unclear = values.is_null() & ~missing
    if unclear.any():
        comma = "," in str(texts.filter(unclear)[0])
        rows.refuse(unclear, column, f"is not clear: {_DECIMALS if comma else advice}")
    rows.refuse((values > high + rounding_of(column)) & ~missing, column, f"> {high:g}: {advice}")
    rows.refuse((values < low) & ~missing, column, f"< {low:g}: {advice}")
    if column in TOKENS:
        rows.refuse((values % 1 != 0) & ~missing, column, f"is no whole number: {_WHOLE}")
    values = values.clip(upper_bound=high) if rounding_of(column) else values
    array = values.fill_null(math.nan).to_numpy()
    return rows.scoring.scaled(array) if column == "correct" else array


def with_points(rows: Rows, column: str) -> pl.Series:
    """A column, where semicolons separate the columns with a point for the decimal comma; counts have none."""
    import polars as pl

    values, source = rows.frame[column], rows.source
    if column in TOKENS or values.dtype != pl.String or not isinstance(source, TextFile) or source.separator != ";":
        return values
    return values.str.replace(r"^([+-]?[0-9]*),([0-9]+([eE][+-]?[0-9]+)?)$", "$1.$2")


def require_money(rows: Rows, money: np.ndarray, column: str) -> None:
    """Refuse sums of money, which a column holds or leads to, that are too large or too small to reckon with."""
    leads = "" if column == "cost" else "leads to a cost "
    advice = f"costs are 0, or from {LEAST:g} to {MOST:g} per query: count in another unit of money"
    rows.refuse(money > MOST, column, f"{leads}> {MOST:g}: {advice}")
    rows.refuse((money > 0) & (money < LEAST), column, f"{leads}< {LEAST:g}: {advice}")


def logprobs(rows: Rows) -> np.ndarray:
    """Raw confidences, `NO_CONFIDENCE` in empty cells; of a log that tells none 0, as if all answers were as sure."""
    if tells_no_confidence(rows.frame.columns):
        return np.zeros(rows.frame.height)
    with np.errstate(divide="ignore"):  # a confidence of 0 is -inf, as meant
        column = "logprob" if "logprob" in rows.frame.columns else "confidence"
        told = numbers(rows, column, optional=True)
        return np.where(np.isnan(told), NO_CONFIDENCE, told if column == "logprob" else np.log(told))


def measured_cells(rows: Rows) -> dict[str, np.ndarray]:
    """The seconds, by the name of the matrix, where rows tell them: NaN if the cell is empty."""
    column = next((name for name in SECONDS if name in rows.frame.columns), None)
    return {} if column is None else {"seconds": numbers(rows, column, optional=True) / SECONDS[column]}
