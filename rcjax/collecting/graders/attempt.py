"""What a grader sees of an answer, and what a grader is. Who answered is not in it: grading is blind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class GraderError(ValueError):
    """A grader that cannot work, or a name of one that is none; the message says why and what to do."""


class NoVerdictError(GraderError):
    """A grader that has failed on one answer, which has no verdict then; it may well work on others."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One reply to one question."""

    query: str
    """The question's id."""
    text: str
    """The reply."""
    answer: str
    """The answer as the signal reads it, such as the letter of a choice; often the reply itself."""
    reference: tuple[str, ...] = ()
    """Right answers; none if that is not known."""
    choices: tuple[str, ...] = ()
    """Names of the choices; none if the answer is free."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What the choices say, by name."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """What was asked; empty if that is not known any more."""


class Grader(Protocol):
    """Anything that tells whether a reply is right, or how good it is."""

    @property
    def needs_reference(self) -> bool:
        """Whether a question without a right answer cannot be graded."""
        ...

    async def grade(self, attempt: Attempt) -> float | None:
        """True, False, a score between 0 and 1, or None if it cannot tell.

        Raises NoVerdictError where it fails on this answer, and GraderError where it cannot work at all.
        """
        ...
