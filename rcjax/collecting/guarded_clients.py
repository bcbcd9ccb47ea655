"""Clients of models' endpoints for `rcjax collect`, which keep to what was told: no other host, no endless reply."""

from __future__ import annotations

from typing import Any

from rcjax.serving.clients import Part, certificates, environment_for
from rcjax.serving.endpoint import openai
from rcjax.serving.models_file import ModelSettings

MOST_BYTES = 64 * 2**20
"""Of a reply. With the 20 likeliest tokens beside each, an answer of 16,000 tokens has a third of it."""

_PACKED = 64  # a part of that, where a server packs what it sends, unasked: a byte may stand for a thousand

_CONNECTING = 0.9  # of the time for an attempt: a connection that is not made by then has cost nothing


class TooLongError(BaseException):
    """A reply is longer than is read; no Exception, as clients make a lost connection of every one."""


def open_client(settings: ModelSettings, timeout: float) -> openai.AsyncOpenAI:
    """A client of a model's endpoint, which does not send anything again by itself, and to nobody else.

    Raises ValueError where its key is not in the environment, or cannot be sent.
    """
    address, query = settings.address()
    hooks: Any = {"response": [_limit]}
    http = openai.DefaultAsyncHttpxClient(verify=certificates(), follow_redirects=False, event_hooks=hooks)
    with environment_for(settings.base_url):
        return openai.AsyncOpenAI(
            api_key=settings.key(),
            base_url=address,
            default_query=query,
            default_headers={"Accept-Encoding": "identity"},
            timeout=openai.Timeout(timeout, connect=_CONNECTING * timeout),
            max_retries=0,
            http_client=http,
        )


async def _limit(response: Any) -> None:
    packed = response.headers.get("content-encoding", "identity") != "identity"
    response.stream = _Guarded(response, MOST_BYTES // _PACKED if packed else MOST_BYTES)


class _Guarded(Part):
    """The bytes of a reply, as long as they are not too many."""

    def exceed(self) -> None:
        raise TooLongError
