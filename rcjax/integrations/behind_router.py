"""A policy whose models are those of a LiteLLM router: where its file is, and what becomes of a request for it.

Standard library, Starlette and the client of OpenAI; LiteLLM is not imported here.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from starlette.datastructures import Headers

from rcjax._base.wording import visible
from rcjax.integrations.router_client import WITH, RouterClient, router_client
from rcjax.policy.ladder import load_policy
from rcjax.serving.asking import known_prices, read_price
from rcjax.serving.call_log import Call
from rcjax.serving.completions import Usage, said_bytes
from rcjax.serving.gateway.api_errors import ApiError, fault_within
from rcjax.serving.gateway.chat import Conversation, query_of, segment_of
from rcjax.serving.gateway.chat_request import ChatRequest
from rcjax.serving.gateway.lineup import Lineup, file_signature, make_lineup
from rcjax.serving.gateway.responder import Responder
from rcjax.serving.gateway.settings import RequestLimits, Settings
from rcjax.serving.models_file import ServedModel
from rcjax.serving.usage import request_bytes

PROVIDER = "rcjax"
"""The name of the provider in LiteLLM: models are called rcjax/NAME."""


#: The file that models and policies are told in.
_CONFIG = "config.yaml"

_LOGGER = logging.getLogger("rcjax.serving")

_DEADLINE = 600.0  # seconds for a request whose program tells none


@dataclass(frozen=True, slots=True)
class PolicySource:
    """Where a policy is: by the entry of a model in LiteLLM's configuration."""

    name: str
    """The name of the policy: that of the model, without the provider."""
    file: str
    """The name of its file."""
    signal: str | None
    """The name of the signal of its models, where the policy does not record one."""

    def path(self, folders: Sequence[Path]) -> Path:
        """Its file, in the first of the folders that has it. Raises ValueError where none has."""
        path = next((path for path in (folder / self.file for folder in folders) if path.is_file()), None)
        if path is None:
            where = f"in the folder that LiteLLM was started in, nor beside {_CONFIG}"
            what = f"model: {PROVIDER}/{self.name}: there is no file {self.file} {where}"
            raise ValueError(f"{what}: put it there, or correct policy")
        return path


def policy_source(name: str, models: Sequence[Mapping[str, Any]]) -> PolicySource:
    """Where the policy of a model is, by the router's list of models: a request cannot name another file.

    Args:
        name: of the model, without the provider.
        models: the router's list.

    Raises ApiError where the list does not have it.
    """
    parameters = [entry["litellm_params"] for entry in models]
    mine = [listed for listed in parameters if str(listed.get("model")) == f"{PROVIDER}/{name}"]
    policies = {(listed.get("policy"), listed.get("signal")) for listed in mine}
    where = f"model: {PROVIDER}/{name}"
    if len(policies) != 1 or next(iter(policies))[0] is None:
        what = "names several policies" if len(policies) > 1 else "has no policy"
        what = f"{what} in {_CONFIG}: give its litellm_params policy: FILE.json, one for a name"
        raise _misconfigured(f"{where} {what}")
    policy, signal = policies.pop()
    return PolicySource(name, str(policy), None if signal is None else str(signal))


def _misconfigured(message: str) -> ApiError:
    return ApiError(500, visible(message), "misconfigured", lasting=True)


class RoutedAnswer(Responder):
    """What answers a request: a document, or chunks as they come, and the headers; whoever asks for them begins it.

    Args:
        work: what answers the request.
    """

    def __init__(self, work: Callable[[RoutedAnswer], Coroutine[Any, Any, None]]) -> None:
        super().__init__(_nobody)
        self.headers: Mapping[str, str] = {}
        self.calls: list[Call] = []
        """That have ended."""
        self._estimate: Callable[[str, int], float] = lambda model, said: 0.0
        self._model, self._said = "", 0
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._parts: asyncio.Queue[Mapping[str, Any] | Exception | None] = asyncio.Queue()
        self._started = asyncio.Event()

    async def document(self, document: Mapping[str, Any], headers: Mapping[str, str], status: int = 200) -> None:
        """Take all of an answer."""
        await self.event(document, headers)
        await self.done()

    async def event(self, document: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Take a chunk; the headers with the first."""
        if not self.begun:
            self.begun, self.headers, self._model = True, headers, document["model"]
            self._started.set()
        self._said += sum(said_bytes(choice.get("delta")) for choice in document["choices"])
        self._parts.put_nowait(_without_cost(document))

    async def done(self) -> None:
        """End it."""
        if not self.complete:
            self.complete = True
            self._parts.put_nowait(None)

    def fail(self, problem: Exception) -> None:
        """End it by an error."""
        self.complete = True
        self._started.set()
        self._parts.put_nowait(problem)

    @property
    def spent(self) -> float:
        """Money so far; of an answer that is still coming, or was left, for what was sent and said of it."""
        comes = self.begun and self._model not in [call.model for call in self.calls]
        return math.fsum(call.cost for call in self.calls) + (self._estimate(self._model, self._said) if comes else 0.0)

    def estimate_by(self, lineup: Lineup, request: ChatRequest) -> None:
        """Estimate by the prices of these models what this request costs while its answer comes."""
        sent = request_bytes(request.messages, request.fields)
        self._estimate = lambda model, said: lineup.caller.endpoints[model].account(
            Usage(replies=1, uncounted_read=sent, uncounted_written=said)
        )["cost"]

    async def first_headers(self) -> Mapping[str, str]:
        """The headers, as soon as there is something of it; none if it fails before."""
        self._begin()
        await self._started.wait()
        return self.headers

    async def parts(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """The document, or the chunks as they come. Raises what ended it; whoever leaves it ends the work."""
        self._begin()
        try:
            while (part := await self._parts.get()) is not None:
                if isinstance(part, Exception):
                    raise part
                yield part
        finally:
            if self._task is not None:
                self._task.cancel()

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._work(self))


async def _nobody(message: Any) -> None:
    raise AssertionError(message)


def _without_cost(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A completion whose usage is OpenAI's: what it cost stands in `rcjax`."""
    usage = document.get("usage")
    if not isinstance(usage, Mapping) or "cost" not in usage:
        return document
    return {**document, "usage": {name: value for name, value in usage.items() if name != "cost"}}


_ANSWERING: ContextVar[RoutedAnswer] = ContextVar("_ANSWERING")


def _observe(call: Call, policy: str | None = None) -> None:
    _ANSWERING.get().calls.append(call)


class Desk:
    """Answers requests by policies before the models of a router.

    Args:
        router: gives the router of the moment.
        folders: gives the folders that files of policies are named from.
    """

    def __init__(self, router: Callable[[], Any], folders: Callable[[], Sequence[Path]]) -> None:
        self._router, self._folders = router, folders
        self._lineups: WeakKeyDictionary[Any, dict[PolicySource, tuple[Any, Settings, Lineup]]] = WeakKeyDictionary()

    async def answer(
        self,
        request: ChatRequest,
        headers: Mapping[str, str],
        deadline: float | None,
        answer: RoutedAnswer,
        **extra: Any,
    ) -> None:
        """Answer a request; what goes wrong is in the answer. The router gets `extra` with each attempt, too.

        Args:
            request: whose `model` is the name of a policy.
            headers: of the client: x-rcjax-query, x-rcjax-segment.
            deadline: seconds for all of it; None for ten minutes.
            answer: what takes it.
        """
        mark: dict[str, Any] = {"policy": request.model}
        token = WITH.set({**extra, "metadata": {PROVIDER: mark}})
        _ANSWERING.set(answer)
        try:
            client = Headers(dict(headers))
            mark["query"] = query = query_of(client)
            settings, lineup = self._lineup(policy_source(request.model, self._router().model_list))
            settings = replace(settings, limits=replace(settings.limits, deadline=deadline or _DEADLINE))
            answer.estimate_by(lineup, request)
            conversation = Conversation(settings, lineup, None, request, query, answer, segment=segment_of(client))
            await conversation.answer()
        except ApiError as problem:
            answer.fail(problem)
        except Exception as problem:  # whose message may quote what was asked
            answer.fail(fault_within(problem))
        finally:
            WITH.reset(token)

    def _lineup(self, source: PolicySource) -> tuple[Settings, Lineup]:
        """The policy of a source, read again where its file has changed; the one before goes on if it is broken, or
        not there."""
        lineups = self._lineups.setdefault(asyncio.get_running_loop(), {})
        before, stamp = lineups.get(source), None
        try:
            path = source.path(self._folders())
            stamp = path, file_signature(path)
            if before is None or before[0] != stamp:
                lineups[source] = stamp, *self._read(source, path)
                if before is not None:
                    lineups[source][2].go_on(before[2])
        except (ValueError, OSError) as problem:
            if before is None:
                raise _misconfigured(str(problem)) from None
            if before[0] != stamp:
                _LOGGER.warning(visible(f"{problem}: the policy before goes on"))
            lineups[source] = stamp, *before[1:]
        return lineups[source][1:]

    def _read(self, source: PolicySource, path: Path) -> tuple[Settings, Lineup]:
        policy, router = load_policy(path), self._router()
        entries = {model: router.get_model_list(model_name=model) or [] for model in policy.models}
        missing = [model for model, several in entries.items() if not several]
        if missing:
            what = f"{path.name} asks {', '.join(missing)}, which the model_list of {_CONFIG} does not have"
            raise ValueError(f"{what}: add it under this model_name, or as a model_group_alias")
        asked = {model: [str(one["litellm_params"].get("model")) for one in some] for model, some in entries.items()}
        circles = [model for model, names in asked.items() if any(name.startswith(f"{PROVIDER}/") for name in names)]
        if circles:
            what = f"{path.name} asks {', '.join(circles)}, which is a policy itself in {_CONFIG}"
            raise ValueError(f"{what}: give the model another model_name than the policy")
        prices = known_prices(policy)
        models = {
            name: ServedModel(name, name, read_price(prices.get(name), name), signal=source.signal)
            for name in policy.models
        }
        settings = Settings({source.name: path}, Path(_CONFIG), limits=RequestLimits(retries=0, timeout=_DEADLINE))
        client: RouterClient = router_client(self._router)
        return settings, make_lineup(settings, models, lambda model: client, observe=_observe)
