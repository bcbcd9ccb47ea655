"""A service that became cheaper than was promised has not drifted, nor one that became slower: remarks at most."""

import dataclasses

import numpy as np
import pytest
from timed_logs import timed_log, waited

import rcjax
from rcjax.diagnostics.policy_verdicts import judge_all, judge_policy, tell_cheaper

pytestmark = pytest.mark.usefixtures("float64")


def told(seen, expected, p_value=1.0, p_below=1.0):
    return {"interval": None, "seen": seen, "expected": expected, "p_value": p_value, "p_below": p_below}


CALM = told(0.2, 0.2)
CASES = [
    # (cost, what has drifted, what a remark is about)
    (told(0.1, 0.2, p_below=1e-9), [], "less than the $"),
    (told(0.3, 0.2, p_value=1e-9), ["cost"], ""),
    (told(0.1, 0.2, p_below=0.3), [], ""),  # chance
    (told(0.198, 0.2, p_below=1e-9), [], ""),  # too little to matter
]


def test_only_more_than_was_promised_is_drift():
    for cost, drifted, words in CASES:
        checks = judge_all(judge_policy(CALM, cost, None), 0.05)
        remarks = " ".join(tell_cheaper(cost, 0.05))
        assert [check.name for check in checks if check.verdict != "fine"] == drifted
        assert words in remarks if words else not remarks


@pytest.mark.thorough
def test_seconds_are_told_beside_those_expected():
    policy = rcjax.tune(timed_log(400, seed=1), max_seconds="p95=4", error_cost=0.01, intervals=False).policy
    log = timed_log(500, seed=2, slower=2.5)
    outcome = rcjax.check_policy(policy, log)
    waits = np.array(waited(policy, log.select(policy.models)))
    assert outcome.seconds == {
        "mean": pytest.approx(waits.mean()),
        "p95": pytest.approx(np.quantile(waits, 0.95, method="inverted_cdf")),
        "mean_expected": policy.expected["seconds"],
        "p95_expected": policy.expected["seconds_p95"],
    }
    assert not {check.name for check in outcome.checks} & {"seconds"}
    assert any(remark.startswith("queries wait ") for remark in outcome.remarks)
    assert outcome.retuning is None
    assert any("keeps to a limit on the seconds" in remark for remark in outcome.remarks)
    bare = rcjax.check_policy(policy, dataclasses.replace(log, seconds=None), retuning=False)
    assert "seconds" not in bare.to_json()


@pytest.mark.thorough
def test_no_error_among_a_dozen_queries_is_no_drift():
    """Their spread is 0, and any promise was then missed by many standard errors."""
    log = rcjax.sample_log(600, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    train, fresh = log.take(slice(300)), log.take(slice(300, 600))
    policy = rcjax.tune(train, lam=1000.0, cascade="full", intervals=False).policy
    right = np.flatnonzero(np.asarray(fresh.correct).all(1))[:12]
    error = rcjax.check_policy(policy, fresh.take(right), tuned_on=train, retuning=False).error
    assert (error["seen"], error["se"]) == (0.0, 0.0)
    assert error["p_value"] > 0.05, error  # 0.8 to the power of 12 is 0.07
