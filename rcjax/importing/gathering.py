"""Gather the answers of all files by model and query; unreadable parts are left out and reported."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rcjax.importing.call_logs import BATCHES, LITELLM
from rcjax.importing.documents import HELM, PROMPTFOO
from rcjax.importing.inspect_ai import INSPECT
from rcjax.importing.lines import DamageError, Format, How, Line, require, require_sound
from rcjax.importing.lm_eval import LM_EVAL
from rcjax.importing.table import TABLE, WIDE
from rcjax.logs.errors import LogError, brief, listed, near

#: All formats, in the order in which they are tried; the last one recognises any table.
FORMATS: tuple[Format, ...] = (INSPECT, LM_EVAL, HELM, PROMPTFOO, LITELLM, BATCHES, WIDE, TABLE)

_HEAD = 1 << 16

_SUFFIXES = (".eval", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")


def gather(
    paths: Sequence[str | os.PathLike[str]], how: How
) -> tuple[dict[str, dict[str, list[Line]]], tuple[str, ...]]:
    """Read files and folders; return (lines by model and query, messages about unreadable parts).

    Models have their final names; the lines of a query are in the order of their samples.

    Raises LogError if an option is missing or wrong, or no line can be read.
    """
    require(bool(paths), "no files", "give at least one")
    lines, unreadable, answers = list[Line](), list[str](), dict[str, dict[str, list[Line]]]()
    for path in _usable([Path(path) for path in paths]):
        require(path.is_file(), f"{path} is missing", "give a file")
        lost, before = list[str](), len(lines)
        for line in _read(path, how):
            if isinstance(line, DamageError):
                lost.append(str(line))
            else:
                lines.append(line | {"place": path.name})
        # One message is enough for a file without a readable line.
        unreadable += lost if len(lines) > before else lost[:1]
    for name, column in how.columns.items() if how.seen else ():
        what = f"no table has this column{near(column, how.seen)}; there are {listed(sorted(how.seen))}"
        require(column in how.seen, f"--column {name}={brief(column)}", what)
    if not lines and unreadable:
        raise DamageError(unreadable[0])
    names = _names([*dict.fromkeys(line["model"] for line in lines)], how.rename)
    for line in lines:
        line["model"] = names[line["model"]]
        _put(answers.setdefault(line["model"], {}).setdefault(line["query"], []), line)
    return answers, tuple(unreadable)


def _read(path: Path, how: How) -> Iterator[Line | DamageError]:
    """Yield the lines of a file; damage to the whole file, or to its rest, comes last."""
    by_name = {one.name: one for one in FORMATS}
    known = how.format is None or how.format in by_name
    require(known, f"format {how.format!r:.60}", f"is unknown: choose {', '.join(by_name)}")
    try:
        yield from (format_of(path) if how.format is None else by_name[how.format]).read(path, how)
    except DamageError as damage:
        yield damage


def format_of(path: Path) -> Format:
    """Return the format of a file, by its content. Raises DamageError for an unknown format or an empty file."""
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


def _usable(paths: Sequence[Path]) -> list[Path]:
    """Return the paths, with each folder replaced by the evaluations in it, sorted."""
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
    """Return whether a file in a folder is an evaluation. Tables are not: they must be named. A damaged `.eval` is."""
    try:
        return file.suffix == ".eval" or format_of(file) is not TABLE
    except LogError:
        return False


def _put(several: list[Line], line: Line) -> None:
    """Insert a line among those of its model and query, in the order of samples; LogError for a second one."""
    line["sample"] = line.get("sample") or len(several) + 1
    first = next((other for other in several if other["sample"] == line["sample"]), None)
    if first is not None:
        position = f"{line['place']}, model {brief(line['model'])}, query {brief(line['query'])}"
        raise LogError(f"{position}: was answered already in {first['place']}: leave one of them out")
    several.append(line)
    several.sort(key=lambda one: one["sample"])


def _names(models: list[str], rename: Mapping[str, str]) -> dict[str, str]:
    """Return the final names of models: as renamed, else without the provider if that stays unique.

    Two models renamed alike become one.

    >>> _names(["openai/gpt-4o-mini", "a/small", "b/small"], {"b/small": "tiny"})
    {'openai/gpt-4o-mini': 'gpt-4o-mini', 'a/small': 'small', 'b/small': 'tiny'}
    """
    short = {model: model.rpartition("/")[2] or model for model in models}
    meant = {old: [model for model in models if old in (model, short[model])] for old in rename}
    for old, found in meant.items():
        which = f"several models, {listed(found)}" if found else f"no model{near(old, models)}; there are "
        require(len(found) == 1, f"rename {brief(old)}", f"names {which}{'' if found else listed(models)}")
    renamed = {found[0]: rename[old] for old, found in meant.items()}
    others = Counter(short[model] for model in models if model not in renamed)
    return {m: renamed.get(m, short[m] if others[short[m]] == 1 else m) for m in models}
