"""Running a cascade: ask model after model, at OpenAI-compatible endpoints, until the policy keeps an answer.

    cascade = Cascade(load_policy("policy.json"), AsyncOpenAI(), signal=signals.Choice(), log=CallLog("calls.jsonl"))
    result = await cascade.ask("Which planet is largest? A Mars, B Jupiter. Reply with the letter.", query_id="q1")

Needs `pip install 'rcjax[run]'`; neither JAX nor numpy is imported.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType, NoneType
from typing import Any, Literal

from rcjax._base.codec import number, require_instance, takes, whole_number
from rcjax.policy.policy import AbstractPolicy, Answer, Defer, Policy, hash_to_uniform
from rcjax.policy.signals import Signal
from rcjax.policy.signals.answers import request_form_of
from rcjax.serving.billing import BudgetSpentError, ReserveMoney, SharedBill, SpendingUnknownError
from rcjax.serving.call_log import CallLog, CascadeError, Charge, Handling, Query, Result, Status, require_query
from rcjax.serving.endpoints import RequestDefaults, make_endpoints, require_options
from rcjax.serving.exchange import Exchange, ModelCaller, Observe, ReceiveChunk, calls_of, gather_all, raise_first
from rcjax.serving.failures import CascadeWarning
from rcjax.serving.models_file import ServedModel
from rcjax.serving.openai_client import RequestMemory, openai, request_memory
from rcjax.serving.shadow import ShadowRate, ShadowShare, make_shadow_share
from rcjax.serving.totals import Ledger
from rcjax.serving.usage import sum_usages

Messages = str | Sequence[Mapping[str, Any]]

_SECONDS_BETWEEN_TRIES = 0.05  # seconds until a query of a batch asks again for money that others reserve

_SHADOW_QUERIES_PER_SLOT = 16  # most shadow queries under way for each slot of shadow calls; their prompts take memory


@dataclass(frozen=True, slots=True)
class _PendingShadowCalls:
    """The calls of a shadow query that the policy did not make."""

    query: Query
    models: Sequence[str]
    """The models to ask."""
    exchanges: list[Exchange]
    """The exchanges with these models so far."""
    resources: ExitStack
    """The query's slot, money and bytes, released at its end; then the models that were not asked are logged."""
    memory: RequestMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Options of a cascade in service: its limits, its shadow queries, its money and its observers.

    Args:
        concurrency: largest number of requests in flight, without those that back off. A quarter as many requests of
            shadow calls come on top.
        timeout: seconds for one attempt. An answer that takes longer, here or by a proxy's 504 or 524, may be charged,
            so it is not requested again.
        retries: retries of a request after 408, 409, 429, another 5xx, or a connection that fails or is lost.
        shadow: share of queries that go to all models, or their number in a period
            (`rcjax.serving.ShadowRate.parse("200/week")`). These shadow queries are a fair sample to tune on. The
            `shadow_share` of the replaced cascade continues its traffic count. No answer waits for the added calls,
            which have slots of their own; while 16 shadow queries per slot are under way, no other is drawn.
        salt: a secret for the draws of shadow queries and rungs, beside a query's id and text. Without it, clients who
            choose their ids could choose the sample or the rung.
        name: the policy's name in the log and the ledger.
        ledger: store of the spending of all replicas, in place of the file beside the log. The caller closes it.
        stops_at_budget: whether a query that the money for a period does not cover raises
            `rcjax.serving.billing.BudgetSpentError`, rather than get the answer of the cheapest rung; and while
            its spending is unknown, `rcjax.serving.billing.SpendingUnknownError`. `ask_all` raises neither.
        observe: called with each `Call` as it ends, shadow calls too; it should return at once. Its exceptions become
            warnings.
        observe_shadow: called for each query drawn as a shadow query, with "asked" or with the resource that it lacks:
            "no slot", "no memory" or "no money".

    Raises TypeError or ValueError for invalid options.
    """

    concurrency: int = 64
    timeout: float = 30.0
    retries: int = 2
    shadow: float | ShadowRate | ShadowShare = 0.0
    salt: str | None = None
    name: str = "policy"
    ledger: Ledger | None = None
    stops_at_budget: bool = False
    observe: Observe | None = None
    observe_shadow: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        whole_number(self.concurrency, "concurrency", 1)
        whole_number(self.retries, "retries", 0)
        if not number(self.timeout, "timeout", 0.0, math.inf):
            raise ValueError("timeout must be above 0 seconds")
        require_instance(self.salt, (str, NoneType), "salt")
        require_instance(self.ledger, (Ledger, NoneType), "ledger")


_USUAL_OPTIONS = ServiceOptions()


class Cascade:
    """Asks the models of a policy until one is sure enough.

    A ladder tuned for a budget follows the bill: `billing` has the money paid, the budget, and the position on the
    ladder. Shadow calls count towards money for a period, never towards a budget per query. If the budget is money for
    a period, a file beside `log` holds the spending of earlier runs and of other processes.

    If a model still fails after its retries, the next larger model of the policy is asked. If all models of a rung
    fail, the `fallbacks` are asked. An answer whose confidence cannot be read is treated as an answer of the lowest
    confidence. If the largest model fails or the time is up, the answer of highest confidence so far counts (`status`
    "best so far"). Retries wait as long as the server says; if that is over 120 s, or beyond the time left, there is
    no retry.

    Args:
        policy: a `Policy`, or a `Ladder`, which sends each query by one of its rungs.
        api_client: an `openai.AsyncOpenAI` for any OpenAI-compatible endpoint, or one for each model by name.
        signal: the signal, from `rcjax.policy.signals`, that reads the confidence; or a signal for each model by name.
            It must be the signal of the policy's log. A policy tuned on a log of `rcjax collect` records its signal:
            then none is needed, and another is refused. The record of a `rcjax.policy.signals.ReplyCheck` that runs
            code has only its name: give the check here. A check has `timeout` seconds for a verdict.
        log: the log that each call is written to.
        options: options of `chat.completions.create` for every question, such as `{"max_tokens": 1, "temperature": 0}`.
            Precedence, highest first: (1) the signal's options, as `models` may set them; (2) `ask(options=)`; (3) the
            options of `models`; (4) `options`; (5) the policy's record. A second question has the signal's options,
            and `extra_body`, `extra_headers` and `extra_query` of `options`.
        models: settings of single models: their names at the endpoint, options that override all others, and prices
            per million tokens in place of the policy's. Without a price, each attempt costs the model's mean in the
            log. Models outside the policy are asked only on shadow queries, for a later tuning; models that the tuning
            has not seen need prices.
        service: limits, shadow queries, money and observers of the service.

    Raises ValueError for invalid arguments. Use one cascade within one event loop, and leave it as a context
    (`async with`) or `await cascade.close()`, so that shadow calls under way are finished.
    """

    @takes(
        policy=AbstractPolicy,
        log=(CallLog, None),
        options=(Mapping, None),
        models=(Mapping, None),
        service=ServiceOptions,
    )
    def __init__(
        self,
        policy: AbstractPolicy,
        api_client: openai.AsyncOpenAI | Mapping[str, openai.AsyncOpenAI],
        *,
        signal: Signal | Mapping[str, Signal | None] | None = None,
        log: CallLog | None = None,
        options: Mapping[str, Any] | None = None,
        models: Mapping[str, ServedModel] | None = None,
        service: ServiceOptions = _USUAL_OPTIONS,
    ) -> None:
        self.policy = policy
        self.models = policy.models
        self.all_models: tuple[str, ...] = tuple(dict.fromkeys([*policy.models, *(models or {})]))
        self.shadow_share = make_shadow_share(service.shadow, log, service.name)
        self.shadow = self.shadow_share.shadow
        if not self.shadow and len(self.all_models) > len(policy.models):
            others = ", ".join(self.all_models[len(policy.models) :])
            raise ValueError(f"models: {others}: the policy has {', '.join(policy.models)}; others need shadow above 0")
        self.billing = SharedBill(policy, service.name, log, service.ledger, stops_at_budget=service.stops_at_budget)
        defaults = RequestDefaults(api_client, signal, options or {}, models or {}, service.timeout, service.retries)
        endpoints = make_endpoints(policy, self.all_models, defaults)
        self._model_caller = ModelCaller(endpoints, log, service.concurrency, service.observe, service.timeout)
        self._observe_shadow = service.observe_shadow or (lambda outcome: None)
        self._salt, self._concurrency = service.salt, service.concurrency
        self._background: set[asyncio.Task[Any]] = set()
        self._shadow_queries, self._warned_shadow = 0, False

    async def ask(
        self,
        messages: Messages,
        query_id: int | str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        deadline: float | None = None,
        deliver: ReceiveChunk | None = None,
        segment: str | None = None,
        client: str | None = None,
        reserve: ReserveMoney = nullcontext,
    ) -> Result:
        """Answer one query.

        Args:
            messages: the messages as in the API, or the user's text.
            query_id: the query's id, for the log and the draws; random by default.
            options: options of this query's requests; they override the cascade's options, but not the signal's.
            deadline: seconds for the whole query. Each model but the last gets at most half of the time left; when no
                time is left, the surest answer so far counts.
            deliver: receives the answer of the last model, which is always kept, chunk by chunk while it comes. After
                the first chunk no other model can be asked: an answer that breaks off is then a failure. Exceptions of
                `deliver` become warnings; the answer is in the result.
            segment: the query's segment, if the policy has a cascade for each segment; the log keeps it.
            client: the client's name; the log keeps it.
            reserve: called with the dollars that a fallback may cost; the fallback is asked within the context.

        Raises CascadeError if no model answers; TypeError or ValueError for invalid arguments.
        """
        require_query(query_id, messages)
        for argument, value in {"segment": segment, "client": client}.items():
            require_instance(value, (str, NoneType), argument)
        request_options = dict({} if options is None else options)
        require_options(request_options)
        if deadline is not None and not number(deadline, "deadline", 0.0, math.inf):
            raise ValueError("deadline must be above 0 seconds")
        full = replace(self._make_query(messages, query_id, request_options), segment=segment, client=client)
        end = None if deadline is None else time.monotonic() + deadline
        result, shadow_calls = await self._answer(full, end, deliver, reserve)
        if shadow_calls is not None:
            task = asyncio.create_task(self._ask_others(shadow_calls))
            self._background.add(task)  # the event loop keeps only a weak reference
            task.add_done_callback(self._background.discard)
            # A task cancelled before it starts never enters its `with`: release here.
            task.add_done_callback(lambda _: shadow_calls.resources.close())
        if result.status == "failed":
            raise CascadeError(result)
        return result

    async def ask_all(self, questions: Iterable[tuple[int | str, Messages]]) -> list[Result]:
        """Answer pairs of an id and messages, many at a time; the results are in the order of the questions.

        A query that no model answers, or that the money does not cover, has the status "failed" and raises nothing. A
        query waits while the money is reserved for queries under way. Shadow calls are finished too. Raises TypeError
        for an invalid id or invalid messages, before any model is asked.
        """
        slots = asyncio.Semaphore(self._concurrency)

        async def answer(query_id: int | str, messages: Messages) -> Result:
            async with slots:
                result, shadow_calls = await self._answer_when_covered(self._make_query(messages, query_id))
                if shadow_calls is not None:
                    await self._ask_others(shadow_calls)
                return result

        listed = list(questions)
        for query_id, messages in listed:
            require_query(query_id, messages)
        return await gather_all(answer(query_id, messages) for query_id, messages in listed)

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Models to ask if all models of a rung fail: today's, as recorded, then the dearest of the policy."""
        cost, parts = self.policy.cost, [part for rung in self.policy.rungs for part in rung.segment_policies]
        names = self.policy.tuning.get("today"), max(cost, key=cost.__getitem__)
        known = [name for name in names if name in self.all_models]  # today's may be a policy, or not served
        return tuple(dict.fromkeys(name for name in known if any(name not in part.models for part in parts)))

    def estimate_cost(self, query: Query) -> float:
        """Estimate the money that an answer may cost, on the upper of the two rungs around the policy's position."""
        top, query = len(self.policy.rungs) - 1, query.with_handling(is_shadow_query=bool(self.shadow))  # at most
        return self._estimate_rung(query, min(math.ceil(self.billing.position_of(query.client)), top) if top else 0)

    def reserve_unjudged(
        self, estimate_cost: Callable[[str], float], client: str | None
    ) -> AbstractContextManager[str]:
        """Return a context with the model of an answer that the policy does not judge, which puts its cost aside.

        The model is the policy's last or, if the money does not cover that, the last of the cheapest rung. Raises
        exceptions as `ask` does.
        """
        self.billing.catch_up()
        candidates = self.policy.models[-1], self.policy.rungs[0].models[-1]
        return self.billing.choose_and_reserve(candidates, estimate_cost, client)

    def continue_from(self, before: Cascade, models: Iterable[str]) -> None:
        """Continue the bill of the cascade that this one replaces, and the means of these models' answers."""
        self.billing.continue_from(before.billing)
        self._model_caller.continue_means(before._model_caller, models)

    def signal_of(self, model: str) -> Any:
        """Return the signal that reads a model's confidence."""
        return self._model_caller.endpoints[model].signal

    async def close(self) -> None:
        """Wait for the shadow calls under way, then end the checks. The caller closes the clients and the log.

        Raises the first exception of a shadow call, once all of them have ended and everything is closed.
        """
        outcomes = list[object]()
        try:
            while self._background:
                tasks = tuple(self._background)
                outcomes += await asyncio.gather(*tasks, return_exceptions=True)
                # A gather of ended tasks gives the loop no turn to remove them (Python 3.12 and newer).
                self._background.difference_update(tasks)
        finally:
            try:
                self.billing.flush()
            finally:
                await self._model_caller.close()
        raise_first(outcomes)

    async def __aenter__(self) -> Cascade:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _answer_when_covered(self, query: Query) -> tuple[Result, _PendingShadowCalls | None]:
        """Answer a query as `_answer` does, once no other query reserves its money; a refusal is a failed result."""
        while True:
            try:
                return await self._answer(query)
            except (BudgetSpentError, SpendingUnknownError) as problem:
                if isinstance(problem, SpendingUnknownError) or problem.end is not None:
                    return replace(make_result(query, "failed", None, []), why_not_asked=str(problem)), None
            await asyncio.sleep(_SECONDS_BETWEEN_TRIES)

    async def _answer(
        self,
        query: Query,
        end: float | None = None,
        deliver: ReceiveChunk | None = None,
        reserve: ReserveMoney = nullcontext,
    ) -> tuple[Result, _PendingShadowCalls | None]:
        """Return the result and, for a shadow query, its shadow calls, which are still to be made; None without any."""
        exchanges = list[Exchange]()
        self.billing.catch_up()
        drawn, position = self._draw_rung(query)
        with ExitStack() as shadow_resources, ExitStack() as reservations:
            rung_money = reservations.enter_context(ExitStack())
            reserving = self.billing.choose_and_reserve((drawn, 0), partial(self._estimate_rung, query), query.client)
            rung_index = rung_money.enter_context(reserving)
            rung = self.policy.rungs[rung_index]
            policy = rung.for_segment(query.segment)
            # Drawn before the first call: an answer must not influence the sample.
            memory = shadow_resources.enter_context(self._keep_shadow()) if query.handling.is_shadow_query else None
            is_shadow = memory is not None and reservations.enter_context(self._reserve_shadow(query, policy))
            number = None if position is None else rung_index
            query = query.with_handling(position=position, rung=number, is_shadow_query=is_shadow)
            try:
                result = await self._run_cascade(policy, query, end, exchanges, deliver)
                if result.status == "failed":
                    rung_money.close()
                    result = await self._fall_back(result, end, exchanges, deliver, reserve)
            except BaseException:  # without a line, queries that fail, the hard ones, would be missing from the sample
                self._log_unasked(query, self.all_models, exchanges)
                raise
            finally:  # a client that disconnects still pays for the calls made
                self.billing.pay(calls_of(exchanges), rung.expected.get("cost") or 0.0, query.client)
            others = [model for model in self.all_models if model not in {call.model for call in result.calls}]
            if memory is None or not is_shadow or not others:
                return result, None
            reservations.close()  # the bill has the answer's cost: from now on, only the other models need money
            shadow_resources.enter_context(self.billing.reserve(self._estimate_sum(query, others)))
            query = query.with_handling(charge=self.billing.shadow_charge, is_beyond_policy=True)
            exchanges = list[Exchange]()
            shadow_resources.callback(self._log_unasked, query, others, exchanges)
            return result, _PendingShadowCalls(query, others, exchanges, shadow_resources.pop_all(), memory)

    def _draw_rung(self, query: Query) -> tuple[int, float | None]:
        """Return (index of the rung drawn for a query, the client's position on the ladder; None without a ladder)."""
        if len(self.policy.rungs) == 1:
            return 0, None
        position = self.billing.position_of(query.client)
        return self.policy.draw_rung(self._draw_key(query.id, query.messages), position), position

    @contextmanager
    def _reserve_shadow(self, query: Query, policy: Policy) -> Iterator[bool]:
        """Put aside the money of the models beyond the policy; yield whether there is enough."""
        cost = self._estimate_sum(query, {*self.all_models}.difference(policy.models))
        with self.billing.reserve_if_covered(cost) as is_covered:
            self._observe_shadow("asked" if is_covered else "no money")
            yield is_covered

    def _estimate_rung(self, query: Query, index: int) -> float:
        """Estimate the money that a query may cost on a rung if each of its models is asked."""
        policy = self.policy.rungs[index].for_segment(query.segment)
        return math.fsum(
            self._model_caller.estimate_cost(_query_for(query, policy, model), model) for model in policy.models
        )

    def _estimate_sum(self, query: Query, models: Iterable[str]) -> float:
        return math.fsum(self._model_caller.estimate_cost(query, model) for model in models)

    def _make_query(
        self, messages: Messages, query_id: int | str | None, options: Mapping[str, Any] = MappingProxyType({})
    ) -> Query:
        name = uuid.uuid4().hex if query_id is None else str(query_id)
        conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        share = self.shadow_share.count_and_share(time.time()) if self.shadow else 0.0
        is_shadow_query = share > 0 and hash_to_uniform("shadow", self._draw_key(name, conversation)) < share
        form = request_form_of(conversation, options)
        return Query(name, conversation, options, request_form=form, handling=Handling(is_shadow_query=is_shadow_query))

    def _draw_key(self, query_id: str, messages: Sequence[Any]) -> str:
        """Return the key for a query's draws: its id and a hash of its messages, as a client may repeat an id."""
        digest = hashlib.sha256(json.dumps(messages, default=str).encode()).hexdigest()
        return f"{'' if self._salt is None else self._salt + ':'}{query_id}:{digest}"

    @contextmanager
    def _keep_shadow(self) -> Iterator[RequestMemory | None]:
        """Count a shadow query, and keep its bytes, until its calls have ended; yield None if there is no slot."""
        max_queries = _SHADOW_QUERIES_PER_SLOT * self._model_caller.max_shadow_requests
        if self._shadow_queries >= max_queries:
            self._refuse_shadow("no slot", f"{max_queries:,} shadow queries are under way")
            yield None
            return
        self._shadow_queries += 1
        try:
            with request_memory.get().keep() as memory:
                if memory is None:
                    self._refuse_shadow("no memory", "shadow queries under way keep as many bytes as they may")
                yield memory
        finally:
            self._shadow_queries -= 1

    def _refuse_shadow(self, outcome: str, reason: str) -> None:
        """Count a shadow query that is left out, and warn of the first."""
        self._observe_shadow(outcome)
        if not self._warned_shadow:
            self._warned_shadow = True
            message = f"{reason}: until one has ended, no other is drawn"
            warnings.warn(f"policy {self.billing.charge.policy}: {message}", CascadeWarning, stacklevel=2)

    async def _ask_others(self, shadow_calls: _PendingShadowCalls) -> None:
        """Ask the models that the policy did not ask."""
        request_memory.set(shadow_calls.memory)
        query, exchanges = shadow_calls.query, shadow_calls.exchanges
        with shadow_calls.resources:
            try:
                models = shadow_calls.models
                await gather_all(self._model_caller.call(query, model, None, exchanges) for model in models)
            finally:  # a service that stops still pays for the calls made
                self.billing.pay_shadow(calls_of(exchanges))

    def _log_unasked(self, query: Query, models: Iterable[str], exchanges: list[Exchange]) -> None:
        """Log the models that a shadow query has not asked, so that the log shows that the query is incomplete."""
        asked = {exchange.model for exchange in exchanges}
        for model in models if query.handling.is_shadow_query else ():
            if model not in asked:
                self._model_caller.log_unasked(query, model)

    async def _run_cascade(
        self, policy: Policy, query: Query, end: float | None, exchanges: list[Exchange], deliver: ReceiveChunk | None
    ) -> Result:
        """Ask model after model until one is sure enough or the time is up; two at once if an agreement needs both."""
        model: str | None = policy.first_model
        ahead, visited = dict[str, Exchange](), list[Exchange]()
        while model is not None:
            later = policy.models[policy.models.index(model) + 1 :]
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            is_final = policy.keeps_any_answer(model)
            query = _query_for(query, policy, model, replace(self.billing.charge, step=len(exchanges) + 1))
            seconds = left / 2 if left is not None and later else left
            if model == policy.first_model and policy.parallel_model is not None:
                ahead = await self._ask_both(policy, query, seconds, exchanges)
            exchange = ahead.pop(model, None)
            if exchange is None:
                receiver = deliver if is_final else None
                exchange = await self._model_caller.call(query, model, policy, exchanges, seconds, deliver=receiver)
            visited.append(exchange)
            if exchange.is_delivered or (exchange.call.text is not None and is_final):
                return make_result(query, "answered" if exchange.call.text else "failed", exchange, exchanges)
            if exchange.call.text is None:
                model = next(iter(later), None)
                continue
            answers = {exchange.model: exchange.call.answer for exchange in visited}
            decision = policy.step(model, logprob=exchange.call.logprob, answer=answers.pop(model), answers=answers)
            if not isinstance(decision, Defer):
                status = "answered" if isinstance(decision, Answer) else "abstained"
                return make_result(query, status, exchange, exchanges)
            model = decision.next_model
        return make_result(query, *_best_so_far(exchanges), exchanges)

    async def _fall_back(
        self,
        failed: Result,
        end: float | None,
        exchanges: list[Exchange],
        deliver: ReceiveChunk | None,
        reserve: ReserveMoney,
    ) -> Result:
        """Ask the fallbacks, as far as time and money allow, unless there is a reply or the request was refused.

        A fallback that the money does not cover is left out: the client hears of the failure.
        """
        has_reply = failed.completion is not None or any(exchange.is_delivered for exchange in exchanges)
        if has_reply or all(exchange.failure.is_refusal for exchange in exchanges if exchange.failure):
            return failed
        query, asked = failed.query, {call.model for call in failed.calls}
        for model in (name for name in self.fallbacks if name not in asked):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            charge = replace(self.billing.charge, step=len(exchanges) + 1)
            query = query.with_handling(charge=charge, needs_confidence=query.handling.is_shadow_query)
            rung = next((rung for rung in self.policy.rungs if model in rung.models), None)
            cost = self._estimate_sum(query, [model])
            with_failed = cost + math.fsum(call.cost for call in calls_of(exchanges))  # the bill has none of them yet
            try:
                with self.billing.reserve_for_fallback(with_failed, query.client) as is_covered, reserve(cost):
                    if not is_covered:
                        continue
                    exchange = await self._model_caller.call(query, model, rung, exchanges, left, deliver=deliver)
            except (BudgetSpentError, SpendingUnknownError):  # of the client
                continue
            if exchange.is_delivered or exchange.completion is not None:
                return make_result(query, "answered" if exchange.call.text else "failed", exchange, exchanges)
        return make_result(query, "failed", None, exchanges)

    async def _ask_both(
        self, policy: Policy, query: Query, seconds: float | None, exchanges: list[Exchange]
    ) -> dict[str, Exchange]:
        """Ask the first model and the model that its answer is compared with in parallel; return exchanges by model."""
        names, records = [policy.first_model, str(policy.parallel_model)], (list[Exchange](), list[Exchange]())
        calls = [
            self._model_caller.call(
                query.with_handling(charge=replace(self.billing.charge, step=step)), name, policy, record, seconds
            )
            for step, (name, record) in enumerate(zip(names, records, strict=True), start=1)
        ]
        try:
            await gather_all(calls)
        finally:
            exchanges.extend(exchange for record in records for exchange in record)
        return {exchange.model: exchange for record in records for exchange in record}


def _query_for(query: Query, policy: Policy, model: str, charge: Charge | None = None) -> Query:
    """Return the query for a model. It needs no confidence if the policy keeps any answer of the model."""
    needs_confidence = query.handling.is_shadow_query or not policy.keeps_any_answer(model)
    return query.with_handling(charge=charge, needs_confidence=needs_confidence)


def _best_so_far(exchanges: Sequence[Exchange]) -> tuple[Literal["best so far", "failed"], Exchange | None]:
    """Return the status and the exchange with the surest answer, or with the last reply if no exchange has an answer.

    An answer without a confidence is the least sure.
    """
    usable = [exchange for exchange in exchanges if exchange.call.text is not None]
    if not usable:
        return "failed", next((exchange for exchange in reversed(exchanges) if exchange.completion is not None), None)
    confidences = [-1.0 if exchange.call.confidence is None else exchange.call.confidence for exchange in usable]
    return "best so far", usable[confidences.index(max(confidences))]


def make_result(query: Query, status: Status, answered_by: Exchange | None, exchanges: list[Exchange]) -> Result:
    """Make the result of a query from its exchanges.

    Args:
        query: the query.
        status: the status of the result.
        answered_by: the exchange whose answer counts; None if no answer counts.
        exchanges: all exchanges of the query.
    """
    calls = calls_of(exchanges)
    call = answered_by.call if answered_by else None
    has_answer = call is not None and status not in ("abstained", "failed")
    failures = [exchange.failure for exchange in exchanges if exchange.failure is not None]
    ends = [exchange.start + exchange.call.seconds for exchange in exchanges]
    return Result(
        query=query,
        status=status,
        text=call.text if call and has_answer else None,
        answer=call.answer if call and has_answer else None,
        model=call.model if call else None,
        confidence=call.confidence if call else None,
        cost=math.fsum(call.cost for call in calls),
        calls=calls,
        completion=answered_by.completion if answered_by and status != "abstained" else None,
        usage=sum_usages([exchange.usage for exchange in exchanges]),
        failure=failures[-1] if failures and status == "failed" else None,
        seconds=max(ends) - min(exchange.start for exchange in exchanges) if exchanges else 0.0,
    )
