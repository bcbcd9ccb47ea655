"""A policy whose models are those of a LiteLLM router: where its file is, and what becomes of a request for it.

The models are asked as an endpoint of OpenAI's, whose requests the router answers in this process; what a reply cost by
the router's own prices stands in its `usage`, as `cost`, where the router knows a price. Standard library, Starlette
and the client of OpenAI; LiteLLM is not imported here.
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

from rcjax._base.wording import visible
from rcjax.policy.ladder import load_policy
from rcjax.serving.asking import known_prices, read_price
from rcjax.serving.endpoint import HTTP, DirectClient
from rcjax.serving.gateway.catalog import Catalog, CatalogMaker, RequestLimits, Settings, file_signature
from rcjax.serving.gateway.chat import Asker, Conversation, Responder
from rcjax.serving.gateway.chat_request import ApiError, ChatRequest, fault_within, query_of, segment_of
from rcjax.serving.models_file import ServedModel

PROVIDER = "rcjax"
"""The name of the provider in LiteLLM: models are called rcjax/NAME."""

_CONFIG = "config.yaml"  # the file that models and policies are told in

_LOGGER = logging.getLogger("rcjax.serving")

_DEADLINE = 600.0  # seconds for a request whose program tells none


class _Whole(Responder):
    """Keeps the answer to a request."""

    def __init__(self) -> None:
        super().__init__(_nobody)
        self.completion: Mapping[str, Any] = {}

    async def document(self, document: Mapping[str, Any], headers: Mapping[str, str], status: int = 200) -> None:
        """Take the answer; what the headers say, and what it cost, is in its field `rcjax`."""
        self.completion = _priced(document, None)


async def _nobody(message: Any) -> None:
    raise AssertionError(message)


#: What the router is told with each attempt at the request that is answered.
_EXTRA: ContextVar[Mapping[str, Any]] = ContextVar("_EXTRA")


class Desk:
    """Answers requests by policies before the models of a router.

    Args:
        router: gives the `litellm.Router` of the moment.
        folders: gives the folders that files of policies are named from.
    """

    def __init__(self, router: Callable[[], Any], folders: Callable[[], Sequence[Path]]) -> None:
        self._router, self._folders = router, folders
        http = HTTP.AsyncClient(transport=_Routed(router))
        self._client = RouterClient(
            api_key="none", base_url="http://router.invalid/v1", http_client=http, max_retries=0
        )
        self._catalogs: dict[tuple[str, str, str | None], tuple[Any, Settings, Catalog]] = {}

    async def answer(
        self, request: ChatRequest, headers: Mapping[str, str], deadline: float | None = None, **extra: Any
    ) -> Mapping[str, Any]:
        """The completion that answers a request. Raises ApiError where there is none.

        Args:
            request: whose `model` is the name of a policy.
            headers: of the client: x-rcjax-query, x-rcjax-segment.
            deadline: seconds for all of it; None for ten minutes.
            extra: what the router is told with each attempt, too.
        """
        known, answer = Headers(dict(headers)), _Whole()
        try:
            query = query_of(known)
            settings, catalog = self._catalog(request.model)
            limits = replace(settings.limits, deadline=deadline or _DEADLINE)
            _EXTRA.set({**extra, "metadata": {PROVIDER: {"policy": request.model, "query": query}}})
            asker = Asker(catalog.ring.client_of(known), query, segment_of(known))
            await Conversation(replace(settings, limits=limits), catalog, None, request, asker, answer).answer()
        except ApiError:
            raise
        except Exception as problem:  # whose message may quote what was asked
            raise fault_within(problem) from None
        return answer.completion

    def _catalog(self, name: str) -> tuple[Settings, Catalog]:
        """The policy of a name, read again where its file has changed; the one before goes on if it is broken, or not
        there. By the router's list of models: a request cannot name another file."""
        listed = [entry["litellm_params"] for entry in self._router().model_list]
        mine = {(one.get("policy"), one.get("signal")) for one in listed if one.get("model") == f"{PROVIDER}/{name}"}
        if len(mine) != 1 or None in {file for file, _ in mine}:
            what = f"model: {PROVIDER}/{name} has {'several policies' if len(mine) > 1 else 'no policy'} in {_CONFIG}"
            raise _misconfigured(f"{what}: give its litellm_params policy: FILE.json, one for a name")
        file, signal = mine.pop()
        source = name, str(file), signal
        path = next((path for path in (folder / str(file) for folder in self._folders()) if path.is_file()), None)
        stamp, before = path and (path, file_signature(path)), self._catalogs.get(source)
        if before is None or before[0] != stamp:
            try:
                settings, catalog = self._read(name, str(file), path, signal)
                if before is not None:
                    catalog.go_on(before[2])
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
                what = f"which {'is a policy itself' if entries else 'is not there'} in the model_list of {_CONFIG}"
                raise ValueError(f"{path.name} asks {model}, {what}: give a model that has this model_name")
        prices = known_prices(policy)
        models = {name: ServedModel(name, name, read_price(prices.get(name)), signal=signal) for name in policy.models}
        settings = Settings({name: path}, Path(_CONFIG), limits=RequestLimits(retries=0, timeout=_DEADLINE))
        return settings, CatalogMaker(settings, lambda model: self._client).make({name: policy}, models)


def _misconfigured(message: str) -> ApiError:
    return ApiError(500, visible(message), "misconfigured", lasting=True)


#: A router's own answer to a failure is to ask another model, whose confidences mean something else.
_ALONE = {"disable_fallbacks": True}


class RouterClient(DirectClient):
    """A client of a router's models."""

    tells_cost = True


class _Routed(HTTP.AsyncBaseTransport):
    """Has a router answer what a client would send."""

    def __init__(self, router: Callable[[], Any]) -> None:
        self._router = router

    async def handle_async_request(self, request: Any) -> Any:
        asked = json.loads(await request.aread())
        try:
            extra = deepcopy(_EXTRA.get())  # to which a router adds what is of one request alone
            answer = await self._router().acompletion(**{**asked, **extra, **_ALONE})
        except Exception as problem:  # whatever it is, it is a reply of the router's
            status = getattr(problem, "status_code", None)
            status = status if isinstance(status, int) and 400 <= status < 600 else 500
            return HTTP.Response(status, content=_encoded({"error": _error(problem)}), headers=_waiting(problem))
        cost = _reported_cost(getattr(answer, "_hidden_params", None) or {})
        return HTTP.Response(200, content=_encoded(_priced(answer.model_dump(), cost)))


def _reported_cost(hidden: Mapping[str, Any]) -> float | None:
    """What a router says beside an answer that it cost: 0 is a model without a price, unless it is from the cache.

    >>> [_reported_cost(hidden) for hidden in ({"response_cost": 2e-5}, {"response_cost": 0.0}, {"cache_hit": True})]
    [2e-05, None, 0.0]
    """
    if hidden.get("cache_hit") is True:
        return 0.0
    cost = hidden.get("response_cost")
    return float(cost) if isinstance(cost, int | float) and cost > 0 else None


def _priced(document: Mapping[str, Any], cost: float | None) -> Mapping[str, Any]:
    """A completion whose usage tells this cost, or none."""
    usage = document.get("usage")
    if not isinstance(usage, Mapping):
        return document
    counts = {name: value for name, value in usage.items() if name != "cost"}
    return {**document, "usage": counts if cost is None else {**counts, "cost": cost}}


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, default=str).encode()


#: Errors of LiteLLM for which OpenAI has a word of its own.
_WORDS = {
    "ContentPolicyViolationError": "content_policy_violation",
    "ContextWindowExceededError": "context_length_exceeded",
    "RouterRateLimitError": "no_deployments_available",
}


def _error(problem: Exception) -> dict[str, Any]:
    """The error of a reply, without its text, which may quote what was asked."""
    name = type(problem).__name__
    code = _WORDS.get(name) or getattr(problem, "code", None)
    return {"message": name, "code": code if isinstance(code, str | int) else None}


def _waiting(problem: Exception) -> dict[str, str]:
    """The headers by which a server says when to try again, as far as an error of a router tells it."""
    headers = dict(getattr(problem, "litellm_response_headers", None) or {})
    headers |= getattr(getattr(problem, "response", None), "headers", None) or {}
    if isinstance(cooldown := getattr(problem, "cooldown_time", None), int | float):
        headers["retry-after"] = cooldown
    return {name: str(headers[name]) for name in ("retry-after", "retry-after-ms") if name in headers}
