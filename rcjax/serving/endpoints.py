"""The endpoints of a cascade's models: their clients, options and prices, from the arguments of `rcjax.Cascade`.

Standard library and OpenAI's client only.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import NoneType
from typing import Any, NamedTuple

from rcjax._base.codec import describe_type
from rcjax._base.tokens import Price, Tokens
from rcjax.policy.decisions import ANSWER_FORMS, AnswerForm, canonical_answer
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.signals import ReplyCheck, Signal, Stated, Verification, Votes
from rcjax.policy.signals.answers import as_object
from rcjax.policy.signals.signal import describe_difference, record_signal, signal_by_name, signal_from_record
from rcjax.policy.spec import recorded_prices, recorded_request_settings
from rcjax.serving.call_log import Query
from rcjax.serving.check_processes import require_runnable
from rcjax.serving.models_file import ServedModel
from rcjax.serving.openai_client import CompletionRequest, openai
from rcjax.serving.usage import (
    TOKEN_LIMITS,
    AnswerMeans,
    CallUsage,
    is_text,
    reply_samples,
    request_bytes,
    sent_options,
    text_bytes,
    token_limit,
)


@dataclass(frozen=True, slots=True)
class LoggedNormaliser:
    """Normalises answers as the log did when it compared them."""

    compare: AnswerForm

    def __call__(self, text: str) -> str:
        """Return the normalised answer; "" for an empty one.

        >>> LoggedNormaliser("choice")("The answer is B."), LoggedNormaliser("text")(" 1,000 ")
        ('b', '1000')
        """
        return canonical_answer(text, self.compare) or ""

    def answer(self, text: str) -> str:
        """Return the answer for a log: the letter of a choice, or the whole text."""
        return self(text) if self.compare == "choice" else text


def separate_votes(record: Mapping[str, Any]) -> Votes | None:
    """Return the signal of votes whose answers are requested one by one; None if a model's record has another signal.

    Returns None also if the votes compare keys of answers, which only the user's own function makes.

    >>> separate_votes({"signal": "votes", "samples": 3, "separate": True, "compare": "choice"})
    Votes(samples=3, temperature=None, normalise=LoggedNormaliser(compare='choice'), separate=True)
    """
    compare = record.get("compare")
    if record.get("signal") != "votes" or compare not in ANSWER_FORMS or compare == "key":
        return None
    return Votes(int(record.get("samples", 1)), record.get("temperature"), LoggedNormaliser(compare), separate=True)


_RESERVED = ("model", "messages")  # fields that rcjax sets in every request

_KNOWN = frozenset(inspect.signature(openai.resources.chat.AsyncCompletions.create).parameters) - {"self"}

_BYTES_PER_TOKEN = 4  # of English text, as a rule of thumb

SECOND_QUESTION_TOKENS = 80
"""Tokens of a signal's second question, besides the question and the answer."""

_MERGED = ("extra_body", "extra_headers", "extra_query")  # options whose entries are overridden one by one

_THINKING_NAMES = """
    budget_tokens chat_template_kwargs enable_thinking reasoning reasoning_budget reasoning_effort think thinking
    thinking_budget thinking_budget_tokens thinking_token_budget
"""

#: Options of servers that set how long a model thinks. If the operator fixes one of them, clients can set none of them.
THINKING_OPTIONS = frozenset(_THINKING_NAMES.split())


class CallFigures(NamedTuple):
    """The tokens and the cost of a call, as `Call` has them."""

    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int
    cache_write_tokens: int
    cost: float
    estimated: bool


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint of one model: its client, signal, options and price."""

    api_client: openai.AsyncOpenAI
    upstream_model: str
    """The name by which the endpoint knows the model."""
    signal: Signal | None
    """The signal that reads the confidence; None for a model whose answers are not judged."""
    options: Mapping[str, object]
    price: Price | None
    """Money per million tokens."""
    mean_cost: float | None
    """Mean cost of a call in a log; None if unknown: then a price is needed."""
    votes: int = 1
    """Number of requests for one question, whose answers vote."""
    fixed: frozenset[str] = frozenset()
    """Options that no question replaces."""

    @property
    def routing(self) -> dict[str, Any]:
        """Options that a second question shares with the first."""
        return {name: value for name, value in self.options.items() if name.startswith("extra_")}

    @property
    def second_options(self) -> Mapping[str, Any] | None:
        """Options of the signal's second question; None if it asks none."""
        return None if self.signal is None else self.signal.second_options

    def make_request(
        self, messages: Sequence[Mapping[str, object]], options: Mapping[str, object]
    ) -> CompletionRequest:
        """Return a request to the model."""
        return CompletionRequest(self.api_client, self.upstream_model, messages, options)

    def skips_second(self, query: Query) -> bool:
        """Return whether the signal's second question is left out; a user's own signal may need it for the answer."""
        reads_text = type(self.signal) in (Verification, Stated) and self.second_options is not None
        return reads_text and not query.handling.needs_confidence

    def options_for(self, overrides: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the model's options, overridden by a question's options, then by the signal's options.

        >>> from rcjax.policy.signals import MeanLogprob
        >>> endpoint = Endpoint(None, "small", MeanLogprob(), {"logprobs": True, "max_tokens": 9}, None, None)
        >>> endpoint.options_for({"max_completion_tokens": 5, "logprobs": False})
        {'logprobs': True, 'max_completion_tokens': 5}
        """
        if self.fixed and overrides:
            overrides = self._permitted(overrides)
        if not overrides:
            return self.options
        base = self.options if {*TOKEN_LIMITS}.isdisjoint(sent_options(overrides)) else _without_limits(self.options)
        options = {**base, **overrides}
        for name in _MERGED:
            if name in overrides and isinstance(entries := base.get(name), Mapping):
                options[name] = {**entries, **overrides[name]}
        signal_options = self.signal.options if self.signal is not None else {}
        needed: dict[str, Any] = {name: self.options[name] for name in signal_options if name in self.options}
        top = max(chosen.get("top_logprobs") or 0 for chosen in (needed, overrides))
        return {**options, **needed, **({"top_logprobs": top} if top else {})}

    def _permitted(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a question without the model's fixed options; the lower limit on tokens holds.

        >>> fixed = {"options": {"reasoning_effort": "low"}, "fixed": THINKING_OPTIONS}
        >>> Endpoint(None, "small", None, price=None, mean_cost=None, **fixed)._permitted(
        ...     {"seed": 1, "extra_body": {"thinking": {"type": "enabled"}}}
        ... )
        {'seed': 1}
        """
        max_tokens, wanted = (token_limit({**sent_options(options), "n": 1}) for options in (self.options, overrides))
        given = self.options.keys() | as_object(self.options.get("extra_body")).keys()
        kept = (self.fixed & given).difference(TOKEN_LIMITS)
        kept |= self.fixed & THINKING_OPTIONS if kept & THINKING_OPTIONS else frozenset()
        if max_tokens is not None and (wanted is None or wanted >= max_tokens):
            kept |= self.fixed.intersection(TOKEN_LIMITS)
        body = {name: value for name, value in as_object(overrides.get("extra_body")).items() if name not in kept}
        others = {name: value for name, value in overrides.items() if name not in kept and name != "extra_body"}
        return {**others, "extra_body": body} if body else others

    def estimate_cost(self, query: Query, means: AnswerMeans) -> float:
        """Estimate the money that an answer may cost, from the bytes of the prompt and the limit on tokens.

        Without a limit, an answer has its mean length. A second question repeats the question and the answer. A check
        has its mean cost, which is known after the first one.
        """
        if self.price is None:
            return self.mean_cost or 0.0
        messages, options = query.messages, self.options_for(query.options)
        input_tokens, max_tokens = -(-request_bytes(messages, options) // _BYTES_PER_TOKEN), token_limit(options)
        output_tokens = max_tokens or int(means.tokens) * reply_samples(options)
        second = self.second_options
        if second is not None and not self.skips_second(query):
            input_tokens += text_bytes(messages) // _BYTES_PER_TOKEN + output_tokens + SECOND_QUESTION_TOKENS
            output_tokens += token_limit(second) or int(means.tokens)
        cost = self.votes * float(self.price.money(Tokens(input_tokens, output_tokens))) + (means.check_cost or 0.0)
        is_checked = isinstance(self.signal, ReplyCheck)
        is_priced = not is_checked or means.check_cost is not None
        is_bounded = max_tokens is not None and is_text(messages) and is_priced
        return cost if is_bounded else max(cost, self.mean_cost or 0.0)

    def guess_means(self) -> AnswerMeans:
        """Guess the means of the model's answers before the first one, from their mean cost if that is known."""
        if self.mean_cost is None or self.price is None or not self.price.output:
            return AnswerMeans()
        answers = self.votes * reply_samples(self.options)
        return AnswerMeans.guess(max(1.0, 1e6 * self.mean_cost / float(self.price.output) / answers))

    def price_call(
        self, usage: CallUsage, seconds: float, means: AnswerMeans | None, options: Mapping[str, Any]
    ) -> CallFigures:
        """Compute the tokens and the cost of a call; the cost is estimated if a count is missing.

        Args:
            usage: the usage of the call.
            seconds: seconds that the call took.
            means: the running means of the model's answers; None estimates an interrupted answer by its bytes alone.
            options: the question's own options.
        """
        money = usage.money(self.price)
        is_complete = usage.replies == len(usage.reported) and not usage.unanswered
        estimated = (money is None or not is_complete) and bool(usage.replies or usage.unanswered)
        cost = 0.0 if money is None else float(money)
        if estimated:
            cost += max(self._uncounted_cost(usage, seconds, means, options), self._mean_cost_of(usage, money))
        if not (is_complete and usage.replies):
            return CallFigures(None, None, 0, 0, cost, estimated)
        tokens = usage.tokens
        return CallFigures(tokens.input, tokens.output, tokens.cached_input, tokens.cache_write, cost, estimated)

    def second_cost(self, usage: CallUsage) -> float:
        """Compute the money of a signal's second question, from its usage; 0 if neither price nor cost is known."""
        return float(usage.money(self.price) or 0) + self._uncounted_cost(usage, 0.0, None, {})

    def _uncounted_cost(
        self, usage: CallUsage, seconds: float, means: AnswerMeans | None, options: Mapping[str, Any]
    ) -> float:
        """Estimate the money for the tokens that no reply counts, as in interrupted answers."""
        if self.price is None:
            return 0.0
        sizes = usage.uncounted_input_bytes + usage.unanswered_input_bytes, usage.uncounted_output_bytes
        input_tokens, output_tokens = (-(-size // _BYTES_PER_TOKEN) for size in sizes)
        if means is not None:
            output_tokens = max(output_tokens, self._interrupted_tokens(usage, seconds, means, options))
        return float(self.price.money(Tokens(input_tokens, output_tokens)))

    def _interrupted_tokens(
        self, usage: CallUsage, seconds: float, means: AnswerMeans, options: Mapping[str, Any]
    ) -> int:
        """Estimate the output tokens of interrupted answers, from the seconds of the call and the model's means."""
        if not usage.unanswered and not usage.broken:
            return 0
        options = self.options_for(options)
        by_means = max(seconds * means.tokens_per_second * self.votes, usage.unfinished * means.tokens)
        by_means *= reply_samples(options)
        max_tokens = token_limit(options)
        return int(by_means if max_tokens is None else min(by_means, max(usage.attempts, 1) * max_tokens))

    def _mean_cost_of(self, usage: CallUsage, counted: Decimal | None) -> float:
        """Return the mean cost in the log of the requests whose cost is not `counted`; 0 if no mean is known.

        A call's mean cost is split evenly over votes × questions. Each request without a known cost gets one share. If
        a price is known, requests that have ended are priced by bytes instead.
        """
        replies = usage.replies if counted is None else usage.replies - len(usage.reported)
        lost = usage.unanswered if self.price is None else usage.unfinished
        return (self.mean_cost or 0.0) * (replies + lost) / (self.votes * max(usage.questions, 1))


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """The arguments of `rcjax.serving.cascade.Cascade` on requests, for all models or by model."""

    api_client: openai.AsyncOpenAI | Mapping[str, openai.AsyncOpenAI]
    signal: Signal | Mapping[str, Signal | None] | None
    options: Mapping[str, object]
    models: Mapping[str, ServedModel]
    timeout: float
    retries: int


def make_endpoints(policy: AbstractPolicy, models: Sequence[str], defaults: RequestDefaults) -> dict[str, Endpoint]:
    """Make the endpoint of each model: the policy's models, and further models for shadow queries.

    Raises TypeError or ValueError for invalid arguments.
    """
    api_clients = defaults.api_client
    api_clients = api_clients if isinstance(api_clients, Mapping) else dict.fromkeys(models, api_clients)
    missing = [model for model in models if model not in api_clients]
    if missing:
        raise ValueError(f"api_client: none given for {', '.join(missing)}")
    records, prices = recorded_request_settings(policy), prices_by_model(policy)
    signals = _signals(models, defaults, records)
    for model in models:
        if not isinstance(api_clients[model], openai.AsyncOpenAI):
            raise ValueError(
                f"api_client of {model}: give an openai.AsyncOpenAI, not {describe_type(api_clients[model])}"
            )
        _require_signal(signals[model], model)
        _require_as_tuned(records.get(model, {}), signals[model], model)
    _require_no_answer_keys(policy, signals)
    require_runnable(signal for signal in signals.values() if isinstance(signal, ReplyCheck))
    endpoints = {}
    for model, signal in signals.items():
        settings = defaults.models.get(model)
        known = read_price(prices.get(model))
        votes = signal.samples if getattr(signal, "separate", False) else 1
        options = {**records.get(model, {}).get("options", {}), **defaults.options, **signal.options}
        if settings is not None:
            options = within_token_limit(options | dict(settings.options), settings.max_tokens, votes)
        require_options(options)
        endpoints[model] = Endpoint(
            api_clients[model].with_options(timeout=defaults.timeout, max_retries=defaults.retries),
            model if settings is None else settings.upstream_model,
            signal,
            options,
            known if settings is None or settings.price is None else settings.price.completed(known).exact,
            policy.cost.get(model),
            votes,
            frozenset() if settings is None else settings.fixed,
        )
    unpriced = [model for model, endpoint in endpoints.items() if endpoint.price is None and endpoint.mean_cost is None]
    if unpriced:
        raise ValueError(f"models: no price known of the shadow models {', '.join(unpriced)}: give theirs")
    return endpoints


def _signals(
    models: Sequence[str], defaults: RequestDefaults, records: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return each model's signal: the record's separate votes, or the model's own, the given or the record's signal."""
    given = defaults.signal if isinstance(defaults.signal, Mapping) else dict.fromkeys(models, defaults.signal)
    signals = {}
    for model in models:
        record = records.get(model, {})
        recorded, settings = signal_from_record(record), defaults.models.get(model)
        name = None if settings is None else settings.signal
        named = None if name is None or (recorded and name == record["signal"]) else signal_by_name(name)
        candidates = separate_votes(record), named, given.get(model), recorded
        signals[model] = next((signal for signal in candidates if signal is not None), None)
    unknown = [model for model, signal in signals.items() if signal is None]
    names = [str(records.get(model, {}).get("signal")) for model in unknown]
    if unknown:
        by_code = f"the policy was tuned on {names[0]}, which runs code, so the policy file alone may not start it"
        reason = by_code if "None" not in names else "none is given, and no policy records it"
        advice = 'give it, by signal= or in models.toml, such as signal = "choice", or "verification" for texts'
        raise ValueError(f"signal of {', '.join(unknown)}: {reason}: {advice}")
    return signals


def _require_as_tuned(record: Mapping[str, Any], signal: Any, model: str) -> None:
    """Refuse a signal that differs from the log's signal: the policy's thresholds hold for that signal alone."""
    difference = describe_difference(record, signal) if record else None
    if difference is not None:
        problem = f"the policy was tuned on another one: {difference}"
        raise ValueError(f"signal of {model}: {problem}: leave signal out, or tune again")


def _require_no_answer_keys(policy: AbstractPolicy, signals: Mapping[str, Any]) -> None:
    """Refuse a policy that compares keys of answers if a signal of rcjax, which makes no keys, reads the answers."""
    pairs = [pair for rung in policy.rungs for part in rung.segment_policies for pair in part.agreements.items()]
    keyed = {name for model, agreement in pairs if agreement.compare == "key" for name in (model, agreement.earlier)}
    plain = [model for model in signals if model in keyed and signal_from_record(record_signal(signals[model]))]
    if plain:
        reason = "the policy compares keys of answers, as the column answer_key of its log has them"
        advice = "give a signal of your own, whose answers are keys; a service needs a log with a column answer"
        raise ValueError(f"signal of {', '.join(plain)}: {reason}: {advice}")


def _require_signal(signal: Any, model: str) -> None:
    asks = callable(getattr(signal, "follow_up", None)) and callable(getattr(signal, "read", None))
    if isinstance(signal, type) or not asks or not isinstance(getattr(signal, "options", None), Mapping):
        wanted = "give an instance of a signal, such as rcjax.policy.signals.Choice()"
        raise TypeError(f"signal of {model}: {wanted}, not {describe_type(signal)}")
    if not isinstance(getattr(signal, "second_options", ""), Mapping | NoneType):
        wanted = "set second_options to the options of its second question, or to None if it asks none"
        raise TypeError(f"signal of {model}: {wanted}")


def require_options(options: Mapping[str, Any]) -> None:
    """Refuse options of requests with a ValueError: options that the client lacks, or that no request may set."""
    unknown = [str(name) for name in options if name not in _KNOWN]
    if unknown:
        raise ValueError(f"options: the client knows no {', '.join(unknown)}: give what a server adds in extra_body")
    fixed = [name for name in _RESERVED if name in options]
    if fixed:
        advice = "name a model by models=, and give messages to ask()"
        raise ValueError(f"options: {' and '.join(fixed)} cannot be set for every question: {advice}")
    top = options.get("top_logprobs")
    if top is not None and (isinstance(top, bool) or not isinstance(top, int)):
        raise ValueError(f"options: top_logprobs must be a whole number, not {describe_type(top)}")
    if options.get("stream"):
        raise ValueError("options: an answer is judged as a whole: stream cannot be used")


def _without_limits(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options without limits on tokens, so that those of a question replace them under either name."""
    kept = {name: value for name, value in options.items() if name not in TOKEN_LIMITS}
    return kept | ({"extra_body": _without_limits(as_object(kept["extra_body"]))} if "extra_body" in kept else {})


def within_token_limit(options: Mapping[str, Any], limit: int | None, votes: int = 1) -> dict[str, Any]:
    """Return options within a limit on the tokens of all answers to a question. Raises ValueError for too low a limit.

    >>> within_token_limit({"max_tokens": 8000, "n": 5}, 100)
    {'max_tokens': 20, 'n': 5}
    """
    if limit is None:
        return {**options}
    answers = votes * reply_samples(options)
    max_each = limit // answers
    if not max_each:
        raise ValueError(f"max_tokens: {limit} tokens are too few for {answers} answers that vote: raise the limit")

    def lower(fields: Mapping[str, Any]) -> dict[str, Any]:
        limits = {name: token_limit({name: fields[name]}) or max_each for name in TOKEN_LIMITS if name in fields}
        return {**fields, **{name: min(value, max_each) for name, value in limits.items()}}

    body = as_object(options.get("extra_body"))
    missing = {} if {*TOKEN_LIMITS} & {*options, *body} else {"max_tokens": max_each}
    return {**lower(options), **({"extra_body": lower(body)} if body else {}), **missing}


def prices_by_model(policy: AbstractPolicy) -> dict[str, Any]:
    """Return prices by model: the policy's own, else those recorded in its tuning, else those of its log."""
    logged = {
        model: record["prices"] for model, record in recorded_request_settings(policy).items() if record.get("prices")
    }
    return {**logged, **recorded_prices(policy), **(policy.prices or {})}


def read_price(listed: Mapping[str, float] | None) -> Price | None:
    """Read a model's price from a policy's record; None without one."""
    return None if listed is None else Price(**listed).exact
