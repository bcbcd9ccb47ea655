"""Import evaluations that are a single JSON document: runs of HELM, and results of promptfoo.

- HELM: `scenario_state.json`, and beside it `per_instance_stats.json` with the scores. They are joined by instance,
  perturbation and trial. A perturbed question is a separate query.
- promptfoo: the output of `promptfoo eval -o results.json`. A result is one answer of a provider to a prompt with
  variables; prompt and variables name the query. A result with an error is left out, not wrong. Log-probabilities are
  numbers without tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rcjax.logs.importing.call_logs import of_content, of_numbers, used
from rcjax.logs.importing.lines import (
    DamageError,
    Format,
    How,
    Line,
    amount_of,
    document_of,
    holding,
    pieces,
    require,
    require_sound,
    tokens_of,
)

# -- HELM

_STATE, _STATS = "scenario_state.json", "per_instance_stats.json"

#: Metrics that serve as labels; the first one present is used.
_METRICS = ("exact_match", "quasi_exact_match", "prefix_exact_match", "quasi_prefix_exact_match")


def _read_run(path: Path, how: How) -> Iterator[Line | DamageError]:
    """Yield the lines of a run, one per instance, perturbation and trial."""
    state, beside = document_of(path, "HELM"), path.with_name(_STATS)
    require_sound(beside.is_file(), str(beside), f"is missing: {_STATE} and {_STATS} must be in one folder")
    stats = document_of(beside, "HELM")
    try:
        figures = {_key(row): _means(row["stats"]) for row in stats}
        model, scenario = state["adapter_spec"]["model"], path.resolve().parent.name.partition(":")[0]
        requests = [*state["request_states"]]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as problem:
        raise DamageError(f"{path.name}: is not as HELM writes it ({problem!r:.80}): is it whole?") from None
    require_sound(bool(requests), path.name, "holds no requests")

    def lines(request: Mapping[str, Any], where: str) -> list[Line]:
        alone = request.get("reference_index") is None
        require(alone, where, "asks for one choice alone: run it again by the method multiple_choice_joint")
        instance = request["instance"]
        key = _key({**request, "instance_id": instance["id"], "perturbation": instance.get("perturbation")})
        return [_of_request(request, key, figures.get(key, {}), (model, scenario), how, where)]

    for number, request in enumerate(requests, 1):
        where = f"{path.name}, request {number}"
        yield from pieces(where, "HELM", lambda request=request, where=where: lines(request, where))


def _key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return the (instance, perturbation, trial) of a row."""
    perturbation = row.get("perturbation") or {}
    return str(row["instance_id"]), str(perturbation.get("name", "")), int(row.get("train_trial_index", 0))


def _means(stats: list[Mapping[str, Any]]) -> dict[str, float]:
    """Return the means of an instance's statistics, by name."""
    return {stat["name"]["name"]: stat["mean"] for stat in stats if stat.get("mean") is not None}


def _of_request(
    request: Mapping[str, Any],
    key: tuple[str, str, int],
    figures: Mapping[str, float],
    named: tuple[str, str],
    how: How,
    where: str,
) -> Line:
    model, scenario = named
    instance, perturbation, trial = key
    result = request.get("result") or {}
    query = "/".join(part for part in (scenario, instance, perturbation) if part)
    line = {"query": query, "model": model, "sample": trial + 1}
    failure = _failure((request.get("instance") or {}).get("split"), result)
    if failure is not None:
        return line | {"error": failure}
    completion = (result.get("completions") or [{}])[0]
    text, prompt = completion.get("text") or "", (request.get("request") or {}).get("prompt") or ""
    counts = figures.get("num_prompt_tokens"), figures.get("num_output_tokens", figures.get("num_completion_tokens"))
    line |= {"answer": text, "prompt": prompt, **tokens_of(*counts, prompt, [text])}
    line |= _scored(figures, how.scorer, where) if figures else {"correct": None}
    if not result.get("cached"):
        line["seconds"] = amount_of(result.get("request_time"))
    return line | _confidence(completion.get("tokens") or [], text, tuple(request.get("output_mapping") or ()))


def _confidence(content: list[Mapping[str, Any]], text: str, offered: tuple[str, ...]) -> Line:
    if not any(token.get("logprob") for token in content):  # HELM writes 0 for an unknown log-probability
        return {}
    return of_content([{**token, "token": token["text"]} for token in content], text, offered)


def _failure(split: str | None, result: Mapping[str, Any]) -> str | None:
    """Return why an answer is left out: an error, or a split other than test, which HELM scores; None if it counts."""
    if split not in (None, "test"):
        return f"of the split {split}, not test"
    return None if result.get("success", True) else "with an error"


def _scored(figures: Mapping[str, float], scorer: str | None, where: str) -> dict[str, Any]:
    """Return the score of an answer and the name of its metric, as parts of its line."""
    if scorer is not None:
        require(scorer in figures, where, f"has no figure {scorer!r}; there are {', '.join(figures)}")
        return {"correct": figures[scorer], "scorer": scorer}
    usual = [metric for metric in _METRICS if metric in figures]
    require(bool(usual), where, f"has none of {', '.join(_METRICS)}: choose a figure, with --scorer (scorer=)")
    return {"correct": figures[usual[0]], "scorer": usual[0]}


# -- promptfoo

#: promptfoo's names of token counts, by OpenAI's.
_USAGE = {"prompt_tokens": "prompt", "completion_tokens": "completion", "total_tokens": "total"}

_ERROR = 2  # `failureReason` of a failed call; 1 is a failed assertion


def _read_results(path: Path, how: How) -> Iterator[Line | DamageError]:
    """Yield the lines of a file; further answers of a provider to the same prompt are further samples."""
    content = document_of(path, "promptfoo")
    results = content.get("results") if isinstance(content, dict) else None
    rows: Any = results.get("results") if isinstance(results, dict) else None
    require_sound(isinstance(rows, list) and bool(rows), path.name, "holds no results")
    attempts: Counter[tuple[str, str]] = Counter()

    def numbered(row: Mapping[str, Any], where: str) -> list[Line]:
        line = _of_result(row, how, where)
        attempts[line["query"], line["model"]] += 1
        return [line | {"sample": attempts[line["query"], line["model"]]}]

    for number, row in enumerate(rows, 1):
        where = f"{path.name}, result {number}"
        yield from pieces(where, "promptfoo", lambda row=row, where=where: numbered(row, where))


def _of_result(row: Mapping[str, Any], how: How, where: str) -> Line:
    provider, response = row["provider"], row.get("response") or {}
    prompt, output = str(row["prompt"]["raw"]), response.get("output")
    line = {"query": _identity(prompt, row.get("vars")), "model": provider.get("label") or provider["id"]}
    if row.get("failureReason") == _ERROR:
        return line | {"error": "with an error"}
    text = output if isinstance(output, str) else None if output is None else json.dumps(output)
    usage = response.get("tokenUsage") or {}
    line |= {"correct": _score(row, how.scorer, where), "scorer": how.scorer, "answer": text, "prompt": prompt}
    line |= {"finish": response.get("finishReason"), **of_numbers(response.get("logProbs") or ())}
    if not response.get("cached"):  # a cached reply has not the model's latency and cost
        line |= {"cost": row.get("cost"), "seconds": amount_of(row.get("latencyMs"), 1000)}
    return line | used({ours: usage.get(name) for ours, name in _USAGE.items()}, prompt, [text])


def _identity(prompt: str, variables: Any) -> str:
    """Return a name of a prompt with its variables: a hash."""
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


HELM = Format(
    "helm",
    "HELM (scenario_state.json beside per_instance_stats.json)",
    lambda path, head: path.name == _STATE or holding(b"adapter_spec", b"request_states")(path, head),
    _read_run,
)

PROMPTFOO = Format("promptfoo", "promptfoo (results JSON)", holding(b"evalId", b"results"), _read_results)
