"""Requests and replies in the formats of APIs, and logs of calls: LiteLLM's, and OpenAI's batches.

The logs are JSON Lines or arrays, without labels. The name of a query is a hash of its messages, tools and schema; in
a batch it is the `custom_id`, which must be the same in the batches of all models.

- LiteLLM: standard logging payloads, from its callbacks and its proxy, and the proxy's spend logs (`/spend/logs`) if
  they store prompts. A payload is one call. The model's name is the requested name, if possible the proxy's own.
- OpenAI's batches: their output, one line per request, with the body of the response or an error. The model's name is
  in the body; prompts are only in the file of requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rcjax.logs.columns import CACHED, TOKENS
from rcjax.logs.importing.lines import (
    DamageError,
    Format,
    ImportOptions,
    Line,
    holds_keys,
    read_lines,
    require_sound,
    to_amount,
    tokens_or_estimate,
    without_confidence,
)
from rcjax.policy.decisions import canonical_answer
from rcjax.policy.signals import SignalError, Token, mean_logprob
from rcjax.policy.signals.answers import (
    INVALID_MARK,
    NO_CALL,
    canonical_calls,
    chosen_choice,
    format_calls,
    hash_json,
    request_form_of,
)
from rcjax.policy.signals.replies import NO_LOGPROB, TokensError, logprob_of, read_tokens, token_content
from rcjax.policy.signals.signal import choice_logprob
from rcjax.serving.completions import choice_text, read_json
from rcjax.serving.failures import body_failure, choice_failure, finish_reason_of
from rcjax.serving.usage import reported_tokens


def confidence_of_tokens(content: Any, text: str, choices: Sequence[str] = ()) -> Line:
    """Compute the confidence of a reply from its tokens: the probability of a choice or, without choices, the mean.

    >>> confidence_of_tokens([{"token": "Par", "logprob": -0.25}, {"token": "is", "logprob": -0.75}], "Paris")
    {'logprob': -0.5, 'signal': 'mean'}
    >>> confidence_of_tokens([{"token": "Paris", "logprob": 0.5}], "Paris")
    {'error': 'a log-probability is missing, NaN or above 0', 'has_no_confidence': True}
    """
    try:
        tokens = read_tokens(content, text)
    except TokensError as problem:
        return without_confidence(problem.reason)
    except SignalError:
        return {}
    return confidence_of_choice(tokens, choices, chosen_choice(text, choices)) if choices else _mean(tokens)


def confidence_of_choice(tokens: Sequence[Token], choices: Sequence[str], chosen: str | None) -> Line:
    """Return the log-probability of the choice `chosen`; {} if unknown."""
    try:
        _, logprob = choice_logprob(tokens, choices, chosen)
    except SignalError:
        return {}
    return {"logprob": logprob, "signal": "choice"}


def confidence_of_logprobs(logprobs: Sequence[Any]) -> Line:
    """Return the mean of log-probabilities without tokens; {} if there is none.

    >>> confidence_of_logprobs([-0.25, -0.75]), confidence_of_logprobs([])
    ({'logprob': -0.5, 'signal': 'mean'}, {})
    """
    numbers = [logprob_of(logprob) for logprob in logprobs]
    tokens = [Token("", number) for number in numbers if number is not None]
    if len(tokens) < len(numbers):
        return without_confidence(NO_LOGPROB)
    return _mean(tokens) if tokens else {}


def _mean(tokens: Sequence[Token]) -> Line:
    return {"logprob": mean_logprob(tokens), "signal": "mean"}


def read_messages(prompt: Any) -> list[tuple[str, str]]:
    """Return (role, text) of each message, from a text, a message or a list of messages.

    Other parts of a message, such as an image or a tool call, become JSON in the text, to distinguish queries.

    >>> read_messages([{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]), read_messages("Who?")
    ([('user', 'Who?')], [('user', 'Who?')])
    """
    if isinstance(prompt, str):
        return [("user", prompt)] if prompt else []
    messages = prompt if isinstance(prompt, Sequence) else [prompt] if isinstance(prompt, Mapping) and prompt else []
    parts = [m if isinstance(m, Mapping) else {"content": m} for m in messages]
    texts = [filter(None, [_join_text(part.get("content")), read_tool_calls(part)]) for part in parts]
    return [(str(part.get("role") or "user"), "\n".join(text)) for part, text in zip(parts, texts, strict=True)]


def read_tool_calls(message: Any) -> str | None:
    """Return the tool calls of a message as the text of an answer; None without any.

    >>> read_tool_calls({"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"x": 1.0}'}}]})
    '[{"arguments":{"x":1},"name":"f"}]'
    """
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    return _write_calls([call for call in calls if isinstance(call, Mapping)]) if isinstance(calls, list) else None


def _write_calls(calls: Sequence[Mapping[str, Any]]) -> str | None:
    """Return tool calls in canonical form, malformed calls with a mark; None without any calls."""
    return (canonical_calls(calls) or INVALID_MARK + format_calls(calls)) if calls else None


def _join_text(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    texts = []
    for part in content if isinstance(content, Sequence) else [content]:
        typed = isinstance(part, Mapping) and part.get("type") in (None, "text", "input_text", "output_text")
        text = part.get("text") if typed else part
        texts.append(text if isinstance(text, str) else json.dumps(part, sort_keys=True, default=str))
    return "\n".join(texts)


def decode_json(value: Any) -> Any:
    """Decode a value that may be JSON in a text; other values are returned unchanged.

    >>> decode_json('[{"role": "user"}]'), decode_json("[sic]")
    ([{'role': 'user'}], '[sic]')
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        decoded = read_json(value)
        return value if decoded is None else decoded
    return value


def format_prompt(messages: Sequence[tuple[str, str]]) -> str:
    """Return the prompt for a human reader: the message, or several messages with their roles.

    >>> format_prompt([("system", "Be brief."), ("user", "Who?")]), format_prompt([("user", "Who?")])
    ('system: Be brief.\\nuser: Who?', 'Who?')
    """
    if len(messages) == 1:
        return messages[0][1]
    return "\n".join(f"{role}: {text}" for role, text in messages)


def read_replies(body: Mapping[str, Any], line: Line, *, tools: bool = False) -> list[Line]:
    """Return the lines of a reply of OpenAI's API (chat completions, completions, responses), one per choice.

    The choices share the values of `line`, its cost and the tokens. If the request offers tools, a reply without a call
    is the answer "no call".
    """
    choices = body.get("choices", [])
    if body_failure(body) is not None:
        return [line | {"error": "with an error"}]
    if "output" not in body and not (choices and isinstance(choices, list)):
        raise DamageError("the reply has neither choices nor output: OpenAI's API always sends one")
    if "output" in body:
        parts = [_read_response(body)]
        called = [_write_calls([item for item in body["output"] if item.get("type") == "function_call"])]
    else:
        parts = [_without_echo(_read_completion(choice), body) for choice in choices]
        called = [read_tool_calls(choice.get("message")) for choice in choices]
    replies = [
        {"answer": calls or (NO_CALL if tools and text else text), "finish": finish}
        | (confidence_of_tokens(content, text) if content and text and not (calls or tools) else {})
        for (text, content, finish), calls in zip(parts, called, strict=True)
    ]
    tokens = count_tokens(body.get("usage") or {}, line.get("prompt"), [text for text, *_ in parts])
    return _divide([line | tokens | (reply if reply["answer"] else reply | _UNANSWERED) for reply in replies])


def count_tokens(usage: Mapping[str, Any], prompt: str | None, texts: Sequence[str | None]) -> Line:
    """Return the tokens in the usage of a request, under an API's names; without them, an estimate from the texts.

    >>> count_tokens({"prompt_tokens": 0, "completion_tokens": 0}, "What is it? ", ["It is B."])
    {'input_tokens': 3, 'output_tokens': 2, 'estimated': True}
    """
    tokens = reported_tokens(usage)
    if tokens is None:
        return tokens_or_estimate(None, None, prompt, ["".join(filter(None, texts))])
    caches = {name: number for name, number in zip(CACHED, tokens[2:], strict=True) if number}
    return dict(zip(TOKENS, tokens, strict=False)) | caches


def answer_or_key(answer: str | None, reply: str | None) -> Line:
    """Return a scorer's extracted answer as `answer` if the reply says the same, else as `answer_key`.

    >>> answer_or_key("B", "ANSWER: B"), answer_or_key("42", "It is 42, I think.")
    ({'answer': 'B'}, {'answer_key': '42'})
    """
    same = not reply or canonical_answer(answer, "choice") in (None, canonical_answer(reply, "choice"))
    return {"answer": answer} if same else {"answer_key": answer}


#: Values of the line of an empty reply.
_UNANSWERED = {"answer": None, "error": "without a text"}


def _divide(lines: list[Line]) -> list[Line]:
    """Divide the tokens (in whole numbers) and the cost of a request among its answers.

    >>> [line["input_tokens"] for line in _divide([{"input_tokens": 7}, {"input_tokens": 7}])]
    [4, 3]
    """
    n = len(lines)
    for number, line in enumerate(lines if n > 1 else ()):
        for name in (*TOKENS, *CACHED):
            if line.get(name) is not None:
                line[name] = (int(line[name]) + n - 1 - number) // n
        if line.get("cost") is not None:
            line["cost"] /= n
    return lines


def _read_completion(choice: Mapping[str, Any]) -> tuple[str, Any, str | None]:
    """Return (text, tokens, finish reason) of a choice of a chat completion or a completion."""
    content = token_content(choice.get("logprobs"))
    finish = finish_reason_of(choice) if choice_failure(choice) is None else finish_reason_of(choice) or "error"
    text = choice_text(choice) if "message" in choice else choice.get("text") or ""
    return text, content, finish


def _without_echo(part: tuple[str, Any, str | None], body: Mapping[str, Any]) -> tuple[str, Any, str | None]:
    """Remove the prompt from a completion that repeats the prompt, whose first token has no log-probability."""
    _, content, finish = part
    tokens = reported_tokens(body.get("usage"))
    echoes = content and tokens is not None and content[0]["logprob"] is None and tokens.output < len(content)
    if not echoes or tokens is None:
        return part
    content = content[len(content) - tokens.output :]
    return "".join(token["token"] for token in content), content, finish


def _read_response(body: Mapping[str, Any]) -> tuple[str, Any, str | None]:
    """Return (text, tokens, finish reason) of the messages of a response, without reasoning and tool calls."""
    messages = [item for item in body["output"] if item.get("type") == "message"]
    parts = [part for item in messages for part in item.get("content") or () if part.get("type") == "output_text"]
    content = [token for part in parts for token in part.get("logprobs") or ()]
    reason = (body.get("incomplete_details") or {}).get("reason")
    status = body.get("status") if body.get("status") in ("failed", "cancelled") else None
    finish = "length" if reason == "max_output_tokens" else reason or status or ("stop" if parts else None)
    return "".join(part.get("text") or "" for part in parts), content, finish


def _make_reader(
    program: str, lines: Callable[[Mapping[str, Any], str | None, str], Iterable[Line]]
) -> Callable[[Path, ImportOptions], Iterator[Line | DamageError]]:
    """Return the reader of a program's files; `lines(object, path of the query's name, place)` reads one object."""

    def read(path: Path, options: ImportOptions) -> Iterator[Line | DamageError]:
        query = options.columns.get("query")
        return read_lines(path, program, lambda record, place: lines(record, query, place))

    return read


# -- LiteLLM

_TEXTS = ("completion", "text_completion", "responses", "anthropic_messages")
_REDACTED = "redacted-by-litellm"


def _read_payload(record: Mapping[str, Any], query: str | None, place: str) -> list[Line]:
    payload = record.get("standard_logging_object", record)
    request = decode_json(payload.get("proxy_server_request")) or {}
    messages = read_messages(decode_json(payload.get("messages")) or request.get("messages"))
    parameters = decode_json(payload.get("model_parameters")) or {}
    options = {**request, **{name: value for name, value in parameters.items() if value}}
    query_name = hash_json([messages, request_form_of((), options)]) if query is None else _look_up(payload, query)
    require_sound(query_name is not None, place, f"no value at {query}, which is to be the name of the query")
    line = {"query": str(query_name), "model": payload.get("model_group") or payload["model"]}
    failure = _failure(payload, messages)
    if failure is not None:
        return [line | {"error": failure}]
    line["prompt"] = format_prompt(messages)
    if str(payload.get("cache_hit")).lower() != "true":  # latency and cost of a cached reply are not the model's
        line |= {"cost": _cost(payload), "seconds": _duration(payload)}
    return read_replies(decode_json(payload["response"]), line, tools=bool(options.get("tools")))


def _failure(payload: Mapping[str, Any], messages: list[tuple[str, str]]) -> str | None:
    """Return the reason why a call has no answer; None if it may have an answer."""
    kind = str(payload["call_type"])
    if payload.get("status") not in ("success", None):
        return "with an error"
    if kind.removeprefix("a") not in _TEXTS and kind not in _TEXTS:
        return f"of another kind of call ({kind})"
    if any(text == _REDACTED for _, text in messages) or _REDACTED in str(payload.get("response"))[:200]:
        return "redacted (turn_off_message_logging)"
    return None if messages else "without messages (spend logs have them with store_prompts_in_spend_logs: true)"


def _cost(payload: Mapping[str, Any]) -> float | None:
    """Return the cost of a call; None if LiteLLM could not compute it."""
    cost = payload.get("response_cost", payload.get("spend"))
    if cost is None or (not cost and payload.get("response_cost_failure_debug_info")):
        return None
    return float(cost)


def _duration(payload: Mapping[str, Any]) -> float | None:
    """Return the seconds from the start of a call to its end. (`response_time` of a stream ends at its first token.)"""
    begin, end = payload.get("startTime"), payload.get("endTime")
    if isinstance(begin, str) and isinstance(end, str):
        return to_amount((datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds())
    if isinstance(begin, int | float) and isinstance(end, int | float):
        return to_amount(end - begin)
    return to_amount(payload.get("response_time"))


def _look_up(record: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path of names joined by dots; None if there is none.

    >>> _look_up({"metadata": {"my.id": 7}}, "metadata.my.id"), _look_up({}, "metadata")
    (7, None)
    """
    if path in record:
        return record[path]
    names = path.split(".")
    for end in range(1, len(names)):
        inner = record.get(".".join(names[:end]))
        value = _look_up(inner, ".".join(names[end:])) if isinstance(inner, Mapping) else None
        if value is not None:
            return value
    return None


# -- OpenAI's batches


def _read_batch_request(record: Mapping[str, Any], query: str | None, place: str) -> list[Line]:
    response = record["response"] or {}
    body = response.get("body") or {}
    line = {"query": str(record["custom_id"]), "model": str(body.get("model") or "?")}
    if record.get("error") or response.get("status_code") != 200 or body_failure(body) is not None:
        return [line | {"error": "with an error"}]
    if "choices" not in body and "output" not in body:
        return [line | {"error": f"of another kind of call ({body.get('object')})"}]
    return read_replies(body, line)


def _is_litellm(path: Path, head: bytes) -> bool:
    money = b'"response_cost"' in head or b'"spend"' in head
    return money and holds_keys(b"call_type", b"model_group")(path, head)


LITELLM = Format(
    "litellm", "LiteLLM (standard logging payloads, spend logs)", _is_litellm, _make_reader("LiteLLM", _read_payload)
)

BATCHES = Format(
    "openai-batch",
    "OpenAI's batches (their output)",
    holds_keys(b"custom_id", b"response", b"error"),
    _make_reader("OpenAI", _read_batch_request),
)
