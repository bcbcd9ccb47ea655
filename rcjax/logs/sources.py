"""Tables of any source: files in whatever way people write them, and dataframes, read some rows at a time.

How a text is written is told by its beginning: the encoding, the ends of lines, the separator. What is written as
polars reads it is left where it is, to be streamed; any other text is brought into that form in memory. What polars
does not tell is found here: the line that a record starts in, and which line is broken or cut off.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from rcjax.logs.columns import known_columns, our_names, plain_name
from rcjax.logs.errors import LogError, brief

if TYPE_CHECKING:
    import polars as pl

#: Tables with a separator; by the names of files.
SEPARATED = (".csv", ".tsv")

#: Files of tables.
TABLES = (*SEPARATED, ".parquet", ".jsonl", ".ndjson")

#: Rows that are read and under check at a time.
BATCH = 250_000

#: How each line of a call log begins.
CALL = b'{"call_log": '

_BEGINNING = 2**16  # bytes that tell how a file is written

_SIGNS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}

Choose = Callable[[str, list[str]], list[str]]
"""Takes the columns to read from those that there are, by the log's name and them."""


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A CSV or JSON Lines file as it is read: UTF-8, lines that end in a newline."""

    content: Path | bytes
    """Where the text is: the file itself, or what was made of it where it is written in another way."""
    separator: str | None = ","
    """What stands between the fields of a CSV file; None for JSON Lines."""
    skipped: int = 0
    """Lines before the header: the first one, where it is Excel's `sep=;`."""

    def open(self) -> BinaryIO:
        """The text as a file of bytes."""
        return io.BytesIO(self.content) if isinstance(self.content, bytes) else open(self.content, "rb")


class Parts(NamedTuple):
    """The rows of several files, which `read_log` takes as it takes a dataframe (`rcjax.logs.parts`)."""

    name: str  # what messages call the log
    frame: pl.DataFrame
    cut: int = 0  # lines of a call log that are cut off


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
    if isinstance(source, Parts):
        _, source, cut = source
    if isinstance(source, str | os.PathLike):
        source = Path(source)
        require_file(source, TABLES)
        source = source if source.suffix.lower() == ".parquet" else open_text(source, known_columns(()))
    with _readable(name, source):
        sound = source
        if isinstance(source, TextFile) and source.separator is None:
            sound, cut = sound_calls(source)
            if sound.content == b"":
                raise LogError(f"{name}: no rows: its {cut} lines are cut off")
        columns = [str(column) for column in _scan(sound).collect_schema().names()]
        pairs = our_names(columns, named or {})
        theirs = dict(reversed(pairs))
        needed = choose(name, [ours for ours, _ in pairs])
        renamed = [nw.col(theirs[column]).alias(column) for column in needed]
        frame = _scan(sound, [theirs[column] for column in needed]).select(*renamed)
    return Table(name, source, _frames(name, source, frame), cut, columns)


def name_of(source: Any) -> str:
    """What messages call a source: the name of a file, or the type of a dataframe.

    >>> name_of("logs/calls.jsonl"), name_of([])
    ('calls.jsonl', 'builtins.list')
    """
    if isinstance(source, str | os.PathLike):
        return Path(source).name
    if isinstance(source, Parts):
        return source.name
    return f"{type(source).__module__.partition('.')[0]}.{type(source).__name__}"


def require_file(path: Path, kinds: Sequence[str]) -> None:
    """Refuse a path that is no file, is empty or is of a kind that cannot be read."""
    if not path.is_file():
        raise LogError(f"{path} is {'a directory' if path.is_dir() else 'missing'}: give a file")
    if path.suffix.lower() not in kinds:
        raise LogError(f"{path.name}: a file of kind {path.suffix!r} cannot be read: give {', '.join(kinds)}")
    if path.stat().st_size == 0:
        raise LogError(f"{path.name}: the file is empty: was it written completely?")


def load_text(text: TextFile, name: str) -> tuple[pl.DataFrame, int]:
    """(all rows of a text file, as texts; lines of a call log that are cut off).

    Args:
        text: the file.
        name: what messages call it.
    """
    with _readable(name, text):
        sound, cut = sound_calls(text) if text.separator is None else (text, 0)
        columns = _scan(sound).collect_schema().names()
        return _scan(sound, columns).to_native().collect(), cut


def open_text(
    path: Path, names: Collection[str], kind: str | None = None, content: Path | bytes | None = None
) -> TextFile:
    """A CSV or JSON Lines file as UTF-8 with newlines, and its separator: the one that gives most of the `names`.

    Args:
        path: the file.
        names: of columns.
        kind: how the name of a table of its kind ends; None: as that of the file does.
        content: what it holds, where that is not as it stands in the file.

    UTF-16 and UTF-32 are told by their byte order mark, or by the zeros in their first four bytes. Raises LogError
    where the text cannot be read, or is not what they tell.
    """
    try:
        content = path if content is None else content
        with TextFile(content).open() as file:
            start = file.read(_BEGINNING)
        separated, encoding = (kind or path.suffix.lower()) in SEPARATED, json.detect_encoding(start)
        as_it_is = encoding == "utf-8" or (separated and encoding == "utf-8-sig")  # polars knows the mark in CSV alone
        if not as_it_is:
            with TextFile(content).open() as file:
                content = file.read().decode(encoding).removeprefix("\ufeff").encode()
            start = content[:_BEGINNING]
    except UnicodeError:
        raise LogError(f"{path.name}: begins as {encoding.upper()}, but is not: save the file as UTF-8") from None
    except OSError as error:
        raise LogError(f"{path.name}: {error}") from None
    told = _TOLD.match(start.removeprefix(b"\xef\xbb\xbf")) if separated else None
    if told is not None:
        return TextFile(content, told[1].decode(), skipped=1)
    return TextFile(content, _separator(start, names) if separated else None)


#: The first line by which Excel tells, or is told, what separates the fields.
_TOLD = re.compile(rb"\"?sep=([,;\t|])\"?\r?\n", re.IGNORECASE)


def _separator(start: bytes, names: Collection[str]) -> str:
    """The separator of a table by its header. csv.Sniffer goes by any sign that recurs, even by letters."""
    lines = io.StringIO(start.decode("utf-8-sig", "replace").lstrip("\r\n"), newline="")
    first, best = ",", (0, 0)
    for separator in _SIGNS:
        lines.seek(0)
        try:
            fields = next(csv.reader(lines, delimiter=separator), [])
        except csv.Error:  # a field longer than the module takes
            continue
        score = (sum(plain_name(field) in names for field in fields), len(fields))
        if score > best:
            first, best = separator, score
    return first


def _scan(source: Any, columns: Iterable[str] | None = None) -> Any:
    """A Parquet file, a text file or a dataframe as a narwhals frame; of text files, columns as text.

    All columns of JSON Lines, to be found by reading the file, where none are named.
    """
    import narwhals as nw
    import polars as pl

    if isinstance(source, Path):
        return nw.from_native(scan_parquet(source))
    # Text files are read as text: inferred types would refuse a value without telling which row it is in,
    # and a column of JSON may mix numbers with "-inf", which JSON cannot spell as a number.
    if not isinstance(source, TextFile):
        return nw.from_native(source)
    content = io.BytesIO(source.content) if isinstance(source.content, bytes) else source.content
    if source.separator is None:
        text = None if columns is None else dict.fromkeys(columns, pl.String)
        return nw.from_native(pl.scan_ndjson(content, infer_schema_length=None, schema=text))
    return nw.from_native(
        pl.scan_csv(content, infer_schema=False, glob=False, separator=source.separator, skip_rows=source.skipped)
    )


_MOST_ROWS = 50_000_000  # of a Parquet file: five times the largest log that is measured

_SMALL, _LONGEST = 10_000_000, 200_000_000  # bytes of a Parquet file, and of all text in one of so few


def scan_parquet(file: Path) -> pl.LazyFrame:
    """A Parquet file, whose few bytes may tell of more rows and text than there is memory for: then a LogError."""
    import polars as pl

    frame = pl.scan_parquet(file, glob=False)
    rows = frame.select(pl.len()).collect().item()
    if rows > _MOST_ROWS:
        raise LogError(f"{file.name}: {rows:,} rows: rcjax reads {_MOST_ROWS:,}; give a part of them")
    texts = [name for name, kind in frame.collect_schema().items() if kind == pl.String]
    if texts and file.stat().st_size <= _SMALL:
        lengths = frame.select(pl.col(name).str.len_bytes().cast(pl.UInt64).sum() for name in texts)
        size = sum(lengths.collect(engine="streaming").row(0))
        if size > _LONGEST:
            raise LogError(f"{file.name}: {size / 1e6:,.0f} MB of text in {file.stat().st_size:,} bytes: is it a log?")
    return frame


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
        why = find_damage(source) if isinstance(source, TextFile) else _twice(source)
        first = str(error).partition("\n")[0].rstrip(".")
        raise LogError(f"{name}{why or f': cannot be read: {first}: give a sound log'}") from None


def _twice(source: Any) -> str | None:
    """Say which column a dataframe has twice; None if none. The words continue a message."""
    names = getattr(source, "column_names", None) or getattr(source, "columns", ())
    seen = set[str]()
    for column in map(str, names):
        if column in seen:
            return f": column {brief(column)} occurs twice: drop one of the two"
        seen.add(column)
    return None


def _frames(name: str, source: Any, frame: Any) -> Iterator[pl.DataFrame]:
    import polars as pl

    text = pl.col(pl.String, pl.Categorical, pl.Enum, pl.Null).cast(pl.String).str.strip_chars()
    with _readable(name, source):
        for part in _parts(frame):
            stripped = part.with_columns(pl.when(text != "").then(text))
            names = [name for name in ("query", "model") if stripped.schema.get(name) == pl.String]
            for name in names:  # is one, however it is composed
                if (stripped[name].str.len_bytes() > stripped[name].str.len_chars()).any():
                    stripped = stripped.with_columns(pl.col(name).str.normalize("NFC"))
            yield stripped


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


def find_damage(text: TextFile) -> str | None:
    """Say which line of a CSV or JSON Lines file is broken, and how; None if nothing is found.

    The words continue a message that starts with the file's name.

    >>> find_damage(TextFile(b"[1]", separator=None))
    ', line 1: not a JSON object: write one object per line'
    """
    line = 0
    try:
        with text.open() as file:
            for line, record in enumerate(file, start=1):
                words = record.decode().strip() or "{}"
                if text.separator is None and not isinstance(_parsed(words), dict):
                    return f", line {line}: not a JSON object: write one object per line"
    except UnicodeDecodeError:
        return f", line {line}: not UTF-8 text: save the file as UTF-8"
    except json.JSONDecodeError as error:
        return f", line {line}: not JSON: {error.msg}: write one object per line"
    except RecursionError:
        return f", line {line}: lists or objects nested too deep: write one object per line, its values plain"
    except ValueError:  # of int("-Infinity")
        return f", line {line}: JSON has no infinity and no NaN: write them in quotes"
    return None if text.separator is None else _ragged(text)


def _parsed(words: str) -> dict[str, str] | list[str]:
    return json.loads(words, parse_int=str, parse_float=str, parse_constant=int)


def _ragged(text: TextFile) -> str | None:
    """The first record of a CSV file with more fields than its header has."""
    header = None
    for line, fields in _csv_records(text):
        header = header or fields
        if fields > header:
            count = f"{fields} fields, {header} in the header"
            return f", line {line}: {count}: put text that holds {_SIGNS[text.separator or ',']} in quotes"
    return None


def sound_calls(text: TextFile) -> tuple[TextFile, int]:
    """(the lines of a call log that are whole, how many are not); any text without such lines (as it is, 0).

    A line is cut off where the process that wrote it was killed: it is the last one, or was until the log was opened
    again. What does not begin as a line of a call log does is kept, for others to find fault with.

    >>> sound_calls(TextFile(b'{"call_log": 1, "query": 1}\\n{"call_log": 1, "que', separator=None))[1]
    1
    """
    with text.open() as file:
        first = next((line for line in file if not CALL.startswith(line.strip())), CALL)  # but for what is cut off
        if not first.startswith(CALL):
            return text, 0
        file.seek(0)
        cut = {number for number, line in enumerate(file) if _is_cut(line.strip())}
        if not cut:
            return text, 0
        file.seek(0)
        whole = b"".join(line for number, line in enumerate(file) if number not in cut and line.strip())
        return dataclasses.replace(text, content=whole), len(cut)


def _is_cut(line: bytes) -> bool:
    """Whether a line of a call log, whose values are texts, numbers and the like, does not end as such a line does."""
    if not line or line[: len(CALL)] != CALL[: len(line)]:
        return False
    if not line.endswith(b"}"):
        return True
    bare = line.replace(b"\\\\", b"") if b"\\\\" in line else line
    return (bare.count(b'"') - bare.count(b'\\"')) % 2 == 1  # within a text


def _csv_records(text: TextFile) -> Iterator[tuple[int, int]]:
    """(the line that it starts in, from 1, its number of fields) of each record of a CSV file, its header first."""
    with io.TextIOWrapper(text.open(), "utf-8-sig", "replace", newline="") as file, suppress(csv.Error):
        for _ in range(text.skipped):
            next(file, None)
        records, start = csv.reader(file, delimiter=text.separator or ","), 1 + text.skipped
        for record in records:  # until a field that is longer than the module takes
            yield start, len(record)
            start = records.line_num + 1 + text.skipped


def csv_line(text: TextFile, record: int) -> int:
    """The line, from 1, that a record of a CSV file starts in; the header is record 0. Stray quotes hide records."""
    lines = (line for line, _ in _csv_records(text))
    return next(itertools.islice(lines, record, None), record + 1)
