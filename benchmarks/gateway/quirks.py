"""Replies as providers send them, each with what it must come to: an answer, a failed call, or one that is held back.

Written for this benchmark by the documentation of each provider, none of it copied. The question is whether A or B;
the answer is B, with a probability of .97. `benchmarks.replies` plays them against all that reads replies.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]

SURE = math.log(0.97)
READ, WRITTEN = 40, 2  # tokens of a call

USAGE = {"prompt_tokens": READ, "completion_tokens": WRITTEN, "total_tokens": READ + WRITTEN}
TOKENS = {"content": [{"token": "B", "logprob": SURE, "bytes": [66], "top_logprobs": []}]}
TOKENS["content"][0]["top_logprobs"] = [
    {"token": "B", "logprob": SURE, "bytes": [66]},
    {"token": "A", "logprob": math.log(0.03), "bytes": [65]},
]
_HEAD = {"id": "1", "created": 1, "model": "m"}
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Quirk:
    """A reply, whole and as the events of a stream, and what it must come to."""

    source: str
    """Whose it is, and where that is documented."""
    whole: Json | bytes | None
    """None: it comes in streams alone."""
    events: Sequence[Json | bytes] | None
    """Objects, each of which is sent as an event, and bytes as they are; None: it comes whole alone."""
    outcome: str = "answer"
    """"answer", "failed": the next model is asked; or "held back": the next model is asked, and where no other answers
    the client gets it with its finish reason."""
    tokens: tuple[int, int] | None = (READ, WRITTEN)
    """That were read and written; None: the reply does not tell."""
    cost: float | None = None
    """Money that the reply tells; None: prices count."""


def whole(text: str = "B", finish: Any = "stop", *, usage: Any = USAGE, logprobs: Any = TOKENS, **more: Any) -> Json:
    """A completion; fields besides are of its choice."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}
    return {**_HEAD, "object": "chat.completion", "choices": [{**choice, **more}], "usage": usage}


def chunk(text: Any = None, finish: Any = None, *, logprobs: Any = None, **more: Any) -> Json:
    """A chunk of a completion; fields besides are of its choice."""
    delta = {} if text is None else {"role": "assistant", "content": text}
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return {**_HEAD, "object": "chat.completion.chunk", "choices": [{**choice, **more}]}


_SAID = chunk("B", logprobs=TOKENS)
_STOP, _COUNTED = chunk(finish="stop"), {**_HEAD, "choices": [], "usage": USAGE}
_REST = (_STOP, _COUNTED, _DONE)

#: A reply without any quirk.
GOOD = Quirk("OpenAI, The chat completion", whole(), (_SAID, *_REST))


def _ended(finish: Any, outcome: str, source: str, **more: Any) -> Quirk:
    """A reply with some text that ends so; fields besides are of its choice."""
    ends = (_SAID, chunk(finish=finish, **more), _COUNTED, _DONE)
    return Quirk(source, whole(finish=finish, **more), ends, outcome)


def _between(source: str, *events: Json | bytes) -> Quirk:
    """An answer with these events before, within and after it."""
    return Quirk(source, None, (*events, _SAID, *events, _STOP, *events, _COUNTED, _DONE))


def _error(source: str, body: Json, event: bytes | None = None) -> Quirk:
    """An error in place of an answer, and within a stream."""
    return Quirk(source, body, (_SAID, body if event is None else event), "failed", None)


#: Failures that a reply tells inside, streams without an end, and events that say nothing.
FAILURES = {
    "error in the choice": _ended(
        "error", "failed", "OpenRouter, Errors and debugging", error={"code": 502, "message": "Provider disconnected"}
    ),
    "error beside the choice": Quirk(
        "OpenRouter, Errors and debugging: in the midst of a stream",
        {**whole(finish="error"), "error": {"code": "server_error", "message": "no"}},
        (_SAID, {**chunk("", "error"), "error": {"code": "server_error", "message": "Provider disconnected"}}),
        "failed",
        None,
    ),
    "finish_reason error": _ended("error", "failed", "Mistral, API: finish_reason"),
    "finish_reason network_error": _ended("network_error", "failed", "Zhipu GLM, Chat completion: finish_reason"),
    "finish_reason malformed_function_call": _ended(
        "malformed_function_call", "failed", "Gemini, FinishReason; lower case by OpenAI-compatible gateways"
    ),
    "finish_reason content_filter": _ended("content_filter", "held back", "OpenAI and Azure, The chat completion"),
    "finish_reason recitation": _ended("recitation", "held back", "Gemini, FinishReason"),
    "an error_code within a stream": _error(
        "FastChat, protocol: ErrorCode", {"text": "**NETWORK ERROR**", "error_code": 50001}
    ),
    "an object error": _error(
        "vLLM, OpenAI-compatible server: ErrorResponse",
        {"object": "error", "message": "out of memory", "type": "InternalServerError", "code": 500},
    ),
    "an event error": Quirk(
        "LM Studio and Anthropic: event: error",
        None,
        (_SAID, b'event: error\ndata: {"message": "overloaded"}\n\n'),
        "failed",
        None,
    ),
    "an event error that is no JSON": Quirk(
        "servers by sse-starlette", None, (_SAID, b"event: error\ndata: Internal Server Error\n\n"), "failed", None
    ),
    "[DONE] without a finish_reason": Quirk("vLLM and TGI whose engine dies", None, (_SAID, _COUNTED, _DONE), "failed"),
    "no end at all": Quirk("a connection that ends well in the middle", None, (_SAID,), "failed", None),
    "null between chunks": _between("Go's omitempty: data: null", b"data: null\n\n"),
    "empty objects between chunks": _between("one-api relays", b"data: {}\n\n", b"data:\n\n", b"data: []\n\n"),
    "finish_reason length": _ended("length", "answer", "OpenAI: an answer cut short"),
}


def _priced(source: str, bill: float | None, /, **told: Any) -> Quirk:
    """A reply whose usage tells this besides, and costs so much by it."""
    usage = {**USAGE, **told}
    ends = (_SAID, _STOP, {**_COUNTED, "usage": usage}, _DONE)
    return Quirk(source, whole(usage=usage), ends, "answer", cost=bill)


_TOLD = {"request_cost": 0.005, "total_cost": 0.02, "input_tokens_cost": 0.01, "output_tokens_cost": 0.005}

#: Bills.
BILLS = {
    "cost as an object": _priced("Perplexity, Chat completions: usage.cost.total_cost", 0.02, cost=_TOLD),
    "cost as a text": _priced("relays that keep decimals as texts", 0.02, cost="0.02"),
    "cost": _priced("OpenRouter, Usage accounting", 0.02, cost=0.02),
    "cost with a key of one's own": _priced(
        "OpenRouter, Usage accounting: is_byok",
        0.02,
        cost=0.001,
        is_byok=True,
        cost_details={"upstream_inference_cost": 0.019},
    ),
}

_CACHED = {"prompt_cache_hit_tokens": 30, "prompt_cache_miss_tokens": 10}
_THINKING = [{"type": "thinking", "thinking": [{"type": "text", "text": "A?"}]}, {"type": "text", "text": "B"}]
_OLD = {"tokens": ["B"], "token_ids": [7], "token_logprobs": [SURE], "top_logprobs": [{"B": SURE, "A": -3.5}]}

#: What else providers document.
PROVIDERS = {
    "MiniMax: base_resp": _error(
        "MiniMax, Text API: base_resp.status_code, choices null",
        {"id": "1", "choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}},
    ),
    "MiniMax: base_resp of an answer": Quirk(
        "MiniMax, Text API: base_resp.status_code 0",
        {**whole(), "base_resp": {"status_code": 0, "status_msg": ""}},
        (_SAID, {**_STOP, "base_resp": {"status_code": 0, "status_msg": ""}}, _COUNTED, _DONE),
    ),
    "Zhipu: sensitive": _ended("sensitive", "held back", "Zhipu GLM, Chat completion: finish_reason"),
    "DeepSeek: insufficient_system_resource": _ended(
        "insufficient_system_resource", "failed", "DeepSeek, Create chat completion: finish_reason"
    ),
    "Gemini: SAFETY in capitals": _ended("SAFETY", "held back", "Gemini, FinishReason, passed on as it is"),
    "Gemini: two words": _ended("content_filter: RECITATION", "held back", "Gemini, OpenAI compatibility"),
    "Gemini: OTHER": _ended("OTHER", "failed", "Gemini, FinishReason"),
    "Bedrock: guardrail_intervened": _ended("guardrail_intervened", "held back", "Bedrock, Converse: stopReason"),
    "Cohere: COMPLETE": _ended("COMPLETE", "answer", "Cohere, Chat: finish_reason"),
    "Cohere: ERROR_TOXIC": _ended("ERROR_TOXIC", "held back", "Cohere, Chat: finish_reason"),
    "SGLang: abort as an object": _ended(
        {"type": "abort", "message": "out of memory", "status_code": 500}, "failed", "SGLang, finish_reason"
    ),
    "vLLM: abort": _ended("abort", "failed", "vLLM, FinishReason"),
    "Mistral: model_length": _ended("model_length", "answer", "Mistral, Chat: finish_reason"),
    "DashScope: null as a text": Quirk(
        "DashScope, Qwen: finish_reason is the text null until the end",
        None,
        (chunk("B", "null", logprobs=TOKENS), chunk("", "null"), *_REST),
    ),
    "DashScope: null as a text, and no end": Quirk(
        "DashScope, Qwen", None, (chunk("B", "null", logprobs=TOKENS), chunk("", "null"), _DONE), "failed", None
    ),
    "Ollama: an empty finish_reason": Quirk(
        "Ollama, issue 4357, and SGLang, issue 3912", None, (chunk("B", "", logprobs=TOKENS), chunk("", ""), *_REST)
    ),
    "Gemini: finishReason": Quirk(
        "Gemini, OpenAI compatibility in its beta: by its own name alone",
        whole(finish=None, finishReason="stop"),
        (_SAID, chunk(finishReason="stop"), _COUNTED, _DONE),
    ),
    "Azure: filter results first and last": Quirk(
        "Azure, Content streaming: prompt_filter_results, content_filter_offsets",
        None,
        (
            {"id": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
            _SAID,
            _STOP,
            {**_HEAD, "choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"end_offset": 1}}]},
            _COUNTED,
            _DONE,
        ),
    ),
    "OpenRouter: comments": _between("OpenRouter, Streaming: comments", b": OPENROUTER PROCESSING\n\n"),
    "DeepSeek: keep-alive": Quirk(
        "DeepSeek, Rate limit: empty lines, and comments in streams",
        b"\n\n\n" + json.dumps(whole()).encode(),
        (b": keep-alive\n\n", _SAID, b": keep-alive\n\n", *_REST),
    ),
    "DeepSeek: tokens of its cache": _priced("DeepSeek, Context caching", None, **_CACHED),
    "Groq: tokens in x_groq": Quirk(
        "Groq, Chat completions: x_groq.usage of the last chunk",
        None,
        (_SAID, {**_STOP, "x_groq": {"id": "req_1", "usage": USAGE}}, _DONE),
    ),
    "Moonshot: tokens in the choice": Quirk(
        "Moonshot, Streaming: usage of the last choice", None, (_SAID, chunk(finish="stop", usage=USAGE), _DONE)
    ),
    "xAI: tokens in each chunk": Quirk(
        "xAI, Streaming response: usage so far in each chunk",
        None,
        ({**_SAID, "usage": {**USAGE, "completion_tokens": 1}}, {**_STOP, "usage": USAGE}, _DONE),
    ),
    "Perplexity: the message so far beside the delta": Quirk(
        "Perplexity, Chat completions: message and delta in each chunk",
        None,
        (
            {**chunk("B", logprobs=TOKENS, message={"role": "assistant", "content": "B"}), "usage": USAGE},
            {**chunk("", "stop", message={"role": "assistant", "content": "B"}), "usage": USAGE},
            _DONE,
        ),
    ),
    "Mistral: thinking in parts": Quirk(
        "Mistral, Reasoning: content as a list of chunks",
        whole(_THINKING),  # type: ignore[arg-type]
        (chunk(_THINKING[:1]), chunk(_THINKING[1:], logprobs=TOKENS), *_REST),
    ),
    "Together: token_logprobs": Quirk(
        "Together, Logprobs: tokens and token_logprobs", whole(logprobs=_OLD), (chunk("B", logprobs=_OLD), *_REST)
    ),
    "Spark: code 0": Quirk(
        "iFlytek Spark, HTTP: code, message and sid beside the choices",
        {**whole(), "code": 0, "message": "Success", "sid": "cha1"},
        [*({**one, "code": 0, "message": "Success"} for one in (_SAID, _STOP, _COUNTED)), _DONE],
    ),
    "Spark: code 10013": _error(
        "iFlytek Spark, HTTP: error codes", {"code": 10013, "message": "the input is held back", "sid": "cha1"}
    ),
    "Baidu: error_code": _error("Baidu Qianfan, Error codes", {"error_code": 336003, "error_msg": "no"}),
    "Cloudflare: success false": _error(
        "Cloudflare Workers AI, REST: errors",
        {"success": False, "errors": [{"code": 7009, "message": "capacity"}], "messages": [], "result": None},
    ),
    "TGI: error_type": _error(
        "Hugging Face TGI, Messages API: errors in a stream",
        {"error": "Request failed during generation", "error_type": "generation"},
    ),
    "llama.cpp: a line error": Quirk(
        "llama.cpp, server before 2025: error: in place of data:",
        None,
        (_SAID, b'error: {"code": 500, "message": "context"}\n\n'),
        "failed",
        None,
    ),
    "watsonx: not_finished": Quirk(
        "watsonx.ai, Text chat: finish_reason",
        None,
        (chunk("B", "not_finished", logprobs=TOKENS), *_REST),
    ),
    "Anthropic: refusal": _ended("refusal", "held back", "Anthropic, Handling stop reasons"),
}

QUIRKS = FAILURES | BILLS | PROVIDERS


def stream_of(events: Sequence[Json | bytes]) -> bytes:
    """The events as a server sends them."""
    return b"".join(one if isinstance(one, bytes) else b"data: " + json.dumps(one).encode() + b"\n\n" for one in events)
