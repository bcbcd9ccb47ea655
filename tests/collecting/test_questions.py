"""Questions from tables: what is asked, what a right answer is, what is refused."""

import json

import polars as pl
import pytest
from helpers.sample_models import write_questions
from hypothesis import given, settings, strategies as st
from tiers import examples

from rcjax.collecting.questions import Question, read_questions, sample_questions
from rcjax.logs.errors import LogError


def only(path, *around):
    (question,) = read_questions(path, *around)
    return question


ROW = {"query": "q1", "prompt": "Largest?", "answer": "B", "choices": "A|B", "subject": "x"}


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_every_kind_of_table_gives_the_same(ending, place):
    path = place / f"questions.{ending}"
    frame = pl.DataFrame([ROW])
    writers = {
        "csv": frame.write_csv,
        "tsv": lambda path: frame.write_csv(path, separator="\t"),
        "jsonl": frame.write_ndjson,
        "parquet": frame.write_parquet,
    }
    writers[ending](path)
    messages = ({"role": "user", "content": "Largest?"},)
    assert only(path) == Question("q1", messages, ("B",), ("A", "B"), others={"subject": "x"})


def test_names_of_columns_may_be_in_capitals(place):
    path = place / "q.csv"
    path.write_text("\ufeffQuery;Prompt;ANSWER\n1;Zwei und zwei?;4\n", encoding="utf-8")
    assert (only(path).query, only(path).reference) == ("1", ("4",))


@pytest.mark.parametrize("choices", [["Mars", "Jupiter"], "Mars|Jupiter", '["Mars", "Jupiter"]'])
def test_choices_in_words_are_named_and_written_under_the_question(choices, place):
    row = {"prompt": "Largest planet?", "choices": choices, "answer": "Jupiter"}
    question = only(write_questions(place / "q.jsonl", [row]))
    assert question.choices == ("A", "B")
    assert question.reference == ("B",)
    assert question.messages[-1]["content"] == (
        "Largest planet?\n\nA. Mars\nB. Jupiter\n\nReply with the letter of the right choice alone."
    )


@pytest.mark.parametrize("choices", ["yes|no", ["Yes", "No"], "1|2|3", ["A", "B"]])
def test_choices_that_are_names_stand_in_the_question_already(choices, place):
    question = only(write_questions(place / "q.jsonl", [{"prompt": "So?", "choices": choices}]))
    assert question.words == {}
    assert question.messages[-1]["content"] == "So?"


def test_a_system_message_and_a_template(place):
    path = write_questions(place / "q.jsonl", [{"prompt": "Why {so}?", "subject": "law", "answer": "x"}])
    question = only(path, "Be brief.", "On {subject}: {prompt} {unknown}")
    assert [message["content"] for message in question.messages] == ["Be brief.", "On law: Why {so}? {unknown}"]


def test_messages_as_in_the_api(place):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    for column in ("messages", "prompt"):
        assert only(write_questions(place / "q.jsonl", [{column: messages}])).messages == tuple(messages)
    path = place / "q.csv"
    pl.DataFrame({"messages": [json.dumps(messages)]}).write_csv(path)
    assert only(path).messages == tuple(messages)


def test_an_id_is_made_of_the_content(place):
    rows = [{"prompt": "One?"}, {"prompt": "Two?"}, {"prompt": "One?"}]
    first, second = read_questions(write_questions(place / "q.jsonl", rows))
    assert len({first.query, second.query}) == 2
    assert read_questions(write_questions(place / "r.jsonl", rows[1:2]))[0].query == second.query


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("4", ("4",)),
        (4.5, ("4.5",)),
        (["a", "b"], ("a", "b")),
        ('["a", "b"]', ("a", "b")),
        ("[1, 2]", ("[1, 2]",)),
        ({"a": 1}, ('{"a": 1}',)),
        ([{"a": "ü"}, {"a": 2}], ('{"a": "ü"}', '{"a": 2}')),
        (None, ()),
    ],
)
def test_right_answers_may_be_texts_or_lists(answer, reference, place):
    assert only(write_questions(place / "q.jsonl", [{"prompt": "x", "answer": answer}])).reference == reference


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "x"}, "no column prompt or messages"),
        ({"prompt": None, "answer": "x"}, "row 1: neither a prompt nor messages: give one"),
        ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "row 1: both a prompt and messages"),
        ({"messages": [3]}, "messages must be a list of messages"),
        ({"prompt": ["x"]}, "messages must be a list of messages"),
        ({"prompt": {"role": "user", "content": "x"}}, "prompt must be a text, a number or a list of messages"),
        ({"messages": "[" * 100_000}, "messages are not JSON"),
        ({"prompt": "x", "choices": "A|A"}, "choices must be 2 to 26, all different"),
        ({"prompt": "x", "choices": "A|B", "answer": "C"}, "the answer C is none of the choices: give one of A, B"),
        ({"prompt": "x", "answer": [["a"]]}, "answer must be a text or an object, or a list of these"),
        (
            {"messages": [{"role": "usr", "content": "x"}]},
            "row 1: the role 'usr' is none of the API's: give user, assi",
        ),
        ({"prompt": "x", "cost": 3}, "column cost is one of the log's own"),
        ({"prompt": "x", "query": [1]}, "query must be a text or a number"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}], "choices": ["of one", "of two"]},
            "choices in words need a question in words",
        ),
    ],
)
def test_invalid_questions_are_refused_with_their_row(row, says, place):
    with pytest.raises(LogError) as refused:
        read_questions(write_questions(place / "q.jsonl", [row]))
    assert says in str(refused.value)
    assert str(refused.value).startswith("q.jsonl")


def test_two_questions_with_one_id_are_refused(place):
    rows = [{"query": 1, "prompt": "One?"}, {"query": 1, "prompt": "Two?"}]
    with pytest.raises(LogError, match="row 2: query 1 is that of row 1 too"):
        read_questions(write_questions(place / "q.jsonl", rows))


@given(st.integers(0, 40), st.integers(0, 5), st.integers(1, 50), st.integers(1, 50))
@settings(max_examples=examples(50))
def test_samples_are_nested_and_in_order(n, seed, small, large):
    questions = [Question(f"q{i}", ()) for i in range(n)]
    few, many = (
        sample_questions(questions, min(small, large), seed),
        sample_questions(questions, max(small, large), seed),
    )
    assert len(few) == min(small, large, n)
    assert [question for question in many if question in few] == few
