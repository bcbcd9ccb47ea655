"""A provider for LiteLLM's proxy: a policy is a model of the proxy, and asks other models of the same proxy.

    model_list:
      - model_name: support
        litellm_params: {model: rcjax/support, policy: support.json}
    litellm_settings:
      custom_provider_map: [{provider: rcjax, custom_handler: rcjax.serving.integrations.litellm.provider}]

Needs `pip install 'litellm[proxy]'`; neither JAX nor numpy is imported.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rcjax.serving.completions import choice_text
from rcjax.serving.gateway.chat_request import ApiError, ChatRequest, chat_request
from rcjax.serving.integrations.behind_router import PROVIDER, Desk

try:
    litellm: Any = import_module("litellm")
except ImportError:
    raise ImportError("this needs LiteLLM: pip install 'litellm[proxy]'") from None

#: Options of a deployment that a request does not have.
_DEPLOYMENT_OPTIONS = frozenset({"max_retries", "policy", "signal", "stream", "stream_options"})


class Provider(litellm.CustomLLM):
    """Answers requests for `rcjax/NAME` by the policy in the configuration of this model."""

    def __init__(self) -> None:
        super().__init__()
        self._desk = Desk(_router, _folders)

    async def acompletion(self, **call: Any) -> Any:
        """Answer a request of LiteLLM's. Raises an error of LiteLLM's if no model answers."""
        completion = await self._answer(call)
        response = litellm.ModelResponse(**completion)
        response._hidden_params["response_cost"] = completion["rcjax"]["cost"]
        return response

    async def astreaming(self, **call: Any) -> AsyncIterator[Any]:
        """Yield the answer to a request in pieces: the text, the calls of tools, the end with the usage."""
        completion = await self._answer(call, stream=True)
        choice: Mapping[str, Any] = next(iter(completion["choices"]), {})
        yield _piece(choice_text(choice))
        message = choice.get("message")
        for index, tool in enumerate((message.get("tool_calls") or ()) if isinstance(message, Mapping) else ()):
            yield _piece("", tool_use={**tool, "index": index})
        last = {"usage": completion["usage"], "provider_specific_fields": {"rcjax": completion["rcjax"]}}
        yield _piece("", is_finished=True, finish_reason=choice.get("finish_reason") or "stop", **last)

    async def _answer(self, call: Mapping[str, Any], *, stream: bool = False) -> Mapping[str, Any]:
        """Return the completion that answers a request, and report its cost to LiteLLM."""
        parameters = call.get("litellm_params") or {}
        headers = (parameters.get("proxy_server_request") or {}).get("headers") or {}
        trace = {name: parameters[name] for name in ("litellm_trace_id",) if parameters.get(name)}
        timeout = call.get("timeout")
        seconds = getattr(timeout, "read", timeout)
        seconds = float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None
        try:
            completion = await self._desk.answer(_request(call, stream=stream), headers, seconds, **trace)
        except ApiError as problem:
            raise _error(problem) from None
        # The cost of a request is the sum over its attempts: LiteLLM has no price for a policy.
        for name in ("response_cost_calculator", "_response_cost_calculator"):  # the name depends on LiteLLM's version
            setattr(call["logging_obj"], name, lambda *_, **__: completion["rcjax"]["cost"])
        return completion


def _router() -> Any:
    """Return the router of LiteLLM's proxy. Raises ApiError if there is none."""
    router = import_module("litellm.proxy.proxy_server").llm_router
    if router is None:
        message = "there is no router of LiteLLM's proxy: start it by litellm --config config.yaml"
        raise ApiError(500, message, "misconfigured", lasting=True)
    return router


def _folders() -> list[Path]:
    """Return the folders to which paths of policy files are relative: the working one, and the configuration's."""
    proxy_server = import_module("litellm.proxy.proxy_server")
    config = proxy_server.user_config_file_path
    return [Path.cwd(), *([] if config is None else [Path(config).absolute().parent])]


def _request(call: Mapping[str, Any], *, stream: bool) -> ChatRequest:
    """Build the request from LiteLLM's arguments. Raises ApiError for an invalid request."""
    options = {name: value for name, value in call["optional_params"].items() if name not in _DEPLOYMENT_OPTIONS}
    body = {"model": call["model"], "messages": call["messages"], **options, **options.pop("extra_body", {})}
    request = chat_request(json.loads(json.dumps(body, default=_plain)))
    if stream and (request.fields.get("n") or 1) != 1:
        message = "several answers (n) cannot be streamed by a provider of LiteLLM's: ask for one, or without stream"
        raise ApiError(400, message, "invalid_value", "n")
    return request


def _plain(value: Any) -> Any:
    """Return an object of LiteLLM's as a JSON value."""
    return value.model_dump(exclude_none=True) if hasattr(value, "model_dump") else str(value)


#: LiteLLM's error classes by code; LiteLLM routes requests by some of them.
_BY_CODE: Mapping[str | None, str] = {
    "content_policy_violation": "ContentPolicyViolationError",
    "context_length_exceeded": "ContextWindowExceededError",
}


_BY_STATUS = {
    400: "BadRequestError",
    413: "BadRequestError",
    422: "BadRequestError",
    429: "RateLimitError",
    504: "Timeout",
}


def _error(problem: ApiError) -> Exception:
    """Return the error of LiteLLM's, without retries: the router has retried each model already."""
    name = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status)
    fields = {"message": problem.message, "model": PROVIDER, "llm_provider": PROVIDER}
    make = litellm.APIError if name is None else getattr(litellm, name)
    error = make(**fields, **({"status_code": problem.status} if name is None else {}))
    error.num_retries = 0
    return error


def _piece(text: str, **changes: Any) -> dict[str, Any]:
    piece = {"text": text, "tool_use": None, "is_finished": False, "finish_reason": "", "usage": None, "index": 0}
    return piece | changes


provider = Provider()
"""The provider that LiteLLM's configuration names."""
