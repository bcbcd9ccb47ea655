"""Questions with tools, a schema, and messages in which tools were called."""

import json

import pytest

from rcjax.collecting.questions import conversation, read_questions
from rcjax.collecting.respondent import max_input_tokens
from rcjax.logs.errors import LogError

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
RIGHT = {"name": "f", "arguments": {}}


def questions(place, *rows, name="questions.jsonl"):
    path = place / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_questions(path)


def test_tools_stand_in_the_row_or_in_a_file(tmp_path):
    (tmp_path / "tools.json").write_text(json.dumps([TOOL]))
    inline, named, text = questions(
        tmp_path,
        {"query": 1, "prompt": "?", "tools": [TOOL], "tool_choice": "required", "answer": RIGHT},
        {"query": 2, "prompt": "?", "tools": "tools.json", "answer": json.dumps([RIGHT])},
        {"query": 3, "prompt": "?", "tools": json.dumps([TOOL]), "answer": []},
    )
    assert inline.options == {"tools": [TOOL], "tool_choice": "required"}
    assert named.options == text.options == {"tools": [TOOL]}
    assert named.request_form == text.request_form != inline.request_form
    assert [json.loads(one.reference[0]) for one in (inline, named, text)] == [RIGHT, [RIGHT], []]
    assert named.digest == text.digest != inline.digest


def test_a_schema_in_a_table(tmp_path):
    (tmp_path / "form.json").write_text('{"type": "json_object"}')
    (tmp_path / "q.csv").write_text('prompt,response_format,answer\nWho?,form.json,"{""a"": 1}"\n')
    (question,) = read_questions(tmp_path / "q.csv")
    assert question.options == {"response_format": {"type": "json_object"}}
    assert question.reference == ('{"a": 1}',)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"tools": {"f": 1}}, "tools must be a list of tools"),
        ({"tools": ["f"]}, "tools must be a list of tools"),
        ({"tools": [{"type": "web_search"}]}, "a tool that its provider runs cannot be compared"),
        ({"tools": [{"type": "function", "function": {}}]}, "a function that has a name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "must be a JSON schema"),
        ({"tools": "none.json"}, "the file none.json cannot be read: No such file or directory"),
        ({"tools": "[{"}, "tools is not JSON"),
        ({"response_format": "json"}, "response_format must be an object"),
    ],
)
def test_invalid_tools_and_schemas_are_refused_with_their_row(tmp_path, row, says):
    with pytest.raises(LogError) as problem:
        questions(tmp_path, {"prompt": "?", **row})
    assert "questions.jsonl, row 1" in str(problem.value)
    assert says in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_are_not_shown_with_a_question(role):
    assert conversation([{"role": role, "content": "Be brief."}, {"role": "user", "content": "Why?"}]) == "Why?"


def test_calls_in_messages_are_read_and_counted():
    made = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    asked = [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": [made]}]
    asked.append({"role": "tool", "tool_call_id": "1", "content": "5"})
    assert conversation(asked) == '[user] ?\n\n[assistant] [{"arguments":{},"name":"f"}]\n\n[tool] 5'
    without = [{**message, "tool_calls": None} for message in asked]
    assert max_input_tokens(asked) > max_input_tokens(without)
    assert max_input_tokens(asked, {"tools": [TOOL] * 1000}) > 50_000
