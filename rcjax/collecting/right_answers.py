"""Graders that compare a reply with the right answers: equality, containment, the choice, the number, calls and JSON.

math-verify reads numbers, in a process with a time limit. `rewrite_numbers` turns common notations, such as Unicode
minus signs, `3 × 10^5`, `1 1/2` and `$1,200`, into notations that math-verify reads, and drops numbers that a reply
denies. Graders of tool calls and of JSON use the values that the right answer allows for each argument or field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, ClassVar

from rcjax.collecting.user_graders import NoVerdictError, ProcessGrader, Submission
from rcjax.policy.signals.answers import (
    INVALID_MARK,
    canonical_json,
    chosen_choice,
    final_answer,
    is_denied,
    last_box,
    read_calls,
    read_json_text,
    tidy_text,
    without_thoughts,
)

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

_SCRIPTS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")  # scripts without blanks between words


@dataclass(frozen=True, slots=True)
class ComparisonGrader:
    """A grader that compares a reply with the right answers."""

    compare: Callable[[Submission], bool]
    needs_reference: bool = True

    async def grade(self, submission: Submission) -> bool:
        """Return whether the reply equals a right answer."""
        return self.compare(submission)


def is_exact(submission: Submission) -> bool:
    """Return whether a reply is a right answer, apart from case, white space, articles and outer punctuation.

    The answer of a reply is its `final_answer`, the content of its last box, or the text after "the answer is". Of
    "Paris, France" or "Yes, it is." the text before the comma may be the answer, too.

    >>> from rcjax.collecting.questions import Question
    >>> is_exact(Submission(Question("q", (), ("Eiffel tower",)), "**The Eiffel Tower.**"))
    True
    """
    right = {plain_answer(text) for text in submission.question.reference}
    answers = [tidy_text(final_answer(text)) for text in (submission.text, submission.answer)]
    markers = [*_MARKER.finditer(answers[0])]
    if markers:  # "… so the answer is X."
        answers.append(answers[0][markers[-1].end() :].partition("\n")[0])
    box = last_box(answers[0])
    replies = {plain_answer(text) for text in [*answers, *([] if box is None else [box])]}
    return not right.isdisjoint((replies | {*map(_before_comma, replies)}) - {""})


def _before_comma(reply: str) -> str:
    """Return the text before the comma; "" if the text after it has a word that takes something back: or, not, but."""
    head, _, tail = re.sub(r"\s\(([^\W\d][^(),]{1,60})\)?\Z", r", \1", reply).partition(", ")
    return plain_answer(head) if _GOES_ON.fullmatch(tail) and _TURNS.search(tail) is None else ""


def contains_answer(submission: Submission) -> bool:
    """Return whether a reply contains a right answer as whole words or a whole number, and does not deny it.

    >>> from rcjax.collecting.questions import Question
    >>> question = Question("q", (), ("art",))
    >>> contains_answer(Submission(question, "It is art, in Paris.")), contains_answer(Submission(question, "start"))
    (True, False)
    """
    reply = plain_answer(without_thoughts(submission.text))
    forms = [plain_answer(text) for text in submission.question.reference]
    return any(form and _occurs_in(form, reply) for form in forms)


def _occurs_in(form: str, reply: str) -> bool:
    pattern = re.escape(form)
    if _SCRIPTS.search(form) is None:
        # The 5 in 13.5, .5, −5 or 5/8 is not the number 5.
        number = r"(?<!\d[.,])(?<!\s\.)(?<!(?<!\w)-)(?<!\d/)(?<!minus\s)(?<!negative\s)" if form[0].isdigit() else ""
        pattern = rf"(?<!\w){number}{pattern}(?!\w)" + (r"(?![.,/]\d)" if form[-1].isdigit() else "")
    return any(not is_denied(reply, *match.span()) for match in re.finditer(pattern, reply))


def is_right_choice(submission: Submission) -> bool:
    """Return whether the choice of the reply is a right answer, or the choice in the text of a right answer."""
    question, answer = submission.question, submission.answer
    names = question.choices or tuple("ABCD")
    chosen = answer if answer in names else chosen_choice(submission.text, names, question.words)
    right = (text if text in names else chosen_choice(text, names, question.words) for text in question.reference)
    return chosen is not None and chosen in right


def plain_answer(text: str) -> str:
    r"""Return a text as `is_exact` compares it: without case, markup, leading articles and outer punctuation.

    >>> plain_answer("  “The  Beatles” "), plain_answer(r"\text{Nine}")
    ('beatles', 'nine')
    """
    text = tidy_text(text).translate(_DASHES)
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

_ONE_NUMBER = re.compile(
    r"[-+]?(?:[$€£¥]\s?[-+]?)?(?:\d+(?:\.\d+)?\s?/\s?\d+|\d+\s\d+/\d+"
    r"|(?:(?:\d{1,3}(?:[,\s]\d{3})+|\d+)(?:\.\d*)?|\d*[.,]\d+)\s?[%$€£¥]?)"
)

_MARKED = re.compile(r"\A(-?[\d.,]{1,30})(?:\n\n|\s?\()", re.A)  # a number with its reason below or in brackets


class NumberGrader(ProcessGrader):
    """A grader that compares the number or formula of a reply with the right ones."""

    libraries: ClassVar[dict[str, str]] = {"math_verify": "math", "pebble": "math"}

    def __init__(self) -> None:
        super().__init__("number")

    async def grade(self, submission: Submission) -> bool:
        """Return whether the number of the reply equals a right one."""
        return await self.call(is_same_number, submission.text, submission.question.reference)


def is_same_number(text: str, reference: Sequence[str]) -> bool:
    """Return whether the number in a text equals a right number; 45 % equals both 45 and 0.45.

    If the right number has decimals and three digits or more, the number in the text is rounded to as many decimals.
    """
    from math_verify import verify

    reply = _parse_number(text)
    for right_text in reference:
        right, decimals = _parse_number(right_text), len(re.sub(r"\A[^.]*\.?", "", right_text))
        has_three_digits = len(re.sub(r"\D", "", right_text).lstrip("0")) >= 3
        rounding = decimals if decimals > 0 and has_three_digits and re.fullmatch(r"[-$€£\d.,]+", right_text) else 9
        if right and reply and verify(right, reply, float_rounding=rounding, timeout_seconds=0):
            return True
    return False


def _parse_number(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    return parse(rewrite_numbers(text), [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=0)


def rewrite_numbers(text: str) -> str:
    r"""Return the answer of a text in a form that math-verify reads.

    >>> [rewrite_numbers(text) for text in ("It is −$1 200.", "1.2 × 10³", "17, not 18.", r"so \boxed{3\pi}")]
    ['It is -1,200.', '1200', '17, not .', '$3\\pi$']
    """
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda power: "^" + power[0].translate(_SUPERSCRIPTS), final_answer(text))
    text = tidy_text(re.sub(r"(?<=\d)\s?(?=[¼½¾⅐-⅞])", " ", text)).replace("⁄", "/")
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
    text = _POWER.sub(lambda at: _write_decimal(float(f"{(at[1] or '1').replace(',', '')}e{at[2]}")), text)
    text = _EXPONENT.sub(lambda at: _write_decimal(float(f"{at[1].replace(',', '')}e{at[2]}")), text)
    text = _SIZE.sub(lambda at: _write_decimal(float(at[1].replace(",", "")) * _SIZES[at[2][0].lower()]), text)
    text = _NUMBER.sub(lambda at: "" if is_denied(text, *at.span()) else at[0], text)
    marked = _MARKED.match(text)
    return marked[1] if marked else text.strip("()")


def _write_decimal(value: float) -> str:
    return f"{value:.20f}".rstrip("0").rstrip(".")


def is_number(text: str) -> bool:
    """Return whether a right answer is one number or fraction, if need be with sign, currency or percent sign.

    >>> [is_number(text) for text in ("$1,200", "1 1/2", "12 km", "2020-01-05", "192.168.0.1")]
    [True, True, False, False, False]
    """
    return _ONE_NUMBER.fullmatch(text.strip()) is not None


_MAX_CALLS = 6  # calls of one function of which all orders are tried


def is_right_call(submission: Submission) -> bool:
    """Return whether the calls of a reply are the right calls, in any order; `[]` stands for no call.

    A right answer is a call, `{"name", "arguments"}`, or a list of calls. Each argument is a value or a list of allowed
    values, in which null allows its absence. Arguments in the list `free` may have any value, or be absent.

    >>> from rcjax.collecting.questions import Question
    >>> right = '{"name": "weather", "arguments": {"city": ["Paris", "Paris, France"]}, "free": ["unit"]}'
    >>> said = '[{"name": "weather", "arguments": {"city": "Paris", "unit": "C"}}]'
    >>> is_right_call(Submission(Question("q", (), (right,)), said, said))
    True
    """
    calls = _read_made_calls(submission)
    return calls is not None and any(
        _same_calls(calls, _read_right_calls(text)) for text in submission.question.reference
    )


def _read_made_calls(submission: Submission) -> list[dict[str, Any]] | None:
    """Return the calls of a reply: [] for a text, None for malformed calls."""
    document = _read_document(submission)
    if isinstance(document, Mapping):
        document = [document]
    return read_calls(document) if isinstance(document, list) else []


def _read_document(submission: Submission) -> Any:
    """Return the JSON of a reply, from its answer or else its text; None if neither is JSON."""
    document = read_json_text(submission.answer.removeprefix(INVALID_MARK))
    return read_json_text(submission.text) if document is None else document


def _read_right_calls(text: str) -> list[Mapping[str, Any]]:
    wanted = read_json_text(text)
    calls = [wanted] if isinstance(wanted, Mapping) else wanted
    if not isinstance(calls, list) or not all(_is_right_call_form(call) for call in calls):
        raise NoVerdictError('call: the right answer is not a list of calls: give {"name": …, "arguments": {…}}, or []')
    return calls


def _is_right_call_form(call: Any) -> bool:
    return (
        isinstance(call, Mapping)
        and isinstance(call.get("name"), str)
        and isinstance(call.get("arguments", {}), Mapping)
        and isinstance(call.get("free", []), list)
    )


def _same_calls(made: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the calls made match the wanted calls, each wanted call once."""
    if sorted(call["name"] for call in made) != sorted(call["name"] for call in wanted):
        return False
    for name in {call["name"] for call in wanted}:
        named_made, named_wanted = ([call for call in calls if call["name"] == name] for calls in (made, wanted))
        orders = permutations(named_wanted) if len(named_wanted) <= _MAX_CALLS else [tuple(named_wanted)]
        if not any(all(map(_same_call, named_made, order)) for order in orders):
            return False
    return True


def _same_call(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    arguments, free = wanted.get("arguments", {}), {*wanted.get("free", [])}
    if any(name not in arguments and name not in free for name in made["arguments"]):
        return False
    return all(
        name in free or _is_allowed(made["arguments"].get(name), allowed, name in made["arguments"])
        for name, allowed in arguments.items()
    )


def _is_allowed(value: Any, allowed: Any, is_present: bool) -> bool:
    choices = [allowed, *allowed] if isinstance(allowed, list) else [allowed]
    return any(_form(value) == _form(choice) for choice in choices) if is_present else None in choices


def _form(value: Any) -> str | None:
    return canonical_json(json.dumps([value]))


@dataclass(frozen=True, slots=True)
class JsonGrader:
    """A grader of JSON: a reply is right if all its fields equal those of a right answer.

    Args:
        scores: whether the verdict is the share of equal fields among the fields of both objects.
    """

    scores: bool = False
    needs_reference: bool = True

    async def grade(self, submission: Submission) -> float:
        """Compare the fields of the reply with those of each right answer, and return the best verdict."""
        document = _read_document(submission)
        shares = [_equal_share(document, _read_right_document(text)) for text in submission.question.reference]
        best = max(shares, default=0.0)
        return best if self.scores else best == 1


def _read_right_document(text: str) -> Any:
    document = read_json_text(text)
    if document is None:
        raise NoVerdictError("json: the right answer is no JSON object or list: give one, in a text or as it is")
    return document


def _equal_share(given: Any, wanted: Any) -> float:
    """Return the share of equal fields among the fields of both objects; for other values, 1 if equal, else 0."""
    if not isinstance(given, Mapping) or not isinstance(wanted, Mapping):
        return float(given is not None and _form(given) == _form(wanted))
    names = {*given, *wanted}
    equal = sum(name in given and name in wanted and _form(given[name]) == _form(wanted[name]) for name in names)
    return equal / len(names) if names else 1.0
