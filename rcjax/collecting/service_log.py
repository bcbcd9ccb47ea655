"""The log of a service as a file of answers: its shadow calls, to be graded like those of a run.

A service may be writing to its log, so that verdicts cannot go there. They go to a file of their own, which holds the
calls that can be learnt from as they are, each under a name, and `rcjax.read_log` reads it in place of the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from rcjax._base.checks import object_in
from rcjax._base.files import is_stream
from rcjax.collecting.answer_file import AnswerFile, require_call
from rcjax.collecting.questions import Question
from rcjax.logs.errors import LogError
from rcjax.logs.sources import TextFile, sound_calls
from rcjax.serving.call_log import VERSION, has_failed, is_digest

_NOT_ALL, _FAILED, _AGAIN = "of queries that did not go to all models", "that failed", "repeated"


@dataclass(slots=True)
class ShadowCalls:
    """What can be learnt from in the log of a service, and what is not taken from it."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    """As a file of answers has them, by the call's name: the first answer of each model to each shadow query."""
    questions: dict[str, Question] = field(default_factory=dict)
    """What was asked, by query, where the log tells."""
    left_out: dict[str, int] = field(default_factory=dict)
    """How many calls are not taken, by why."""

    def add(self, row: Mapping[str, Any], where: str) -> None:
        """Take a line of the log, if that can be. Raises LogError for one that no service writes."""
        why = None if row.get("shadow") is True else _NOT_ALL
        why = _FAILED if has_failed(row) else why
        call = _name(row)
        why = _AGAIN if why is None and call in self.rows else why
        if why is not None:
            self.left_out[why] = self.left_out.get(why, 0) + 1
            return
        said = row.get("answer")
        text = "" if not isinstance(said, str) or is_digest(said) else said
        fields = {name: value for name, value in row.items() if name != "prompt"}
        self.rows[call] = {**fields, "call": call, "text": text, "reference": []}
        require_call(self.rows[call], where)
        messages = _messages(row.get("prompt"))
        if messages:
            self.questions.setdefault(row["query"], Question(row["query"], messages))

    def write(self, file: AnswerFile) -> None:
        """Add the calls that a file of answers does not hold yet.

        Raises LogError for a file of a run, in which calls of a service have no place, and OSError.
        """
        if any("question_digest" in row for row in file.answers.rows.values()):
            raise LogError(f"{file.path.name}: this is a log of rcjax collect: give another --out")
        for call, row in self.rows.items():
            if call not in file.answers.rows:
                file.write(row)

    def gradable(
        self, questions: Mapping[str, Question], reference: str | None, by_judge: bool
    ) -> tuple[frozenset[str], dict[str, int]]:
        """(names of the calls whose answers can be graded, how many cannot be, by why).

        Args:
            questions: by query; with a reference those that it has answered (`questions_against`).
            reference: the model whose answers are the right ones, and are not graded; None for none.
            by_judge: whether a judge must see the questions.
        """
        calls, without = set[str](), dict[str, int]()
        for call, row in self.rows.items():
            if row["model"] == reference:
                continue
            question = questions.get(row["query"])
            why = None
            if reference is not None and question is None:
                why = f"to queries without an answer of {reference} in the log"
            elif not row["text"].strip():
                why = "whose text is not in the log"
            elif by_judge and (question is None or not question.messages):
                why = "to questions that are not in the log (rcjax serve --log-prompts writes them)"
            if why is None:
                calls.add(call)
            else:
                without[why] = without.get(why, 0) + 1
        return frozenset(calls), without


def is_service_log(path: Path) -> bool:
    """Whether a file is the log of a service, whose calls have no name."""
    if is_stream(path) or not path.is_file():
        return False
    row = next((row for row, _ in _lines(path)), {})
    return "call_log" in row and "call" not in row


def read_shadow_calls(path: Path) -> ShadowCalls:
    """The shadow calls of the log of a service.

    Raises LogError where a line is none of a service, or no query went to all models.
    """
    calls = ShadowCalls()
    for row, where in _lines(path):
        if row.get("call_log") != VERSION:
            raise LogError(f"{where}: no call of a service: give the log as it was written")
        calls.add(row, where)
    if not calls.rows:
        raise LogError(
            f"{path.name}: no answer to a query that went to all models: let rcjax serve --shadow 5% write the log"
        )
    return calls


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """(the object in a line, which line that is, in words) of a log; an empty object where there is none.

    Lines that are cut off are left out.
    """
    text, _ = sound_calls(TextFile(path, separator=None))
    with text.open() as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield object_in(line), f"{path.name}, line {number}"


def _messages(prompt: Any) -> tuple[Mapping[str, Any], ...]:
    """What was asked, of its JSON in a line; () where that tells none."""
    with suppress(ValueError, RecursionError):
        messages = json.loads(prompt) if isinstance(prompt, str) else None
        if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
            return tuple(messages)
    return ()


def _name(row: Mapping[str, Any]) -> str:
    """A name for a call, the same each time its log is read, that does not tell a person who answered."""
    return sha256(json.dumps([row.get("query"), row.get("model")]).encode()).hexdigest()[:16]
