"""A grader by a regular expression of the user's, which is searched for in a process of its own, with a limit."""

from __future__ import annotations

import asyncio
import re

from rcjax.collecting.graders.attempt import Attempt, GraderError, NoVerdictError
from rcjax.serving import check_worker
from rcjax.serving.workers import BrokeDownError, Workers

_SECONDS = 5.0  # over one answer


class Matching:
    """A grader by a regular expression, searched for in the reply; `{answer}` in it stands for a right answer.

    Args:
        pattern: the regular expression, as Python's `re` has it.

    Raises GraderError where it is none, or pebble is not installed.
    """

    def __init__(self, pattern: str) -> None:
        self.name, self._pattern = f"regex:{pattern}", pattern
        try:
            re.compile(pattern.replace("{answer}", "x"))
            self._workers = Workers("regex", 1)
        except (re.error, RecursionError, OverflowError) as error:
            raise GraderError(f"{self.name}: no regular expression: {error}") from None
        except ImportError as error:
            raise GraderError(f"{self.name}: {error}") from None
        self.needs_reference = "{answer}" in pattern
        self._turn = asyncio.Lock()

    async def grade(self, attempt: Attempt) -> bool:
        """Whether the pattern is found."""
        arguments = self._pattern, attempt.text, attempt.reference
        async with self._turn:
            try:
                reply = await self._workers.call(check_worker.found, *arguments, seconds=_SECONDS)
            except TimeoutError:
                raise NoVerdictError(f"{self.name} takes more than {_SECONDS:g} seconds") from None
            except BrokeDownError as error:
                raise NoVerdictError(f"{self.name}: {error}") from None
        if "failed" in reply:
            raise NoVerdictError(f"{self.name} failed: {reply['failed']}")
        return reply["said"]

    async def close(self) -> None:
        """End the process."""
        await asyncio.to_thread(self._workers.close)
