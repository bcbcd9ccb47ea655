"""Where and how each model of a cascade is asked and what it costs, from the arguments of `rcjax.Cascade`, checked.

No JAX, no numpy: the client of OpenAI and the standard library.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast

from rcjax._base.checks import what_it_is
from rcjax._base.tokens import PRICES, Price, Tokens
from rcjax.policy.decisions import COMPARISONS, Comparison, comparable
from rcjax.policy.policy import AnyPolicy, Policy
from rcjax.policy.record import recorded_asked, recorded_prices
from rcjax.serving.call_log import Call, CascadeWarning
from rcjax.serving.endpoint import openai
from rcjax.serving.models_file import ServedModel
from rcjax.serving.running_checks import prepared, without_schemas
from rcjax.serving.usage import Usage
from rcjax.signals import Check, Signal, Votes
from rcjax.signals.records import another_check, contradiction, is_check, signal_from_record

#: What to do about keys that nothing makes.
_NO_KEY = "give rcjax.Cascade the function that makes one of an answer; a service needs a log with a column answer"

_OTHERWISE = "such answers are not compared, and the confidence decides"


def keys_by(key: Callable[[str], Any], otherwise: str) -> Callable[[str | None], str | None]:
    """What makes keys of answers; where none can be made there is none, and a `CascadeWarning` once.

    Args:
        key: the user's function.
        otherwise: what becomes of answers without a key, in words.

    >>> keys = keys_by(str.upper, "such answers are not compared")
    >>> keys("b"), keys(None)
    ('B', None)
    """
    warned: list[str] = []

    def key_of(answer: str | None) -> str | None:
        if answer is None:
            return None
        try:
            made = key(answer)
            problem = None if made is None or isinstance(made, str) else f"it gave {what_it_is(made)}"
        except Exception as error:
            made, problem = None, type(error).__name__
        if problem is None:
            return made
        if not warned:
            warnings.warn(f"answer_key failed: {problem}: {otherwise}", CascadeWarning, stacklevel=3)
        warned.append(problem)
        return None

    return key_of


class Comparing:
    """Answers as a policy compares them: as the signal reads them, or keys of the user's own.

    Args:
        policy: the policy.
        key: what makes a key of an answer.

    Raises ValueError where the policy compares keys, and nothing makes them; TypeError for what cannot be called.
    """

    def __init__(self, policy: AnyPolicy, key: Callable[[str], str] | None) -> None:
        if key is not None and not callable(key):
            raise TypeError(f"answer_key must be a function of an answer, not {what_it_is(key)}")
        keyed = any(one.compare == "key" for part in policy.rungs for one in part.agreements.values())
        if keyed and key is None:
            what = "the policy compares keys of answers, as the column answer_key of its log has them"
            raise ValueError(f"answer_key: {what}: {_NO_KEY}")
        # Without a key, the decision is left to the confidence.
        self._key_of = keys_by(key or (lambda answer: None), _OTHERWISE)

    def arguments(self, policy: Policy, calls: Sequence[Call]) -> dict[str, Any]:
        """The arguments `answer` and `answers` of `Policy.step` after some models were asked, the last one just now."""
        *before, last = calls
        agreement = policy.agreements.get(last.model)
        if agreement is None:
            return {}
        answers = {call.model: call.answer for call in before}
        if agreement.compare != "key":
            return {"answer": last.answer, "answers": answers}
        keys = {model: self._key_of(answer) for model, answer in answers.items() if model == agreement.earlier}
        return {"answer": self._key_of(last.answer), "answers": keys}


@dataclass(frozen=True, slots=True)
class AsInLog:
    """Answers as those of a log are compared; nothing is left of one that is empty."""

    compare: Comparison
    key: Callable[[str], str | None] | None = field(default=None, repr=False)
    """What makes the keys that are compared, where keys are."""

    def __call__(self, text: str) -> str:
        """What is left of an answer.

        >>> AsInLog("choice")("The answer is B."), AsInLog("text")(" 1,000 ")
        ('b', '1000')
        """
        return comparable(text if self.key is None else self.key(text), self.compare) or ""

    def answer(self, text: str) -> str:
        """The answer for a log: the letter of a choice, a text as it is, as labels are compared with it."""
        return self(text) if self.compare == "choice" else text


_NO_VOTE = "such answers vote for nothing"


def votes_apart(record: Mapping[str, Any], model: str, key: Callable[[str], Any] | None = None) -> Votes | None:
    """The signal of a model of whose log several answers voted, each asked for by itself; None for another signal.

    Args:
        record: what the policy keeps of how the model was asked.
        model: its name.
        key: what makes a key of an answer, where the answers of the log were compared by keys.

    Raises ValueError where they were, and nothing makes keys.

    >>> votes_apart({"signal": "votes", "samples": 3, "apart": True, "compare": "choice"}, "small")
    Votes(samples=3, temperature=None, normalise=AsInLog(compare='choice'), apart=True)
    """
    compare = record.get("compare")
    if record.get("signal") != "votes" or compare is None:
        return None
    if compare == "key" and key is not None:
        normalise = AsInLog("key", keys_by(key, _NO_VOTE))
    elif compare not in COMPARISONS or compare == "key":
        what = f"the answers of {model} vote by keys, as the column answer_key of its log has them"
        raise ValueError(f"answer_key: {what}: {_NO_KEY}")
    else:
        normalise = AsInLog(cast(Comparison, compare))
    return Votes(int(record.get("samples", 1)), record.get("temperature"), normalise, apart=True)


_OWN = ("model", "messages")  # what every request says by itself

_KNOWN = frozenset(inspect.signature(openai.resources.chat.AsyncCompletions.create).parameters) - {"self"}

_DEAREST = Decimal("1e100")  # as in a policy


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

    def account(self, usage: Usage) -> dict[str, Any]:
        """The tokens and the cost of a call, as its fields.

        What no reply has counted is estimated: by price, a token for four bytes of what was sent and said; and at least
        the mean of the log, where a reply came. Of votes the mean is of all: those that never came have no part in it.
        """
        told = usage.money(self.price, free=getattr(self.client, "tells_cost", False))
        missing, cost = usage.replies - usage.counted, 0.0 if told is None else float(told)
        whole = not missing and not usage.waiting
        estimated = (told is None or not whole) and bool(usage.replies or usage.waiting)
        if estimated and self.price is not None:
            sizes = usage.uncounted_read + usage.waiting, usage.uncounted_written
            read, written = (-(-size // _BYTES) for size in sizes)
            cost += float(self.price.money(Tokens(read, written)))
        if estimated and self.mean is not None and (missing or self.price is None):
            cost = max(cost, self.mean * min(1.0, (usage.replies or self.samples) / self.samples))
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
    answer_key: Callable[[str], str] | None = None


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
    signals = _with_versions(signals, records)
    endpoints = {}
    for model, signal in signals.items():
        told, known = asking.models.get(model), read_price(prices.get(model), model)
        options = {**records.get(model, {}).get("options", {}), **asking.options, **signal.options}
        endpoints[model] = Endpoint(
            clients[model].with_options(timeout=asking.timeout, max_retries=asking.retries),
            model if told is None else told.served,
            signal,
            checked_options(options | ({} if told is None else dict(told.options))),
            known if told is None or told.price is None else told.price.completed(known),
            policy.cost.get(model),
            signal.samples if getattr(signal, "apart", False) else 1,
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
        ways = votes_apart(record, model, asking.answer_key), given.get(model), signal_from_record(record)
        signals[model] = next((way for way in ways if way is not None), None)
    unknown = [model for model, one in signals.items() if one is None]
    names = [str(records.get(model, {}).get("signal")) for model in unknown]
    if unknown:
        by_code = f"was tuned on {names[0]}, which no file of a policy starts by itself"
        what = by_code if all(map(is_check, names)) else "does not say what its log was made with"
        advice = 'give it, by signal= or in models.toml, such as signal = "choice", or "verification" for texts'
        raise ValueError(f"signal of {', '.join(unknown)}: the policy {what}: {advice}")
    return signals


def _with_versions(signals: Mapping[str, Any], records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The signals, whose checks can be run and have their versions; a warning where one is not that of the policy."""
    checks = prepared(signal for signal in signals.values() if isinstance(signal, Check))
    ready = {model: checks[one.name] if isinstance(one, Check) else one for model, one in signals.items()}
    others: dict[str, list[str]] = {}
    for model, signal in ready.items():
        other = another_check(records.get(model, {}), signal)
        if other is not None:
            what = f"the check {signal.name} is not that of the policy's log: {other}: its verdicts may mean something"
            others.setdefault(f"{what} else: tune again, or bring back the one before", []).append(model)
    lines = [f"signal of {', '.join(named)}: {what}" for what, named in others.items()]
    for line in [*filter(None, map(without_schemas, checks.values())), *lines]:
        warnings.warn(line, CascadeWarning, stacklevel=5)
    return ready


def _require_as_tuned(record: Mapping[str, Any], signal: Any, model: str) -> None:
    """Refuse a signal that is not the one of the log: thresholds of one mean nothing for another."""
    difference = contradiction(record, signal) if record else None
    if difference is not None:
        raise ValueError(
            f"signal of {model}: the policy was tuned on another one: {difference}: leave signal out, or tune again"
        )


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


def read_price(listed: Any, model: str) -> Price | None:
    """The price of a model, as policies and arguments tell it. Raises ValueError for what can be none."""
    if listed is None:
        return None
    try:
        if {*listed} - {*PRICES}:
            raise ValueError
        price = Price(**{name: Decimal(str(value)) for name, value in listed.items()})
        if not all(one is None or (one.is_finite() and 0 <= one <= _DEAREST) for one in price):
            raise ValueError
    except (KeyError, TypeError, ValueError, ArithmeticError):
        advice = "give input and output, and perhaps cached_input and cache_write, per million tokens, 0 or more"
        raise ValueError(f"prices of {model}: {advice}") from None
    return price
