"""Graders of calls and of JSON: the right answer says which values each argument, or field, may have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from rcjax.collecting.grader import Attempt, NoVerdictError
from rcjax.signals.canonical import INVALID, canonical_json, read_calls, read_json_text

_MOST_CALLS = 6  # of one name, whose order is tried


def right_call(attempt: Attempt) -> bool:
    """Whether the calls of a reply are the right ones, in any order; `[]` is right where no tool is to be called.

    A right answer is a call, `{"name", "arguments"}`, or a list of them. Each argument is a value, or a list of allowed
    values, where null stands for one that is left out; arguments in its list `free` may have any value, or none.

    >>> from rcjax.collecting.questions import Question
    >>> right = '{"name": "weather", "arguments": {"city": ["Paris", "Paris, France"]}, "free": ["unit"]}'
    >>> said = '[{"name": "weather", "arguments": {"city": "Paris", "unit": "C"}}]'
    >>> right_call(Attempt(Question("q", (), (right,)), said, said))
    True
    """
    said = _calls_of(attempt)
    return said is not None and any(_same_calls(said, _wanted_calls(text)) for text in attempt.question.reference)


def _calls_of(attempt: Attempt) -> list[dict[str, Any]] | None:
    """The calls that a reply makes; none of a text, and None where they cannot be read."""
    document = read_json_text(attempt.answer.removeprefix(INVALID))
    document = read_json_text(attempt.text) if document is None else document
    if isinstance(document, Mapping):
        document = [document]
    return read_calls(document) if isinstance(document, list) else []


def _wanted_calls(text: str) -> list[Mapping[str, Any]]:
    wanted = read_json_text(text)
    calls = [wanted] if isinstance(wanted, Mapping) else wanted
    if not isinstance(calls, list) or not all(_is_wanted(call) for call in calls):
        raise NoVerdictError('call: the right answer is no list of calls: give {"name": …, "arguments": {…}}, or []')
    return calls


def _is_wanted(call: Any) -> bool:
    return (
        isinstance(call, Mapping)
        and isinstance(call.get("name"), str)
        and isinstance(call.get("arguments", {}), Mapping)
        and isinstance(call.get("free", []), list)
    )


def _same_calls(said: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    """Whether each call that is said is one that is wanted, one to one."""
    if sorted(call["name"] for call in said) != sorted(call["name"] for call in wanted):
        return False
    for name in {call["name"] for call in wanted}:
        ours, theirs = ([call for call in calls if call["name"] == name] for calls in (said, wanted))
        orders = permutations(theirs) if len(theirs) <= _MOST_CALLS else [tuple(theirs)]
        if not any(all(map(_same_call, ours, order)) for order in orders):
            return False
    return True


def _same_call(said: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    arguments, free = wanted.get("arguments", {}), {*wanted.get("free", [])}
    if any(name not in arguments and name not in free for name in said["arguments"]):
        return False
    return all(
        name in free or _is_allowed(said["arguments"].get(name), allowed, name in said["arguments"])
        for name, allowed in arguments.items()
    )


def _is_allowed(value: Any, allowed: Any, there: bool) -> bool:
    choices = [allowed, *allowed] if isinstance(allowed, list) else [allowed]
    return any(_form(value) == _form(choice) for choice in choices) if there else None in choices


def _form(value: Any) -> str | None:
    return canonical_json(json.dumps([value]))


@dataclass(frozen=True, slots=True)
class JsonGrader:
    """A grader of JSON objects by their fields: right where all are equal.

    Args:
        scores: whether to give the share of the fields that are equal instead, of those of either object.
    """

    scores: bool = False
    needs_reference: bool = True

    async def grade(self, attempt: Attempt) -> float:
        """Whether the fields of the reply are those of a right answer, or how many are."""
        said = read_json_text(attempt.answer.removeprefix(INVALID))
        said = read_json_text(attempt.text) if said is None else said
        shares = [_share(said, _wanted_document(text)) for text in attempt.question.reference]
        best = max(shares, default=0.0)
        return best if self.scores else best == 1


def _wanted_document(text: str) -> Any:
    document = read_json_text(text)
    if document is None:
        raise NoVerdictError("json: the right answer is no JSON object or list: give one, in a text or as it is")
    return document


def _share(said: Any, wanted: Any) -> float:
    """The share of the fields of two objects that are equal; of lists and others whether they are."""
    if not isinstance(said, Mapping) or not isinstance(wanted, Mapping):
        return float(said is not None and _form(said) == _form(wanted))
    names = {*said, *wanted}
    equal = sum(name in said and name in wanted and _form(said[name]) == _form(wanted[name]) for name in names)
    return equal / len(names) if names else 1.0
