"""The log of a cascade in service: one line of JSON per call of a model, which `rcjax.read_log` reads as it is.

Whether an answer was right is not known when it is given: labels come later, by query, as `labels=` of `read_log`.
Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import TracebackType
from typing import Any

from rcjax._base.files import LineFile, LineStream
from rcjax._base.wording import count

#: Tokens of the input that came from a cache, and that were put into one; a line tells them where there are some.
CACHED = ("cached_tokens", "cache_write_tokens")

#: Fields of a call that a line has where they say something, and those that it has not, or otherwise.
_OPTIONAL = ("segment", "client", "likeliest", *CACHED, "unread", "asked")
_APART = ("text", "confidence", "added", "billed")

VERSION = 1  # of the lines of a call log

#: What becomes of a call that is to be logged.
LOGGED = ("written", "lost")

#: Of the hash of a prompt, by which equal ones are known and count once. It has no salt: all workers, restarts and
#: parts of a log must give the same, and a salt in the log would keep nobody who has it from testing a guess.
_DIGITS = 16


class CascadeWarning(UserWarning):
    """A model's confidence cannot be read, or a call cannot be logged; the cascade goes on."""


@dataclass(frozen=True, slots=True)
class Billed:
    """On whose bill a call is."""

    policy: str
    """The name of the policy that follows it."""
    cascade: str
    """The `Cascade` that asks, by a random name."""
    step: int = 1
    """Which call of its query it is, from 1 on."""


@dataclass(frozen=True, slots=True)
class Call:
    """One model asked about one query, a second question on its answer and all attempts included."""

    query: str
    """The query's id."""
    model: str
    """The model's name in the policy."""
    served: str
    """Its name at the endpoint."""
    text: str | None
    """What it replied; None if nothing usable came back."""
    answer: str | None
    """The answer as the signal reads it, such as the letter of a choice."""
    logprob: float | None
    """Natural log of the raw confidence; None if it could not be read."""
    confidence: float | None
    """The calibrated confidence that the policy makes of it."""
    cost: float
    """Money: tokens used times prices."""
    input_tokens: int | None
    """Tokens of all questions; None if the endpoint did not tell."""
    output_tokens: int | None
    """Tokens of all replies."""
    estimated: bool
    """The cost is the policy's mean for the model, as the endpoint told no tokens, or no price is known."""
    attempts: int
    """How many requests were sent."""
    seconds: float
    """How long it took, waiting between attempts included."""
    time: str
    """When it ended, in UTC (ISO 8601)."""
    shadow: bool
    """The query goes to all models, whatever they answer."""
    error: str | None
    """Why there is no answer, or no confidence in it."""
    unread: bool = False
    """There is an answer, in which the signal reads no confidence."""
    asked: str | None = None
    """How the model is asked, as JSON (`rcjax.serving.models_file`); None if that is not told."""
    cached_tokens: int = 0
    """Of the input, what came from a cache."""
    cache_write_tokens: int = 0
    """Of the input, what was put into a cache."""
    likeliest: str | None = None
    """The answer that the model held likelier than the one it gave, or None."""
    added: bool = False
    """A shadow query adds it: the policy would not have asked for it."""
    segment: str | None = None
    """What kind of query it is; None if nobody told."""
    client: str | None = None
    """Who asks, by name; None if clients have none."""
    billed: Billed | None = None
    """On whose bill it is; None if on no policy's, as what shadow queries add where a budget is for each query."""


class CallLog:
    """A file of JSON Lines to which each call is appended at once, by one write: a kill loses calls in flight only.

    Threads, and processes of one machine, may write to one file. A line that a kill or a full disk left unfinished
    stays as it is: the next call goes on a line of its own, and readers skip what is unfinished. Neither keys nor
    headers get into the log; the answers do unless `answers=False`, and what was asked only with `prompts=True`, as
    JSON in a text; of it a hash does, so that equal questions count once.

    Where another program renames or removes the file, such as logrotate, the next line goes to a new one. Without a
    file (`path=None`) lines go to standard output, for a program that collects them. With `replica=` each line says
    which replica of a service it comes from.

    Raises OSError where the file cannot be opened, and from `write` where it cannot be written, and ValueError from
    `write` for a number that JSON cannot hold, which writes nothing.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "calls.jsonl")
        >>> with CallLog(path) as log:
        ...     log.write(Call("q1", "small", "small", "B", "B", -0.1, 0.8, 1e-5, 90, 1, False, 1, 0.2, "", True, None))
        >>> with open(path) as file:
        ...     json.loads(file.read())["logprob"]
        -0.1
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        answers: bool = True,
        prompts: bool = False,
        replica: str | None = None,
    ) -> None:
        self.path = None if path is None else os.fspath(path)
        self.answers = answers
        self.prompts = prompts
        self.replica = replica
        self.observe: Callable[[str], None] | None = None
        """Called with the outcome of each call that `keep` was given, one of `LOGGED`."""
        self._lost = 0  # since a line was written
        self._turn = threading.Lock()
        self._lines = LineStream() if path is None else LineFile(path)

    def write(self, call: Call, messages: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Append a call, and what was asked if the log is to hold that."""
        row = call_row(call if self.answers else replace(call, answer=None, likeliest=None))
        if messages is not None:
            prompt = json.dumps(messages, default=str)
            row["prompt_digest"] = hashlib.sha256(prompt.encode()).hexdigest()[:_DIGITS]
            row |= {"prompt": prompt} if self.prompts else {}
        row |= {} if self.replica is None else {"replica": self.replica}
        self._lines.append(json.dumps(row, allow_nan=False).encode() + b"\n")

    def keep(self, call: Call, messages: Sequence[Mapping[str, Any]] | None = None) -> str | None:
        """Append a call, or count it as lost; return a line for people if that is news, else None.

        It is news when lines begin to be lost, and when they are written again.
        """
        outcome, reason = "written", ""
        try:
            self.write(call, messages)
        except Exception as problem:  # the answer is paid for: it is given all the same
            outcome = "lost"
            reason = (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
        with self._turn:
            before, self._lost = self._lost, self._lost + 1 if outcome == "lost" else 0
        if self.observe is not None:
            self.observe(outcome)
        where = self.path or "standard output"
        if outcome == "lost":
            return None if before else f"calls are not logged: {where}: {reason}"
        return f"calls are logged again: {where}: {count(before, 'call')} lost before" if before else None

    def why_incomplete(self) -> str | None:
        """Why calls may be missing at its end, or will be from now on, in words; None if nothing says so."""
        if isinstance(self._lines, LineStream):
            return None
        if self._lines.is_cut_off():
            return "it ends within a line, as a full disk or a kill leaves it"
        return None if self._lines.has_room() else "its disk is full"

    @property
    def is_losing(self) -> bool:
        """Whether the last call could not be logged."""
        return self._lost > 0

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._lines.close()

    def __enter__(self) -> CallLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def call_row(call: Call) -> dict[str, Any]:
    """A call as a line of a log, all but its text, as JSON values."""
    row = {"call_log": VERSION} | {one.name: getattr(call, one.name) for one in fields(call) if one.name not in _APART}
    row["logprob"] = "-inf" if call.logprob == -math.inf else call.logprob  # which JSON has no number for
    row |= {"calibrated": call.confidence, "seconds": round(call.seconds, 6), "time": row.pop("time")}
    row |= {} if call.billed is None else asdict(call.billed)
    return {name: value for name, value in row.items() if name not in _OPTIONAL or value not in (None, 0)}


def has_failed(row: Mapping[str, Any]) -> bool:
    """Whether a line of a log tells no answer; one without a confidence is an answer.

    >>> has_failed({"error": "HTTP 500"}), has_failed({"error": "no letter", "unread": True}), has_failed({})
    (True, False, False)
    """
    return row.get("error") is not None and not row.get("unread")
