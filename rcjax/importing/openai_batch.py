"""Output of OpenAI's batches: a line for each request, with its `custom_id` and the body of the response, or an error.

The query is named by the `custom_id`, so the batches of all models must have the same ones; the model by the body.
Prompts are in the file of requests alone. Nothing tells right from wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rcjax.importing.answers import DamageError, How, ImportedAnswer, answers_of
from rcjax.importing.chats import replies_of

name, files = "openai-batch", "OpenAI's batches (their output)"


def recognises(path: Path, head: bytes) -> bool:
    """Lines with an id of one's own, and a response."""
    begins = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    return begins in (b"{", b"[") and all(key in head for key in (b'"custom_id"', b'"response"', b'"error"'))


def read(path: Path, how: How) -> Iterator[ImportedAnswer | DamageError]:
    """The answers of a file, one per line."""
    return answers_of(path, "OpenAI", lambda record, where: _answers(record))


def _answers(line: Mapping[str, Any]) -> list[ImportedAnswer]:
    response = line["response"] or {}
    body = response.get("body") or {}
    answer = ImportedAnswer(str(line["custom_id"]), str(body.get("model") or "?"), attempt=None)
    if line.get("error") or response.get("status_code") != 200 or body.get("error"):
        return [replace(answer, failure="with an error")]
    if "choices" not in body and "output" not in body:
        return [replace(answer, failure=f"of another kind of call ({body.get('object')})")]
    return replies_of(body, replace(answer, judged=False))
