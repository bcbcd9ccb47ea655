"""What an endpoint replied: texts, and the tokens of the first by what the server tells of them; what a signal reads.

Servers that hide a model's reasoning tell its tokens all the same, and the one that ends a reply; two tokens may have
the same text. Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from numbers import Real
from typing import Any

from rcjax._base.checks import what_it_is

#: How far above 0 log-probabilities may come out, and above 1 probabilities: as much as float32 rounds.
ROUNDING = 1e-6


class SignalError(ValueError):
    """A reply that holds no confidence; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a reply, its natural log-probability, and those of the likeliest tokens in its place by their texts.

    Several tokens of one text are one entry of `top`, the log of the sum of their probabilities.
    """

    text: str
    logprob: float
    top: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model replied: one text per sample, and the tokens of the first, where the endpoint tells them.

    `without_tokens` says why those that it tells cannot be used, such as tokens of hidden reasoning.
    """

    texts: tuple[str, ...]
    tokens: tuple[Token, ...] | None = None
    without_tokens: str | None = None
    finish_reason: str | None = None
    """Why the first sample ends there, as the endpoint has it."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Of the first sample, as the endpoint has them."""

    @property
    def text(self) -> str:
        """The text of the first sample."""
        return self.texts[0]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a signal reads from a reply: the answer, to be compared with others, and its raw log-probability.

    `text` is the reply to keep, where that is not the first sample; `likeliest` the answer that the model held likelier
    than the one it gave, as happens at temperatures above 0. A log-probability that rounding has put above 0 becomes 0.
    Raises SignalError for what no policy can use: NaN, what is above 0, an answer that is no text.

    >>> Reading("B", 1e-9)
    Reading(answer='B', logprob=0.0, text=None, likeliest=None)
    """

    answer: str
    logprob: float
    text: str | None = None
    likeliest: str | None = None

    def __post_init__(self) -> None:
        others = self.text, self.likeliest
        if not isinstance(self.answer, str) or not all(isinstance(other, str | None) for other in others):
            raise SignalError("what the signal reads must have texts as its answer, its text and the likeliest answer")
        if isinstance(self.logprob, bool) or not isinstance(self.logprob, Real):
            raise SignalError(f"what the signal reads has as its logprob {what_it_is(self.logprob)}: give a number")
        logprob = float(self.logprob)
        if not logprob <= ROUNDING:  # NaN is not
            raise SignalError(f"the signal reads the log-probability {logprob:g}: it must be at most 0")
        object.__setattr__(self, "logprob", min(0.0, logprob))


def logprob_of(value: Any) -> float | None:
    """A value as a natural log-probability; None if it is none: NaN, above 0 by more than rounding, no number.

    >>> logprob_of(-0.5), logprob_of(1e-7), logprob_of(0.5), logprob_of(float("nan")), logprob_of(None)
    (-0.5, 0.0, None, None, None)
    """
    if type(value) is float and value < 0:  # nearly always
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= ROUNDING:
        return None
    try:
        return min(0.0, float(value))
    except OverflowError:  # a whole number, which JSON has at any length
        return None


NO_LOGPROBS = (
    "the reply has no log-probabilities: use a model and an endpoint that return them, or a signal that does without, "
    "rcjax.signals.Votes or rcjax.signals.Stated"
)


#: Why a number, or what stands in its place, is no log-probability.
NO_LOGPROB = "a log-probability is missing, NaN or above 0"

_SAME = 1e-3  # by so much two log-probabilities of one token may differ, as a server rounds them

_LONGEST_STOP = 16  # tokens of a string that ends a reply, and is no part of it

_MARKER = re.compile(r"(<[^<>\s]*>|\[/?[A-Z_]+\])?")  # such as <|im_end|>, </s> or [EOS]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a token of SentencePiece that is one byte

_TOKEN_ID = re.compile(r"token_id:\d+")  # vLLM, where it is told to


class TokensError(SignalError):
    """Tokens that tell no confidence; `why` says it alone."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{NO_LOGPROBS} (those that there are cannot be used: {why})")
        self.why = why


def token_content(logprobs: Any) -> list[Any] | None:
    """The tokens of an API's log-probabilities as chat completions have them; None if it tells none.

    Completions, and Together's chats, have lists in place of objects: `tokens`, `token_logprobs`, `top_logprobs`.

    >>> token_content({"tokens": ["A"], "token_logprobs": [-0.1]})
    [{'token': 'A', 'logprob': -0.1, 'top_logprobs': None}]
    """
    told = logprobs if isinstance(logprobs, Mapping) else {}
    if isinstance(told.get("content"), list):
        return told["content"]
    texts, numbers, top = (told.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not isinstance(texts, list) or not isinstance(numbers, list) or len(texts) != len(numbers):
        return None
    others = top if isinstance(top, list) and len(top) == len(texts) else [None] * len(texts)
    return [
        {"token": text, "logprob": number, "top_logprobs": other}
        for text, number, other in zip(texts, numbers, others, strict=True)
    ]


def read_tokens(content: Any, text: str) -> tuple[Token, ...]:
    """The tokens of a text, by the `content` of an API's log-probabilities; those before and after it are left out.

    Args:
        content: a list of objects with `token`, `logprob`, `top_logprobs` (such objects, or numbers by their texts) and
            `bytes`. An alternative whose log-probability is none is left out; several of one text are one, whose
            probabilities are summed.
        text: what was replied. It is looked for at the end of the tokens, by bytes and by texts, white space apart, and
            then at their beginning, as what a server stops at follows it.

    Raises SignalError where there is no content, and TokensError where the tokens are not those of the text, or one of
    them has no log-probability.

    >>> content = [{"token": word, "logprob": -0.4} for word in ("B", " is a trap", "</think>", "A", "<|im_end|>")]
    >>> read_tokens(content, "A")
    (Token(text='A', logprob=-0.4, top={}),)
    """
    if not isinstance(content, Sequence) or isinstance(content, str) or not content:
        raise SignalError(NO_LOGPROBS)
    entries = [entry if isinstance(entry, Mapping) else {} for entry in content]
    texts = [_text(entry) for entry in entries]
    span = _span_of(text, entries, texts)
    if span is None:
        raise TokensError("the tokens are not those of its text")
    tokens = [_token(entry, said) for entry, said in zip(entries[span], texts[span], strict=True)]
    sound = tuple(token for token in tokens if token is not None)
    if len(sound) < len(tokens):
        raise TokensError(NO_LOGPROB)
    return sound


def log_sum(logprobs: Iterable[float]) -> float:
    """The log of a sum of probabilities given by their logs; at most 0, whatever an endpoint has rounded."""
    *rest, largest = sorted(logprobs) or [-math.inf]
    if largest == -math.inf:
        return -math.inf
    return min(0.0, largest + math.log1p(math.fsum(math.exp(logprob - largest) for logprob in rest)))


def _text(entry: Mapping[str, Any]) -> str:
    """The text of a token, also where the server gives its number in place of it; "" where there is none."""
    text = entry.get("token")
    if not isinstance(text, str):
        return ""
    raw = _bytes(entry) if text.startswith("token_id:") and _TOKEN_ID.fullmatch(text) else None
    return text if raw is None else raw.decode("utf-8", "replace")


def _bytes(entry: Mapping[str, Any]) -> bytes | None:
    """The bytes of a token, where the server tells them."""
    values = entry.get("bytes")
    if not isinstance(values, list) or not all(type(byte) is int and 0 <= byte < 256 for byte in values):
        return None
    return bytes(values) or None


def _token(entry: Mapping[str, Any], text: str) -> Token | None:
    """A token with its alternatives; None if it has no log-probability of its own."""
    logprob = logprob_of(entry.get("logprob"))
    if logprob is None or not isinstance(entry.get("token"), str):
        return None
    shares: dict[str, list[float]] = {}
    for other, share in _alternatives(entry.get("top_logprobs")):
        shares.setdefault(other, []).append(share)
    if text in shares and _is_another(logprob, shares, text):
        shares[text].append(logprob)
    sums = {other: several[0] if len(several) == 1 else log_sum(several) for other, several in shares.items()}
    return Token(text, logprob, sums)


def _alternatives(top: Any) -> Iterator[tuple[str, float]]:
    """(text, log-probability) of each alternative that has both."""
    if isinstance(top, Mapping):
        pairs = [(text, logprob_of(value)) for text, value in top.items()]
    else:
        entries = [entry for entry in top if isinstance(entry, Mapping)] if isinstance(top, Sequence) else []
        pairs = [(_text(entry), logprob_of(entry.get("logprob"))) for entry in entries if "token" in entry]
    for text, logprob in pairs:
        if isinstance(text, str) and logprob is not None:
            yield text, logprob


def _is_another(logprob: float, shares: Mapping[str, Sequence[float]], text: str) -> bool:
    """Whether a token is none of the alternatives of its text, but one more, for which they leave a probability."""
    if any(math.isclose(logprob, share, rel_tol=_SAME, abs_tol=_SAME) for share in shares[text]):
        return False
    total = math.fsum(math.exp(share) for several in shares.values() for share in several)
    return total + math.exp(logprob) <= 1 + _SAME


def _span_of(text: str, entries: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> slice | None:
    """Which of the tokens are those of a text; None if that cannot be told."""
    if text and texts[-1] and "".join(texts) == text:
        return slice(0, len(texts))
    written = [_written(said) for said in texts]
    in_bytes = [_bytes(entry) or said for entry, said in zip(entries, written, strict=True)]
    whole = text.encode("utf-8", "surrogatepass")
    ends = [_MARKER.fullmatch(said.strip()) is not None for said in texts]
    for pieces in (in_bytes, written):
        span = _at_end(pieces, whole, ends)
        if span is not None:
            return span
    for pieces, plain in ((in_bytes, _without_blanks), (written, _without_blanks), (written, _in_ascii)):
        compared = [plain(piece) for piece in pieces]
        span = _at_end(compared, plain(whole), ends) or _at_start(compared, plain(whole), ends)
        if span is not None:
            return _with_halves(span, written, _without_blanks(whole)) if plain is _in_ascii else span
    return None


def _written(text: str) -> bytes:
    byte = _BYTE.fullmatch(text)
    return bytes.fromhex(byte[1]) if byte else text.encode("utf-8", "surrogatepass")


def _without_blanks(content: bytes) -> bytes:
    """Without white space, which servers trim, and without what tokenizers write for it."""
    for blank in ("\u2581", "\u0120", "\u010a"):
        content = content.replace(blank.encode(), b"")
    return b"".join(content.split())


def _in_ascii(content: bytes) -> bytes:
    """Nothing but the ASCII in it: of halves of other characters servers tell neither texts nor bytes."""
    return bytes(byte for byte in _without_blanks(content) if byte < 128)


def _with_halves(span: slice, pieces: Sequence[bytes], whole: bytes) -> slice:
    """A span found by its ASCII, with what stands beside it for other characters of the whole."""
    first, end = span.start, span.stop
    while first and whole[0] > 127 and _is_beyond_ascii(pieces[first - 1]):
        first -= 1
    while end < len(pieces) and whole[-1] > 127 and _is_beyond_ascii(pieces[end]):
        end += 1
    return slice(first, end)


def _is_beyond_ascii(content: bytes) -> bool:
    return bool(content) and not _in_ascii(content) and not content.isspace()


def _at_end(pieces: Sequence[bytes], whole: bytes, ends: Sequence[bool]) -> slice | None:
    """The pieces that make up the whole, before the last of those that only end a reply, few apart from blanks."""
    filled = (index + 1 for index in range(len(pieces) - 1, -1, -1) if pieces[index])
    for end in islice(filled if whole else (), _LONGEST_STOP):
        first, left = end, len(whole)
        while first and left and whole.endswith(pieces[first - 1], 0, left):
            first -= 1
            left -= len(pieces[first])
        if not left:
            return slice(first, end)
        if not ends[end - 1]:
            return None
    return None


def _at_start(pieces: Sequence[bytes], whole: bytes, ends: Sequence[bool]) -> slice | None:
    """The pieces that make up the whole, after those that only begin a reply, and before what a server stops at."""
    first = next((index for index, marks in enumerate(ends) if not marks), len(ends))
    read = 0
    for index in range(first, len(pieces)):
        left = whole[read:]
        if left and pieces[index].startswith(left):
            return slice(first, index + 1) if len(pieces) - index - 1 <= _LONGEST_STOP else None
        if not left.startswith(pieces[index]):
            return None
        read += len(pieces[index])
    return None
