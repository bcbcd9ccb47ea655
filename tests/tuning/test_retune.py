"""Tuning again: the same target and search, what the record of a policy says, and what there is to gain."""

import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import rcjax
from rcjax.logs import LogError, OddLogWarning
from rcjax.logs.kept_sample import with_carried_queries
from rcjax.model.label_outcomes import deal_folds
from rcjax.policy.ladder import with_provenance
from rcjax.policy.spec import Target, recorded_tuning
from rcjax.tuning.retuning_gain import held_out_gain, retuning_terms

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
    assert tuning.spec.target == Target("lam", policy.expected["lam"])
    assert (tuning.models, tuning.spec.cascade) == (policy.models, None)
    with pytest.raises(ValueError, match="neither a target nor its λ: tune a new one"):
        rcjax.retune(dataclasses.replace(bare, expected={}), logs[1])


def test_retune_tunes_on_the_log_and_the_queries_that_the_policy_carries(policy, logs):
    found, both = rcjax.retune(policy, logs[1]), with_carried_queries(policy, logs[1])
    selection = rcjax.tuning.select_frontier(both)
    assert found.policy.rules == selection.frontier.policy(error_cost=0.003).rules
    assert found.policy.provenance["tuning"] == {**policy.provenance["tuning"], "today": found.spec.today}
    assert found.policy.provenance["digest"] == both.digest
    assert found.remarks[0] == found.advice
    assert f"tuned on {N} queries of the log and {N} that the policy carries, priced as the fresh ones" in found.remarks
    assert found.frontier.bands is None
    again = rcjax.retune(found.policy, logs[0])  # which the policy carries, too
    assert again.log.n_queries == 2 * N
    assert again.policy.rules == found.policy.rules


def test_retuning_warns_of_an_odd_log_at_the_line_of_its_caller(policy, logs):
    """As tuning does; a few fresh queries are not odd, as those that the policy carries count too."""
    wrong = dataclasses.replace(logs[1], correct=jnp.zeros_like(logs[1].correct))
    with pytest.warns(OddLogWarning, match="no answer of any model is right") as warned:
        rcjax.retune(policy, wrong)
    assert {warning.filename for warning in warned} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error", OddLogWarning)
        rcjax.retune(policy, logs[1].take(slice(10)))


def test_a_new_policy_is_compared_at_the_price_of_the_target(policy, logs):
    assert retuning_terms(policy, logs[1]).lam == 1 / 0.003 != policy.expected["lam"]
    budget = with_provenance(policy, tuning={**policy.provenance["tuning"], "error_cost": None, "budget": 1e-4})
    assert retuning_terms(budget, logs[1]).lam == policy.expected["lam"]
    assert retuning_terms(policy, logs[1].select(MODELS[:1])).mendable


def test_retune_uses_the_log_alone_if_no_queries_are_carried(policy, logs):
    bare = with_provenance(policy, kept_sample=None)
    found = rcjax.retune(bare, logs[0])
    assert found.policy.rules == policy.rules
    assert found.policy.provenance["digest"] == logs[0].digest


@pytest.mark.thorough
def test_a_guarantee_is_tested_again(logs):
    frontier = rcjax.solve_frontier(rcjax.fit(logs[0]), lam=[1.0, 1e3, 1e5])
    before = rcjax.certify(frontier, logs[1], max_error=0.5, confidence=0.9).policy
    assert before.provenance["tuning"]["max_error"] == 0.5
    found = rcjax.retune(before, logs[1])
    guarantee = found.policy.provenance["guarantee"]
    assert (guarantee["max_error"], guarantee["n_queries"]) == (0.5, N / 2)
    assert guarantee["confidence"] == pytest.approx(0.9)
    assert found.certificate.describe(found.log.error_kind.noun).startswith(
        "guaranteed with 90 % confidence: the target is kept; on 100 queries held out"
    )


def test_a_remark_names_a_model_that_the_log_lacks(policy, logs):
    more = dataclasses.replace(
        policy,
        provenance={"tuning": {**policy.to_json()["provenance"]["tuning"], "models": ["retired", *MODELS]}},
    )
    found = rcjax.retune(more, logs[1])
    assert "the log lacks retired: tuned without" in found.remarks
    with pytest.raises(LogError, match=r"it lacks llama3\.1-70b: there are no two models left"):
        rcjax.retune(policy, logs[1].select(MODELS[:1]))


@pytest.mark.thorough
def test_where_the_log_lacks_todays_a_remark_names_its_replacement():
    log = rcjax.sample_log(2 * N, seed=3).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    *rest, large = log.models
    policy = rcjax.tune(log.take(slice(N)), match=0.2, today=large, intervals=False).policy
    again = rcjax.retune(policy, log.take(slice(N, 2 * N)).select(rest))
    assert again.spec.today in rest
    assert f"the log lacks {large}, today's when it was tuned: compared with {again.spec.today}" in again.notes
    assert not any("nobody has said" in note for note in again.notes)


def test_the_loss_of_those_tuned_again_is_that_of_five_folds_by_hand(policy, logs):
    """Each fold in turn is left out, the rest is tuned on, and the policy replayed at the costs of the whole log."""
    log = with_carried_queries(policy, logs[1]).take(np.random.default_rng(0).permutation(2 * N))
    found = held_out_gain(policy, logs[1])
    fold, losses = deal_folds(log.queries, log.complete), []
    for number in range(5):
        tuned = rcjax.tuning.select_frontier(log.take(fold != number), lam=[found.lam]).frontier.policy(lam=found.lam)
        rest = log.take(fold == number)
        at_mean = dataclasses.replace(rest, query_cost=rest.query_cost * 0 + log.cost, cost=log.cost)
        seen = rcjax.replay(tuned, at_mean)
        losses.append(float(seen.error) + found.lam * float(seen.cost))
    assert found.to_json()["retuned_loss"] == pytest.approx(np.mean(losses), rel=1e-6)


@pytest.fixture(scope="module")
def ladder(logs):
    frontier = rcjax.tuning.select_frontier(logs[0]).frontier
    cost = np.asarray(frontier.cost)
    policy = frontier.policy(budget=float(0.6 * cost.max() + 0.4 * cost.min()))
    assert len(policy.adjacent_rungs) == 2
    return policy


def test_a_ladder_is_tuned_again_to_one(ladder, logs):
    retuned = rcjax.retune(ladder, logs[1]).policy
    assert isinstance(retuned, rcjax.Ladder)
    assert retuned.expected["cost"] == pytest.approx(ladder.budget)
    assert retuned.budget == ladder.budget
    same = rcjax.retune(with_provenance(ladder, kept_sample=None), logs[0]).policy
    assert [rung.rules for rung in same.rungs] == [rung.rules for rung in ladder.rungs]
    assert same.position == ladder.position
    assert recorded_tuning(ladder.rungs[0]) == recorded_tuning(ladder)


def test_the_loss_of_a_ladder_is_that_of_its_replay(ladder, logs):
    found, seen = held_out_gain(with_provenance(ladder, kept_sample=None), logs[1]), rcjax.replay(ladder, logs[1])
    assert found.lam == ladder.expected["lam"]
    assert found.loss == pytest.approx(float(seen.error + found.lam * seen.cost))


def test_a_policy_looks_better_on_queries_that_it_was_tuned_on_than_it_is(ladder, logs):
    """Its optimism counts on those that it carries; less, where these are a few of many that it was tuned on."""
    seen = rcjax.replay(ladder, with_carried_queries(ladder, logs[1]))
    lam = ladder.expected["lam"]
    many = with_provenance(ladder, complete_queries=50 * N)
    raised, hardly = (
        held_out_gain(policy, logs[1], seed=1).loss - float(seen.error + lam * seen.cost) for policy in (ladder, many)
    )
    assert 0.001 < raised < 0.05
    assert hardly == pytest.approx(raised / 50, rel=1e-6)


def test_a_ladder_is_compared_by_its_expected_figures(ladder, logs):
    found = rcjax.check_policy(ladder, logs[1], retuning=False)
    seen = rcjax.replay(ladder, logs[1])
    assert found.followed["error_tuned"] == pytest.approx(float(seen.error))
    assert found.cost_as_tuned.observed == pytest.approx(float(seen.spent))
    assert found.cost_as_tuned.expected == pytest.approx(ladder.expected["cost"])
    assert (found.policy_models, found.drifted) == (ladder.models, False)


@pytest.mark.thorough
def test_abstentions_count_at_their_price_in_what_is_gained(logs):
    policy = rcjax.tuning.select_frontier(logs[0], lam=[1000.0], abstain_price=0.2).frontier.policy(lam=1000.0)
    bare = with_provenance(policy, kept_sample=None)
    found, seen = held_out_gain(bare, logs[1]), rcjax.replay(policy, logs[1])
    assert float(seen.abstention) > 0.05
    assert found.loss == pytest.approx(float(seen.error + 0.2 * seen.abstention + 1000 * seen.cost))
    assert abs(found.gain.mean) < 5 * found.gain.se
    again = rcjax.retune(with_provenance(policy, kept_sample=None), logs[0]).policy
    assert again.rules == policy.rules


def test_too_few_labels_for_a_decision_are_refused(policy, logs):
    bare = with_provenance(policy, kept_sample=None)
    assert held_out_gain(bare, logs[1].take(slice(49))) is None
    assert held_out_gain(policy, logs[1].take(slice(49))).n_queries == N + 49  # with those that the policy carries
    assert held_out_gain(policy, logs[1].select(MODELS[:1])) is None


def test_a_few_fresh_queries_never_outweigh_what_is_carried(policy, logs):
    """They may be a bad week."""
    turned = {name: getattr(logs[1], name)[:, ::-1] for name in ("logprob", "correct")}
    changed = dataclasses.replace(logs[1], **turned)
    assert with_carried_queries(policy, logs[1]).n_queries == 2 * N
    assert with_carried_queries(policy, changed.take(slice(N - 1))).n_queries == 2 * N - 1
