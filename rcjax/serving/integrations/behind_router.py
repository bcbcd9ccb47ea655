"""Answer requests by a policy whose models are those of a LiteLLM router.

The models are asked by a client of OpenAI's API whose requests the router answers in this process. The cost of a reply,
by the router's prices, stands in its `usage` as `cost`, if the router has a price. Needs Starlette and the client of
OpenAI; LiteLLM is not imported here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers

from rcjax._base.figures import visible
from rcjax.policy.ladder import load_policy
from rcjax.serving.endpoints import prices_by_model, read_price
from rcjax.serving.gateway.catalog import Catalog, CatalogMaker, Settings, file_signature
from rcjax.serving.gateway.chat import RequestContext, RequestHandler, Responder
from rcjax.serving.gateway.chat_request import ApiError, ChatRequest, fault_within, query_of, segment_of
from rcjax.serving.gateway.intake import RequestLimits
from rcjax.serving.models_file import ServedModel
from rcjax.serving.openai_client import HTTP, DirectClient

PROVIDER = "rcjax"
"""The name of the provider in LiteLLM: models are called rcjax/NAME."""

_CONFIG = "config.yaml"  # LiteLLM's file of models and policies, for messages

_LOGGER = logging.getLogger("rcjax.serving")

_DEADLINE = 600.0  # seconds for a request without a timeout


class _CompletionKeeper(Responder):
    """A responder that keeps the answer in place of sending it."""

    def __init__(self) -> None:
        super().__init__(_send_nothing)
        self.completion: Mapping[str, Any] = {}

    async def document(self, document: Mapping[str, Any], headers: Mapping[str, str], status: int = 200) -> None:
        """Keep the answer; its field `rcjax` repeats the headers and the cost."""
        self.completion = _priced(document, None)


async def _send_nothing(message: Any) -> None:
    raise AssertionError(message)


#: Further arguments of the router for each attempt at the current request.
_EXTRA: ContextVar[Mapping[str, Any]] = ContextVar("_EXTRA")


class Desk:
    """Answers requests by policies over the models of a router.

    Args:
        router: function that returns the current `litellm.Router`.
        folders: function that returns the folders to which paths of policy files are relative.
    """

    def __init__(self, router: Callable[[], Any], folders: Callable[[], Sequence[Path]]) -> None:
        self._router, self._folders = router, folders
        http = HTTP.AsyncClient(transport=_RouterTransport(router))
        self._client = RouterClient(
            api_key="none", base_url="http://router.invalid/v1", http_client=http, max_retries=0
        )
        self._catalogs: dict[tuple[str, str, str | None], tuple[Any, Settings, Catalog]] = {}

    async def answer(
        self, request: ChatRequest, headers: Mapping[str, str], deadline: float | None = None, **extra: Any
    ) -> Mapping[str, Any]:
        """Return the completion that answers a request. Raises ApiError if no model answers.

        Args:
            request: request whose `model` is the name of a policy.
            headers: headers of the client: x-rcjax-query, x-rcjax-segment.
            deadline: seconds for the whole request; None for ten minutes.
            extra: further arguments of the router for each attempt.
        """
        known, answer = Headers(dict(headers)), _CompletionKeeper()
        try:
            query = query_of(known)
            settings, catalog = self._catalog(request.model)
            limits = replace(settings.limits, deadline=deadline or _DEADLINE)
            _EXTRA.set({**extra, "metadata": {PROVIDER: {"policy": request.model, "query": query}}})
            context = RequestContext(catalog.ring.client_of(known), query, segment_of(known))
            await RequestHandler(replace(settings, limits=limits), catalog, None, request, context, answer).answer()
        except ApiError:
            raise
        except Exception as problem:  # its message may quote the request
            raise fault_within(problem) from None
        return answer.completion

    def _catalog(self, name: str) -> tuple[Settings, Catalog]:
        """Return the policy of a name, read again after its file has changed.

        The previous policy goes on if the file is broken or missing. The router's list of models names the file; a
        request cannot name another.
        """
        listed = [entry["litellm_params"] for entry in self._router().model_list]
        mine = {(one.get("policy"), one.get("signal")) for one in listed if one.get("model") == f"{PROVIDER}/{name}"}
        if len(mine) != 1 or None in {file for file, _ in mine}:
            fault = f"model: {PROVIDER}/{name} has {'several policies' if len(mine) > 1 else 'no policy'} in {_CONFIG}"
            raise _misconfigured(f"{fault}: give its litellm_params policy: FILE.json, one for a name")
        file, signal = mine.pop()
        source = name, str(file), signal
        path = next((path for path in (folder / str(file) for folder in self._folders()) if path.is_file()), None)
        stamp = path and (path, file_signature(path))
        before = self._catalogs.get(source)
        if before is None or before[0] != stamp:
            try:
                settings, catalog = self._read(name, str(file), path, signal)
                if before is not None:
                    catalog.take_over(before[2])
            except (ValueError, OSError) as problem:
                if before is None:
                    raise _misconfigured(str(problem)) from None
                _LOGGER.warning(visible(f"{problem}: the policy before goes on"))
                _, settings, catalog = before
            self._catalogs[source] = stamp, settings, catalog
        return self._catalogs[source][1:]

    def _read(self, name: str, file: str, path: Path | None, signal: str | None) -> tuple[Settings, Catalog]:
        if path is None:
            where = f"in the folder that LiteLLM was started in, nor beside {_CONFIG}"
            raise ValueError(f"model: {PROVIDER}/{name}: there is no file {file} {where}: put it there")
        policy, router = load_policy(path), self._router()
        for model in policy.models:
            entries = [str(one["litellm_params"].get("model")) for one in router.get_model_list(model_name=model) or []]
            if not entries or any(entry.startswith(f"{PROVIDER}/") for entry in entries):
                reason = f"which {'is a policy itself' if entries else 'is not there'} in the model_list of {_CONFIG}"
                raise ValueError(f"{path.name} asks {model}, {reason}: give a model that has this model_name")
        prices = prices_by_model(policy)
        models = {name: ServedModel(name, name, read_price(prices.get(name)), signal=signal) for name in policy.models}
        settings = Settings({name: path}, Path(_CONFIG), limits=RequestLimits(retries=0, timeout=_DEADLINE))
        return settings, CatalogMaker(settings, lambda model: self._client).make({name: policy}, models)


def _misconfigured(message: str) -> ApiError:
    return ApiError(500, visible(message), "misconfigured", lasting=True)


#: Without this option a router answers a failure by another model, whose confidences are calibrated differently.
_ALONE = {"disable_fallbacks": True}


class RouterClient(DirectClient):
    """A client of a router's models."""

    reports_cost = True


class _RouterTransport(HTTP.AsyncBaseTransport):
    """A transport that passes a client's requests to a router."""

    def __init__(self, router: Callable[[], Any]) -> None:
        self._router = router

    async def handle_async_request(self, request: Any) -> Any:
        arguments = json.loads(await request.aread())
        try:
            extra = deepcopy(_EXTRA.get())  # the router adds fields of this attempt to it
            answer = await self._router().acompletion(**{**arguments, **extra, **_ALONE})
        except Exception as problem:  # any error of the router becomes an HTTP response
            status = getattr(problem, "status_code", None)
            status = status if isinstance(status, int) and 400 <= status < 600 else 500
            return HTTP.Response(status, content=_encoded({"error": _error(problem)}), headers=_waiting(problem))
        cost = _reported_cost(getattr(answer, "_hidden_params", None) or {})
        return HTTP.Response(200, content=_encoded(_priced(answer.model_dump(), cost)))


def _reported_cost(hidden: Mapping[str, Any]) -> float | None:
    """Read the cost of an answer from a router's hidden parameters; None for a model without a price.

    A cost of 0 stands for a missing price, unless the answer came from the cache.

    >>> [_reported_cost(hidden) for hidden in ({"response_cost": 2e-5}, {"response_cost": 0.0}, {"cache_hit": True})]
    [2e-05, None, 0.0]
    """
    if hidden.get("cache_hit") is True:
        return 0.0
    cost = hidden.get("response_cost")
    return float(cost) if isinstance(cost, int | float) and cost > 0 else None


def _priced(document: Mapping[str, Any], cost: float | None) -> Mapping[str, Any]:
    """Return a completion with this cost in its usage, or without a cost."""
    usage = document.get("usage")
    if not isinstance(usage, Mapping):
        return document
    counts = {name: value for name, value in usage.items() if name != "cost"}
    return {**document, "usage": counts if cost is None else {**counts, "cost": cost}}


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, default=str).encode()


#: OpenAI's codes for errors of LiteLLM.
_CODES = {
    "ContentPolicyViolationError": "content_policy_violation",
    "ContextWindowExceededError": "context_length_exceeded",
    "RouterRateLimitError": "no_deployments_available",
}


def _error(problem: Exception) -> dict[str, Any]:
    """Return the error of a reply, without the text, which may quote the request."""
    name = type(problem).__name__
    code = _CODES.get(name) or getattr(problem, "code", None)
    return {"message": name, "code": code if isinstance(code, str | int) else None}


def _waiting(problem: Exception) -> dict[str, str]:
    """Return the retry-after headers that an error of a router gives."""
    headers = dict(getattr(problem, "litellm_response_headers", None) or {})
    headers |= getattr(getattr(problem, "response", None), "headers", None) or {}
    if isinstance(cooldown := getattr(problem, "cooldown_time", None), int | float):
        headers["retry-after"] = cooldown
    return {name: str(headers[name]) for name in ("retry-after", "retry-after-ms") if name in headers}
