r"""The number that a worked answer comes to, as a person reads it: 1,234.50 · 1.234,50 · 3/4 · 45 % · \frac{1}{2}."""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass

from rcjax.collecting.graders.attempt import Attempt

__all__ = ["Number", "final_number", "same_number"]

_SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "k": 1e3}

_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

_TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")

_TENS = {
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
    "hundred": 100,
}

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")

_DIGITS = r"(?:\d{1,3}(?:[,_ '’]\d{3})+(?:\.\d+)?|\d{1,3}(?:\.\d{3})+,\d+|\d+(?:[.,]\d+)?|\.\d+)"

_NUMBER = re.compile(
    rf"(?<![\w^.])(?P<sign>(?<![\d)])-\s?)?[$€£¥]?\s?(?P<sign2>-)?(?P<digits>{_DIGITS})"
    r"(?:[eE](?P<e>[+-]?\d+)(?!\w))?"
    r"(?:\s*(?:x|\*|×|·)\s*10\s*\^\s*\{?(?P<power>[+-]?\d+)\}?|\^\{?(?P<exponent>-?\d{1,2})\}?(?!\w))?"
    r"(?:\s+(?P<mixed>\d+)\s*/\s*(?P<of>\d+)|\s*/\s*(?P<under>\d+(?:\.\d+)?))?"
    r"(?P<percent>\s*(?:%|percent\b|per\s+cent\b))?"
    r"(?:\s*(?P<scale>thousand|million|billion|trillion)\b|(?P<k>k)\b)?",
    re.I,
)

_MARKERS = re.compile(
    r"####|(?:final\s+|correct\s+)?answer\b(?:\s*\*{0,2}\s*(?:is|=|:|would\s+be|comes\s+to)|\*{0,2}\s*:)"
    r"(?!\s*(?:not|n't)\b)",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is written."""

    value: float
    """What it stands for; of 45 %, 45."""
    percent: bool = False
    """It is a percentage."""
    decimals: int = 0
    """Digits behind the point."""


def right_number(attempt: Attempt) -> bool:
    """Whether the number that the reply comes to is a right one.

    >>> right_number(Attempt("q", "3 boxes of 4 make 12, so $1,200 in all.", "", ("1200",)))
    True
    """
    reply = final_number(attempt.text)
    rights = [final_number(text) for text in attempt.reference]
    return reply is not None and any(right is not None and same_number(reply, right) for right in rights)


def same_number(reply: Number, right: Number) -> bool:
    """Whether two numbers are one: rounded as the right one is, and 45 % as 45 or as 0.45.

    >>> same_number(Number(3.14159, decimals=5), Number(3.14, decimals=2)), same_number(Number(3), Number(3.14))
    (True, False)
    """
    values = {reply.value}
    if reply.percent != right.percent:
        values.add(reply.value / 100 if reply.percent else reply.value * 100)
    half = 0.5 * 10.0**-right.decimals * (1 + 1e-9) if right.decimals and reply.decimals > right.decimals else 0.0
    return any(
        math.isclose(v, right.value, rel_tol=1e-9, abs_tol=1e-12) or abs(v - right.value) <= half for v in values
    )


def final_number(text: str) -> Number | None:
    r"""The number that a text comes to, None where there is none.

    What is in the last box (`\boxed{…}`) goes first, then what follows the last `####` or "the answer is", then the
    last number, and at last a number in words.

    >>> final_number("She buys 3 x 4 = 12 eggs."), final_number(r"so \boxed{\frac{3}{4}}").value
    (Number(value=12.0, percent=False, decimals=0), 0.75)
    """
    text = _plain(text)
    boxes = re.findall(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    if boxes and (numbers := _numbers(boxes[-1])):
        return numbers[-1]
    markers = [*_MARKERS.finditer(text)]
    if markers and (numbers := _stated(text[markers[-1].end() :])):
        return numbers
    # What stands in brackets at the end explains.
    numbers = _numbers(re.sub(r"\([^()]*\)\W*$", "", text)) or _numbers(text)
    return numbers[-1] if numbers else _in_words(text)


def _stated(text: str) -> Number | None:
    """The number of a statement: the one after its last sign of equality, else its first."""
    sentence = re.split(r"(?<=[^\d\W])[.!?](?:\s|$)|(?<=\d)[.!?](?:\s|$)|\n\s*\n", text.strip(), maxsplit=1)[0]
    numbers = _numbers(sentence)
    if "=" in sentence:
        numbers = _numbers(sentence.rpartition("=")[2]) or numbers
    return numbers[0] if numbers else None


def _plain(text: str) -> str:
    r"""With fractions, powers and spaces of LaTeX and Unicode as people type them."""
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda match: "^" + match[0].translate(_SUPERSCRIPTS), text)
    text = re.sub(r"(\d)\s*([¼½¾⅐-⅞])", r"\1 \2", text)
    text = unicodedata.normalize("NFKC", text).replace("⁄", "/").translate(dict.fromkeys(map(ord, "−–‒"), "-"))
    text = re.sub(r"(\d)\s*\\[dtc]?frac", r"\1 \\frac", text)
    text = re.sub(r"\\[dtc]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2", text)
    text = re.sub(r"\\[dtc]?frac\s*(\d)\s*(\d)", r"\1/\2", text)
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}", r" \1", text)
    text = re.sub(r"\\(?:times|cdot)", "×", text).replace(r"\%", "%").replace(r"\$", "$").replace("{,}", ",")
    text = re.sub(r"(?<=\d)\\[,;! ](?=\d{3})", ",", text)
    return re.sub(r"\\[,;!()\[\]]|[*_]{2,}|(?<=\d)\*(?!\s*\d)|(?<!\d)\*(?=\d)|\$(?!\s?-?[\d.])", " ", text)


def _numbers(text: str) -> list[Number]:
    numbers = [_number(match) for match in _NUMBER.finditer(text)]
    return [number for number in numbers if number is not None]


def _number(match: re.Match[str]) -> Number | None:
    digits = _pointed(match["digits"])
    value, decimals = float(digits), len(digits.partition(".")[2])
    power = int(match["e"] or match["power"] or 0)
    if abs(power) > 300:
        return None
    value *= 10.0**power
    if match["exponent"]:
        try:
            value = value ** int(match["exponent"])
        except (OverflowError, ZeroDivisionError):
            return None
    if match["under"]:
        value, decimals = (value / float(match["under"]) if float(match["under"]) else math.nan), 0
    elif match["mixed"] and float(match["of"]):
        value += float(match["mixed"]) / float(match["of"])
    scale = (match["scale"] or match["k"] or "").casefold()
    value *= _SCALES.get(scale, 1.0)
    value = -value if match["sign"] or match["sign2"] else value
    decimals = 0 if power or scale else decimals
    return Number(value, bool(match["percent"]), decimals) if math.isfinite(value) else None


def _pointed(digits: str) -> str:
    """Digits with a point for decimals and nothing between thousands.

    >>> [_pointed(text) for text in ("1,234", "1.234,5", "3,5", "12 000", "1.234")]
    ['1234', '1234.5', '3.5', '12000', '1.234']
    """
    if re.fullmatch(r"\d{1,3}(?:\.\d{3})+,\d+", digits):
        return digits.replace(".", "").replace(",", ".")
    if re.fullmatch(r"\d{1,3}(?:[,_ '’]\d{3})+(?:\.\d+)?", digits):
        return re.sub(r"[,_ '’]", "", digits)
    return digits.replace(",", ".")


def _in_words(text: str) -> Number | None:
    """The last number in words up to a hundred, "twenty-one" among them."""
    values = {word: number for number, word in enumerate(_ONES + _TEENS)} | _TENS
    words = re.findall(rf"\b(?:{'|'.join(values)})\b(?:[\s-](?:{'|'.join(_ONES[1:])})\b)?", text.casefold())
    if not words:
        return None
    return Number(float(sum(values[part] for part in re.split(r"[\s-]", words[-1]))))
