"""Searches replies for a regular expression, as a program of its own (`line_programs`): JSON Lines in, JSON Lines out.

Where it can, it ends itself once one reply takes too long. Nothing of rcjax is imported, so that it starts at once.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Sequence

__all__: list[str] = []


def _is_in(pattern: str, text: str, reference: Sequence[str]) -> bool:
    """Whether the pattern, with any right answer in it, is in a text."""
    forms = [re.escape(right) for right in reference] if "{answer}" in pattern else [""]
    return any(re.search(pattern.replace("{answer}", form), text, re.M) is not None for form in forms)


def _allow(seconds: float) -> None:
    """End this process after so many seconds of computing, 0 for never; by the system, as `re` listens to nobody."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _main(pattern: str, seconds: float) -> None:
    for line in sys.stdin.buffer:
        row = json.loads(line)
        _allow(seconds)
        try:
            answer = {"correct": _is_in(pattern, row["text"], row["reference"])}
        except Exception as error:  # with a right answer in it, it may be none, or one that no memory is enough for
            answer = {"failed": f"{type(error).__name__}: {error}"}
        _allow(0.0)
        print(json.dumps({"id": row["id"], **answer}), flush=True)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]), float(sys.argv[2]))
