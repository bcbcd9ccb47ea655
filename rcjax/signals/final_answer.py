"""Which part of a reply is its answer, what in it is denied, and which of several choices it picks.

It is read alike by graders and by signals, in time in proportion to the text: replies are written by strangers, and may
be a hundred thousand blanks.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence

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


def normalise_answer(text: str) -> str:
    """A text without regard to case and to the amount of white space, for comparing answers.

    >>> normalise_answer("  The Eiffel\\n Tower ")
    'the eiffel tower'
    """
    return " ".join(text.casefold().split())


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


_SIGNS = "\\s(\\[{<*_`\"'“‘:=$~#>-"  # what stands before a choice that is picked
_VERB = r"(?:\s(?:is|was|would\sbe|should\sbe|must\sbe|seems\sto\sbe)\b|\s?[:=\-–—])"
_NOUN = (
    r"(?:\b(?:answer|choice|option|solution|response|letter|selection|it\s(?:is|must\sbe|should\sbe|has\sto\sbe)|it's)"
    r"|答案\s?[是为]?|答え\s?は?|正解\s?は?|정답\s?[은는]?)"
)


def chosen_choice(text: str, names: Sequence[str], words: Mapping[str, str] | None = None) -> str | None:
    """The name of the choice that a reply picks, None if it picks none, or more than one.

    Args:
        text: the reply.
        names: of the choices, such as A, B, C and D.
        words: what the choices say, by name, where that is known.

    A reply is read as a person would: of what `final_answer` takes to be the answer, what is in a box, what it says
    "the answer" is (the last time), a name that it begins with, and else the only name or the only choice's words in
    it. A name is not looked for inside words, an "A" or "I" that begins a sentence is none, and what is denied ("not
    B", "rather than B", "B is wrong") is not picked.

    >>> chosen_choice("A planet is large, so the answer is (B).", "ABCD"), chosen_choice("I cannot say.", "ABCD")
    ('B', None)
    >>> chosen_choice("It is Jupiter.", "AB", {"A": "Mars", "B": "Jupiter"})
    'B'
    """
    by_words = {normalise_answer(said).strip(" ."): name for name, said in (words or {}).items()}
    text = _without_denied(_plain(final_answer(text)), [*names, *(words or {}).values()])
    whole = normalise_answer(text).strip(" .*_`\"'()[]")
    alone = [name for name in names if name.casefold() == whole]
    if alone or whole in by_words:
        return alone[0] if alone else by_words[whole]
    name = _name(names)
    for pattern in (_boxed(name), _declared(name), _right(name), _concluded(name), _leading(name)):
        matches = [match[1] for match in re.finditer(pattern, text, re.M)]
        if matches:
            return _name_of(matches[-1], names)
    declared = _declared_words(text, by_words)
    return declared or _only(_mentioned(text, names)) or _only(_in_words(whole, by_words))


def _plain(text: str) -> str:
    r"""Without what only sets type: \text{B} is B, \(…\) goes, and full-width letters are letters."""
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\s?\{([^{}]*)\}", r"\1", tidied(text))
    return re.sub(r"\\[()\[\]]", "", text)


def _without_denied(text: str, choices: Sequence[str]) -> str:
    """A text without the names and the words of choices that it denies: "not A or B, but C" is "not …, but C"."""
    forms = "|".join(map(re.escape, sorted(filter(str.strip, choices), key=len, reverse=True)))
    if not forms:
        return text
    several = rf"(?<!\w)(?:{forms})(?!\w)(?:,?\s?(?:\b(?:n?or)\b|/)\s?(?:{forms})(?!\w)){{0,9}}"
    return re.sub(several, lambda form: "…" if is_denied(text, *form.span()) else form[0], text, flags=re.I)


def _name(names: Sequence[str]) -> str:
    """A group that is one of the names; a word, unlike a letter, may be in any case."""
    forms = [re.escape(name) if len(name) == 1 else f"(?i:{re.escape(name)})" for name in names]
    return rf"({'|'.join(sorted(forms, key=len, reverse=True))})(?!\w|['’]\w)"


def _boxed(name: str) -> str:
    return rf"\\boxed\s?\{{[{_SIGNS}]{{0,12}}{name}"


def _declared(name: str) -> str:
    noun, verb = rf"(?i:{_NOUN})", rf"(?i:{_VERB})"
    before = rf"{noun}[*_]{{0,8}}{verb}?(?:\s?(?i:option|choice|letter))?[{_SIGNS}]{{0,12}}"
    another = rf"[)\]*]{{0,3}}(?:\s?[/&]|,[{_SIGNS}]{{0,4}}{name}[)\]*]{{0,3}}(?:[.,]|\s?\Z|\n))"  # "A/B", "A, B."
    return rf"{before}{name}(?!\s(?i:is|was)\b)(?!\s[a-z])(?!{another})"


def _right(name: str) -> str:
    return rf"\b{name}[)*\]]*+\s(?i:is\s(?:the\s)?(?:correct|right|best|better|true|answer))"


def _concluded(name: str) -> str:
    """At the very end: "…, so B." """
    return rf"(?i:\b(?:so|thus|hence|therefore)),?\s[{_SIGNS}]{{0,12}}{name}[)\].*_`\s]{{0,8}}\Z"


def _leading(name: str) -> str:
    """At the very beginning: alone on its line, or with a sign behind it."""
    return rf"\A[{_SIGNS}]{{0,12}}{name}(?:[)\].:,*_;\-–—]|\s?[-–—]|\s?$|\s?\n|\sbecause\b)"


def _name_of(match: str, names: Sequence[str]) -> str:
    return next(name for name in names if name.casefold() == match.casefold())


def _declared_words(text: str, by_words: Mapping[str, str]) -> str | None:
    """The choice whose words follow "the answer is", the last time that it is said."""
    statements = re.split(rf"{_NOUN}{_VERB}", text, flags=re.I)[1:]
    after = normalise_answer(statements[-1]).lstrip(" *_`\"'([") if statements else ""
    return _only({name for said, name in by_words.items() if said and re.match(re.escape(said) + r"(?!\w)", after)})


def _mentioned(text: str, names: Sequence[str]) -> set[str]:
    """The names that stand in the text by themselves; "A" and "I" are words of English too, unless wrapped."""
    pattern = rf"(?<![\w'’]){_name(names)}"
    marked = rf"[(\[*`\"“]{_name(names)}[)\]*`\"”.:]"
    words = {_name_of(match[1], names) for match in re.finditer(pattern, text) if match[1] not in ("A", "I", "a", "i")}
    joined = re.search(rf"(?<!\w)([AI])\s?(?:,|/|(?i:or|and))\s?{_name(names)}", text)
    words |= {joined[1]} & {*names} if joined else set()
    return words | {_name_of(match[1], names) for match in re.finditer(marked, text)}


def _in_words(text: str, by_words: Mapping[str, str]) -> set[str]:
    """The choices whose words are in the text, apart from those inside of longer ones that are."""
    said = [words for words in by_words if words and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text)]
    return {by_words[words] for words in said if not any(words in other for other in said if other != words)}


def _only(names: set[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None
