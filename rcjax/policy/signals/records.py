"""Names of signals, and their records as JSON in logs and policies. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rcjax._base.codec import to_json_value
from rcjax.policy.signals.answers import chosen_choice, normalise_answer
from rcjax.policy.signals.reply_checks import CHECK_NAMES, ReplyCheck, is_check
from rcjax.policy.signals.signal import Choice, MeanLogprob, Signal, Stated, Verification, Votes

_KINDS: dict[str, Callable[..., Any]] = {
    "choice": Choice,
    "verification": Verification,
    "votes": Votes,
    "stated": Stated,
    "mean": MeanLogprob,
}

#: The names of signals on the command line and in files.
NAMES = tuple(_KINDS)


@dataclass(frozen=True, slots=True)
class LetterOf:
    """The normalisation of votes on choices: the choice that a reply picks; "" if it picks none."""

    choices: tuple[str, ...]

    def __call__(self, text: str) -> str:
        """Return the name of the choice that a reply picks."""
        return chosen_choice(text, self.choices) or ""


def require_signal_name(name: str) -> None:
    """Raise ValueError for a name that is neither a signal's nor a check's.

    >>> require_signal_name("regex:^(yes|no)$")
    """
    if is_check(name):
        ReplyCheck(name)
    elif name not in NAMES:
        raise ValueError(f"{name!r} is no signal: give {', '.join(NAMES)}, or a check: {', '.join(CHECK_NAMES)}")


def signal_by_name(name: str, choices: Sequence[str] = ()) -> Signal:
    """Build the signal of a name, for questions with the given choices. Raises ValueError for an unknown name.

    >>> signal_by_name("choice", "AB")
    Choice(choices=('A', 'B'), top=20)
    """
    require_signal_name(name)
    if is_check(name):
        return ReplyCheck(name)
    choices = tuple(choices)
    if name == "choice":
        return Choice(choices) if choices else Choice()
    if name == "votes" and choices:
        return Votes(normalise=LetterOf(choices))
    return _KINDS[name]()


def record_signal(signal: Any) -> dict[str, Any]:
    """Record a signal as a JSON object; for the user's own signal, the name of its class.

    >>> record_signal(Votes(samples=3))
    {'signal': 'votes', 'samples': 3, 'temperature': 0.7}
    """
    if type(signal) is ReplyCheck:
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
    """Return the first difference between a signal and a record, in words; None if they agree in recorded entries.

    >>> contradiction({"signal": "choice", "top": 5}, Choice())
    'top is 20, not 5'
    """
    current = record_signal(signal)
    compared = [name for name in current if name in record]
    names = [name for name in compared if to_json_value(current[name]) != to_json_value(record[name])]
    return f"{names[0]} is {current[names[0]]!r}, not {record[names[0]]!r}" if names else None


def signal_from_record(record: Mapping[str, Any]) -> Signal | None:
    """Build the signal that `record_signal` recorded; None for the user's own signal, which a record cannot build.

    A check that runs code is None too: a file must not choose the code that a service runs.

    >>> signal_from_record({"signal": "choice", "choices": ["A", "B"], "top": 5})
    Choice(choices=('A', 'B'), top=5)
    """
    fields = {name: value for name, value in record.items() if name not in ("options", "others", "prices", "requests")}
    values = {name: tuple(value) if isinstance(value, list | tuple) else value for name, value in fields.items()}
    name = values.pop("signal", None)
    if isinstance(name, str) and is_check(name):
        try:
            check = ReplyCheck(name)
        except ValueError:  # the file was edited by hand
            return None
        return None if check.runs_code else check
    if name not in NAMES or "normalise" in values or (name == "choice" and "choices" not in values):
        return None
    if name == "votes" and "choices" in values:
        values["normalise"] = LetterOf(values.pop("choices"))
    try:
        return partial(_KINDS[str(name)], **values)()
    except TypeError:  # the file was edited by hand
        return None
