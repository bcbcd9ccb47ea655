"""Many files become one log: names, duplicates, signals, money."""

import math
import warnings

import numpy as np
import polars as pl
import pytest

import rcjax
from rcjax.logs.errors import LogError
from rcjax.logs.importing.evaluations import ImportOptions, import_evaluations
from rcjax.logs.oddities import summarise_models

ROWS = {
    "id": [1, 2, 1, 2],
    "engine": ["a/small", "a/small", "b/large", "b/large"],
    "ok": ["yes", "no", "1", "0.0"],
    "confidence": [0.9, 0.4, 1.0, 0.0],
    "input_tokens": [100, 200, 100, 200],
    "output_tokens": [1, 1, 2, 2],
}
COLUMNS = {"query": "id", "model": "engine", "correct": "ok"}


@pytest.fixture
def write(tmp_path):
    def write(name="mine.csv", **changed):
        columns = {column: values for column, values in (ROWS | changed).items() if values is not None}
        pl.DataFrame(columns, strict=False).write_csv(tmp_path / name)
        return tmp_path / name

    return write


def read(*paths, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rcjax.logs.LeftOutWarning)
        return rcjax.logs.importing.read_evaluations(paths, **{"columns": COLUMNS, **how})


def test_many_files_are_one_log(write):
    half = {name: values[:2] for name, values in ROWS.items()}
    rest = {name: values[2:] for name, values in ROWS.items()}
    one, other = write("one.csv", **half), write("two.csv", **rest)
    assert read(one, other).equals(read(write()))
    with pytest.raises(LogError, match=r"one.csv, model small, query 1: was answered already in one.csv: leave one"):
        read(one, other, one)


def test_names_of_models(write):
    clash = write("clash.csv", engine=["a/x", "a/x", "b/x", "b/x"])
    assert read(clash)["model"].unique(maintain_order=True).to_list() == ["a/x", "b/x"]
    renamed = read(clash, rename={"b/x": "strong"})
    assert renamed["model"].unique(maintain_order=True).to_list() == ["x", "strong"]
    assert read(write(), rename={"large": "big"})["model"].to_list()[2:] == ["big", "big"]
    with pytest.raises(LogError, match="rename x: names several models, a/x, b/x"):
        read(clash, rename={"x": "y"})
    with pytest.raises(LogError, match=r"rename lrge: names no model.*there are a/small, b/large"):
        read(write(), rename={"lrge": "y"})
    with pytest.raises(LogError, match=r"model small, query 1: was answered already in mine.csv"):
        read(write(), rename={"large": "small"})


def test_a_call_log_needs_no_import(tmp_path):
    path = tmp_path / "calls.jsonl"
    path.write_text('{"call_log": 1, "query": "q", "model": "m", "logprob": -1, "answer": "B", "cost": 1}\n')
    with pytest.raises(LogError, match=r"calls.jsonl: a call log needs no import: give it to rcjax tune"):
        read(path, columns={})


def test_names_that_differ_by_case_are_noted(write):
    half = {name: values[:2] for name, values in ROWS.items()}
    one, other = write("one.csv", **half), write("two.csv", **half | {"id": [3, 4], "engine": ["Small"] * 2})
    (note,) = [n for n in import_evaluations([one, other], ImportOptions(columns=COLUMNS)).notes if "two models" in n]
    assert note == "small and Small count as two models; if they are one model, give --rename Small=small"
    assert read(one, other, rename={"Small": "small"})["model"].to_list() == ["small"] * 4


GERMAN = """id;Engine;ok;p_true;logprob;Answer;input_tokens;output_tokens
1;a/s;Yes;0,5;-99;B;10;1
2;a/s;No;;-99;;10;1
"""


@pytest.fixture
def german(tmp_path):
    def write(old="", new=""):
        (tmp_path / "german.csv").write_text(GERMAN.replace(old, new, 1) if old else GERMAN)
        (tmp_path / "plain.csv").write_text("query,model,correct,confidence,cost\n3,s,,0.5,7\n")
        return tmp_path / "german.csv"

    return write


NAMES = {"query": "id", "model": "Engine", "correct": "ok", "confidence": "p_true"}


def test_a_table_is_read_as_a_log_is(german):
    """Decimal commas, words, empty cells; the named column, always; a file without it by our name."""
    path = german()
    rows = read(path, columns=NAMES).select("query", "correct", "logprob", "answer").rows()
    assert rows == [("1", 1, math.log(0.5), "B"), ("2", 0, None, None)]
    both = read(path, path.with_name("plain.csv"), columns=NAMES, rename={"a/s": "s"})
    assert both.select("query", "correct").rows() == [("1", 1), ("2", 0), ("3", None)]
    unlabelled = german("Yes", "")
    unlabelled.write_text(unlabelled.read_text().replace("No", ""))
    assert read(unlabelled, columns=NAMES)["correct"].to_list() == [None] * 2


@pytest.mark.parametrize(
    ("columns", "change", "message"),
    [
        ({"logprob": "p_true"}, (), "line 2, model a/s: logprob 0,5 > 0: .* name the column confidence"),
        ({"confidence": "p_tru"}, (), "--column confidence=p_tru: no table has this column .did you mean 'p_true'"),
        ({}, ("p_true;logprob", "prob;x"), "no column logprob or confidence .did you mean 'prob' for 'confidence'.*"),
        (
            {},
            (";ok;", ";okk;"),
            "no column ok.*: name it, with --column correct=…, or add it without labels, where .* none yet; there",
        ),
        ({}, (";10;", ";1.234;"), "line 2, model a/s: input_tokens 1.234 is not a whole number"),
    ],
)
def test_a_table_is_refused_as_a_log_is(columns, change, message, german):
    path = german(*change)
    named = {own: name for own, name in NAMES.items() if own != "confidence"}
    with pytest.raises(LogError, match=message):
        read(path, columns=named | columns)


def test_columns_of_an_earlier_import_count_for_nothing(german):
    options = ImportOptions(columns=NAMES)
    import_evaluations([german()], options)
    with pytest.raises(LogError, match="--column query=id: no table has this column"):
        import_evaluations([german().with_name("plain.csv")], options)


def test_samples_make_the_votes_that_their_answers_have(write):
    """Each answer has a row, and whoever reads the log counts how many agree; every sample is paid for."""
    rows = {"id": [1, 1, 1, 2, 2, 2], "ok": [1, 0, 1, 0, 0, 1], "answer": ["a", "b", "A ", "x", "y", "y"]}
    both = {name: values * 2 for name, values in rows.items()}
    both |= {"engine": ["m"] * 6 + ["n"] * 6, "sample": [1, 2, 3] * 4, "confidence": None}
    both |= {"input_tokens": [10] * 12, "output_tokens": [1] * 12}
    apart = read(write(**both))
    assert apart["sample"].to_list() == [1, 2, 3] * 4
    assert apart["answer"].to_list() == [answer.strip() for answer in both["answer"]]
    assert apart["correct"].to_list() == both["ok"]
    assert apart["logprob"].to_list() == [0.0] * 12  # one answer by itself tells nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rcjax.logs.LeftOutWarning)
        votes = rcjax.read_log(apart, prices={"m": (1, 1), "n": (2, 2)})
    assert np.asarray(votes.correct).tolist() == [[True, True], [False, False]]
    np.testing.assert_allclose(votes.logprob, [[math.log(2 / 3)] * 2] * 2, rtol=1e-6)
    np.testing.assert_allclose(votes.query_cost, [[33e-6, 66e-6]] * 2, rtol=1e-6)
    sure = read(write(**both | {"confidence": [0.5, 0.6, 0.7] * 4}))
    assert sure["logprob"].to_list() == pytest.approx([math.log(p) for p in [0.5, 0.6, 0.7] * 4])


def test_few_repeated_answers_are_left_out_and_counted(write):
    repeated = write(id=[1, 1, 2, 3], engine=["m"] * 4, sample=[2, 1, 1, 1])
    with pytest.warns(rcjax.logs.LeftOutWarning, match="1 answer left out: 1 repeated: the query has"):
        frame = rcjax.logs.importing.read_evaluations(repeated, columns=COLUMNS)
    assert frame["correct"].to_list() == [0, 1, 0]
    assert "sample" not in frame.columns


def test_a_model_without_confidence_is_refused_with_advice(write):
    with pytest.raises(LogError, match=r"model small: no confidence can be read .* log-probabilities .*epochs"):
        read(write(confidence=None))


def test_tokens_that_were_not_counted(write):
    bare = write(input_tokens=None, output_tokens=None)
    with pytest.raises(LogError, match=r"neither costs nor tokens.* a column cost"):
        read(bare)


def test_costs_of_some_models_are_kept(write):
    """They were dropped, and the files were said to have none."""
    read_all = import_evaluations([write(cost=[0.5, 0.25, None, None])], ImportOptions(columns=COLUMNS))
    assert read_all.frame["cost"].to_list() == [0.5, 0.25, None, None]
    assert "the files have no costs of large: tune with --prices" in read_all.notes
    assert [model["cost"] for model in summarise_models(read_all.frame)["models"]] == [0.375, None]
    with pytest.raises(LogError, match="cost is missing"):
        rcjax.read_log(read_all.frame)
    with pytest.warns(rcjax.logs.PricesWarning, match="as dear as the log says: small"):
        log = rcjax.read_log(read_all.frame, prices={"large": (5.0, 5.0)})
    assert log.cost.tolist() == pytest.approx([152 * 5e-6, 0.375])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"format": "xml"}, "format 'xml': is unknown: choose inspect, lm-eval, helm, promptfoo, litellm, openai"),
        ({"columns": {"right": "ok"}}, "column right: is unknown"),
        ({"columns": COLUMNS | {"correct": "okay"}}, "no column okay"),
        ({"format": "helm"}, "mine.csv: cannot be read"),
    ],
)
def test_unknown_options_are_refused(how, message, write):
    with pytest.raises(LogError) as problem:
        read(write(), **how)
    assert message in str(problem.value)


ANSWERS = {"answer": ["Paris", "Lyon", " paris. ", None]}


def test_imported_answers_are_kept_and_compared(write):
    frame = read(write(**ANSWERS))
    assert frame["answer"].to_list() == ["Paris", "Lyon", "paris.", None]
    log = rcjax.read_log(frame, prices={"small": (1.0, 1.0), "large": (5.0, 5.0)})
    assert log.answer is not None
    assert np.asarray(log.answer).tolist() == [[0, 0], [0, -1]]
    assert "answer" not in read(write()).columns  # where files tell none
    two = import_evaluations(
        [write(answer=["[invalid]", "Lyon", "[Invalid]", "[none]"])], ImportOptions(columns=COLUMNS)
    )
    assert two.frame["answer"].to_list() == [None, "Lyon", None, None]
    assert [note[:10] for note in two.notes if "[" in note] == ["1 answer o", "2 answers "]
