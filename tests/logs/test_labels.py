"""Labels: those that are the log's own answers, or name its queries in another way, are refused."""

import dataclasses
import shutil
import warnings

import polars as pl
import pytest
from helpers.call_samples import call
from helpers.log_samples import costed, refusal

from rcjax.logs import LeftOutWarning, LogError, read_log
from rcjax.serving.call_log import CallLog


def _call(query, model, answer, **changes):
    cost = {"small": 1e-5, "large": 2e-4}[model]
    return call(query, model, answer=answer, cost=cost, **changes)


@pytest.fixture
def path(tmp_path):
    """A call log of two models that answer differently."""
    path = tmp_path / "calls.jsonl"
    with CallLog(path) as log:
        for query in range(4):
            log.write(_call(query, "small", "B"))
            log.write(_call(query, "large", "C"))
    return path


def table(path):
    """The call log as a table without the marks of a call log."""
    return pl.read_ndjson(path).select("query", "model", "answer", "logprob", "cost")


def test_a_log_cannot_be_its_own_labels(path, tmp_path):
    linked = tmp_path / "linked.jsonl"
    linked.symlink_to(path)
    for labels in (path, str(path), linked):
        message = refusal(path, labels=labels)
        assert "the labels are the log itself" in message
        assert "give a table of query and answer (the right one), or of query, model and correct" in message
    frame = costed()
    assert "labels: the labels are the log itself" in refusal(frame, labels=frame)


def test_a_call_log_without_labels_is_no_table_of_labels(path, tmp_path):
    copy = tmp_path / "copy.jsonl"
    shutil.copy(path, copy)
    assert refusal(path, labels=copy).startswith("copy.jsonl: the labels are a call log, whose answers are the models'")
    judged = pl.read_ndjson(path).with_columns(correct=pl.col("model") == "large")
    assert read_log(path, labels=judged).correct.sum() == 4


@pytest.mark.parametrize("models", [["small", "large"], ["large"]])
def test_right_answers_by_models_of_the_log_are_refused(models, path):
    own = table(path).filter(pl.col("model").is_in(models))
    message = refusal(table(path), labels=own)
    assert f"its answers are those of {', '.join(sorted(models))}, whose answers are to be labelled" in message
    assert "leave out the column model" in message


def test_labels_of_other_names_are_refused_with_an_example(path):
    names = [f"{i}.0" for i in range(4)]
    by_answer = pl.DataFrame({"query": names, "answer": ["B"] * 4})
    by_model = pl.DataFrame({"query": names, "model": ["small"] * 4, "correct": [1] * 4})
    for labels in (by_answer, by_model):
        message = refusal(path, labels=labels)
        assert (
            "no row has a label in polars.DataFrame: the log has query '0' of model 'small', the table '0.0'" in message
        )


def test_a_table_without_the_columns_of_labels_is_told_both_forms(path, tmp_path):
    """It was advised to import the table as a log, and not told that query and answer would do."""
    labels = tmp_path / "labels.csv"
    labels.write_text("question;label\n0;1\n")
    assert refusal(path, labels=labels) == (
        "labels.csv: no columns query, model, correct (did you mean 'question' for 'query', 'label' for 'correct'?): "
        "give a table of query and answer (the right one), or of query, model and correct; found: question, label"
    )


def test_a_model_whose_calls_all_failed_is_named(tmp_path):
    path = tmp_path / "calls.jsonl"
    with CallLog(path) as log:
        for query in range(4):
            log.write(_call(query, "small", "B", error="no reply"))
            log.write(_call(query, "large", "C"))
            log.write(dataclasses.replace(_call(query, "large", "B"), model="other"))
    labels = pl.DataFrame({"query": list("0123"), "answer": list("BCBC")})
    with pytest.warns(LeftOutWarning, match="4 failed; that is all of small$"):
        assert set(read_log(path, labels=labels).models) == {"large", "other"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftOutWarning)
        with pytest.raises(LogError, match=r"calls\.jsonl, model small: no row can be used: its calls failed"):
            read_log(path, labels=labels, models=["small", "large"])


def test_labels_that_equal_no_answer_are_refused_with_an_example(path):
    labels = pl.DataFrame({"query": range(4), "answer": ["Billing"] * 4})
    message = refusal(path, labels=labels)
    assert message.endswith(
        "no label equals any answer (query 0: label billing, answer b): write labels and answers alike"
    )
    assert read_log(path, labels=labels.with_columns(answer=pl.Series(["B", "Billing", "x", "y"]))).correct.sum() == 1
    numbers = table(path).with_columns(answer=pl.lit("4"))
    right = numbers.with_columns(pl.col("query").cast(int)).group_by("query").agg(answer=pl.lit(4))
    assert read_log(numbers, labels=right.head(3)).correct.sum() == 6


def test_names_of_queries_agree_in_any_unicode_form(tmp_path):
    """And whatever blanks stand around it."""
    path = tmp_path / "log.csv"
    path.write_text("query,model,logprob,cost\n" + "".join(f"caf\xe9{n},{m},-1,1\n" for n in (1, 2) for m in "ab"))
    queries, models = [f" cafe\u0301{n}" for n in (1, 1, 2, 2)], ["a", "b"] * 2
    labels = pl.DataFrame({"query": queries, "model": models, "correct": [1, 0, 0, 1]})
    assert read_log(path, labels=labels).correct.tolist() == [[True, False], [False, True]]
