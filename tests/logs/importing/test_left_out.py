"""A bad file or sample among many is left out, counted and named. Answers without confidence."""

import json
import shutil
import zipfile
from pathlib import Path

import polars as pl
import pytest
from helpers.command_line import run

import rcjax
from rcjax.logs.errors import LogError
from rcjax.logs.importing.evaluations import ImportOptions, _find_files, import_evaluations
from rcjax.logs.importing.harnesses import DamageError, _read_inspect, _require_evaluation

FILES = Path(__file__).parent / "files"
EVAL = sorted((FILES / "inspect").glob("*.eval"))
LINES, *_ = (FILES / "lm_eval" / "org__toy-0.6").glob("samples_letters_2*.jsonl")
SUMS, *_ = (FILES / "lm_eval" / "org__toy-0.6").glob("samples_sums_*.jsonl")


def imported(*paths, **how):
    return import_evaluations(paths, ImportOptions(**how))


def aborted(path):
    """As Inspect leaves a run that was broken off before its first sample."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("_journal/start.json", json.dumps({"version": 2, "eval": {"task": "t", "model": "m"}}))


def test_a_line_that_cannot_be_read_is_left_out_and_named(tmp_path):
    rows = LINES.read_bytes().splitlines(keepends=True)
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"".join([*rows[:3], b'{"doc_id": 3, "resps"\n', *rows[4:]]))
    evaluations = imported(path)
    assert evaluations.frame.height == len(rows) - 1
    assert evaluations.damage.startswith("left out, as 1 cannot be read: bad.jsonl, line 4: is not as lm-eval")
    assert len(evaluations.unreadable) == 1


def test_a_log_without_a_model_is_refused():
    for head in ({"eval": {}}, {"eval": "m"}, []):
        with pytest.raises(DamageError, match=r"a\.json: no evaluation of a model"):
            _require_evaluation(head, "a.json")


def test_a_folder_with_an_aborted_run_in_it(tmp_path):
    for path in EVAL:
        shutil.copy(path, tmp_path)
    aborted(tmp_path / "aborted.eval")
    with pytest.warns(rcjax.logs.LeftOutWarning, match=r"left out, as 1 cannot be read: aborted.eval"):
        assert rcjax.logs.importing.read_evaluations(tmp_path).height == 16
    out = tmp_path / "log.csv"
    result = run("import", tmp_path, "--out", out, "--json")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: left out, as 1 cannot be read: aborted.eval: ")
    (told,) = json.loads(result.stdout)["unreadable"]
    assert told.startswith("aborted.eval: holds no samples")


def test_endings_in_capitals_are_those_of_the_formats(tmp_path):
    shutil.copy(FILES / "litellm" / "calls.jsonl", tmp_path / "CALLS.JSONL")
    (tmp_path / "BROKEN.EVAL").write_bytes(EVAL[0].read_bytes()[:100])
    assert {path.name for path in _find_files([tmp_path])} == {"BROKEN.EVAL", "CALLS.JSONL"}
    with pytest.raises(DamageError, match=r"BROKEN\.EVAL: cannot be read: .*zip"):
        [*_read_inspect(tmp_path / "BROKEN.EVAL", ImportOptions())]


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_a_table_that_is_an_array(ending, tmp_path):
    path = tmp_path / f"mine.{ending}"
    rows = [{"query": n, "model": m, "correct": n == 1, "confidence": 0.5, "cost": 1} for m in "ab" for n in (1, 2)]
    path.write_text(json.dumps(rows, indent=1))
    assert imported(path).frame["correct"].to_list() == [1, 0, 1, 0]
    path.write_text("[1, 2]")
    with pytest.raises(LogError, match=rf"mine.{ending}: is not an array of JSON objects"):
        imported(path)


def answers(tmp_path, **columns):
    rows = {"query": [1, 1, 2, 2], "model": ["a", "b"] * 2, "correct": [1, 1, 0, 1], "cost": [1.0, 3.0] * 2}
    path = tmp_path / "answers.csv"
    pl.DataFrame(rows | columns).write_csv(path)
    return path


def test_a_log_without_confidences_is_read_with_a_warning_if_it_has_answers(tmp_path):
    with pytest.warns(rcjax.logs.NoConfidenceWarning, match="no column logprob or confidence"):
        log = rcjax.read_log(answers(tmp_path, answer=["x", "x", "y", "z"]))
    assert log.logprob.tolist() == [[0.0, 0.0]] * 2
    assert log.answer.tolist() == [[0, 0], [0, 1]]
    for columns in ({}, {"answer": ["x"] * 4, "prob": [0.5] * 4}, {"answer": ["x"] * 4, "log_prob": [0.5] * 4}):
        with pytest.raises(LogError, match="no column logprob"):
            rcjax.read_log(answers(tmp_path, **columns))


def test_a_task_without_the_chosen_filter_is_named():
    """Its answers were left out without a word, and so was every answer if no task had the filter."""
    evaluations = imported(LINES, SUMS, scorer="number")
    assert {query.partition("/")[0] for query in evaluations.frame["query"]} == {"sums"}
    assert "has no metric or filter 'number'; there are acc, acc_norm, none" in evaluations.damage
    with pytest.raises(LogError, match="has no metric or filter 'other'; there are exact_match, first, number"):
        imported(SUMS, scorer="other")


def test_a_note_says_how_many_answers_have_another_confidence_than_most():
    """It read "8 it is the mean log-probability of the tokens"."""
    (note,) = [note for note in imported(FILES / "helm").notes if "no confidence" in note]
    assert note.endswith("(the files have only the mean log-probability of the tokens: 8)")
