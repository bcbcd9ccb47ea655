"""From where the gateway is called: by which name, from which web page, with what kind of body.

A browser sends what any page tells it to an address of the machine it runs on: the page is not let to read the answer,
but that is paid for. A page cannot know a key; where there is none, what it can send without asking first is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from rcjax.serving.gateway.api_errors import ApiError
from rcjax.serving.gateway.metrics import Metrics
from rcjax.serving.gateway.responder import Responder
from rcjax.serving.gateway.settings import Access, is_local

_PROBES = frozenset({"/health", "/ready"})  # which say nothing, and are asked by all names

#: Headers by which requests are refused, as ASGI has them: in lower case.
_LOOKED_AT = {b"host": 0, b"origin": 1, b"content-type": 2}


def guards(access: Access, metrics: Metrics) -> Iterator[Middleware]:
    """What stands before the paths, by what access is given."""
    if access.guarded or access.hosts is not None:
        yield Middleware(_Guard, access=access, metrics=metrics)
    if access.origins:
        every = ["*"]
        methods = ["GET", "POST"]
        yield Middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=methods,
            allow_headers=every,
            expose_headers=every,
        )


class _Guard:
    """Refuses requests by their Host, Origin and Content-Type."""

    def __init__(self, app: ASGIApp, access: Access, metrics: Metrics) -> None:
        self._app, self._access, self._metrics = app, access, metrics
        self._hosts = frozenset(host.casefold() for host in access.hosts or ())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] == "http" and scope["path"] not in _PROBES else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        self._metrics.refused(problem.code or "error", problem.status)
        await Responder(send).error(problem, {"connection": "close"})

    def _problem(self, scope: Scope) -> ApiError | None:
        """What is wrong with how the gateway is called."""
        values: tuple[list[str], list[str], list[str]] = ([], [], [])
        for name, value in scope["headers"]:
            index = _LOOKED_AT.get(name)
            if index is not None:
                values[index].append(value.decode("latin-1"))
        hosts, origins, kinds = values
        known = (local or name in self._hosts for name, local in map(_named, hosts))
        if self._access.hosts is not None and not all(known):
            what = "the service is not known by the name in Host: --allow-host adds names"
            return ApiError(421, what, "unknown_host")
        if not self._access.guarded:
            return None
        allowed = self._access.origins
        if origins and "*" not in allowed and not all(origin in allowed for origin in origins):
            return ApiError(403, "web pages of this origin may not call: --cors adds origins", "foreign_origin")
        kind = kinds[0].partition(";")[0].strip().lower() if kinds else ""
        if scope["method"] == "POST" and kind != "application/json":
            return ApiError(415, "send Content-Type: application/json", "unsupported_media_type")
        return None


@lru_cache(maxsize=256)
def _named(host: str) -> tuple[str, bool]:
    """(a host without its port, whether only this machine can call it), found out once for each."""
    name = _name_of(host)
    return name, is_local(name)


def _name_of(host: str) -> str:
    """A host without its port.

    >>> _name_of("LocalHost:8080"), _name_of("[::1]:8080"), _name_of("::1")
    ('localhost', '::1', '::1')
    """
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        return name if re.fullmatch(r"(:\d*)?", rest) else host
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() and ":" not in name else host).casefold()
