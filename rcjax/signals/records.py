"""Signals by name, and as JSON: what a log and a policy keep of how confidences were read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rcjax._base.codec import written
from rcjax.signals.checks import FORMS, Check, is_check
from rcjax.signals.chosen import chosen_choice
from rcjax.signals.measures import normalise_answer
from rcjax.signals.signal import Choice, MeanLogprob, Signal, Stated, Verification, Votes

#: Signals as they are named on the command line and in files.
NAMES = ("choice", "verification", "votes", "stated", "mean")

_VERSION = "check"  # what a record calls the version of a check

_KINDS: dict[str, Callable[..., Any]] = {
    "choice": Choice,
    "verification": Verification,
    "votes": Votes,
    "stated": Stated,
    "mean": MeanLogprob,
}


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
        return {"signal": signal.name} | ({} if signal.version is None else {_VERSION: signal.version})
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
    compared = [name for name in current if name in record and name != _VERSION]
    names = [name for name in compared if written(current[name]) != written(record[name])]
    return f"{names[0]} is {current[names[0]]!r}, not {record[names[0]]!r}" if names else None


def another_check(record: Mapping[str, Any], signal: Any) -> str | None:
    """Where a check has the name that a record tells and is another one all the same, both versions in words.

    >>> another_check({"signal": "command:./check", "check": "0a1b"}, Check("command:./check", "2c3d"))
    'it is 2c3d now, and was 0a1b'
    """
    current = record_signal(signal)
    if type(signal) is not Check or record.get("signal") != current["signal"]:
        return None
    then, now = (one.get(_VERSION, "of no version") for one in (record, current))
    return None if then == now else f"it is {now} now, and was {then}"


def signal_from_record(record: Mapping[str, Any]) -> Signal | None:
    """The signal that `record_signal` told of; None for one of the user's own, which no record can make.

    Such is a check that runs code, too: a file must not make a service run what it likes.

    >>> signal_from_record({"signal": "choice", "choices": ["A", "B"], "top": 5})
    Choice(choices=('A', 'B'), top=5)
    """
    fields = {name: value for name, value in record.items() if name not in ("options", "others", "prices")}
    values = {name: tuple(value) if isinstance(value, list | tuple) else value for name, value in fields.items()}
    name = values.pop("signal", None)
    if isinstance(name, str) and is_check(name):
        return _built_in(name)
    if name not in NAMES or "normalise" in values or (name == "choice" and "choices" not in values):
        return None
    if name == "votes" and "choices" in values:
        values["normalise"] = LetterOf(values.pop("choices"))
    try:
        return partial(_KINDS[str(name)], **values)()
    except TypeError:  # edited by hand
        return None


def _built_in(name: str) -> Check | None:
    """The check of a name, where it is built in."""
    try:
        check = Check(name)
    except ValueError:  # edited by hand
        return None
    return None if check.runs_code else check
