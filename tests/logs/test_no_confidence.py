"""Answers without a confidence: they count, as the least sure, in logs, fits, policies and replays."""

import dataclasses
import json
import math

import jax
import numpy as np
import polars as pl
import pytest

import rcjax
from rcjax.logs import LogError, NoConfidenceWarning
from rcjax.logs.kept_sample import describe_kept_sample, read_kept_sample
from rcjax.model.calibrated_models import fit_calibrated
from rcjax.model.calibration import calibrate_rows
from rcjax.policy.decisions import NO_CONFIDENCE

N = 384


def rows(unread_right=0.1, seed=0, share=0.12):
    """A table of two models; of the small one some answers have no confidence, so many of which are right."""
    random = np.random.default_rng(seed)
    confidence = random.uniform(0.3, 0.98, (N, 2))
    right = random.random((N, 2)) < confidence ** (1, 0.3)
    unread = random.random(N) < share
    right[unread, 0] = np.arange(unread.sum()) < round(unread_right * unread.sum())
    return pl.DataFrame(
        {
            "query": np.repeat(np.arange(N), 2),
            "model": ["small", "large"] * N,
            "confidence": [None if unread[q] and not j else confidence[q, j] for q in range(N) for j in range(2)],
            "correct": right.ravel(),
            "cost": [1e-5, 2e-4] * N,
        },
        schema_overrides={"confidence": pl.Float64},
    )


def read(table):
    with pytest.warns(NoConfidenceWarning, match="no confidence in"):
        return rcjax.read_log(table)


@pytest.fixture(scope="module")
def log():
    return read(rows())


def unread(log):
    return np.asarray(log.logprob)[:, 0] == NO_CONFIDENCE


def test_answers_without_a_confidence_are_kept_and_counted(log, tmp_path):
    number, right = int(unread(log).sum()), int(np.asarray(log.correct)[unread(log), 0].sum())
    said = f"no confidence in {number} answers of small (right: {right} of {number})"
    assert said.capitalize() in log.describe()
    assert log.complete.all()
    kept = read_kept_sample(describe_kept_sample(log), "generation")
    assert int(unread(kept).sum()) == number
    table = rows()
    table.write_csv(tmp_path / "a.csv")
    table.write_ndjson(tmp_path / "b.jsonl")
    by_log = table.with_columns(logprob=pl.col("confidence").log()).drop("confidence")
    frames = [
        tmp_path / "a.csv",
        tmp_path / "b.jsonl",
        table.to_pandas(),
        by_log,
        by_log.with_columns(pl.col("logprob").fill_null(math.nan)),
    ]
    for other in map(read, frames):
        assert other.digest == log.digest
    with pytest.raises(LogError, match=r"model small: none of its 384 answers has a confidence: fill in logprob or"):
        rcjax.read_log(table.with_columns(confidence=pl.when(pl.col("model") == "large").then(pl.col("confidence"))))
    with pytest.raises(LogError, match="divide percentages by 100"):
        rcjax.read_log(table.with_columns(pl.col("confidence") * 100))


@pytest.mark.thorough
@pytest.mark.parametrize("right", [0.1, 0.9])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_confidence_is_calibrated_to_its_accuracy_and_is_the_least(right, dtype):
    with jax.enable_x64(dtype == "float64"):
        log = read(rows(right))
        model = fit_calibrated(log)
        confidence, there = np.asarray(model.calibrate(log), float)[:, 0], unread(log)
        alone = fit_calibrated(dataclasses.replace(log, answered=log.answered & ~there[:, None]))
        by_curve = np.asarray(calibrate_rows(alone.calibrators, log.logprob), float)[:, 0]
    assert confidence[there].max() < confidence[~there].min()
    share = (np.asarray(log.correct)[there, 0].sum() + 0.5) / (there.sum() + 1)
    if right < by_curve[~there].min():
        assert confidence[there] == pytest.approx(share, rel=1e-5)
    # Those that are pooled with them have their mean; the others are calibrated as if they were not there.
    pooled = ~there & (by_curve < confidence[~there].min() - 1e-6)
    mean = (share * (there.sum() + 1) + by_curve[pooled].sum()) / (there.sum() + 1 + pooled.sum())
    assert confidence[there] == pytest.approx(mean, rel=2e-3)
    assert confidence[~there & ~pooled] == pytest.approx(by_curve[~there & ~pooled], abs=2e-3)
    slopes = np.asarray(model.calibrators.coefficients)
    assert np.isfinite(slopes).all()
    assert (slopes[:, 1] > 0).all()


@pytest.mark.thorough
def test_a_log_with_two_confidence_columns_or_none_is_refused(log):
    policy = rcjax.tune(log, budget=1e-4).policy.rungs[0]
    for told in ({}, {"logprob": -1.0, "confidence": 0.3}):
        with pytest.raises(ValueError, match="exactly one of logprob and confidence"):
            policy.step(policy.first_model, **told)
    assert policy.step(policy.first_model, logprob=None, confidence=0.6) == policy.step(
        policy.first_model, confidence=0.6
    )


@pytest.mark.thorough
def test_no_confidence_is_the_least_value_of_the_model(log, tmp_path):
    model = rcjax.fit(log)
    assert float(model.marginals.mass_lowest[0]) == pytest.approx(unread(log).mean(), rel=1e-5)
    model.save(tmp_path / "model.json")
    assert json.loads((tmp_path / "model.json").read_text())["calibrators"][0]["no_confidence"] == pytest.approx(
        float(model.calibrators.stated.confidence[0, 0])
    )
    frontier = rcjax.solve_frontier(rcjax.model.load_model(tmp_path / "model.json"))
    assert np.isfinite(np.asarray(frontier.error)).all()
    replayed = rcjax.replay(frontier, log)
    assert np.abs(np.asarray(replayed.error) - np.asarray(frontier.error)).max() < 0.05


@pytest.mark.thorough
def test_a_promise_with_missing_confidences_holds_on_other_queries():
    """Dropped, the answers without a confidence made the small model better than it is."""
    training, fresh = read(rows(0.0, seed=1, share=0.3)), read(rows(0.0, seed=2, share=0.3))
    tuned = rcjax.tune(training, budget=8e-5, intervals=False)
    replayed = rcjax.replay(tuned.policy, fresh)
    promised = tuned.policy.expected["error"]
    assert float(replayed.error) == pytest.approx(promised, abs=3 * math.hypot(0.025, float(replayed.error_se)))
    assert float(replayed.cost) < 1.15 * 8e-5
