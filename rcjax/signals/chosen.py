"""Which of several choices a text picks: a letter alone, "B) Jupiter", "the answer is (B)", a choice's own words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rcjax.signals.final_answer import final_answer, is_denied, tidied
from rcjax.signals.measures import normalise_answer

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
