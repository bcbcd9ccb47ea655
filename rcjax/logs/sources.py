"""Tables from files and dataframes, read batch by batch.

The beginning of a text file tells its encoding, newlines and separator. A file that polars can read is streamed; any
other text is converted in memory. This module also finds the line in which a record starts, and broken or truncated
lines, which polars does not report. `join_parts` reads several files or a folder as one table, such as the file that a
service writes with its rotated files.
"""

from __future__ import annotations

import csv
import dataclasses
import errno
import gzip
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import polars as pl

from rcjax._base.figures import count
from rcjax.logs.columns import TOKENS, canonical_names, known_columns, plain_name
from rcjax.logs.errors import LogError, shorten

#: Suffixes of tables with a separator.
SEPARATED = (".csv", ".tsv")

#: Suffixes of all tables.
TABLES = (*SEPARATED, ".parquet", ".jsonl", ".ndjson")

#: Rows per batch.
BATCH = 250_000

#: The beginning of each line of a call log.
CALL_BEGINNING = b'{"call_log": '

_BEGINNING = 2**16  # bytes from which the encoding and the separator are inferred

_SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}

Choose = Callable[[str, list[str]], list[str]]
"""Function from the name of a log and its columns to the columns to read."""


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A CSV or JSON Lines file in UTF-8 with newlines."""

    content: Path | bytes
    """Path of the file, or its converted text if it has another encoding."""
    separator: str | None = ","
    """Separator of the fields of a CSV file; None for JSON Lines."""
    skipped: int = 0
    """Number of lines before the header: 1 for Excel's `sep=;`."""

    def open(self) -> BinaryIO:
        """Open the text as a file of bytes."""
        return io.BytesIO(self.content) if isinstance(self.content, bytes) else open(self.content, "rb")


class JoinedTable(NamedTuple):
    """The rows of several files, which `read_log` takes as it takes a dataframe (`rcjax.logs.sources`)."""

    name: str  # name of the log, for messages
    frame: pl.DataFrame
    cut: int = 0  # number of truncated lines of a call log
    parts: tuple[tuple[str, int], ...] = ()  # (name, number of rows) of each file, in order


class Table(NamedTuple):
    """A table that is read lazily, batch by batch: it may exceed memory."""

    name: str
    source: object  # a dataframe, the path of a Parquet file, or a `TextFile`
    frames: Iterator[pl.DataFrame]  # at most `BATCH` rows each, in order
    cut: int  # number of truncated lines of a call log
    columns: list[str]  # all columns, in the source's spelling
    parts: tuple[tuple[str, int], ...] = ()  # (name, number of rows) of each file of a `JoinedTable`


def read_column_names(source: Any) -> set[str]:
    """Return the canonical names of the columns of a source."""
    columns: set[str] = set()

    def choose(_: str, names: list[str]) -> list[str]:
        columns.update(names)
        return names[:1]

    load_table(source, choose)
    return columns


def load_table(
    source: Any, choose: Choose, assigned: Mapping[str, str] | None = None, name: str | None = None
) -> Table:
    """Read the columns of a source that `choose` selects, under their canonical names.

    Texts are stripped, and empty texts are missing; ids are in Unicode's normal form NFC. Errors of the readers become
    a `LogError`.

    Args:
        source: a file, or a dataframe.
        choose: selects columns by their canonical names.
        assigned: columns that the user has named, by canonical name; names that the source lacks are ignored.
        name: name of the source, for messages.
    """
    import narwhals as nw

    name, cut, parts = name or name_source(source), 0, ()
    if isinstance(source, JoinedTable):
        _, source, cut, parts = source
    if isinstance(source, str | os.PathLike):
        source = Path(source)
        require_file(source, TABLES)
        source = source if source.suffix.lower() == ".parquet" else open_text(source, known_columns(()))
    with _readable(name, source):
        sound = source
        if isinstance(source, TextFile) and source.separator is None:
            sound, cut = drop_truncated_lines(source)
            if sound.content == b"":
                raise LogError(f"{name}: no rows: its {cut} lines are cut off")
        columns = [str(column) for column in _scan(sound).collect_schema().names()]
        pairs = canonical_names(columns, assigned or {})
        spelling = dict(reversed(pairs))
        needed = choose(name, [canonical for canonical, _ in pairs])
        renamed = [nw.col(spelling[column]).alias(column) for column in needed]
        frame = _scan(sound, [spelling[column] for column in needed]).select(*renamed)
    return Table(name, source, _frames(name, source, frame), cut, columns, parts)


def name_source(source: Any) -> str:
    """Return the name of a source for messages: the name of a file, or the type of a dataframe.

    >>> name_source("logs/calls.jsonl"), name_source([])
    ('calls.jsonl', 'builtins.list')
    """
    if isinstance(source, str | os.PathLike):
        return Path(source).name
    if isinstance(source, JoinedTable):
        return source.name
    return f"{type(source).__module__.partition('.')[0]}.{type(source).__name__}"


def require_file(path: Path, kinds: Sequence[str]) -> None:
    """Refuse a path that is not a file, is empty, or has an unknown suffix."""
    if not path.is_file():
        problem = "is a directory: give a file" if path.is_dir() else os.strerror(errno.ENOENT)
        raise LogError(f"{path}: {problem}")
    if path.suffix.lower() not in kinds:
        raise LogError(f"{path.name}: a file of kind {path.suffix!r} cannot be read: give {', '.join(kinds)}")
    if path.stat().st_size == 0:
        raise LogError(f"{path.name}: the file is empty: was it written completely?")


def open_text(
    path: Path, names: Collection[str], suffix: str | None = None, content: Path | bytes | None = None
) -> TextFile:
    """Open a CSV or JSON Lines file as UTF-8, with the separator under which most of the `names` appear.

    Args:
        path: the file.
        names: known names of columns.
        suffix: suffix of the kind of table; None for the suffix of the file.
        content: content of the file, if it was compressed; None to read the file.

    A byte order mark, or zeros in the first four bytes, tell UTF-16 and UTF-32. Raises LogError if the text cannot be
    read, or is not in that encoding.
    """
    try:
        content = path if content is None else content
        with TextFile(content).open() as file:
            start = file.read(_BEGINNING)
        separated = (suffix or path.suffix.lower()) in SEPARATED
        encoding = json.detect_encoding(start)
        if encoding != "utf-8" and not (separated and encoding == "utf-8-sig"):  # polars knows the mark in CSV alone
            with TextFile(content).open() as file:
                content = file.read().decode(encoding).removeprefix("\ufeff").encode()
            start = content[:_BEGINNING]
    except UnicodeError:
        raise LogError(f"{path.name}: begins as {encoding.upper()}, but is not: save the file as UTF-8") from None
    except OSError as error:
        raise LogError(f"{path.name}: {error}") from None
    declared = _DECLARED.match(start.removeprefix(b"\xef\xbb\xbf")) if separated else None
    if declared is not None:
        return TextFile(content, declared[1].decode(), skipped=1)
    return TextFile(content, _separator(start, names) if separated else None)


#: The first line with which Excel declares the separator.
_DECLARED = re.compile(rb"\"?sep=([,;\t|])\"?\r?\n", re.IGNORECASE)


def _separator(start: bytes, names: Collection[str]) -> str:
    """Infer the separator of a table from its header. (csv.Sniffer may infer any recurring letter.)"""
    lines = io.StringIO(start.decode("utf-8-sig", "replace").lstrip("\r\n"), newline="")
    chosen, best = ",", (0, 0)
    for separator in _SEPARATORS:
        lines.seek(0)
        try:
            fields = next(csv.reader(lines, delimiter=separator), [])
        except csv.Error:  # a field that is too long for `csv`
            continue
        score = (sum(plain_name(field) in names for field in fields), len(fields))
        if score > best:
            chosen, best = separator, score
    return chosen


def _scan(source: Any, columns: Iterable[str] | None = None) -> Any:
    """Return a Parquet file, a text file or a dataframe as a narwhals frame; columns of text files are texts.

    Without `columns`, the columns of JSON Lines are found by reading the whole file.
    """
    import narwhals as nw

    if isinstance(source, Path):
        return nw.from_native(scan_parquet(source))
    # Cells of text files are texts: polars would refuse a value of another type without naming its row, and a column of
    # JSON may mix numbers with "-inf", which is no number of JSON.
    if not isinstance(source, TextFile):
        return nw.from_native(source)
    content = io.BytesIO(source.content) if isinstance(source.content, bytes) else source.content
    if source.separator is None:
        text = None if columns is None else dict.fromkeys(columns, pl.String)
        return nw.from_native(pl.scan_ndjson(content, infer_schema_length=None, schema=text))
    return nw.from_native(
        pl.scan_csv(content, infer_schema=False, glob=False, separator=source.separator, skip_rows=source.skipped)
    )


MAX_ROWS = 50_000_000  # rows of a Parquet file: five times the largest log that is measured
SMALL_FILE_BYTES, MAX_TEXT_BYTES = 10_000_000, 200_000_000  # bytes of a small Parquet file, and of all text in it


def scan_parquet(file: Path) -> pl.LazyFrame:
    """Scan a Parquet file; LogError if its rows, or the text in a small file, could exceed the memory."""
    frame = pl.scan_parquet(file, glob=False)
    rows = frame.select(pl.len()).collect().item()
    if rows > MAX_ROWS:
        raise LogError(f"{file.name}: {rows:,} rows: rcjax reads {MAX_ROWS:,}; give a part of them")
    texts = [name for name, dtype in frame.collect_schema().items() if dtype == pl.String]
    if texts and file.stat().st_size <= SMALL_FILE_BYTES:
        lengths = frame.select(pl.col(name).str.len_bytes().cast(pl.UInt64).sum() for name in texts)
        size = sum(lengths.collect(engine="streaming").row(0))
        if size > MAX_TEXT_BYTES:
            raise LogError(f"{file.name}: {size / 1e6:,.0f} MB of text in {file.stat().st_size:,} bytes: is it a log?")
    return frame


@contextmanager
def _readable(name: str, source: Any) -> Iterator[None]:
    """Turn errors of the readers into a `LogError` that says where a file is damaged."""
    import narwhals as nw

    try:
        yield
    except LogError:
        raise
    except (pl.exceptions.PolarsError, nw.exceptions.NarwhalsError, OSError, TypeError, ValueError) as error:
        problem = find_damage(source) if isinstance(source, TextFile) else _repeated_column(source)
        summary = str(error).partition("\n")[0].rstrip(".")
        raise LogError(f"{name}{problem or f': cannot be read: {summary}: give a sound table'}") from None


def _repeated_column(source: Any) -> str | None:
    """Name the column that a dataframe has twice, as the end of a message; None if there is none."""
    names = getattr(source, "column_names", None) or getattr(source, "columns", ())
    earlier = set[str]()
    for column in map(str, names):
        if column in earlier:
            return f": column {shorten(column)} occurs twice: drop one of the two"
        earlier.add(column)
    return None


def _frames(name: str, source: Any, frame: Any) -> Iterator[pl.DataFrame]:
    text = pl.col(pl.String, pl.Categorical, pl.Enum, pl.Null).cast(pl.String).str.strip_chars()
    with _readable(name, source):
        for part in _batches(frame):
            stripped = part.with_columns(pl.when(text != "").then(text))
            ids = [name for name in ("query", "model") if stripped.schema.get(name) == pl.String]
            for name in ids:  # one id, whether its letters are composed or not
                if (stripped[name].str.len_bytes() > stripped[name].str.len_chars()).any():
                    stripped = stripped.with_columns(pl.col(name).str.normalize("NFC"))
            yield stripped


def _batches(frame: Any) -> Iterator[pl.DataFrame]:
    """Yield the rows of a narwhals frame, batch by batch."""
    import narwhals as nw

    native = frame.to_native()
    if isinstance(native, pl.LazyFrame):  # before polars 1.37 this ended silently at a broken line
        yield from native.collect_batches(chunk_size=BATCH, maintain_order=True, lazy=True)
        return
    frame = frame.collect(backend="polars") if isinstance(frame, nw.LazyFrame) else frame
    if not frame.implementation.is_pandas_like():
        yield from frame.to_polars().iter_slices(BATCH)
        return
    for start in range(0, len(frame), BATCH):  # through lists: pandas' own conversion needs pyarrow and uniform columns
        part = frame[start : start + BATCH]
        pairs = {c: zip(part[c].to_list(), part[c].is_null().to_list(), strict=True) for c in part.columns}
        yield pl.DataFrame({c: [None if null else value for value, null in pairs[c]] for c in pairs}, strict=False)


def find_damage(text: TextFile) -> str | None:
    """Say which line of a CSV or JSON Lines file is broken, and how, as the end of a message; None if none is.

    >>> find_damage(TextFile(b"[1]", separator=None))
    ', line 1: not a JSON object: write one object per line'
    """
    line = 0
    try:
        with text.open() as file:
            for line, record in enumerate(file, start=1):
                text_line = record.decode().strip() or "{}"
                if text.separator is None and not isinstance(_parse(text_line), dict):
                    return f", line {line}: not a JSON object: write one object per line"
    except UnicodeDecodeError:
        return f", line {line}: not UTF-8 text: save the file as UTF-8"
    except json.JSONDecodeError as error:
        return f", line {line}: not JSON: {error.msg}: write one object per line"
    except RecursionError:
        return f", line {line}: lists or objects nested too deep: write one object per line, its values plain"
    except ValueError:  # int("-Infinity")
        return f", line {line}: JSON has no infinity and no NaN: write them in quotes"
    header = None
    for line, fields in () if text.separator is None else _csv_records(text):
        header = header or fields
        if fields > header:
            separator = _SEPARATORS[text.separator or ","]
            return f", line {line}: {fields} fields, {header} in the header: put text that holds {separator} in quotes"
    if header is not None:
        with text.open() as file:
            last = b"".join(itertools.islice(file, line - 1, None))  # the last record: an open quote lasts to the end
        if last.count(b'"') % 2:
            return f", line {line}: a quote is opened and not closed: close it, and double quotes within a text"
    return None


def _parse(line: str) -> dict[str, str] | list[str]:
    return json.loads(line, parse_int=str, parse_float=str, parse_constant=int)


def drop_truncated_lines(text: TextFile) -> tuple[TextFile, int]:
    """Drop the truncated lines of a call log; return (the text, the number of lines dropped). Other texts are kept.

    A line is truncated if its writer was killed: it was then the last line of the log. Lines that do not begin like the
    lines of a call log are kept, for the reader to refuse.

    >>> drop_truncated_lines(TextFile(b'{"call_log": 1, "query": 1}\\n{"call_log": 1, "que', separator=None))[1]
    1
    """
    with text.open() as file:
        first = next(
            (line for line in file if not CALL_BEGINNING.startswith(line.strip())), CALL_BEGINNING
        )  # skips truncated lines
        if not first.startswith(CALL_BEGINNING):
            return text, 0
        file.seek(0)
        truncated = {number for number, line in enumerate(file) if _is_truncated(line.strip())}
        if not truncated:
            return text, 0
        file.seek(0)
        sound = b"".join(line for number, line in enumerate(file) if number not in truncated and line.strip())
        return dataclasses.replace(text, content=sound), len(truncated)


def _is_truncated(line: bytes) -> bool:
    """Return whether a line of a call log is truncated: it lacks the closing brace, or ends within a text."""
    if not line or line[: len(CALL_BEGINNING)] != CALL_BEGINNING[: len(line)]:
        return False
    if not line.endswith(b"}"):
        return True
    unescaped = line.replace(b"\\\\", b"") if b"\\\\" in line else line
    return (unescaped.count(b'"') - unescaped.count(b'\\"')) % 2 == 1  # within a text


def _csv_records(text: TextFile) -> Iterator[tuple[int, int]]:
    """Yield (first line, from 1; number of fields) of each record of a CSV file, beginning with the header."""
    with io.TextIOWrapper(text.open(), "utf-8-sig", "replace", newline="") as file, suppress(csv.Error):
        for _ in range(text.skipped):
            next(file, None)
        records = csv.reader(file, delimiter=text.separator or ",")
        start = 1 + text.skipped
        for record in records:  # stops at a field that is too long for `csv`
            yield start, len(record)
            start = records.line_num + 1 + text.skipped


def csv_line(text: TextFile, record: int) -> int:
    """Return the first line, from 1, of a record of a CSV file; the header is record 0.

    An unclosed quote merges records, so the line may be too small.
    """
    lines = (line for line, _ in _csv_records(text))
    return next(itertools.islice(lines, record, None), record + 1)


#: Endings of the names of tables, rotated ones included: `calls.jsonl`, `calls.jsonl.1`, `calls.jsonl-20260105.gz`.
_TABLE = re.compile(rf"({'|'.join(map(re.escape, TABLES))})([.-]\d[\d-]*)?(\.gz)?$", re.IGNORECASE)


def join_parts(paths: Sequence[Path]) -> Path | JoinedTable:
    """Return a single file unchanged; join several files and the files of folders into one table, the oldest first.

    Tables without answers in a folder, such as labels, are ignored. Raises LogError if a file cannot be read, or a
    folder has no log.
    """
    if len(paths) == 1 and not paths[0].is_dir() and paths[0].suffix.lower() in TABLES:
        return paths[0]
    parts = [
        part for path in paths for part in (_tables_in(path) if path.is_dir() else [(path.name, *_read_file(path))])
    ]
    name = paths[0].name or str(paths[0].absolute())
    name = name if len(parts) == 1 else f"{name} ({count(len(parts), 'file')})"
    names, frames, cut = zip(*parts, strict=True)
    sizes = tuple(zip(names, (frame.height for frame in frames), strict=True))
    return JoinedTable(name, pl.concat(frames, how="diagonal_relaxed"), sum(cut), sizes)


def _tables_in(folder: Path) -> list[tuple[str, pl.DataFrame, int]]:
    """Return (name, rows, number of truncated lines) of each table of answers in a folder."""
    parts = []
    for file in _files_in(folder):
        frame, cut = _read_file(file)
        names = {*map(plain_name, frame.columns)}
        if {"query", "model"} <= names and {"logprob", "confidence", "cost", *TOKENS} & names:
            parts.append((file.name, frame, cut))
    if not parts:
        columns = "query, model, and a confidence or what a call cost"
        raise LogError(f"{folder}: no log in this folder: give one, or a folder of tables with {columns}")
    return parts


def _files_in(folder: Path) -> list[Path]:
    files = [file for file in folder.iterdir() if file.is_file() and _TABLE.search(file.name) and file.stat().st_size]
    return sorted(files, key=lambda file: (file.stat().st_mtime_ns, file.name))


def _read_file(file: Path) -> tuple[pl.DataFrame, int]:
    """Return (the rows of a file, as texts unless it is Parquet; the number of truncated lines of a call log)."""
    ending = _TABLE.search(file.name)
    if ending is None:
        require_file(file, TABLES)
    assert ending is not None
    if ending[1].lower() == ".parquet":
        return scan_parquet(file).collect(), 0
    try:
        content = gzip.decompress(file.read_bytes()) if ending[3] else None
    except (OSError, EOFError) as problem:
        raise LogError(f"{file.name}: {problem}") from None
    text = open_text(file, known_columns(()), ending[1].lower(), content)
    with _readable(file.name, text):
        sound, cut = drop_truncated_lines(text) if text.separator is None else (text, 0)
        return _scan(sound, _scan(sound).collect_schema().names()).to_native().collect(), cut


def main_file(paths: Sequence[Path]) -> Path:
    """Return the file that a service writes to: the first path or, in a folder, the JSON Lines file changed last."""
    if not paths[0].is_dir():
        return paths[0]
    files = _files_in(paths[0])
    return next((file for file in files[::-1] if ".jsonl" in file.name), files[-1] if files else paths[0])
