"""Has the latency of a policy drifted? On a log as before, one of slower models, and one with a longer tail."""

import dataclasses

import numpy as np
import pytest
from timed_logs import timed_log, waited

import rcjax

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def policy(float64):
    return rcjax.tune(timed_log(400, seed=1), max_seconds="p95=4", error_cost=0.01, intervals=False).policy


def checked(policy, log):
    outcome = rcjax.check_policy(policy, log, retuning=False)
    return outcome, {check.name: check for check in outcome.checks}


@pytest.mark.thorough
def test_what_is_as_before_is_fine(policy):
    log = timed_log(500, seed=2)
    outcome, checks = checked(policy, log)
    waits = np.array(waited(policy, log.select(policy.models)))
    assert outcome.seconds["seen"] == pytest.approx(waits.mean())
    assert outcome.seconds["p95"] == pytest.approx(np.quantile(waits, 0.95, method="inverted_cdf"))
    assert outcome.seconds["expected"] == pytest.approx(policy.expected["seconds"])
    assert outcome.seconds["beyond"] == pytest.approx((waits > 4).mean())
    assert checks["seconds"].verdict == checks["seconds limit"].verdict == "fine"
    assert "a limit on the seconds" not in str(outcome.remarks)


def test_slower_models_have_drifted(policy):
    outcome, checks = checked(policy, timed_log(500, seed=2, slower=2.5))
    assert checks["seconds"].verdict == "bad"
    assert "queries wait" in checks["seconds"].advice
    assert checks["seconds limit"].verdict == "bad"
    assert "longer than the limit (p95=4), which allows 5.0 %" in checks["seconds limit"].advice
    assert outcome.drifted


@pytest.mark.thorough
def test_a_log_or_a_policy_without_seconds_is_checked_as_ever(policy):
    fresh = timed_log(500, seed=2)
    bare = dataclasses.replace(fresh, seconds=None)
    outcome, checks = checked(policy, bare)
    assert outcome.seconds is None
    assert "seconds" not in outcome.to_json()
    assert "seconds" not in checks
    old = dataclasses.replace(timed_log(400, seed=1), seconds=None)
    untimed = rcjax.tune(old, error_cost=0.01, intervals=False).policy
    assert "seconds" not in checked(untimed, fresh)[1]


def test_retuning_is_not_tested_under_a_limit(policy):
    outcome = rcjax.check_policy(policy, timed_log(300, seed=3))
    assert outcome.retuning is None
    assert any("keeps to a limit on the seconds" in remark for remark in outcome.remarks)


@pytest.mark.thorough
def test_waiting_counts_as_when_it_was_tuned():
    policy = rcjax.tune(timed_log(400, seed=1), second_cost=0.0005, error_cost=0.01, intervals=False).policy
    outcome, checks = checked(policy, timed_log(500, seed=2))
    assert outcome.cost["seen"] == pytest.approx(policy.expected["cost"], rel=0.2)
    assert checks["cost"].verdict == "fine"
