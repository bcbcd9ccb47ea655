"""Tables of cases as one test each: every case runs, and all that miss are told together, by name."""

import contextlib
import functools
import inspect
import itertools
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

CAUGHT = (Exception, pytest.fail.Exception)
PARAM = type(pytest.param())


class Case(NamedTuple):
    """A row of a table."""

    name: str
    values: dict[str, Any]


def in_turn(names, rows, ids=None):
    """Has a test run once for every row of a table, as `pytest.mark.parametrize` does, but as one item.

    A second table above the first makes the product of both. Fixtures are set up once; but every case has its own of
    a `tmp_path` and of what else is an empty folder or a path where nothing is, a `monkeypatch` that is undone after
    it, and a `capsys` and a `caplog` that are empty. Where another fixture keeps what a case did, cases stay items.

    Args:
        names: the arguments of the test that the table fills, as a sequence, or as text with commas between them.
        rows: a row per case: its values (one value, where there is one name), or a `pytest.param` with an id; or a
            function that gives the rows, called when the test runs: for what takes time to make.
        ids: names of the cases, or a function from a value to its name; without it, the values themselves.
    """
    alone = isinstance(names, str) and "," not in names
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    ids = ids if ids is None or callable(ids) else list(ids)
    later = callable(rows) and not isinstance(rows, type)
    rows = rows if later else list(rows)

    def decorate(test):
        function, inner = getattr(test, "in_turn", (test, lambda: [Case("", {})]))

        def cases() -> list[Case]:
            values = [row if not alone or isinstance(row, PARAM) else (row,) for row in (rows() if later else rows)]
            table = list(_cases(names, values, ids))
            assert table, f"{function.__name__}: a table without rows"
            return [
                Case("-".join(filter(None, (low.name, high.name))), high.values | low.values)
                for high, low in itertools.product(table, inner())
            ]

        @functools.wraps(function)
        def run(**fixtures):
            _run(function, cases(), fixtures)

        parameters = inspect.signature(test).parameters
        absent = {*names} - {*parameters}
        assert not absent, f"{function.__name__} has no arguments {absent}"
        run.__signature__ = inspect.Signature([p for name, p in parameters.items() if name not in names])
        run.in_turn = (function, cases)
        return run

    return decorate


def _run(function: Callable, cases: list[Case], fixtures: dict[str, Any]) -> None:
    misses, left_out = [], []
    blank = {name for name, value in fixtures.items() if _is_blank(value)} | {*fixtures} & {"tmp_path"}
    for number, case in enumerate(cases):
        try:
            with _fresh(fixtures, blank, number) as fresh:
                function(**fresh, **case.values)
        except pytest.skip.Exception as reason:
            left_out.append(f"{case.name}: {reason}")
        except CAUGHT as error:
            misses.append(f"{case.name}: {_told(error, function)}")
    if misses:
        pytest.fail("\n".join([f"{len(misses)} of {len(cases)} cases miss", *misses]), pytrace=False)
    if left_out:
        pytest.skip(f"{len(left_out)} of {len(cases)} cases, the others hold: {'; '.join(left_out)}")


def _cases(names: list[str], rows: Iterable, ids) -> Iterator[Case]:
    for number, row in enumerate(rows):
        name, values = None, row
        if isinstance(row, PARAM):
            assert not row.marks, "a case with marks is an item of its own: pytest.mark.parametrize"
            name, values = row.id, row.values
        elif isinstance(ids, list):
            name = ids[number]
        if name is None:
            name = "-".join(_label(value, ids) for value in values)
        yield Case(str(name), dict(zip(names, values, strict=True)))


def _label(value: Any, ids: Callable[[Any], Any] | None) -> str:
    label = ids(value) if callable(ids) else None
    return _short(value) if label is None else str(label)


def _short(value: Any) -> str:
    plain = isinstance(value, str) and value.isprintable() and value
    text = value if plain else getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _is_blank(value: Any) -> bool:
    """Whether a fixture is a folder with nothing in it, or a path where nothing is yet."""
    return isinstance(value, Path) and (not any(value.iterdir()) if value.is_dir() else not value.exists())


@contextlib.contextmanager
def _fresh(fixtures: dict[str, Any], blank: set[str], number: int) -> Iterator[dict[str, Any]]:
    """The fixtures of a test, those that a case would leave its traces in as if they were new."""
    fresh = dict(fixtures)
    with contextlib.ExitStack() as stack:
        for name in blank:
            path = fixtures[name]
            folder = (path if path.is_dir() else path.parent) / f"case{number}"
            folder.mkdir(exist_ok=True)
            fresh[name] = folder if path.is_dir() else folder / path.name
        if "monkeypatch" in fresh:
            fresh["monkeypatch"] = stack.enter_context(pytest.MonkeyPatch.context())
        if "capsys" in fresh:
            fresh["capsys"].readouterr()
        if "caplog" in fresh:
            fresh["caplog"].clear()
        yield fresh


def _told(error: BaseException, function: Callable) -> str:
    """What a case has to say: where in its test it stopped, and why."""
    file = inspect.getfile(function)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    kind = "" if isinstance(error, AssertionError | pytest.fail.Exception) else f"{type(error).__name__}: "
    text = str(error).replace("\n", "\n    ")
    return f"line {lines[-1] if lines else '?'}: {kind}{text}"
