"""The answer in a reply: the form that a request asks for, the final answer, and the canonical form of JSON and calls.

Graders and signals read replies in the same way, in time linear in the length of the text, as strangers write replies.
Standard library only.

A policy that compares calls or JSON judges only requests of a form that its log had. A form identifies tools by name
and parameters, since agents put dates and paths into descriptions, and send tools in any order.

JSON is an object or an array, alone in its text or in a fence. Its canonical form has sorted keys and no white space,
and 5.0 becomes 5; the order of a list and the case of a text stay. The canonical form of calls is the sorted list of
their names and arguments, without ids; that of no call is the empty list.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

#: The form of a request for text alone.
PLAIN_FORM = "plain"

#: The options of a request that determine its form.
FORM_OPTIONS = ("tools", "tool_choice", "response_format")

#: The roles of messages in the API.
ROLES = ("user", "assistant", "system", "developer", "tool", "function")

_PROSE = frozenset({"description", "title", "examples", "$comment"})

#: The keywords of JSON Schema whose keys are the user's names.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})

_DIGITS = 12


def as_object(value: Any) -> Mapping[str, Any]:
    """Return a JSON value that is an object; {} for any other value, since replies of servers may hold anything.

    >>> as_object({"a": 1}), as_object(["a"]), as_object(None)
    ({'a': 1}, {}, {})
    """
    return value if type(value) is dict or isinstance(value, Mapping) else {}


def objects_in(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects in a JSON value that is a list, without its other entries; [] for any other value.

    >>> objects_in([{"a": 1}, None]), objects_in({"a": 1})
    ([{'a': 1}], [])
    """
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def hash_json(value: Any) -> str:
    """Return a hash of a JSON value: sixteen hexadecimal digits.

    >>> hash_json({"b": 1, "a": 2}) == hash_json({"a": 2, "b": 1})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def request_form_of(messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
    """Return the form of a request with these options: `PLAIN_FORM`, or twelve hexadecimal digits.

    >>> tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    >>> described = {"type": "function", "function": {**tool["function"], "description": "At 12:30."}}
    >>> user = [{"role": "user"}]
    >>> request_form_of(user, {"tools": [tool]}) == request_form_of(user, {"tools": [described]})
    True
    >>> request_form_of(user, {}), request_form_of([{"role": "tool"}], {"tools": [tool]})
    ('plain', '5a4cbd80f2bc')
    """
    tools = options.get("tools")
    functions = [[tool["name"], _without_prose(tool.get("parameters"))] for tool in functions_of(tools)]
    kinds = [tool.get("type") for tool in objects_in(tools)]
    offered = [*functions, *(kind for kind in kinds if kind != "function")]
    choice, wanted = options.get("tool_choice"), options.get("response_format")
    form = {
        "tools": sorted(json.dumps(tool, sort_keys=True, default=str) for tool in offered),
        "choice": None if choice == "auto" or not tools else choice,
        "format": None if wanted == {"type": "text"} else _without_prose(wanted),
        "after": bool(messages) and messages[-1].get("role") in ("tool", "function"),
    }
    if not any(form.values()):
        return PLAIN_FORM
    return hashlib.sha256(json.dumps(form, sort_keys=True, default=str).encode()).hexdigest()[:_DIGITS]


def _without_prose(schema: Any, *, names: bool = False) -> Any:
    """Strip the prose of a schema. With `names`, the keys of the object are names chosen by the user: all are kept."""
    if isinstance(schema, Mapping):
        kept = {key: value for key, value in schema.items() if names or key not in _PROSE}
        return {key: _without_prose(value, names=key in _NAMED and not names) for key, value in kept.items()}
    return [_without_prose(value) for value in schema] if isinstance(schema, list) else schema


#: The prefix of an answer that its check found invalid. The answer is kept for people, and equals no other.
INVALID_MARK = "[invalid] "

#: The canonical form of a reply that calls no tool.
NO_CALL = "[]"

#: The finish reasons of a truncated reply.
TRUNCATED = ("length", "max_tokens")

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n?\s*```", re.S | re.I)


def strict_json(text: str) -> Any:
    """Parse JSON of finite numbers. Raises ValueError for other text, such as Python's NaN, and RecursionError.

    >>> strict_json("[1.5]")
    [1.5]
    >>> strict_json("[1e999]")
    Traceback (most recent call last):
    ValueError: inf is not finite
    """
    return _STRICT.decode(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number


_STRICT = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def read_json_text(text: str) -> Any:
    """Parse a text that is a JSON object or array; None for any other text.

    >>> read_json_text('```json\\n{"a": 1}\\n```'), read_json_text("[1"), read_json_text("5"), read_json_text("[NaN]")
    ({'a': 1}, None, None, None)
    """
    text = text.strip()
    if text.startswith("```"):
        fenced = _FENCED.fullmatch(text)
        text = fenced[1].strip() if fenced else ""
    if not text.startswith(("{", "[")):
        return None
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        return None


def canonical_json(text: str) -> str | None:
    """Return the canonical form of a text that is a JSON object or array; None for any other text.

    A list of calls has the canonical form of calls.

    >>> canonical_json('{"b": 2, "a": [1, 5.0, "007"]}'), canonical_json("1,234")
    ('{"a":[1,5,"007"],"b":2}', None)
    >>> canonical_json('[{"name": "f", "arguments": {"y": 1, "x": 2}}]')
    '[{"arguments":{"x":2,"y":1},"name":"f"}]'
    """
    value = read_json_text(text)
    if value is None:
        return None
    are_calls = isinstance(value, list) and value and all(map(_is_call, value))
    form = canonical_calls(value) if are_calls else None
    return _canonical_or_none(value) if form is None else form


def _is_call(value: Any) -> bool:
    """Return whether a value is a call, in the form of a log or of an endpoint."""
    if not isinstance(value, Mapping):
        return False
    function = value.get("function")
    if "function" in value:
        return isinstance(function, Mapping) and "name" in function
    return {*value} == {"name", "arguments"}


def _canonical_json(value: Any) -> str:
    text = json.dumps(_json_numbers(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        return json.dumps(_json_numbers(value), sort_keys=True, separators=(",", ":"))
    return text


def _canonical_or_none(value: Any) -> str | None:
    try:
        return _canonical_json(value)
    except (RecursionError, ValueError, TypeError):
        return None


def _json_numbers(value: Any) -> Any:
    """Return a JSON value with integers in place of floats without a fraction."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _json_numbers(part) for name, part in value.items()}
    return [_json_numbers(part) for part in value] if isinstance(value, list | tuple) else value


def read_calls(calls: Sequence[Any]) -> list[dict[str, Any]] | None:
    """Return the names and arguments of calls, sorted; None if a call lacks a name, or its arguments are no object.

    A call is `{"name", "arguments"}`, or has these in `function`, as endpoints have them. The arguments may be a text
    with JSON; an empty text stands for no arguments.

    >>> read_calls([{"id": "1", "function": {"name": "f", "arguments": '{"x": 1.0}'}}])
    [{'name': 'f', 'arguments': {'x': 1.0}}]
    >>> read_calls([{"name": "f", "arguments": "{"}]), read_calls([])
    (None, [])
    """
    named = []
    for call in calls:
        function = as_object(as_object(call).get("function", call))
        name, arguments = function.get("name"), function.get("arguments")
        if arguments is None or arguments == "":
            arguments = {}
        if isinstance(arguments, str):
            arguments = read_json_text(arguments)
        if not isinstance(name, str) or not name or not isinstance(arguments, Mapping):
            return None
        named.append({"name": name, "arguments": arguments})
    try:
        return sorted(named, key=_canonical_json)
    except (RecursionError, ValueError, TypeError):
        return None


def functions_of(tools: Any) -> list[Mapping[str, Any]]:
    """Return the functions with names among the tools of a request.

    >>> functions_of([{"type": "function", "function": {"name": "f"}}, {"type": "web_search"}])
    [{'name': 'f'}]
    """
    functions = [as_object(tool.get("function")) for tool in objects_in(tools)]
    return [function for function in functions if isinstance(function.get("name"), str)]


def canonical_calls(calls: Sequence[Any]) -> str | None:
    """Return the canonical form of calls of tools, as `read_calls` reads them; None for calls that it cannot read.

    >>> one, other = {"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": '{"y": 2, "x": 5.0}'}
    >>> canonical_calls([one, other]) == canonical_calls([other, one])
    True
    >>> canonical_calls([other]), canonical_calls([])
    ('[{"arguments":{"x":5,"y":2},"name":"g"}]', '[]')
    """
    named = read_calls(calls)
    return None if named is None else _canonical_or_none(named)


def format_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Format calls of tools for people and logs: in canonical form if they can be read, else as JSON.

    >>> format_calls([{"id": "1", "function": {"name": "f", "arguments": "{"}}])
    '[{"arguments":"{","name":"f"}]'
    """
    form = canonical_calls(calls)
    if form is not None:
        return form
    functions = [call.get("function", call) for call in calls]
    parts = [{name: call.get(name) for name in ("name", "arguments")} for call in objects_in(functions)]
    return _canonical_or_none(parts) or ""


MAX_ANSWER_LENGTH = 50_000
"""Largest number of characters of a reply that are read."""

_THOUGHTS = re.compile(r"<(/?)(?:think|thinking|reasoning)>", re.I)

_TAG = re.compile(r"<(/?)(?:final_?)?answer>", re.I)

_FENCE = re.compile(r"```(?:json)?[ \t]*\n?", re.I)

_FIELDS = ("finalanswer", "answer", "choice", "result", "solution")

# Scripts without spaces between words: also Thai, Lao, Burmese and Khmer, without their digits.
_SCRIPTS = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_SCRIPTS += "\u0e01-\u0e4f\u0e81-\u0ecf\u1000-\u103f\u1780-\u17df"

_BESIDE = re.compile(rf"(?<=[{_SCRIPTS}])(?=[\dA-Za-z$€£¥.\\(*-])|(?<=[\dA-Za-z%])(?=[{_SCRIPTS}])")

_MARKS = re.compile(r"([^\w\s\x00-\x7f]{30})[^\w\s\x00-\x7f]+")  # NFKC takes quadratic time for many accents

_CUES = ("not", "n't", "never", "neither", "nor", "nicht", "kein", "pas", "no es", "unlike", "except", "than")

_CUES += ("instead", "不是", "并非", "не")  # every match of _DENIAL contains one: a fast first test

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
    """Return the answer in a reply, after its thoughts: the content of a tag <answer>, or a field of a JSON object.

    Without either, the answer is the reply without its thoughts. A reply longer than `MAX_ANSWER_LENGTH` keeps its
    beginning and its end.

    >>> final_answer('{"answer": 42, "confidence": 0.9}'), final_answer("<think>Rome?</think>Paris")
    ('42', 'Paris')
    """
    text = without_thoughts(text)
    if len(text) > MAX_ANSWER_LENGTH:
        text = f"{text[: MAX_ANSWER_LENGTH // 2]}\n\n{text[-MAX_ANSWER_LENGTH // 2 :]}"
    tags = [*_TAG.finditer(text)]
    opened = [i for i, tag in enumerate(tags) if not tag[1]]
    if opened:
        closing = tags[opened[-1] + 1 :]
        return text[tags[opened[-1]].end() : closing[0].start() if closing else None].strip()
    field = _field(text)
    return text if field is None else field


def without_thoughts(text: str) -> str:
    """Return a reply without the text between <think> and </think>; thoughts without an end reach to the reply's end.

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
    """Return the answer field of a JSON object, which is the text, its last fence or a part of it; else None."""
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
                return _field_text(fields[name])
    return None


def _field_text(value: object) -> str:
    if isinstance(value, str):  # JSON reads the single backslash of "\boxed" and "\frac" as a control character
        return value.replace("\b", "\\b").replace("\f", "\\f")
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def normalise_answer(text: str) -> str:
    """Fold the case and the white space of a text, to compare answers.

    >>> normalise_answer("  The Eiffel\\n Tower ")
    'the eiffel tower'
    """
    return " ".join(text.casefold().split())


def tidy_text(text: str) -> str:
    """Normalise the characters of a text: NFKC, straight apostrophes, and few blanks, line ends and repeated signs.

    A blank separates letters of scripts without spaces, such as Chinese, from digits and Latin letters.

    >>> tidy_text("答案是42。"), tidy_text("a   b____________")
    ('答案是 42。', 'a b____')
    """
    text = unicodedata.normalize("NFKC", _MARKS.sub(r"\1", text)).replace("’", "'").replace("‘", "'")
    text = re.sub(r"\s+", lambda blank: "\n" * min(2, blank[0].count("\n")) or " ", text.strip())
    text = re.sub(r"([^\w\s]|_)\1{4,}", r"\1\1\1\1", text)
    return _BESIDE.sub(" ", text)


def is_denied(text: str, start: int, end: int) -> bool:
    """Return whether a text of `tidy_text` denies its part from start to end: "not 42", "42 is wrong".

    >>> is_denied("It's not 42", 9, 11), is_denied("Not sure, 42", 10, 12)
    (True, False)
    """
    window = text[max(0, start - 60) : start].casefold()
    if any(cue in window for cue in _CUES) and _DENIAL.search(text, max(0, start - 60), start) is not None:
        return True
    return _DENIED_AFTER.match(text, end) is not None


def last_box(text: str) -> str | None:
    r"""Return the content of the last \boxed{…} of a text; None if there is none, or it has no end.

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


_SIGNS = "\\s(\\[{<*_`\"'“‘:=$~#>-"  # characters that may precede the picked choice
_VERB = r"(?:\s(?:is|was|would\sbe|should\sbe|must\sbe|seems\sto\sbe)\b|\s?[:=\-–—])"
_NOUN = (
    r"(?:\b(?:answer|choice|option|solution|response|letter|selection|it\s(?:is|must\sbe|should\sbe|has\sto\sbe)|it's)"
    r"|答案\s?[是为]?|答え\s?は?|正解\s?は?|정답\s?[은는]?)"
)


def chosen_choice(text: str, names: Sequence[str], words: Mapping[str, str] | None = None) -> str | None:
    """Return the name of the choice that a reply picks; None if it picks none, or more than one.

    Args:
        text: the reply.
        names: names of the choices, such as A, B, C and D.
        words: texts of the choices by name, where known.

    The places in the `final_answer` where a choice may stand, in order: the whole answer; a box; "the answer is …" (its
    last occurrence); "… is correct"; "so …" at the end; a name at the beginning; the only name; the only text of a
    choice. Names inside words do not count, nor an "A" or "I" that may be a word, nor a denied choice ("not B", "rather
    than B", "B is wrong").

    >>> chosen_choice("A planet is large, so the answer is (B).", "ABCD"), chosen_choice("I cannot say.", "ABCD")
    ('B', None)
    >>> chosen_choice("It is Jupiter.", "AB", {"A": "Mars", "B": "Jupiter"})
    'B'
    """
    by_words = {normalise_answer(wording).strip(" ."): name for name, wording in (words or {}).items()}
    text = _without_denied(_without_markup(final_answer(text)), [*names, *(words or {}).values()])
    answer = normalise_answer(text).strip(" .*_`\"'()[]")
    alone = [name for name in names if name.casefold() == answer]
    if alone or answer in by_words:
        return alone[0] if alone else by_words[answer]
    name = _name_pattern(names)
    for make_pattern in (_boxed_pattern, _declared_pattern, _right_pattern, _concluded_pattern, _leading_pattern):
        matches = [match[1] for match in re.finditer(make_pattern(name), text, re.M)]
        if matches:
            return _name_of(matches[-1], names)
    declared = _declared_words(text, by_words)
    return declared or _only(_mentioned(text, names)) or _only(_in_words(answer, by_words))


def _without_markup(text: str) -> str:
    r"""Strip typesetting: \text{B} becomes B, \(…\) loses its marks, and full-width letters become letters."""
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\s?\{([^{}]*)\}", r"\1", tidy_text(text))
    return re.sub(r"\\[()\[\]]", "", text)


def _without_denied(text: str, choices: Sequence[str]) -> str:
    """Replace the choices that a text denies, by name or words: "not A or B, but C" becomes "not …, but C"."""
    forms = "|".join(map(re.escape, sorted(filter(str.strip, choices), key=len, reverse=True)))
    if not forms:
        return text
    several = rf"(?<!\w)(?:{forms})(?!\w)(?:,?\s?(?:\b(?:n?or)\b|/)\s?(?:{forms})(?!\w)){{0,9}}"
    return re.sub(several, lambda form: "…" if is_denied(text, *form.span()) else form[0], text, flags=re.I)


def _name_pattern(names: Sequence[str]) -> str:
    """Return a pattern whose group is one of the names; a word, unlike a letter, may be in any case."""
    forms = [re.escape(name) if len(name) == 1 else f"(?i:{re.escape(name)})" for name in names]
    return rf"({'|'.join(sorted(forms, key=len, reverse=True))})(?!\w|['’]\w)"


def _boxed_pattern(name: str) -> str:
    return rf"\\boxed\s?\{{[{_SIGNS}]{{0,12}}{name}"


def _declared_pattern(name: str) -> str:
    noun, verb = rf"(?i:{_NOUN})", rf"(?i:{_VERB})"
    before = rf"{noun}[*_]{{0,8}}{verb}?(?:\s?(?i:option|choice|letter))?[{_SIGNS}]{{0,12}}"
    another = rf"[)\]*]{{0,3}}(?:\s?[/&]|,[{_SIGNS}]{{0,4}}{name}[)\]*]{{0,3}}(?:[.,]|\s?\Z|\n))"  # "A/B", "A, B."
    return rf"{before}{name}(?!\s(?i:is|was)\b)(?!\s[a-z])(?!{another})"


def _right_pattern(name: str) -> str:
    return rf"\b{name}[)*\]]*+\s(?i:is\s(?:the\s)?(?:correct|right|best|better|true|answer))"


def _concluded_pattern(name: str) -> str:
    """Return a pattern for a conclusion at the very end: "…, so B." """
    return rf"(?i:\b(?:so|thus|hence|therefore)),?\s[{_SIGNS}]{{0,12}}{name}[)\].*_`\s]{{0,8}}\Z"


def _leading_pattern(name: str) -> str:
    """Return a pattern for a name at the very beginning: alone on its line, or with a sign or "because" after it."""
    return rf"\A[{_SIGNS}]{{0,12}}{name}(?:[)\].:,*_;\-–—]|\s?[-–—]|\s?$|\s?\n|\sbecause\b)"


def _name_of(match: str, names: Sequence[str]) -> str:
    return next(name for name in names if name.casefold() == match.casefold())


def _declared_words(text: str, by_words: Mapping[str, str]) -> str | None:
    statements = re.split(rf"{_NOUN}{_VERB}", text, flags=re.I)[1:]
    after = normalise_answer(statements[-1]).lstrip(" *_`\"'([") if statements else ""
    return _only({name for words, name in by_words.items() if words and re.match(re.escape(words) + r"(?!\w)", after)})


def _mentioned(text: str, names: Sequence[str]) -> set[str]:
    """Return the names that stand alone in the text; "A" and "I" count only with a mark, or in a list with a name."""
    pattern = rf"(?<![\w'’]){_name_pattern(names)}"
    marked = rf"[(\[*`\"“]{_name_pattern(names)}[)\]*`\"”.:]"
    words = {_name_of(match[1], names) for match in re.finditer(pattern, text) if match[1] not in ("A", "I", "a", "i")}
    joined = re.search(rf"(?<!\w)([AI])\s?(?:,|/|(?i:or|and))\s?{_name_pattern(names)}", text)
    words |= {joined[1]} & {*names} if joined else set()
    return words | {_name_of(match[1], names) for match in re.finditer(marked, text)}


def _in_words(text: str, by_words: Mapping[str, str]) -> set[str]:
    """Return the choices whose words are in the text, but not as a part of another choice's words there."""
    named = [words for words in by_words if words and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text)]
    return {by_words[words] for words in named if not any(words in other for other in named if other != words)}


def _only(names: set[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None
