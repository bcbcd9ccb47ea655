"""Import logs of Inspect AI: `.eval`, a ZIP of JSON files, and `.json`.

A sample is one answer, and an epoch another answer to the same query. With several scorers, or several values of a
scorer, the user chooses one. Only the tokens of the evaluated model are counted, not those of graders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rcjax._base.extras import how_to_install
from rcjax.logs.errors import LogError
from rcjax.logs.importing.api_logs import calls_in, messages_of, of_choice, of_content, prompt_of, taken
from rcjax.logs.importing.lines import (
    DamageError,
    Format,
    How,
    Line,
    amount_of,
    document_of,
    pieces,
    require,
    require_sound,
    tokens_of,
    unread,
)
from rcjax.policy.signals import SignalError
from rcjax.policy.signals.answers import chosen_choice
from rcjax.policy.signals.replies import TokensError, read_tokens
from rcjax.serving.completions import choice_text

try:  # reads Zstandard, with which newer versions of Inspect compress; Python reads it from 3.14 on
    from backports.zstd import zipfile  # pyright: ignore[reportMissingImports]
except ImportError:
    import zipfile

_EMPTY = "holds no samples: was the run broken off, or were they not logged (log_samples)?"

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

#: Inspect's letters for correct, partially correct, incorrect and no answer, as shares of the full score.
_LABELS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


def _recognises(path: Path, head: bytes) -> bool:
    """Return whether a file is a ZIP with Inspect's header, or JSON that begins like Inspect's."""
    if head.startswith(b"PK"):
        try:
            with zipfile.ZipFile(path) as archive:
                return bool({"header.json", "_journal/start.json"} & {*archive.namelist()})
        except (OSError, zipfile.BadZipFile):
            return path.suffix == ".eval"
    return head.lstrip().startswith(b"{") and b'"eval"' in head and b'"version"' in head


def _read(path: Path, how: How) -> Iterator[Line | DamageError]:
    """Yield the lines of a log, one per sample and epoch."""
    head, samples = _zipped(path) if path.suffix == ".eval" or zipfile.is_zipfile(path) else _plain(path)
    evaluation = None
    for sample in samples:
        if isinstance(sample, DamageError):
            yield sample
            continue
        evaluation = evaluation or _evaluation(head(), path.name)
        where = f"{path.name}, sample {sample.get('id')!r:.60}, epoch {sample.get('epoch', 1)}"
        yield from pieces(
            where, "Inspect", lambda one=sample, run=evaluation, where=where: [_line(one, run, how, where)]
        )


def _evaluation(head: Any, where: str) -> Mapping[str, Any]:
    evaluation = head.get("eval") if isinstance(head, dict) else None
    fields = evaluation if isinstance(evaluation, dict) else {}
    require_sound(isinstance(fields.get("model"), str), where, "no evaluation of a model: is it a log of Inspect?")
    return fields


def _zipped(path: Path) -> tuple[Any, Iterator[dict[str, Any] | DamageError]]:
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as problem:
        raise DamageError(f"{path.name}: cannot be read: {problem}: is it whole?") from None
    names = archive.namelist()

    def parsed(member: str) -> Any:
        try:
            return json.loads(archive.read(member))
        except NotImplementedError:
            advice = how_to_install("import")
            raise LogError(f"{path.name}: is compressed by Zstandard: {advice}") from None
        except Exception as problem:  # from the archive, its compression or JSON
            raise DamageError(f"{path.name}, {member}: cannot be read: {problem}: is it whole?") from None

    def head() -> Any:  # an interrupted run has only the journal's start
        return parsed("header.json" if "header.json" in names else "_journal/start.json")

    samples = [member for member in names if member.startswith("samples/") and member.endswith(".json")]
    require_sound(bool(samples), path.name, _EMPTY)

    def sound(member: str) -> dict[str, Any] | DamageError:
        try:
            sample = parsed(member)
        except DamageError as damage:
            return damage
        odd = DamageError(f"{path.name}, {member}: is not as Inspect writes it (no JSON object): is it whole?")
        return sample if isinstance(sample, dict) else odd

    return head, map(sound, samples)


def _plain(path: Path) -> tuple[Any, Iterator[dict[str, Any]]]:
    content = document_of(path, "Inspect")
    samples: Any = content.get("samples") if isinstance(content, dict) else None
    require_sound(isinstance(samples, list) and bool(samples), path.name, _EMPTY)
    return lambda: content, (sample if isinstance(sample, dict) else {} for sample in samples)


def _line(sample: Mapping[str, Any], evaluation: Mapping[str, Any], how: How, where: str) -> Line:
    query = f"{evaluation.get('task')}/{sample['id']}"
    line = {"query": query, "model": evaluation["model"], "sample": int(sample.get("epoch", 1))}
    scores = _scores(sample.get("scores") or {})
    scorer = _chosen(scores, how.scorer, where) if scores else None
    if sample.get("error"):
        return line | {"error": "with an error"}
    output = sample.get("output") or {}
    first = (output.get("choices") or [{}])[0]
    content = (first.get("logprobs") or {}).get("content") or []
    value, answer = (None, None) if scorer is None else scores[scorer]
    offered = tuple(_LETTERS[: len(sample.get("choices") or ())])
    line |= {"correct": _score(value, how.score_max), "scorer": scorer}
    calls = calls_in(_with_functions(first.get("message")))
    reply = calls or output.get("completion") or ""
    answer = calls or answer
    line |= {"finish": first.get("stop_reason"), **taken(answer or reply, reply)}
    line |= {"prompt": prompt_of(messages_of(sample.get("input"))), "seconds": amount_of(output.get("time"))}
    usage = _usage(sample, evaluation)
    if "input_tokens" not in usage:
        usage |= tokens_of(None, None, line["prompt"] or None, [reply])
    return line | usage | ({} if calls else _confidence(content, reply or choice_text(first), offered, answer))


def _with_functions(message: Any) -> dict[str, Any]:
    """Return the tool calls of an Inspect message in the format of endpoints."""
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    named = [call for call in calls or () if isinstance(call, Mapping) and isinstance(call.get("function"), str)]
    made = [{"function": {"name": call["function"], "arguments": call.get("arguments")}} for call in named]
    return {"tool_calls": made}


def _score(value: Any, most: float) -> Any:
    """Convert one of Inspect's letters to a number; other scores are returned unchanged."""
    return most * _LABELS[value] if isinstance(value, str) and value in _LABELS else value


def _scores(scores: Mapping[str, Any]) -> dict[str, tuple[Any, str | None]]:
    """Return (value, answer) by scorer, or by `scorer.name` if a scorer gives several values."""
    values: dict[str, tuple[Any, str | None]] = {}
    for scorer, score in scores.items():
        value, answer = score.get("value"), score.get("answer")
        parts = {f"{scorer}.{part}": one for part, one in value.items()} if isinstance(value, dict) else {scorer: value}
        values |= {label: (one, answer) for label, one in parts.items()}
    return values


def _chosen(scores: Mapping[str, tuple[Any, str | None]], scorer: str | None, where: str) -> str:
    """Return the name of the score to use. Raises LogError if the choice is missing or wrong."""
    names = ", ".join(scores)
    if scorer is None:
        require(len(scores) == 1, where, f"has several scores, {names}: choose one, with --scorer (scorer=)")
        return next(iter(scores))
    require(scorer in scores, where, f"has no score {scorer!r}; there are {names}: choose one of them")
    return scorer


def _confidence(content: Any, reply: str, offered: tuple[str, ...], answer: str | None) -> Line:
    """Compute the confidence from the tokens of a reply; for a choice, from the last token that names it.

    Text such as "ANSWER: " may precede the choice.
    """
    if not offered:
        return of_content(content, reply)
    try:
        tokens = read_tokens(content, reply)
    except TokensError as problem:
        return unread(problem.why)
    except SignalError:
        return {}
    for token in reversed(tokens):
        if answer and token.text.strip(" .:,()*▁Ġ\n").casefold() == answer.casefold():
            return of_choice([token], offered, chosen_choice(answer, offered))
    return {}


def _usage(sample: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Line:
    """Return the tokens and the cost of the evaluated model, without its usage in other roles, such as grader."""
    model = evaluation["model"]
    total = (sample.get("model_usage") or {}).get(model)
    if not total:
        return {}
    roles = evaluation.get("model_roles") or {}
    others = [
        usage
        for role, usage in (sample.get("role_usage") or {}).items()
        if any(other.get("model") == model for other in _listed(roles.get(role)))
    ]

    def used(field: str) -> float:
        return (total.get(field) or 0) - sum(other.get(field) or 0 for other in others)

    cached, stored = used("input_tokens_cache_read"), used("input_tokens_cache_write")
    sent = used("input_tokens") + cached + stored
    written = max(used("output_tokens"), used("total_tokens") - sent)  # hidden reasoning may be in the total only
    money = {} if total.get("total_cost") is None else {"cost": used("total_cost")}
    counts = {"input_tokens": sent, "output_tokens": written, "cached_tokens": cached, "cache_write_tokens": stored}
    return (counts if sent else {}) | money  # no prompt has 0 tokens


def _listed(value: Any) -> list[Mapping[str, Any]]:
    return value if isinstance(value, list) else [value] if isinstance(value, dict) else []


INSPECT = Format("inspect", "Inspect AI (.eval, .json)", _recognises, _read)
