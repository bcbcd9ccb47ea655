"""The objects of a JSON file of any form that programs write: a line each, arrays of them, or one by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rcjax.importing.foreign_answers import DamageError, ImportedAnswer, pieces


def records(path: Path, program: str) -> Iterator[tuple[str, Mapping[str, Any] | DamageError]]:
    """(position, object) of each object in a file; DamageError for what is none.

    A file is JSON Lines, with an object or an array of them in each line, or else one array or object over many lines.
    Raises DamageError where the file is no text, or holds nothing.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            first = next((line for line in file if line.strip()), "")
        whole = None if _parsed(first) is not None else _parsed(path.read_text("utf-8-sig"))
        any_record = False
        for position, content in _lines(path) if whole is None else [("", whole)]:
            for where, record in _objects(content, f"{path.name}{position}", program):
                any_record = True
                yield where, record
    except (OSError, UnicodeError) as problem:
        raise DamageError(f"{path.name}: cannot be read as {program} writes it: {problem}: is it whole?") from None
    if not any_record:
        raise DamageError(f"{path.name}: holds no answers: was it written completely?")


def answers_of(
    path: Path, program: str, read: Callable[[Mapping[str, Any], str], Iterable[ImportedAnswer]]
) -> Iterator[ImportedAnswer | DamageError]:
    """The answers of all objects in a file, and the damage of those that cannot be read.

    Args:
        path: the file, as `records` takes it.
        program: whose it is.
        read: gives the answers of an object and its place; what it raises of damage is that of this object.
    """
    for where, record in records(path, program):
        if isinstance(record, DamageError):
            yield record
        else:
            yield from pieces(where, program, partial(read, record, where))


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, value) of each line that is not blank; None for one that is no JSON."""
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f", line {number}", _parsed(line)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        return None


def _objects(content: Any, where: str, program: str) -> Iterator[tuple[str, Mapping[str, Any] | DamageError]]:
    several = isinstance(content, list)
    for number, record in enumerate(content if several else [content], 1):
        position = f"{where}, entry {number}" if several else where
        damage = DamageError(f"{position}: is not as {program} writes it (no JSON object): is it whole?")
        yield position, record if isinstance(record, dict) else damage
