"""Labels of some answers only, verdicts of judges, and what is read, kept and said of both."""

import warnings

import numpy as np
import polars as pl
import pytest
from helpers.log_samples import assert_same, refusal, write

from rcjax.logs import LeftOutWarning, UnlabelledWarning, read_log

QUERIES = 8


def table(**columns) -> pl.DataFrame:
    """Eight queries to two models; of the first four queries both answers have a label."""
    models = ["small", "large"] * QUERIES
    rows = {"query": np.repeat(range(QUERIES), 2), "model": models, "cost": [1.0, 3.0] * QUERIES}
    rows |= {"logprob": -np.linspace(0.1, 2, 2 * QUERIES), "correct": [1, 1, 0, 1, 0, 0, 1, 1] + [None] * QUERIES}
    return pl.DataFrame(rows | columns)


def quiet(source, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnlabelledWarning)
        return read_log(source, **options)


def test_answers_without_a_label_are_kept():
    with pytest.warns(UnlabelledWarning, match=r"^polars\.DataFrame: 4 of 8 queries are labelled$"):
        log = read_log(table())
    assert log.n_queries == QUERIES
    assert np.asarray(log.answered).all()
    assert log.labelled.tolist() == [[True] * 2] * 4 + [[False] * 2] * 4
    assert np.asarray(log.correct)[:4].tolist() == [[True, True], [False, True], [False, False], [True, True]]
    assert not np.asarray(log.correct)[4:].any()
    assert log.hand_labels is not None
    assert log.hand_labels.judges == ()
    assert log.hand_labels.judged.shape == (QUERIES, 2, 0)


def test_verdicts_of_judges_are_read_beside_labels():
    verdicts = [None, *np.linspace(0, 1, 2 * QUERIES - 1)]
    truth = pl.Series([True, False] * QUERIES)
    log = quiet(table(judged_b=verdicts, judged=truth, judged_empty=[None] * 16))
    assert log.hand_labels is not None
    assert log.hand_labels.judges == ("judged_b", "judged")  # one that says nothing is left out
    np.testing.assert_allclose(log.hand_labels.judged[..., 0], np.array(verdicts, float).reshape(-1, 2), rtol=1e-6)
    np.testing.assert_array_equal(log.hand_labels.judged[..., 1], [[1, 0]] * QUERIES)


def test_a_judge_without_the_column_correct_and_no_label_at_all(tmp_path):
    frame = table(judged=[1] * 16).drop("correct")
    for source in (frame, table(), table(correct=[None] * 16)):
        if "judged" not in source.columns:
            source = source.with_columns(correct=pl.lit(None))
        message = refusal(source)
        assert "no answer has a label: rcjax label draws the answers that are worth labelling by hand" in message
        log = read_log(source, unlabelled=True)
        assert not log.labelled.any()
    assert "No answer is labelled; judged judges all." in read_log(frame, unlabelled=True).describe()
    bare = table().drop("correct")
    assert "no column correct: rename or add it; rcjax label draws" in refusal(bare)
    assert not read_log(bare, unlabelled=True).labelled.any()


@pytest.mark.filterwarnings("ignore::rcjax.logs.IncompleteLogWarning", "ignore::rcjax.logs.UnlabelledWarning")
def test_a_model_needs_two_labels():
    one = [1] + [None] * 15
    with pytest.warns(LeftOutWarning, match="no answer has a label: large: label some"):
        assert "model small: 1 label, 2 are needed" in refusal(table(correct=one))
    three = pl.concat([table(), table(model="other", query=range(100, 116), correct=[None] * 16)])
    with pytest.warns(LeftOutWarning, match=r"left out, as no answer has a label: other"):
        log = read_log(three)
    assert log.models == ("small", "large")
    assert log.n_queries == QUERIES  # those of the third alone are left out with it
    named = refusal(three, models=["small", "other"])
    assert "model other: 0 labels, 2 are needed: label more, or leave it out" in named
    assert quiet(three, models=["small", "other"], unlabelled=True).models == ("small", "other")


def test_answers_missing_in_the_labels_stay_unlabelled():
    labels = pl.DataFrame({"query": [0, 0, 1, 1], "model": ["small", "large"] * 2, "correct": [0, 1, 1, 0]})
    bare = table().drop("correct")
    log = quiet(bare, labels=labels)
    assert log.labelled.sum() == 4
    assert np.asarray(log.correct)[:2].tolist() == [[False, True], [True, False]]
    # Of a column that is filled in part, the other labels stay.
    both = quiet(table(), labels=labels)
    assert both.labelled[:4].all()
    assert np.asarray(both.correct)[:4].tolist() == [[False, True], [True, False], [False, False], [True, True]]
    # A full one is replaced, and the warning says what it may be good for.
    with pytest.warns(UnlabelledWarning, match="2 of 8 queries are labelled; .* call it judged"):
        full = read_log(table(correct=[1] * 16), labels=labels)
    assert_same(full, log)


def test_a_log_without_labels_is_read_unlabelled_only(tmp_path):
    rows = ["0,small,1", "0,large,", "1,large,Wrong", "1,small,true", "2,large,no"]
    path = write(tmp_path, "query,model,correct", *rows, name="labels.csv")
    log = quiet(table().drop("correct"), labels=path)
    assert log.labelled[:3].tolist() == [[True, False], [True, True], [False, True]]
    assert np.asarray(log.correct)[:3].tolist() == [[True, False], [True, False], [False, False]]
    other = write(tmp_path, "query,model,correct", "0,small,1", "0,large,perhaps", name="words.csv")
    assert refusal(table(), labels=other).startswith(
        "words.csv, line 3, model large: correct perhaps is not clear: give"
    )
    empty = write(tmp_path, "query,model,correct", "0,small,", "0,large,", name="empty.csv")
    message = refusal(table(), labels=empty)
    assert message == "empty.csv: none of its 2 rows has a label: fill in the column correct"
    twice = write(tmp_path, "query,model,correct", "0,small,1", "0,small,0", "0,large,", name="twice.csv")
    assert "query 0, model small is labelled right and wrong" in refusal(table(), labels=twice)


def test_a_vote_has_the_label_of_its_answer():
    """Three samples of a model say A, B, B: the label is the second's."""
    rows = [
        {"query": query, "model": "small", "sample": sample, "answer": answer, "correct": right, "judged": verdict}
        for query in range(4)
        for sample, (answer, right, verdict) in enumerate([("A", None, 0.25), ("B", 1, 0.75), ("B", 0, 0.5)])
    ]
    rows += [{"query": query, "model": "large", "sample": 0, "answer": "B", "correct": query % 2} for query in range(4)]
    frame = pl.DataFrame([{"judged": None} | row | {"confidence": 0.5, "cost": 1.0} for row in rows])
    log = quiet(frame, unlabelled=True, models=["small", "large"])
    assert log.labelled.tolist() == [[True, True]] * 4
    assert np.asarray(log.correct)[:, 0].all()
    assert log.hand_labels is not None
    np.testing.assert_array_equal(log.hand_labels.judged[..., 0], [[0.75, np.nan]] * 4)
    labels = {"query": [0, 1] * 2, "model": ["small"] * 2 + ["large"] * 2, "sample": [1, 1, 0, 0]}
    labels = pl.DataFrame(labels | {"correct": [1, 0, 1, 0]})
    instead = quiet(frame, labels=labels, models=["small", "large"])
    assert instead.labelled[:, 0].tolist() == [True, True, False, False]
    assert np.asarray(instead.correct)[:2, 0].tolist() == [True, False]
    assert "labels by query and model do not tell samples apart" in refusal(frame, labels=labels.drop("sample"))
    assert "the log has no column sample" in refusal(table(), labels=labels)
