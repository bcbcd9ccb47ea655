"""Verdicts on a policy: size and chance together, all checks together, and advice that says what and how much."""

import math

import pytest

from rcjax.diagnostics.policy_verdicts import DRIFT_LIMITS, judge_all, judge_models, judge_policy
from rcjax.diagnostics.verdicts import Check
from rcjax.tuning.comparison import Gain
from rcjax.tuning.retune import RetuningGain

ROW = {
    "model": "small",
    "accuracy": 0.7,
    "accuracy_tuned": 0.8,
    "confidence": 0.81,
    "z": 5.2,
    "brier_excess": 0.06,
    "excess_p": 0.0005,
    "calibration_error": 0.11,
    "calibration_error_tuned": 0.03,
    "curve_p": 0.0005,
    "distance": 0.2,
    "distance_p": 0.0005,
    "median": 0.7,
    "median_tuned": 0.9,
}


def judged(found, alarm=0.05):
    return {check.name: check for check in judge_all(found, alarm)}


def check_of(figure, p_value, name="error"):
    return Check(name, "", figure, p_value, DRIFT_LIMITS[name], "share", "fine", "it errs: retune")


@pytest.mark.parametrize("sign", [1, -1])
def test_every_alarm_names_the_model_and_the_figures(sign):
    found = judged(judge_models([ROW | {"brier_excess": 0.06 * sign}]))
    assert {check.verdict for check in found.values()} == {"bad"}
    assert {check.subject for check in found.values()} == {"small"}
    told = found["Brier score"].advice
    assert f"0.060 {'more' if sign > 0 else 'less'} than it promises (z +5.2)" in told
    assert "its share right is 70.0 % (80.0 % when tuned), where its confidence says 81.0 %" in told
    assert "is 11.0 %, 3.0 % when tuned" in found["calibration error"].advice
    assert "moved by 0.200 (their median is 0.700, 0.900 when tuned)" in found["confidences"].advice


def test_a_calibration_that_is_better_than_when_tuned_is_no_alarm():
    found = judged(judge_models([ROW | {"calibration_error": 0.06, "calibration_error_tuned": 0.11}]))
    assert found["calibration error"].verdict == "fine"


def test_error_and_cost_tell_what_was_expected():
    error = {"seen": 0.3, "expected": 0.2, "interval": [0.18, 0.22], "p_value": 1e-6}
    cost = {"seen": 2e-4, "expected": 1e-4, "interval": None, "p_value": 1e-6}
    gain = RetuningGain(loss=0.4, gain=Gain(0.1, 0.01), before=Gain(math.nan, 0.0), lam=1.0, n=300)
    found = judged(judge_policy(error, cost, gain))
    assert "errs on 30.0 %, where 20.0 % (18.0 % to 22.0 %) was" in found["error"].advice
    assert "costs $200 per million queries, 100.0 % more than the $100 expected" in found["cost"].advice
    assert "policies tuned again gain what 10.0 ± 1.0 points of error are worth" in found["re-tuning"].advice
    assert found["cost"].figure == pytest.approx(1.0)


def test_size_and_chance_count_together():
    assert judged([check_of(0.019, 1e-9)])["error"].verdict == "fine"
    assert judged([check_of(0.021, 1e-9)])["error"].verdict == "bad"
    assert judged([check_of(0.049, 0.2)])["error"].verdict == "fine"
    unclear = judged([check_of(0.051, 0.2)])["error"]
    assert unclear.verdict == "doubtful"
    assert unclear.advice == "it errs; that may be chance: log more queries and check again"


def test_p_values_count_for_all_checks_together():
    one, ten = check_of(0.1, 0.01), [check_of(0.0, 0.9)] * 9
    assert judged([one])["error"].verdict == "bad"
    first, *_ = judge_all([one, *ten], 0.05)
    assert first.p_value == pytest.approx(0.1)
    assert first.verdict == "doubtful"
