"""Samples of lm-evaluation-harness: `samples_TASK_DATE.jsonl`, beside `results_DATE.json`, which names the model.

A line is one document under one filter. Multiple choice holds the log-likelihood of every choice, and of every choice
without the question where mutual information was asked for; text holds the replies before and after the filter.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rcjax.importing.answers import DamageError, How, ImportedAnswer, pieces, records, require, require_sound
from rcjax.importing.likelihoods import choice_made
from rcjax.signals import normalise_answer

name, files = "lm-eval", "lm-evaluation-harness (samples_*.jsonl)"

#: What tells right from wrong, before others.
_METRICS = ("acc", "exact_match")

#: Metrics that are no scores: the lower, the better.
_LOSSES = ("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "brier_score", "ter", "wer", "cer")

_DATED = re.compile(r"samples_(?P<task>.+?)(?:_(?P<date>\d{4}-\d\d-\d\dT[\d.:-]+))?$")


def recognises(path: Path, head: bytes) -> bool:
    """Documents, and what was replied to each."""
    return head.lstrip()[:1] == b"{" and all(key in head for key in (b'"doc_id"', b'"resps"'))


def read(path: Path, how: How) -> Iterator[ImportedAnswer | DamageError]:
    """The answers of a file, one per document."""
    task, model = _named(path)
    filters: dict[str, None] = {}

    def answers(row: Mapping[str, Any], where: str) -> list[ImportedAnswer]:
        filtered = str(row["filter"])
        filters[filtered] = None
        if how.scorer not in (None, *_metrics(row), filtered):
            return []
        require(
            len(filters) == 1 or how.scorer in filters,
            where,
            f"each document stands there for several filters, {', '.join(filters)}: choose one, "
            "with --scorer (scorer=)",
        )
        return [*_answers(row, f"{task}/{row['doc_id']}", model, how.scorer, where)]

    for where, row in records(path, "lm-eval"):
        if isinstance(row, DamageError):
            yield row
        else:
            yield from pieces(where, "lm-eval", lambda row=row, where=where: answers(row, where))


def _named(path: Path) -> tuple[str, str]:
    """(task, model) of a file, by its name and by the results beside it; else by the folder, ORG__MODEL."""
    match = _DATED.match(path.stem)
    task, date = (match["task"], match["date"]) if match else (path.stem, None)
    results = [path.with_name(f"results_{date}.json")] if date else []
    for file in [*results, *sorted(path.parent.glob("results_*.json"), reverse=True)]:
        try:
            model = json.loads(file.read_text("utf-8"))["model_name"]
        except (LookupError, OSError, RecursionError, TypeError, ValueError):
            continue
        if isinstance(model, str) and model:
            return task, model
    return task, path.resolve().parent.name.replace("__", "/")


def _metrics(row: Mapping[str, Any]) -> list[str]:
    """Names of what was measured."""
    return [metric for metric in row["metrics"] if metric in row]


def _answers(
    row: Mapping[str, Any], query: str, model: str, scorer: str | None, where: str
) -> Iterator[ImportedAnswer]:
    metrics = _metrics(row)
    usual = [metric for metric in _METRICS if metric in metrics] or metrics[:1]
    require_sound(bool(usual), where, "has no metric: lm-eval writes one, such as acc or exact_match")
    metric = str(scorer if scorer in metrics else usual[0])
    lost = f"{metric} is the better the lower it is, and no score: choose another metric, with --scorer (scorer=)"
    require(metric not in _LOSSES, where, lost)
    score = row[metric]
    asked = _asked(row.get("arguments"))
    replies, prompt = row["filtered_resps"], None if asked is None else len(asked)
    if replies and isinstance(replies[0], Sequence) and not isinstance(replies[0], str) and _is_pair(replies[0]):
        sent = None if prompt is None else (prompt, 1)
        choice = choice_made(replies, _continuations(row.get("arguments")), metric, "acc_mutual_info" in metrics)
        yield ImportedAnswer(query, model, score=score, scorer=metric, prompt=asked, characters=sent, **choice)
        return
    texts: list[str | None] = (row["resps"][0] or [None]) if row.get("resps") else replies
    answer = replies[0] if replies else ""
    answer = answer if isinstance(answer, str) else None
    if answer not in texts or len(texts) < 2:  # after a filter, samples cannot be compared
        texts = texts[:1]
    sent = None if prompt is None else (len(texts) * prompt, sum(len(text or "") for text in texts))
    fields = {"scorer": metric, "text": answer, "prompt": asked, "characters": sent, "calls": len(texts)}
    yield ImportedAnswer(query, model, score=score, **fields, **_share(texts, answer or ""))


def _share(texts: Sequence[str | None], answer: str) -> dict[str, Any]:
    """How many of several replies give the answer, as its confidence; nothing of one reply, or an empty answer.

    >>> _share(["a", "b", " A", None], "a"), _share(["a"], "a")
    ({'logprob': -0.69..., 'signal': 'own'}, {})
    """
    same = [normalise_answer(text or "") == normalise_answer(answer) for text in texts]
    confident = len(texts) > 1 and normalise_answer(answer)
    return {"logprob": math.log(sum(same) / len(same)), "signal": "own"} if confident else {}


def _is_pair(reply: Sequence[Any]) -> bool:
    """Whether this is the log-likelihood of a choice, and whether it is what the model would have written."""
    return len(reply) == 2 and str(reply[1]) in ("True", "False")


def _parts(arguments: Any) -> list[list[Any]]:
    """The arguments of each request of a document, in their order."""
    requests = list(arguments.values()) if isinstance(arguments, Mapping) else list(arguments or ())
    return [list(one.values()) if isinstance(one, Mapping) else one for one in requests]


def _asked(arguments: Any) -> str | None:
    """The prompt, of the first request."""
    first = next(iter(_parts(arguments)), None)
    return first[0] if isinstance(first, Sequence) and first and isinstance(first[0], str) else None


def _continuations(arguments: Any) -> list[str] | None:
    """What follows the prompt in each request; None where that is not told."""
    parts = _parts(arguments)
    complete = all(isinstance(one, Sequence) and len(one) > 1 and isinstance(one[1], str) for one in parts)
    return [one[1] for one in parts] if complete else None
