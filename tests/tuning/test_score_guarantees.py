"""Scores from tuning to promises: the same where they are right and wrong, score equations, bets in place of counts."""

import numpy as np
import polars as pl
import pytest
from helpers.scored_logs import scored_frame

import rcjax
from rcjax.model.calibration import transform_confidence
from rcjax.tuning.certify import LadderTest, upper_limit

pytestmark = pytest.mark.usefixtures("float64")

N = 96


@pytest.fixture(scope="module")
def log():
    return rcjax.read_log(scored_frame(N, 0))


@pytest.fixture(scope="module")
def frontier(log):
    return rcjax.solve_frontier(rcjax.fit(log), cascades="all")


def tuned(frame, **options):
    return rcjax.tune(rcjax.read_log(frame, **options), max_error=0.35, intervals=False)


def figures(result):
    """All that a tuning says in figures, and the policy without the day and the scale of its log."""
    policy = result.policy.to_json()
    provenance = {
        name: value for name, value in policy["provenance"].items() if name not in ("date", "scores", "kept_sample")
    }
    columns = result.frontier.error, result.frontier.cost, result.frontier.lam
    return [np.asarray(column).tolist() for column in columns], policy | {"provenance": provenance}


@pytest.mark.thorough
def test_right_and_wrong_as_floats_and_scores_on_another_scale_change_nothing():
    plain = scored_frame(N, 0)
    right = plain.with_columns((pl.col("correct") > 0.5).cast(pl.Int64))
    cases = {
        "floats": (right, right.with_columns(pl.col("correct").cast(float)), {}),
        "points": (plain, plain.with_columns((pl.col("correct") * 100).round()), {"score_max": 100}),
    }
    for name, (one, other, options) in cases.items():
        assert figures(tuned(one)) == figures(tuned(other, **options)), name


@pytest.mark.thorough
def test_the_score_equations_hold_on_fractions(log):
    model = rcjax.fit(log)
    gap = np.asarray(log.correct) - np.asarray(model.calibrate(log.logprob))
    for j in range(len(log.models)):
        features = np.asarray(transform_confidence(log.logprob[:, j], "generation"))
        assert abs(gap[:, j].sum()) < 1e-6 * N
        assert abs((features * gap[:, j]).sum()) < 1e-6 * N


@pytest.mark.thorough
def test_a_promise_of_a_score_is_a_bet_and_counts_nothing(log, frontier):
    held_out = rcjax.read_log(scored_frame(192, 1))
    certificate = rcjax.certify(frontier, held_out, max_error=0.45, confidence=0.9)
    (lost,) = LadderTest.of(frontier, held_out.select(frontier.models)).at([certificate.position]).wrong
    assert certificate.errors == pytest.approx(lost.sum(), rel=1e-6)
    assert certificate.errors != round(certificate.errors)
    assert certificate.errors / 192 == pytest.approx(float(rcjax.replay(certificate.policy, held_out).error))
    assert certificate.error_bound == pytest.approx(upper_limit(lost, 0.1, top=0.45))
    assert certificate.errors / 192 < certificate.error_bound <= 0.45
    with pytest.raises(rcjax.InfeasibleError, match=r"had \d+\.?\d* % score lost, which guarantees at most"):
        rcjax.certify(frontier, held_out, max_error=0.05)


@pytest.mark.thorough
def test_the_model_of_right_and_wrong_refuses_scores(log):
    with pytest.raises(rcjax.LogError, match=r"have scores.*labels of 1 and 0"):
        rcjax.bayes.sample_posterior(log, method="laplace", draws=10)
