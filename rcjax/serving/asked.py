"""How a model is asked, as JSON in a line of a log: its signal, options and prices, without secrets.

A policy that is tuned on the log keeps it (`rcjax.policy.record.recorded_asked`), and `Cascade` asks as it says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from rcjax.serving.asking import Endpoint
from rcjax.serving.recorded import digest_of_others, recorded_options
from rcjax.signals.records import record_signal

#: Options of a request that change no answer; some of them say who asks.
NEUTRAL = frozenset(
    {
        "logprobs",
        "metadata",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "top_logprobs",
        "user",
    }
)


def record_asked(signal: Any, options: Mapping[str, Any], price: tuple[Decimal, Decimal] | None) -> str:
    """What a log keeps of how a model is asked, as JSON; what JSON cannot hold is left out.

    Of the options it keeps those of an allow-list (`rcjax.serving.recorded`), and a digest of the `others`.

    Args:
        signal: that reads its confidence.
        options: of each request, but for those of the signal.
        price: money per million tokens of input and of output, where that is known.

    >>> from rcjax.signals import Choice
    >>> record_asked(Choice(("A", "B")), {"max_tokens": 1}, (Decimal(1), Decimal(2)))  # doctest: +NORMALIZE_WHITESPACE
    '{"choices": ["A", "B"], "options": {"max_tokens": 1}, "prices": {"input": 1.0, "output": 2.0}, "signal": "choice",
    "top": 20}'
    """
    entries = {name: value for name, value in record_signal(signal).items() if not _has_more(value)}
    plain = _plain(options)
    record = {**_plain(entries), "options": recorded_options(plain)}
    others = digest_of_others(plain)
    if others is not None:
        record["others"] = others
    if price is not None:
        record["prices"] = {"input": float(price[0]), "output": float(price[1])}
    return json.dumps(record, sort_keys=True)


def record_endpoint(endpoint: Endpoint, overrides: Mapping[str, Any] | None = None) -> str | None:
    """The same of an endpoint of a cascade, and of a question's own options; None where nothing is judged."""
    if endpoint.signal is None:
        return None
    relevant = {name: value for name, value in (overrides or {}).items() if name not in NEUTRAL}
    options, needed = endpoint.options_for(relevant), endpoint.signal.options
    more = {name: value for name, value in options.items() if name not in needed or needed[name] != value}
    return record_asked(endpoint.signal, more, endpoint.price)


class AskedRecords:
    """How models are asked, by the options of a question: what was made once serves the questions that are alike.

    Args:
        endpoints: of each model by name.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = endpoints
        self._usual = {model: record_endpoint(endpoint) for model, endpoint in endpoints.items()}
        self._made: dict[tuple[str, str], str | None] = {}

    def of(self, model: str, overrides: Mapping[str, Any]) -> str | None:
        """`record_endpoint` of a model, and of a question's own options."""
        if not overrides:
            return self._usual[model]
        key = model, repr(overrides)
        if key in self._made:
            return self._made[key]
        record = record_endpoint(self._endpoints[model], overrides)
        if len(key[1]) <= _LONGEST_KEPT:
            if len(self._made) >= _MOST_KEPT:
                self._made.clear()
            self._made[key] = record
        return record


_MOST_KEPT, _LONGEST_KEPT = 256, 512  # ways of asking; characters of one


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that JSON can hold."""
    plain = {}
    for name, value in values.items():
        try:
            json.dumps(value, allow_nan=False, sort_keys=True)
        except (TypeError, ValueError, RecursionError):
            continue
        plain[name] = value
    return plain


def _has_more(value: Any) -> bool:
    """Whether an entry of a signal holds what no log keeps; in part it would be the entry of another signal."""
    return isinstance(value, Mapping) and recorded_options(value) != value
