"""Runs of HELM: `scenario_state.json`, and beside it `per_instance_stats.json`, which holds the scores.

They are joined by the instance, its perturbation and the trial. A perturbed question is a question of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rcjax.importing.chats import of_content
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

name, files = "helm", "HELM (scenario_state.json beside per_instance_stats.json)"

_STATE, _STATS = "scenario_state.json", "per_instance_stats.json"

#: What tells right from wrong, the first of these that there is.
_METRICS = ("exact_match", "quasi_exact_match", "prefix_exact_match", "quasi_prefix_exact_match")


def recognises(path: Path, head: bytes) -> bool:
    """The state of a scenario: JSON that begins with an adapter."""
    return path.name == _STATE or all(key in head for key in (b'"adapter_spec"', b'"request_states"'))


def read(path: Path, how: How) -> Iterator[Line | DamageError]:
    """The lines of a run, one per instance, perturbation and trial."""
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
        return [_line(request, key, figures.get(key, {}), (model, scenario), how, where)]

    for number, request in enumerate(requests, 1):
        where = f"{path.name}, request {number}"
        yield from pieces(where, "HELM", lambda request=request, where=where: lines(request, where))


def _key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """(instance, perturbation, trial)."""
    perturbation = row.get("perturbation") or {}
    return str(row["instance_id"]), str(perturbation.get("name", "")), int(row.get("train_trial_index", 0))


def _means(stats: list[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each figure of an instance."""
    return {stat["name"]["name"]: stat["mean"] for stat in stats if stat.get("mean") is not None}


def _line(
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
    failure = _failure((request.get("instance") or {}).get("split"), how.split, result)
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
    if not any(token.get("logprob") for token in content):  # HELM writes 0 for what a model did not tell
        return {}
    return of_content([{**token, "token": token["text"]} for token in content], text, offered)


def _failure(split: str | None, wanted: str, result: Mapping[str, Any]) -> str | None:
    """Why an answer does not count: its instance is of another split, as its accuracy has it, or there was an error."""
    if split not in (None, wanted):
        return f"of the split {split}, not {wanted} (--split)"
    return None if result.get("success", True) else "with an error"


def _scored(figures: Mapping[str, float], scorer: str | None, where: str) -> dict[str, Any]:
    """The score of an answer, and by which figure it is: parts of its line."""
    if scorer is not None:
        require(scorer in figures, where, f"has no figure {scorer!r}; there are {', '.join(figures)}")
        return {"correct": figures[scorer], "scorer": scorer}
    usual = [metric for metric in _METRICS if metric in figures]
    require(bool(usual), where, f"has none of {', '.join(_METRICS)}: choose a figure, with --scorer (scorer=)")
    return {"correct": figures[usual[0]], "scorer": usual[0]}
