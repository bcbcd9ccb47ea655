"""Answers a request for a completion: by a policy, or by one model whose answer no policy judges.

The answer is sent as one document, as a stream of events at its end, or as a stream while the model writes. It has a
report of the cascade.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

from starlette.types import Send

from rcjax.policy.signals.answers import as_object, objects_in
from rcjax.policy.signals.replies import token_content
from rcjax.serving.billing import BudgetSpentError, ReserveMoney, SpendingUnknownError
from rcjax.serving.call_log import CascadeError, Query, Result
from rcjax.serving.cascade import make_result
from rcjax.serving.completions import text_or_calls
from rcjax.serving.exchange import AnswerChunk, Exchange, calls_of
from rcjax.serving.gateway.catalog import Catalog, Deployment, ServiceSettings
from rcjax.serving.gateway.chat_request import ChatRequest, id_headers, parse_chat_request, read_object
from rcjax.serving.gateway.clients import ApiError, Client, money_error, upstream_error
from rcjax.serving.gateway.metrics import Metrics

STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}
"""Headers of a stream of events."""

COMMENT_SECONDS = 15.0
"""Seconds of silence in a stream until a comment. Before the first comment or event, an error has its own status."""


class Responder:
    """Sends the answer to one request over ASGI, in the format of chat completions.

    `has_begun` says whether a part of the answer has been sent, `is_complete` whether the whole answer has been sent,
    and `last_sent` when the last part was sent, by `time.monotonic`.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = self.is_complete = self._is_document = False
        self.last_sent = time.monotonic()
        self._waiting: list[bytes] = []
        self._size = 0  # bytes that wait
        self._writing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    def read(self, body: bytes) -> ChatRequest:
        """Read the request in a body. Raises ApiError for an invalid one."""
        return parse_chat_request(read_object(body))

    async def send_document(self, document: Mapping[str, Any], headers: Mapping[str, str], status: int = 200) -> None:
        """Send an answer as one document."""
        body = encode_json(document)
        self._is_document = True
        await self._start(status, {"content-type": "application/json", "content-length": str(len(body)), **headers})
        if len(body) > _MAX_UNSENT_BYTES:  # in parts, so that a slow reader holds back the rest
            for start in range(0, len(body), _MAX_UNSENT_BYTES):
                await self._send(_body_message(body[start : start + _MAX_UNSENT_BYTES]))
            body = b""
        await self._body(body, more=False)

    async def send_event(self, document: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Send an event; the headers go before the first event."""
        if not self.has_begun:
            await self._start(200, {**STREAM, **headers})
        await self._body(encode_event(document), more=True)

    async def send_comment(self, headers: Mapping[str, str]) -> None:
        """Send a comment, which clients skip, to keep a stream open; the headers go before the first comment."""
        if not self.has_begun:
            await self._start(200, {**STREAM, **headers})
        await self._body(b": wait\n\n", more=True)

    async def end_stream(self) -> None:
        """End a stream."""
        if not self.is_complete:
            await self._body(b"data: [DONE]\n\n", more=False)

    async def send_error(self, problem: ApiError, headers: Mapping[str, str]) -> None:
        """Send an error in place of an answer, or of the rest of a stream. A document that has begun is cut short."""
        if self.is_complete or self._is_document:
            return
        if self.has_begun:
            await self._body(encode_event(problem.to_json()), more=False)
        else:
            await self.send_document(problem.to_json(), {**problem.headers, **headers}, problem.status)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.has_begun = True
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        async with self._lock:
            await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def _body(self, body: bytes, *, more: bool) -> None:
        """Send a part of the body; the parts of one turn of the event loop go out in one write."""
        self.is_complete, self.last_sent = self.is_complete or not more, time.monotonic()
        self._waiting.append(body)
        self._size += len(body)
        if self._writing is not None and self._writing.done():
            self._writing.result()  # raises the exception of the last write
            self._writing = None
        if not more or self._size > _MAX_UNSENT_BYTES:
            await self._write(more=more)
        elif self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self, *, more: bool = True) -> None:
        async with self._lock:
            body, self._size = b"".join(self._waiting), 0
            self._waiting.clear()
            if body or not more:
                await self._send(_body_message(body, more=more))


def _body_message(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


_MAX_UNSENT_BYTES = 64_000  # bytes that wait for the client to read: with more, the model waits, too


def encode_json(document: Mapping[str, Any]) -> bytes:
    """Encode a document as JSON in ASCII, because texts may have lone surrogates, and line separators confuse clients.

    Infinite numbers and NaN become null. Raises ApiError for an answer that is nested too deep.
    """
    try:
        try:
            text = _JSON.encode(document)
        except ValueError:
            text = _JSON.encode(json.loads(json.dumps(document), parse_constant=lambda _: None))
    except (RecursionError, ValueError):
        raise ApiError(502, "malformed answer: nested too deep", "upstream_failed") from None
    return text.encode()


def encode_event(document: Mapping[str, Any]) -> bytes:
    """Encode a document as an event of a stream."""
    return b"data: " + encode_json(document) + b"\n\n"


_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The client of a request and its query."""

    client: Client
    query_id: str
    segment: str | None
    """The query's segment; None if unknown."""
    reserve_money: ReserveMoney
    """Puts aside the client's money for the request."""


@dataclass(slots=True)
class RequestHandler:
    """One request and its answer. Raises ApiError for an unknown model."""

    settings: ServiceSettings
    catalog: Catalog
    metrics: Metrics
    request: ChatRequest
    context: RequestContext
    responder: Responder
    start: float = field(default_factory=time.perf_counter)
    _deployment: Deployment | None = field(init=False)
    _why_not_judged: tuple[str, ...] = field(init=False)
    """The reasons why the policy does not judge the answer, in words."""
    _is_judged: bool = field(init=False)
    _first_report: Mapping[str, object] = field(default_factory=dict)
    """The report of the cascade when a stream begins."""
    _head: Mapping[str, object] = field(default_factory=dict)
    """The fields that all chunks of a stream share."""
    _delivery_problem: Exception | None = None
    """The exception because of which a chunk of the stream was not sent."""

    def __post_init__(self) -> None:
        self._deployment = deployment = self.catalog.policies.get(self.request.model)
        self._why_not_judged = () if deployment is None else deployment.why_not_judged(self.request)
        self._is_judged = deployment is not None and not self._why_not_judged
        if deployment is None and self.request.model not in self.catalog.models:
            message = "there is no policy or model of this name: GET /v1/models lists them"
            raise ApiError(404, message, "model_not_found", "model")

    async def answer(self) -> None:
        """Answer the request. Raises ApiError if no model does."""
        deployment = self._deployment
        try:
            with self.context.reserve_money(self._estimate_cost() if self.context.client.money else 0.0):
                if deployment is None or not self._is_judged:
                    result = await self._keep_open(self._ask_model(deployment))
                else:
                    result = await self._keep_open(self._ask_policy(deployment))
        except (BudgetSpentError, SpendingUnknownError) as problem:
            raise money_error(problem) from None
        seconds = time.perf_counter() - self.start
        reason = next(iter(self._why_not_judged), None)
        billing = None if deployment is None else deployment.cascade.billing
        self.metrics.count_request(self.request.model, result, seconds, billing, reason)
        if result.status == "failed":
            errors = [f"{call.model}: {call.error}" for call in result.calls if call.error]
            raise upstream_error(result.failure, errors)
        if self._delivery_problem is not None:
            raise self._delivery_problem
        await self._send_rest(result)

    async def _keep_open(self, asking: Awaitable[Result]) -> Result:
        """Wait for the result; send comments into a silent stream, because proxies cut it."""
        if not self.request.stream:
            return await asking
        has_ended = asyncio.Event()
        commenting = asyncio.create_task(self._comment_until(has_ended))
        try:
            return await asking
        finally:
            has_ended.set()
            await asyncio.gather(commenting, return_exceptions=True)

    async def _comment_until(self, has_ended: asyncio.Event) -> None:
        while not has_ended.is_set() and not self.responder.is_complete:
            wait = self.responder.last_sent + COMMENT_SECONDS - time.monotonic()
            if wait <= 0:
                await self.responder.send_comment(id_headers(self.context.query_id))
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(has_ended.wait(), wait)

    @property
    def _seconds_left(self) -> float:
        """Seconds left for the request."""
        return max(self.settings.limits.deadline - (time.perf_counter() - self.start), 1e-3)

    @property
    def _status(self) -> Literal["answered", "by name", "not judged"]:
        """The status of an answer that a model has given."""
        return "answered" if self._is_judged else "by name" if self._deployment is None else "not judged"

    def _make_query(self) -> Query:
        """Make the query of the request."""
        deployment, context = self._deployment, self.context
        checked = deployment.judged_fields if deployment is not None and self._is_judged else ()
        options = self.request.options(judged=self._is_judged, checked=checked)
        return Query(context.query_id, self.request.messages, options, context.segment, context.client.name)

    def _estimate_cost(self) -> float:
        """Estimate the money that the request may cost."""
        query, deployment = self._make_query(), self._deployment
        if deployment is not None and self._is_judged:
            return deployment.cascade.estimate_cost(query)
        model = self.request.model if deployment is None else deployment.file_policy.models[-1]
        return self.catalog.unjudged_model_caller.estimate_cost(query, model)

    async def _ask_policy(self, deployment: Deployment) -> Result:
        query = self._make_query()
        try:
            return await deployment.cascade.ask(
                query.messages,
                query.id,
                options=query.options,
                deadline=self._seconds_left,
                deliver=self._receive_chunk if self.request.stream and not self.request.fields.get("tools") else None,
                segment=query.segment,
                client=query.client,
                reserve=self.context.reserve_money,
            )
        except CascadeError as problem:
            result = problem.result
        # A complete answer without a text counts as an answer.
        return result if result.completion is None else replace(result, status="answered")

    async def _ask_model(self, deployment: Deployment | None) -> Result:
        query = self._make_query().with_handling(
            not_judged="by name" if deployment is None else ", ".join(self._why_not_judged),
            charge=None if deployment is None else deployment.cascade.billing.charge,
        )
        exchanges, model_caller = list[Exchange](), self.catalog.unjudged_model_caller
        with self._reserve_model(deployment, partial(model_caller.estimate_cost, query)) as model:
            try:
                deliver = self._receive_chunk if self.request.stream else None
                exchange = await model_caller.call(query, model, None, exchanges, self._seconds_left, deliver=deliver)
            finally:  # a client that disconnects still pays for the calls made
                self.metrics.count_cost(self.request.model, math.fsum(call.cost for call in calls_of(exchanges)))
                if deployment is not None:
                    deployment.cascade.billing.pay(calls_of(exchanges), client=self.context.client.name)
        return make_result(query, "failed" if exchange.completion is None else self._status, exchange, exchanges)

    def _reserve_model(
        self, deployment: Deployment | None, estimate_cost: Callable[[str], float]
    ) -> AbstractContextManager[str]:
        """Return a context with the model of an answer that is not judged, which puts its cost aside."""
        if deployment is None:
            return nullcontext(self.request.model)
        return deployment.cascade.reserve_unjudged(estimate_cost, self.context.client.name)

    async def _receive_chunk(self, received: AnswerChunk) -> None:
        """Send a chunk of a stream to the client."""
        try:
            if received.chunk is not None:
                await self._send_chunk(received, received.chunk)
            elif not self.request.includes_usage:  # the client need not wait for the signal's second question
                await self.responder.end_stream()
        except Exception as problem:  # the delivery turns it into a warning, so `answer` raises it
            self._delivery_problem = problem
            raise

    async def _send_chunk(self, received: AnswerChunk, chunk: Mapping[str, Any]) -> None:
        if not self._first_report:
            self._first_report = self._make_report(received, self._status) | {"cost": None}  # it is not known yet
            usage = {"usage": None} if self.request.includes_usage else {}
            self._head = _make_head(self._first_report, chunk, _CHUNK) | usage
        headers = {} if self.responder.has_begun else _make_headers(self._first_report)
        await self.responder.send_event(self._client_chunk(chunk), headers)

    def _client_chunk(self, chunk: Mapping[str, Any]) -> dict[str, Any]:
        """Return a chunk as the client gets it."""
        fields = {name: value for name, value in chunk.items() if name != "usage"}  # it counts one attempt only
        choices = [client_choice(self.request, choice) for choice in chunk["choices"]]
        sent = {**fields, **self._head, "choices": choices}
        if any(choice.get("finish_reason") for choice in choices) and not self.request.includes_usage:
            sent["rcjax"] = self._first_report
        return sent

    async def _send_rest(self, result: Result) -> None:
        """Send the whole answer, or the end of its stream."""
        report = self._make_report(result, result.status)
        if self._first_report:
            if self.request.includes_usage:
                last = {**self._head, "choices": [], "usage": result.usage, "rcjax": report}
                await self.responder.send_event(last, {})
            await self.responder.end_stream()
            return
        choices = client_choices(self.request, self.settings.abstain_text, result, judged=self._is_judged)
        completion = make_completion(report, result, choices)
        headers = _make_headers(report)
        if not self.request.stream:
            await self.responder.send_document(completion, headers)
            return
        for chunk in split_into_chunks(completion, includes_usage=self.request.includes_usage):
            await self.responder.send_event(chunk, headers)
        await self.responder.end_stream()

    def _make_report(self, outcome: AnswerChunk | Result, status: str) -> dict[str, Any]:
        """Return the report of the cascade so far: the field `rcjax` of the answer."""
        deployment = self._deployment
        models = [call.model for call in outcome.calls]
        return {
            "query": self.context.query_id,
            "status": status,
            "model": outcome.model,
            "models": models if outcome.model is None or outcome.model in models else [*models, outcome.model],
            "policy": None if deployment is None else deployment.name,
            "policy_hash": None if deployment is None else deployment.digest,
            "confidence": outcome.confidence if isinstance(outcome, Result) else None,
            "position": outcome.query.handling.position,
            "rung": outcome.query.handling.rung,
            "cost": math.fsum(call.cost for call in outcome.calls),
            "not_judged": list(self._why_not_judged),
        }


_SAFE = " :@/()[]+=!*'"  # characters of a header besides letters and digits; others are sent as %XX

_FORMATS = {"confidence": ".6f", "position": ".4g", "rung": "d", "cost": ".12g"}


def _make_headers(report: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of an answer, one for each field of the report that is not empty."""
    texts = {name: _format_header(name, value) for name, value in report.items() if value is not None}
    named = {f"x-rcjax-{name.replace('_', '-')}": text for name, text in texts.items() if text}
    return named | id_headers(report["query"])


def _format_header(name: str, value: Any) -> str:
    if name in _FORMATS:
        return format(value, _FORMATS[name])
    texts = [quote(text, safe=_SAFE) for text in (value if isinstance(value, list) else [value])]
    return ",".join(texts).strip()  # no header may begin or end with a space


def client_choices(request: ChatRequest, abstain_text: str, result: Result, *, judged: bool) -> list[dict[str, Any]]:
    """Return the choices of a completion for a client.

    Args:
        request: the request.
        abstain_text: the answer if the policy abstains.
        result: the result of the query; without a completion, the policy abstains.
        judged: whether the answer was judged: then only the choice with the kept text is sent.
    """
    if result.completion is None:
        message = {"role": "assistant", "content": abstain_text, "refusal": None}
        return [client_choice(request, {"index": 0, "message": message, "finish_reason": "stop"})]
    choices = objects_in(result.completion["choices"])
    if judged:  # answers that vote are several choices
        choices = [choice for choice in choices if text_or_calls(choice) == result.text][:1] or choices[:1]
        return [client_choice(request, choices[0]) | {"index": 0}]
    return [client_choice(request, choice) for choice in choices]


def client_choice(request: ChatRequest, choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return a choice with only the log-probabilities that the client wants."""
    logprobs = choice.get("logprobs") if request.logprobs else None
    if isinstance(logprobs, Mapping):
        logprobs = {"content": token_content(logprobs)} if "token_logprobs" in logprobs else logprobs
        logprobs = {name: _cut_likeliest(tokens, request.top_logprobs) for name, tokens in logprobs.items()}
    return {**choice, "logprobs": logprobs}


def _cut_likeliest(tokens: Any, top: int) -> Any:
    """Cut the list of likeliest tokens of each token to `top`; null and objects, which some servers send, become []."""
    if not isinstance(tokens, list):
        return tokens
    likeliest = [(token, token.get("top_logprobs")) for token in objects_in(tokens)]
    return [{**token, "top_logprobs": listed[:top] if isinstance(listed, list) else []} for token, listed in likeliest]


_CHUNK = "chat.completion.chunk"

_GATEWAY_FIELDS = frozenset({"id", "object", "created", "model", "choices", "usage", "rcjax"})  # set by the gateway

_CHUNK_FIELDS = frozenset({"id", "object", "created", "model", "system_fingerprint", "service_tier"})  # of every chunk

_EMPTY = {"delta": {}, "logprobs": None, "finish_reason": None}  # an empty choice of a chunk


def make_completion(report: Mapping[str, Any], result: Result, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make the body of an answer from the report of the cascade, the result of the query, and the client's choices."""
    source = result.completion or {}
    return {
        **_make_head(report, source, "chat.completion"),
        "choices": list(choices),
        "usage": result.usage,
        **{name: value for name, value in source.items() if name not in _GATEWAY_FIELDS},
        "rcjax": report,
    }


def split_into_chunks(whole: Mapping[str, Any], *, includes_usage: bool) -> Iterator[dict[str, Any]]:
    """Split a completion into chunks: its content, its finish reasons and, with `includes_usage`, its tokens.

    The last chunk has the report of the cascade.
    """
    shared = {name: value for name, value in whole.items() if name in _CHUNK_FIELDS}
    others = {name: value for name, value in whole.items() if name not in _CHUNK_FIELDS | _GATEWAY_FIELDS}
    head = {**shared, "object": _CHUNK, **({"usage": None} if includes_usage else {})}
    contents, ends = [], []
    for choice in whole["choices"]:
        rest = {name: value for name, value in choice.items() if name not in ("message", "logprobs")}
        first = {"delta": _make_delta(choice.get("message")), "logprobs": choice.get("logprobs")}
        contents.append({**_EMPTY, "index": rest.get("index", 0), **first})
        ends.append({**_EMPTY, "index": 0, **rest})
    yield {**head, **others, "choices": contents}
    report = {"rcjax": whole["rcjax"]}
    yield {**head, "choices": ends, **({} if includes_usage else report)}
    if includes_usage:
        yield {**head, "choices": [], "usage": whole["usage"], **report}


def _make_delta(message: Any) -> dict[str, Any]:
    """Turn a message into a delta, whose tool calls are numbered."""
    delta = dict(as_object(message))
    if isinstance(delta.get("tool_calls"), list):
        delta["tool_calls"] = [{**call, "index": i} for i, call in enumerate(objects_in(delta["tool_calls"]))]
    return delta


def _make_head(report: Mapping[str, Any], source: Mapping[str, Any], kind: str) -> dict[str, Any]:
    name, created = source.get("id"), source.get("created")
    return {
        "id": name if isinstance(name, str) and name else f"chatcmpl-{report['query']}",
        "object": kind,
        "created": created if type(created) is int else int(time.time()),
        "model": report["model"],
    }
