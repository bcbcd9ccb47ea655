r"""Whether the number or formula that a reply comes to is a right one, by math-verify, in a process with a time limit.

math-verify reads mathematics as papers have it. `plain` writes what people and models type in a form that it reads: a
sign of its own for minus, `3 × 10^5`, `1 1/2`, `$1,200`, `1.2 million`; and leaves out what a reply denies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from rcjax.collecting.graders.attempt import Attempt
from rcjax.collecting.graders.beside import Beside
from rcjax.signals.final_answer import final_answer, is_denied, last_box, tidied

_SIZES = {"k": 1e3, "t": 1e3, "m": 1e6, "b": 1e9}

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")

_DIGITS = r"(?<![\w.^])(\d[\d,]{0,30}(?:\.\d{1,30})?)"

_POWER = re.compile(rf"(?:{_DIGITS}\s?(?:[x×*]|\\times|\\cdot)\s?)?(?<![\w.^])10\s?\^\s?\{{?(-?\d{{1,3}})(?!\d)\}}?")

_EXPONENT = re.compile(rf"{_DIGITS}[eE]([+-]?\d{{1,3}})(?!\w)")

_SIZE = re.compile(rf"{_DIGITS}\s?(k|thousand|m|million|mil|b|bn|billion)(?![\w^])", re.I)

_PI = re.compile(rf"{_DIGITS}\s?[*×]?\s?(?:π|pi\b)")

_EITHER = re.compile(r"\d,? (?:or|oder|ou|或) -?\d")

_NUMBER = re.compile(r"(?<![\w^.,])-?\d[\d,]{0,30}(?:\.\d{1,30})?")

_MARKED = re.compile(r"\A(-?[\d.,]{1,30})(?:\n\n|\s?\()", re.A)  # "42", and below or in brackets why


class NumberGrader(Beside):
    """A grader by the number or formula that a reply comes to."""

    libraries: ClassVar[dict[str, str]] = {"math_verify": "math", "pebble": "math"}

    def __init__(self) -> None:
        super().__init__("number")

    async def grade(self, attempt: Attempt) -> bool:
        """Whether it is one of the right ones."""
        return await self.call(same_number, attempt.text, attempt.reference)


def same_number(text: str, reference: Sequence[str]) -> bool:
    """Whether a text comes to a right number: rounded as one of three digits or more, 45 % as 45 or as 0.45."""
    from math_verify import verify

    reply = _parsed(text)
    for right in reference:
        wanted, decimals = _parsed(right), len(re.sub(r"\A[^.]*\.?", "", right))
        enough = len(re.sub(r"\D", "", right).lstrip("0")) >= 3
        rounding = decimals if decimals > 0 and enough and re.fullmatch(r"[-$€£\d.,]+", right) else 9
        if wanted and reply and verify(wanted, reply, float_rounding=rounding, timeout_seconds=0):
            return True
    return False


def _parsed(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    return parse(plain(text), [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=0)


def plain(text: str) -> str:
    r"""The answer of a text as math-verify reads it.

    >>> plain("The balance is −$1 200."), plain("1.2 × 10³"), plain("It's 17, not 18."), plain(r"so \boxed{3\pi}")
    ('The balance is -1,200.', '1200', "It's 17, not .", '$3\\pi$')
    """
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda power: "^" + power[0].translate(_SUPERSCRIPTS), final_answer(text))
    text = tidied(re.sub(r"(?<=\d)\s?(?=[¼½¾⅐-⅞])", " ", text)).replace("⁄", "/")
    text = re.sub(r"\b(?:minus|negative)\s(?=\d)", "-", text.translate(dict.fromkeys(map(ord, "−–"), "-")), flags=re.I)
    box = last_box(text)
    if box is not None or re.fullmatch(r"[^\s$]*\\[a-z]+\b[^$]*", text):
        return f"${text if box is None else box}$"
    if _EITHER.search(text):
        return ""
    text = re.sub(r"(?<=\d)[ '_](?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"[$€£¥₹]\s?(-?\d)(?![^$\n]{0,80}\$(?!\d))", r"\1", text)
    text = re.sub(r"(?<![\d/])(\d{1,9}) (\d{1,9}/\d{1,9})(?!\d)", r"(\1+\2)", text)
    text = _PI.sub(r"$\1\\pi$", text)
    text = _POWER.sub(lambda at: _written(float(f"{(at[1] or '1').replace(',', '')}e{at[2]}")), text)
    text = _EXPONENT.sub(lambda at: _written(float(f"{at[1].replace(',', '')}e{at[2]}")), text)
    text = _SIZE.sub(lambda at: _written(float(at[1].replace(",", "")) * _SIZES[at[2][0].lower()]), text)
    text = _NUMBER.sub(lambda at: "" if is_denied(text, *at.span()) else at[0], text)
    marked = _MARKED.match(text)
    return marked[1] if marked else text.strip("()")


def _written(value: float) -> str:
    return f"{value:.20f}".rstrip("0").rstrip(".")


def is_number(text: str) -> bool:
    """Whether a right answer is a number, as far as its signs tell.

    >>> is_number("$1,200"), is_number("12 km")
    (True, False)
    """
    return re.fullmatch(r"[\s$€£¥\d.,/%+-]*\d[\s$€£¥\d.,/%+-]*", text) is not None
