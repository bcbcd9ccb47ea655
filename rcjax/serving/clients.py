"""Clients of OpenAI-compatible endpoints: that of OpenAI, and one for programs that pass requests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

__all__ = ["RETRIES", "AsyncCompletions", "DirectClient", "certificates", "direct_client", "openai"]


try:
    import openai
    from openai.resources.chat import AsyncCompletions
except ImportError:
    raise ImportError("running a cascade needs the client of OpenAI: pip install 'rcjax[run]'") from None


RETRIES = "x-stainless-retry-count"  # the client's own header, which counts from 0


#: Arguments of `chat.completions.create` that are not sent in the body, as `post` has them.
_OPTIONS = {"extra_headers": "headers", "extra_query": "params", "extra_body": "extra_json", "timeout": "timeout"}


#: HTTPX, or the successor that newer clients have.
_HTTP: Any = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__)


_MOST_CONNECTIONS = 10_000  # who passes requests on has a limit of its own


@cache
def certificates() -> Any:
    """Whom connections trust, for clients' `verify`: to read them takes longer than all else of opening a client."""
    create = getattr(_HTTP, "create_ssl_context", None)
    return True if create is None else create()


class DirectClient(openai.AsyncOpenAI):
    """A client for requests that are JSON already.

    The usual one goes through every part of a request by its type hints, and makes objects of the reply.
    """

    async def completion(self, model: str, messages: Sequence[Any], options: Mapping[str, Any]) -> tuple[bytes, int]:
        """(the JSON of a completion, how many requests were sent).

        Args:
            model: its name at the endpoint.
            messages: the conversation.
            options: of `chat.completions.create`.

        Raises what `chat.completions.create` raises.
        """
        body = {name: value for name, value in options.items() if name not in _OPTIONS}
        told: Any = {_OPTIONS[name]: value for name, value in options.items() if name in _OPTIONS}
        response: Any = await self.post(
            "/chat/completions",
            cast_to=_HTTP.Response,
            body={"model": model, "messages": messages, **body},
            options=told,
        )
        return response.content, int(response.request.headers.get(RETRIES, "0")) + 1


def direct_client(*, base_url: str | None, key: str, timeout: float) -> DirectClient:
    """A direct client, by aiohttp where that is installed, which takes half the time of HTTPX."""
    limits = _HTTP.Limits(max_connections=_MOST_CONNECTIONS)
    try:
        http = openai.DefaultAioHttpClient(limits=limits)
    except RuntimeError:  # aiohttp is not installed
        http = openai.DefaultAsyncHttpxClient(limits=limits)
    return DirectClient(api_key=key, base_url=base_url, timeout=timeout, http_client=http)
