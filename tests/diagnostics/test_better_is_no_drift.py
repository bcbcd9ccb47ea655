"""A service that became cheaper or faster than was promised has not drifted: a remark at most."""

import dataclasses

import numpy as np
import pytest

import rcjax
from rcjax.diagnostics.policy_verdicts import judge_all, judge_policy, judge_seconds, tell_better

pytestmark = pytest.mark.usefixtures("float64")
FIGURES = {"interval": None, "p95": 2.0, "p95_expected": 2.0}


def told(seen, expected, p_value=1.0, p_below=1.0):
    return {**FIGURES, "seen": seen, "expected": expected, "p_value": p_value, "p_below": p_below}


CALM = told(0.2, 0.2)
LESS, MORE = told(0.1, 0.2, p_below=1e-9), told(0.3, 0.2, p_value=1e-9)
CASES = [
    # (cost, seconds, what has drifted, what a remark is about)
    (LESS, CALM, [], "less than the $"),
    (CALM, LESS, [], "takes, in seconds per query, 0.100, less than the 0.200"),
    (LESS, MORE, ["seconds"], "costs"),
    (MORE, CALM, ["cost"], ""),
    (told(0.1, 0.2, p_below=0.3), CALM, [], ""),  # chance
    (told(0.198, 0.2, p_below=1e-9), CALM, [], ""),  # too little to matter
]


def test_only_more_than_was_promised_is_drift():
    misses = []
    for place, (cost, seconds, drifted, words) in enumerate(CASES):
        checks = judge_all([*judge_policy(CALM, cost, None), *judge_seconds(seconds)], 0.05)
        alarms = [check.name for check in checks if check.verdict != "fine"]
        remarks = " ".join(tell_better(cost, seconds, 0.05))
        if alarms != drifted or (words not in remarks if words else remarks):
            misses.append((place, alarms, remarks))
    assert misses == []


def test_a_service_at_half_the_price_and_in_half_the_time_is_fine():
    log = rcjax.sample_log(600, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    log = dataclasses.replace(log, seconds=1.0 + np.arange(600)[:, None] % 7 + 0 * log.query_cost)
    train, fresh = log.take(slice(300)), log.take(slice(300, 600))
    policy = rcjax.tune(train, lam=1000.0, cascade="full", intervals=False).policy
    better = dataclasses.replace(fresh, cost=fresh.cost / 2, query_cost=fresh.query_cost / 2, seconds=fresh.seconds / 2)
    found = rcjax.check_policy(policy, better, retuning=False)
    verdicts = {check.name: check.verdict for check in found.checks}
    assert (found.drifted, verdicts["cost"], verdicts["seconds"]) == (False, "fine", "fine")
    assert found.seconds["p_below"] < 1e-4
    assert sum("which is no drift" in remark for remark in found.remarks) == 2
    worse = dataclasses.replace(fresh, cost=fresh.cost * 2, query_cost=fresh.query_cost * 2, seconds=fresh.seconds * 2)
    drifted = {
        check.name for check in rcjax.check_policy(policy, worse, retuning=False).checks if check.verdict == "bad"
    }
    assert drifted == {"cost", "seconds"}


def test_no_error_among_a_dozen_queries_is_no_drift():
    """Their spread is 0, and any promise was then missed by many standard errors."""
    log = rcjax.sample_log(600, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    train, fresh = log.take(slice(300)), log.take(slice(300, 600))
    policy = rcjax.tune(train, lam=1000.0, cascade="full", intervals=False).policy
    right = np.flatnonzero(np.asarray(fresh.correct).all(1))[:12]
    error = rcjax.check_policy(policy, fresh.take(right), tuned_on=train, retuning=False).error
    assert (error["seen"], error["se"]) == (0.0, 0.0)
    assert error["p_value"] > 0.05, error  # 0.8 to the power of 12 is 0.07
