"""Tuning again: the same target and search, what the record of a policy says, and what there is to gain."""

import dataclasses

import numpy as np
import pytest

import rcjax
from rcjax.logs import LogError
from rcjax.policy.record import recorded_tuning
from rcjax.tuning.contest import Gain
from rcjax.tuning.retune import RetuningGain, held_out_gain

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("llama3.2-1b", "llama3.1-70b")
N = 200


@pytest.fixture(scope="module")
def logs(float64):
    log = rcjax.sample_log(2 * N, seed=3).select(MODELS)
    return log.take(slice(N)), log.take(slice(N, 2 * N))


@pytest.fixture(scope="module")
def frontier(logs):
    return rcjax.tuning.select_frontier(logs[0]).frontier


@pytest.fixture(scope="module")
def policy(frontier):
    return frontier.policy(error_cost=0.003)


@pytest.mark.thorough
def test_a_policy_made_by_hand_is_tuned_for_its_own_price(policy, logs):
    bare = dataclasses.replace(policy, provenance={})
    tuning = recorded_tuning(bare)
    assert tuning.spec.target == {"lam": policy.expected["lam"]}
    assert (tuning.models, tuning.spec.search) == (policy.models, "selected")
    with pytest.raises(ValueError, match="neither a target nor its λ: tune a new one"):
        rcjax.retune(dataclasses.replace(bare, expected={}), logs[1])


def test_tuned_again_is_tuned_as_before(policy, logs):
    found = rcjax.retune(policy, logs[1])
    selection = rcjax.tuning.select_frontier(logs[1])
    assert found.policy.rules == selection.frontier.policy(error_cost=0.003).rules
    assert found.policy.provenance["tuning"] == {**policy.provenance["tuning"], "today": found.spec.today}
    assert found.policy.provenance["digest"] == logs[1].digest
    assert found.remarks[0] == found.verdict
    assert found.frontier.bands is None
    again = rcjax.retune(found.policy, logs[0]).policy
    assert again.rules == policy.rules


@pytest.mark.thorough
def test_a_guarantee_is_given_again(logs):
    frontier = rcjax.solve_frontier(rcjax.fit(logs[0]), lam=[1.0, 1e3, 1e5])
    before = rcjax.certify(frontier, logs[1], max_error=0.5, confidence=0.9).policy
    assert before.provenance["tuning"]["max_error"] == 0.5
    found = rcjax.retune(before, logs[1])
    guarantee = found.policy.provenance["guarantee"]
    assert (guarantee["max_error"], guarantee["n"]) == (0.5, N / 2)
    assert guarantee["confidence"] == pytest.approx(0.9)
    assert found.remarks[0].startswith("guaranteed with 90 % confidence: the target is kept; on 100 queries held out")


def test_a_model_that_is_gone_is_told(policy, logs):
    more = dataclasses.replace(
        policy,
        provenance={"tuning": {**policy.to_json()["provenance"]["tuning"], "models": ["retired", *MODELS]}},
    )
    found = rcjax.retune(more, logs[1])
    assert "the log lacks retired: tuned without" in found.remarks
    with pytest.raises(LogError, match=r"it lacks llama3\.1-70b: there are no two models left"):
        rcjax.retune(policy, logs[1].select(MODELS[:1]))


@pytest.mark.thorough
def test_the_loss_of_those_tuned_again_is_that_of_five_folds_by_hand(policy, logs):
    """Each fold in turn is left out, the rest is tuned on, and the policy replayed at the costs of the whole log."""
    log = logs[1].take(np.random.default_rng(0).permutation(N))
    found = held_out_gain(policy, logs[1])
    fold, losses = np.arange(N) % 5, []
    for number in range(5):
        tuned = rcjax.tuning.select_frontier(log.take(fold != number), lam=[found.lam]).frontier.policy(lam=found.lam)
        rest = log.take(fold == number)
        at_mean = dataclasses.replace(rest, query_cost=rest.query_cost * 0 + log.cost, cost=log.cost)
        seen = rcjax.replay(tuned, at_mean)
        losses.append(float(seen.error) + found.lam * float(seen.cost))
    assert found.to_json()["retuned"] == pytest.approx(np.mean(losses), rel=1e-6)


def test_what_was_to_be_gained_before_is_no_news():
    gain = RetuningGain(loss=0.3, gain=Gain(0.1, 0.01), before=Gain(np.nan, 0.0), lam=1.0, n=100)
    assert gain.p_value < 1e-6
    assert gain.share == pytest.approx(1 / 3)
    assert dataclasses.replace(gain, before=Gain(0.1, 0.01)).p_value == pytest.approx(0.5)
    assert dataclasses.replace(gain, before=Gain(-0.1, 0.01)).p_value < 1e-6
    assert dataclasses.replace(gain, gain=Gain(0.0, 0.0)).p_value == 1


@pytest.fixture(scope="module")
def ladder(logs):
    frontier = rcjax.tuning.select_frontier(logs[0]).frontier
    cost = np.asarray(frontier.cost)
    policy = frontier.policy(budget=float(0.6 * cost.max() + 0.4 * cost.min()))
    assert len(policy.policies) == 2
    return policy


def test_a_ladder_is_tuned_again_to_one(ladder, logs):
    retuned = rcjax.retune(ladder, logs[1]).policy
    assert isinstance(retuned, rcjax.Ladder)
    assert retuned.expected["cost"] == pytest.approx(ladder.budget)
    assert retuned.budget == ladder.budget
    same = rcjax.retune(ladder, logs[0]).policy
    assert [rung.rules for rung in same.rungs] == [rung.rules for rung in ladder.rungs]
    assert same.position == ladder.position
    assert recorded_tuning(ladder.rungs[0]) == recorded_tuning(ladder)


def test_the_loss_of_a_ladder_is_that_of_its_replay(ladder, logs):
    found, seen = held_out_gain(ladder, logs[1]), rcjax.replay(ladder, logs[1])
    assert found.lam == ladder.expected["lam"]
    assert found.loss == pytest.approx(float(seen.error + found.lam * seen.cost))


def test_a_ladder_is_held_to_its_expected_figures(ladder, logs):
    found = rcjax.check_policy(ladder, logs[1], retuning=False)
    seen, before = (rcjax.replay(ladder, log) for log in (logs[1], logs[0]))
    assert found.followed["error_tuned"] == pytest.approx(float(seen.error))
    assert found.bill.seen == pytest.approx(float(seen.spent))
    assert found.error.tuned == pytest.approx(float(before.error))
    assert found.bill.expected == pytest.approx(ladder.expected["cost"])
    assert (found.policy_models, found.drifted) == (ladder.models, False)


@pytest.mark.thorough
def test_refusals_count_at_their_price_in_what_is_gained(logs):
    policy = rcjax.tuning.select_frontier(logs[0], lam=[1000.0], abstain_price=0.2).frontier.policy(lam=1000.0)
    found, seen = held_out_gain(policy, logs[1]), rcjax.replay(policy, logs[1])
    assert float(seen.abstention) > 0.05
    assert found.loss == pytest.approx(float(seen.error + 0.2 * seen.abstention + 1000 * seen.cost))
    assert abs(found.gain.mean) < 5 * found.gain.se
    again = rcjax.retune(policy, logs[0]).policy
    assert again.rules == policy.rules
    assert rcjax.check_policy(policy, logs[1]).replacement.gain == found


def test_too_little_to_test_on(policy, logs):
    assert held_out_gain(policy, logs[1].take(slice(49))) is None
    assert held_out_gain(policy, logs[1].select(MODELS[:1])) is None
