"""The usage of replies: tokens and costs as servers report them, and the means of a model's answers for estimates.

Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any, TypeGuard

from rcjax._base.tokens import Price, Tokens
from rcjax.policy.signals.answers import as_object, objects_in

_MAX_TOKENS = 10**7  # tokens of one reply: a larger figure counts something else

_MAX_SUMMAND = 10**12  # largest figure of a reply that is summed over replies

#: Tokens by which a count may exceed its bound: servers add tokens to a prompt, and some do not count hidden reasoning
#: against the limit of an answer.
_TOKEN_SLACK = 16_384

_MAX_UNLIMITED = 1_000_000  # most tokens of an answer without a limit

_MAX_COST = 1000.0  # money for one reply

#: A reported cost is believed up to this many times the price of the tokens, plus this fee, as for a search.
_MAX_PRICE_RATIO, _MAX_EXTRA_FEE = 100, Decimal("0.1")

#: The names of the input and the output tokens: OpenAI's, then Anthropic's.
_TOKENS = (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))

#: The fields of input tokens read from a cache, and written to it: within the input tokens, or beside them.
_CACHED = ("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens")
_CACHED += ("prompt_cache_hit_tokens", "cached_tokens")
_CACHE_WRITE = ("prompt_tokens_details.cache_write_tokens", "input_tokens_details.cache_write_tokens")
_CACHED_BESIDE, _CACHE_WRITE_BESIDE = "cache_read_input_tokens", "cache_creation_input_tokens"

#: Hidden reasoning: within the output, or beside it if it is larger than the output.
_REASONING = ("completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens")

#: Tokens of audio, which have prices of their own: within the input, and within the output.
_AUDIO = ("prompt_tokens_details.audio_tokens", "completion_tokens_details.audio_tokens")


def text_bytes(messages: Sequence[Mapping[str, Any]]) -> int:
    """Count the bytes of the text in messages, in UTF-8; images and the like count as 0.

    >>> text_bytes([{"content": "Größe"}, {"content": [{"type": "text", "text": "?"}, {"type": "image_url"}]}])
    8
    """
    total = 0
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list | tuple) else [{"text": content}]
        texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
        total += sum(len(text.encode("utf-8", "replace")) for text in texts if isinstance(text, str))
    return total


def request_bytes(messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> int:
    """Count the bytes of a request that a model reads: the texts, and as JSON tools, tool calls and the schema."""
    parts = [options.get(name) for name in ("tools", "functions", "response_format")]
    parts += [message.get("tool_calls") for message in messages]
    return text_bytes(messages) + sum(len(json.dumps(part, default=str)) for part in parts if part)


def is_text(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether messages hold only text: the tokens of images, sounds and files do not follow from their bytes.

    >>> [is_text([{"content": content}]) for content in ("A?", None, [{"type": "text"}], [{"type": "image_url"}])]
    [True, True, True, False]
    """
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list | tuple) for part in content)
    return all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts)


@dataclass(slots=True)
class CallUsage:
    """The usage of one call's requests so far: tokens if the replies report them, else bytes.

    `unanswered` counts requests without a reply yet, which may be charged; `unfinished`, of these, the requests that
    the server may still work on: in flight or timed out, but not lost with their connections.
    """

    attempts: int = 0
    replies: int = 0
    reply_seconds: float = 0.0
    """Seconds in which replies came: without waits before a request, and without those for the reader of a stream."""
    uncounted_input_bytes: int = 0
    """Bytes of the requests whose replies reported no tokens."""
    uncounted_output_bytes: int = 0
    """Bytes of the texts of the replies that reported no tokens."""
    unanswered: int = 0
    """Number of requests without a reply that may be charged."""
    unanswered_input_bytes: int = 0
    """Bytes of the unanswered requests."""
    unfinished: int = 0
    """Number of unanswered requests that the server may still work on."""
    broken: int = 0
    """Number of streams that broke off."""
    reported: list[tuple[Tokens, Mapping[str, object]]] = field(default_factory=list)
    """The usage that each reply reported: its tokens, and all its fields by OpenAI's names."""
    impossible: int = 0
    """Number of replies that reported more tokens than their request can have: their bytes count."""
    questions: int = 0
    """Number of questions: a signal's second question is one more, retries and votes are not."""
    _request: tuple[Sequence[Mapping[str, object]], Mapping[str, object]] | None = None
    """(messages, options) of the last request; votes, which are under way together, have the same."""
    _request_bytes: int = 0
    """Bytes of the last request."""

    @property
    def tokens(self) -> Tokens:
        """Tokens of the replies that reported them."""
        return Tokens(*map(sum, zip((0,) * 4, *(tokens for tokens, _ in self.reported), strict=True)))

    def add(self, usage: Any, output_bytes: int = 0) -> None:
        """Count a reply by the `usage` that it reports, or else by the bytes of its request and its text."""
        self.replies += 1
        tokens = reported_tokens(usage)
        if tokens is not None and self._request is not None and not _is_possible(tokens, *self._request):
            tokens = None
            self.impossible += 1
        if tokens is None:
            self.uncounted_input_bytes += self._request_bytes
            self.uncounted_output_bytes += output_bytes
        else:
            self.reported.append((tokens, _rename_counts(usage)))

    def begin_request(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        """Count a request before its reply."""
        self.questions += self._request is None or messages is not self._request[0]
        self._request, self._request_bytes = (messages, options), request_bytes(messages, options)
        self.attempts += 1
        self.unanswered += 1
        self.unanswered_input_bytes += self._request_bytes
        self.unfinished += 1

    def end_request(self) -> None:
        """End a request that `begin_request` counted, with a reply or without a charge."""
        self.unanswered -= 1
        self.unanswered_input_bytes -= self._request_bytes
        self.unfinished -= 1

    def mark_lost(self) -> None:
        """End a request that may be charged without a reply, and that its server does not work on any more."""
        self.unfinished -= 1

    def join(self, other: CallUsage) -> None:
        """Add the usage of other requests of the call."""
        for name in (counter.name for counter in fields(self)):
            if name != "questions" and not name.startswith("_"):
                setattr(self, name, getattr(self, name) + getattr(other, name))

    def money(self, price: Price | None) -> Decimal | None:
        """Return the money for the replies that report tokens, by reported costs or by price; None if unknown."""
        pairs = self._costs(price)
        costs = [by_price if cost is None or _is_wrong(cost, by_price) else cost for cost, by_price in pairs]
        return None if None in costs else sum(filter(None, costs), Decimal(0))

    def _costs(self, price: Price | None) -> list[tuple[Decimal | None, Decimal | None]]:
        """Return (the reported cost, the cost by price) of each reply that reports tokens."""
        exact = price and price.exact
        return [(_cost_in_usage(report), exact and exact.money(tokens)) for tokens, report in self.reported]

    def remarks(self, price: Price | None) -> list[str]:
        """Return sentences for people about unusual ways in which the money was computed."""
        remarks = list[str]()
        if self.impossible:
            remarks.append("its server reports more tokens than the request can have: the cost is estimated from bytes")
        are_wrong = [_is_wrong(cost, by_price) for cost, by_price in self._costs(price) if cost is not None]
        if any(are_wrong):
            remarks.append("its server reports a cost far above its tokens' price: the price is used")
        if not all(are_wrong):
            return [*remarks, "its server reports the cost of each call: it is used in place of prices"]
        tokens, (cached, stored) = self.tokens, (price or Price(0, 0, 0, 0))[2:4]
        lacking = (
            (tokens.cached_input and cached is None, "cached_input"),
            (tokens.cache_write and stored is None, "cache_write"),
        )
        missing = next((name for lacks, name in lacking if lacks), None)
        if missing is not None:
            remarks.append(f"a cache serves its input, which is charged in full: no price {missing} is known")
        if any(_first_count(report, (name,)) for _, report in self.reported for name in _AUDIO):
            remarks.append("its audio is charged as text: no price of audio is known")
        return remarks


def _is_wrong(cost: Decimal, by_price: Decimal | None) -> bool:
    """Return whether a reported cost is far above the price of the tokens, and so cannot be right."""
    return bool(by_price) and cost > _MAX_PRICE_RATIO * by_price + _MAX_EXTRA_FEE


def _is_possible(tokens: Tokens, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> bool:
    """Return whether a reply can have so many tokens: one input token per byte, and the limit on output tokens.

    Bytes do not bound the tokens of images, files and web searches.

    >>> prompt = [{"role": "user", "content": "A or B?"}]
    >>> [_is_possible(Tokens(*report), prompt, {"max_tokens": 9}) for report in ((90, 9), (10**6, 9), (90, 10**6))]
    [True, False, False]
    """
    limit = token_limit(options)
    max_output = _MAX_UNLIMITED * reply_samples(options) if limit is None else 2 * limit
    if tokens.output > max_output + _TOKEN_SLACK:
        return False
    if tokens.input <= _TOKEN_SLACK:
        return True
    texts = [message for message in messages if isinstance(message.get("content"), str)]
    if len(texts) < len(messages) or "web_search_options" in options:
        return True
    return tokens.input <= len(json.dumps([messages, dict(options)], default=str)) + _TOKEN_SLACK


def usage_of(body: Mapping[str, Any]) -> Any:
    """Return the usage of a completion or chunk, which Groq has within `x_groq`, and Moonshot in a choice.

    >>> usage_of({"choices": [{"usage": {"prompt_tokens": 7}}], "usage": None})
    {'prompt_tokens': 7}
    """
    inside = as_object(body.get("x_groq")), *objects_in(body.get("choices"))
    usages = [part.get("usage") for part in (body, *inside)]
    return next((usage for usage in usages if usage), None)


def _cost_in_usage(report: Mapping[str, Any]) -> Decimal | None:
    """Return the cost that a reply reports, with the provider's charge to the user's own key; None without one."""
    cost = _money(report.get("cost"))
    upstream = _money(as_object(report.get("cost_details")).get("upstream_inference_cost"))
    own_key = report.get("is_byok") is True
    if cost is None or (own_key and upstream is None):
        return None
    money = cost + (upstream or 0) * own_key
    return money if money > 0 else None


def _money(value: Any) -> Decimal | None:
    """Read an amount of money: a number, a text or, from Perplexity, the total of an object; None if invalid.

    >>> _money({"request_cost": 0.005, "total_cost": 0.02}), _money("0.02"), _money(-1)
    (Decimal('0.02'), Decimal('0.02'), None)
    """
    if isinstance(value, Mapping):
        value = value.get("total_cost")
    if isinstance(value, str):
        value = float(value) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,20})?([eE]-?[0-9]{1,2})?", value) else None
    return Decimal(str(value)) if type(value) in (int, float) and 0 <= value <= _MAX_COST else None


def reported_tokens(usage: Any) -> Tokens | None:
    """Read the tokens of a reply from the `usage` that it reports; None if it reports none.

    A server that reports a prompt of 0 tokens has not counted them. Hidden reasoning is added to the output if the
    total or the reasoning is larger. Cached tokens under Anthropic's names are added to the input, unless the input
    holds them already.

    >>> reported_tokens({"prompt_tokens": "20", "completion_tokens": 3.0})
    Tokens(input=20, output=3, cached_input=0, cache_write=0)
    >>> reported_tokens({"input_tokens": 7, "output_tokens": 2, "cache_read_input_tokens": 90})
    Tokens(input=97, output=2, cached_input=90, cache_write=0)
    >>> reported_tokens({"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 60})
    Tokens(input=20, output=40, cached_input=0, cache_write=0)
    >>> reported_tokens({"prompt_tokens": 0, "completion_tokens": 0}) is reported_tokens({"prompt_tokens": 20}) is None
    True
    """
    fields = as_object(usage)
    input_tokens, output_tokens = (_first_count(fields, names) for names in _TOKENS)
    cached, cache_write = _first_count(fields, _CACHED) or 0, _first_count(fields, _CACHE_WRITE) or 0
    beside = _first_count(fields, (_CACHED_BESIDE,)) or 0, _first_count(fields, (_CACHE_WRITE_BESIDE,)) or 0
    if input_tokens is None or output_tokens is None or not input_tokens + sum(beside):
        return None
    total, reasoning = _first_count(fields, ("total_tokens",)) or 0, _first_count(fields, _REASONING) or 0
    if any(beside):
        cached, cache_write = beside
        by_anthropic = fields.get("prompt_tokens") is None and "input_tokens_details" not in fields
        if by_anthropic or sum(beside) > input_tokens or total >= input_tokens + output_tokens + sum(beside):
            input_tokens += sum(beside)
    is_beside = reasoning > output_tokens
    output_tokens = max(output_tokens, total - input_tokens, output_tokens + reasoning if is_beside else 0)
    cached = min(cached, input_tokens)
    return Tokens(input_tokens, output_tokens, cached, min(cache_write, input_tokens - cached))


def _first_count(fields: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """Return the first count that is present under these names; a point in a name leads into a mapping."""
    for name in names:
        value: Any = fields
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return _as_count(value)
    return None


def _as_count(value: Any) -> int | None:
    """Read a number of tokens, also from a text or a float without a fraction; None if invalid."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}(\.0{1,9})?", value):
        value = float(value)
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else None


def _rename_counts(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage as reported, but with OpenAI's names and whole numbers for the tokens."""
    input_tokens, output_tokens = (_first_count(usage, names) or 0 for names in _TOKENS)
    total = _first_count(usage, ("total_tokens",)) or input_tokens + output_tokens
    counts = {"prompt_tokens": input_tokens, "completion_tokens": output_tokens, "total_tokens": total}
    others = {*counts, *(name for names in _TOKENS for name in names)}
    return counts | {name: value for name, value in usage.items() if name not in others}


def sum_usages(usages: Sequence[CallUsage]) -> dict[str, Any] | None:
    """Sum the usage that several calls report, as in the API; None if they report none.

    >>> first, second = CallUsage(), CallUsage()
    >>> first.add({"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}})
    >>> second.add({"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}})
    >>> sum_usages([first, second])
    {'prompt_tokens': 16, 'completion_tokens': 3, 'total_tokens': 19, 'prompt_tokens_details': {'cached_tokens': 7}}
    """
    reports = [report for usage in usages for _, report in usage.reported]
    return _sum(reports, deep=True) if reports else None


def _sum(usages: Sequence[Mapping[str, Any]], *, deep: bool) -> dict[str, Any]:
    """Sum numbers by name, with `deep` also within inner mappings; another field has its last value."""
    sums: dict[str, Any] = {}
    for name in dict.fromkeys(name for usage in usages for name in usage):
        values = [usage[name] for usage in usages if usage.get(name) is not None]
        if values and all(type(value) in (int, float) and abs(value) <= _MAX_SUMMAND for value in values):
            sums[name] = sum(values)
        elif values and deep and all(isinstance(value, Mapping) for value in values):
            sums[name] = _sum(values, deep=False)
        else:
            sums[name] = values[-1] if values else None
    return sums


#: Options that limit the tokens of an answer.
TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")

_ANSWERS_AVERAGED = 50  # answers that the running means reach back

_CHECKS_AVERAGED = 10  # checks that the running mean of their cost reaches back


@dataclass
class AnswerMeans:
    """The running means of a model's answers: tokens, seconds, cost of a check. A first guess counts as one answer.

    >>> means = AnswerMeans()
    >>> means.add(tokens=1500, seconds=10.0)
    >>> means.tokens, means.tokens_per_second
    (1000.0, 100.0)
    """

    tokens: float = 500.0
    """Output tokens of an answer: of one sample, and of one vote."""
    seconds: float = 10.0
    """Time of an answer, without waits before its request and for its reader."""
    check_cost: float | None = None
    """Dollars for the check of an answer; None before the first check."""
    _answers: int = 1

    @classmethod
    def guess(cls, tokens: float) -> AnswerMeans:
        """Guess the means of a model that has not answered yet, from the output tokens of an answer."""
        return cls(tokens, tokens * cls.seconds / cls.tokens)

    def add_check(self, cost: float) -> None:
        """Count the cost of a check."""
        before = cost if self.check_cost is None else self.check_cost
        self.check_cost = before + (cost - before) / _CHECKS_AVERAGED

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds

    def add(self, tokens: float, seconds: float) -> None:
        """Count an answer whose output tokens are known."""
        self._answers = min(self._answers + 1, _ANSWERS_AVERAGED)
        share = 1 / self._answers
        self.tokens += share * (tokens - self.tokens)
        self.seconds += share * (max(seconds, 1e-3) - self.seconds)


def sent_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the request has them: each field of `extra_body` overrides the option of its name."""
    sent = {**options, **as_object(options.get("extra_body"))}
    return {name: value for name, value in sent.items() if name != "extra_body"}


def token_limit(options: Mapping[str, Any]) -> int | None:
    """Return the limit on the tokens of a reply, over all its samples; None if the options set none.

    >>> token_limit({"max_tokens": 10, "n": 5}), token_limit({"extra_body": {"max_tokens": 8000}}), token_limit({})
    (50, 8000, None)
    """
    options = sent_options(options)
    limits = [options[name] for name in TOKEN_LIMITS if _is_count(options.get(name))]
    return max(limits) * reply_samples(options) if limits else None


def reply_samples(options: Mapping[str, Any]) -> int:
    """Return the number of answers in a reply."""
    samples = sent_options(options).get("n")
    return samples if _is_count(samples) else 1


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value > 0
