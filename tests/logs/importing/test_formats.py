"""Files that the programs themselves wrote (`README.md` beside): what is imported is what they report."""

import json
import math
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rcjax.logs.errors import LogError
from rcjax.logs.importing import harnesses
from rcjax.logs.importing.evaluations import ImportOptions, detect_format, import_evaluations

FILES = Path(__file__).parent / "files"
EVAL = sorted((FILES / "inspect").glob("*.eval"))
(SUMS,) = (FILES / "inspect").glob("*.json")
PROMPTFOO = FILES / "promptfoo" / "results.json"


def imported(*paths, **how):
    return import_evaluations(paths, ImportOptions(**how))


def by_query(frame, model=None):
    """The rows as dictionaries, by the query."""
    rows = frame if model is None else frame.filter(pl.col("model") == model)
    return {row["query"]: row for row in rows.iter_rows(named=True)}


WRITTEN = {
    "inspect": [*EVAL, SUMS],
    "lm-eval": (FILES / "lm_eval").rglob("samples_*"),
    "helm": (FILES / "helm").rglob("scenario_state.json"),
    "promptfoo": [PROMPTFOO],
    "litellm": (FILES / "litellm").glob("calls.*"),
    "openai-batch": (FILES / "openai_batch").iterdir(),
    "table": (FILES / "wide").iterdir(),  # unless --wide
}


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in WRITTEN.items() for path in paths])
def test_a_format_is_recognised_by_its_content(name, path):
    assert detect_format(path).name == name


@pytest.mark.parametrize("path", EVAL, ids=lambda path: path.stem)
def test_inspect_choices(path):
    archive = harnesses.zipfile.ZipFile(path)
    header = json.loads(archive.read("header.json"))
    frame = imported(path).frame
    assert frame["model"].unique().to_list() == [header["eval"]["model"].rpartition("/")[2]]
    assert frame["correct"].mean() == pytest.approx(header["results"]["scores"][0]["metrics"]["accuracy"]["value"])
    samples = [json.loads(archive.read(name)) for name in archive.namelist() if name.startswith("samples/")]
    rows = by_query(frame)
    assert len(rows) == len(samples) == 8
    for sample in samples:
        row = rows[f"letters/{sample['id']}"]
        assert row["correct"] == (sample["scores"]["choice"]["value"] == "C")
        token = sample["output"]["choices"][0]["logprobs"]["content"][-1]
        assert row["logprob"] == pytest.approx(token["logprob"])
        assert (row["input_tokens"], row["output_tokens"]) == (50, 3)
        assert row["seconds"] == sample["output"]["time"]
        assert row["answer"] == sample["scores"]["choice"]["answer"]


def test_inspect_without_zstandard(monkeypatch, tmp_path):
    """Python's own `zipfile` lists such an archive, but cannot read it before 3.14."""

    class Old(zipfile.ZipFile):
        def read(self, *_, **__):
            raise NotImplementedError("That compression method is not supported")

    monkeypatch.setattr(harnesses.zipfile, "ZipFile", Old)
    with pytest.raises(LogError, match=r"Zstandard: pip install .*\[import\]'"):
        imported(EVAL[0])


def test_inspect_epochs_are_samples():
    evaluations = imported(SUMS, scorer="includes")
    samples = [sample for sample in json.loads(SUMS.read_text())["samples"] if not sample.get("error")]
    rows = {(row["query"], row["sample"]): row for row in evaluations.frame.iter_rows(named=True)}
    assert {*rows} == {(f"sums/{sample['id']}", sample["epoch"]) for sample in samples}
    for sample in samples:
        row, score = rows[f"sums/{sample['id']}", sample["epoch"]], sample["scores"]["includes"]
        assert row["answer"] == score["answer"]
        assert row["correct"] == (score["value"] == "C")
        assert (row["input_tokens"], row["output_tokens"]) == (25, 4)  # the grader took 500 and 50 a time
    assert "3 answers left out: 3 with an error" in evaluations.notes
    assert any("small answered each query several times: each answer has a row" in note for note in evaluations.notes)


def test_inspect_scores_that_must_be_chosen():
    with pytest.raises(LogError, match=r"sample 1, epoch 1: has several scores, includes, strange: choose one"):
        imported(SUMS)
    with pytest.raises(LogError, match=r"has no score 'wit'; there are includes, strange"):
        imported(SUMS, scorer="wit")
    evaluations = imported(SUMS, scorer="strange")
    assert by_query(evaluations.frame)["sums/1"]["score"] == 0.5
    assert "sums/2" not in by_query(evaluations.frame)  # NaN is no score
    assert any("without a score" in note for note in evaluations.notes)


def results_of(folder):
    (path,) = folder.glob("results_*.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize("folder", sorted((FILES / "lm_eval").iterdir()), ids=lambda path: path.name)
@pytest.mark.parametrize("task", ["letters", "letters_mi"])
def test_lm_eval_choices(folder, task):
    results = results_of(folder)
    (path,) = folder.glob(f"samples_{task}_2*.jsonl")
    evaluations = imported(path)
    assert evaluations.frame["correct"].mean() == pytest.approx(results["results"][task]["acc,none"])
    assert evaluations.frame["model"].unique().to_list() == [results["model_name"].partition("/")[2]]
    sent = [len(json.loads(line)["arguments"]["gen_args_0"]["arg_0"]) / 4 for line in path.read_text().splitlines()]
    assert evaluations.frame["input_tokens"].to_list() == [*map(round, sent)]
    assert "the files have no token counts of 8 answers: they are estimated, 4 characters each" in evaluations.notes


@pytest.mark.parametrize("folder", sorted((FILES / "lm_eval").iterdir()), ids=lambda path: path.name)
def test_lm_eval_texts(folder):
    (path,) = folder.glob("samples_sums_*.jsonl")
    with pytest.raises(LogError, match=r"line 9: each document stands there for several filters, first, number"):
        imported(path)
    for scorer in ("first", "number"):
        frame = imported(path, scorer=scorer).frame
        assert frame["correct"].mean() == pytest.approx(results_of(folder)["results"]["sums"][f"exact_match,{scorer}"])
        rows = by_query(frame)
        for line in path.read_text().splitlines():
            document = json.loads(line)
            if document["filter"] == scorer:
                texts, answer = document["resps"][0], document["filtered_resps"][0]
                row = rows[f"sums/{document['doc_id']}"]
                assert math.exp(row["logprob"]) == pytest.approx(texts.count(answer) / 3)
                assert row["answer"] == " ".join(answer.split())


def test_lm_eval_without_results_is_named_by_its_folder(tmp_path):
    folder = tmp_path / "org__other"
    folder.mkdir()
    (path,) = (FILES / "lm_eval" / "org__toy-0.6").glob("samples_letters_2*.jsonl")
    (folder / path.name).write_bytes(path.read_bytes())
    assert imported(folder).frame["model"].unique().to_list() == ["other"]
    guess = f"other is the name of a folder, as no results_*.json beside {path.name} names the model: if it is another"
    assert any(note.startswith(guess) for note in imported(folder).notes)
    renamed = import_evaluations([folder], ImportOptions(rename={"other": "toy"}))
    assert not any("folder" in note for note in (*renamed.notes, *imported(path).notes))


@pytest.mark.parametrize("run", ["letters", "repeat"])
def test_helm(run):
    folder = FILES / "helm" / run
    frame = imported(folder).frame
    stats = json.loads((folder / "stats.json").read_text())
    plain, perturbed = (
        frame.filter(pl.col("query").str.ends_with("/lowercase") == lower)["correct"].mean() for lower in (False, True)
    )
    for stat in stats:
        perturbation = stat["name"].get("perturbation")
        if perturbation is None:
            assert plain == pytest.approx(stat["mean"])
        elif perturbation["name"] == "lowercase" and perturbation["computed_on"] == "perturbed":
            assert perturbed == pytest.approx(stat["mean"])
    states = json.loads((folder / "scenario_state.json").read_text())["request_states"]
    assert frame.height == len(states) == (16 if run == "letters" else 8)
    logprobs = sorted(state["result"]["completions"][0]["logprob"] for state in states)
    assert sorted(frame["logprob"]) == pytest.approx(logprobs)
    assert frame["answer"].to_list() == [state["result"]["completions"][0]["text"].strip() for state in states]
    assert frame["output_tokens"].to_list() == [1.0] * frame.height
    assert frame["seconds"].to_list() == [state["result"]["request_time"] for state in states]


def test_promptfoo():
    results = json.loads(PROMPTFOO.read_text())["results"]
    evaluations = imported(PROMPTFOO)
    assert evaluations.frame["correct"].sum() == results["stats"]["successes"]
    assert "1 answer left out: 1 with an error" in evaluations.notes
    small = evaluations.frame.filter(pl.col("model") == "toy-small")
    assert small.height == 7
    assert small["cost"].to_list() == [1e-5] * 7
    readable_prompt = [
        row for row in results["results"] if row["provider"]["label"] == "toy-small" and row["failureReason"] != 2
    ]
    for row, result in zip(small.iter_rows(named=True), readable_prompt, strict=True):
        assert row["logprob"] == pytest.approx(np.mean(result["response"]["logProbs"]))
        assert row["correct"] == result["success"]
    assert not any("What is" in str(value) for row in evaluations.frame.iter_rows() for value in row)


def test_an_extracted_answer_is_a_key(tmp_path):
    """A service has the reply alone; a letter it can read."""
    content = json.loads(SUMS.read_text())
    for sample in content["samples"]:
        sample["output"]["completion"] = f"Let me see. It is {sample['output']['completion']}, I think."
    path = tmp_path / "long.json"
    path.write_text(json.dumps(content))
    evaluations, short = imported(path, scorer="includes"), imported(SUMS, scorer="includes").frame
    assert "answer" not in evaluations.frame.columns
    assert evaluations.frame["answer_key"].to_list() == short["answer"].to_list()
    assert any("rcjax.Cascade(…, signal=…)" in note for note in evaluations.notes)
