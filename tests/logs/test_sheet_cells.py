"""Tables for spreadsheets: no cell is a formula, and each comes back as it was, however the table is saved."""

import csv
import io

import pytest
from hypothesis import given, settings, strategies as st
from misses import in_turn

import rcjax
from rcjax.logs.errors import LogError
from rcjax.logs.label_sheet import AnswerKey, LabelSheet, Texts, missing_answers, read_sheet
from rcjax.logs.sheet_cells import plain_cell, read_table, safe_cell, write_table

FORMULAS = ["=1+1", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1+1", '=HYPERLINK("x")']
TEXTS = [*FORMULAS, *(f"'{text}" for text in FORMULAS), "'tis", "-5", "+3,5", "50 %", "a\rb", "a\r\nb\n", "\0", '"', ""]
#: How a spreadsheet may save a table: its separator and its encoding.
SAVED = [(",", "utf-8"), (";", "utf-8-sig"), ("\t", "utf-16"), (",", "utf-16"), (";", "utf-16")]


def saved(path, separator, encoding):
    """Have a table written anew as a spreadsheet does."""
    rows = list(csv.reader(io.StringIO(path.read_bytes().decode(), newline="")))
    content = io.StringIO()
    csv.writer(content, delimiter=separator).writerows(rows)
    path.write_bytes(content.getvalue().encode(encoding))


@given(st.text(max_size=12) | st.text("'=+-@\t\r\n 1,%", max_size=6))
@settings(max_examples=300)
def test_a_cell_comes_back(text):
    assert plain_cell(safe_cell(text)) == text


def test_no_cell_is_a_formula_and_all_come_back(tmp_path):
    """Answers that began with =, + or @ ran as formulas."""
    path = tmp_path / "table.csv"
    write_table(path, [["id", "text"], *(["x", text] for text in TEXTS)])
    written = list(csv.reader(io.StringIO(path.read_bytes().decode(), newline="")))
    assert not [row for row in written if row[1].lstrip()[:1] in {*"=+@＝"} and row[1] not in ("+3,5",)]
    for separator, encoding in SAVED:
        write_table(path, [["id", "text"], *(["x", text] for text in TEXTS)])
        saved(path, separator, encoding)
        assert [row[1] for row in read_table(path, ("id", "text"))[1:]] == TEXTS


def test_half_a_pair_is_no_crash(tmp_path):
    write_table(tmp_path / "table.csv", [["a \ud800 b"]])
    assert read_table(tmp_path / "table.csv", ()) == [["a \ufffd b"]]


@in_turn("content", [b"\xff\xfe\x00", b'id,correct\n"a', b"\xff\xff"])
def test_what_is_no_table(content, tmp_path):
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(LogError, match=r"table\.csv"):
        read_table(tmp_path / "table.csv", ("id",))


def sheet(path, texts, labels=None):
    rows = [(AnswerKey(text or "none", "=m"), Texts("?", "", text), labels, 0.5) for text in texts]
    return LabelSheet.of(path, rows)


@in_turn(("separator", "encoding"), SAVED)
def test_a_sheet_of_labels_however_it_is_saved(separator, encoding, tmp_path):
    path, texts = tmp_path / "to_label.csv", [text for text in TEXTS if text == text.strip()]
    sheet(path, texts).write()
    saved(path, separator, encoding)
    back = read_sheet(path)
    assert [back.texts(place).answer for place in range(len(texts))] == texts
    back.set_label(0, True)
    assert read_sheet(path).labels == [True, *[None] * (len(texts) - 1)]
    assert read_sheet(path).rows == back.rows


def test_labels_find_their_answers_behind_the_apostrophe(tmp_path):
    names = ["=1", "@a", "-x", "'=y", "plain", "-7"]
    log = tmp_path / "log.csv"
    head = "query,model,logprob,cost,correct\n"
    log.write_text(head + "".join(f"{name},{model},-0.5,1,\n" for name in names for model in ("=m", "n")))
    rows = [(AnswerKey(name, model), Texts(), i % 2 == 0, 1.0) for i, name in enumerate(names) for model in ("=m", "n")]
    LabelSheet.of(tmp_path / "labels.csv", rows).write()
    data = rcjax.read_log(log, labels=tmp_path / "labels.csv", task="choice")
    assert data.labelled.all()
    assert data.queries == tuple(names)


def test_a_sheet_of_another_log_is_told(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("query,model,logprob,cost,answer\n" + "".join(f"{i},m,-0.5,1,said {i}\n" for i in range(4)))
    out = tmp_path / "out.csv"

    def of(*answers, model="m"):
        rows = [(AnswerKey(query, model), Texts("?", "", text), None, 0.5) for query, text in answers]
        LabelSheet.of(out, rows).write()
        return read_sheet(out)

    assert missing_answers(of(("0", "said 0"), ("3", "said  3")), log) == 0
    assert missing_answers(of(("0", "said 0"), ("9", "said 9")), log) == 1
    with pytest.raises(LogError, match=r"out\.csv, row 2: query 3, model m answers 'said 3' in the log, not 'no'"):
        missing_answers(of(("0", "said 0"), ("3", "no")), log)
    with pytest.raises(LogError, match="the log has none of its answers: it is the table of another log"):
        missing_answers(of(("0", "said 0"), model="other"), log)
