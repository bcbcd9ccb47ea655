"""The canonical form of answers that are JSON or calls of tools: two answers are equal if their forms are.

JSON is an object or an array, alone in its text or in a fence. Its canonical form has sorted keys and no white space;
5.0 is 5, and the order of a list and the letters of a text count. The form of calls is the sorted list of their names
and arguments: neither ids nor the order of parallel calls count. The form of no call is the empty list. Standard
library only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

#: The prefix of an answer that its check found invalid. The answer is kept for people, and equals no other.
INVALID = "[invalid] "

#: The canonical form of a reply that calls no tool.
NO_CALL = "[]"

#: The finish reasons of a truncated reply.
CUT = ("length", "max_tokens")

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n?\s*```", re.S | re.I)


def read_json_text(text: str) -> Any:
    """Parse a text that is a JSON object or array; None for any other text.

    >>> read_json_text('```json\\n{"a": 1}\\n```'), read_json_text("[1"), read_json_text("5"), read_json_text("[NaN]")
    ({'a': 1}, None, None, None)
    """
    text = text.strip()
    if text.startswith("```"):
        fenced = _FENCED.fullmatch(text)
        text = fenced[1].strip() if fenced else ""
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def canonical_json(text: str) -> str | None:
    """Return the canonical form of a text that is a JSON object or array; None for any other text.

    A list of calls has the canonical form of calls.

    >>> canonical_json('{"b": 2, "a": [1, 5.0, "007"]}'), canonical_json("1,234")
    ('{"a":[1,5,"007"],"b":2}', None)
    >>> canonical_json('[{"name": "f", "arguments": {"y": 1, "x": 2}}]')
    '[{"arguments":{"x":2,"y":1},"name":"f"}]'
    """
    value = read_json_text(text)
    if value is None:
        return None
    calls = isinstance(value, list) and value and all(_is_call(one) for one in value)
    form = canonical_calls(value) if calls else None
    return _written_or_none(value) if form is None else form


def _is_call(value: Any) -> bool:
    """Return whether a value is a call, in the form of a log or of an endpoint."""
    if not isinstance(value, Mapping):
        return False
    function = value.get("function")
    if "function" in value:
        return isinstance(function, Mapping) and "name" in function
    return {*value} == {"name", "arguments"}


def _written(value: Any) -> str:
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))
    return text


def _written_or_none(value: Any) -> str | None:
    """Serialise a value; None if it is nested too deeply, or has a number of too many digits."""
    try:
        return _written(value)
    except (RecursionError, ValueError, TypeError):
        return None


def _plain(value: Any) -> Any:
    """Return a JSON value with integers in place of floats without a fraction."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def read_calls(calls: Sequence[Any]) -> list[dict[str, Any]] | None:
    """Return the names and arguments of calls of tools, sorted; None if a call lacks a name, or its arguments are
    not an object.

    Args:
        calls: calls as `{"name", "arguments"}`, or with these in `function`, as endpoints have them. The arguments may
            be a text with JSON; an empty text stands for no arguments.

    >>> read_calls([{"id": "1", "function": {"name": "f", "arguments": '{"x": 1.0}'}}])
    [{'name': 'f', 'arguments': {'x': 1.0}}]
    >>> read_calls([{"name": "f", "arguments": "{"}]), read_calls([])
    (None, [])
    """
    read = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        function = function if isinstance(function, Mapping) else {}
        name, arguments = function.get("name"), function.get("arguments")
        if arguments is None or arguments == "":
            arguments = {}
        if isinstance(arguments, str):
            arguments = read_json_text(arguments)
        if not isinstance(name, str) or not name or not isinstance(arguments, Mapping):
            return None
        read.append({"name": name, "arguments": arguments})
    try:
        return sorted(read, key=_written)
    except (RecursionError, ValueError, TypeError):
        return None


def functions_of(tools: Any) -> list[Mapping[str, Any]]:
    """Return the functions with names among the tools of a request.

    >>> functions_of([{"type": "function", "function": {"name": "f"}}, {"type": "web_search"}])
    [{'name': 'f'}]
    """
    listed = [tool.get("function") for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
    return [one for one in listed if isinstance(one, Mapping) and isinstance(one.get("name"), str)]


def canonical_calls(calls: Sequence[Any]) -> str | None:
    """Return the canonical form of calls of tools, as `read_calls` reads them; None for calls that it cannot read.

    >>> one, other = {"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": '{"y": 2, "x": 5.0}'}
    >>> canonical_calls([one, other]) == canonical_calls([other, one])
    True
    >>> canonical_calls([other]), canonical_calls([])
    ('[{"arguments":{"x":5,"y":2},"name":"g"}]', '[]')
    """
    read = read_calls(calls)
    return None if read is None else _written_or_none(read)


def written_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Return calls of tools as a text for people and logs: the canonical form, or else JSON of the calls as they are.

    >>> written_calls([{"id": "1", "function": {"name": "f", "arguments": "{"}}])
    '[{"arguments":"{","name":"f"}]'
    """
    form = canonical_calls(calls)
    if form is not None:
        return form
    functions = [call.get("function", call) for call in calls]
    parts = [{name: one.get(name) for name in ("name", "arguments")} for one in functions if isinstance(one, Mapping)]
    return _written_or_none(parts) or ""
