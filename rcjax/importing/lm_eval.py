"""Samples of lm-evaluation-harness: `samples_TASK_DATE.jsonl`, beside `results_DATE.json`, which names the model.

A line is one document under one filter. Multiple choice holds the log-likelihood of every choice, and of every choice
without the question where mutual information was asked for; text holds the replies before and after the filter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rcjax.importing.answers import Answer, Choices, require
from rcjax.importing.likelihoods import choice_made
from rcjax.logs.errors import LogError

name, files = "lm-eval", "lm-evaluation-harness (samples_*.jsonl)"

#: What tells right from wrong, before others.
_METRICS = ("acc", "exact_match")

_DATED = re.compile(r"samples_(?P<task>.+?)(?:_(?P<date>\d{4}-\d\d-\d\dT[\d.:-]+))?$")


def recognises(path: Path, head: bytes) -> bool:
    """Lines with a document, and what was replied before and after the filter."""
    return head.lstrip().startswith(b"{") and all(key in head for key in (b'"doc_id"', b'"resps"'))


def read(path: Path, choices: Choices) -> Iterator[Answer]:
    """The answers of a file, one per document; of a text with several replies, one per reply."""
    task, model = _named(path)
    filters: dict[str, None] = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            where = f"{path.name}, line {number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                filters[str(row["filter"])] = None
                if choices.scorer in (None, *_metrics(row)) or choices.scorer == row["filter"]:
                    require(
                        len(filters) == 1 or choices.scorer in filters,
                        where,
                        f"each document stands there for several filters, {', '.join(filters)}: choose one, "
                        "with --scorer (scorer=)",
                    )
                    yield from _answers(row, f"{task}/{row['doc_id']}", model, choices.scorer, where)
            except (AttributeError, KeyError, IndexError, RecursionError, TypeError, ValueError) as problem:
                if isinstance(problem, LogError):
                    raise
                raise LogError(f"{where}: is not as lm-eval writes it ({problem!r:.80}): is it whole?") from None


def _named(path: Path) -> tuple[str, str]:
    """(task, model) of a file, by its name and by the results beside it; else by the folder, ORG__MODEL."""
    match = _DATED.match(path.stem)
    task, date = (match["task"], match["date"]) if match else (path.stem, None)
    results = [path.with_name(f"results_{date}.json")] if date else []
    for file in [*results, *sorted(path.parent.glob("results_*.json"), reverse=True)]:
        try:
            model = json.loads(file.read_text("utf-8"))["model_name"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(model, str) and model:
            return task, model
    return task, path.resolve().parent.name.replace("__", "/")


def _metrics(row: Mapping[str, Any]) -> list[str]:
    return [metric for metric in row.get("metrics", _METRICS) if metric in row]


def _answers(row: Mapping[str, Any], query: str, model: str, scorer: str | None, where: str) -> Iterator[Answer]:
    metrics = _metrics(row)
    usual = [metric for metric in _METRICS if metric in metrics] or metrics[:1]
    require(bool(usual), where, "has no metric: lm-eval writes one, such as acc or exact_match")
    metric = scorer if scorer in metrics else usual[0]
    score = row[metric]
    replies, prompt = row["filtered_resps"], _length(row.get("arguments"))
    if replies and isinstance(replies[0], Sequence) and not isinstance(replies[0], str) and _is_pair(replies[0]):
        sent = None if prompt is None else (prompt, 1)
        choice = choice_made(replies, _continuations(row.get("arguments")), str(metric), "acc_mutual_info" in metrics)
        yield Answer(query, model, score=score, characters=sent, **choice)
        return
    texts = row["resps"][0] if row.get("resps") else replies
    answer = replies[0] if replies else ""
    answer = answer if isinstance(answer, str) else None
    sent = [None if prompt is None else (prompt, len(text)) for text in texts]
    if answer not in texts or len(texts) < 2:  # after a filter, samples cannot be compared
        yield Answer(query, model, score=score, text=answer, characters=sent[0])
        return
    others = [text for place, text in enumerate(texts) if place != texts.index(answer)]
    for attempt, (text, length) in enumerate(zip([answer, *others], sent, strict=True), 1):
        yield Answer(query, model, attempt, score if text == answer else None, text=text, characters=length)


def _is_pair(reply: Sequence[Any]) -> bool:
    """Whether this is the log-likelihood of a choice, and whether it is what the model would have written."""
    return len(reply) == 2 and str(reply[1]) in ("True", "False")


def _parts(arguments: Any) -> list[list[Any]]:
    """The arguments of each request of a document, in their order."""
    requests = list(arguments.values()) if isinstance(arguments, Mapping) else list(arguments or ())
    return [list(one.values()) if isinstance(one, Mapping) else one for one in requests]


def _length(arguments: Any) -> int | None:
    """Characters of the prompt."""
    first = next(iter(_parts(arguments)), None)
    return len(first[0]) if isinstance(first, Sequence) and first and isinstance(first[0], str) else None


def _continuations(arguments: Any) -> list[str] | None:
    """What follows the prompt in each request; None where that is not told."""
    parts = _parts(arguments)
    told = all(isinstance(one, Sequence) and len(one) > 1 and isinstance(one[1], str) for one in parts)
    return [one[1] for one in parts] if told else None
