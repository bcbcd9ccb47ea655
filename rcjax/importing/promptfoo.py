"""Results of promptfoo: the JSON of `promptfoo eval -o results.json`.

A result is one answer of a provider to a prompt with its variables: these two name the query. A result that failed with
an error is no wrong answer. Log-probabilities are numbers without their tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rcjax.importing.chats import of_numbers
from rcjax.importing.lines import (
    DamageError,
    How,
    Line,
    amount_of,
    document_of,
    pieces,
    require,
    require_sound,
    tokens_of,
)

name, files = "promptfoo", "promptfoo (results JSON)"

_ERROR = 2  # `failureReason` of a call that failed; 1 is an assertion that does not hold


def recognises(path: Path, head: bytes) -> bool:
    """JSON that begins with the number of an evaluation and its results."""
    return head.lstrip().startswith(b"{") and b'"evalId"' in head and b'"results"' in head


def read(path: Path, how: How) -> Iterator[Line | DamageError]:
    """The lines of a file; a provider that answered the same prompt again did so in another attempt."""
    content = document_of(path, "promptfoo")
    results = content.get("results") if isinstance(content, dict) else None
    rows: Any = results.get("results") if isinstance(results, dict) else None
    require_sound(isinstance(rows, list) and bool(rows), path.name, "holds no results")
    attempts: Counter[tuple[str, str]] = Counter()

    def numbered(row: Mapping[str, Any], where: str) -> list[Line]:
        line = _line(row, how, where)
        attempts[line["query"], line["model"]] += 1
        return [line | {"sample": attempts[line["query"], line["model"]]}]

    for number, row in enumerate(rows, 1):
        where = f"{path.name}, result {number}"
        yield from pieces(where, "promptfoo", lambda row=row, where=where: numbered(row, where))


def _line(row: Mapping[str, Any], how: How, where: str) -> Line:
    provider, response = row["provider"], row.get("response") or {}
    prompt, output = str(row["prompt"]["raw"]), response.get("output")
    line = {"query": _identity(prompt, row.get("vars")), "model": provider.get("label") or provider["id"]}
    if row.get("failureReason") == _ERROR:
        return line | {"error": "with an error"}
    text = output if isinstance(output, str) else None if output is None else json.dumps(output)
    usage = response.get("tokenUsage") or {}
    line |= {"correct": _score(row, how.scorer, where), "scorer": how.scorer, "answer": text, "prompt": prompt}
    line |= {"finish": response.get("finishReason"), **of_numbers(response.get("logProbs") or ())}
    if not response.get("cached"):  # a cache tells nothing of the model's time and money
        line |= {"cost": row.get("cost"), "seconds": amount_of(row.get("latencyMs"), 1000)}
    return line | tokens_of(usage.get("prompt"), usage.get("completion"), prompt, [text])


def _identity(prompt: str, variables: Any) -> str:
    """A name of a prompt with its variables, without their text."""
    content = json.dumps([prompt, variables], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _score(row: Mapping[str, Any], scorer: str | None, where: str) -> Any:
    if scorer is None:
        return row["success"]
    overall = {} if row.get("score") is None else {"score": row["score"]}
    scores = overall | (row.get("namedScores") or {})
    names = ", ".join(scores) or "none"
    require(scorer in scores, where, f"has no score {scorer!r}; there are {names}: choose one of them")
    return scores[scorer]
