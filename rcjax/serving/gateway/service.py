"""The service as an ASGI application: its paths, its state, its start and its end.

A request is refused for a wrong key or host, for its size or slowness, or if too many requests are being answered. A
client that disconnects ends its request.

Cross-site requests (CSRF): a web page can make a browser send requests to this machine. The page cannot read the
answers, but they cost money. No page knows a key. If the service has no keys, it refuses the requests that browsers
send without a preflight.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache, partial
from typing import Any
from weakref import WeakSet

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rcjax._base.codec import visible
from rcjax.serving.call_log import Call
from rcjax.serving.cascade import Cascade
from rcjax.serving.exchange import gather_all
from rcjax.serving.gateway.catalog import (
    Catalog,
    CatalogMaker,
    EndpointConnections,
    ServiceSettings,
    describe_problem,
    file_signature,
    is_local,
)
from rcjax.serving.gateway.chat import RequestContext, RequestHandler, Responder
from rcjax.serving.gateway.chat_request import (
    BodyReader,
    ChatRequest,
    ClientLeftError,
    id_headers,
    read_query_id,
    read_segment,
    require_permitted_fields,
)
from rcjax.serving.gateway.clients import ApiError, Client, ClientLimits, log_fault
from rcjax.serving.gateway.metrics import Metrics
from rcjax.serving.gateway.responses import ResponsesResponder
from rcjax.serving.openai_client import fair_queue


async def cancel_on_disconnect(work: Coroutine[Any, Any, None], receive: Receive, responder: Responder) -> None:
    """Await the work of an answer. If the client disconnects first, cancel the work and raise ClientLeftError."""
    task = asyncio.current_task()
    assert task is not None

    async def watch() -> bool:
        while (await receive())["type"] != "http.disconnect":
            pass
        return not responder.is_complete and task.cancel()

    watching = asyncio.create_task(watch())
    try:
        await work
    except asyncio.CancelledError:
        has_left = watching.done() and not watching.cancelled() and watching.result()
        if has_left and not task.uncancel():  # nobody else has cancelled it
            raise ClientLeftError from None
        raise
    finally:
        watching.cancel()


_PROBES = frozenset({"/health", "/ready"})  # allowed under any host name, because they reveal nothing


class _HeaderGuard:
    """Refuses requests by their Host and, if the service has no keys, by their Origin and Content-Type."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics
        self._keyless = settings.key_env is None and settings.keys_file is None
        self._hosts = None if settings.hosts is None else frozenset(host.casefold() for host in settings.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] == "http" and scope["path"] not in _PROBES else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        self._metrics.count_refusal(problem.reason, problem.status)
        await Responder(send).send_error(problem, {"connection": "close"})

    def _problem(self, scope: Scope) -> ApiError | None:
        """Return the error of a request that is refused by its headers; None for an admitted one."""
        headers = Headers(scope=scope)
        if self._hosts is not None and not all(_is_allowed_host(host, self._hosts) for host in headers.getlist("host")):
            problem = "the service is not known by the name in Host: --allow-host adds names"
            return ApiError(421, problem, "unknown_host")
        if self._keyless and "origin" in headers:
            return ApiError(403, "web pages may not call a service without a key", "foreign_origin")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if self._keyless and scope["method"] == "POST" and kind != "application/json":
            return ApiError(415, "send Content-Type: application/json", "unsupported_media_type")
        return None


@lru_cache(maxsize=256)
def _is_allowed_host(host: str, allowed: frozenset[str]) -> bool:
    """Return whether a Host, with or without a port, is among the allowed names, or can be called by this machine only.

    >>> [_is_allowed_host(host, frozenset()) for host in ("LocalHost:8080", "[::1]:8080", "::1", "10.0.0.1", "[::1]x")]
    [True, True, True, False, False]
    """
    match = re.fullmatch(r"\[([^]]*)\](?::\d*)?|([^:]*):\d+", host)
    name = (host if match is None else match[match.lastindex or 0]).casefold()
    return name in allowed or is_local(name)


_LOGGER = logging.getLogger("rcjax.serving")

_CLIENT_LEFT = ApiError(499, "the client has left", "client_left")  # counted, and sent to nobody
_STOPPED = ApiError(503, "the service is shutting down: retry", "service_stopped")

STOPPING = "rcjax is stopping"  # in the state of requests after the signal to stop

RELOAD_SECONDS = 1.0  # seconds between two looks at the files

CANCEL_SECONDS = 2.0  # seconds for cancelled requests to end: they close their connections to models


class Gateway:
    """The state of one process of the service."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.ledger = settings.open_ledger()
        self.metrics = Metrics(shares_balance=self.ledger is not None)
        self.connections = EndpointConnections(settings.limits.timeout)
        self.body_reader = BodyReader(settings.limits)
        self.in_progress = 0
        """Number of requests that have been read and not yet answered."""
        self._totals = settings.make_client_totals() if self.ledger is None else self.ledger
        self.client_limits = ClientLimits(self._totals)
        self.log = settings.open_log(self.metrics.count_line)
        self._maker = CatalogMaker(
            settings, self.connections.api_client, self.log, self._count_call, self.metrics.count_shadow, self.ledger
        )
        self.cascades: WeakSet[Cascade] = WeakSet()
        self.reload_requested = asyncio.Event()
        """Set by a signal, to have the files read again."""
        self._refusal: tuple[list[Any], str] | None = None  # (signatures, problem) of files that are still refused
        self._files: list[Any] | None = self._signatures()  # before the files are read: no later change is missed
        self.install(self._maker.read(), None)
        self._update_bills()
        self._failing: set[str] = set()  # steps of the watch whose last run failed
        self.client_limits.track(self.catalog.key_ring.named)
        self._totals.sync()

    def _count_call(self, call: Call, policy: str | None = None) -> None:
        """Count a call that has ended."""
        self.metrics.count_call(call, policy)
        client = None if call.query.handling.is_beyond_policy else self.catalog.key_ring.by_name(call.query.client)
        if client is not None:
            self.client_limits.pay(client, call.cost)

    def _signatures(self) -> list[Any]:
        """Return a signature of each file, which changes with the file."""
        paths = (*self.settings.policies.values(), self.settings.models_file, self.settings.keys_file)
        return [file_signature(path) for path in paths if path is not None]

    def _update_bills(self) -> None:
        """Update the bills and their figures with the spending of others, even if this worker is idle."""
        for name, deployment in self.catalog.policies.items():
            deployment.cascade.billing.catch_up()
            self.metrics.set_bill(name, deployment.cascade.billing)
        if self.ledger is not None:
            self.metrics.set_ledger(is_up=self.ledger.down_since is None, waiting=self.ledger.waiting)

    async def _share_totals(self) -> None:
        """Synchronise the clients' totals with other workers."""
        self.client_limits.track(self.catalog.key_ring.named)
        await asyncio.to_thread(self._totals.sync)

    async def watch(self) -> None:
        """Read changed files again, and follow the spending of others, until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.reload_requested.wait(), RELOAD_SECONDS)
            await self._try_step(self._reload_files, "new files are not loaded")
            await self._try_step(self._follow_spending, "the spending of other workers cannot be read")
            await self._try_step(self._share_totals, "the spending of clients cannot be saved, and is lost at a stop")

    async def _try_step(self, step: Callable[[], Awaitable[None]], failure: str) -> None:
        """Run a step of the watch. An error ends no watch: it is logged, once until the step works again."""
        try:
            await step()
        except Exception as problem:
            if failure not in self._failing:
                _LOGGER.error("%s: %s", failure, describe_problem(problem))
            self._failing.add(failure)
        else:
            self._failing.discard(failure)

    async def _follow_spending(self) -> None:
        self._update_bills()

    async def _reload_files(self) -> None:
        """Read the files again if one has changed, or on a signal; if a file is invalid, the old policies stay.

        A file that cannot be read is tried again each time, as are policies that cannot take over.
        """
        files, is_requested = self._signatures(), self.reload_requested.is_set()
        if not is_requested and files == self._files:
            return
        self._files = files
        self.reload_requested.clear()
        before, catalog = self.catalog, None
        try:
            catalog = await asyncio.to_thread(self._maker.read, before)
            self.install(catalog, before)
        except Exception as problem:  # a file may hold anything
            if catalog is not None or isinstance(problem, OSError):  # it may pass without a change of the file
                self._files = None
            refusal = files, describe_problem(problem)
            if refusal == self._refusal and not is_requested:
                return
            self._refusal = refusal
            for name in self.settings.policies:
                self.metrics.count_reload(name, "refused")
            _LOGGER.error("a new file is refused, the old policies stay: %s", refusal[1])
            return
        self._refusal = None
        for line in catalog.describe_changes(before, self.settings.models_file.name):
            _LOGGER.info(visible(line))

    def install(self, catalog: Catalog, before: Catalog | None) -> None:
        """Serve a new catalog; requests in progress keep the policies that they began with."""
        if before is not None:
            catalog.continue_from(before)
        self.catalog = catalog
        self.cascades.update(deployment.cascade for deployment in catalog.policies.values())
        for name in catalog.changed_policies(before):
            self.metrics.count_reload(name, None if before is None else "taken up")

    async def answer(self, scope: Scope, receive: Receive, responder: Responder) -> None:
        """Answer a request in the responder's interface."""
        headers, ids, query, client = Headers(scope=scope), {}, "", None
        try:
            client = self.catalog.key_ring.client_of(headers)
            query = read_query_id(headers, client.name)
            ids = id_headers(query)
            self._require_slot()
            start = time.perf_counter()
            with self.client_limits.admit(client), self.body_reader.open_memory() as memory:
                body = await self.body_reader.read(receive, headers, memory, client.name)
                await fair_queue("requests").wait_turn()
                with self._count_in_progress():
                    request = responder.read(body)
                    self._require_permitted(request, client)
                    reserve_money = partial(self.client_limits.reserve, client)
                    context = RequestContext(client, query, read_segment(headers), reserve_money)
                    handler = RequestHandler(
                        self.settings, self.catalog, self.metrics, request, context, responder, start
                    )
                    await cancel_on_disconnect(handler.answer(), receive, responder)
            self.metrics.count_response(client.name, 200)
        except ClientLeftError:
            self.count_refusal(_CLIENT_LEFT, client)
        except ApiError as problem:
            self.count_refusal(problem, client)
            await responder.send_error(problem, ids)
        except asyncio.CancelledError:  # the time to drain requests is over
            self.count_refusal(_STOPPED, client)
            await responder.send_error(_STOPPED, ids)
        except Exception as problem:  # its message may quote a prompt
            fault = log_fault(problem, query)
            self.count_refusal(fault, client)
            await responder.send_error(fault, ids)

    def _require_slot(self) -> None:
        """Refuse a request with ApiError 429 while the limit's number of requests is being answered."""
        if self.in_progress >= self.settings.limits.concurrency:
            raise ApiError(429, "too many requests at once: try again", "too_many_requests", retry_after=1.0)

    @contextmanager
    def _count_in_progress(self) -> Iterator[None]:
        """Count a request among those being answered until its answer has been sent."""
        self._require_slot()
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1

    def count_refusal(self, problem: ApiError, client: Client | None = None) -> None:
        """Count a request that is answered with an error; the client is None before its key is known."""
        self.metrics.count_refusal(problem.reason, problem.status)
        self.metrics.count_response(None if client is None else client.name, problem.status)

    def _require_permitted(self, request: ChatRequest, client: Client) -> None:
        """Refuse a request with ApiError if the service's limits or the client's permissions exclude it."""
        require_permitted_fields(request, self.settings.limits)
        catalog, name = self.catalog, request.model
        if (name in catalog.policies or name in catalog.models) and not client.may_call(name, catalog.policies):
            problem = "this key may not use this model: GET /v1/models lists the models of this key"
            raise ApiError(403, problem, "not_permitted", "model")

    async def close(self) -> None:
        """Drain the shadow calls within the time limit, and close everything; a failed step prevents no other step.

        Uvicorn cancels late requests without waiting for their end, at which their clients pay.
        """
        end = time.monotonic() + CANCEL_SECONDS
        while self.in_progress and time.monotonic() < end:
            await asyncio.sleep(0.01)
        await self._try_step(self._drain, "shadow calls and checks have not ended")
        await self._try_step(self.connections.close, "connections are not closed")
        await self._try_step(self._share_totals, "the last spending of clients is not saved")
        if self.log is not None:
            self.log.close()
        if self.ledger is not None:
            await asyncio.to_thread(self.ledger.close)

    async def _drain(self) -> None:
        """Close each cascade within the time limit, and raise the first error at the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.limits.drain):
                await gather_all(cascade.close() for cascade in [*self.cascades])


class _CompletionRoute:
    """An ASGI application that answers requests: an object, because Starlette treats functions as request handlers."""

    def __init__(self, gateway: Gateway, responder: type[Responder]) -> None:
        self._gateway, self._responder = gateway, responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._gateway.metrics.track_request():
            await self._gateway.answer(scope, receive, self._responder(send))


def build_app(settings: ServiceSettings) -> Starlette:
    """Build the application. Raises ValueError or OSError for invalid settings and files."""
    gateway = Gateway(settings)
    chat, responses = _CompletionRoute(gateway, Responder), _CompletionRoute(gateway, ResponsesResponder)
    routes = [
        route
        for base in ("/v1", "")  # base URLs are written with and without /v1
        for route in (
            Route(f"{base}/chat/completions", chat, methods=["POST"]),
            Route(f"{base}/responses", responses, methods=["POST"]),
            Route(f"{base}/models", partial(_models, gateway), methods=["GET"]),
            Route(f"{base}/models/{{name:path}}", partial(_models, gateway), methods=["GET"]),
        )
    ]
    routes += [
        Route("/metrics", partial(_metrics, gateway), methods=["GET"]),
        Route("/health", _health, methods=["GET"]),
        Route("/ready", _ready, methods=["GET"]),
    ]
    guard = Middleware(_HeaderGuard, settings=settings, metrics=gateway.metrics)
    unknown_path = partial(_handle_unknown_path, gateway)
    handlers = {ApiError: partial(_handle_error, gateway), 404: unknown_path, 405: unknown_path}
    app = Starlette(
        routes=routes, middleware=[guard], lifespan=partial(_lifespan, gateway), exception_handlers=handlers
    )
    app.router.redirect_slashes = False  # a redirect would go to the client's own name of this host
    app.state.gateway = gateway
    return app


@asynccontextmanager
async def _lifespan(gateway: Gateway, _: Starlette) -> AsyncIterator[None]:
    with suppress(ValueError, RuntimeError, NotImplementedError, AttributeError):  # not in the main thread; Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, gateway.reload_requested.set)
    watching = asyncio.create_task(gateway.watch())
    gateway.metrics.count_start(logging=gateway.log is not None)
    yield
    watching.cancel()
    await gateway.close()


async def _models(gateway: Gateway, request: Request) -> Response:
    """List the policies, then the models, that the client may call; or describe one of them."""
    client = gateway.catalog.key_ring.client_of(request.headers)
    data = list[dict[str, Any]]()
    for name, deployment in gateway.catalog.policies.items():
        policy = deployment.file_policy
        about = {"models": list(policy.models), "policy_hash": deployment.digest, "expected": dict(policy.expected)}
        data.append({"id": name, "object": "model", "created": 0, "owned_by": "rcjax", "rcjax": about})
    data += [{"id": name, "object": "model", "created": 0, "owned_by": "upstream"} for name in gateway.catalog.models]
    data = [model for model in data if client.may_call(model["id"], gateway.catalog.policies)]
    if "name" not in request.path_params:
        return JSONResponse({"object": "list", "data": data})
    for model in data:
        if model["id"] == request.path_params["name"]:
            return JSONResponse(model)
    raise ApiError(404, "there is no policy or model of this name", "model_not_found", "model")


async def _metrics(gateway: Gateway, request: Request) -> Response:
    if not gateway.catalog.key_ring.client_of(request.headers).metrics:
        raise ApiError(403, "this key may not see /metrics: its client needs metrics = true", "not_permitted")
    # In a thread: with many workers, the page takes a while.
    text, kind = await asyncio.to_thread(gateway.metrics.render, request.headers.get("accept", ""))
    return Response(text, headers={"content-type": kind})


async def _health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _ready(request: Request) -> Response:
    """Return status 503 after the signal to stop: a connection may still be open then."""
    if request.scope.get("state", {}).get(STOPPING):
        return JSONResponse({"status": "stopping"}, 503)
    return await _health(request)


async def _handle_error(gateway: Gateway, _: Request, problem: Exception) -> Response:
    assert isinstance(problem, ApiError)
    gateway.count_refusal(problem)
    return JSONResponse(problem.to_json(), problem.status, headers=problem.headers)


async def _handle_unknown_path(gateway: Gateway, _: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    headers = problem.headers or {}
    if problem.status_code == 405:
        error = ApiError(405, f"this path accepts {headers.get('Allow')} only", "unknown_method")
    else:
        advice = "use /v1/chat/completions, /v1/responses or /v1/models"
        error = ApiError(404, f"there is no such path: {advice}", "unknown_path")
    gateway.count_refusal(error)
    return JSONResponse(error.to_json(), error.status, headers=headers)  # the allowed methods
