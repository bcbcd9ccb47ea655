"""Replies of endpoints: texts, the tokens of the first text with log-probabilities, and the readings of signals.

Servers may list tokens that are not in the text, of hidden reasoning or of the end of a reply; and two tokens may have
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

from rcjax._base.codec import describe_type
from rcjax.policy.signals.answers import as_object, objects_in

#: Largest excess of a log-probability over 0, or of a probability over 1, that float32 rounding explains.
ROUNDING = 1e-6


class SignalError(ValueError):
    """The error for a reply without a confidence; the message gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a reply."""

    text: str
    logprob: float
    """Natural log-probability."""
    top: Mapping[str, float] = field(default_factory=dict)
    """Log-probabilities of the likeliest tokens in its place, by text: tokens of the same text are summed up."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a model."""

    texts: tuple[str, ...]
    """The text of each sample."""
    tokens: tuple[Token, ...] | None = None
    """Tokens of the first sample, if the endpoint gives them."""
    tokens_problem: str | None = None
    """Reason why the tokens of the endpoint cannot be used, such as hidden reasoning."""
    finish_reason: str | None = None
    """Finish reason of the first sample, as the endpoint gives it."""
    tool_calls: tuple[Mapping[str, object], ...] = ()
    """Tool calls of the first sample, as the endpoint gives them."""

    @property
    def text(self) -> str:
        """The text of the first sample."""
        return self.texts[0]


@dataclass(frozen=True, slots=True)
class Reading:
    """The reading of a signal from a reply.

    Args:
        answer: the answer, in the form for comparisons.
        logprob: its raw log-probability; a value above 0 by rounding becomes 0.
        text: the text to keep, if it is not the first sample.

    Raises SignalError for values that no policy can use: NaN, a log-probability above 0, an answer that is not a text.

    >>> Reading("B", 1e-9)
    Reading(answer='B', logprob=0.0, text=None)
    """

    answer: str
    logprob: float
    text: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.answer, str) or not isinstance(self.text, str | None):
            raise SignalError("the signal must read texts as the answer and its text")
        if isinstance(self.logprob, bool) or not isinstance(self.logprob, Real):
            raise SignalError(f"the signal reads {describe_type(self.logprob)} as the log-probability: give a number")
        logprob = float(self.logprob)
        if not logprob <= ROUNDING:  # NaN is not
            raise SignalError(f"the signal reads the log-probability {logprob:g}: it must be at most 0")
        object.__setattr__(self, "logprob", min(0.0, logprob))


class OneReply:
    """A signal that asks no second question."""

    __slots__ = ()

    @property
    def second_options(self) -> None:
        """None: there is no second question."""
        return None

    def follow_up(self, messages: Sequence[Mapping[str, Any]], reply: Reply) -> None:
        """Ask no second question."""
        return None


def last_question(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the last message of the user, as text; "" if there is none."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            parts = content if isinstance(content, Sequence) else ()
            return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
    return ""


def logprob_of(value: Any) -> float | None:
    """Return a value as a natural log-probability; None unless it is a number of at most 0, up to rounding.

    >>> logprob_of(-0.5), logprob_of(1e-7), logprob_of(0.5), logprob_of(float("nan")), logprob_of(None)
    (-0.5, 0.0, None, None, None)
    """
    if type(value) is float and value < 0:  # the usual case, for speed
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= ROUNDING:
        return None
    try:
        return min(0.0, float(value))
    except OverflowError:  # an integer of JSON may have any number of digits
        return None


NO_LOGPROBS = (
    "the reply has no log-probabilities: use a model and an endpoint that return them, or a signal that does without, "
    "rcjax.policy.signals.Votes or rcjax.policy.signals.Stated"
)


#: The message for a token without a usable log-probability.
NO_LOGPROB = "a log-probability is missing, NaN or above 0"

_SAME = 1e-3  # largest difference of two log-probabilities of one token, by a server's rounding

_MAX_STOP_LENGTH = 16  # most tokens of a stop string, which ends a reply and is not part of it

_MARKER = re.compile(r"(<[^<>\s]*>|\[/?[A-Z_]+\])?")  # such as <|im_end|>, </s> or [EOS]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a token of SentencePiece that is one byte

_TOKEN_ID = re.compile(r"token_id:\d+")  # vLLM with return_tokens_as_token_ids


class TokensError(SignalError):
    """The error for tokens that cannot be used; the message has the reason and the remedy, `reason` has no remedy."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{NO_LOGPROBS} (the log-probabilities of this reply cannot be used: {reason})")
        self.reason = reason


def token_content(logprobs: Any) -> list[Any] | None:
    """Return the tokens of an API's log-probabilities in the form of chat completions; None if there are none.

    Completions, and Together's chats, give parallel lists in place of objects: `tokens`, `token_logprobs`,
    `top_logprobs`.

    >>> token_content({"tokens": ["A"], "token_logprobs": [-0.1]})
    [{'token': 'A', 'logprob': -0.1, 'top_logprobs': None}]
    """
    fields = as_object(logprobs)
    if isinstance(fields.get("content"), list):
        return fields["content"]
    texts, numbers, top = (fields.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not isinstance(texts, list) or not isinstance(numbers, list) or len(texts) != len(numbers):
        return None
    others = top if isinstance(top, list) and len(top) == len(texts) else [None] * len(texts)
    return [
        {"token": text, "logprob": number, "top_logprobs": other}
        for text, number, other in zip(texts, numbers, others, strict=True)
    ]


def read_tokens(content: Any, text: str) -> tuple[Token, ...]:
    """Return the tokens of a text from the `content` of an API's log-probabilities, without tokens outside the text.

    Args:
        content: list of objects with `token`, `logprob`, `top_logprobs` (such objects, or a mapping from text to
            number) and `bytes`. Alternatives without a valid log-probability are left out; those of the same text are
            one, with the sum of their probabilities.
        text: text of the reply. It is looked for at the end of the tokens, by bytes and by texts, up to white space;
            then at the beginning, since a stop string may follow it.

    Raises SignalError for missing content, TokensError for tokens that do not form the text, or a token without a
    log-probability.

    >>> content = [{"token": word, "logprob": -0.4} for word in ("B", " is a trap", "</think>", "A", "<|im_end|>")]
    >>> read_tokens(content, "A")
    (Token(text='A', logprob=-0.4, top={}),)
    """
    if not isinstance(content, Sequence) or isinstance(content, str) or not content:
        raise SignalError(NO_LOGPROBS)
    entries = [as_object(entry) for entry in content]
    texts = [_text(entry) for entry in entries]
    span = _span_of(text, entries, texts)
    if span is None:
        raise TokensError("the tokens are not those of its text")
    tokens = [_token(entry, piece) for entry, piece in zip(entries[span], texts[span], strict=True)]
    sound = tuple(token for token in tokens if token is not None)
    if len(sound) < len(tokens):
        raise TokensError(NO_LOGPROB)
    return sound


def log_sum(logprobs: Iterable[float]) -> float:
    """Return the log of a sum of probabilities, from their logs; clipped to 0, against an endpoint's rounding."""
    *rest, largest = sorted(logprobs) or [-math.inf]
    if largest == -math.inf:
        return -math.inf
    return min(0.0, largest + math.log1p(math.fsum(math.exp(logprob - largest) for logprob in rest)))


def _text(entry: Mapping[str, Any]) -> str:
    """Return the text of a token, from its bytes if the server gives a token id in its place; "" if there is none."""
    text = entry.get("token")
    if not isinstance(text, str):
        return ""
    raw = _bytes(entry) if text.startswith("token_id:") and _TOKEN_ID.fullmatch(text) else None
    return text if raw is None else raw.decode("utf-8", "replace")


def _bytes(entry: Mapping[str, Any]) -> bytes | None:
    values = entry.get("bytes")
    if not isinstance(values, list) or not all(type(byte) is int and 0 <= byte < 256 for byte in values):
        return None
    return bytes(values) or None


def _token(entry: Mapping[str, Any], text: str) -> Token | None:
    """Build a token with its alternatives; None if the token itself has no log-probability."""
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
    """Yield (text, log-probability) of each alternative that has both."""
    if isinstance(top, Mapping):
        pairs = [(text, logprob_of(value)) for text, value in top.items()]
    else:
        entries = objects_in(top)
        pairs = [(_text(entry), logprob_of(entry.get("logprob"))) for entry in entries if "token" in entry]
    for text, logprob in pairs:
        if isinstance(text, str) and logprob is not None:
            yield text, logprob


def _is_another(logprob: float, shares: Mapping[str, Sequence[float]], text: str) -> bool:
    """Return whether a token is missing from its alternatives, which leave enough probability for it."""
    if any(math.isclose(logprob, share, rel_tol=_SAME, abs_tol=_SAME) for share in shares[text]):
        return False
    total = math.fsum(math.exp(share) for several in shares.values() for share in several)
    return total + math.exp(logprob) <= 1 + _SAME


def _span_of(text: str, entries: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> slice | None:
    """Return the slice of the tokens that form a text; None if it cannot be found."""
    if text and texts[-1] and "".join(texts) == text:
        return slice(0, len(texts))
    encoded = [_encode(piece) for piece in texts]
    in_bytes = [_bytes(entry) or piece for entry, piece in zip(entries, encoded, strict=True)]
    target = text.encode("utf-8", "surrogatepass")
    is_marker = [_MARKER.fullmatch(piece.strip()) is not None for piece in texts]
    for pieces in (in_bytes, encoded):
        span = _at_end(pieces, target, is_marker)
        if span is not None:
            return span
    for pieces, plain in ((in_bytes, _without_blanks), (encoded, _without_blanks), (encoded, _in_ascii)):
        compared = [plain(piece) for piece in pieces]
        span = _at_end(compared, plain(target), is_marker) or _at_start(compared, plain(target), is_marker)
        if span is not None:
            return _with_halves(span, encoded, _without_blanks(target)) if plain is _in_ascii else span
    return None


def _encode(text: str) -> bytes:
    byte = _BYTE.fullmatch(text)
    return bytes.fromhex(byte[1]) if byte else text.encode("utf-8", "surrogatepass")


def _without_blanks(content: bytes) -> bytes:
    """Remove white space, which servers trim, and the characters that tokenizers write for it."""
    for blank in ("\u2581", "\u0120", "\u010a"):
        content = content.replace(blank.encode(), b"")
    return b"".join(content.split())


def _in_ascii(content: bytes) -> bytes:
    """Keep ASCII only: servers give neither text nor bytes for a token that is part of a non-ASCII character."""
    return bytes(byte for byte in _without_blanks(content) if byte < 128)


def _with_halves(span: slice, pieces: Sequence[bytes], target: bytes) -> slice:
    """Extend a span that was found by its ASCII characters to the neighbouring pieces of the other characters."""
    first, end = span.start, span.stop
    while first and target[0] > 127 and _is_beyond_ascii(pieces[first - 1]):
        first -= 1
    while end < len(pieces) and target[-1] > 127 and _is_beyond_ascii(pieces[end]):
        end += 1
    return slice(first, end)


def _is_beyond_ascii(content: bytes) -> bool:
    return bool(content) and not _in_ascii(content) and not content.isspace()


def _at_end(pieces: Sequence[bytes], target: bytes, is_marker: Sequence[bool]) -> slice | None:
    """Return the last pieces that make up the target; a few markers of the end of a reply may follow them."""
    ends = (index + 1 for index in range(len(pieces) - 1, -1, -1) if pieces[index])
    for end in islice(ends if target else (), _MAX_STOP_LENGTH):
        first, left = end, len(target)
        while first and left and target.endswith(pieces[first - 1], 0, left):
            first -= 1
            left -= len(pieces[first])
        if not left:
            return slice(first, end)
        if not is_marker[end - 1]:
            return None
    return None


def _at_start(pieces: Sequence[bytes], target: bytes, is_marker: Sequence[bool]) -> slice | None:
    """Return the first pieces that make up the target, after markers; a stop string of a few pieces may follow."""
    first = next((index for index, marker in enumerate(is_marker) if not marker), len(is_marker))
    read = 0
    for index in range(first, len(pieces)):
        left = target[read:]
        if left and pieces[index].startswith(left):
            return slice(first, index + 1) if len(pieces) - index - 1 <= _MAX_STOP_LENGTH else None
        if not left.startswith(pieces[index]):
            return None
        read += len(pieces[index])
    return None
