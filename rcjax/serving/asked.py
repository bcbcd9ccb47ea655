"""How a model is asked, as JSON in a line of a log: its signal, options and prices, without secrets.

A policy that is tuned on the log keeps it (`rcjax.policy.record.recorded_asked`), and `Cascade` asks as it says.

Of the options an allow-list is kept (`recorded_options`), as others may hold what was asked, or a secret. What is
not in it is told by a digest alone, so that two ways of asking can be told apart.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from rcjax._base.tokens import Price
from rcjax.serving.asking import Endpoint
from rcjax.signals.records import record_signal

#: Options that say how an answer is drawn, of OpenAI's interface and of the servers that speak it.
_NAMES = """
    add_generation_prompt best_of budget_tokens cache_prompt continue_final_message do_sample dynatemp_exponent
    dynatemp_range early_stopping echo effort enable_thinking enabled exclude frequency_penalty ignore_eos
    include_stop_str_in_output length_penalty logprobs low_latency max_completion_tokens max_new_tokens max_tokens
    max_tokens_per_turn min_keep min_p min_tokens mirostat mirostat_eta mirostat_mode mirostat_tau modalities n n_ctx
    n_predict n_probs no_repeat_ngram_size num_beams num_ctx num_predict parallel_tool_calls penalize_newline
    penalize_nl presence_penalty priority prompt_logprobs reasoning_budget reasoning_effort reasoning_format
    repeat_last_n repeat_penalty repetition_penalty safe_prompt seed separate_reasoning service_tier
    skip_special_tokens spaces_between_special_tokens stop_token_ids store stream_reasoning temperature tfs_z think
    thinking_budget thinking_budget_tokens timeout tool_choice top_a top_k top_logprobs top_p truncate
    truncate_prompt_tokens type typical_p use_beam_search verbosity
"""


_SAMPLING = frozenset(_NAMES.split())

#: Options that hold others of the list.
_NESTED = frozenset(
    {"chat_template_kwargs", "extra_body", "options", "reasoning", "response_format", "sampling_params", "thinking"}
)

#: Of an endpoint, not of what it is asked.
_ROUTING = frozenset({"extra_headers", "extra_query"})

#: Parts of names of options that may hold a secret.
_SECRET = ("key", "token", "secret", "password", "auth", "credential")

_WORD = re.compile(r"[A-Za-z0-9_.:/+-]{0,32}")

_MOST = 64  # entries of a list or of biases

_LONGEST_STOP, _LARGEST = 32, 10**15

_LONGEST = 8192  # characters of all that is kept: more says not how an answer is drawn


def recorded_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model that a log and a policy keep: how an answer is drawn, no headers, no content, no secret.

    >>> recorded_options({"max_tokens": 1, "extra_headers": {"X": "y"}, "documents": ["…"], "extra_body": {"top_k": 2}})
    {'max_tokens': 1, 'extra_body': {'top_k': 2}}
    """
    return _parted(options)[0]


def digest_of_others(options: Mapping[str, Any]) -> str | None:
    """Sixteen hexadecimal digits for the options that are not kept, or None.

    What is of an endpoint, and what is a secret by its name, counts for nothing: a new key is no other way of asking.

    >>> digest_of_others({"max_tokens": 1, "extra_body": {"api_key": "k"}}), digest_of_others({"documents": ["…"]})
    (None, '92bfece5a8f34ae4')
    """
    others = _parted(options)[1]
    if not others:
        return None
    text = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the options that are kept, the others): where those to keep are too long, all are others."""
    recorded, others = _split(options)
    return ({}, {"kept": recorded, **others}) if len(str(recorded)) > _LONGEST else (recorded, others)


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the options that are kept, the others), both without secrets and what is of an endpoint."""
    recorded: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in options.items():
        if name in _ROUTING or _is_secret(name):
            continue
        if name in _NESTED and isinstance(value, Mapping):
            inner, rest = _split(value)
            recorded |= {name: inner} if inner else {}
            others |= {name: rest} if rest else {}
        elif _is_plain(name, value):
            recorded[name] = value
        else:
            others[name] = value
    return recorded, others


def _is_plain(name: str, value: Any) -> bool:
    """Whether an option is one of sampling, with such a value as those have: no text that somebody wrote."""
    if name == "stop":
        texts = value if isinstance(value, list | tuple) else [value]
        return len(texts) <= _MOST and all(isinstance(one, str) and len(one) <= _LONGEST_STOP for one in texts)
    if name == "logit_bias":
        pairs = value.items() if isinstance(value, Mapping) and len(value) <= _MOST else [("", None)]
        return all(str(token).isdigit() and len(str(token)) < 10 and _is_number(bias) for token, bias in pairs)
    if name not in _SAMPLING:
        return False
    values = value if isinstance(value, list | tuple) else [value]
    scalars = [one is None or _is_number(one) or (isinstance(one, str) and _WORD.fullmatch(one)) for one in values]
    return len(values) <= _MOST and all(scalars)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and -_LARGEST <= value <= _LARGEST


def _is_secret(name: str) -> bool:
    if name in _SAMPLING:
        return False
    plain = name.casefold()
    return any(part in plain for part in _SECRET) and not plain.endswith("tokens")


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


def record_asked(signal: Any, options: Mapping[str, Any], price: Price | None) -> str:
    """What a log keeps of how a model is asked, as JSON; what JSON cannot hold is left out.

    Of the options it keeps those of an allow-list (`rcjax.serving.asked`), and a digest of the `others`.

    Args:
        signal: that reads its confidence.
        options: of each request, apart from those of the signal.
        price: money per million tokens, where that is known.

    >>> from rcjax.signals import Choice
    >>> record_asked(Choice(("A", "B")), {"max_tokens": 1}, Price(1, 2))  # doctest: +NORMALIZE_WHITESPACE
    '{"choices": ["A", "B"], "options": {"max_tokens": 1}, "prices": {"input": 1.0, "output": 2.0}, "signal": "choice",
    "top": 20}'
    """
    # An entry with more than a log keeps is left out: in part it would be that of another signal.
    entries = record_signal(signal).items()
    entries = {k: v for k, v in entries if not isinstance(v, Mapping) or recorded_options(v) == v}
    plain = _plain(options)
    record = {**_plain(entries), "options": recorded_options(plain)}
    others = digest_of_others(plain)
    if others is not None:
        record["others"] = others
    if price is not None:
        record["prices"] = price.record()
    return json.dumps(record, sort_keys=True)


def record_endpoint(endpoint: Endpoint, overrides: Mapping[str, Any] | None = None) -> str | None:
    """The same of an endpoint of a cascade, and of a question's own options; None if nothing is judged."""
    if endpoint.signal is None:
        return None
    relevant = {name: value for name, value in (overrides or {}).items() if name not in NEUTRAL}
    options, needed = endpoint.options_for(relevant), endpoint.signal.options
    more = {name: value for name, value in options.items() if name not in needed or needed[name] != value}
    return record_asked(endpoint.signal, more, endpoint.price)


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
