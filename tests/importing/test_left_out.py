"""A bad file or sample among many is left out, counted and named; `strict` refuses it. Answers without confidence."""

import json
import shutil
import warnings
import zipfile
from pathlib import Path

import polars as pl
import pytest
from command_line import run
from misses import in_turn

import rcjax
from rcjax.importing.evaluations import How, import_evaluations
from rcjax.logs.errors import LogError

FILES = Path(__file__).parent / "files"
EVAL = sorted((FILES / "inspect").glob("*.eval"))
LINES, *_ = (FILES / "lm_eval" / "org__toy-0.6").glob("samples_letters_2*.jsonl")
SUMS, *_ = (FILES / "lm_eval" / "org__toy-0.6").glob("samples_sums_*.jsonl")


def imported(*paths, prices=None, **how):
    return import_evaluations(paths, How(**how), prices)


def aborted(path):
    """As Inspect leaves a run that was broken off before its first sample."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("_journal/start.json", json.dumps({"version": 2, "eval": {"task": "t", "model": "m"}}))


def without_line(source, number, text):
    rows = source.read_bytes().splitlines(keepends=True)
    rows[number] = text
    return b"".join(rows)


def damaged_results(path):
    content = json.loads((FILES / "promptfoo" / "results.json").read_text())
    content["results"]["results"][2] = {"provider": 5}
    path.write_text(json.dumps(content))


def damaged_run(folder):
    shutil.copytree(FILES / "helm" / "repeat", folder)
    content = json.loads((folder / "scenario_state.json").read_text())
    content["request_states"][1] = {"instance": None}
    (folder / "scenario_state.json").write_text(json.dumps(content))


def change_sample(path):
    content = json.loads(next((FILES / "inspect").glob("*.json")).read_text())
    content["samples"][0]["output"] = 5
    path.write_text(json.dumps(content))


#: By what is damaged: the file, how it is written, what is told, and how to read it.
DAMAGED = {
    "an aborted run": (
        "bad.eval",
        aborted,
        "1 file cannot be read",
        "bad.eval: holds no samples: was the run broken off",
        {},
    ),
    "an empty archive": ("bad.eval", lambda path: path.write_bytes(b""), "1 file", "bad.eval: the file is empty", {}),
    "half an archive": (
        "bad.eval",
        lambda path: path.write_bytes(EVAL[0].read_bytes()[:9000]),
        "1 file",
        "bad.eval: cannot be read",
        {},
    ),
    "a sample of an archive": (
        "bad.eval",
        lambda path: path.write_bytes(EVAL[0].read_bytes()[:500] + bytes(400) + EVAL[0].read_bytes()[900:]),
        "sample",
        "bad.eval, samples/",
        {},
    ),
    "a sample of a log": ("bad.json", change_sample, "1 sample", "is not as Inspect writes it", {"scorer": "includes"}),
    "a line": (
        "bad.jsonl",
        lambda path: path.write_bytes(without_line(LINES, 3, b'{"doc_id": 3, "resps"\n')),
        "1 sample",
        "line 4: is not as lm-eval writes it",
        {},
    ),
    "a result": ("bad.json", damaged_results, "1 sample", "result 3: is not as promptfoo writes it", {}),
    "a request": ("run", damaged_run, "1 sample", "request 2: is not as HELM writes it", {}),
    "a call": (
        "bad.jsonl",
        lambda path: path.write_bytes(without_line(FILES / "litellm" / "calls.jsonl", 1, b'{"model": "m"}\n')),
        "1 sample",
        "line 2: is not as LiteLLM writes it",
        {},
    ),
    "a span": (
        "bad.jsonl",
        lambda path: path.write_bytes((FILES / "otel" / "messages.jsonl").read_bytes() + b'{"resourceSpans": [5]}\n'),
        "1 sample",
        "is not as OpenTelemetry writes it",
        {},
    ),
    "a request of a batch": (
        "bad.jsonl",
        lambda path: path.write_bytes(without_line(FILES / "openai_batch" / "chat_toy-large.jsonl", 7, b"[5]\n")),
        "1 sample",
        "line 8, entry 1: is not as OpenAI writes it (no JSON object)",
        {},
    ),
}


def test_what_cannot_be_read_is_left_out_and_named(tmp_path):
    missed = {}
    for name, (file, write, number, words, how) in DAMAGED.items():
        path = tmp_path / file
        write(path)
        good = [EVAL[1]] if "file" in number else []
        try:
            evaluations = imported(path, *good, right_from=0.5, **how)
        except LogError as problem:
            missed[name] = problem
            continue
        if number not in evaluations.damage or words not in evaluations.damage or len(evaluations.unreadable) < 1:
            missed[name] = evaluations.damage
        with pytest.raises(LogError) as problem:
            imported(path, *good, right_from=0.5, strict=True, **how)
        if words not in str(problem.value):
            missed[name, "strict"] = problem.value
    assert missed == {}


def test_a_folder_with_an_aborted_run_in_it(tmp_path):
    for path in EVAL:
        shutil.copy(path, tmp_path)
    aborted(tmp_path / "aborted.eval")
    with pytest.warns(
        rcjax.logs.LeftOutWarning, match=r"1 file cannot be read, left out \(--strict refuses\): aborted.eval"
    ):
        assert rcjax.importing.read_evaluations(tmp_path).height == 16
    with pytest.raises(LogError, match=r"aborted.eval: holds no samples"):
        rcjax.importing.read_evaluations(tmp_path, strict=True)
    out = tmp_path / "log.csv"
    result = run("import", tmp_path, "--out", out, "--json")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: 1 file cannot be read, left out (--strict refuses): aborted.eval: ")
    (told,) = json.loads(result.stdout)["unreadable"]
    assert told.startswith("aborted.eval: holds no samples")
    assert run("import", tmp_path, "--out", out, "--strict").exit_code == 1


def test_a_choice_to_be_made_is_no_damage(tmp_path):
    """Several filters, or partial credit: every row has it, and to leave them all out would say nothing."""
    (sums,) = (FILES / "inspect").glob("*.json")
    with pytest.raises(LogError, match="has several scores"):
        imported(sums)


OLD = {"doc_id": 0, "doc": {}, "target": 0, "acc": 1.0, "acc_norm": 0.0}
CHOICE = {"arguments": [["Q", " a"], ["Q", " bb"]], "resps": [[[-1.0, False]], [[-2.0, False]]]}


def older_files(folder):
    """As lm-eval 0.4.0 to 0.4.2 wrote them: an array over many lines, without filters, the arguments in the name."""
    rows = [OLD | CHOICE | {"doc_id": number, "filtered_resps": [[-1.0, False], [-2.0, True]]} for number in range(3)]
    path = folder / "pretrained__org__small_arc_easy.jsonl"
    path.write_text(json.dumps(rows, indent=2))
    results = {"results": {"arc_easy": {}, "easy": {}}, "config": {"model_args": "pretrained=org/small,dtype=auto"}}
    (folder / "results.json").write_text(json.dumps(results))
    return path


def test_older_files_of_lm_eval(tmp_path):
    path = older_files(tmp_path)
    frame = imported(path).frame
    assert frame.select("query", "model", "correct").rows() == [(f"arc_easy/{n}", "small", 1) for n in range(3)]
    assert frame["logprob"].to_list() == pytest.approx([-0.3132616875182228] * 3)
    assert imported(path, scorer="acc_norm").frame["correct"].to_list() == [0] * 3
    assert imported(path, scorer="none").frame.height == 3


def test_a_reply_that_is_null(tmp_path):
    rows = [json.loads(line) for line in SUMS.read_text().splitlines()]
    asked = [row for row in rows if row["filter"] == rows[0]["filter"]]
    asked[0] |= {"resps": [[None]], "filtered_resps": [None]}
    for row in asked[1:]:
        row["resps"] = [row["resps"][0][:1]]
    folder = tmp_path / "org__small"
    folder.mkdir()
    path = folder / "samples_sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in asked))
    evaluations = imported(path)
    assert evaluations.damage is None
    assert evaluations.frame.height == len(asked)
    assert evaluations.frame["answer"].null_count() == 1


@in_turn("ending", ["json", "jsonl"])
def test_a_table_that_is_an_array(ending, tmp_path):
    path = tmp_path / f"mine.{ending}"
    rows = [{"query": n, "model": m, "correct": n == 1, "confidence": 0.5, "cost": 1} for m in "ab" for n in (1, 2)]
    path.write_text(json.dumps(rows, indent=1))
    assert imported(path).frame["correct"].to_list() == [1, 0, 1, 0]
    path.write_text("[1, 2]")
    with pytest.raises(LogError, match=rf"mine.{ending}: is no array of JSON objects"):
        imported(path)


def scores(tmp_path, *values):
    path = tmp_path / "scored.csv"
    rows = [f"{n},m,{value},0.5,1" for n, value in enumerate(values)]
    path.write_text("\n".join(["query,model,correct,confidence,cost", *rows]) + "\n")
    return path


@in_turn(
    ("values", "right_from", "right"),
    [
        ((1, 7, 10), 7, [0, 1, 1]),
        ((0, 55.5, 100), 60, [0, 0, 1]),
        (("-1", "0", "1"), 0, [0, 1, 1]),
        (("correct", "Incorrect", "pass"), None, [1, 0, 1]),
        (("fail", "right", "wrong"), None, [0, 1, 0]),
    ],
)
def test_scores_on_any_scale(values, right_from, right, tmp_path):
    assert imported(scores(tmp_path, *values), right_from=right_from).frame["correct"].to_list() == right
    out = tmp_path / "log.csv"
    if right_from is not None:
        with pytest.raises(LogError, match=r"on another scale than 0 to 1: .*--right-from 7"):
            imported(scores(tmp_path, *values))
        assert run("import", scores(tmp_path, *values), "--right-from", right_from, "--out", out).exit_code == 0
        assert pl.read_csv(out)["correct"].to_list() == right


def answers(tmp_path, **columns):
    rows = {"query": [1, 1, 2, 2], "model": ["a", "b"] * 2, "correct": [1, 1, 0, 1], "cost": [1.0, 3.0] * 2}
    path = tmp_path / "answers.csv"
    pl.DataFrame(rows | columns).write_csv(path)
    return path


def test_answers_without_a_confidence_are_a_log(tmp_path):
    path = answers(tmp_path, answer=["x", "x", "y", "z"])
    frame = imported(path).frame
    assert frame["logprob"].to_list() == [0.0] * 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log = rcjax.read_log(frame)
    assert log.answer.tolist() == [[0, 0], [0, 1]]


def test_a_log_itself_may_tell_no_confidence(tmp_path):
    with pytest.warns(rcjax.logs.NoConfidenceWarning, match="no column logprob or confidence"):
        log = rcjax.read_log(answers(tmp_path, answer=["x", "x", "y", "z"]))
    assert log.logprob.tolist() == [[0.0, 0.0]] * 2
    assert log.answer.tolist() == [[0, 0], [0, 1]]
    for columns in ({}, {"answer": ["x"] * 4, "prob": [0.5] * 4}, {"answer": ["x"] * 4, "log_prob": [0.5] * 4}):
        with pytest.raises(LogError, match="rename or add missing columns logprob"):
            rcjax.read_log(answers(tmp_path, **columns))
