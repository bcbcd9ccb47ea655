"""Which formats there are, and which one a file is of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rcjax.importing import helm, inspect_ai, litellm_logs, lm_eval, openai_batch, otel, promptfoo, table, wide
from rcjax.importing.foreign_answers import DamageError, Format, require, require_sound
from rcjax.logs.errors import LogError

#: In the order in which they are asked; any table is of the last one.
FORMATS: tuple[Format, ...] = (inspect_ai, lm_eval, helm, promptfoo, litellm_logs, otel, openai_batch, wide, table)

_HEAD = 1 << 16

_SUFFIXES = (".eval", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")


def format_named(name: str) -> Format:
    """The format of a name, as `--format` takes it. LogError for a name that none has."""
    by_name = {one.name: one for one in FORMATS}
    require(name in by_name, f"format {name!r:.60}", f"is unknown: choose {', '.join(by_name)}")
    return by_name[name]


def format_of(path: Path) -> Format:
    """The format of a file, by its content. Raises DamageError where it is of none, or is empty."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError as problem:
        raise DamageError(f"{path}: cannot be read: {problem.strerror}: give a file") from None
    require_sound(bool(head), path.name, "the file is empty: was it written completely?")
    for one in FORMATS:
        if one.recognises(path, head):
            return one
    names = ", ".join(one.files for one in FORMATS)
    raise DamageError(f"{path.name}: of no format that is known: {names}; or give --format")


def usable_files(paths: Sequence[Path]) -> list[Path]:
    """The files among the paths, and those in the folders among them that some format may know, in order."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside = [file for file in sorted(path.rglob("*")) if file.suffix in _SUFFIXES and file.is_file()]
        recognised = [file for file in inside if _is_evaluation(file)]
        require(bool(recognised), str(path), "no file in this folder is of a format that is known")
        files += recognised
    return files


def _is_evaluation(file: Path) -> bool:
    """Whether a file of a folder is an evaluation: a table would have to be named.

    A damaged one whose name tells that it is one is known too, so that it is told.
    """
    if file.suffix == ".eval":
        return True
    try:
        return format_of(file).name != table.name
    except LogError:
        return False
