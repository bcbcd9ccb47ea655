"""A diagnosis of a log some of whose answers have no label, and what needs a label for every answer."""

import dataclasses

import jax
import numpy as np
import pytest

import rcjax
from rcjax.logs.log import HandLabels

MODELS = ["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"]


@pytest.fixture(scope="module")
def logs():
    """(all labels; 200 queries labelled, and a judge who errs on one answer in twenty)."""
    whole = rcjax.sample_log(500, seed=0).select(MODELS)
    rng, right = np.random.default_rng(0), np.asarray(whole.correct)
    labelled = np.zeros(right.shape, bool)
    labelled[:200] = True
    judged = (right ^ (rng.random(right.shape) < 0.05))[..., None].astype(float)
    parts = jax.device_put([labelled, judged])
    hand = HandLabels(*parts, judges=("judged",))
    return whole, dataclasses.replace(whole, correct=jax.device_put(right & labelled), hand_labels=hand)


@pytest.fixture(scope="module")
def diagnosis(logs):
    _, partly = logs
    return rcjax.diagnose(rcjax.fit(partly), partly, replicates=50)


@pytest.mark.thorough
def test_calibration_is_judged_by_the_labelled_answers(diagnosis, logs):
    whole, _ = logs
    truth = np.asarray(whole.correct).mean(0)
    for j, row in enumerate(diagnosis.calibration):
        assert row.accuracy == pytest.approx(truth[j], abs=0.03)  # of all, by labels and the judge
        assert row.accuracy_p > 0.05
        assert row.calibration_error < 0.12
        assert row.separation > 0.55
    assert np.isfinite(diagnosis.correct).sum() == 600
    assert not [
        finding.name
        for finding in diagnosis.findings
        if finding.name in ("accuracy", "calibration error") and finding.verdict == "bad"
    ]
