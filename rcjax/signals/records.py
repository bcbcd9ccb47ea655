"""Signals by name and as JSON, as a log and a policy keep how confidences were read; and those that check a reply.

A check gives a verdict in place of a probability: tests that pass, a schema, a validator's score.

| name | gives | runs |
|---|---|---|
| `json` | 1 for valid JSON, by the schema of the request where it has one, else 0 | beside this process |
| `call` | 1 where every call is of a tool of the request, by its schema, else 0 | beside this process |
| `regex:PATTERN` | 1 where the pattern is found in the reply, else 0 | beside this process |
| `length`, `length:20-2000` | 1 for a reply that came to its end, of so many characters, else 0 | here |
| `python:module:function` | what the function returns | beside this process |
| `command:./check` | what the program prints | beside this process |

The answers of `json` and `call` are in canonical form (`rcjax.signals.canonical`), in which those of two models are
compared; a reply without a call is an answer too. Here is what a check is asked and what its verdict means;
`rcjax.serving.running_checks` runs it. Standard library only.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from rcjax._base.codec import written
from rcjax.signals.canonical import CUT, INVALID, canonical_calls, canonical_json, written_calls
from rcjax.signals.final_answer import chosen_choice, normalise_answer
from rcjax.signals.replies import Reading, Reply, SignalError
from rcjax.signals.signal import (
    Choice,
    MeanLogprob,
    OneReply,
    Signal,
    Stated,
    Verification,
    Votes,
    last_question,
)

#: Checks as people write them.
FORMS = ("json", "call", "regex:PATTERN", "length:20-2000", "python:module:function", "command:./check")

#: Money that a check may say one verdict cost; whatever says more does not count money.
MOST_COST = 1e6


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check says of a reply."""

    value: float
    """Its confidence, from 0 to 1."""
    cost: float = 0.0
    """Money that the check says it cost."""
    key: str | None = None
    """The answer as it is to be compared with others; None for the check's usual one."""


@dataclass(frozen=True, slots=True)
class Check(OneReply):
    """A check of the user's own, or one that is built in, as a signal; `rcjax.Cascade` and the commands run it.

    Args:
        name: `json`, `call`, `regex:PATTERN`, `length:20-2000`, `python:module:function` or `command:./check`.

    Raises ValueError for a name of another form.

    >>> Check("length:1-3").read(Reply(("four",))).logprob
    -inf
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not is_check(self.name):
            raise ValueError(f"{self.name!r} is no check: give {', '.join(FORMS)}")
        _FORM[self.kind](self.name, self.rest)

    @property
    def kind(self) -> str:
        """The first word of its name."""
        return self.name.partition(":")[0]

    @property
    def rest(self) -> str:
        """What its name says behind the first word."""
        return self.name.partition(":")[2]

    @property
    def runs_code(self) -> bool:
        """Whether it runs code of the user's: such a check is named by who starts it, never by a file of a policy."""
        return self.kind in ("python", "command")

    @property
    def judges(self) -> frozenset[str]:
        """Fields of a request that other signals judge no answer to: those of tools are for checks that see calls."""
        calls = self.runs_code or self.kind == "call"
        return frozenset({"response_format"} | ({"tools", "tool_choice"} if calls else set()))

    @property
    def options(self) -> Mapping[str, Any]:
        """Nothing special."""
        return {}

    def document(
        self, messages: Sequence[Mapping[str, Any]], reply: Reply, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What the check is told, as JSON values: the question, the reply, and what was asked of the reply's form."""
        return {
            "question": last_question(messages),
            "messages": list(messages),
            "answer": reply.text,
            "finish_reason": reply.finish_reason,
            "tool_calls": list(reply.tool_calls),
            **{name: options.get(name) for name in ("response_format", "tools", "tool_choice")},
        }

    def read(self, reply: Reply, second: Reply | None = None) -> Reading:
        """The verdict where no process is needed for it, as of `length`; SignalError for other checks."""
        if self.kind != "length":
            raise SignalError("the check runs in a process of its own: rcjax.Cascade, collect and serve run it")
        least, most = _bounds(self.name, self.rest)
        whole = reply.finish_reason not in CUT and least <= len(reply.text) <= most
        return self.reading(reply, Verdict(float(whole)))

    def reading(self, reply: Reply, verdict: Verdict, options: Mapping[str, Any] = MappingProxyType({})) -> Reading:
        """The answer, by the verdict's key where it has one, and the log of a verdict from 0 to 1.

        Args:
            reply: that was checked.
            verdict: on it.
            options: of its request: where that offers no tools, the answer of `call` is a text.
        """
        calls = bool(reply.tool_calls or (self.kind == "call" and options.get("tools")))
        answer = self._answer(reply, verdict.value > 0, calls) if verdict.key is None else verdict.key
        return Reading(answer, math.log(verdict.value) if verdict.value > 0 else -math.inf)

    def _answer(self, reply: Reply, valid: bool, calls: bool) -> str:
        """The calls of a reply, or its text; of `json` and `call` in canonical form, and marked where it is invalid."""
        if calls and self.kind != "json":
            form, said = canonical_calls(reply.tool_calls), written_calls(reply.tool_calls)
            return form if form is not None and (valid or self.kind != "call") else INVALID + said
        if self.kind != "json":
            return reply.text
        return (canonical_json(reply.text) or reply.text) if valid else INVALID + reply.text


def is_check(name: str) -> bool:
    """Whether a signal's name begins as that of a check does.

    >>> is_check("json"), is_check("command:./check"), is_check("choice")
    (True, True, False)
    """
    return name.partition(":")[0] in _FORM


def read_verdict(said: Any) -> Verdict | None:
    """What a check returned, as a verdict: a number from 0 to 1, true or false, or an object; None for nothing.

    The object has `confidence`, such a number, and may have `cost`, money, and `key`, a text by which the answer is
    compared with others. Raises ValueError for anything else, whose message does not quote it.

    >>> read_verdict(True), read_verdict({"confidence": 0.5, "cost": 0.001}), read_verdict(None)
    (Verdict(value=1.0, cost=0.0, key=None), Verdict(value=0.5, cost=0.001, key=None), None)
    """
    cost: Any = 0.0
    key: Any = None
    if isinstance(said, Mapping):
        if "confidence" not in said:
            raise ValueError("an object without confidence")
        said, cost, key = said["confidence"], said.get("cost", 0.0), said.get("key")
    if said is None:
        return None
    said = without_rounding(said) if isinstance(said, float) else said
    if not _is_number(said, 1.0):
        raise ValueError("what is no number from 0 to 1")
    if isinstance(cost, bool) or not _is_number(cost, MOST_COST):
        raise ValueError("a cost that is no money")
    if not isinstance(key, str | None):
        raise ValueError("a key that is no text")
    return Verdict(float(said), float(cost), key)


_ROUNDING = 1e-9  # of a sum or a mean


def without_rounding(share: float) -> float:
    """A number that is to be from 0 to 1, where rounding may have put it a little beyond.

    >>> without_rounding(1.0000000000001), without_rounding(-1e-17), without_rounding(1.5)
    (1.0, 0.0, 1.5)
    """
    return min(max(share, 0.0), 1.0) if -_ROUNDING <= share <= 1.0 + _ROUNDING else share


def _is_number(value: Any, most: float) -> bool:
    return isinstance(value, int | float) and 0 <= value <= most  # NaN is not


def _bare(name: str, rest: str) -> None:
    kind = name.partition(":")[0]
    if rest or name != kind:
        raise ValueError(f"{name!r}: {kind} takes nothing behind it: the schema is that of the request")


def _pattern(name: str, rest: str) -> None:
    try:
        re.compile(rest)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{name!r}: no regular expression: {error}") from None
    if not rest or "{answer}" in rest:
        raise ValueError(f"{name!r}: give a pattern, without {{answer}}: a check knows no right answer")


def _function(name: str, rest: str) -> None:
    module, _, function = rest.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), function]):
        raise ValueError(f"{name!r}: give python:module:function")


def _command(name: str, rest: str) -> None:
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None
    if not words or "\0" in rest:
        raise ValueError(f"{name!r} gives no program: give command:./check, or the like")


def _bounds(name: str, rest: str) -> tuple[float, float]:
    """The least and the most characters of a reply; an empty one is never long enough."""
    match = re.fullmatch(r"(\d{0,9})-(\d{0,9})", rest or "-", re.ASCII)
    if match is None or (name.endswith(":") and not rest):
        raise ValueError(f"{name!r}: give length, length:20-2000, length:20- or length:-2000, in characters")
    least, most = max(1.0, float(match[1] or 1)), float(match[2] or math.inf)
    if least > most:
        raise ValueError(f"{name!r}: no reply is so long: give the smaller number first")
    return least, most


_FORM: dict[str, Any] = {
    "json": _bare,
    "call": _bare,
    "regex": _pattern,
    "length": _bounds,
    "python": _function,
    "command": _command,
}


_KINDS: dict[str, Callable[..., Any]] = {
    "choice": Choice,
    "verification": Verification,
    "votes": Votes,
    "stated": Stated,
    "mean": MeanLogprob,
}

#: Signals as they are named on the command line and in files.
NAMES = tuple(_KINDS)


@dataclass(frozen=True, slots=True)
class LetterOf:
    """How votes on choices are compared: the choice that a reply picks, nothing where it picks none."""

    choices: tuple[str, ...]

    def __call__(self, text: str) -> str:
        """The name of the choice."""
        return chosen_choice(text, self.choices) or ""


def require_signal_name(name: str) -> None:
    """Refuse what names no signal and no check, with a ValueError.

    >>> require_signal_name("regex:^(yes|no)$")
    """
    if is_check(name):
        Check(name)
    elif name not in NAMES:
        raise ValueError(f"{name!r} is no signal: give {', '.join(NAMES)}, or a check: {', '.join(FORMS)}")


def signal_by_name(name: str, choices: Sequence[str] = ()) -> Signal:
    """The signal of a name, for questions with these choices. Raises ValueError for another name.

    >>> signal_by_name("choice", "AB")
    Choice(choices=('A', 'B'), top=20)
    """
    require_signal_name(name)
    if is_check(name):
        return Check(name)
    choices = tuple(choices)
    if name == "choice":
        return Choice(choices) if choices else Choice()
    if name == "votes" and choices:
        return Votes(normalise=LetterOf(choices))
    return _KINDS[name]()


def record_signal(signal: Any) -> dict[str, Any]:
    """A signal as a JSON object; of one that rcjax does not know, the name of its class.

    >>> record_signal(Votes(samples=3))
    {'signal': 'votes', 'samples': 3, 'temperature': 0.7}
    """
    if type(signal) is Check:
        return {"signal": signal.name}
    name = next((name for name, kind in _KINDS.items() if type(signal) is kind), None)
    if name is None:
        return {"signal": type(signal).__name__}
    values = {field: getattr(signal, field) for field in getattr(type(signal), "__dataclass_fields__", {})}
    if name == "votes":
        values |= _record_comparison(values.pop("normalise"))
        values = {field: value for field, value in values.items() if value not in (None, False)}
    return {"signal": name} | {field: list(v) if isinstance(v, tuple) else v for field, v in values.items()}


def _record_comparison(normalise: Any) -> dict[str, Any]:
    if isinstance(normalise, LetterOf):
        return {"choices": list(normalise.choices)}
    compare = getattr(normalise, "compare", None)
    if isinstance(compare, str):
        return {"compare": compare}
    return {} if normalise is normalise_answer else {"normalise": getattr(normalise, "__name__", "a function")}


def contradiction(record: Mapping[str, Any], signal: Any) -> str | None:
    """Where a signal is another one than a record tells of, in words; None if they agree as far as that tells.

    >>> contradiction({"signal": "choice", "top": 5}, Choice())
    'top is 20, not 5'
    """
    current = record_signal(signal)
    compared = [name for name in current if name in record]
    names = [name for name in compared if written(current[name]) != written(record[name])]
    return f"{names[0]} is {current[names[0]]!r}, not {record[names[0]]!r}" if names else None


def signal_from_record(record: Mapping[str, Any]) -> Signal | None:
    """The signal that `record_signal` told of; None for one of the user's own, which no record can make.

    Such is a check that runs code, too: a file must not make a service run what it likes.

    >>> signal_from_record({"signal": "choice", "choices": ["A", "B"], "top": 5})
    Choice(choices=('A', 'B'), top=5)
    """
    fields = {name: value for name, value in record.items() if name not in ("options", "others", "prices", "requests")}
    values = {name: tuple(value) if isinstance(value, list | tuple) else value for name, value in fields.items()}
    name = values.pop("signal", None)
    if isinstance(name, str) and is_check(name):
        try:
            check = Check(name)
        except ValueError:  # edited by hand
            return None
        return None if check.runs_code else check
    if name not in NAMES or "normalise" in values or (name == "choice" and "choices" not in values):
        return None
    if name == "votes" and "choices" in values:
        values["normalise"] = LetterOf(values.pop("choices"))
    try:
        return partial(_KINDS[str(name)], **values)()
    except TypeError:  # edited by hand
        return None
