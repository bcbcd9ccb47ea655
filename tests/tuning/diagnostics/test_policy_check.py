"""`check_policy`: quiet where nothing has changed, awake where something has, and what it says when it cannot tell."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

import rcjax
from benchmarks import drift as changes
from rcjax.logs import LogError
from rcjax.logs.log import FailedCalls
from rcjax.policy.decisions import Rule
from rcjax.policy.error_kind import Reference
from rcjax.policy.ladder import penalty, with_provenance
from rcjax.tuning.diagnostics import policy_check
from rcjax.tuning.diagnostics.decision import Replacement, _broken_promise
from rcjax.tuning.replaying.comparing import compare_policy

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("llama3.2-1b", "llama3.1-70b")
LAM = 1000.0
N = 300


@pytest.fixture(scope="module")
def logs(float64):
    """A log tuned on, a fresh one of its size, and one of a thousand queries."""
    log = rcjax.sample_log(2 * N + 1000, seed=1).select(MODELS)
    return log.take(slice(N)), log.take(slice(N, 2 * N)), log.take(slice(2 * N, None))


def tune(log):
    return rcjax.solve_frontier(rcjax.fit(log), lam=[LAM], cascades=[MODELS]).policy(lam=LAM)


@pytest.fixture(scope="module")
def policy(logs):
    return tune(logs[0])


def check(policy, log, **options):
    return rcjax.check_policy(policy, log, **{"retuning": False} | options)


def drifted(found):
    return {each.name for each in found.findings if each.verdict == "bad"}


def test_an_unchanged_log_raises_no_alarm(policy, logs):
    found = rcjax.check_policy(policy, logs[1])
    assert (found.drifted, found.verdict, found.policy_models) == (False, "fine", MODELS)
    assert (found.n_queries, found.carried, found.decision.state) == (N, N, "as expected")
    assert [each.name for each in found.findings] == ["error", "cost", *["calibration error", "confidences"] * 2]
    assert not any(each.advice for each in found.findings)


def test_sixteen_queries_show_neither_a_drift_nor_a_kept_promise(policy, logs):
    found = check(policy, logs[1].take(slice(16)))
    assert (found.drifted, found.decision.state) == (False, "doubtful")
    assert "the 16 queries of this log are too few to tell" in found.decision.sentence
    assert found.decision.advice == "log and label more queries, then check all together"
    log = dataclasses.replace(logs[1], correct=jnp.ones_like(logs[1].correct)).take(slice(16))
    assert "above the limit" not in check(policy, log).decision.sentence  # fewer errors than expected


@pytest.mark.parametrize(
    ("change", "seen_by"),
    [
        (lambda log, policy: changes.surer(log, 1.0), {"calibration error", "confidences"}),
        (lambda log, policy: changes.swapped(log, policy), {"confidences"}),
        (lambda log, policy: changes.less_right(log, 0.1, np.random.default_rng(0)), {"error"}),
        (lambda log, policy: changes.dearer(log, 2.0), {"cost"}),
    ],
    ids=["surer", "replaced", "less right", "dearer"],
)
def test_changes_are_seen_in_a_thousand_queries(policy, logs, change, seen_by):
    assert not check(policy, logs[2]).drifted
    found = check(policy, change(logs[2], policy))
    assert seen_by <= drifted(found)
    assert found.drifted == bool({"error", "cost"} & drifted(found))  # which are primary; the others explain
    assert all(each.advice for each in found.findings if each.verdict == "bad")


def test_a_policy_that_todays_model_dominates_is_not_kept(policy):
    """The policy keeps its promise, but today's model, which it does not ask, is better here for less money."""
    log = rcjax.sample_log(3 * N, seed=1).select((*MODELS, "llama3.1-8b")).take(slice(N, 2 * N))
    tuned = with_provenance(policy, tuning={**policy.provenance["tuning"], "today": "llama3.1-8b"})
    before = check(tuned, log)
    today = log.models.index("llama3.1-8b")
    better = dataclasses.replace(log, correct=log.correct.at[:, today].set(True))
    after = check(tuned, better)
    assert before.decision.advice.startswith("keep the policy")
    assert after.decision.state == before.decision.state == "as expected"
    assert after.decision.advice == "use llama3.1-8b alone: it has less error on these queries, for less money"
    assert after.decision.reasons[0].startswith("llama3.1-8b alone has 2")


@pytest.fixture(scope="module")
def matched(logs):
    return rcjax.tune(logs[0], match=0.05, today=MODELS[1], intervals=False).policy


def test_inverted_labels_are_no_kept_promise_although_todays_model_fails_as_well(matched, logs):
    """The difference from today's, the only figure before, is then within the margin."""
    assert check(matched, logs[2]).decision.state == "as expected"
    inverted = dataclasses.replace(logs[2], correct=~logs[2].correct)
    found = rcjax.check_policy(matched, inverted)
    assert (found.drifted, found.verdict, found.decision.state) == (True, "bad", "something else has changed")
    assert (found.decision.tune_again, drifted(found) & {"difference", "own error"}) == (False, {"own error"})
    assert found.decision.headline.startswith(
        f"check the labels first: the surer {', '.join(MODELS)} are, the more often"
    )
    assert found.decision.reasons == (
        "a new policy would learn the mistake, if there is one",
    )  # and no model is praised


def test_a_difference_above_the_worst_of_the_tuning_is_an_alarm(logs):
    policy = rcjax.tune(logs[0], budget=float(logs[0].cost.mean()), today=MODELS[1], intervals=False).policy
    assert check(policy, logs[2]).difference.rival == "llama3.1-70b alone"
    assert not check(policy, logs[2]).drifted
    right = logs[2].correct.at[:, logs[2].models.index(MODELS[1])].set(True)  # today's is better, and the policy, too
    found = check(policy, dataclasses.replace(logs[2], correct=right))
    assert drifted(found) >= {"worst difference"}
    assert "than llama3.1-70b alone, at worst " in found.decision.headline
    assumed = rcjax.tune(logs[0], budget=float(logs[0].cost.mean()), intervals=False).policy
    assert check(assumed, logs[2]).difference is None


@pytest.mark.parametrize(
    ("target", "state"), [({"max_error": 0.15}, "worse than expected"), ({"budget": 5e-5}, "as expected")]
)
def test_abstentions_count_at_their_price(logs, target, state):
    """Without them, a policy that answers nothing would be better than expected."""
    policy = rcjax.tune(logs[0], **target, abstain_price=0.2, intervals=False).policy
    assert check(policy, logs[2]).decision.state == "as expected"
    unsure = dataclasses.replace(logs[2], logprob=logs[2].logprob * 0 - 8.0)
    found = check(policy, unsure)
    assert found.error.observed == pytest.approx(0.2) == pytest.approx(compare_policy(policy, unsure).error)
    assert found.error.expected == penalty(policy.expected) > policy.expected["error"] + 0.05
    assert found.decision.state == state
    assert "the policy errs on 20.0 % (an abstention counts as 20 %), " in found.decision.sentence


def test_a_new_policy_that_only_abstains_breaks_its_promise(logs):
    policy = rcjax.tune(logs[0], error_cost=0.005, abstain_price=0.3, intervals=False).policy
    silent = dataclasses.replace(policy, rules={name: (Rule(1.0, "abstain"),) for name in policy.models})
    why_not = _broken_promise(policy, silent, logs[1])
    assert why_not.startswith("on the 300 queries that this policy carries, the new policy has 30.0 % error")
    assert _broken_promise(policy, policy, logs[1]) is None


def test_tuning_again_gains_where_two_models_have_changed_places(policy, logs):
    """The log contradicts what the policy carries."""
    log = logs[1]
    turned = dataclasses.replace(log, logprob=log.logprob[:, ::-1], correct=log.correct[:, ::-1])
    found = rcjax.check_policy(policy, turned)
    assert found.replacement.improvement > 0.005
    assert found.replacement.held_out.n_queries == 2 * N
    assert found.decision.tune_again == found.replacement.replaces(broken=False) == (not found.replacement.faults)


def test_a_small_improvement_is_reported_without_cross_validation(policy, logs):
    found = rcjax.check_policy(policy, logs[2])
    assert (found.replacement.held_out, found.replacement.replaces(broken=False), found.decision.tune_again) == (
        None,
        False,
        False,
    )
    assert abs(found.replacement.improvement) <= 0.005
    (reason,) = found.decision.reasons
    assert "on these and the carried queries" in reason
    assert not any("was not tested" in remark for remark in found.remarks)


@pytest.mark.thorough
def test_figures_are_those_of_a_replay_and_of_the_log(policy, logs):
    fresh = logs[1]
    found, seen = check(policy, fresh), rcjax.replay(policy, fresh)
    assert found.error.observed == pytest.approx(float(seen.error))
    assert found.error.se > float(seen.error_se)  # the promise is an estimate, too
    assert found.money.observed == pytest.approx(float(seen.cost))
    assert found.money.se > np.sqrt(2) * float(seen.cost_se)  # and mean costs are
    for row in found.models:
        j = fresh.models.index(row.model)
        raw, right = np.asarray(fresh.logprob)[:, j], np.asarray(fresh.correct)[:, j]
        phi = np.array([policy.calibrate(row.model, logprob=value) for value in raw.tolist()])
        assert row.calibration_error == pytest.approx(rcjax.model.expected_calibration_error(phi, right), abs=1e-4)
        assert row.median == pytest.approx(np.exp(np.median(raw)), rel=1e-6)


def test_a_policy_that_carries_nothing_says_what_to_do(policy, logs):
    with pytest.raises(ValueError, match=r"carries no queries .* made by hand: tune one"):
        check(dataclasses.replace(policy, provenance={}), logs[1])


def test_the_promise_is_the_expected_error_whatever_its_interval(policy, logs):
    expected = {**policy.expected, "error": 0.0005, "error_low": 0.0, "error_high": 0.9, "level": 0.9}
    found = check(dataclasses.replace(policy, expected=expected), logs[1])
    assert drifted(found) == {"error"}
    assert found.error.interval == (0.0, 0.9)
    assert "than the 0.1 % expected" in found.decision.headline


def test_a_policy_without_a_promise_is_compared_with_its_carried_queries(policy, logs):
    found = rcjax.check_policy(dataclasses.replace(policy, expected={}), logs[1])
    assert found.error.expected == pytest.approx(float(rcjax.replay(policy, logs[0]).error))
    assert abs(found.replacement.improvement) <= 0.005  # at the price of its target
    assert found.remarks == ()
    target = {**policy.provenance["tuning"], "error_cost": None, "lam": None, "max_error": 0.4}
    limited = with_provenance(dataclasses.replace(policy, expected={}), tuning=target)
    found = rcjax.check_policy(limited, logs[1])
    assert found.replacement.improvement is None
    assert found.remarks == ("whether tuning again would gain was not tested: the policy does not record its λ",)


# -- weeks


def weekly(log, per_week=100, first=0):
    """The same log, so many queries a week, by turns."""
    week = first + np.arange(log.n_queries) // per_week
    return dataclasses.replace(log, time=tuple((1.7e9 + 7 * 86_400 * week).tolist()))


def test_the_window_is_eight_weeks_and_earlier_weeks_without_an_alarm_join_the_queries_tuned_on(policy, logs):
    found = check(policy, weekly(logs[2]))
    assert (found.n_queries, found.error.n_expected) == (800, 255 + 200)
    assert (found.window.weeks, found.window.earlier) == (8, 200)
    assert (found.window.looks, found.window.since, found.drifted) == (52, None, False)
    once = check(policy, logs[2])
    assert (once.n_queries, once.window.looks, once.window.weeks, once.window.describe()) == (1000, 1, 0, "")
    assert check(policy, logs[2], looks=52).window.describe() == "Checked weekly (--looks)."
    shuffled = weekly(logs[2]).take(np.random.default_rng(0).permutation(1000))
    assert check(policy, shuffled).error.p_value == pytest.approx(found.error.p_value)


def test_a_change_is_dated_and_its_weeks_do_not_join(policy, logs):
    log = logs[2]
    spoilt = changes.less_right(log.take(slice(500, None)), 0.3, np.random.default_rng(0))
    right = np.concatenate([np.asarray(log.correct)[:500], np.asarray(spoilt.correct)])
    found = check(policy, weekly(dataclasses.replace(log, correct=jnp.asarray(right))))
    assert found.drifted
    assert found.window.since == "2023-12-12"  # the sixth of ten weeks, counted back from the last query
    assert found.window.earlier < 200


def test_p_values_are_larger_with_52_looks_a_year(policy, logs):
    changed = changes.less_right(logs[2], 0.06, np.random.default_rng(1))
    once, weekly_ = (check(policy, changed, looks=looks) for looks in (1, 52))
    assert weekly_.findings[0].adjusted_p > 5 * once.findings[0].adjusted_p
    assert weekly_.findings[0].p_value == once.findings[0].p_value
    assert once.error == weekly_.error


def test_a_remark_explains_models_that_were_not_asked(policy, logs):
    def without(some):
        answered = jnp.ones((N, 2), bool).at[:some, 1].set(False)
        logprob = jnp.where(answered, logs[1].logprob, jnp.nan)
        return dataclasses.replace(logs[1], answered=answered, logprob=logprob)

    found = check(policy, without(30))
    assert (found.n_queries, [row.answers for row in found.models]) == (N - 30, [N, N - 30])
    assert found.remarks[0] == "30 of 300 queries lack the answer of some model, and do not count"
    assert not found.drifted
    failed = FailedCalls(frozenset(MODELS), frozenset(MODELS[1:]), 30)
    lacking = check(policy, dataclasses.replace(without(30), failed=(failed,)))
    assert (drifted(lacking), lacking.decision.state, lacking.drifted) == ({"lacking answers"}, "no fair sample", True)
    advice = lacking.decision.reasons
    again = Replacement(None, advice)  # a retuned policy is held to the same fair sample
    assert (
        check(policy, dataclasses.replace(without(30), failed=(failed,)), replacement=again).decision.reasons == advice
    )


def test_advice_and_reasons_agree_on_a_small_gain_and_on_none_tested(policy, logs):
    worse = changes.less_right(logs[1], 0.15, np.random.default_rng(0))
    again = Replacement(0.003, effect="$1 instead of $2")
    kept, broken = (check(policy, log, replacement=again).decision for log in (logs[1], worse))
    gain = "a policy tuned again on these and the carried queries, replayed on them: $1 instead of $2"
    least = "together that gains 0.3 points of error, and 0.5 replace a policy: the policy stays"
    assert (kept.tune_again, kept.reasons) == (False, (f"{gain}; {least}",))
    assert (broken.state, broken.tune_again, broken.reasons) == ("worse than expected", True, (gain,))
    limited = Replacement(-0.003, (), None, "at most 5 % error", exceeds_significantly=True, effect="$1 instead of $2")
    over = check(policy, logs[1], replacement=limited).decision
    assert (over.state, over.alarm, over.tune_again, over.advice) == (
        "doubtful",
        False,
        True,
        "tune again, to keep the limit",
    )
    untested = check(policy, logs[1], replacement=Replacement(None)).decision
    assert (untested.tune_again, untested.reasons) == (True, ())
    assert untested.advice == "tune again: whether that gains cannot be tested"


def test_parts_of_a_log_in_any_order_are_judged_in_the_order_of_time(policy, logs, monkeypatch):
    """As `rcjax retune` judges them: folds are dealt by the order of the queries."""
    seen = []
    monkeypatch.setattr(policy_check, "assess_replacement", lambda policy, after, log, known, seed: seen.append(log))
    log = dataclasses.replace(logs[2], time=tuple((1.7e9 + 6000.0 * np.arange(logs[2].n_queries)).tolist()))
    check(policy, log.take(slice(None, None, -1)), retuning=True)
    (judged,) = seen
    assert 500 < judged.n_queries < 1000
    assert judged.queries == log.queries[-judged.n_queries :]
    assert policy_check.last_weeks(log.take(slice(None, None, -1))).queries == judged.queries


def test_a_check_is_strict_json(policy, logs):
    right = jnp.asarray(logs[1].correct).at[:].set(False)
    found = rcjax.check_policy(policy, dataclasses.replace(logs[1], correct=right)).to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["drifted"] is True
    assert {"figure", "limits", "p_value", "verdict", "advice"} <= set(found["findings"][0])


def test_a_log_that_cannot_be_checked_is_refused(policy, logs):
    with pytest.raises(LogError, match="all of its queries were tuned on"):
        check(policy, logs[0])
    with pytest.raises(LogError, match=r"no model 'llama3\.1-70b'"):
        check(policy, logs[1].select(MODELS[:1]))
    with pytest.raises(LogError, match="fewer than two answers of"):
        check(policy, logs[1].take([0]))
    ahead = dataclasses.replace(logs[1], time=(*[1.7e9] * (N - 1), 1.72e9))  # an error of its clock
    with pytest.raises(LogError, match=r"the 1 query of the 8 weeks up to 2024-07-03, its latest time: fewer than two"):
        check(policy, ahead)
    differences = dataclasses.replace(logs[1], reference=Reference(MODELS[-1], counts="differences"))
    with pytest.raises(LogError, match="it counts the difference, and the policy was tuned for the error"):
        check(policy, differences)


def test_easier_questions_of_another_kind_are_seen_and_no_alarm(shared_data):
    prices = shared_data / "prices.toml"
    pair = ("llama3.1-8b", "llama3.1-70b")
    read = {"prices": prices, "models": pair, "task": "choice"}
    train, fresh = (rcjax.read_log(shared_data / f"mmlu_llama_{part}.csv", **read) for part in ("train", "test"))
    policy = rcjax.solve_frontier(rcjax.fit(train), lam=[LAM], cascades=[pair]).policy(lam=LAM)
    assert not check(policy, fresh).drifted
    found = check(policy, rcjax.read_log(shared_data / "triviaqa_llama_test.csv", **read))
    assert (drifted(found), found.decision.state) == ({"calibration error", "confidences"}, "better than expected")
    assert any("costs" in remark and "that is not drift" in remark for remark in found.remarks)
