"""The table in which answers are labelled: drawn at random, written for spreadsheets, and read as it was written."""

import csv
import dataclasses
import io
import json

import jax
import numpy as np
import polars as pl
import pytest
from helpers.judged_logs import judged_log

import rcjax
from rcjax.logs.errors import LogError
from rcjax.logs.labels import answer_texts, draw_answers, read_sheet, write_sheet

FORMULAS = ["=1+1", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1+1", '=HYPERLINK("x")']
TEXTS = [
    *FORMULAS,
    *(f"'{text}" for text in FORMULAS),
    "'tis",
    "-5",
    "+3,5",
    "50 %",
    "a\r\nb\n",
    '"',
    "größer",
    "a,\nb",
]
#: What spreadsheets leave out, before what they take for a formula.
HIDDEN = ["\x00=1", "\u200b=1", "\ufeff@a", "\u00ad+a", "\x7f-a", "\u2060=1", "﹦1+1", "﹫a", "\u200b =a"]
#: How a spreadsheet may save a table: its separator and its encoding.
SAVED = [(",", "utf-8"), (";", "utf-8-sig"), ("\t", "utf-16"), (",", "utf-16"), (";", "utf-16")]


def test_formulas_are_guarded_in_a_sheet_and_read_back_unchanged(tmp_path):
    """Answers that began with =, + or @ ran as formulas."""
    path, texts = tmp_path / "sheet.csv", [*TEXTS, *HIDDEN]
    sheet = pl.DataFrame({"query": [*map(str, range(len(texts)))], "model": "=m", "answer": texts, "correct": "1"})
    write_sheet(path, sheet)
    rows = [*csv.reader(io.StringIO(path.read_bytes().decode(), newline=""))]
    assert all(row[2].startswith("'") for row in rows[-len(HIDDEN) :])
    assert not [row for row in rows[1:] for cell in row if cell.lstrip()[:1] in {*"=+@＝"} and cell != "+3,5"]
    for separator, encoding in SAVED:
        content = io.StringIO()
        csv.writer(content, delimiter=separator).writerows(rows)
        path.write_bytes(content.getvalue().encode(encoding))
        back = read_sheet(path)
        assert [text.strip() for text in back["answer"]] == [plain.strip() for plain in texts]
        assert {*back["model"]} == {"=m"}


def test_the_texts_of_every_kind_of_log_are_found(tmp_path):
    rows = [
        {"query": 1, "model": "small", "Prompt": "Why?", "text": "So.", "answer": "so", "reference": "so"},
        {"query": 2, "model": "small", "Prompt": "How?", "text": None, "answer": "so", "reference": None},
    ]
    frame = pl.DataFrame(rows)
    frame.write_csv(tmp_path / "log.csv")
    frame.with_columns(reference=pl.Series([["so", "thus"], None])).write_parquet(tmp_path / "log.parquet")
    told = [("1", "small", "Why?", "so", "So."), ("2", "small", "How?", None, None)]
    assert answer_texts(tmp_path / "log.csv").rows() == told
    assert answer_texts(tmp_path / "log.parquet")["right_answer"].to_list() == ["so or thus", None]


def test_a_sheet_has_no_texts_of_failed_or_deferred_calls(tmp_path):
    def call(query, answer, **more):
        return json.dumps({"call_log": 1, "query": query, "model": "small", "answer": answer, "error": None} | more)

    lines = [call("a", None, error="no reply"), call("a", "seen", shadow=True), call("b", "deferred", shadow=False)]
    (tmp_path / "calls.jsonl").write_text("\n".join(lines) + "\n")
    assert answer_texts(tmp_path / "calls.jsonl").rows() == [("a", "small", "seen")]


def bare_log(n=100):
    """A log of which no answer has a label, and one query lacks a model."""
    log = judged_log(n, 2)
    assert log.hand_labels is not None
    answered = np.asarray(log.answered).copy()
    answered[0, 0] = False
    none = jax.device_put(np.zeros(answered.shape, bool))
    return dataclasses.replace(
        log, answered=jax.device_put(answered), hand_labels=dataclasses.replace(log.hand_labels, labelled=none)
    )


def test_equally_many_answers_of_each_model_are_drawn_at_random():
    log = bare_log()
    drawn = draw_answers(log, 31, seed=3)
    assert len({*drawn}) == 31
    assert drawn == draw_answers(log, 31, seed=3) != draw_answers(log, 31, seed=4)
    assert sorted(np.bincount([model for _, model in drawn]).tolist()) == [10, 10, 11]
    often = np.zeros(log.labelled.shape)
    for seed in range(150):
        often[tuple(zip(*draw_answers(log, 30, seed), strict=True))] += 1
    assert often[0, 0] == 0
    assert np.abs(often[1:] - 15).max() < 5 * np.sqrt(15)  # each of a hundred in a tenth of the draws
    every = [(query, model) for query in range(100) for model in range(3) if query + model]
    assert sorted(draw_answers(log, 300)) == every
    with pytest.raises(LogError, match="every answer has a label already"):
        draw_answers(rcjax.sample_log(20), 1)


def test_answers_are_labelled_in_random_order_of_their_queries():
    """In order of the log, the first half of the labels would be those of the oldest queries."""
    log, early = bare_log(), np.zeros(100)
    for seed in range(100):
        drawn = draw_answers(log, 60, seed)
        early[[query for query, _ in drawn[:30]]] += 1
    assert abs(early[:50].sum() / early.sum() - 0.5) < 0.05
    queries = [query for query, _ in draw_answers(log, 300)]
    assert queries == [query for query in dict.fromkeys(queries) for _ in range(queries.count(query))]


def test_a_sheet_has_no_control_characters_and_is_private(tmp_path):
    path = tmp_path / "sheet.csv"
    texts = ["\x1b[2Jred", "a\x9b31mb", "\u202eabc", "plain\ttext\nwith größe"]
    sheet = pl.DataFrame({"query": ["q\x1b", "2", "3", "4"], "model": "m", "prompt": texts, "answer": texts})
    write_sheet(path, sheet)
    rows = [*csv.DictReader(io.StringIO(path.read_text("utf-8"), newline=""))]
    assert [row["prompt"] for row in rows] == ["\ufffd[2Jred", "a\ufffd31mb", "\ufffdabc", texts[3]]
    assert rows[0]["query"] == "q\x1b"  # an id is what it is
    assert path.stat().st_mode & 0o777 == 0o600
