"""Where and how each model of a cascade is asked and what it costs, from the arguments of `rcjax.Cascade`, checked.

No JAX, no numpy: the client of OpenAI and the standard library.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rcjax._base.checks import what_it_is
from rcjax._base.tokens import Price, Tokens
from rcjax.policy.decisions import COMPARISONS, Comparison, comparable
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.record import recorded_asked, recorded_prices
from rcjax.serving.endpoint import openai
from rcjax.serving.models_file import ServedModel
from rcjax.serving.pace import LIMITS, Pace, most_written
from rcjax.serving.running_checks import require_runnable
from rcjax.serving.usage import Usage, request_bytes
from rcjax.signals import Check, Signal, Votes
from rcjax.signals.records import contradiction, record_signal, signal_from_record


@dataclass(frozen=True, slots=True)
class AsInLog:
    """Answers as those of a log are compared; nothing is left of one that is empty."""

    compare: Comparison

    def __call__(self, text: str) -> str:
        """What is left of an answer.

        >>> AsInLog("choice")("The answer is B."), AsInLog("text")(" 1,000 ")
        ('b', '1000')
        """
        return comparable(text, self.compare) or ""

    def answer(self, text: str) -> str:
        """The answer for a log: the letter of a choice, a text as it is, as labels are compared with it."""
        return self(text) if self.compare == "choice" else text


def votes_apart(record: Mapping[str, Any]) -> Votes | None:
    """The signal of a model of whose log several answers voted, each asked for by itself; None for another signal.

    None, too, where keys of answers voted, which only a function of the user's makes.

    Args:
        record: what the policy keeps of how the model was asked.

    >>> votes_apart({"signal": "votes", "samples": 3, "apart": True, "compare": "choice"})
    Votes(samples=3, temperature=None, normalise=AsInLog(compare='choice'), apart=True)
    """
    compare = record.get("compare")
    if record.get("signal") != "votes" or compare not in COMPARISONS or compare == "key":
        return None
    return Votes(int(record.get("samples", 1)), record.get("temperature"), AsInLog(compare), apart=True)


_OWN = ("model", "messages")  # what every request says by itself

_KNOWN = frozenset(inspect.signature(openai.resources.chat.AsyncCompletions.create).parameters) - {"self"}

_BYTES = 4  # of a token, as a rule

_SYNONYMS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}  # of which one may be set

_MERGED = ("extra_body", "extra_headers", "extra_query")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how one model is asked, and what it costs."""

    client: openai.AsyncOpenAI
    served: str
    signal: Signal | None  # None of a model whose answers are not judged
    options: Mapping[str, Any]
    price: Price | None  # per million tokens
    mean: float | None  # cost of a call by a log; None if none is known, which needs a price
    samples: int = 1  # requests that one question takes, whose answers vote
    fixed: frozenset[str] = frozenset()  # options that no question replaces

    @property
    def routing(self) -> dict[str, Any]:
        """Options that a second question shares with the first."""
        return {name: value for name, value in self.options.items() if name.startswith("extra_")}

    def options_for(self, overrides: Mapping[str, Any]) -> Mapping[str, Any]:
        """Options of a question that has its own: these go before those of the model, what the signal needs before all.

        >>> from rcjax.signals import MeanLogprob
        >>> endpoint = Endpoint(None, "small", MeanLogprob(), {"logprobs": True, "max_tokens": 9}, None, None)
        >>> endpoint.options_for({"max_completion_tokens": 5, "logprobs": False})
        {'logprobs': True, 'max_completion_tokens': 5}
        """
        if self.fixed and overrides:
            overrides = self._permitted(overrides)
        if not overrides:
            return self.options
        replaced = {other for name, other in _SYNONYMS.items() if name in overrides}
        options = {name: value for name, value in self.options.items() if name not in replaced} | dict(overrides)
        for name in _MERGED:
            if name in overrides and name in self.options:
                options[name] = {**self.options[name], **overrides[name]}
        signal_options = self.signal.options if self.signal is not None else {}
        needed = {name: self.options[name] for name in signal_options if name in self.options}
        top = max(needed.get("top_logprobs", 0), overrides.get("top_logprobs", 0))
        return {**options, **needed, **({"top_logprobs": top} if top else {})}

    def _permitted(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a question without those that are fixed; of limits on tokens the lower one holds."""
        most, wanted = (most_written({**options, "n": 1}) for options in (self.options, overrides))
        kept = {name for name in self.fixed if name in self.options and name not in LIMITS}
        if most is not None and (wanted is None or wanted >= most):
            kept |= self.fixed.intersection(LIMITS)
        return {name: value for name, value in overrides.items() if name not in kept}

    def expect(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], pace: Pace) -> float:
        """What an answer may cost, before it is asked for: by the bytes of the prompt and the limit on its tokens.

        Args:
            messages: the conversation.
            options: of the question, as of `options_for`. Without a limit on tokens the answer is taken to be as usual.
            pace: of the model's answers.
        """
        if self.price is None:
            return self.mean or 0.0
        options = self.options_for(options)
        read, most = -(-request_bytes(messages, options) // _BYTES), most_written(options)
        cost = float(self.price.money(Tokens(read, most or int(pace.written) * (options.get("n") or 1))))
        return max((not most and self.mean) or 0.0, self.samples * cost)

    def guess_pace(self) -> Pace:
        """The pace of the model's answers before the first one: by their mean cost, if that is known."""
        if self.mean is None or self.price is None or not self.price.output:
            return Pace()
        return Pace.guess(max(1.0, 1e6 * self.mean / float(self.price.output)))

    def account(
        self, usage: Usage, seconds: float = 0.0, pace: Pace | None = None, most: int | None = None
    ) -> dict[str, Any]:
        """The tokens and the cost of a call, as its fields.

        What no reply has counted is estimated: by price, a token for four bytes of what was sent and said; and at least
        the mean of the log, where a reply came. Of votes the mean is of all: those that never came have no part in it.
        For an answer that was not waited for the model is paid for the time, and for a mean answer at least.

        Args:
            usage: of the call.
            seconds: that it took.
            pace: of the model's answers; None to reckon what was cut off by its bytes alone.
            most: tokens that one answer may have; None if there is no limit.
        """
        told = usage.money(self.price, free=getattr(self.client, "tells_cost", False))
        missing, cost = usage.replies - usage.counted, 0.0 if told is None else float(told)
        whole = not missing and not usage.waiting
        estimated = (told is None or not whole) and bool(usage.replies or usage.waiting)
        cut = usage.cut if estimated and pace is not None else 0
        if estimated and self.price is not None:
            sizes = usage.uncounted_read + usage.waiting, usage.uncounted_written
            read, written = (-(-size // _BYTES) for size in sizes)
            if pace is not None and (usage.waiting or usage.broken):
                worked = max(seconds * pace.rate * self.samples, cut * pace.written)
                written = max(written, int(worked if most is None else min(worked, max(usage.attempts, 1) * most)))
            cost += float(self.price.money(Tokens(read, written)))
        if estimated and self.mean is not None and (missing or cut or self.price is None):
            lost = cut if pace is not None else 0 if usage.replies else self.samples
            cost = max(cost, self.mean * max(lost, min(self.samples, usage.replies)) / self.samples)
        read, written, cached, stored = usage.tokens if whole and usage.replies else (None, None, 0, 0)
        counts = {"input_tokens": read, "output_tokens": written, "cached_tokens": cached, "cache_write_tokens": stored}
        return {**counts, "cost": cost, "estimated": estimated}


@dataclass(frozen=True, slots=True)
class Asking:
    """How the models are asked: arguments of `rcjax.serving.cascade.Cascade`, for all models or by model."""

    client: openai.AsyncOpenAI | Mapping[str, openai.AsyncOpenAI]
    signal: Signal | Mapping[str, Signal | None] | None
    options: Mapping[str, Any]
    models: Mapping[str, ServedModel]
    timeout: float
    retries: int


def known_endpoints(policy: AnyPolicy, models: Sequence[str], asking: Asking) -> dict[str, Endpoint]:
    """The endpoint of each model: those of the policy, and those that shadow queries are asked of besides.

    Raises TypeError or ValueError for arguments that cannot be right.
    """
    clients = _for_each(models, asking.client, "client")
    records, prices = recorded_asked(policy), known_prices(policy)
    signals = _signals(models, asking, records)
    for model in models:
        if not isinstance(clients[model], openai.AsyncOpenAI):
            raise ValueError(f"client of {model}: give an openai.AsyncOpenAI, not {what_it_is(clients[model])}")
        _require_signal(signals[model], model)
        _require_as_tuned(records.get(model, {}), signals[model], model)
    _require_keys(policy, signals)
    require_runnable(signal for signal in signals.values() if isinstance(signal, Check))
    endpoints = {}
    for model, signal in signals.items():
        told, known = asking.models.get(model), read_price(prices.get(model))
        options = {**records.get(model, {}).get("options", {}), **asking.options, **signal.options}
        endpoints[model] = Endpoint(
            clients[model].with_options(timeout=asking.timeout, max_retries=asking.retries),
            model if told is None else told.served,
            signal,
            checked_options(options | ({} if told is None else dict(told.options))),
            known if told is None or told.price is None else told.price.completed(known),
            policy.cost.get(model),
            signal.samples if getattr(signal, "apart", False) else 1,
            frozenset() if told is None else told.fixed,
        )
    unpriced = [model for model, endpoint in endpoints.items() if endpoint.price is None and endpoint.mean is None]
    if unpriced:
        raise ValueError(f"models: no price known of the shadow models {', '.join(unpriced)}: give theirs")
    return endpoints


def _for_each(models: Sequence[str], value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return dict.fromkeys(models, value)
    missing = [model for model in models if model not in value]
    if missing:
        raise ValueError(f"{what}: none given for {', '.join(missing)}")
    return {model: value[model] for model in models}


def _signals(models: Sequence[str], asking: Asking, records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The signal of each model: that of its votes, the one that is given, or that of the log of the policy."""
    given = asking.signal if isinstance(asking.signal, Mapping) else dict.fromkeys(models, asking.signal)
    signals = {}
    for model in models:
        record = records.get(model, {})
        ways = votes_apart(record), given.get(model), signal_from_record(record)
        signals[model] = next((way for way in ways if way is not None), None)
    unknown = [model for model, one in signals.items() if one is None]
    names = [str(records.get(model, {}).get("signal")) for model in unknown]
    if unknown:
        by_code = f"was tuned on {names[0]}, which no file of a policy starts by itself"
        what = by_code if "None" not in names else "does not say what its log was made with"
        advice = 'give it, by signal= or in models.toml, such as signal = "choice", or "verification" for texts'
        raise ValueError(f"signal of {', '.join(unknown)}: the policy {what}: {advice}")
    return signals


def _require_as_tuned(record: Mapping[str, Any], signal: Any, model: str) -> None:
    """Refuse a signal that is not the one of the log: thresholds of one mean nothing for another."""
    difference = contradiction(record, signal) if record else None
    if difference is not None:
        raise ValueError(
            f"signal of {model}: the policy was tuned on another one: {difference}: leave signal out, or tune again"
        )


def _require_keys(policy: AnyPolicy, signals: Mapping[str, Any]) -> None:
    """Refuse a policy that compares keys of answers, where signals of rcjax's own give the answers."""
    pairs = [pair for rung in policy.rungs for part in rung.cascades for pair in part.agreements.items()]
    keyed = {name for model, one in pairs if one.compare == "key" for name in (model, one.earlier)}
    plain = [model for model in signals if model in keyed and signal_from_record(record_signal(signals[model]))]
    if plain:
        what = "the policy compares keys of answers, as the column answer_key of its log has them"
        advice = "give a signal of your own, whose answers are keys; a service needs a log with a column answer"
        raise ValueError(f"signal of {', '.join(plain)}: {what}: {advice}")


def _require_signal(signal: Any, model: str) -> None:
    asks = callable(getattr(signal, "follow_up", None)) and callable(getattr(signal, "read", None))
    if isinstance(signal, type) or not asks or not isinstance(getattr(signal, "options", None), Mapping):
        wanted = "give an instance of a signal, such as rcjax.signals.Choice()"
        raise TypeError(f"signal of {model}: {wanted}, not {what_it_is(signal)}")


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of every request, as they are. Raises ValueError for those that the client does not take."""
    unknown = [str(name) for name in options if name not in _KNOWN]
    if unknown:
        raise ValueError(f"options: the client knows no {', '.join(unknown)}: give what a server adds in extra_body")
    fixed = [name for name in _OWN if name in options]
    if fixed:
        advice = "name a model by models=, and give messages to ask()"
        raise ValueError(f"options: {' and '.join(fixed)} cannot be set for every question: {advice}")
    if options.get("stream"):
        raise ValueError("options: an answer is judged as a whole: stream cannot be used")
    return options


def known_prices(policy: AnyPolicy) -> dict[str, Any]:
    """By model: the prices of the policy, of all models that it was chosen from, and of those in its log."""
    logged = {model: record["prices"] for model, record in recorded_asked(policy).items() if record.get("prices")}
    return {**logged, **recorded_prices(policy), **(policy.prices or {})}


def read_price(listed: Mapping[str, float] | None) -> Price | None:
    """The price of a model, as policies tell it; None if they tell none."""
    return None if listed is None else Price(**{name: Decimal(str(value)) for name, value in listed.items()})
