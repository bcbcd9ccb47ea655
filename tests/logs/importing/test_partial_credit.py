"""Scores between right and wrong stay scores, whatever program gave them; where there are none, nothing changes."""

import json
from pathlib import Path

import polars as pl
import pytest

from rcjax.logs.errors import LogError
from rcjax.logs.importing.evaluations import ImportOptions, import_evaluations, score_to_label
from rcjax.logs.oddities import summarise_models

FILES = Path(__file__).parent / "files"
SUMS, *_ = (FILES / "inspect").glob("*.json")
LETTERS = sorted((FILES / "inspect").glob("*.eval"))


def imported(*paths, **how):
    return import_evaluations(paths, ImportOptions(**how))


def lm_eval(folder):
    """Answers of two models to three documents, with their F1."""
    paths = []
    for model, scores in {"small": (1.0, 0.4, 0.0), "large": (1.0, 1.0, 0.25)}.items():
        rows = [
            {"doc_id": n, "em": float(f1 == 1), "f1": f1, "brier_score": 0.1, "filter": "none", "metrics": METRICS}
            | {"arguments": [["Q?", {}]], "resps": [["a"]], "filtered_resps": ["a"]}
            for n, f1 in enumerate(scores)
        ]
        paths.append(folder / f"org__{model}" / "samples_qa_2025-01-01T00-00-00.jsonl")
        paths[-1].parent.mkdir()
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    return paths


METRICS = ["em", "f1", "brier_score"]


def table(folder, *labels, name="correct"):
    path = folder / "mine.csv"
    rows = [f"{i // 2},{'ab'[i % 2]},{label},0.5,1" for i, label in enumerate(labels)]
    path.write_text("\n".join([f"query,model,{name},confidence,cost", *rows]) + "\n")
    return [path]


def wide(folder):
    path = folder / "wide.csv"
    path.write_text("sample_id,m,m|cost,m|answer,n,n|cost,n|answer\n1,0.25,1,x,1,2,y\n2,0,1,x,0.5,2,y\n")
    return [path]


#: By source: its files, how they are read, some of their scores, and what is said of them.
SOURCES = {
    "lm-eval": (lm_eval, {"scorer": "f1"}, {1.0, 0.4, 0.0, 0.25}, "scores from 0 to 1, by f1, are in the column score"),
    "inspect": (lambda _: [SUMS], {"scorer": "strange"}, {0.5}, "by strange, are in the column score"),
    "table": (lambda folder: table(folder, 1, 0.5, "no", 0.3), {}, {1.0, 0.5, 0.0, 0.3}, "scores from 0 to 1 are"),
    "score": (lambda folder: table(folder, 1, 0.3, name="score"), {}, {1.0, 0.3}, "scores from 0 to 1 are"),
    "scale": (lambda folder: table(folder, 10, 3), {"score_max": 10.0}, {1.0, 0.3}, "score, 10 as 1"),
    "wide": (wide, {"format": "wide"}, {0.25, 0.0, 1.0, 0.5}, "scores from 0 to 1 are"),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_scores_stay_scores(name, tmp_path):
    files, how, scores, words = SOURCES[name]
    evaluations = imported(*files(tmp_path), **how)
    frame = evaluations.frame
    assert "correct" not in frame.columns
    assert frame.schema["score"] == pl.Float64
    assert {*frame["score"].drop_nulls()} >= scores
    assert any(words in note for note in evaluations.notes), evaluations.notes
    assert summarise_models(frame)["scored"]


def test_right_and_wrong_stay_as_they_were(tmp_path):
    """By nature, by a threshold, or by rounding: nothing but 1 and 0."""
    files = lm_eval(tmp_path)
    cases = [
        (LETTERS, {}),
        (files, {}),
        (table(tmp_path, 1, 0, "yes", 0.9999999999), {}),
    ]
    for files, how in cases:
        evaluations = imported(*files, **how)
        assert evaluations.frame.schema["correct"] == pl.Int8
        assert {*evaluations.frame["correct"]} <= {0, 1}
        assert "score" not in evaluations.frame.columns
        assert "scored" not in summarise_models(evaluations.frame)
        assert not any("score" in note for note in evaluations.notes)


@pytest.mark.parametrize(
    ("labels", "how", "message"),
    [
        ((7, 0), {}, "on another scale than 0 to 1: give the full score, with --score-max 10 (score_max=10)"),
        ((0.5, -0.5), {}, "the score '-0.5' is on another scale than 0 to 1"),
        ((7, 12), {"score_max": 10.0}, "the score '12' is on another scale than 0 to 10"),
        ([0.5] * 20, {"score_max": 10.0}, "no score is above 1, and the full score is said to be 10"),
    ],
)
def test_another_scale_must_be_given(labels, how, message, tmp_path):
    with pytest.raises(LogError) as problem:
        imported(*table(tmp_path, *labels), **how)
    assert message in str(problem.value)


#: What was given, of how much, and the label.
LABELS = [
    (True, 10, 1.0), ("Incorrect", 1, 0.0), (7, 10, 0.7), ("0.3", 1, 0.3), (1 + 1e-12, 1, 1), (-1e-12, 1, 0),
    (None, 1, None), ("nan", 1, None),
]  # fmt: skip


@pytest.mark.parametrize(("score", "most", "label"), LABELS)
def test_scores_become_labels_or_are_refused(score, most, label):
    assert score_to_label(score, most, "here") == (None if label is None else pytest.approx(label, abs=0))


def test_separation_weights_answers_by_their_scores():
    rows = {"query": ["a", "b", "c"], "model": ["m"] * 3, "logprob": [-1.0, -0.5, -0.1]}
    (figures,) = summarise_models(pl.DataFrame(rows | {"score": [0.0, 0.5, 1.0]}))["models"]
    right, wrong = (0.0, 0.5, 1.0), (1.0, 0.5, 0.0)
    pairs = [
        (r * w, 1.0 if i > j else 0.5 if i == j else 0.0) for i, r in enumerate(right) for j, w in enumerate(wrong)
    ]
    assert figures["accuracy"] == 0.5
    assert figures["separation"] == pytest.approx(sum(p * won for p, won in pairs) / sum(p for p, _ in pairs))
