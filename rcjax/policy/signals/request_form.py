"""Digest the form of answer that a request asks for: tools, a schema, and whether a tool has just replied.

A policy that compares calls or JSON judges only requests of a form that its log had. A form identifies tools by name
and parameters, since agents put dates and paths into descriptions, and send tools in any order. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rcjax.policy.signals.canonical import functions_of

#: The form of a request for text alone.
PLAIN = "plain"

#: The options of a request that determine its form.
FORMING = ("tools", "tool_choice", "response_format")

_PROSE = frozenset({"description", "title", "examples", "$comment"})

_NAMED = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)  # keywords of JSON Schema whose keys are names of the user's

_DIGITS = 12


def form_of(messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
    """Return the form of a request: `PLAIN`, or twelve hexadecimal digits.

    Args:
        messages: the conversation.
        options: options of the request.

    >>> tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    >>> described = {"type": "function", "function": {**tool["function"], "description": "At 12:30."}}
    >>> form_of([{"role": "user"}], {"tools": [tool]}) == form_of([{"role": "user"}], {"tools": [described]})
    True
    >>> form_of([{"role": "user"}], {}), form_of([{"role": "tool"}], {"tools": [tool]})
    ('plain', '5a4cbd80f2bc')
    """
    tools = options.get("tools")
    functions = [[one["name"], _bare(one.get("parameters"))] for one in functions_of(tools)]
    kinds = [tool.get("type") for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
    offered = [*functions, *(kind for kind in kinds if kind != "function")]
    choice, wanted = options.get("tool_choice"), options.get("response_format")
    form = {
        "tools": sorted(json.dumps(one, sort_keys=True, default=str) for one in offered),
        "choice": None if choice == "auto" or not tools else choice,
        "format": None if wanted == {"type": "text"} else _bare(wanted),
        "after": bool(messages) and messages[-1].get("role") in ("tool", "function"),
    }
    if not any(form.values()):
        return PLAIN
    return hashlib.sha256(json.dumps(form, sort_keys=True, default=str).encode()).hexdigest()[:_DIGITS]


def _bare(schema: Any, *, names: bool = False) -> Any:
    """Strip the prose of a schema; with `names`, the keys of the object are names of the user's, and stay."""
    if isinstance(schema, Mapping):
        kept = {key: value for key, value in schema.items() if names or key not in _PROSE}
        return {key: _bare(value, names=key in _NAMED and not names) for key, value in kept.items()}
    return [_bare(value) for value in schema] if isinstance(schema, list) else schema
