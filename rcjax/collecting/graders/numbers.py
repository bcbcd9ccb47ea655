r"""The number that a worked answer comes to, as a person reads it: 1,234.50 · 1.234,50 · 3/4 · 45 % · \frac{1}{2}.

`mathematics` has the text as people type it. Each number in it is a `_Mention`; `_answer_of` says which of them counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rcjax.collecting.graders.attempt import Attempt
from rcjax.collecting.graders.mathematics import spoken_numbers, typed, without_asides, without_refusals
from rcjax.signals.final_answer import final_answer, is_denied, last_box

_SCALES = {
    **{"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "lakh": 1e5, "crore": 1e7},
    **{"k": 1e3, "m": 1e6, "mn": 1e6, "bn": 1e9, "b": 1e9, "tn": 1e12, "t": 1e12, "mil": 1e6, "mio": 1e6, "mrd": 1e9},
    **{"万": 1e4, "萬": 1e4, "만": 1e4, "亿": 1e8, "億": 1e8, "억": 1e8},
}

_DIGITS = (
    r"(?:\d{1,3}(?:[,_ '’]\d{3}){1,20}(?:\.\d+)?(?!\d)|\d{1,2}(?:,\d{2}){1,20},\d{3}(?:\.\d+)?(?!\d)"
    r"|\d{1,3}(?:\.\d{3}){1,20},\d+|\d+(?:[.,]\d+)?|\.\d+)"
)

# Every repetition has a bound, or ends in what cannot follow within it: a text takes time in proportion to its length.
_NUMBER = re.compile(
    r"(?<![\w^.])(?<![\^_]\{)(?P<both>±\s?)?(?P<sign>(?<![\d)])-|(?<=[=(:]\s)-\s)?(?:(?P<money>[$€£¥₹])\s?)?(?P<sign2>-)?"
    rf"(?:(?P<root>√)?(?P<digits>{_DIGITS})(?::(?P<minutes>\d{{2}})(?!\d))?(?P<pi>\s?[*×]?\s?π)?|(?P<only_pi>π))"
    r"(?:[eE](?P<e>[+-]?\d{1,3})(?!\w))?"
    r"(?:\s?[xX*×·]\s?10\s?\^\s?\{?(?P<power>[+-]?\d{1,3})(?!\d)\}?|\^\{?(?P<exponent>-?\d{1,2})\}?(?!\w))?"
    r"(?:\s(?P<mixed>\d{1,15})\s?/\s?(?P<of>\d{1,15})|\s?/\s?(?P<under>\d{1,15}(?:\.\d{1,15})?))?"
    r"(?P<percent>\s?(?:%|(?i:per\s?cent)\b))?"
    r"(?:\s?(?P<scale>(?i:hundred|thousand|million|billion|trillion|lakh|crore|mil|mio|mrd)s?\b|[万萬만亿億억])"
    r"|(?P<short>k|K|M|mn|bn|Bn|B|tn)(?!\w)|(?P<large>\s?[mMbBT])(?!\w))?"
)

_MARKERS = re.compile(
    r"####|(?:final\s|correct\s)?answer\b(?:\s?\*{0,2}\s?(?:is\b|=|:|would\sbe\b|comes\sto\b)|\*{0,2}\s?:)"
    r"|(?:答案|答え|正解)\s?(?:是|为|は)?\s?:?|정답\s?[은는]?\s?:?|ответ\s?(?::|-)"
    r"|(?:antwort|ergebnis)\s(?:ist|lautet)\b|réponse\s?(?:est\b|:)|(?:respuesta|resposta)\s?(?:es\b|é\b|:)",
    re.I,
)

_NAMED_AFTER = re.compile(r"\b(?:is|are|was)\s(?:the|my|our)\s(?:final\s|correct\s|right\s)?answer\b", re.I)

_SENTENCE = re.compile(r"(?<=[\w%)])[.!?](?=\s|\Z)|[。！？]|\n\n")

_OPERATION = re.compile(r" ?(?:[-+*/×÷·^]|x|times|plus|minus|divided\sby) ?[$€£¥₹(]? ?", re.I)

_OR = re.compile(
    r"[\s,]{0,2}(?:[^\W\d]{1,20}\s){0,2}(?:or|oder|ou|或|或者|또는)\s?"
    r"(?:(?:maybe|perhaps|possibly|even|about|is\sit|[a-z]\s?=)\s?){0,2}[$€£¥₹]?",
    re.I,
)

_VARIABLE = r"(?:[abefinoqruvwxyzθαβλ]|[xyz]{2,3})"  # no unit that is written without a blank: 5s, 5m, 5g, 5h, 5d, 5t

_FACTOR = re.compile(
    rf"\s?√\d{{0,9}}|\s?\^\S{{0,9}}|\s?\\?(?:sqrt|sin|cos|tan|log|ln|exp)\b|{_VARIABLE}(?!\w|')"
    r"|\s[xyz](?=\^|\s?(?:\Z|[+})]|-))|\s?[+*/-]\s?[xyz]\b"
)

_IN_SUM = re.compile(r"(?<![^\W\d])[xyzn]\s?[-+*/]\s?\Z")

_NO_ANSWER = math.nan  # the value of an answer that is none, such as "41 or 42"


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is written."""

    value: float
    """What it stands for; of 45 %, 45."""
    percent: bool = False
    """It is a percentage."""
    decimals: int = 0
    """Digits behind the point."""
    worked_out: bool = False
    """It was written as a fraction, a root or a multiple of π: its digits may go on for ever."""
    factor: str = ""
    """What it is multiplied by, or goes on with, that is no unit: the x of 3x."""


@dataclass(frozen=True, slots=True)
class _Mention:
    """A number in a text."""

    start: int
    end: int
    digits: int
    """Where its digits begin, behind a sign and a currency."""
    number: Number


def right_number(attempt: Attempt) -> bool:
    """Whether the number that the reply comes to is a right one.

    >>> right_number(Attempt("q", "3 boxes of 4 make 12, so $1,200 in all.", "", ("1200",)))
    True
    """
    reply = final_number(attempt.text)
    rights = [final_number(text) for text in attempt.reference]
    return reply is not None and any(right is not None and same_number(reply, right) for right in rights)


def same_number(reply: Number, right: Number) -> bool:
    """Whether two numbers are one: rounded as a right one of three digits or more, and 45 % as 45 or as 0.45.

    A right fraction that never ends may be given to three digits.

    >>> same_number(Number(3.14159, decimals=5), Number(3.14, decimals=2)), same_number(Number(3), Number(3.14))
    (True, False)
    >>> same_number(Number(0.46, decimals=2), Number(0.5, decimals=1))
    False
    """
    if reply.factor != right.factor:
        return False
    scales = [1.0, 0.01 if reply.percent else 100.0] if reply.percent != right.percent else [1.0]
    return any(_is_near(reply, right, scale) for scale in scales)


def _is_near(reply: Number, right: Number, scale: float) -> bool:
    value, unit = reply.value * scale, 0.0
    if right.decimals and (reply.worked_out or reply.decimals > right.decimals) and _digits(right) >= 3:
        unit = 10.0**-right.decimals
    elif right.worked_out and reply.decimals and _digits(reply) >= 3 and not _ends(right.value):
        unit = 10.0**-reply.decimals * scale
    close = math.isclose(value, right.value, rel_tol=1e-9, abs_tol=1e-12)
    return close or abs(value - right.value) <= 0.5 * unit * (1 + 1e-9)


def _digits(number: Number) -> float:
    """Digits that count, of a number with decimals."""
    return math.floor(math.log10(abs(number.value)) + number.decimals + 1e-9) + 1 if number.value else 0


def _ends(value: float) -> bool:
    return math.isclose(value * 1e6, round(value * 1e6), rel_tol=1e-12, abs_tol=1e-9)


def final_number(text: str) -> Number | None:
    r"""The number that a text comes to, None where there is none, or several that it does not decide between.

    Of what `final_answer` takes to be the answer, what is in the last box (`\boxed{…}`) goes first, then what follows
    the last `####` or "the answer is", then the last number, and at last a number in words. What is denied does not
    count ("not 42"), nor do sources ("[1]") and how sure the writer is.

    >>> final_number("She buys 3 x 4 = 12 eggs.").value, final_number(r"so \boxed{\frac{3}{4}}").value
    (12.0, 0.75)
    """
    text = without_refusals(typed(final_answer(text)))
    number = _final(text)
    return None if number is None or math.isnan(number.value) else number


def _final(text: str) -> Number | None:
    box = last_box(text)
    if box is not None:
        return _answer_of(box, stated=True)
    if text.strip(" .*").casefold() == "none":
        return Number(0.0)
    markers, named = [*_MARKERS.finditer(text)], _NAMED_AFTER.search(text)
    stated = _answer_of(_sentence(text[markers[-1].end() :]), stated=True) if markers else None
    if stated is None and named is not None:  # "42 is the answer"
        ends = [match.end() for match in _SENTENCE.finditer(text, 0, named.start())]
        stated = _answer_of(text[ends[-1] if ends else 0 : named.start()])
    if stated is not None:
        return stated
    first, _, rest = text.partition("\n\n")
    if rest and _NUMBER.fullmatch(first.strip(" *_.")):  # "42", and below why
        return _answer_of(first)
    # What stands in brackets at the end explains.
    return _answer_of(re.sub(r"\([^()]*\)[\s.!*$\\]{0,9}\Z", "", text)) or _answer_of(text)


def _sentence(text: str) -> str:
    """The first sentence of a text."""
    text = text.strip()
    end = _SENTENCE.search(text)
    return text if end is None else text[: end.end()]


def _answer_of(text: str, *, stated: bool = False) -> Number | None:
    """The last number of a text; None where there is none, NaN where it leaves two to choose from.

    Of what is `stated` to be the answer the first number, behind its last sign of equality where it has one.
    """
    plain = without_asides(text)
    mentions = _mentions(plain)
    if not mentions and plain != text:
        plain, mentions = text, _mentions(text)
    mentions = _without_terms(plain, _without_denied(plain, mentions))
    if not mentions:
        return None
    equality = plain.rfind("=")
    after = [index for index, mention in enumerate(mentions) if mention.start > equality]
    index = after[0] if stated and after else len(mentions) - 1
    near = mentions[max(0, index - 1) : index + 2]
    if any(_are_alternatives(plain, *pair) for pair in pairwise(near)):
        return Number(_NO_ANSWER)
    return mentions[index].number


def _mentions(text: str) -> list[_Mention]:
    """The numbers of a text in digits; where there are none, those in words."""
    mentions = []
    for match in _NUMBER.finditer(text):
        number = _number(match, text)
        if number is not None:
            digits = match.start("digits" if match["digits"] else "only_pi")
            mentions.append(_Mention(match.start(), match.end(), digits, number))
    return mentions or [_Mention(start, end, start, Number(value)) for start, end, value in spoken_numbers(text)]


def _without_denied(text: str, mentions: Sequence[_Mention]) -> list[_Mention]:
    """Without those that are denied, there or later on."""
    flags: list[bool] = []
    for index, mention in enumerate(mentions):
        listed = index > 0 and flags[-1] and _OR.fullmatch(text, mentions[index - 1].end, mention.start) is not None
        flags.append(listed or is_denied(text, mention.start, mention.end))
    left, denied = [], set[Number]()
    for mention, flag in zip(reversed(mentions), reversed(flags), strict=True):
        if flag:
            denied.add(mention.number)
        elif mention.number not in denied:
            left.append(mention)
    return left[::-1]


def _without_terms(text: str, mentions: Sequence[_Mention]) -> list[_Mention]:
    """Without what is only a term of a sum, a product or a range: 3 and 9 in "12 = 3 + 9", both of "15-17"."""
    joined = [_OPERATION.fullmatch(text, first.end, second.digits) is not None for first, second in pairwise(mentions)]
    beside = zip([False, *joined], [*joined, False], strict=True)
    return [mention for mention, (before, after) in zip(mentions, beside, strict=False) if not before and not after]


def _are_alternatives(text: str, first: _Mention, second: _Mention) -> bool:
    """Whether a text leaves it open which of two numbers it is: "41 or 42", "between 41 and 42"."""
    if same_number(first.number, second.number):
        return False
    between, before = text[first.end : second.start], text[max(0, first.start - 30) : first.start].casefold()
    if between.strip() == "and":
        return "between" in before
    if between.strip() == "to":
        return "from" not in before
    return _OR.fullmatch(between) is not None


def _number(match: re.Match[str], text: str) -> Number | None:
    digits = _pointed(match["digits"] or "1")
    value, decimals = float(digits), len(digits.partition(".")[2])
    power, scale = int(match["e"] or match["power"] or 0), _scale(match)
    worked_out = bool(match["root"] or match["pi"] or match["only_pi"] or match["under"] or match["mixed"])
    try:
        value = math.sqrt(value) if match["root"] else value
        value *= math.pi if match["pi"] or match["only_pi"] else 1.0
        value *= 10.0**power
        value **= int(match["exponent"] or 1)
        if match["under"]:
            value /= float(match["under"])
        elif match["mixed"]:
            value += float(match["mixed"]) / float(match["of"])
        factor = _factor(match, text)
        if factor == "!":
            value, factor = float(math.factorial(int(value))), ""
    except (OverflowError, ZeroDivisionError):
        return None
    value *= -scale if match["sign"] or match["sign2"] else scale
    decimals = 0 if power or scale != 1.0 or worked_out or match["exponent"] else decimals
    return Number(value, bool(match["percent"]), decimals, worked_out, factor) if math.isfinite(value) else None


def _scale(match: re.Match[str]) -> float:
    word = match["scale"] or match["short"] or (match["large"] if match["money"] else None) or ""
    word = word.strip().casefold()
    return _SCALES.get(word, _SCALES.get(word.removesuffix("s"), 1.0))


def _factor(match: re.Match[str], text: str) -> str:
    """What a number goes on with that makes it another one; "!" for a factorial."""
    end = match.end()
    if match["minutes"] and match["minutes"] != "00":
        return match["minutes"]
    if text.startswith("!", end) and re.fullmatch(r"\d{1,3}", match[0].strip()):
        return "" if text.startswith("!!", end) else "!"
    if match["both"]:
        return "±"
    goes_on = _FACTOR.match(text, end) or _IN_SUM.search(text, max(0, match.start("digits") - 6), match.start("digits"))
    return "" if goes_on is None else re.sub(r"\s", "", goes_on[0])


def _pointed(digits: str) -> str:
    """Digits with a point for decimals and nothing between thousands.

    >>> [_pointed(text) for text in ("1,234", "1.234,5", "3,5", "12 000", "1.234", "1,23,456")]
    ['1234', '1234.5', '3.5', '12000', '1.234', '123456']
    """
    if re.fullmatch(r"\d{1,3}(?:\.\d{3})+,\d+", digits):
        return digits.replace(".", "").replace(",", ".")
    if re.fullmatch(r"\d{1,3}(?:[,_ '’]\d{2,3})*[,_ '’]\d{3}(?:\.\d+)?", digits):
        return re.sub(r"[,_ '’]", "", digits)
    return digits.replace(",", ".")
