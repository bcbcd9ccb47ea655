"""What runs inside the processes of a check (`workers`): the user's function, JSON and its schemas, patterns.

Of an error its kind and its place are said, never its message, which may quote the reply. What the check itself prints
goes nowhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from traceback import extract_tb
from typing import Any

_LONGEST = 10_000  # characters of a verdict as JSON


class _RefusedError(Exception):
    """A check that cannot be run."""


_LOADED: dict[str, Any] = {}  # the check of this process, and its version


def begin() -> None:
    """Take a session of its own and empty streams."""
    if hasattr(os, "setsid"):
        os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def load(name: str) -> None:
    """Load what the check, or the grader, of this name takes long to import."""
    sys.path.insert(0, os.getcwd())
    if name == "number":
        importlib.import_module("math_verify")
    kind, _, rest = name.partition(":")
    try:
        if kind in ("json", "python"):
            _LOADED["check"], digest = _json_check() if kind == "json" else _function(rest)
            _LOADED["version"] = {"version": digest}
    except _RefusedError as problem:
        _LOADED["version"] = {"refused": str(problem)}


def version() -> dict[str, Any]:
    """Which check it is, `{"version"}`, or why it cannot be run, `{"refused"}`."""
    return _LOADED["version"]


def said(call: str) -> dict[str, Any]:
    """What the check says of a call as JSON, `{"said"}`, or `{"failed"}` with the kind of an error and its place."""
    if "check" not in _LOADED:
        return {"failed": "it cannot be imported any more"}
    try:
        verdict = _LOADED["check"](json.loads(call))
        verdict = asyncio.run(_awaited(verdict)) if inspect.isawaitable(verdict) else verdict
    except BaseException as error:  # an exit too
        return {"failed": in_short(error)}
    try:
        text = json.dumps(verdict, default=_plain)
    except Exception:
        text = ""
    return {"said": json.loads(text) if 0 < len(text) <= _LONGEST else []}


def found(pattern: str, text: str, reference: Sequence[str]) -> dict[str, Any]:
    """Whether a pattern, with any right answer in the place of `{answer}`, is in a text: `{"said"}` or `{"failed"}`."""
    forms = [re.escape(right) for right in reference] if "{answer}" in pattern else [""]
    try:
        return {"said": any(re.search(pattern.replace("{answer}", form), text, re.M) is not None for form in forms)}
    except Exception as error:  # with a right answer in it, it may be none, or one that no memory is enough for
        return {"failed": f"{type(error).__name__}: {error}"}


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
        raise _RefusedError(f"the module {name} fails as it is imported: {in_short(error)}") from None
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
    """The schema in a `response_format`, as OpenAI has it, or as other servers do, or None."""
    if not isinstance(asked, dict):
        return None
    inner = asked.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else asked.get("schema")
    return schema if isinstance(schema, dict | bool) else None


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _plain(value: Any) -> Any:
    """Numbers and truth values of NumPy and the like, as Python has them."""
    if type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    return float(value) if isinstance(value, Real) else dict(value)


def in_short(problem: BaseException) -> str:
    """The kind of an error and where it was raised, without its message, which may quote a prompt or a reply."""
    last = extract_tb(problem.__traceback__)[-1]
    return f"{type(problem).__name__} in {Path(last.filename).name}, line {last.lineno}"
