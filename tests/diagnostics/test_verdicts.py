"""From figures to verdicts: limits, size and chance together, all checks together; what is no drift."""

import numpy as np
import pytest

import rcjax
from rcjax.diagnostics import KINDS, verdicts
from rcjax.diagnostics.policy_verdicts import KINDS as OF_POLICY, judge_all, judge_models, judge_policy, tell_cheaper

ROW = {
    "model": "small",
    **{"accuracy": 0.7, "accuracy_tuned": 0.8, "confidence": 0.81, "brier_excess": 0.06, "excess_p": 0.0005},
    **{"calibration_error": 0.11, "calibration_error_tuned": 0.03, "curve_p": 0.0005},
    **{"distance": 0.2, "distance_p": 0.0005, "median": 0.7, "median_tuned": 0.9},
}


@pytest.mark.parametrize("name", KINDS)
def test_a_figure_is_judged_by_its_limits(name):
    limits = KINDS[name].limits
    sign = 1 if limits.bad > limits.doubtful else -1
    beyond, before = limits.bad + sign * 1e-6, limits.doubtful - sign * 1e-6
    between = (limits.doubtful + limits.bad) / 2
    for p_value, expected in (
        (None, ("bad", "doubtful", "doubtful", "fine", "fine")),
        (0.01, ("bad", "doubtful", "doubtful", "fine", "fine")),
        (0.05, ("doubtful", "fine", "fine", "fine", "fine")),
        (np.nan, ("doubtful", "fine", "fine", "fine", "fine")),
    ):
        figures = beyond, limits.bad, between, limits.doubtful, before
        assert tuple(verdicts.judge(name, figure, p_value) for figure in figures) == expected
        assert verdicts.judge(name, np.nan, p_value) == "doubtful"


@pytest.mark.parametrize(("band", "verdict"), [(1.0, "doubtful"), (0.001, "bad")])
def test_a_promise_that_chance_can_break_is_doubtful(band, verdict):
    seen = {"error": np.full(4, 0.25), "cost": np.full(4, 2.0), "predicted_error": np.full(4, 0.2)}
    bands = {"error_band": np.full(4, band), "cost_band": np.full(4, band), "predicted_cost": np.full(4, 2.0)}
    checks = [*verdicts.judge_promise(seen | bands, 150)]
    assert [check.verdict for check in checks] == [verdict, "fine"]
    assert [bool(check.advice) for check in checks] == [True, False]


# -- of a policy


def check_of(figure, p_value):
    return OF_POLICY["error"].judged("", figure, "it errs: retune", p_value=p_value)


@pytest.mark.parametrize(
    ("figure", "p_value", "verdict"),
    [(0.019, 1e-9, "fine"), (0.021, 1e-9, "bad"), (0.049, 0.2, "fine"), (0.051, 0.2, "doubtful"), (0.2, 0.6, "fine")],
)
def test_size_and_chance_count_together(figure, p_value, verdict):
    (check,) = judge_all([check_of(figure, p_value)], 0.05)
    assert check.verdict == verdict


def test_p_values_count_for_all_checks_together():
    first, *_ = judge_all([check_of(0.1, 0.01), *[check_of(0.0, 0.9)] * 9], 0.05)
    assert (first.p_value, first.verdict) == (pytest.approx(0.1), "doubtful")


@pytest.mark.parametrize("sign", [1, -1])
def test_every_alarm_names_the_model(sign):
    checks = [*judge_all(judge_models([ROW | {"brier_excess": 0.06 * sign}]), 0.05)]
    assert {(check.verdict, check.subject) for check in checks} == {("bad", "small")}
    assert all("small" in check.advice for check in checks)


@pytest.mark.parametrize("error", [0.06, 0.105])
def test_a_calibration_that_is_better_than_when_tuned_is_no_alarm(error):
    checks = judge_all(judge_models([ROW | {"calibration_error": error, "calibration_error_tuned": 0.11}]), 0.05)
    assert {check.name: check.verdict for check in checks}["calibration error"] == "fine"


def told(seen, expected, p_value=1.0, p_below=1.0):
    return {"interval": None, "seen": seen, "expected": expected, "p_value": p_value, "p_below": p_below}


@pytest.mark.parametrize(
    ("cost", "drifted", "remarks"),
    [
        (told(0.1, 0.2, p_below=1e-9), [], 1),
        (told(0.3, 0.2, p_value=1e-9), ["cost"], 0),
        (told(0.1, 0.2, p_below=0.3), [], 0),  # chance
        (told(0.198, 0.2, p_below=1e-9), [], 0),  # too little to matter
    ],
)
def test_only_more_than_was_promised_is_drift(cost, drifted, remarks):
    checks = judge_all(judge_policy(told(0.2, 0.2), cost, None), 0.05)
    assert [check.name for check in checks if check.verdict != "fine"] == drifted
    assert len([*tell_cheaper(cost)]) == remarks


@pytest.mark.thorough
@pytest.mark.usefixtures("float64")
def test_no_error_among_a_dozen_queries_is_no_drift():
    """Their spread is 0, and any promise was then missed by many standard errors."""
    log = rcjax.sample_log(600, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    train, fresh = log.take(slice(300)), log.take(slice(300, 600))
    policy = rcjax.tune(train, lam=1000.0, cascade="full", intervals=False).policy
    right = np.flatnonzero(np.asarray(fresh.correct).all(1))[:12]
    error = rcjax.check_policy(policy, fresh.take(right), retuning=False).error
    assert (error["seen"], error["se"]) == (0.0, 0.0)
    assert error["p_value"] > 0.05, error  # 0.8 to the power of 12 is 0.07
