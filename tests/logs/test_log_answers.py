"""What a log tells of answers: which are equal, from its own columns and from a table beside it."""

import numpy as np
import polars as pl
import pytest

from rcjax.logs import read_log
from rcjax.logs.answers import equal_answers

MODELS = ("small", "medium", "large")
ANSWERS = [["1,000", "1000.0", "1001"], ["Paris", "paris.", "PARIS"], ["a", None, "A"], ["x", "y", "z"]]
CODES = [[0, 0, 2], [0, 0, 0], [0, -1, 0], [0, 1, 2]]


def table(answers=ANSWERS, column="answer"):
    n = len(ANSWERS)
    columns = {"query": np.repeat(np.arange(n), 3), "model": np.tile(MODELS, n), "correct": [1, 0, 1] * n}
    columns |= {"confidence": [0.4, 0.5, 0.6] * n, "cost": [1.0, 2.0, 3.0] * n}
    texts = [] if answers is None else [pl.Series(column, [text for row in answers for text in row])]
    return pl.DataFrame(columns).with_columns(texts)


def codes(log):
    return None if log.answer is None else np.asarray(log.answer).tolist()


def test_a_log_without_a_column_answer_has_no_answers():
    for frame in (table(None), table([[None] * 3] * 4), table([["a", None, None]] * 4)):
        log = read_log(frame)
        assert log.answer is None
        assert log.compare is None


@pytest.mark.parametrize(
    ("answers", "task", "expected"),
    [
        ([["B", "(b)", "B) Jupiter"]] * 4, "choice", [[0, 0, 0]] * 4),
        ([["B", "(b)", "B) Jupiter"]] * 4, "generation", [[0, 0, 2]] * 4),
    ],
)
def test_choices_are_compared_by_their_letters(answers, task, expected):
    log = read_log(table(answers), task=task)
    assert codes(log) == expected
    assert log.compare == {"choice": "choice", "generation": "text"}[task]


def test_an_answer_key_is_compared_in_place_of_the_answer():
    frame = table().with_columns(answer_key=pl.Series(["B", "c", "b"] * 4))
    log = read_log(frame)
    assert codes(log) == [[0, 1, 0]] * 4
    assert log.compare == "key"
    assert codes(read_log(frame.rename({"answer_key": "Answer Key"}))) == codes(log)


# -- a table beside the log


def beside(answers=ANSWERS, column="answer"):
    return table(answers, column).select("query", "model", column)


@pytest.mark.parametrize("column", ["answer", "answer_key"])
def test_answers_of_another_table_replace_those_of_the_log(tmp_path, column):
    path = tmp_path / "answers.csv"
    shuffled = beside(column=column).sample(fraction=1, shuffle=True, seed=1)
    shuffled.write_csv(path)
    for source in (path, str(path), shuffled):
        log = read_log(table(None), answers=source)
        assert log.compare == {"answer": "text", "answer_key": "key"}[column]
        assert codes(log) == CODES


def test_rows_missing_in_the_table_have_no_answer():
    log = read_log(table(None), answers=beside().filter(pl.col("query") != 1))
    assert codes(log) == [CODES[0], [-1, -1, -1], CODES[2], CODES[3]]


def test_answers_and_labels_of_other_tables_agree():
    labels = pl.DataFrame({"query": [0, 1, 2, 3], "answer": ["1,000", "Paris", "A", "z"]})
    frame = table().drop("correct")
    log = read_log(frame, labels=labels)
    assert codes(log) == CODES
    assert np.asarray(log.correct).tolist()[1] == [True, False, True]  # compared but for case and white space only


# -- codes, and what a policy keeps of them


def test_codes_are_the_first_model_of_each_answer():
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 4, (200, 5))
    found = equal_answers(hashes)
    for row, code in zip(hashes.tolist(), found.tolist(), strict=True):
        assert code == [row.index(value) if value else -1 for value in row]
