"""What comes after the choice of policies that compare answers: intervals, guarantees, tuning again."""

import dataclasses

import jax
import numpy as np
import pytest
from agreement_logs import make_log

import rcjax
from rcjax.logs import LogError
from rcjax.replaying.replay import replay
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


@pytest.fixture(scope="module")
def fresh():
    with jax.enable_x64(True):
        return make_log(20_000, 0.0, seed=1)


def compares(frontier):
    return np.asarray(frontier.policies.agreements.compares).any(1)


def mute(log):
    return dataclasses.replace(log, answer=None, compare=None)


@pytest.mark.thorough
@pytest.mark.parametrize("refit", [True, False])
def test_intervals_hold_what_fresh_queries_show(frontier, log, fresh, refit):
    bands = rcjax.tuning.bootstrap(frontier, log, replicates=60, refit=refit)
    seen = replay(frontier, fresh)
    for ends, own in ((bands.error, seen.error), (bands.cost, seen.cost)):
        inside = (np.asarray(ends)[:, 0] <= own) & (own <= np.asarray(ends)[:, 1])
        assert np.asarray(inside)[compares(frontier)].mean() >= 0.6
    with pytest.raises(LogError, match="the log has none"):
        rcjax.tuning.bootstrap(frontier, mute(log), replicates=20, refit=refit)


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


@pytest.mark.thorough
def test_a_ladder_of_policies_that_compare(frontier, fresh):
    ladder = frontier.policy(budget=1.4e-4)
    assert any(rung.agreements for rung in ladder.policies)
    replayed = replay(ladder, fresh)
    assert float(replayed.cost) == pytest.approx(1.4e-4, rel=0.1)
    assert rcjax.Ladder.from_json(ladder.to_json()) == ladder
