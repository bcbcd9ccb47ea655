"""A grader by a regular expression of the user's, which is searched for in a process of its own.

Python's `re` may take longer than anybody lives over a text that a stranger wrote, such as `^(a+)+$` over "aaa…b", and
nothing else runs meanwhile. A process beside this one ends itself, and the answer is left without a verdict.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

from rcjax.collecting.graders import pattern_search
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
        script = str(Path(pattern_search.__file__).resolve())
        words = [sys.executable, "-I", "-S", "-W", "ignore", script, json.dumps(pattern), str(_SECONDS)]
        super().__init__(words, f"regex:{pattern}")

    def _verdict(self, line: bytes, number: int) -> bool | None:
        told = json.loads(line)
        if "failed" in told:
            raise NoVerdictError(f"{self.name} failed: {told['failed']}")
        return super()._verdict(line, number)

    def _broken(self, status: int) -> NoVerdictError:
        if status == -getattr(signal, "SIGPROF", 0):
            return NoVerdictError(f"{self.name} takes more than {_SECONDS:g} seconds")
        return super()._broken(status)
