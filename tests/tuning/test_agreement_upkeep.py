"""What comes after the choice of policies that compare answers: intervals, guarantees, tuning again."""

import dataclasses

import jax
import numpy as np
import pytest
from agreement_logs import make_log

import rcjax
from rcjax.tuning.retune import retune

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def log():
    with jax.enable_x64(True):
        return make_log(300, 0.0, seed=0)


@pytest.fixture(scope="module")
def frontier(log):
    with jax.enable_x64(True):
        return rcjax.tuning.select_frontier(log).frontier


def compares(frontier):
    return np.asarray(frontier.policies.agreements.compares).any(1)


def mute(log):
    return dataclasses.replace(log, answer=None, compare=None)


@pytest.mark.thorough
def test_a_policy_is_tuned_again_with_answers_and_without(frontier, log):
    policy = frontier.point(int(compares(frontier).argmax()), {"error_cost": 0.002})
    other = make_log(300, 0.0, seed=9)
    new = retune(policy, other, bands=False)
    assert new.policy.agreements
    assert any("policy.step needs answer= and answers=" in remark for remark in new.remarks)
    plain = retune(policy, mute(other), bands=False)
    assert not plain.policy.agreements
    assert "the policy compares answers, and the log has none: tuned without" in plain.remarks
    assert not any("policy.step" in remark for remark in plain.remarks)
