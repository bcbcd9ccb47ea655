"""Graders that compare texts: exact, contains, a regular expression, and the choice that a reply picks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from rcjax.collecting.graders.attempt import Attempt, GraderError
from rcjax.signals.chosen import chosen_choice

__all__ = ["Comparison", "Matching", "contains", "exact", "plain_answer", "right_choice"]

_WRAPPING = " \t\r\n*_`\"'“”‘’«»„()[]{}$.,;:!?。、！？「」"

_DASHES = dict.fromkeys(map(ord, "‐‑‒–—−"), "-")

_MARKER = re.compile(
    r"(?:the\s+)?(?:(?:final|correct|right|short)\s+)?answer(?:\s+to\s+[^.:\n]{1,60})?(?:\s+(?:is|would\s+be)|\s*:)\s*",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A grader by a comparison of a reply with the right answers."""

    compare: Callable[[Attempt], bool]
    needs_reference: bool = True

    async def grade(self, attempt: Attempt) -> bool:
        """Whether any right answer is that of the reply."""
        return self.compare(attempt)


@dataclass(frozen=True, slots=True)
class Matching:
    """A grader by a regular expression, searched for in the reply; `{answer}` in it stands for a right answer."""

    pattern: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern.replace("{answer}", "x"))
        except re.error as error:
            raise GraderError(f"regex:{self.pattern}: no regular expression: {error}") from None

    @property
    def needs_reference(self) -> bool:
        """Only where the pattern speaks of a right answer."""
        return "{answer}" in self.pattern

    async def grade(self, attempt: Attempt) -> bool:
        """Whether the pattern, with any right answer in it, is in the reply."""
        forms = [re.escape(right) for right in attempt.reference] if self.needs_reference else [""]
        patterns = [self.pattern.replace("{answer}", form) for form in forms]
        return any(re.search(pattern, attempt.text, re.M) is not None for pattern in patterns)


def exact(attempt: Attempt) -> bool:
    """Whether the reply is a right answer, but for case, white space, articles, and signs around it.

    >>> exact(Attempt("q", "**The Eiffel Tower.**", "", ("Eiffel tower",)))
    True
    """
    right = {plain_answer(text) for text in attempt.reference}
    replies = {plain_answer(attempt.text), plain_answer(attempt.answer)}
    markers = [*_MARKER.finditer(attempt.text)]
    if markers:  # "… so the answer is X."
        replies.add(plain_answer(attempt.text[markers[-1].end() :].partition("\n")[0]))
    boxes = re.findall(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}", attempt.text)
    replies |= {plain_answer(box) for box in boxes[-1:]}
    return not right.isdisjoint(replies - {""})


def contains(attempt: Attempt) -> bool:
    """Whether a right answer stands in the reply, as words of its own.

    >>> contains(Attempt("q", "It is art, in Paris.", "", ("Paris",))), contains(Attempt("q", "start", "", ("art",)))
    (True, False)
    """
    reply = plain_answer(attempt.text)
    forms = [plain_answer(text) for text in attempt.reference]
    return any(form and _stands_in(form, reply) for form in forms)


def _stands_in(form: str, reply: str) -> bool:
    if re.search(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]", form):  # scripts without spaces between words
        return form in reply
    return re.search(rf"(?<!\w){re.escape(form)}(?!\w)", reply) is not None


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
    text = unicodedata.normalize("NFKC", text).translate(_DASHES).replace("’", "'").replace("‘", "'")
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf|boxed)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\[()\[\],;! ]", "", text)
    text = " ".join(text.casefold().split()).strip(_WRAPPING)
    return re.sub(r"^(?:the|an?)\s+(?=\S)", "", text)
