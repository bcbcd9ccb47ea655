"""Importers of runs of evaluation harnesses: Inspect AI, lm-evaluation-harness, HELM and promptfoo.

- Inspect AI: `.eval`, a ZIP of JSON files, and `.json`. A sample is one answer, and an epoch another answer to the same
  query. The user chooses among several scorers, or several values of a scorer. The tokens of graders do not count.
- lm-evaluation-harness: a line is one document under one filter. A multiple-choice line has the log-likelihood of every
  choice and, for mutual information, of every choice without the question. The rule of the metric gives the choice. A
  line of text has the replies before and after the filter.
- HELM: `scenario_state.json`, and beside it `per_instance_stats.json` with the scores. The two files are joined by
  instance, perturbation and trial. A perturbed question is a separate query.
- promptfoo: the output of `promptfoo eval -o results.json`. A result is one answer of a provider to a prompt with
  variables, which are the query. A result with an error is left out. Log-probabilities are numbers without tokens.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rcjax._base.extras import how_to_install
from rcjax.logs.errors import LogError
from rcjax.logs.importing.api_logs import (
    answer_or_key,
    confidence_of_choice,
    confidence_of_logprobs,
    confidence_of_tokens,
    count_tokens,
    format_prompt,
    read_messages,
    read_tool_calls,
)
from rcjax.logs.importing.lines import (
    DamageError,
    Format,
    ImportOptions,
    Line,
    holds_keys,
    not_as_written,
    read_document,
    read_lines,
    read_piece,
    read_pieces,
    require,
    require_sound,
    to_amount,
    tokens_or_estimate,
    without_confidence,
)
from rcjax.policy.decisions import canonical_answer
from rcjax.policy.signals import SignalError
from rcjax.policy.signals.answers import chosen_choice, hash_json
from rcjax.policy.signals.replies import NO_LOGPROB, TokensError, logprob_of, read_tokens
from rcjax.serving.completions import choice_text

try:  # newer versions of Inspect compress by Zstandard, which Python's own module reads from 3.14 on
    from backports.zstd import zipfile  # pyright: ignore[reportMissingImports]
except ImportError:
    import zipfile

# -- Inspect AI

_EMPTY = "holds no samples: was the run broken off, or were they not logged (log_samples)?"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

#: Inspect's letters for correct, partially correct, incorrect and no answer, as shares of the full score.
_LABELS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


def _is_inspect(path: Path, head: bytes) -> bool:
    """Return whether a file is a ZIP with Inspect's header, or JSON with Inspect's first keys."""
    if head.startswith(b"PK"):
        try:
            with zipfile.ZipFile(path) as archive:
                return bool({"header.json", "_journal/start.json"} & {*archive.namelist()})
        except (OSError, zipfile.BadZipFile):
            return path.suffix.lower() == ".eval"
    return head.lstrip().startswith(b"{") and b'"eval"' in head and b'"version"' in head


def _read_inspect(path: Path, options: ImportOptions) -> Iterator[Line | DamageError]:
    """Yield the lines of a log, one per sample and epoch."""
    head, samples = (_open_zip if path.suffix.lower() == ".eval" or zipfile.is_zipfile(path) else _open_json)(path)
    evaluation = None
    for sample in samples:
        if isinstance(sample, DamageError):
            yield sample
            continue
        evaluation = evaluation or _require_evaluation(head(), path.name)
        place = f"{path.name}, sample {sample.get('id')!r:.60}, epoch {sample.get('epoch', 1)}"
        yield from read_piece(place, "Inspect", partial(_read_inspect_sample, sample, evaluation, options, place))


def _require_evaluation(head: Any, place: str) -> Mapping[str, Any]:
    evaluation = head.get("eval") if isinstance(head, dict) else None
    fields = evaluation if isinstance(evaluation, dict) else {}
    require_sound(isinstance(fields.get("model"), str), place, "no evaluation of a model: is it a log of Inspect?")
    return fields


def _open_zip(path: Path) -> tuple[Any, Iterator[dict[str, Any] | DamageError]]:
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
        is_object = isinstance(sample, dict)
        return sample if is_object else not_as_written(f"{path.name}, {member}", "Inspect", "no JSON object")

    return head, map(sound, samples)


def _open_json(path: Path) -> tuple[Any, Iterator[dict[str, Any]]]:
    content = read_document(path, "Inspect")
    samples: Any = content.get("samples") if isinstance(content, dict) else None
    require_sound(isinstance(samples, list) and bool(samples), path.name, _EMPTY)
    return lambda: content, (sample if isinstance(sample, dict) else {} for sample in samples)


def _read_inspect_sample(
    sample: Mapping[str, Any], evaluation: Mapping[str, Any], options: ImportOptions, place: str
) -> list[Line]:
    """Return the line of a sample, in a list."""
    query = f"{evaluation.get('task')}/{sample['id']}"
    line = {"query": query, "model": evaluation["model"], "sample": int(sample.get("epoch", 1))}
    scores = _scores(sample.get("scores") or {})
    scorer = _choose_score(scores, options.scorer, place) if scores else None
    if sample.get("error"):
        return [line | {"error": "with an error"}]
    output = sample.get("output") or {}
    choice = (output.get("choices") or [{}])[0]
    content = (choice.get("logprobs") or {}).get("content") or []
    value, answer = (None, None) if scorer is None else scores[scorer]
    letters = tuple(_LETTERS[: len(sample.get("choices") or ())])
    value = options.score_max * _LABELS[value] if isinstance(value, str) and value in _LABELS else value
    line |= {"correct": value, "scorer": scorer}
    calls = read_tool_calls(_convert_calls(choice.get("message")))
    reply = calls or output.get("completion") or ""
    answer = calls or answer
    line |= {"finish": choice.get("stop_reason"), **answer_or_key(answer or reply, reply)}
    line |= {"prompt": format_prompt(read_messages(sample.get("input"))), "seconds": to_amount(output.get("time"))}
    usage = _usage(sample, evaluation)
    if "input_tokens" not in usage:
        usage |= tokens_or_estimate(None, None, line["prompt"] or None, [reply])
    return [
        line | usage | ({} if calls else _confidence_of_letter(content, reply or choice_text(choice), letters, answer))
    ]


def _convert_calls(message: Any) -> dict[str, Any]:
    """Return the tool calls of an Inspect message in the format of endpoints."""
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    named = [call for call in calls or () if isinstance(call, Mapping) and isinstance(call.get("function"), str)]
    tool_calls = [{"function": {"name": call["function"], "arguments": call.get("arguments")}} for call in named]
    return {"tool_calls": tool_calls}


def _scores(scores: Mapping[str, Any]) -> dict[str, tuple[Any, str | None]]:
    """Return (value, answer) by scorer, or by `scorer.name` if a scorer gives several values."""
    values: dict[str, tuple[Any, str | None]] = {}
    for scorer, score in scores.items():
        value, answer = score.get("value"), score.get("answer")
        if isinstance(value, dict):
            values |= {f"{scorer}.{name}": (part, answer) for name, part in value.items()}
        else:
            values[scorer] = value, answer
    return values


def _choose_score(scores: Mapping[str, Any], scorer: str | None, place: str) -> str:
    """Return the name of the score to use. Raises LogError if the user's choice is missing or wrong."""
    names = ", ".join(scores) or "none"
    if scorer is None:
        require(len(scores) == 1, place, f"has several scores, {names}: choose one, with --scorer (scorer=)")
        return next(iter(scores))
    require(scorer in scores, place, f"has no score {scorer!r}; there are {names}: choose one of them")
    return scorer


def _confidence_of_letter(content: Any, reply: str, letters: tuple[str, ...], answer: str | None) -> Line:
    """Compute the confidence from the tokens of a reply; for a choice, from the last token that is the choice."""
    if not letters:
        return confidence_of_tokens(content, reply)
    try:
        tokens = read_tokens(content, reply)
    except TokensError as problem:
        return without_confidence(problem.reason)
    except SignalError:
        return {}
    for token in reversed(tokens):
        if answer and token.text.strip(" .:,()*▁Ġ\n").casefold() == answer.casefold():
            return confidence_of_choice([token], letters, chosen_choice(answer, letters))
    return {}


def _usage(sample: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Line:
    """Return the tokens and the cost of the evaluated model, without its usage in other roles, such as a grader's."""
    model = evaluation["model"]
    total = (sample.get("model_usage") or {}).get(model)
    if not total:
        return {}
    roles = evaluation.get("model_roles") or {}
    other_roles = [
        usage
        for role, usage in (sample.get("role_usage") or {}).items()
        if any(settings.get("model") == model for settings in _as_list(roles.get(role)))
    ]

    def own_usage(field: str) -> float:
        return (total.get(field) or 0) - sum(usage.get(field) or 0 for usage in other_roles)

    cached, stored = own_usage("input_tokens_cache_read"), own_usage("input_tokens_cache_write")
    sent = own_usage("input_tokens") + cached + stored
    # Hidden reasoning may be in the total alone.
    written = max(own_usage("output_tokens"), own_usage("total_tokens") - sent)
    money = {} if total.get("total_cost") is None else {"cost": own_usage("total_cost")}
    counts = {"input_tokens": sent, "output_tokens": written, "cached_tokens": cached, "cache_write_tokens": stored}
    return (counts if sent else {}) | money  # no prompt has 0 tokens


def _as_list(value: Any) -> list[Mapping[str, Any]]:
    return value if isinstance(value, list) else [value] if isinstance(value, dict) else []


INSPECT = Format("inspect", "Inspect AI (.eval, .json)", _is_inspect, _read_inspect)


# -- HELM

_STATE, _STATS = "scenario_state.json", "per_instance_stats.json"

#: Metrics that serve as labels; the first metric present is used.
_HELM_METRICS = ("exact_match", "quasi_exact_match", "prefix_exact_match", "quasi_prefix_exact_match")


def _read_helm(path: Path, options: ImportOptions) -> Iterator[Line | DamageError]:
    """Yield the lines of a run, one per instance, perturbation and trial."""
    state = read_document(path, "HELM")
    stats_file = path.with_name(_STATS)
    require_sound(stats_file.is_file(), str(stats_file), f"is missing: {_STATE} and {_STATS} must be in one folder")
    stats = read_document(stats_file, "HELM")
    try:
        figures = {
            _helm_key(row): {
                stat["name"]["name"]: stat["mean"] for stat in row["stats"] if stat.get("mean") is not None
            }
            for row in stats
        }
        model, scenario = state["adapter_spec"]["model"], path.resolve().parent.name.partition(":")[0]
        requests = [*state["request_states"]]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as problem:
        raise not_as_written(path.name, "HELM", f"{problem!r:.80}") from None
    require_sound(bool(requests), path.name, "holds no requests")

    def lines(request: Mapping[str, Any], place: str) -> list[Line]:
        has_all_choices = request.get("reference_index") is None
        require(has_all_choices, place, "asks for one choice alone: run it again by the method multiple_choice_joint")
        instance = request["instance"]
        key = _helm_key({**request, "instance_id": instance["id"], "perturbation": instance.get("perturbation")})
        return [_read_helm_request(request, key, figures.get(key, {}), (model, scenario), options, place)]

    yield from read_pieces(requests, f"{path.name}, request", "HELM", lines)


def _helm_key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return the (instance, perturbation, trial) of a row."""
    perturbation = row.get("perturbation") or {}
    return str(row["instance_id"]), str(perturbation.get("name", "")), int(row.get("train_trial_index", 0))


def _read_helm_request(
    request: Mapping[str, Any],
    key: tuple[str, str, int],
    figures: Mapping[str, float],
    source: tuple[str, str],
    options: ImportOptions,
    place: str,
) -> Line:
    model, scenario = source
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
    line |= {"answer": text, "prompt": prompt, **tokens_or_estimate(*counts, prompt, [text])}
    line |= _read_metric(figures, options.scorer, place) if figures else {"correct": None}
    if not result.get("cached"):
        line["seconds"] = to_amount(result.get("request_time"))
    tokens = completion.get("tokens") or []
    if any(token.get("logprob") for token in tokens):  # HELM writes 0 for an unknown log-probability
        content = [{**token, "token": token["text"]} for token in tokens]
        line |= confidence_of_tokens(content, text, tuple(request.get("output_mapping") or ()))
    return line


def _failure(split: str | None, result: Mapping[str, Any]) -> str | None:
    """Return the reason why an answer is left out: an error, or a split other than test; None if the answer counts."""
    if split not in (None, "test"):
        return f"of the split {split}, not test"
    return None if result.get("success", True) else "with an error"


def _read_metric(figures: Mapping[str, float], scorer: str | None, place: str) -> dict[str, Any]:
    """Return the score of an answer and the name of its metric, as parts of its line."""
    if scorer is not None:
        return {"correct": figures[_choose_score(figures, scorer, place)], "scorer": scorer}
    present = [metric for metric in _HELM_METRICS if metric in figures]
    require(bool(present), place, f"has none of {', '.join(_HELM_METRICS)}: choose a figure, with --scorer (scorer=)")
    return {"correct": figures[present[0]], "scorer": present[0]}


# -- promptfoo

#: promptfoo's names of token counts, by OpenAI's.
_USAGE = {"prompt_tokens": "prompt", "completion_tokens": "completion", "total_tokens": "total"}

_ERROR = 2  # `failureReason` of a failed call; 1 is a failed assertion


def _read_promptfoo(path: Path, options: ImportOptions) -> Iterator[Line | DamageError]:
    """Yield the lines of a file; further answers of a provider to the same prompt are further samples."""
    content = read_document(path, "promptfoo")
    results = content.get("results") if isinstance(content, dict) else None
    rows: Any = results.get("results") if isinstance(results, dict) else None
    require_sound(isinstance(rows, list) and bool(rows), path.name, "holds no results")
    attempts: Counter[tuple[str, str]] = Counter()

    def numbered(row: Mapping[str, Any], place: str) -> list[Line]:
        line = _read_promptfoo_result(row, options, place)
        attempts[line["query"], line["model"]] += 1
        return [line | {"sample": attempts[line["query"], line["model"]]}]

    yield from read_pieces(rows, f"{path.name}, result", "promptfoo", numbered)


def _read_promptfoo_result(row: Mapping[str, Any], options: ImportOptions, place: str) -> Line:
    provider, response = row["provider"], row.get("response") or {}
    prompt, output = str(row["prompt"]["raw"]), response.get("output")
    line = {"query": hash_json([prompt, row.get("vars")]), "model": provider.get("label") or provider["id"]}
    if row.get("failureReason") == _ERROR:
        return line | {"error": "with an error"}
    text = output if isinstance(output, str) else None if output is None else json.dumps(output)
    usage = response.get("tokenUsage") or {}
    line |= {"correct": _score(row, options.scorer, place), "scorer": options.scorer, "answer": text, "prompt": prompt}
    line |= {"finish": response.get("finishReason"), **confidence_of_logprobs(response.get("logProbs") or ())}
    if not response.get("cached"):  # latency and cost of a cached reply are not the model's
        line |= {"cost": row.get("cost"), "seconds": to_amount(row.get("latencyMs"), 1000)}
    return line | count_tokens({api_name: usage.get(name) for api_name, name in _USAGE.items()}, prompt, [text])


def _score(row: Mapping[str, Any], scorer: str | None, place: str) -> Any:
    if scorer is None:
        return row["success"]
    overall = {} if row.get("score") is None else {"score": row["score"]}
    scores = overall | (row.get("namedScores") or {})
    return scores[_choose_score(scores, scorer, place)]


HELM = Format(
    "helm",
    "HELM (scenario_state.json beside per_instance_stats.json)",
    lambda path, head: path.name == _STATE or holds_keys(b"adapter_spec", b"request_states")(path, head),
    _read_helm,
)

PROMPTFOO = Format("promptfoo", "promptfoo (results JSON)", holds_keys(b"evalId", b"results"), _read_promptfoo)


# -- lm-evaluation-harness

_NAME = "lm-eval"

#: Preferred metrics for labels.
_LM_EVAL_METRICS = ("acc", "exact_match")

#: Metrics that are losses: lower is better.
_LOSSES = ("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "brier_score", "ter", "wer", "cer")

_DATED = re.compile(r"samples_(?P<task>.+?)(?:_(?P<date>\d{4}-\d\d-\d\dT[\d.:-]+))?$")


def _read_lm_eval(path: Path, options: ImportOptions) -> Iterator[Line | DamageError]:
    """Yield the lines of a file, one per document; damage if the file has neither a metric nor a filter `scorer`."""
    task, model, is_guess = _task_and_model(path)
    filters, metrics = dict[str, None](), dict[str, None]()

    def lines(row: Mapping[str, Any], place: str) -> list[Line]:
        filtered = str(row["filter"])
        filters[filtered] = None
        metrics.update(dict.fromkeys(_metrics(row)))
        if options.scorer not in (None, *_metrics(row), filtered):
            return []
        problem = f"each document stands there for several filters, {', '.join(filters)}"
        require(
            len(filters) == 1 or options.scorer in filters, place, f"{problem}: choose one, with --scorer (scorer=)"
        )
        line = {
            "query": f"{task}/{row['doc_id']}",
            "model": model,
            "sample": 1,
            "guessed_by": path.name if is_guess else None,
        }
        return [line | _read_lm_eval_document(row, options.scorer, place)]

    yield from read_lines(path, "lm-eval", lines)
    names = [*metrics, *filters]
    if names and options.scorer not in (None, *names):
        yield DamageError(f"{path.name}: has no metric or filter {options.scorer!r}; there are {', '.join(names)}")


def _task_and_model(path: Path) -> tuple[str, str, bool]:
    """Return (task, model, is the model a guess) of a file.

    The task is by the name of the file, the model by the results in its folder or, as a guess, the folder's name,
    ORG__MODEL.
    """
    match = _DATED.match(path.stem)
    task, date = (match["task"], match["date"]) if match else (path.stem, None)
    results = [path.with_name(f"results_{date}.json")] if date else []
    for file in [*results, *sorted(path.parent.glob("results_*.json"), reverse=True)]:
        try:
            model = json.loads(file.read_text("utf-8"))["model_name"]
        except (LookupError, OSError, RecursionError, TypeError, ValueError):
            continue
        if isinstance(model, str) and model:
            return task, model, False
    return task, path.resolve().parent.name.replace("__", "/"), True


def _metrics(row: Mapping[str, Any]) -> list[str]:
    return [metric for metric in row["metrics"] if metric in row]


def _read_lm_eval_document(row: Mapping[str, Any], scorer: str | None, place: str) -> Line:
    metrics = _metrics(row)
    preferred = [metric for metric in _LM_EVAL_METRICS if metric in metrics] or metrics[:1]
    require_sound(bool(preferred), place, "has no metric: lm-eval writes one, such as acc or exact_match")
    metric = str(scorer if scorer in metrics else preferred[0])
    problem = f"{metric} is a loss, not a score: choose another metric, with --scorer (scorer=)"
    require(metric not in _LOSSES, place, problem)
    prompt, replies = next(iter(_argument_texts(row.get("arguments"), 0)), None), row["filtered_resps"]
    line: Line = {"correct": row[metric], "scorer": metric, "prompt": prompt}
    first = replies[0] if replies and isinstance(replies[0], list | tuple) else ()
    if len(first) == 2 and str(first[1]) in ("True", "False"):  # (log-likelihood of a choice, is greedy)
        choice = choose_by_likelihood(
            replies, _argument_texts(row.get("arguments"), 1), metric, "acc_mutual_info" in metrics
        )
        return line | choice | tokens_or_estimate(None, None, prompt, [" "])
    texts: list[str | None] = (row["resps"][0] or [None]) if row.get("resps") else replies
    answer = replies[0] if replies and isinstance(replies[0], str) else None
    line |= answer_or_key(answer, texts[0]) if answer not in texts else {"answer": answer}
    if answer not in texts or len(texts) < 2:  # an extracted answer cannot be compared with unfiltered samples
        texts = texts[:1]
    return line | tokens_or_estimate(None, None, prompt, texts) | _confidence_of_votes(texts, answer)


def _confidence_of_votes(texts: Sequence[str | None], answer: str | None) -> Line:
    """Return the share of several replies that give the answer, as its confidence; {} for one reply or no answer.

    >>> _confidence_of_votes(["a", "b", " A", None], "a"), _confidence_of_votes(["[invalid]"] * 2, "[invalid]")
    ({'logprob': -0.69..., 'signal': 'lm-eval'}, {})
    """
    compared = canonical_answer(answer, "text")
    if len(texts) < 2 or compared is None:
        return {}
    same = sum(canonical_answer(text, "text") == compared for text in texts)
    return {"logprob": math.log(same / len(texts)), "signal": _NAME}


def _argument_texts(arguments: Any, argument: int) -> list[str | None]:
    """Return the argument of each request of a document at a position, 0 for the prompt; None where it is unknown."""
    requests = arguments.values() if isinstance(arguments, Mapping) else arguments or ()
    parts = [list(request.values()) if isinstance(request, Mapping) else request for request in requests]
    texts = [part[argument] if isinstance(part, Sequence) and len(part) > argument else None for part in parts]
    return [text if isinstance(text, str) else None for text in texts]


#: Length of a choice, by the metric that divides log-likelihoods by it.
_LENGTHS: Mapping[str, Callable[[str], int]] = {
    "acc_norm": len,
    "acc_bytes": lambda text: len(text.encode("utf-8", "surrogatepass")),
}


def choose_by_likelihood(
    replies: Sequence[Sequence[Any]], continuations: Sequence[str | None], metric: str, mutual: bool
) -> Line:
    """Return the choice that the log-likelihoods imply, and its log-probability among all choices.

    Args:
        replies: pairs that begin with the log-likelihood of a choice, one per choice; with `mutual`, followed by the
            pairs of the choices without the question.
        continuations: texts of the choices, each after its separator from the question; None for an unknown text.
        metric: grading metric. The choice has the largest log-likelihood, or the largest log-likelihood per character
            (`acc_norm`) or byte (`acc_bytes`), or the largest gain by the question (`acc_mutual_info`).
        mutual: whether the second half of the replies is without the question.

    Returns:
        The values `answer`, `logprob` and `signal` of a line, or `error` and `has_no_confidence`.

    >>> replies = [["-4.0", "False"], ["-6.0", "False"]]
    >>> choose_by_likelihood(replies, [" no", " certainly"], "acc_norm", False)["answer"]
    'B'
    """
    numbers = [_logprob(logprob) for logprob, _ in replies]
    likelihoods = [logprob for logprob in numbers if logprob is not None]
    number = len(numbers) // 2 if mutual else len(numbers)
    if len(likelihoods) < len(numbers) or max(likelihoods[:number], default=0.0) == -math.inf:
        return without_confidence(NO_LOGPROB)
    if number < 2:
        return without_confidence("the file has the likelihood of one choice alone")
    values = _metric_values(likelihoods, number, continuations, metric)
    if values is None:
        return without_confidence(f"{metric} needs the lengths of the choices, which the file does not have")
    likelihoods = likelihoods[:number]
    index = max(range(number), key=values.__getitem__)
    answer = chr(ord("A") + index) if index < 26 else str(index + 1)  # a number after the letters run out
    return {"answer": answer, "logprob": _normalise(likelihoods, index), "signal": _NAME}


def _logprob(value: Any) -> float | None:
    """Return a log-likelihood, which lm-eval writes as a text; None if it is invalid."""
    try:
        return logprob_of(float(value))
    except (TypeError, ValueError):
        return None


def _metric_values(
    likelihoods: Sequence[float], number: int, continuations: Sequence[str | None], metric: str
) -> list[float] | None:
    """Return the quantity that a metric maximises over the choices; None if it is unknown."""
    priors = likelihoods[number:]
    if metric == "acc_mutual_info" and len(priors) == number:
        pairs = zip(likelihoods, priors, strict=False)
        return [logprob if logprob == -math.inf else logprob - prior for logprob, prior in pairs]
    if metric not in _LENGTHS:
        return list(likelihoods[:number])
    texts = [text for text in continuations[:number] if text is not None]
    if len(texts) < number or None in continuations or len({*texts}) == 1:  # equal: the choices are in the questions
        return None
    separator = min((text[: len(text) - len(text.lstrip())] for text in texts), key=len)
    lengths = [_LENGTHS[metric](text.removeprefix(separator)) for text in texts]
    pairs = zip(likelihoods, lengths, strict=False)
    return [logprob / length if length else -math.inf for logprob, length in pairs]


def _normalise(likelihoods: Sequence[float], index: int) -> float:
    """Return the log-probability of a choice, normalised over all choices."""
    most = max(range(len(likelihoods)), key=likelihoods.__getitem__)
    others = [logprob for other, logprob in enumerate(likelihoods) if other != most]
    total = math.log1p(math.fsum(math.exp(logprob - likelihoods[most]) for logprob in others))
    return min(0.0, likelihoods[index] - likelihoods[most] - total)


LM_EVAL = Format(_NAME, "lm-evaluation-harness (samples_*.jsonl)", holds_keys(b"doc_id", b"resps"), _read_lm_eval)
