"""Signals by name, and as JSON: what a log and a policy keep of how confidences were read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rcjax._base.json_checks import thawed
from rcjax.signals.chosen import chosen_choice
from rcjax.signals.measures import normalise_answer
from rcjax.signals.signal import Choice, MeanLogprob, Signal, Stated, Verification, Votes

__all__ = ["NAMES", "LetterOf", "contradiction", "record_signal", "signal_by_name", "signal_from_record"]

#: Signals as they are named on the command line and in files.
NAMES = ("choice", "verification", "votes", "stated", "mean")

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


def signal_by_name(name: str, choices: Sequence[str] = ()) -> Signal:
    """The signal of a name, for questions with these choices. Raises ValueError for another name.

    >>> signal_by_name("choice", "AB")
    Choice(choices=('A', 'B'), top=20)
    """
    if name not in NAMES:
        raise ValueError(f"{name!r} is no signal: give {', '.join(NAMES)}")
    own = tuple(choices)
    if name == "choice":
        return Choice(own) if own else Choice()
    if name == "votes" and own:
        return Votes(normalise=LetterOf(own))
    return _KINDS[name]()


def record_signal(signal: Any) -> dict[str, Any]:
    """A signal as a JSON object; of one that rcjax does not know, the name of its class.

    >>> record_signal(Votes(samples=3))
    {'signal': 'votes', 'samples': 3, 'temperature': 0.7}
    """
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
    """Where a signal is another one than a record tells of, in words; None where they agree as far as that tells.

    >>> contradiction({"signal": "choice", "top": 5}, Choice())
    'top is 20, not 5'
    """
    told = record_signal(signal)
    names = [name for name in told if name in record and thawed(told[name]) != thawed(record[name])]
    return f"{names[0]} is {told[names[0]]!r}, not {record[names[0]]!r}" if names else None


def signal_from_record(record: Mapping[str, Any]) -> Signal | None:
    """The signal that `record_signal` told of; None for one of the user's own, which no record can make.

    >>> signal_from_record({"signal": "choice", "choices": ["A", "B"], "top": 5})
    Choice(choices=('A', 'B'), top=5)
    """
    own = {name: value for name, value in record.items() if name not in ("options", "others", "prices")}
    values = {name: tuple(value) if isinstance(value, list | tuple) else value for name, value in own.items()}
    name = values.pop("signal", None)
    if name not in NAMES or "normalise" in values or (name == "choice" and "choices" not in values):
        return None
    if name == "votes" and "choices" in values:
        values["normalise"] = LetterOf(values.pop("choices"))
    try:
        return partial(_KINDS[str(name)], **values)()
    except TypeError:  # a newer rcjax may record more
        return None
