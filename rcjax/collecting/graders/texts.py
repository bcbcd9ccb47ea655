"""Graders that compare texts: exact, contains, and the choice that a reply picks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from rcjax.collecting.graders.attempt import Attempt
from rcjax.signals.chosen import chosen_choice
from rcjax.signals.final_answer import final_answer, is_denied, last_box, tidied, without_thoughts

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
