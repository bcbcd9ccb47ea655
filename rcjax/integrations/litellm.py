"""A policy as a model of LiteLLM's proxy, which asks other models of the same proxy: a provider for its `config.yaml`.

    model_list:
      - model_name: support
        litellm_params: {model: rcjax/support, policy: support.json}
    litellm_settings:
      custom_provider_map: [{provider: rcjax, custom_handler: rcjax.integrations.litellm.provider}]

Needs `pip install 'litellm[proxy]'`; neither JAX nor numpy is imported.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rcjax.integrations.behind_router import PROVIDER, Desk
from rcjax.serving.completions import choice_text
from rcjax.serving.gateway.chat_request import ApiError, ChatRequest, chat_request

try:
    litellm: Any = import_module("litellm")
except ImportError:
    raise ImportError("this needs LiteLLM: pip install 'litellm[proxy]'") from None

#: Options of a deployment that are no request's.
_NOT_ASKED = frozenset({"max_retries", "policy", "signal", "stream", "stream_options"})


class Provider(litellm.CustomLLM):
    """Answers requests for `rcjax/NAME` by the policy that the entry of this model names."""

    def __init__(self) -> None:
        super().__init__()
        self._desk = Desk(_router, _folders)

    async def acompletion(self, **call: Any) -> Any:
        """Answer a request, as LiteLLM tells it. Raises an error of LiteLLM's where no model answers."""
        whole = await self._answer(call)
        response = litellm.ModelResponse(**whole)
        response._hidden_params["response_cost"] = whole["rcjax"]["cost"]
        return response

    async def astreaming(self, **call: Any) -> AsyncIterator[Any]:
        """Answer a request in pieces as LiteLLM takes them: the text, calls of tools, the end with the usage."""
        whole = await self._answer(call, stream=True)
        choice: Mapping[str, Any] = next(iter(whole["choices"]), {})
        yield _piece(choice_text(choice))
        message = choice.get("message")
        for index, tool in enumerate((message.get("tool_calls") or ()) if isinstance(message, Mapping) else ()):
            yield _piece("", tool_use={**tool, "index": index})
        told = {"usage": whole["usage"], "provider_specific_fields": {"rcjax": whole["rcjax"]}}
        yield _piece("", is_finished=True, finish_reason=choice.get("finish_reason") or "stop", **told)

    async def _answer(self, call: Mapping[str, Any], *, stream: bool = False) -> Mapping[str, Any]:
        """The completion that answers a request."""
        parameters = call.get("litellm_params") or {}
        headers = (parameters.get("proxy_server_request") or {}).get("headers") or {}
        trace = {name: parameters[name] for name in ("litellm_trace_id",) if parameters.get(name)}
        timeout = call.get("timeout")
        seconds = getattr(timeout, "read", timeout)
        seconds = float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None
        try:
            whole = await self._desk.answer(_request(call, stream=stream), headers, seconds, **trace)
        except ApiError as problem:
            raise _error(problem) from None
        # A request costs what all its attempts did: LiteLLM has no price for a policy.
        for name in ("response_cost_calculator", "_response_cost_calculator"):  # whichever this version of LiteLLM asks
            setattr(call["logging_obj"], name, lambda *_, **__: whole["rcjax"]["cost"])
        return whole


def _router() -> Any:
    """The router of LiteLLM's proxy. Raises ApiError where there is none."""
    router = import_module("litellm.proxy.proxy_server").llm_router
    if router is None:
        what = "there is no router of LiteLLM's proxy: start it by litellm --config config.yaml"
        raise ApiError(500, what, "misconfigured", lasting=True)
    return router


def _folders() -> list[Path]:
    """The folders that files of policies are named from: the working one, and that of the proxy's configuration."""
    proxy_server = import_module("litellm.proxy.proxy_server")
    config = proxy_server.user_config_file_path
    return [Path.cwd(), *([] if config is None else [Path(config).absolute().parent])]


def _request(call: Mapping[str, Any], *, stream: bool) -> ChatRequest:
    """The request that a provider is told of. Raises ApiError for what cannot be one."""
    options = {name: value for name, value in call["optional_params"].items() if name not in _NOT_ASKED}
    body = {"model": call["model"], "messages": call["messages"], **options, **options.pop("extra_body", {})}
    request = chat_request(json.loads(json.dumps(body, default=_plain)))
    if stream and (request.fields.get("n") or 1) != 1:
        what = "several answers (n) cannot be streamed by a provider of LiteLLM's: ask for one, or without stream"
        raise ApiError(400, what, "invalid_value", "n")
    return request


def _plain(value: Any) -> Any:
    """An object of LiteLLM's as JSON has it."""
    return value.model_dump(exclude_none=True) if hasattr(value, "model_dump") else str(value)


#: Errors for which LiteLLM has a class of its own, as it may send a request elsewhere by it.
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
    """The error of LiteLLM's: its router has tried each model again already, and is not to try all of them again."""
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
