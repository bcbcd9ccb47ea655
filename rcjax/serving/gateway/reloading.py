"""Taking up new files while the service runs, on a signal and where one has changed; a broken one changes nothing."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from rcjax._base.wording import visible
from rcjax.serving.gateway.lineup import Lineup

_LOGGER = logging.getLogger("rcjax.serving")


_INTERVAL = 1.0  # seconds between looks at the files


class Reloader:
    """Reads the files again when they change.

    Args:
        paths: of the files.
        read: reads them all; ValueError or OSError where they cannot be used.
        take_up: is given what was read.
        refuse: is told that it could not be used.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        read: Callable[[], Lineup],
        take_up: Callable[[Lineup], None],
        refuse: Callable[[], None],
    ) -> None:
        self._paths, self._read, self._take_up, self._refuse = tuple(paths), read, take_up, refuse
        self._state = self._look()
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Read the files again at once."""
        self._asked.set()

    async def run(self) -> None:
        """Watch the files until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), _INTERVAL)
            asked = self._asked.is_set()
            self._asked.clear()
            state = self._look()
            if asked or state != self._state:
                self._state = state
                await self.reload()

    async def reload(self) -> None:
        """Read the files, and take up what they say, or say why not."""
        try:
            lineup = await asyncio.to_thread(self._read)
        except Exception as problem:  # whatever is in a file must not end the watching
            self._refuse()
            _LOGGER.error("a new file is refused, the old policies stay: %s", in_words(problem))
            return
        self._take_up(lineup)

    def _look(self) -> list[tuple[int, int, int] | None]:
        """What tells each file from what it was before; None of one that is not there."""
        return [_signature(path) for path in self._paths]


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def in_words(problem: Exception) -> str:
    """What is wrong with a file, on one line without control characters.

    >>> in_words(FileNotFoundError(2, "No such file or directory", "policy.json"))
    'policy.json: No such file or directory'
    """
    if isinstance(problem, OSError) and problem.filename is not None:
        return visible(f"{os.fsdecode(problem.filename)}: {problem.strerror}")
    return visible(" ".join(str(problem).split())) or type(problem).__name__
