"""Turns of tasks on a busy event loop: pieces of streams, and new requests, are worked on a few at a time.

Standard library only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary


class Turns:
    """Resumes tasks in the order of their arrival, a few at a time.

    Args:
        number: tasks that are resumed at a time.
        every: turns of the event loop from one time to the next.
    """

    def __init__(self, number: int = 1, every: int = 1) -> None:
        self._number, self._every = number, every
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle = 0

    async def take(self) -> None:
        """Wait for this task's turn."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._next, loop)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._idle = (self._idle + 1) % self._every
        left = 0 if self._idle else self._number
        while left and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its task may be cancelled
                turn.set_result(None)
                left -= 1
        if self._waiting:
            loop.call_soon(self._next, loop)


#: (tasks at a time, turns of the event loop between) by the kind of work: a piece of a stream takes half a millisecond,
#: a new request one or two.
KINDS = {"pieces": (1, 3), "requests": (4, 1)}

_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Turns]] = WeakKeyDictionary()


def turns_of(kind: str) -> Turns:
    """Return the turns of a kind of work on the running event loop."""
    loop = asyncio.get_running_loop()
    if (kinds := _TURNS.get(loop)) is None:
        kinds = _TURNS[loop] = {name: Turns(*settings) for name, settings in KINDS.items()}
    return kinds[kind]
