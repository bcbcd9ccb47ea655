"""Answers that are JSON or calls of tools in a canonical form: two answers are equal where their forms are.

JSON is an object or an array, alone in its text or in a fence. Its canonical form has sorted keys and no white space;
5.0 is 5, the order of a list counts, and texts are compared to the letter. Calls are the sorted list of their names and
arguments: neither ids nor the order of parallel calls count, and no call is the empty list. Standard library only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

#: How an answer begins that its check has found invalid: it is kept for people, and equal to no other.
INVALID = "[invalid] "

#: The canonical form of a reply that calls no tool.
NO_CALL = "[]"

#: Reasons to finish that leave a reply without its end.
CUT = ("length", "max_tokens")

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n?\s*```", re.S | re.I)


def read_json_text(text: str) -> Any:
    """The JSON object or array that a text is; None for any other text.

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
    """The canonical form of the JSON object or array that a text is, as calls where it lists calls; None for others.

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
    """Whether a value is a call, as a log or as an endpoint has it."""
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
    """The form of a value; None where it is nested too deep, or has a number of more digits than can be written."""
    try:
        return _written(value)
    except (RecursionError, ValueError, TypeError):
        return None


def _plain(value: Any) -> Any:
    """A JSON value whose whole numbers have no point."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def read_calls(calls: Sequence[Any]) -> list[dict[str, Any]] | None:
    """The names and arguments of calls of tools, sorted; None where one has no name, or no object as its arguments.

    Args:
        calls: `{"name", "arguments"}`, or with these in `function` as endpoints have them; arguments may be JSON in a
            text, of which an empty one has none.

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
    """The functions that are offered among the tools of a request, each with its name.

    >>> functions_of([{"type": "function", "function": {"name": "f"}}, {"type": "web_search"}])
    [{'name': 'f'}]
    """
    listed = [tool.get("function") for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
    return [one for one in listed if isinstance(one, Mapping) and isinstance(one.get("name"), str)]


def canonical_calls(calls: Sequence[Any]) -> str | None:
    """The canonical form of calls of tools, as `read_calls` reads them; None where that reads none.

    >>> one, other = {"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": '{"y": 2, "x": 5.0}'}
    >>> canonical_calls([one, other]) == canonical_calls([other, one])
    True
    >>> canonical_calls([other]), canonical_calls([])
    ('[{"arguments":{"x":5,"y":2},"name":"g"}]', '[]')
    """
    read = read_calls(calls)
    return None if read is None else _written_or_none(read)


def written_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Calls of tools as a text for people and logs: the canonical form, or else JSON of what was written.

    >>> written_calls([{"id": "1", "function": {"name": "f", "arguments": "{"}}])
    '[{"arguments":"{","name":"f"}]'
    """
    form = canonical_calls(calls)
    if form is not None:
        return form
    functions = [call.get("function", call) for call in calls]
    parts = [{name: one.get(name) for name in ("name", "arguments")} for one in functions if isinstance(one, Mapping)]
    return _written_or_none(parts) or ""
