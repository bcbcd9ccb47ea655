"""Checks of replies: their names, their input and their verdict.

A check gives a verdict in place of a probability: tests that pass, a schema, a validator's score.

| name | gives | runs |
|---|---|---|
| `json` | 1 for valid JSON, by the schema of the request if it has one, else 0 | in another process |
| `call` | 1 if every call is of a tool of the request, by its schema, else 0 | in another process |
| `regex:PATTERN` | 1 if the pattern is found in the reply, else 0 | in another process |
| `length`, `length:20-2000` | 1 for a complete reply with a length in this range of characters, else 0 | here |
| `python:module:function` | the value that the function returns | in another process |
| `command:./check` | the value that the program prints | in another process |

The answers of `json` and `call` are in canonical form (`rcjax.policy.signals.answers`), in which the answers of two
models are compared; a reply without a call is an answer too. This module defines the input and the verdict of a check;
`rcjax.serving.check_processes` runs it. Standard library only.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeGuard

from rcjax.policy.signals.answers import INVALID_MARK, TRUNCATED, canonical_calls, canonical_json, format_calls
from rcjax.policy.signals.replies import OneReply, Reading, Reply, SignalError, last_question

#: The names of checks, by example.
CHECK_NAMES = ("json", "call", "regex:PATTERN", "length:20-2000", "python:module:function", "command:./check")

#: Largest cost of one verdict that a check may report, in dollars; a larger number is not money.
MAX_COST = 1e6


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check of a reply."""

    value: float
    """Confidence, from 0 to 1."""
    cost: float = 0.0
    """Cost of the check, in dollars."""
    key: str | None = None
    """Answer for comparisons; None for the check's usual answer."""


@dataclass(frozen=True, slots=True)
class ReplyCheck(OneReply):
    """A signal that checks the reply, built in or the user's own; `rcjax.Cascade` and the commands run it.

    Args:
        name: `json`, `call`, `regex:PATTERN`, `length:20-2000`, `python:module:function` or `command:./check`.

    Raises ValueError for a name that no check has.

    >>> ReplyCheck("length:1-3").read(Reply(("four",))).logprob
    -inf
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not is_reply_check(self.name):
            raise ValueError(f"{self.name!r} is not a check: give {', '.join(CHECK_NAMES)}")
        _NAME_CHECKS[self.kind](self.name, self.argument)

    @property
    def kind(self) -> str:
        """The name up to the first colon."""
        return self.name.partition(":")[0]

    @property
    def argument(self) -> str:
        """The name after the first colon."""
        return self.name.partition(":")[2]

    @property
    def runs_code(self) -> bool:
        """Whether the check runs the user's code: then no policy file starts it, only `models.toml` or `signal=`."""
        return self.kind in ("python", "command")

    @property
    def judged_fields(self) -> frozenset[str]:
        """Fields of a request that the check can judge the answer by, unlike other signals."""
        calls = self.runs_code or self.kind == "call"
        return frozenset({"response_format"} | ({"tools", "tool_choice"} if calls else set()))

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the request: none."""
        return {}

    def document(
        self, messages: Sequence[Mapping[str, Any]], reply: Reply, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the input of the check as JSON values: the question, the reply, and the form that was asked for."""
        return {
            "question": last_question(messages),
            "messages": list(messages),
            "answer": reply.text,
            "finish_reason": reply.finish_reason,
            "tool_calls": list(reply.tool_calls),
            **{name: options.get(name) for name in ("response_format", "tools", "tool_choice")},
        }

    def read(self, reply: Reply, second: Reply | None = None) -> Reading:
        """Return the reading of a check that needs no process, `length`; SignalError for other checks."""
        if self.kind != "length":
            raise SignalError("the check runs in a process of its own: rcjax.Cascade, collect and serve run it")
        least, most = _read_bounds(self.name, self.argument)
        valid = reply.finish_reason not in TRUNCATED and least <= len(reply.text) <= most
        return self.reading(reply, Verdict(float(valid)))

    def reading(self, reply: Reply, verdict: Verdict, options: Mapping[str, Any] = MappingProxyType({})) -> Reading:
        """Return the answer, or the verdict's key if it has one, with the log of the verdict's confidence.

        If the request's options offer no tools, the answer of `call` is a text.
        """
        calls = bool(reply.tool_calls or (self.kind == "call" and options.get("tools")))
        answer = self._answer(reply, verdict.value > 0, calls) if verdict.key is None else verdict.key
        return Reading(answer, math.log(verdict.value) if verdict.value > 0 else -math.inf)

    def _answer(self, reply: Reply, valid: bool, calls: bool) -> str:
        """Return the calls of a reply, or its text; `json` and `call` use the canonical form, and mark invalid ones."""
        if calls and self.kind != "json":
            form, text = canonical_calls(reply.tool_calls), format_calls(reply.tool_calls)
            return form if form is not None and (valid or self.kind != "call") else INVALID_MARK + text
        if self.kind != "json":
            return reply.text
        return (canonical_json(reply.text) or reply.text) if valid else INVALID_MARK + reply.text


def is_reply_check(name: str) -> bool:
    """Return whether the name of a signal is that of a check of replies, up to the first colon.

    >>> is_reply_check("json"), is_reply_check("command:./check"), is_reply_check("choice")
    (True, True, False)
    """
    return name.partition(":")[0] in _NAME_CHECKS


def read_verdict(value: Any) -> Verdict | None:
    """Read the verdict from the value that a check gives; None for null.

    The value is a number from 0 to 1, true or false, or an object with such a `confidence`. The object may also have
    `cost` in dollars, and `key`, a text that stands for the answer in comparisons. Raises ValueError for any other
    value; the message does not quote it.

    >>> read_verdict(True), read_verdict({"confidence": 0.5, "cost": 0.001}), read_verdict(None)
    (Verdict(value=1.0, cost=0.0, key=None), Verdict(value=0.5, cost=0.001, key=None), None)
    """
    cost: Any = 0.0
    key: Any = None
    if isinstance(value, Mapping):
        if "confidence" not in value:
            raise ValueError("an object without confidence")
        value, cost, key = value["confidence"], value.get("cost", 0.0), value.get("key")
    if value is None:
        return None
    value = without_rounding(value) if isinstance(value, float) else value
    if not _is_number(value, 1.0):
        raise ValueError("a value that is not a number from 0 to 1")
    if not _is_cost(cost):
        raise ValueError("a cost that is not a sum of money")
    if not isinstance(key, str | None):
        raise ValueError("a key that is not a text")
    return Verdict(float(value), float(cost), key)


def reported_cost(value: Any) -> float | None:
    """Return the cost that a check gives, in dollars, beside any or no confidence; None without a valid cost.

    >>> reported_cost({"confidence": None, "cost": 0.001}), reported_cost({"cost": "much"}), reported_cost(0.5)
    (0.001, None, None)
    """
    cost = value.get("cost") if isinstance(value, Mapping) else None
    return float(cost) if _is_cost(cost) else None


def _is_cost(value: Any) -> TypeGuard[int | float]:
    return not isinstance(value, bool) and _is_number(value, MAX_COST)


_ROUNDING = 1e-9  # error of a sum or a mean in double precision, generously


def without_rounding(share: float) -> float:
    """Clip a share that rounding has put slightly outside [0, 1]; return other numbers as they are.

    >>> without_rounding(1.0000000000001), without_rounding(-1e-17), without_rounding(1.5)
    (1.0, 0.0, 1.5)
    """
    return min(max(share, 0.0), 1.0) if -_ROUNDING <= share <= 1.0 + _ROUNDING else share


def _is_number(value: Any, most: float) -> bool:
    return isinstance(value, int | float) and 0 <= value <= most  # NaN is not


def _check_bare(name: str, rest: str) -> None:
    kind = name.partition(":")[0]
    if rest or name != kind:
        raise ValueError(f"{name!r}: give {kind} alone: the request has the schema")


def _check_pattern(name: str, rest: str) -> None:
    try:
        re.compile(rest)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{name!r}: no regular expression: {error}") from None
    if not rest or "{answer}" in rest:
        raise ValueError(f"{name!r}: give a pattern, without {{answer}}: a check knows no right answer")


def _check_function(name: str, rest: str) -> None:
    module, _, function = rest.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), function]):
        raise ValueError(f"{name!r}: give python:module:function")


def _check_command(name: str, rest: str) -> None:
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None
    if not words or "\0" in rest:
        raise ValueError(f"{name!r}: give a program, such as command:./check")


def _read_bounds(name: str, rest: str) -> tuple[float, float]:
    """Return the least and the most characters of a reply; the least is at least 1."""
    match = re.fullmatch(r"(\d{0,9})-(\d{0,9})", rest or "-", re.ASCII)
    if match is None or (name.endswith(":") and not rest):
        raise ValueError(f"{name!r}: give length, length:20-2000, length:20- or length:-2000, in characters")
    least, most = max(1.0, float(match[1] or 1)), float(match[2] or math.inf)
    if least > most:
        raise ValueError(f"{name!r}: give the smaller number first: no reply has such a length")
    return least, most


_NAME_CHECKS: dict[str, Any] = {
    "json": _check_bare,
    "call": _check_bare,
    "regex": _check_pattern,
    "length": _read_bounds,
    "python": _check_function,
    "command": _check_command,
}
