"""Output of OpenAI's batches: a line for each request, with its `custom_id` and the body of the response, or an error.

The query is named by the `custom_id`, so the batches of all models must have the same ones; the model by the body.
Prompts are in the file of requests alone. Nothing tells right from wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rcjax.importing.chats import replies_of
from rcjax.importing.lines import DamageError, How, Line, begins_as_json, lines_of

name, files = "openai-batch", "OpenAI's batches (their output)"


def recognises(path: Path, head: bytes) -> bool:
    """Lines with an id of one's own, and a response."""
    return begins_as_json(head) and all(key in head for key in (b'"custom_id"', b'"response"', b'"error"'))


def read(path: Path, how: How) -> Iterator[Line | DamageError]:
    """The lines of a file."""
    return lines_of(path, "OpenAI", lambda record, where: _lines(record))


def _lines(record: Mapping[str, Any]) -> list[Line]:
    response = record["response"] or {}
    body = response.get("body") or {}
    line = {"query": str(record["custom_id"]), "model": str(body.get("model") or "?")}
    if record.get("error") or response.get("status_code") != 200 or body.get("error"):
        return [line | {"error": "with an error"}]
    if "choices" not in body and "output" not in body:
        return [line | {"error": f"of another kind of call ({body.get('object')})"}]
    return replies_of(body, line)
