"""Runs a check as a program of its own (`running_checks`): the user's, `python:module:function`, or that of JSON.

The first line that it writes says what it runs, `{"version"}`, or why it cannot, `{"refused"}`. Then JSON Lines in,
`{"id", "call"}`, and out: `{"id", "said"}`, or `{"id", "failed"}` with the kind of an error and its place, never its
message, which may quote the reply. What the check itself prints goes nowhere. Nothing of rcjax is imported, so that it
starts at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from traceback import extract_tb
from typing import Any, BinaryIO

__all__: list[str] = []

_LONGEST = 10_000  # characters of a verdict as JSON


class _RefusedError(Exception):
    """A check that cannot be run."""


def _function(target: str) -> tuple[Callable[[dict[str, Any]], Any], str | None]:
    """(the function of `module:function`, a digest of its file)."""
    name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(name)
        function = getattr(module, attribute)
    except ModuleNotFoundError as error:
        lacking = error.name or name
        named = name == lacking or name.startswith(f"{lacking}.")
        why = f"there is no module {lacking}" if named else f"the module {name} needs {lacking}, which is not installed"
        raise _RefusedError(f"{why}: it is looked for in the working folder, and where Python looks") from None
    except AttributeError:
        if name not in sys.modules:
            raise _RefusedError(f"the module {name} fails as it is imported: AttributeError") from None
        raise _RefusedError(f"the module {name} has no {attribute}") from None
    except BaseException as error:  # the user's own module
        raise _RefusedError(f"the module {name} fails as it is imported: {_in_short(error)}") from None
    if not callable(function):
        raise _RefusedError(f"{attribute} is no function: give one of a dictionary, with the question and the reply")
    path = getattr(module, "__file__", None)
    return function, None if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def _json_check() -> tuple[Callable[[dict[str, Any]], Any], str | None]:
    """(the check of JSON, by what it checks): by schemas where jsonschema is there to check by."""
    try:
        from jsonschema.validators import Draft202012Validator, validator_for
        from jsonschema_specifications import REGISTRY
    except ImportError:
        return lambda call: float(_is_json(call)), "JSON alone"

    def check(call: dict[str, Any]) -> float:
        schema = _schema(call.get("response_format"))
        if not _is_json(call) or schema is None:
            return float(_is_json(call))
        validator = validator_for(schema, default=Draft202012Validator)
        return float(validator(schema, registry=REGISTRY).is_valid(json.loads(call["answer"])))  # fetches nothing

    return check, "schemas"


def _is_json(call: Mapping[str, Any]) -> bool:
    """Whether the answer is JSON as the standard has it, and the object that was asked for, if one was."""
    try:
        document = json.loads(call["answer"], parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    asked = call.get("response_format")
    return not (isinstance(asked, dict) and asked.get("type") == "json_object") or isinstance(document, dict)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _schema(asked: Any) -> Any:
    """The schema in a `response_format`, as OpenAI has it, or as other servers do; None where there is none."""
    if not isinstance(asked, dict):
        return None
    inner = asked.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else asked.get("schema")
    return schema if isinstance(schema, dict | bool) else None


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _answer(check: Callable[[dict[str, Any]], Any], row: Mapping[str, Any]) -> str:
    try:
        said = check(row["call"])
        said = asyncio.run(_awaited(said)) if inspect.isawaitable(said) else said
    except BaseException as error:  # an exit too
        return json.dumps({"id": row["id"], "failed": _in_short(error)})
    try:
        line = json.dumps({"id": row["id"], "said": said}, default=_plain)
    except Exception:
        line = ""
    return line if 0 < len(line) <= _LONGEST else json.dumps({"id": row["id"], "said": []})


def _plain(value: Any) -> Any:
    """Numbers and truth values of NumPy and the like, as Python has them."""
    if type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    return float(value) if isinstance(value, Real) else dict(value)


def _in_short(error: BaseException) -> str:
    last = extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}"


def _streams() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output for the lines alone: the check gets empty ones."""
    lines, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    return lines, answers


def _main(name: str) -> None:
    lines, answers = _streams()
    sys.path[0] = os.getcwd()

    def write(line: str) -> None:
        answers.write(line.encode() + b"\n")
        answers.flush()

    try:
        check, version = _json_check() if name == "json" else _function(name.removeprefix("python:"))
    except _RefusedError as problem:
        write(json.dumps({"refused": str(problem)}))
        return
    write(json.dumps({"version": version}))
    for line in lines:
        write(_answer(check, json.loads(line)))


if __name__ == "__main__":
    _main(sys.argv[1])
