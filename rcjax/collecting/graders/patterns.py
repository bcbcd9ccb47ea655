"""A grader by a regular expression of the user's, which is searched for in a process of its own, with a limit."""

from __future__ import annotations

import json
import re

from rcjax._base.line_programs import pattern_program, took_too_long
from rcjax.collecting.graders.attempt import GraderError, NoVerdictError
from rcjax.collecting.graders.programs import Program

__all__ = ["Matching"]

_SECONDS = 2.0  # of computing, over one answer


class Matching(Program):
    """A grader by a regular expression, searched for in the reply; `{answer}` in it stands for a right answer.

    Args:
        pattern: the regular expression, as Python's `re` has it.

    Raises GraderError where it is none.
    """

    def __init__(self, pattern: str) -> None:
        try:
            re.compile(pattern.replace("{answer}", "x"))
        except (re.error, RecursionError, OverflowError) as error:
            raise GraderError(f"regex:{pattern}: no regular expression: {error}") from None
        self.needs_reference = "{answer}" in pattern
        super().__init__(pattern_program(pattern, _SECONDS), f"regex:{pattern}")

    def _verdict(self, line: bytes, number: int) -> float | None:
        told = json.loads(line)
        if "failed" in told:
            raise NoVerdictError(f"{self.name} failed: {told['failed']}")
        return super()._verdict(line, number)

    def _broken(self, status: int) -> NoVerdictError:
        if took_too_long(status):
            return NoVerdictError(f"{self.name} takes more than {_SECONDS:g} seconds")
        return super()._broken(status)
