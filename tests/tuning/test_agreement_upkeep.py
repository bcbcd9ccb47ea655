"""What comes after the choice of policies that compare answers: intervals, guarantees, tuning again."""

import dataclasses

import jax
import numpy as np
import pytest
from agreement_logs import make_log

import rcjax
from rcjax.logs import LogError
from rcjax.replaying.replay import replay
from rcjax.tuning import bootstrapping as module
from rcjax.tuning.replicates import again_by_labels, tune_again
from rcjax.tuning.retune import held_out_gain, retune

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
    with pytest.raises(LogError, match="the log tells none"):
        rcjax.tuning.bootstrap(frontier, mute(log), replicates=20, refit=refit)


@pytest.mark.thorough
def test_replicates_compare_answers_where_the_frontier_does(frontier, log):
    rng = np.random.default_rng(0)
    draws = rng.integers(0, log.n_queries, (6, log.n_queries))
    places = np.arange(len(frontier.lam))
    tuned = tune_again(again_by_labels(frontier, log, places), log, draws)
    own = np.asarray(tuned.policies.agreements.compares).any(-1)
    assert own[:, compares(frontier)].mean() > 0.5
    assert not own[:, ~compares(frontier)].any()


@pytest.mark.thorough
def test_blocks_of_queries_count_as_all_of_them_do(frontier, log, monkeypatch):
    """Drawn a block at a time, the figures on the log itself are those of one walk."""
    monkeypatch.setattr(module, "_BLOCK", 64)
    bands = rcjax.tuning.bootstrap(frontier, log, replicates=200, refit=False)
    seen = replay(frontier, log)
    middle = np.asarray(bands.error).mean(1)
    np.testing.assert_allclose(middle, seen.error, atol=0.02)


def test_a_policy_is_tuned_again_with_answers_and_without(frontier, log):
    policy = frontier.point(int(compares(frontier).argmax()), {"error_cost": 0.002})
    other = make_log(300, 0.0, seed=9)
    new = retune(policy, other, bands=False)
    assert new.policy.agreements
    assert any("policy.step needs answer= and answers=" in remark for remark in new.remarks)
    plain = retune(policy, mute(other), bands=False)
    assert not plain.policy.agreements
    assert "the policy compares answers, and the log tells none: tuned without" in plain.remarks
    assert not any("policy.step" in remark for remark in plain.remarks)


@pytest.mark.thorough
def test_what_tuning_again_would_gain_is_next_to_nothing_on_like_queries(frontier, log):
    policy = frontier.point(int(compares(frontier).argmax()))
    gain = held_out_gain(policy, make_log(300, 0.0, seed=9), log)
    assert gain.n == 300
    assert abs(gain.gain.mean) < 4 * gain.gain.se + 0.01
    with pytest.raises(LogError, match="the log tells none"):
        held_out_gain(policy, mute(make_log(300, 0.0, seed=9)), log)


def test_a_ladder_of_policies_that_compare(frontier, fresh):
    ladder = frontier.policy(budget=1.4e-4)
    assert any(rung.agreements for rung in ladder.policies)
    replayed = replay(ladder, fresh)
    assert float(replayed.cost) == pytest.approx(1.4e-4, rel=0.1)
    assert rcjax.Ladder.from_json(ladder.to_json()) == ladder


@pytest.mark.thorough
def test_in_single_precision(float32):
    """Float32 as by default in JAX: the same policies, but for rounding."""
    log = make_log(300, 0.0, seed=0)
    selection = rcjax.tuning.select_frontier(log)
    assert log.answer.dtype == np.int32
    assert compares(selection.frontier).any()
    assert np.isfinite(np.asarray(replay(selection.frontier, log).error)).all()
