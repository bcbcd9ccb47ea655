"""The answer file of a run: a JSON line for each call, in the format of a call log, with the label of the answer.

Lines are only appended. A second file, the journal, lists the calls under way: if a run is killed, the next run knows
which calls may have been paid for. `rcjax.read_log` can read the answer file at any time.

Verdicts cannot go into a log that a service still writes. The shadow calls of such a log are copied to an answer file,
which `rcjax.read_log` then reads in place of the log.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from rcjax._base.codec import object_in
from rcjax._base.files import LineFile, is_stream, try_lock, write_atomically
from rcjax.collecting.questions import Question
from rcjax.logs.errors import LogError
from rcjax.logs.sources import TextFile, drop_truncated_lines
from rcjax.policy.signals.answers import hash_json
from rcjax.serving.call_log import VERSION, has_failed
from rcjax.serving.completions import read_json

#: Error of a call whose outcome is unknown.
LOST_CALL = "the run ended while the call was under way: its cost is the most that it can be"


@dataclass(slots=True)
class AnswerRows:
    """The rows of an answer file: the latest row of each call, in order."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rows by the id of the call."""
    truncated: int = 0
    """Number of truncated lines."""
    repeated: int = 0
    """Number of rows that replace an earlier one."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row; it replaces an earlier row of the same call."""
        self.repeated += row["call"] in self.rows
        self.rows[row["call"]] = dict(row)

    @property
    def answered(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        """Rows with an answer, by query, model and sample number; of several rows the first."""
        answered: dict[tuple[str, str, int], dict[str, Any]] = {}
        for row in self.rows.values():
            if not has_failed(row):
                answered.setdefault((row["query"], row["model"], sample_of(row)), row)
        return answered

    @property
    def spent(self) -> Decimal:
        """Upper bound of the money spent on all calls, failed calls and judges included."""
        amounts = (row.get(name) or 0 for row in self.rows.values() for name in ("at_most", "grading_cost"))
        return sum((Decimal(str(amount)) for amount in amounts), Decimal(0))

    def highest_cost(self, model: str) -> Decimal:
        """Return the highest reported cost of a model's calls; 0 if none was reported."""
        costs = (row.get("cost") for row in self.rows.values() if row["model"] == model and not row.get("estimated"))
        return max((Decimal(str(cost)) for cost in costs if cost), default=Decimal(0))


def sample_of(row: Mapping[str, Any]) -> int:
    """Return the sample number of a row, from 1.

    >>> sample_of({"sample": 3}), sample_of({})
    (3, 1)
    """
    return row.get("sample") or 1


def read_answer_file(path: Path) -> AnswerRows:
    """Read an answer file; a missing file has no rows. Raises LogError for another kind of file."""
    answers = AnswerRows()
    _require_file(path)
    for row, place in _lines(path, answers) if path.exists() else ():
        require_call(row, place)
        answers.add(row)
    return answers


def _lines(path: Path, answers: AnswerRows | None = None) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (object, place) of each line; truncated lines are only counted."""
    text, truncated = drop_truncated_lines(TextFile(path, separator=None))
    if answers is not None:
        answers.truncated = truncated
    with text.open() as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield object_in(line), f"{path.name}, line {number}"


def _require_file(path: Path) -> None:
    if path.is_dir() or is_stream(path):
        raise LogError(f"{path} is not a file: give one whose name ends in .jsonl")


def require_call(row: Mapping[str, Any], place: str) -> None:
    """Raise LogError unless an object is a row of an answer file; `place` is its file and line, for messages."""
    if row.get("call_log") != VERSION or not isinstance(row.get("call"), str):
        raise LogError(f"{place}: this is not a file of rcjax collect: give another --out")
    checks = _CALL_CHECKS if has_failed(row) else _CALL_CHECKS | _ANSWER_CHECKS
    wrong = [name for name, is_right in checks.items() if not is_right(row.get(name))]
    if wrong and not (wrong == ["logprob"] and row.get("has_no_confidence")):
        value = repr(row.get(wrong[0]))[:40]
        raise LogError(f"{place}: {wrong[0]} is {value}, which rcjax collect does not write: put back the old value")


def _is_money(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value < math.inf)


#: Checks of the values of a row, as people may have edited the file.
_CALL_CHECKS: dict[str, Callable[[Any], bool]] = {
    "query": lambda value: isinstance(value, str),
    "model": lambda value: isinstance(value, str),
    "cost": _is_money,
    "at_most": _is_money,
    "grading_cost": _is_money,
    "sample": lambda value: value is None or (type(value) is int and value >= 1),
}

#: Further checks of the values of a row with an answer.
_ANSWER_CHECKS: dict[str, Callable[[Any], bool]] = {
    "cost": lambda value: value is not None and _is_money(value),
    "logprob": lambda value: value == "-inf" or (type(value) in (int, float) and -math.inf < value <= 0),
    "correct": lambda value: value is None or (type(value) in (bool, int, float) and 0 <= value <= 1),
    "text": lambda value: isinstance(value, str),
    "reference": lambda value: isinstance(value, list),
    "choices": lambda value: value is None or isinstance(value, str),
    "request_settings": lambda value: isinstance(value, str) and isinstance(object_in(value).get("signal"), str),
}


class AnswerFile:
    """An answer file opened for writing, created if it is missing, and locked against other runs on this machine.

    `answers` holds its rows. They include a failed call for each call that was under way when an earlier run ended.

    Raises LogError if the file is of another kind or locked by another run, and OSError if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        _require_file(path)
        self.path, self._real = path, Path(os.path.realpath(path))  # all links to a file have one lock
        self.under_way = self._real.with_name(f"{self._real.name}.under-way")
        self._open: set[str] = set()
        self._journal = self._open_journal()
        self._is_new = not self._real.exists()
        try:
            self.answers = read_answer_file(path)
            self._lines = LineFile(self._real)
        except BaseException:
            self._unlock(done=not os.fstat(self._journal).st_size)
            raise
        self.lost_calls = self._record_lost_calls()
        os.ftruncate(self._journal, 0)

    def _open_journal(self) -> int:
        """Open the journal and lock it; the lock ends with the process."""
        while True:
            journal = os.open(self.under_way, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            if not try_lock(journal):
                os.close(journal)
                raise LogError(f"{self.path.name}: another rcjax collect writes to it: wait for its end")
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self.under_way), os.fstat(journal)):
                    return journal
            os.close(journal)  # a run that has just ended has removed this journal

    def _record_lost_calls(self) -> int:
        """Write a failed call for each call that an earlier run began and did not end; return the number of calls."""
        notes = [note for note in map(object_in, self.under_way.read_bytes().splitlines()) if note]
        begun = {note["call"]: note for note in notes if "call" in note}
        ended = {note["ended"] for note in notes if "ended" in note} | {*self.answers.rows}
        lost = [note for call, note in begun.items() if call not in ended]
        for note in lost:
            cost = {"cost": note["at_most"], "estimated": True}
            self.write({"call_log": VERSION, **note, **cost, "shadow": True, "error": LOST_CALL})
        return len(lost)

    def begin(self, call: str, query: str, model: str, at_most: Decimal) -> None:
        """Record in the journal that a call is under way.

        Args:
            call: id of the call.
            query: id of the question.
            model: name of the model.
            at_most: largest possible cost, in money.
        """
        row = {"call": call, "query": query, "model": model, "at_most": float(at_most)}
        line = json.dumps(row).encode() + b"\n"
        if os.write(self._journal, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(self.under_way))
        self._open.add(call)

    def end(self, call: str) -> None:
        """Record in the journal that a call has ended, for a call without a row."""
        if call not in self._open:
            return
        self._open.discard(call)
        with suppress(OSError):
            os.write(self._journal, json.dumps({"ended": call}).encode() + b"\n")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row. Raises OSError for a full disk; the next run then counts the call as lost."""
        self._lines.append(json.dumps(row, allow_nan=False).encode() + b"\n")
        self.answers.add(row)
        self._open.discard(row["call"])

    def number_samples(self) -> None:
        """Number the existing answers without a sample number as first samples."""
        unnumbered = [row for row in self.answers.rows.values() if not has_failed(row) and row.get("sample") is None]
        for row in unnumbered:
            row["sample"] = 1
        self.rewrite_if_needed(is_changed=bool(unnumbered))

    def rewrite_if_needed(self, is_changed: bool = False) -> None:
        """Rewrite the file with one line per call if rows have changed, or lines are replaced or truncated."""
        if not (is_changed or self.answers.repeated or self.answers.truncated):
            return
        rows = self.answers.rows.values()
        lines = (json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
        write_atomically(self._real, b"".join(lines), private=True)
        self._lines.close()
        self._lines = LineFile(self._real)
        self.answers.repeated = self.answers.truncated = 0

    def close(self) -> None:
        """Close the file. Remove it if it is new and empty, and the journal if no call is under way."""
        self._lines.close()
        with suppress(OSError):
            if self._is_new and not self._real.stat().st_size:
                self._real.unlink()
        self._unlock(done=not self._open)

    def _unlock(self, done: bool) -> None:
        """Release the lock, as the last step; remove the journal first if `done`."""
        if done:
            with suppress(OSError):
                self.under_way.unlink()
        os.close(self._journal)


@dataclass(slots=True)
class ShadowCalls:
    """The usable shadow calls in the log of a service, and the numbers of other calls."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rows of an answer file by the id of the call: the first answer of each model to each shadow query."""
    questions: dict[str, Question] = field(default_factory=dict)
    """Questions by query, if the log has their prompts."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Numbers of the calls that are left out or cannot be graded, by reason."""

    def add(self, row: Mapping[str, Any], place: str) -> None:
        """Add a line of the log, or count it as left out. Raises LogError for a line that no service writes."""
        # The hash gives a call the same id at each reading, and hides the model from a grader.
        call = hash_json([row.get("query"), row.get("model")])
        if has_failed(row):
            self.left_out["that failed"] += 1
        elif row.get("shadow") is not True:
            self.left_out["of queries that did not go to all models"] += 1
        elif call in self.rows:
            self.left_out["repeated"] += 1
        else:
            text = row["answer"] if isinstance(row.get("answer"), str) else ""
            fields = {name: value for name, value in row.items() if name != "prompt"}
            self.rows[call] = {**fields, "call": call, "text": text, "reference": []}
            require_call(self.rows[call], place)
            if messages := _messages(row.get("prompt")):
                self.questions.setdefault(row["query"], Question(row["query"], messages))

    def write(self, file: AnswerFile) -> None:
        """Append the calls that an answer file does not hold yet.

        Raises LogError for the answer file of a run, which cannot take calls of a service, and OSError.
        """
        if any("question_digest" in row for row in file.answers.rows.values()):
            raise LogError(f"{file.path.name}: this is a log of rcjax collect: give another --out")
        for call, row in self.rows.items():
            if call not in file.answers.rows:
                file.write(row)

    def gradable(self, questions: Mapping[str, Question], reference: str | None, by_judge: bool) -> frozenset[str]:
        """Return the ids of the calls whose answers can be graded, and count the other calls.

        The answers of a `reference` are not graded; `questions` are then its answered questions. A judge must see the
        messages of a question.
        """
        calls = set[str]()
        for call, row in self.rows.items():
            question = questions.get(row["query"])
            if row["model"] == reference:
                continue
            if reference is not None and question is None:
                self.left_out[f"to queries without an answer of {reference} in the log"] += 1
            elif not row["text"].strip():
                self.left_out["whose text is not in the log"] += 1
            elif by_judge and (question is None or not question.messages):
                self.left_out["to questions that are not in the log (rcjax serve --log-prompts writes them)"] += 1
            else:
                calls.add(call)
        return frozenset(calls)


def read_shadow_calls(path: Path) -> ShadowCalls | None:
    """Read the shadow calls of a service's log; None for another file.

    Raises LogError for a line that no service writes, or if no query went to all models.
    """
    if is_stream(path) or not path.is_file():
        return None
    calls = None
    for row, place in _lines(path):
        if calls is None and ("call_log" not in row or "call" in row):  # calls of a service have no `call` id
            return None
        if row.get("call_log") != VERSION:
            raise LogError(f"{place}: no call of a service: give the log as it was written")
        calls = calls or ShadowCalls()
        calls.add(row, place)
    if calls is not None and not calls.rows:
        advice = "let rcjax serve --shadow 5% write the log"
        raise LogError(f"{path.name}: no answer to a query that went to all models: {advice}")
    return calls


def _messages(prompt: Any) -> tuple[Mapping[str, Any], ...]:
    """Parse a prompt that is a list of messages in JSON; () for another prompt."""
    messages = read_json(prompt) if isinstance(prompt, str) else None
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        return tuple(messages)
    return ()
