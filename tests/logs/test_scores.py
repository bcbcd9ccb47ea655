"""Scores as labels: on any scale, as errors, beside labels from elsewhere, and what cannot be one."""

import numpy as np
import polars as pl
import pytest

from rcjax import LogError, read_log
from rcjax.logs.kept_sample import describe_kept_sample, read_kept_sample
from rcjax.logs.labels import label_sheet
from rcjax.policy.error_kind import Scores
from rcjax.tuning.certify import overlap

N = 96


def frame(seed=0, **columns):
    """A log of two models whose answers have scores in tenths, under the names of `columns`, made from them."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.3, 0.99, 2 * N)
    score = np.round(np.clip(confidence + rng.normal(0, 0.2, 2 * N), 0, 1), 1)
    table = {"query": np.repeat(np.arange(N), 2), "model": ["small", "large"] * N, "confidence": confidence}
    named = {name: make(score) for name, make in (columns or {"correct": lambda score: score}).items()}
    return pl.DataFrame(table | {"cost": [1e-5, 1e-3] * N} | named)


def test_a_score_is_the_same_however_it_is_written(tmp_path):
    plain = read_log(frame())
    assert plain.scores == Scores(1.0)
    assert plain.correct.dtype == plain.logprob.dtype
    frame(score=lambda score: 10 * score).write_ndjson(tmp_path / "ten.jsonl")
    others = {
        "ten": read_log(tmp_path / "ten.jsonl", score_max=10),
        "labels": read_log(frame(), labels=frame(correct=lambda score: 10 * score), score_max=10),
    }
    for name, log in others.items():
        assert np.allclose(log.correct, plain.correct, atol=1e-7), name
    assert others["ten"].digest == plain.digest
    assert others["ten"].scores == Scores(10.0)
    assert "lost score, as a share of the full score, 10" in others["ten"].describe()
    taken = others["ten"].take(np.arange(40)).select(["large"])
    assert taken.scores == Scores(10.0)
    assert taken.correct.dtype == plain.correct.dtype


def test_right_and_wrong_are_bool_however_they_are_written():
    right = read_log(frame(correct=lambda score: (score > 0.5).astype(int)))
    for made in (
        read_log(frame(correct=lambda score: (score > 0.5).astype(float))),
        read_log(frame(correct=lambda score: 10.0 * (score > 0.5)), score_max=10),
        read_log(frame(correct=lambda score: score > 0.5), score_max=10),
    ):
        assert made.scores is None
        assert made.correct.dtype == bool
        assert made.digest == right.digest


def test_scores_may_begin_late_be_partial_and_vote():
    late = frame(correct=lambda score: np.where(np.arange(2 * N) < 2 * N - 2, score > 0.5, 0.25))
    assert float(np.asarray(read_log(late).correct)[-1, 0]) == 0.25
    some = frame().with_columns(correct=pl.when(pl.col("query") % 3 == 0).then("correct"))
    with pytest.warns(UserWarning, match="are labelled"):
        partly = read_log(some)
    assert partly.scores == Scores()
    assert 0 < np.asarray(partly.correct)[partly.labelled].mean() < 1
    twice = [frame(seed).with_columns(sample=pl.lit(seed), answer=pl.lit("x")) for seed in range(3)]
    with pytest.warns(UserWarning, match="several answers"):
        voted = read_log(pl.concat(twice))
    assert np.allclose(voted.correct, read_log(frame(0)).correct)


def test_carried_queries_keep_their_scores():
    log = read_log(frame())
    kept = read_kept_sample(describe_kept_sample(log), "generation")
    assert kept.scores is not None
    assert np.array_equal(kept.correct, np.asarray(log.correct, "f4"))
    assert overlap(log, log).covers_log


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"correct": lambda score: 10 * score}, {}, "correct .* > 1: give true, false, 1, 0, or a score between"),
        ({"score": lambda score: 10 * score}, {}, "score .* > 1"),
        ({"correct": lambda score: 11 * score}, {"score_max": 10}, "> 10: give the score, from 0 to 10"),
        ({"correct": lambda score: score}, {"score_max": 0}, "score_max is 0.* positive number"),
    ],
)
def test_invalid_scores_are_refused(columns, options, words):
    with pytest.raises((LogError, ValueError), match=words):
        read_log(frame(**columns), **options)


def test_labels_with_several_scores_are_refused():
    labels = pl.concat([frame(), frame(correct=lambda score: np.clip(score + 0.1, 0, 1))])
    with pytest.raises(LogError, match="is labelled with several scores: give one label"):
        read_log(frame(), labels=labels)


def test_shares_of_one_are_not_taken_for_scores_out_of_ten():
    """Tuned on, every answer would have lost over nine tenths."""
    rows = [(query, model, 0.7, query % 11 / 10, 1e-5) for query in range(12) for model in ("small", "large")]
    table = pl.DataFrame(rows, ["query", "model", "confidence", "score", "cost"], orient="row")
    with pytest.raises(LogError, match=r"no score is above 1, .* said to be 10: leave out --score-max"):
        read_log(table, score_max=10)
    assert read_log(table).scores is not None


def test_a_log_with_scores_has_no_sheet():
    """A score of 0.7 was written as the label 0."""
    with pytest.raises(LogError, match="its labels are scores, and labels by hand are 1 or 0"):
        label_sheet(read_log(frame()), [], frame())
