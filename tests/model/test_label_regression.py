"""The regression of labels on judges and confidences, against an optimiser and a design of its own."""

import numpy as np
import pytest
from helpers.judged_logs import judged_log, partly
from scipy import optimize, special

import rcjax
from rcjax.model.calibration import transform_confidence
from rcjax.model.label_outcomes import FeatureScale, LabelRegression

pytestmark = pytest.mark.usefixtures("float64")


def reference(log):
    """(n, k) predictions by scipy's BFGS, on features that are put together one answer at a time."""
    raw = np.asarray(transform_confidence(log.logprob, log.task), float)
    z = (raw - raw.mean(0)) / raw.std(0)
    said = np.asarray(log.hand_labels.judged)[..., 0]
    n, k = raw.shape
    rows, wide = {}, {}
    for i in range(n):
        for j in range(k):
            others = [m for m in range(k) if m != j]
            judged = float(np.isfinite(said[i, j]))
            verdict = 2 * said[i, j] - 1 if judged else 0.0
            theirs = [2 * said[i, m] - 1 for m in others if np.isfinite(said[i, m])]
            mean = np.mean([z[i, m] for m in others])
            rows[i, j] = [1, judged, z[i, j], z[i, j] * judged, mean, mean * judged, np.mean(theirs or [0]), verdict]
            own = np.zeros((k, 8))
            own[j] = rows[i, j]
            wide[i, j] = np.concatenate([rows[i, j], own.ravel()])
    spread = np.concatenate([np.full(8, 3.0), *[[3.0] + [1.0] * 7] * k])
    known = [place for place in rows if log.labelled[place]]
    design = np.array([wide[place] for place in known])
    right = np.array([float(log.correct[place]) for place in known])

    def loss(beta):
        score = design @ beta
        value = np.logaddexp(0, score).sum() - right @ score + 0.5 * ((beta / spread) ** 2).sum()
        return value, design.T @ (special.expit(score) - right) + beta / spread**2

    beta = optimize.minimize(loss, np.zeros(len(spread)), jac=True, options={"gtol": 1e-9, "maxiter": 5000}).x
    return np.array([[special.expit(wide[i, j] @ beta) for j in range(k)] for i in range(n)])


@pytest.mark.parametrize("kind", [pytest.param("fair", marks=pytest.mark.thorough), "none"])
def test_predictions_match_another_optimiser(kind):
    log = judged_log(120, 60, kind, by_answer=True)
    assert LabelRegression.fit(log).predict(log)[0] == pytest.approx(reference(log), abs=1e-6)


@pytest.mark.thorough
def test_a_perfect_judge_is_believed_and_a_useless_judge_is_not():
    whole = rcjax.sample_log(1000, seed=0).select(judged_log(10, 5).models)
    right = np.asarray(whole.correct)
    labelled = np.repeat((np.arange(1000) < 300)[:, None], right.shape[1], axis=1)
    losses = []
    for said in (right, np.random.default_rng(0).random(right.shape) < 0.5):
        log = partly(whole, labelled, said[..., None].astype(float))
        guess = LabelRegression.fit(log).predict(log)[0][300:]
        losses.append(np.mean((guess - right[300:]) ** 2))
    assert losses[0] < 0.01
    without = LabelRegression.fit(partly(whole, labelled, np.full((*right.shape, 1), np.nan)))
    bare = without.predict(partly(whole, labelled, np.full((*right.shape, 1), np.nan)))[0][300:]
    assert losses[1] == pytest.approx(np.mean((bare - right[300:]) ** 2), abs=0.01)


def test_labels_of_weight_zero_are_ignored():
    log = judged_log(120, 60)
    half = np.arange(120) < 60
    both = LabelRegression.fit(log, np.stack([np.ones(120, bool), half]))
    cut = partly(log, log.labelled & half[:, None], np.asarray(log.hand_labels.judged))
    assert both.predict(log)[0] == pytest.approx(LabelRegression.fit(log).predict(log)[0], abs=1e-9)
    assert both.predict(log)[1] == pytest.approx(LabelRegression.fit(cut).predict(cut)[0], abs=1e-6)


def test_another_log_uses_the_scale_of_the_training_log():
    log = judged_log(120, 60)
    regression = LabelRegression.fit(log)
    rows = np.array([5, 17, 40])
    assert regression.predict(log.take(rows))[0] == pytest.approx(regression.predict(log)[0][rows], abs=1e-12)


@pytest.mark.parametrize("value", [0.1, 0.7, -1.3, 2.2, 3.1])
def test_one_confidence_is_no_feature(value):
    raw = np.full((300, 1), value)
    assert FeatureScale.measure(raw).standardise(raw) == pytest.approx(0, abs=1e-12)
