"""Does agreement tell right from wrong: areas under curves against SciPy's ranks, and what is said of them."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
from agreement_logs import make_log
from scipy.stats import rankdata

import rcjax
from rcjax.diagnostics.agreement_worth import agreement_worth, remarks_on_agreement, separations
from rcjax.goodness_of_fit.reliability import separation

MODELS = ("small", "medium", "large")


def area(score, right):
    """By Mann and Whitney's statistic, from SciPy's ranks."""
    ranks, m = rankdata(score), int(right.sum())
    return (ranks[right].sum() - m * (m + 1) / 2) / (m * (len(right) - m))


def test_weights_are_repeated_answers():
    rng = np.random.default_rng(0)
    score, right = rng.integers(0, 6, 80) / 5, rng.random(80) < 0.6
    weights = rng.multinomial(80, np.full(80, 1 / 80), 25)
    drawn = separations(score, right, weights)
    for row, value in zip(weights, drawn, strict=True):
        assert value == pytest.approx(area(np.repeat(score, row), np.repeat(right, row)), rel=1e-12)
    assert separations(score, right, np.ones((1, 80), int))[0] == pytest.approx(separation(score, right), rel=1e-12)


def test_where_all_are_right_nothing_is_told():
    assert np.isnan(separations(np.array([0.1, 0.5]), np.array([True, True]), np.ones((3, 2), int))).all()
    assert np.isnan(separations(np.zeros(0), np.zeros(0, bool), np.zeros((2, 0), int))).all()


def columns(log):
    confidence = np.exp(np.asarray(log.logprob, float))
    return confidence, np.asarray(log.correct), np.asarray(log.answer)


def test_the_figures_of_a_pair():
    confidence, correct, answer = columns(make_log(400, 0.2, seed=0))
    rows = agreement_worth(MODELS, confidence, correct, answer, replicates=300)
    assert [tuple(row["pair"]) for row in rows] == [("small", "medium"), ("small", "large"), ("medium", "large")]
    for row, (i, j) in zip(rows, [(0, 1), (0, 2), (1, 2)], strict=True):
        equal, right = answer[:, i] == answer[:, j], correct[:, j]
        assert row["n"] == 400
        assert row["equal"] == pytest.approx(equal.mean())
        assert row["accuracy_equal"] == pytest.approx(right[equal].mean())
        assert row["accuracy_differ"] == pytest.approx(right[~equal].mean())
        assert row["agreement"] == pytest.approx(area(equal, right))
        assert row["confidence"] == pytest.approx(area(confidence[:, j], right))
        assert row["gain"] == pytest.approx(row["agreement"] - row["confidence"])
        for name in ("agreement", "confidence", "gain"):
            low, high = row[f"{name}_interval"]
            assert low < row[name] < high


def test_answers_that_are_not_known_are_left_out():
    confidence, correct, answer = columns(make_log(300, 0.2, seed=1))
    unknown = np.where(np.arange(300)[:, None] % 3 == 0, -1, answer)
    kept = np.arange(300) % 3 != 0
    (one, *_), (two, *_) = (
        agreement_worth(MODELS, *part, replicates=50)
        for part in ((confidence, correct, unknown), (confidence[kept], correct[kept], answer[kept]))
    )
    for name in ("n", "equal", "agreement", "confidence"):
        assert one[name] == two[name]


@pytest.mark.thorough
def test_intervals_hold_the_truth_as_often_as_they_say():
    """Of 200 logs of 200 queries, against the areas on 100,000."""
    truth = agreement_worth(MODELS, *columns(make_log(100_000, 0.3, seed=1)), replicates=1)
    names = ("agreement", "confidence", "gain")
    exact = [[area_of(row, name) for name in names] for row in truth]
    inside = np.zeros((200, 3, 3))
    for seed in range(200):
        rows = agreement_worth(MODELS, *columns(make_log(200, 0.3, seed=10 + seed)), replicates=300, seed=seed)
        for i, row in enumerate(rows):
            for j, name in enumerate(names):
                low, high = row[f"{name}_interval"]
                inside[seed, i, j] = low <= exact[i][j] <= high
    assert 0.91 <= inside.mean() <= 0.98


def area_of(row, name):
    return row[name]


# -- what is said


def told(rows, models=MODELS):
    return " ".join(remarks_on_agreement(rows, models))


def test_what_a_log_lacks():
    assert "cannot be told: the log has no column answer (or answer_key)" in told(None)
    assert told(None, ("small",)) == ""


def test_agreement_that_tells_more_is_said_so():
    confidence, correct, answer = columns(make_log(600, 0.0, seed=0))
    rows = agreement_worth(MODELS, confidence, correct, answer, replicates=200)
    assert "agreement tells more than confidence in 3 of 3 pairs" in told(rows)
    assert "rcjax tune weighs it by cost" in told(rows)


def test_agreement_that_tells_nothing_is_said_so():
    confidence, correct, answer = columns(make_log(300, 0.0, seed=0))
    sure = np.clip(0.5 + 0.4 * correct + 0.01 * confidence, 0, 1)
    rows = agreement_worth(MODELS, sure, correct, np.broadcast_to(np.arange(3), answer.shape), replicates=100)
    assert "agreement is not shown to tell more than confidence, in any pair" in told(rows)


def test_models_that_are_always_right_tell_nothing():
    confidence, correct, answer = columns(make_log(60, 0.0, seed=0))
    rows = agreement_worth(MODELS, confidence, np.ones_like(correct), answer, replicates=50)
    assert all(math.isnan(row["gain"]) for row in rows)
    assert "cannot be told: no answer of a later model is better than another" in told(rows)


@pytest.mark.thorough
@pytest.mark.parametrize("held_out", [False, True])
def test_a_diagnosis_tells_it(held_out):
    with jax.enable_x64(True):
        log = make_log(300, 0.0, seed=0)
        judged = make_log(200, 0.0, seed=5) if held_out else log
        diagnosis = rcjax.diagnose(rcjax.fit(log), judged, replicates=40, search=None)
        assert [row["n"] for row in diagnosis.agreement] == [judged.n_queries] * 3
        row = diagnosis.agreement[0]
        equal = (np.asarray(judged.answer)[:, 0] == np.asarray(judged.answer)[:, 1]).mean()
        assert row["equal"] == pytest.approx(equal)
        assert any("agreement tells more than confidence" in remark for remark in diagnosis.remarks)
        document = json.loads(json.dumps(diagnosis.to_json(), allow_nan=False))
        assert document["agreement"][0]["agreement"] == row["agreement"]
        mute = rcjax.diagnose(rcjax.fit(log), dataclasses.replace(judged, answer=None), replicates=40, search=None)
        assert mute.agreement is None
        assert any("--answers FILE" in remark for remark in mute.remarks)
