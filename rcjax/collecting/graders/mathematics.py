r"""Mathematics as people type it: \frac{3}{4} is 3/4, x² is x^2, "three hundred" is 300; what is no answer goes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from rcjax.signals.final_answer import tidied

_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

_TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")

_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")

_SMALL = {word: float(value) for value, word in enumerate(_ONES + _TEENS)} | {
    word: 10.0 * value for value, word in enumerate(_TENS, start=2)
}

_LARGE = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}

_WORD = rf"(?:{'|'.join([*_SMALL, 'hundred', *_LARGE])})\b"

_SPOKEN = re.compile(
    rf"\b(?P<sign>(?:minus|negative)\s)?(?P<words>(?:an?\s)?{_WORD}(?:(?:\s|-)(?:and\s)?{_WORD}){{0,15}})", re.I
)

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")

_SOURCE = re.compile(r"(?<=[^\s\[(])\s?\[\^?\d{1,3}(?:\s?[,-]\s?\d{1,3}){0,9}\]")

_SHARE = r"\d{1,3}(?:[.,]\d{1,4})?(?: ?/ ?100?)?(?: ?(?:%|per\s?cent\b))?"

_SURENESS = re.compile(
    rf"\bconfiden\w{{0,4}}\W{{0,4}}(?:(?:level|score|is|of|in|my|this|answer|about|around)\W{{0,4}}){{0,4}}{_SHARE}"
    rf"|(?<![\w.,]){_SHARE} ?(?:sure|confident|certain|confidence)\b",
    re.I,
)

_LETTERS = re.compile(r"[^\W\d_]{2}")

_EXCLAIMED = re.compile(r"(?<=\d)!(?=\s?\Z|\n| [A-Z\"'(])")

_REFUSAL = re.compile(
    r"\b(?:cannot|can\snot|could\snot|unable\sto|not\sable\sto|can't|couldn't)\s(?:\w{1,12}\s){0,2}?"
    r"(?:solve|answer|determine|help|tell|compute|calculate|find|assist|provide|say)\b[^.,;:!?\n]{0,200}",
    re.I,
)


def typed(text: str) -> str:
    r"""A text with fractions, roots, powers and blanks of LaTeX and Unicode as people type them; "10!" is a factorial,
    "The answer is 10!" is none.

    >>> typed(r"so \(x = \dfrac{3}{4}\), minus 5²")
    'so  x = 3/4 , -5^2'
    """
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda match: "^" + match[0].translate(_SUPERSCRIPTS), text)
    text = re.sub(r"(?<=\d)\s{0,3}(?=[¼½¾⅐-⅞])", " ", text)
    text = tidied(text).replace("⁄", "/").translate(dict.fromkeys(map(ord, "−–‒"), "-"))
    text = re.sub(r"(?<=\d)\s?(?=\\[dtc]?frac)", " ", text)
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\s?\{([^{}]*)\}", r" \1", text)
    text = re.sub(r"\\?\bsqrt\s?[{(]?\s?(\d{1,15})\s?[)}]?", r"√\1", text)
    text = re.sub(r"\\pi(?![a-z])|(?<![^\W\d_]|\\)pi(?![^\W_])", "π", text, flags=re.I)
    text = text.replace(r"\pm", "±").replace(r"\%", "%").replace(r"\$", "$").replace("{,}", ",")
    text = re.sub(r"\\[dtc]?frac\s?\{([^{}]*)\}\s?\{([^{}]*)\}", r"\1/\2", text)
    text = re.sub(r"\\[dtc]?frac\s?(\d)\s?(\d)", r"\1/\2", text)
    text = re.sub(r"\\(?:times|cdot)", "×", text)
    text = re.sub(r"(?<=\d)\\[,;! ](?=\d{3})", ",", text)
    text = re.sub(r"\\[,;!()\[\]]|[*_]{2,4}|(?<=\d)\*(?!\s?\d)|(?<!\d)\*(?=\d)|\$(?!\s?-?[\d.])", " ", text)
    text = _EXCLAIMED.sub(
        lambda mark: "." if _LETTERS.search(text, max(0, mark.start() - 60), mark.start()) else "!", text
    )
    return re.sub(r"\b(?:minus|negative)\s(?=[$€£¥₹]?\s?\d)", "-", text, flags=re.I)


def without_asides(text: str) -> str:
    """A typed text without sources and without how sure its writer is.

    >>> without_asides("42 [1]. I am 95 % sure.")
    '42. I am .'
    """
    return _SURENESS.sub("", _SOURCE.sub("", text))


def without_refusals(text: str) -> str:
    """A typed text without what it says that it cannot do.

    >>> without_refusals("I'm sorry, I can't solve problem 17.")
    "I'm sorry, I ."
    """
    return _REFUSAL.sub("", text)


def spoken_numbers(text: str) -> Iterator[tuple[int, int, float]]:
    """(where it begins, where it ends, its value) of each number in words.

    >>> [value for *_, value in spoken_numbers("one hundred and twenty-one, or two thousand")]
    [121.0, 2000.0]
    """
    for match in _SPOKEN.finditer(text):
        value = _value(re.findall(r"[a-z]+", match["words"].casefold()))
        yield match.start(), match.end(), -value if match["sign"] else value


def _value(words: list[str]) -> float:
    """What words add up to; where one cannot follow the other, as in "one two", the last ones count."""
    total, part = 0.0, 0.0
    for word in words:
        if word in _LARGE:
            total, part = total + max(part, 1.0) * _LARGE[word], 0.0
        elif word == "hundred":
            part = max(part, 1.0) * 100.0
        elif word in _SMALL:
            ending, value = math.fmod(part, 100.0), _SMALL[word]
            follows = ending == 0 or (ending >= 20 and ending % 10 == 0 and 0 < value < 10)
            part = part + value if follows else value
    return total + part
