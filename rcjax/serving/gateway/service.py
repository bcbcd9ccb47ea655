"""The service as an ASGI application: its paths, what it holds while it runs, how it starts and stops.

It takes a request in: who may call, how many at once, how large and how slow it may be, who has left.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import signal
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakSet

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rcjax._base.wording import visible
from rcjax.serving.call_log import CallLog
from rcjax.serving.cascade import Cascade
from rcjax.serving.gateway.access import guards
from rcjax.serving.gateway.api_errors import ApiError, fault_within
from rcjax.serving.gateway.chat import Conversation, query_of, segment_of
from rcjax.serving.gateway.lineup import Clients, Lineup, file_signature, in_words, read_lineup
from rcjax.serving.gateway.metrics import Metrics
from rcjax.serving.gateway.page import draw_page
from rcjax.serving.gateway.responder import Responder
from rcjax.serving.gateway.response_assembly import ResponsesResponder
from rcjax.serving.gateway.sent_completions import id_headers
from rcjax.serving.gateway.settings import RequestLimits, Settings


class ClientLeftError(Exception):
    """Nobody waits for the answer any more."""


def require_key(headers: Headers, keys: Sequence[str]) -> None:
    """Refuse a request without one of the keys; without any keys, everybody may call."""
    if not keys:
        return
    scheme, _, key = headers.get("authorization", "").partition(" ")
    offered = key.strip().encode("utf-8", "replace")
    matches = [hmac.compare_digest(offered, one.encode()) for one in keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise ApiError(401, "no valid key: send Authorization: Bearer and the key of this service", "invalid_api_key")


async def read_body(receive: Receive, headers: Headers, limits: RequestLimits) -> bytes:
    """The body of a request. Raises ApiError where it is too large or too slow, ClientLeftError where it ends early."""
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > limits.body_bytes:
        raise _too_large(limits)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeftError
                part = message.get("body", b"")
                size += len(part)
                if size > limits.body_bytes:
                    raise _too_large(limits)
                parts.append(part)
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise ApiError(408, "the request did not come in time", "request_timed_out") from None


def _too_large(limits: RequestLimits) -> ApiError:
    return ApiError(413, f"the request is larger than {limits.body_bytes:,} bytes", "request_too_large")


async def unless_client_leaves(work: Coroutine[Any, Any, None], receive: Receive, responder: Responder) -> None:
    """Do the work of an answer, and stop it where its client leaves before it has it all: ClientLeftError."""
    task = asyncio.current_task()
    assert task is not None
    watching = asyncio.create_task(_stop_when_client_leaves(task, receive, responder))
    try:
        await work
    except asyncio.CancelledError:
        has_left = watching.done() and not watching.cancelled() and watching.result()
        if has_left and not task.uncancel():  # nobody else has cancelled it
            raise ClientLeftError from None
        raise
    finally:
        watching.cancel()


async def _stop_when_client_leaves(task: asyncio.Task[Any], receive: Receive, responder: Responder) -> bool:
    """Cancel a task, and give True, where the client leaves before the answer is complete; else False."""
    while (await receive())["type"] != "http.disconnect":
        pass
    return not responder.complete and task.cancel()


_LOGGER = logging.getLogger("rcjax.serving")

_LEFT = 499  # what a request counts as whose client left

_INTERVAL = 1.0  # seconds between looks at the files


class Gateway:
    """What one process of the service holds while it runs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.clients = Clients(settings.limits.timeout)
        self.busy = 0
        """How many requests are worked on."""
        self.keys = settings.keys()
        self.log = open_log(settings)
        if self.log is not None:
            self.log.observe = self.metrics.logged
        self.cascades: WeakSet[Cascade] = WeakSet()
        self.asked = asyncio.Event()
        """Somebody asks for the files to be read again."""
        self._files = self._look()  # before they are read
        self.lineup = self.read()
        self.ready = False
        self._announce(self.lineup)

    def read(self) -> Lineup:
        """The policies and models as the files have them now."""
        before = getattr(self, "lineup", None)
        return read_lineup(self.settings, self.clients, self.log, self.metrics.called, before)

    def _look(self) -> list[Any]:
        """What tells the files from what they were before."""
        paths = (*self.settings.policies.values(), self.settings.models)
        return [file_signature(path) for path in paths if path is not None]

    async def watch(self) -> None:
        """Take up what the files say whenever one has changed or somebody asks; until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.asked.wait(), _INTERVAL)
            files = self._look()
            if not self.asked.is_set() and files == self._files:
                continue
            self._files = files
            self.asked.clear()
            try:
                lineup = await asyncio.to_thread(self.read)
            except Exception as problem:  # whatever is in a file must not end the watching
                for name in self.settings.policies:
                    self.metrics.refuse(name)
                _LOGGER.error("a new file is refused, the old policies stay: %s", in_words(problem))
            else:
                self.take_up(lineup)

    def take_up(self, lineup: Lineup) -> None:
        """Answer by these policies from now on; requests under way go on by those that they began with."""
        before, self.lineup = self.lineup, lineup
        lineup.go_on(before)
        self._announce(lineup, before)
        for line in _news(lineup, before, self.settings.models.name):
            _LOGGER.info(visible(line))

    def _announce(self, lineup: Lineup, before: Lineup | None = None) -> None:
        for name, served in lineup.policies.items():
            self.cascades.add(served.cascade)
            if before is None or before.policies[name].digest != served.digest:
                self.metrics.take_up(name, anew=before is not None)

    async def answer(self, scope: Scope, receive: Receive, responder: Responder) -> None:
        """Answer a request in the interface that the responder speaks."""
        headers, ids = Headers(scope=scope), {}
        try:
            require_key(headers, self.keys)
            query = query_of(headers)
            ids = id_headers(query)
            with self._place():
                start = time.perf_counter()
                request = responder.read(await read_body(receive, headers, self.settings.limits))
                exchange = request, query, responder, start, segment_of(headers)
                conversation = Conversation(self.settings, self.lineup, self.metrics, *exchange)
                await unless_client_leaves(conversation.answer(), receive, responder)
        except ClientLeftError:
            self.metrics.refused("client_left", _LEFT)
        except ApiError as problem:
            self.metrics.refused(problem.code or "error", problem.status)
            await responder.error(problem, ids)
        except Exception as problem:  # whose message may quote what was asked
            self.metrics.refused("internal", 500)
            await responder.error(fault_within(problem), ids)

    @contextmanager
    def _place(self) -> Iterator[None]:
        """A place for a request. Raises ApiError (429) where all are taken."""
        if self.busy >= self.settings.limits.concurrency:
            raise ApiError(429, "too many requests at once: try again", "too_many_requests", wait=1.0)
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    async def close(self) -> None:
        """Finish shadow calls, as long as there is time, and close everything."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.limits.drain_seconds):
                await asyncio.gather(*(cascade.close() for cascade in [*self.cascades]))
        await self.clients.close()
        if self.log is not None:
            self.log.close()


def _news(lineup: Lineup, before: Lineup, models: str) -> Iterator[str]:
    """What is different now, a line each, for the log of the service; `models` is the file that they are in."""
    changed = [name for name, served in lineup.policies.items() if before.policies[name].digest != served.digest]
    for name in changed:
        served = lineup.policies[name]
        yield f"policy {name} is {served.digest} from now on: {' → '.join(served.policy.models)}"
    if lineup.models != before.models:
        yield f"{models} is taken up: {', '.join(lineup.models)}"
    elif not changed:
        yield "the files are read again: what they say is as before"


def open_log(settings: Settings) -> CallLog | None:
    """The call log, if there is to be one. Raises OSError where it cannot be opened."""
    logging = settings.logging
    if logging.path is None:
        return None
    return CallLog(logging.path, answers=logging.answers, prompts=logging.prompts)


class _Endpoint:
    """What answers questions, as an ASGI application: Starlette passes methods on as functions of a request."""

    def __init__(self, gateway: Gateway, responder: type[Responder]) -> None:
        self._gateway, self._responder = gateway, responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._gateway.answer(scope, receive, self._responder(send))


def build_app(settings: Settings) -> Starlette:
    """The application. Raises ValueError or OSError for settings and files that cannot be used."""
    gateway = Gateway(settings)
    chat, responses = _Endpoint(gateway, Responder), _Endpoint(gateway, ResponsesResponder)
    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/chat/completions", chat, methods=["POST"]),
        Route("/v1/responses", responses, methods=["POST"]),
        Route("/responses", responses, methods=["POST"]),
        Route("/v1/models", partial(_models, gateway), methods=["GET"]),
        Route("/models", partial(_models, gateway), methods=["GET"]),
        Route("/v1/models/{name:path}", partial(_model, gateway), methods=["GET"]),
        Route("/metrics", partial(_metrics, gateway), methods=["GET"]),
        Route("/", partial(_page, gateway), methods=["GET"]),
        Route("/health", _health, methods=["GET"]),
        Route("/ready", partial(_ready, gateway), methods=["GET"]),
    ]
    handlers = {ApiError: _error, 404: _no_path, 405: _no_path}
    app = Starlette(
        routes=routes,
        middleware=[*guards(settings.access, gateway.metrics)],
        lifespan=partial(_running, gateway),
        exception_handlers=handlers,
    )
    app.router.redirect_slashes = False  # to what the client calls this host
    app.state.gateway = gateway
    return app


@asynccontextmanager
async def _running(gateway: Gateway, _: Starlette) -> AsyncIterator[None]:
    with suppress(ValueError, RuntimeError, NotImplementedError, AttributeError):  # not in the main thread; Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, gateway.asked.set)
    watching = asyncio.create_task(gateway.watch())
    gateway.ready = True
    gateway.metrics.began(logging=gateway.log is not None)
    yield
    gateway.ready = False
    watching.cancel()
    await gateway.close()


def _model_list(lineup: Lineup) -> dict[str, Any]:
    """The body of GET /v1/models: the policies, then the models that can be named too."""
    data: list[dict[str, Any]] = []
    for name, served in lineup.policies.items():
        policy = served.policy
        told = {"models": list(policy.models), "policy_hash": served.digest, "expected": dict(policy.expected)}
        data.append({"id": name, "object": "model", "created": 0, "owned_by": "rcjax", "rcjax": told})
    data += [{"id": name, "object": "model", "created": 0, "owned_by": "upstream"} for name in lineup.models]
    return {"object": "list", "data": data}


async def _models(gateway: Gateway, request: Request) -> Response:
    require_key(request.headers, gateway.keys)
    return JSONResponse(_model_list(gateway.lineup))


async def _model(gateway: Gateway, request: Request) -> Response:
    require_key(request.headers, gateway.keys)
    name = request.path_params["name"]
    for model in _model_list(gateway.lineup)["data"]:
        if model["id"] == name:
            return JSONResponse(model)
    raise ApiError(404, "there is no policy or model of this name", "model_not_found", "model")


async def _metrics(gateway: Gateway, request: Request) -> Response:
    require_key(request.headers, gateway.keys)
    # In a thread, as the page of many workers takes a while, in which others would wait.
    text, kind = await asyncio.to_thread(gateway.metrics.text, request.headers.get("accept", ""))
    return Response(text, headers={"content-type": kind})


async def _page(gateway: Gateway, request: Request) -> Response:
    """The page of the service; browsers send the key as a password."""
    headers, (scheme, _, said) = request.headers, request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError):
            password = b64decode(said).partition(b":")[2].decode("latin-1")
            headers = Headers({"authorization": f"Bearer {password}"})
    try:
        require_key(headers, gateway.keys)
    except ApiError as problem:
        return Response(problem.message, problem.status, {"www-authenticate": 'Basic realm="rcjax"'})
    safe = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'", "cache-control": "no-store"}
    return HTMLResponse(draw_page(gateway.lineup, gateway.metrics.recent), headers=safe)


async def _health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _ready(gateway: Gateway, _: Request) -> Response:
    return JSONResponse({"ready": gateway.ready}, 200 if gateway.ready else 503)


async def _error(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, ApiError)
    return JSONResponse(problem.to_json(), problem.status, headers=problem.headers)


async def _no_path(request: Request, problem: Exception) -> Response:
    status = getattr(problem, "status_code", 404)
    what = "method" if status == 405 else "path"
    advice = "there are /v1/chat/completions, /v1/responses and /v1/models"
    error = ApiError(status, f"there is no such {what}: {advice}", f"unknown_{what}")
    return JSONResponse(error.to_json(), status, headers=getattr(problem, "headers", None))  # what is allowed
