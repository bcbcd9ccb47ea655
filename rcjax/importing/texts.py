"""What a log keeps of an answer: the text, or of a long one its beginning, so that equal answers stay equal."""

from __future__ import annotations

import hashlib

from rcjax.policy.answers import comparable

__all__ = ["LONG", "is_long", "kept_text"]


#: Characters above which an answer is shortened.
LONG = 100

_BEGINNING = 80


def is_long(text: str | None) -> bool:
    """Whether an answer is too long to be kept as it is."""
    return len(comparable(text, "text") or "") > LONG


def kept_text(text: str | None) -> str | None:
    """An answer on one line; of a long one the beginning, as texts are compared, and a hash of all; None for none.

    What is kept of two answers is equal, as a log compares answers, where the answers are. The choice that a long
    answer begins with can be told still.

    >>> kept_text(" The\\n Seine. "), kept_text("  ")
    ('The Seine.', None)
    >>> long = kept_text("The answer is B, as 1,000 is more," + " and so on" * 20)
    >>> long[:55], len(long)
    ('the answer is b, as 1000 is more, and so on and so on a', 99)
    >>> comparable(long, "choice"), long == kept_text("The answer is B,  as 1000 is more," + " and so on" * 20)
    ('b', True)
    """
    plain = comparable(text, "text")
    if text is None or plain is None:
        return None
    if len(plain) <= LONG:
        return " ".join(text.split())
    digest = hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{plain[:_BEGINNING].rstrip()}… h{digest}"
