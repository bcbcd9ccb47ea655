"""Whether two answers are the same, by the graders: the reference's answer takes the place of the right one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rcjax.collecting.graders.attempt import Attempt, GraderError
from rcjax.collecting.graders.numbers import NumberGrader
from rcjax.collecting.graders.programs import function_grader
from rcjax.collecting.graders.registry import COMPARISONS
from rcjax.collecting.graders.texts import exact
from rcjax.policy.reference import BY_ANSWER
from rcjax.signals.chosen import chosen_choice

_FORMS = "answer, exact, choice, number, contains, python:module:function or judge:MODEL"


def same_by(name: str) -> Callable[[str, str, str], bool | None] | None:
    """The function of (query, answer, the reference's answer) that a name stands for.

    Args:
        name: of what tells whether answers are the same, such as `"exact"`.

    None for those that need no texts: `"answer"`, and the verdicts of a judge, which are in the log. Raises GraderError
    for a name that is none.

    >>> same = same_by("number")
    >>> same("q", "12 × 3 = 36", "It comes to 36.0"), same_by("answer")
    (True, None)
    """
    require_sameness(name)
    if name == BY_ANSWER or name.startswith("judge:"):
        return None
    if name in _PAIRS:
        return _PAIRS[name]
    if name in COMPARISONS:
        compare = COMPARISONS[name]
        return lambda query, answer, reference: compare(_attempt(query, answer, reference))
    grader = NumberGrader() if name == "number" else function_grader(name.partition(":")[2], most=None)
    if isinstance(grader, NumberGrader):
        grader.require()

    def same(query: str, answer: str, reference: str) -> bool | None:
        try:
            verdict = asyncio.run(grader.grade(_attempt(query, answer, reference)))
            return None if verdict is None else bool(verdict)
        except GraderError as problem:
            raise GraderError(f"query {query}: {problem}") from None

    return same


def require_sameness(name: str) -> None:
    """Raise GraderError for a name that nothing which compares answers has."""
    form, _, rest = name.partition(":")
    if name != BY_ANSWER and name not in (*COMPARISONS, "number") and not (form in ("python", "judge") and rest):
        raise GraderError(f"{name!r} does not tell whether answers are the same: give {_FORMS}")


def _attempt(query: str, answer: str, reference: str) -> Attempt:
    return Attempt(query, answer, answer, (reference,))


def _exactly(query: str, answer: str, reference: str) -> bool:
    """Either may be the one that says more, such as "The answer is Paris." """
    return exact(_attempt(query, answer, reference)) or exact(_attempt(query, reference, answer))


def _by_choice(query: str, answer: str, reference: str) -> bool:
    """Whether both pick one choice."""
    del query
    letters = [
        text.strip() if text.strip() in _LETTERS else chosen_choice(text, _LETTERS) for text in (answer, reference)
    ]
    return letters[0] is not None and letters[0] == letters[1]


_LETTERS = tuple("ABCDEFGHIJ")

_PAIRS: dict[str, Callable[[str, str, str], bool]] = {"exact": _exactly, "choice": _by_choice}
