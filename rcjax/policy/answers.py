"""When two models' answers are the same: what is left of an answer for comparing. Standard library only.

A policy that compares answers records how those of its log were compared (`Agreement.compare`), so that a service
compares in the same way.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Literal, get_args

Comparison = Literal["text", "choice", "key"]

#: How answers can be compared.
COMPARISONS: tuple[str, ...] = get_args(Comparison)

#: What programs write where they found no answer in a reply, in small letters: two models do not agree by it.
NO_ANSWERS = ("[invalid]", "[invalidanswer]", "[invalid answer]", "[no answer]", "[noanswer]", "[none]", "[no_answer]")

# A number, with commas between thousands or without; not a part of a word, a date or a version.
_WHOLE = r"(\d{1,3}(?:,\d{3})+|\d+)"

_NUMBER = re.compile(rf"(?<![\w.,])([+-]?)(?:{_WHOLE}(?:\.(\d+))?|\.(\d+))(?!\w|[.,]\d)")

_NOUN = r"(?:answer|choice|option|letter)"


_LETTERS = (
    re.compile(r"\W*([a-z])\W*"),  # alone: "b", "(b)", "b."
    re.compile(rf"\W*(?:the\s+)?(?:\w+\s+)?{_NOUN}\W*(?:is\W*)?(?:{_NOUN}\W*)?([a-z])(?:\W.*)?"),  # "answer: b"
    re.compile(r"\W*([a-z])[).:\]](?:\W.*)?"),  # "b) jupiter"
)


@lru_cache(maxsize=4096)
def comparable(answer: str | None, how: Comparison) -> str | None:
    """What is left of an answer for comparing it with another; None for none.

    - `"text"`: without regard to case, the amount of white space, punctuation around it, and how numbers are written.
    - `"choice"`: the letter of the choice that it names; where it names none, as a text.
    - `"key"`: as a text, of answers that a function took out of replies: a service needs that function.

    >>> [comparable(answer, "text") for answer in (" The  Seine. ", "1,000", "1000.0", "$18", "-.50")]
    ['the seine', '1000', '1000', '18', '-0.5']
    >>> comparable("  ", "text"), comparable("[invalid]", "text")
    (None, None)
    >>> [comparable(answer, "choice") for answer in ("B", "(b)", "B) Jupiter", "The answer is B.", "Jupiter")]
    ['b', 'b', 'b', 'b', 'jupiter']
    """
    if answer is None or answer.strip().casefold() in ("", *NO_ANSWERS):
        return None
    text = " ".join(unicodedata.normalize("NFKC", answer).replace("−", "-").casefold().split())
    bare = _bare(text)
    if how == "choice":
        match = next(filter(None, (letter.fullmatch(bare) for letter in _LETTERS)), None)
        if match:
            return match[1]
    return _NUMBER.sub(_plain_number, bare) or text


def _bare(text: str) -> str:
    """Without the punctuation and signs around it, apart from the sign and the point of a number."""
    start, end = 0, len(text)
    while end and _surrounds(text[end - 1]):
        end -= 1
    while start < end and _surrounds(text[start]) and not re.match(r"[+-]?\.?\d", text[start:]):
        start += 1
    return text[start:end]


def _surrounds(character: str) -> bool:
    return unicodedata.category(character)[0] in "PSZ"


def _plain_number(match: re.Match[str]) -> str:
    """One spelling for a number: 1,000.50 is 1000.5, and -0 is 0."""
    sign, whole, *parts = match.groups(default="")
    whole, part = whole.replace(",", "").lstrip("0") or "0", "".join(parts).rstrip("0")
    number = f"{whole}.{part}" if part else whole
    return f"-{number}" if sign == "-" and number != "0" else number
