"""Graders that may take for ever over a reply: they run in a process of their own, with a limit for each answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, ClassVar

from rcjax._base.extras import required
from rcjax.collecting.graders.attempt import Attempt, GraderError, NoVerdictError
from rcjax.serving import check_worker
from rcjax.serving.workers import BrokeDownError, Workers

_SECONDS = 5.0  # over one answer


class Beside:
    """A process of a grader's own, which starts with the first answer.

    Args:
        name: of the grader.
    """

    needs_reference = True
    libraries: ClassVar[dict[str, str]] = {"pebble": "run"}
    """That it needs, each with its extra."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._workers: Workers | None = None
        self._turn = asyncio.Lock()

    def require(self) -> None:
        """Raise GraderError where a library is not installed."""
        try:
            for library, extra in self.libraries.items():
                required(library, extra)
        except ImportError as error:
            raise GraderError(f"{self.name}: {error}") from None

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns there. Raises NoVerdictError where it returns nothing in time."""
        async with self._turn:
            self._workers = self._workers or Workers(self.name, 1)
            try:
                return await self._workers.call(function, *arguments, seconds=_SECONDS)
            except TimeoutError:
                raise NoVerdictError(f"{self.name} takes more than {_SECONDS:g} seconds") from None
            except BrokeDownError as error:
                raise NoVerdictError(f"{self.name}: {error}") from None

    async def close(self) -> None:
        """End the process."""
        if self._workers is not None:
            await asyncio.to_thread(self._workers.close)


class Matching(Beside):
    """A grader by a regular expression, searched for in the reply; `{answer}` in it stands for a right answer.

    Args:
        pattern: the regular expression, as Python's `re` has it.

    Raises GraderError where it is none, or pebble is not installed.
    """

    def __init__(self, pattern: str) -> None:
        try:
            re.compile(pattern.replace("{answer}", "x"))
        except (re.error, RecursionError, OverflowError) as error:
            raise GraderError(f"regex:{pattern}: no regular expression: {error}") from None
        super().__init__(f"regex:{pattern}")
        self._pattern, self.needs_reference = pattern, "{answer}" in pattern
        self.require()

    async def grade(self, attempt: Attempt) -> bool:
        """Whether the pattern is found."""
        reply = await self.call(check_worker.found, self._pattern, attempt.text, attempt.reference)
        if "failed" in reply:
            raise NoVerdictError(f"{self.name} failed: {reply['failed']}")
        return reply["said"]
