"""Questions for a log: read from a table with their right answers, and sampled at random."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rcjax.logs.columns import plain_name
from rcjax.logs.errors import LogError, join_names, shorten, suggest_name
from rcjax.logs.sources import TABLES, find_damage, load_table, open_text, require_file
from rcjax.policy.policy import hash_to_uniform
from rcjax.policy.signals.answers import (
    FORM_OPTIONS,
    ROLES,
    format_calls,
    hash_json,
    objects_in,
    request_form_of,
)
from rcjax.serving.call_log import Call
from rcjax.serving.completions import read_json

_COLUMNS = ("query", "prompt", "messages", "answer", "choices", "grade", *FORM_OPTIONS)

_LOG_COLUMNS = """
    answer_key at_most calibrated call call_log choices client correct grade graded_by grading_cost latency_ms
    not_judged prompt_digest question_digest reference sample shadow
"""

#: Names of the log's own columns, which columns of questions must not have.
RESERVED_COLUMNS = {column.name for column in fields(Call)}.union(_LOG_COLUMNS.split())

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Question:
    """A question to every model, with its right answers."""

    query: str
    """Id of the question."""
    messages: tuple[Mapping[str, object], ...]
    """Messages in the format of the API."""
    reference: tuple[str, ...] = ()
    """Right answers; empty if unknown."""
    choices: tuple[str, ...] = ()
    """Names of the choices, such as A, B and C; empty for a free answer."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Texts of the choices by name, if the file has them."""
    grade: str | None = None
    """Name of a grader, or of a kind of question, which the command maps to a grader; None for the common grader."""
    others: Mapping[str, object] = field(default_factory=dict)
    """Other columns of the file."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of its requests: `tools`, `tool_choice` and `response_format`, if the file has them."""

    @property
    def digest(self) -> str:
        """Hash of the messages, choices, tools and schema."""
        return hash_json([list(self.messages), list(self.choices), *([dict(self.options)] if self.options else [])])

    @property
    def request_form(self) -> str:
        """Form of its requests (`rcjax.policy.signals.answers`)."""
        return request_form_of(self.messages, self.options)


def read_questions(
    path: str | os.PathLike[str], system: str | None = None, template: str | None = None
) -> list[Question]:
    """Read the questions of a CSV, JSON Lines or Parquet file.

    Columns (`prompt` or `messages` is needed, the others are optional and further ones kept):

    - `prompt`, or `messages` as in the API;
    - `query`: an id; without it, a hash of the content;
    - `answer`: a right answer, a text or a JSON object, or a list of several;
    - `choices`: in a cell of CSV `A|B|C`, or `Mars|Jupiter|Venus`. Choices that are not all single characters, or yes,
      no, true and false, are named A, B, … and listed under the question;
    - `grade`: a grader, or a kind of question;
    - `tools`, `tool_choice` and `response_format` as in the API: JSON, or the name of a JSON file in the same folder.

    Args:
        path: path of the file.
        system: system message, put before each question's messages.
        template: template of the prompt, with `{prompt}` and the names of other columns in braces.

    Raises LogError for an invalid question, with its row.
    """
    path = Path(path)
    require_file(path, TABLES)
    questions: dict[str, Question] = {}
    rows: dict[str, int] = {}
    for number, row in enumerate(_rows(path), start=1):
        place = f"{path.name}, row {number}"
        question = _question(row, system, template, place, path.parent)
        if question.query in questions:
            if questions[question.query] == question:
                continue  # a repeated question counts once
            first = rows[question.query]
            raise LogError(f"{place}: query {shorten(question.query)} is that of row {first} too: give each its own")
        questions[question.query], rows[question.query] = question, number
    if not questions:
        raise LogError(f"{path.name}: no questions: give a row for each")
    return list(questions.values())


def conversation(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return messages as one text for a judge or a person, without instructions; several messages with their roles.

    >>> conversation([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Why?"}])
    'Why?'
    """
    shown = [message for message in messages if message.get("role") not in ("system", "developer")]
    texts = [_message_text(message) for message in shown]
    if len(shown) == 1:
        return texts[0]
    return "\n\n".join(f"[{m.get('role', 'user')}] {text}" for m, text in zip(shown, texts, strict=True))


def _message_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, with other parts of its content as JSON, followed by its tool calls."""
    content, calls = message.get("content"), objects_in(message.get("tool_calls"))
    texts = [content] if isinstance(content, str) else []
    if not texts and (content is not None or not message.get("tool_calls")):
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
            texts.append(json.dumps(part, default=str) if text is None else str(text))
    return "\n".join(filter(None, [*texts, format_calls(calls) if calls else ""]))


def readable_prompt(text: str) -> str:
    """Return a prompt of a log as a readable text: messages in JSON become their texts, other prompts are unchanged.

    >>> readable_prompt('[{"role": "user", "content": [{"type": "text", "text": "Why?"}]}]'), readable_prompt("[1]")
    ('Why?', '[1]')
    """
    messages = read_json(text)
    if isinstance(messages, Mapping):  # a whole request
        messages = messages.get("messages")
    if not isinstance(messages, list) or not messages:
        return text
    are_messages = all(isinstance(part, Mapping) and {"content", "tool_calls"} & {*part} for part in messages)
    return conversation(messages) if are_messages else text


def sample_questions(questions: Sequence[Question], limit: int | None, seed: int) -> list[Question]:
    """Sample `limit` questions at random, in their order; a larger sample contains a smaller one of the same seed.

    >>> questions = [Question(str(i), ()) for i in range(9)]
    >>> {q.query for q in sample_questions(questions, 3, 0)} <= {q.query for q in sample_questions(questions, 5, 0)}
    True
    """
    if limit is None or limit >= len(questions):
        return list(questions)
    order = sorted(questions, key=lambda question: hash_to_uniform(f"sample {seed}", question.query))
    sampled = {question.query for question in order[:limit]}
    return [question for question in questions if question.query in sampled]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table under canonical names of columns, with None for an empty text."""
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        rows = _json_rows(path)
    else:
        table = load_table(str(path), lambda _, columns: columns)
        rows = (row for frame in table.frames for row in frame.iter_rows(named=True))
    for row in rows:
        named = {plain_name(name) if plain_name(name) in _COLUMNS else name: value for name, value in row.items()}
        if not {"prompt", "messages"} & {*named}:
            hint = suggest_name("prompt", named)
            raise LogError(f"{path.name}: no column prompt or messages{hint}; it has {join_names([*named])}")
        yield {name: None if isinstance(value, str) and not value.strip() else value for name, value in named.items()}


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of JSON Lines, whose values may be lists and objects."""
    text = open_text(path, _COLUMNS)
    damage = find_damage(text)
    if damage is not None:
        raise LogError(f"{path.name}{damage}")
    with text.open() as file:
        yield from (json.loads(line) for line in file if line.strip())


def _question(row: Mapping[str, Any], system: str | None, template: str | None, place: str, folder: Path) -> Question:
    others = {name: _plain_value(value) for name, value in row.items() if name not in _COLUMNS}
    taken = [name for name in others if name in RESERVED_COLUMNS]
    if taken:
        raise LogError(f"{place}: column {taken[0]} is one of the log's own: give it another name")
    names, words = _choices(row.get("choices"), place)
    messages = _messages(row, template, words, place)
    messages = (*([{"role": "system", "content": system}] if system else []), *messages)
    names_by_text = {text: name for name, text in reversed(words.items())}  # the first of two equal texts
    options = _options(row, place, folder)
    answer = _structured_answers(row.get("answer")) if options else _texts(row.get("answer"), f"{place}: answer")
    reference = tuple(names_by_text.get(text, text) for text in answer)
    if names and any(text not in names for text in reference):
        wrong = next(text for text in reference if text not in names)
        raise LogError(f"{place}: the answer {shorten(wrong)} is none of the choices: give one of {join_names(names)}")
    query = row.get("query")
    if query is None:
        query = hash_json([messages, list(names), *([options] if options else [])])
    if isinstance(query, bool) or not isinstance(query, str | int | float):
        raise LogError(f"{place}: query must be a text or a number that names the question")
    grade = row.get("grade")
    grade = grade and str(grade).strip()
    return Question(str(query).strip(), messages, reference, names, words, grade, others, options)


def _options(row: Mapping[str, Any], place: str, folder: Path) -> dict[str, Any]:
    """Return the options `tools`, `tool_choice` and `response_format` of a row."""
    options = {
        name: _read_option(row[name], f"{place}: {name}", folder) for name in FORM_OPTIONS if row.get(name) is not None
    }
    tools = options.get("tools", [])
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise LogError(f"{place}: tools must be a list of tools as the API has them: objects with type and function")
    for tool in tools:
        function = tool.get("function")
        if (
            tool.get("type") != "function"
            or not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
        ):
            problem = "each tool must be of type function, with a function that has a name"
            raise LogError(f"{place}: {problem}: a tool that its provider runs cannot be compared")
        if not isinstance(function.get("parameters", {}), dict):
            raise LogError(f"{place}: the parameters of {shorten(function['name'])} must be a JSON schema, an object")
    if not isinstance(options.get("response_format", {}), dict):
        raise LogError(f"{place}: response_format must be an object as the API has it")
    return {name: value for name, value in options.items() if value != []}


def _read_option(value: Any, place: str, folder: Path) -> Any:
    """Return an option: a value, JSON in a text, a word such as "auto", or the content of a JSON file."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower().endswith(".json"):
        try:
            text = (folder / text).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            reason = getattr(problem, "strerror", None) or "it is not a text in UTF-8"
            raise LogError(f"{place}: the file {shorten(text)} cannot be read: {reason}") from None
    elif not text.startswith(("{", "[")):
        return text
    if (option := read_json(text)) is None:
        raise LogError(f"{place} is not JSON: give it as the API has it, or the name of a file in the same folder")
    return option


def _structured_answers(value: Any) -> tuple[str, ...]:
    """Return right answers to a question with tools or a schema; values other than texts become JSON."""
    if value is None:
        return ()
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return tuple(value)
    return (value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False),)


def _messages(row: Mapping[str, Any], template: str | None, words: Mapping[str, str], place: str) -> tuple[Any, ...]:
    prompt, messages = row.get("prompt"), row.get("messages")
    if messages is None and isinstance(prompt, list):  # as in the data of trainers
        prompt, messages = None, prompt
    if isinstance(messages, str):  # in a cell of CSV
        messages = read_json(messages)
        if messages is None:
            raise LogError(f"{place}: messages are not JSON: give a list of messages as the API has them")
    if (prompt is None) == (messages is None):
        problem = "neither a prompt nor messages" if prompt is None else "both a prompt and messages"
        raise LogError(f"{place}: {problem}: give one of the two")
    if not isinstance(prompt, str | int | float | None):
        raise LogError(f"{place}: prompt must be a text, a number or a list of messages as the API has them")
    if messages is not None and not (
        isinstance(messages, list) and messages and all(isinstance(message, Mapping) for message in messages)
    ):
        raise LogError(f"{place}: messages must be a list of messages as the API has them, with one at least")
    if wrong := [message.get("role") for message in messages or () if message.get("role") not in ROLES]:
        raise LogError(f"{place}: the role {shorten(repr(wrong[0]))} is none of the API's: give {', '.join(ROLES)}")
    if messages is None:
        messages = [{"role": "user", "content": _fill_template(template, str(prompt), row)}]
    sent = [dict(message) for message in messages]
    if words:
        sent = _with_choices(sent, words, place)
    try:
        json.dumps(sent, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise LogError(f"{place}: half of a pair of surrogates, {half}, cannot be sent: correct the text") from None
    return tuple(sent)


def _fill_template(template: str | None, prompt: str, row: Mapping[str, Any]) -> str:
    """Fill a template with the columns of a row; unknown names in braces, and braces in the values, stay."""
    if template is None:
        return prompt
    values = {**row, "prompt": prompt}
    return re.sub(r"\{([\w .-]+)\}", lambda m: str(values[m[1]]) if values.get(m[1]) is not None else m[0], template)


def _with_choices(messages: list[dict[str, Any]], words: Mapping[str, str], place: str) -> list[dict[str, Any]]:
    """Append the choices to the last message."""
    content = messages[-1].get("content")
    if not isinstance(content, str):
        raise LogError(f"{place}: choices in words need a question in words: name them A|B|C, and write them there")
    lines = "\n".join(f"{name}. {text}" for name, text in words.items())
    messages[-1]["content"] = f"{content}\n\n{lines}\n\nReply with the letter of the right choice alone."
    return messages


def _choices(value: Any, place: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (names of the choices, texts by name). Single characters, yes, no, true and false are names themselves."""
    if value is None:
        return (), {}
    if isinstance(value, Mapping):
        words = {str(name): str(text) for name, text in value.items()}
        texts = [*words]
    else:
        has_bars = isinstance(value, str) and not value.lstrip().startswith("[")
        texts = _texts(value.split("|") if has_bars else value, f"{place}: choices")
        named = all(len(text) == 1 or text.casefold() in ("yes", "no", "true", "false") for text in texts)
        words = {} if named else dict(zip(_LETTERS, texts, strict=False))
    if not 2 <= len(texts) <= len(_LETTERS) or len({*texts}) < len(texts):
        raise LogError(f"{place}: choices must be 2 to {len(_LETTERS)}, all different: give A|B|C, or what they say")
    return (tuple(words) if words else tuple(texts)), words


def _texts(value: Any, place: str) -> tuple[str, ...]:
    """Return one or several texts; a list in a cell may be JSON, and an object becomes its JSON."""
    if value is None:
        return ()
    if isinstance(value, str) and value.lstrip().startswith("["):
        several = read_json(value)  # "[1, 2]" may be an answer; a list of texts is several
        value = several if several is not None and all(isinstance(part, str) for part in several) else value
    parts = value if isinstance(value, list | tuple) else [value]
    parts = [json.dumps(part, ensure_ascii=False) if isinstance(part, Mapping) else part for part in parts]
    if not all(isinstance(part, str | int | float) and str(part).strip() for part in parts):
        raise LogError(f"{place} must be a text or an object, or a list of these")
    return tuple(str(part).strip() for part in parts)


def _plain_value(value: Any) -> Any:
    """Convert a value for a line of the log: NaN to None, infinities to texts, lists and objects to JSON texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value, default=str)
