"""The table in which answers are labelled: written, read again, and what a person may do to it meanwhile."""

import json

import polars as pl
import pytest
from misses import in_turn

from rcjax.logs.errors import LogError
from rcjax.logs.label_sheet import AnswerKey, LabelSheet, Texts, answer_texts, read_sheet

ROWS = [
    (AnswerKey("q1", "small"), Texts("1 + 1?", "", 'two,\n"of course"'), None, 0.25),
    (AnswerKey("q2", "large"), Texts("", "", "größer"), True, 1 / 3),
    (AnswerKey("q3", "small"), Texts("", "", ""), False, 1.0),
]


def test_a_table_is_read_as_it_was_written(tmp_path):
    sheet = LabelSheet.of(tmp_path / "sheet.csv", ROWS)
    sheet.write()
    assert sheet.columns == ("query", "model", "question", "answer", "correct", "label_probability")
    again = read_sheet(sheet.path)
    assert (again.columns, again.rows) == (sheet.columns, sheet.rows)
    assert again.labels == [None, True, False]
    assert again.texts(0) == ROWS[0][1]
    assert float(again.rows[1]["label_probability"]) == pytest.approx(1 / 3, abs=1e-9)


def test_labels_are_written_at_once_and_taken_back(tmp_path):
    sheet = LabelSheet.of(tmp_path / "sheet.csv", ROWS)
    sheet.set_label(0, False)
    assert read_sheet(sheet.path).labels == [False, True, False]
    sheet.set_label(0, None)
    assert read_sheet(sheet.path).labels == [None, True, False]
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.csv"]


def test_what_a_person_adds_stays(tmp_path):
    path = tmp_path / "sheet.csv"
    path.write_text("note,query,model,correct,label_probability\nhm,q1,small,Yes,0.5\n\n,q2,small,,0.5\n", "utf-8-sig")
    sheet = read_sheet(path)
    assert sheet.labels == [True, None]
    sheet.set_label(1, False)
    assert path.read_text().splitlines() == [
        "note,query,model,correct,label_probability",
        "hm,q1,small,Yes,0.5",
        ",q2,small,0,0.5",
    ]


@in_turn(
    ("content", "message"),
    [
        ("query,model,correct\nq1,small,1\n", "sheet.csv: no columns label_probability: it is no table of rcjax label"),
        ("", "sheet.csv: no columns query, model, correct, label_probability"),
        ("query,model,correct,label_probability\nq1,small,perhaps,1\n", "sheet.csv, row 1: correct perhaps is not"),
        ("query,model,correct,label_probability\nq1,small,1\n", "a row has more or fewer cells than the first"),
        ('query,model,correct,label_probability\n"q1"x,small,1,1\n', "sheet.csv: cannot be read: save it as CSV"),
        (b"\xff\xfe\x00", "sheet.csv: begins as UTF-16, but is not: save the file as UTF-8"),
    ],
)
def test_what_is_no_such_table(content, message, tmp_path):
    path = tmp_path / "sheet.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(LogError) as caught:
        read_sheet(path)
    assert message in str(caught.value)


def test_texts_of_a_log_in_any_form(tmp_path):
    rows = [
        {"query": 1, "model": "small", "Prompt": "Why?", "text": "So.", "answer": "so", "reference": "so"},
        {"query": 2, "model": "small", "Prompt": "How?", "text": None, "answer": "so", "reference": None},
    ]
    frame = pl.DataFrame(rows)
    frame.write_csv(tmp_path / "log.csv")
    frame.with_columns(reference=pl.Series([["so", "thus"], None])).write_parquet(tmp_path / "log.parquet")
    one, other, missing = (AnswerKey(query, "small") for query in "123")
    drawn, texts = {one, other, missing}, {one: Texts("Why?", "so", "So."), other: Texts("How?", "", "")}
    assert answer_texts(tmp_path / "log.csv", drawn) == texts == answer_texts(frame, drawn)
    assert answer_texts(tmp_path / "log.parquet", drawn)[one].right_answer == "so or thus"
    assert answer_texts(frame.select("query", "model"), {one}) == {one: Texts()}


def test_texts_of_a_call_log_are_those_of_the_call_that_counts(tmp_path):
    def call(query, answer, **more):
        return json.dumps({"call_log": 1, "query": query, "model": "small", "answer": answer, "error": None} | more)

    lines = [call("a", None, error="no reply"), call("a", "seen", shadow=True), call("a", "again", shadow=True)]
    lines = [call("b", "deferred", shadow=False), *lines, call("c", "last", shadow=True)]
    (tmp_path / "calls.jsonl").write_text("\n".join(lines) + "\n")
    drawn = {AnswerKey(query, "small") for query in "abc"}
    told = {query: texts.answer for (query, *_), texts in answer_texts(tmp_path / "calls.jsonl", drawn).items()}
    assert told == {"a": "seen", "c": "last"}


def test_texts_of_samples_are_told_apart():
    frame = pl.DataFrame({"query": [1, 1], "model": ["small"] * 2, "sample": [0, 1], "answer": ["a", "b"]})
    second = AnswerKey("1", "small", "1")
    assert answer_texts(frame, {second}) == {second: Texts(answer="b")}
    with pytest.raises(LogError, match=r"several answers per query and model .* the log has one of each"):
        answer_texts(frame, {AnswerKey("1", "small")})
    with pytest.raises(LogError, match="no column sample, and the log has several answers per query and model"):
        answer_texts(frame.drop("sample"), {second})


def test_a_table_tells_samples_apart_where_there_are_some(tmp_path):
    rows = [(AnswerKey("1", "small", sample), Texts(), None, 0.5) for sample in ("0", "2")]
    sheet = LabelSheet.of(tmp_path / "sheet.csv", rows)
    assert sheet.columns == ("query", "model", "sample", "correct", "label_probability")
    assert [row["sample"] for row in sheet.rows] == ["0", "2"]
