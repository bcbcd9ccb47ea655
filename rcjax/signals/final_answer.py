"""Which part of a reply is its answer, and what in it is denied: read alike by graders and by those who pick a choice.

All of it takes time in proportion to the text: replies are written by strangers, and may be a hundred thousand blanks.
"""

from __future__ import annotations

import json
import re
import unicodedata

LONGEST = 50_000
"""Characters that are read; of a longer answer the first and the last half of them."""

_THOUGHTS = re.compile(r"<(/?)(?:think|thinking|reasoning)>", re.I)

_TAG = re.compile(r"<(/?)(?:final_?)?answer>", re.I)

_FENCE = re.compile(r"```(?:json)?[ \t]*\n?", re.I)

_FIELDS = ("finalanswer", "answer", "choice", "result", "solution")

# Written without spaces between words: also Thai, Lao, Burmese and Khmer, apart from their digits.
_SCRIPTS = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_SCRIPTS += "\u0e01-\u0e4f\u0e81-\u0ecf\u1000-\u103f\u1780-\u17df"

_BESIDE = re.compile(rf"(?<=[{_SCRIPTS}])(?=[\dA-Za-z$€£¥.\\(*-])|(?<=[\dA-Za-z%])(?=[{_SCRIPTS}])")

_MARKS = re.compile(r"([^\w\s\x00-\x7f]{30})[^\w\s\x00-\x7f]+")  # to order many accents takes quadratic time

_CUES = ("not", "n't", "never", "neither", "nor", "nicht", "kein", "pas", "no es", "unlike", "except", "than")

_CUES += ("instead", "不是", "并非", "не")  # in all that _DENIAL finds: looked for first, as that is fast

_DENIAL = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|nicht|kein\w{0,2}|pas|no\ses|unlike|except)|n't|\b(?:rather|other)\sthan"
    r"|\binstead\sof|不是|并非|\bне)"
    r"(?:\s(?:be|equals?|to|simply|just|quite|really|exactly|necessarily|about|the|an?|option|choice|letter|answer|think"
    r"|believe|that|it|is|it's)){0,4}[\s*_\"'“‘(\[${\\<]{0,4}\Z",
    re.I,
)

_DENIED_AFTER = re.compile(
    r"[\s*_\"'”’)\].]{0,4}(?:(?:is|was|would\sbe)(?:\snot|n't)\s(?:the\s)?(?:right|correct|answer|true|best)\b"
    r"|(?:is|was|would\sbe)\s(?:wrong|incorrect|false)\b|\?\s(?:no|nope)\b|(?:이|가)?\s?아니|아닙|ではな|じゃな)",
    re.I,
)


def final_answer(text: str) -> str:
    """The part of a reply that is its answer: behind its thoughts, in a tag <answer>, or in the field of a JSON object.

    Where nothing marks it, the reply without its thoughts; of what is longer than `LONGEST` beginning and end.

    >>> final_answer('{"answer": 42, "confidence": 0.9}'), final_answer("<think>Rome?</think>Paris")
    ('42', 'Paris')
    """
    text = without_thoughts(text)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}\n\n{text[-LONGEST // 2 :]}"
    tags = [*_TAG.finditer(text)]
    opened = [i for i, tag in enumerate(tags) if not tag[1]]
    if opened:
        closing = tags[opened[-1] + 1 :]
        return text[tags[opened[-1]].end() : closing[0].start() if closing else None].strip()
    field = _field(text)
    return text if field is None else field


def without_thoughts(text: str) -> str:
    """A reply without what stands between <think> and </think>; of thoughts that never end nothing is left.

    >>> without_thoughts("<think>So 3? No.</think> 4"), without_thoughts("<think>Hm, 3")
    ('4', '')
    """
    start = 0
    for tag in _THOUGHTS.finditer(text):
        if tag[1]:
            start = tag.end()
    opened = next((tag for tag in _THOUGHTS.finditer(text, start) if not tag[1]), None)
    return text[start : None if opened is None else opened.start()].strip()


def _field(text: str) -> str | None:
    """The answer of a JSON object that the text is, ends with, or has in its last fence, or None."""
    begin, end = text.find("{"), text.rfind("}")
    for part in [*_FENCE.split(text)[-2:], text[begin : end + 1] if -1 < begin < end else ""]:
        if not part.lstrip().startswith("{"):
            continue
        try:
            document = json.loads(part)
        except (ValueError, RecursionError):
            continue
        fields = {re.sub(r"[\s_-]", "", name).casefold(): value for name, value in document.items()}
        for name in _FIELDS:
            if name in fields:
                return _written(fields[name])
    return None


def _written(value: object) -> str:
    if isinstance(value, str):  # "\boxed" and "\frac" with one stroke are a backspace and a form feed to JSON
        return value.replace("\b", "\\b").replace("\f", "\\f")
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def tidied(text: str) -> str:
    """A text in the usual forms of its signs: one blank, at most two line ends, four of a sign in a row, "-" and "'".

    Between letters of scripts without spaces, such as Chinese, and digits or Latin letters comes a blank.

    >>> tidied("答案是42。"), tidied("a   b____________")
    ('答案是 42。', 'a b____')
    """
    text = unicodedata.normalize("NFKC", _MARKS.sub(r"\1", text)).replace("’", "'").replace("‘", "'")
    text = re.sub(r"\s+", lambda blank: "\n" * min(2, blank[0].count("\n")) or " ", text.strip())
    text = re.sub(r"([^\w\s]|_)\1{4,}", r"\1\1\1\1", text)
    return _BESIDE.sub(" ", text)


def is_denied(text: str, start: int, end: int) -> bool:
    """Whether what stands in a tidied text from start to end is called what the answer is not: "not 42", "42 is wrong".

    >>> is_denied("It's not 42", 9, 11), is_denied("Not sure, 42", 10, 12)
    (True, False)
    """
    window = text[max(0, start - 60) : start].casefold()
    if any(cue in window for cue in _CUES) and _DENIAL.search(text, max(0, start - 60), start) is not None:
        return True
    return _DENIED_AFTER.match(text, end) is not None


def last_box(text: str) -> str | None:
    r"""What is in the last \boxed{…} of a text; None if there is none, or it has no end.

    >>> last_box(r"\boxed{1}, so \boxed{\frac{\sqrt{3}}{2}}.")
    '\\frac{\\sqrt{3}}{2}'
    """
    begin = max(text.rfind(r"\boxed{"), text.rfind(r"\boxed {"))
    if begin < 0:
        return None
    start, depth = text.index("{", begin) + 1, 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start : start + brace.start()]
    return None
