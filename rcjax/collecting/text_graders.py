"""Graders that compare texts: exact, contains, the choice that a reply picks, and the number that it comes to.

Numbers are read by math-verify, in a process with a time limit. `plain` writes what people and models type in a form
that it reads: a sign of its own for minus, `3 × 10^5`, `1 1/2`, `$1,200`; and leaves out what a reply denies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rcjax.collecting.grader import Attempt, Beside
from rcjax.signals.final_answer import chosen_choice, final_answer, is_denied, last_box, tidied, without_thoughts

_WRAPPING = " \t\r\n*_`\"'“”‘’«»„()[]{}$.,;:!?。、！？「」"

_DASHES = dict.fromkeys(map(ord, "‐‑‒–—−"), "-")

_MARKER = re.compile(
    r"(?:(?:the\s)?(?:(?:final|correct|right|short)\s)?answer(?:\sto\s[^.:\n]{1,60})?(?:\s(?:is|would\sbe)\b|\s?:)"
    r"|(?:答案|答え|正解)\s?(?:是|为|は)?\s?:?|정답\s?[은는]?\s?:?|\A(?:it\sis|it's|that\sis|that's)\b)[\s*_:]{0,8}",
    re.I,
)

_SOURCES = re.compile(r"(?<=\S)\s?\[\^?\d{1,3}(?:\s?[,-]\s?\d{1,3}){0,9}\](?=[\s.,;!?*]*\Z)")

_TURNS = re.compile(r"\b(?:or|and|not|no|yes|but|wait|actually|rather|however|maybe|sorry|instead)\b|n't\b", re.I)

_GOES_ON = re.compile(r"[^\W\d]{2}[^,]{0,60}")

_SCRIPTS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")  # without blanks between words


@dataclass(frozen=True, slots=True)
class ComparisonGrader:
    """A grader by a comparison of a reply with the right answers."""

    compare: Callable[[Attempt], bool]
    needs_reference: bool = True

    async def grade(self, attempt: Attempt) -> bool:
        """Whether any right answer is that of the reply."""
        return self.compare(attempt)


def exact(attempt: Attempt) -> bool:
    """Whether the reply is a right answer, apart from case, white space, articles, and signs around it.

    What `final_answer` takes to be the answer counts, then what is in the last box, or follows "the answer is"; and of
    "Paris, France" or "Yes, it is." what stands before the comma.

    >>> exact(Attempt("q", "**The Eiffel Tower.**", "", ("Eiffel tower",)))
    True
    """
    right = {plain_answer(text) for text in attempt.reference}
    said = [tidied(final_answer(text)) for text in (attempt.text, attempt.answer)]
    markers = [*_MARKER.finditer(said[0])]
    if markers:  # "… so the answer is X."
        said.append(said[0][markers[-1].end() :].partition("\n")[0])
    box = last_box(said[0])
    replies = {plain_answer(text) for text in [*said, *([] if box is None else [box])]}
    return not right.isdisjoint((replies | {*map(_before_comma, replies)}) - {""})


def _before_comma(reply: str) -> str:
    """What goes on with a comma and takes nothing back; nothing where there is no such thing."""
    head, _, tail = re.sub(r"\s\(([^\W\d][^(),]{1,60})\)?\Z", r", \1", reply).partition(", ")
    return plain_answer(head) if _GOES_ON.fullmatch(tail) and _TURNS.search(tail) is None else ""


def contains(attempt: Attempt) -> bool:
    """Whether a right answer stands in the reply, as words or a number of its own, and is not denied there.

    >>> contains(Attempt("q", "It is art, in Paris.", "", ("Paris",))), contains(Attempt("q", "start", "", ("art",)))
    (True, False)
    """
    reply = plain_answer(without_thoughts(attempt.text))
    forms = [plain_answer(text) for text in attempt.reference]
    return any(form and _stands_in(form, reply) for form in forms)


def _stands_in(form: str, reply: str) -> bool:
    pattern = re.escape(form)
    if _SCRIPTS.search(form) is None:
        # A number of its own is not the end of 13.5 or .5, nor what is left of −5 without its sign, nor a part of 5/8.
        number = r"(?<!\d[.,])(?<!\s\.)(?<!(?<!\w)-)(?<!\d/)(?<!minus\s)(?<!negative\s)" if form[0].isdigit() else ""
        pattern = rf"(?<!\w){number}{pattern}(?!\w)" + (r"(?![.,/]\d)" if form[-1].isdigit() else "")
    return any(not is_denied(reply, *match.span()) for match in re.finditer(pattern, reply))


def right_choice(attempt: Attempt) -> bool:
    """Whether the choice that the reply picks is a right one."""
    names = attempt.choices or tuple("ABCD")
    chosen = attempt.answer if attempt.answer in names else chosen_choice(attempt.text, names, attempt.words)
    return chosen in attempt.reference


def plain_answer(text: str) -> str:
    r"""A text as `exact` compares it: without case, marks of type, articles at its beginning, and signs around it.

    >>> plain_answer("  “The  Beatles” "), plain_answer(r"\text{Nine}")
    ('beatles', 'nine')
    """
    text = tidied(text).translate(_DASHES)
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf|boxed)\s?\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\[()\[\],;! ]", "", text)
    text = _SOURCES.sub("", " ".join(text.casefold().split())).strip(_WRAPPING)
    text = re.sub(r"\s?([+*/=^])\s?", r"\1", text)
    return re.sub(r"^(?:the|an?)\s(?=\S)", "", text)


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
