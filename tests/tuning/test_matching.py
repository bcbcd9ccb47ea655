"""The cheapest policy within a margin of today's error: its position on the ladder, and the note if there is none."""

import dataclasses
import re

import numpy as np
import pytest
from helpers.judged_logs import judged_log
from helpers.timed_logs import timed_log

import rcjax
from rcjax.policy.error_kind import Reference
from rcjax.policy.spec import Spec, Target, recorded_tuning
from rcjax.solving.frontier.frontier import InfeasibleError
from rcjax.tuning.certify import hold_out
from rcjax.tuning.replaying.comparing import compare_policy, default_today
from rcjax.tuning.target_policy import TodayDifferences, compare_positions

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
BEST = MODELS[-1]


@pytest.fixture(scope="module")
def log(float64):
    return rcjax.sample_log(384, seed=4).select(MODELS)


def test_the_policy_stands_at_the_cheapest_position_that_keeps_to_the_margin(log):
    tuned = rcjax.tune(log, match=0.03, today=BEST, intervals=False)
    found = compare_positions(tuned.frontier, log, BEST)
    kept = found.is_cheaper & (np.maximum(found.error_difference, 0) + 1.2816 * found.se <= 0.03)
    assert 0 < kept.sum() < len(kept)
    assert tuned.policy.position == pytest.approx(found.position[kept][0])
    results = (tuned, tuned.frontier.model, rcjax.replay(tuned.policy, log), rcjax.demo_model())
    assert all(one == one != dataclasses.replace(one) and hash(one) for one in results)  # by identity
    assert tuned.policy.expected["error"] == pytest.approx(
        tuned.comparison.today.error + found.error_difference[kept][0]
    )
    assert (tuned.policy.budget, tuned.policy.follows) == (None, False)  # there is no bill to follow
    assert tuned.policy.provenance["tuning"].items() >= {"match": 0.03, "today": BEST}.items()


def test_differences_are_those_of_replays(log):
    """At each rung: what it answers, query by query, beside the model."""
    tuned = rcjax.tune(log, match=0.03, today=BEST, intervals=False)
    found = compare_positions(tuned.frontier, log, BEST)
    for number, point in enumerate(tuned.frontier.rung_indices):
        today = compare_policy(tuned.frontier.policy_at(int(point)), log, BEST).today
        at = int(np.flatnonzero(found.position == number)[0])
        assert found.se[at] == pytest.approx(today.se or 1 / 384)
        assert found.is_cheaper[at] == (float(tuned.frontier.cost[point]) < float(log.cost[2]) * (1 - 1e-9))


def test_a_wider_margin_costs_no_more(log):
    bills = [
        rcjax.tune(log, match=margin, today=BEST, intervals=False).policy.expected["cost"]
        for margin in (0, 0.02, 0.05, 0.99)
    ]
    assert bills == sorted(bills, reverse=True)
    assert bills[0] == pytest.approx(float(log.cost[2]))
    assert bills[-1] == pytest.approx(float(log.cost[0]))


def test_todays_stays_with_advice_if_no_cheaper_policy_keeps_to_the_margin(log):
    tuned = rcjax.tune(log.take(slice(60)), match=0.01, today=BEST, intervals=False)
    assert tuned.policy.models == (BEST,)
    assert tuned.comparison.is_todays_policy
    kept = r" until more is labelled: it costs \$.* as before; no cheaper policy is shown to keep to 1 point on 60 "
    kept += r"queries; about [\d,]+ more might show that one for \$.* does"
    assert re.fullmatch(f"keep {BEST} alone{kept}", tuned.advice)


def test_no_cheaper_policy_is_hoped_for_if_there_is_none(log):
    for today in (log, dataclasses.replace(log, query_cost=0 * log.query_cost).take(slice(None))):
        tuned = rcjax.tune(today, match=0.01, today=MODELS[0], intervals=False)
        assert "today's stays: no policy costs less: log cheaper models" in tuned.notes


def test_the_number_of_labels_that_might_show_a_cheaper_policy():
    one = np.ones(3)
    found = TodayDifferences(
        np.arange(3.0), np.arange(3.0), np.array([True, True, False]), 0.002 * one, np.array([0.02, 0.01, 1e-9]), 300
    )
    for differences, margin in ((found, 0.01), (found._replace(error_difference=-0.003 * one), 0.0)):
        needed = differences.labels_needed(margin)
        assert differences.cheapest(margin, (needed - 1) / 300) is None
        assert differences.cheapest(margin, needed / 300) == 1
    assert found.labels_needed(0.0021) == found.labels_needed(0.0035) == np.inf  # more than 10,000
    assert found.labels_needed(0.001) is None
    assert found.cheapest(0.01) is None
    assert found.position[found.cheapest(0.02)] == 1.0
    assert found.position[found.cheapest(0.02, labels=4)] == 0.0


@pytest.mark.thorough
def test_labels_are_counted_and_not_queries():
    judged = judged_log(300, labels=60, kind="fair", seed=1)
    tuned = rcjax.tune(judged, match=0.0, today=BEST, intervals=False)
    assert any("to keep to 0 points on 60 labelled queries" in note for note in tuned.notes)
    assert compare_positions(tuned.frontier, judged, BEST).queries == 60


def test_the_reference_of_a_log_is_todays(log):
    held_to = dataclasses.replace(log, reference=Reference(BEST, counts="differences"))
    tuned = rcjax.tune(held_to, match=0.03, intervals=False)
    assert tuned.spec.today == BEST
    assert f"{BEST} alone, today's (assumed: give --today)" in tuned.advice


def test_a_policy_may_be_todays(log, tmp_path):
    today = rcjax.tune(log, budget=1.2e-4, intervals=False).policy
    tuned = rcjax.tune(log, match=0.03, today=today, intervals=False)
    assert tuned.comparison.today.name == "the policy in service"
    assert tuned.comparison.cost < today.expected["cost"]
    tuned.policy.save(tmp_path / "policy.json")
    again = rcjax.retune(rcjax.load_policy(tmp_path / "policy.json"), log)
    assert again.spec.today.rungs[0].rules == today.rungs[0].rules
    assert "kept_sample" not in again.spec.today.provenance


def test_margins_that_add_up_are_said(log):
    first = rcjax.tune(log, match=0.03, intervals=False)
    again = rcjax.tune(log, match=0.03, today=first.policy, intervals=False)
    added = f"today's policy was itself tuned to at most 3 points more error than {BEST}, and margins add up"
    assert any(note.startswith(added) for note in again.notes)
    assert not any("margins add up" in note for note in first.notes)


@pytest.mark.parametrize("target", [{"match": 0.03}, {"budget": 1e-4}, {"error_cost": 0.001}])
def test_todays_policy_is_said_to_be_tuned_on_the_same_queries(log, target):
    today = rcjax.tune(log.take(slice(250)), budget=1.2e-4, intervals=False).policy
    known = "today's figures are counted on 250 queries that it was tuned on, and tend to look better than they are"
    assert known in rcjax.tune(log, today=today, intervals=False, **target).notes
    notes = rcjax.tune(rcjax.sample_log(384, seed=5).select(MODELS), today=today, intervals=False, **target).notes
    assert not any("that it was tuned on" in note for note in notes)


def test_numbers_of_labels_that_nobody_gives_are_not_said(log, monkeypatch):
    monkeypatch.setattr(TodayDifferences, "labels_needed", lambda *_: np.inf)
    kept = rcjax.tune(log.take(slice(60)), match=0.01, today=BEST, intervals=False)
    assert kept.kept.endswith("more labels will hardly show one: allow more, or log cheaper models")


@pytest.mark.parametrize("follows", [True, False])
def test_a_policy_in_service_that_stays_is_one_to_use_and_to_check(log, follows, tmp_path):
    """Its figures are those of this log, it is beside itself, and its file names one target."""
    before = rcjax.tune(rcjax.sample_log(384, seed=0).select(MODELS), budget=6e-5, follows=follows, intervals=False)
    today = before.policy
    tuned = rcjax.tune(log, match=0.0, today=today, intervals=False)
    tuned.policy.save(tmp_path / "policy.json")
    policy = rcjax.load_policy(tmp_path / "policy.json")
    assert [rung.rules for rung in policy.rungs] == [rung.rules for rung in today.rungs]
    assert (policy.budget, policy.follows) == (today.budget, today.follows)
    assert tuned.advice.startswith("keep ")
    assert (tuned.comparison.today.error_difference, tuned.comparison.today.se) == (0, 0)
    if follows:
        assert policy.expected["cost"] == pytest.approx(today.budget)
    else:
        replayed = rcjax.replay(policy, log)
        assert (policy.position, policy.expected["error"]) == pytest.approx((today.position, float(replayed.error)))
    assert recorded_tuning(policy).spec.target == Target("match", 0.0)
    check = rcjax.check_policy(policy, rcjax.sample_log(384, seed=2).select(MODELS))
    assert next(one.figure for one in check.findings if one.name == "difference") == pytest.approx(0.0, abs=1e-12)
    assert "the policy answers as the policy in service does, within the margin of 0 points" in check.decision.sentence
    assert tuned.comparison.today.gap_cell == "none"


def test_a_check_beside_a_policy_that_follows_its_bill_says_one_difference(log):
    today = rcjax.tune(log, budget=1.2e-4, intervals=False).policy
    policy = rcjax.tune(log, match=0.03, today=today, intervals=False).policy
    fresh = rcjax.sample_log(384, seed=2).select(MODELS)
    figure = next(one.figure for one in rcjax.check_policy(policy, fresh).findings if one.name == "difference")
    assert figure == pytest.approx(compare_policy(policy, fresh, today).today.error_difference)


def test_todays_does_not_stay_if_it_is_too_slow():
    log = timed_log(300, seed=1)
    slow = log.models[int(np.nanmean(log.seconds, 0).argmax())]
    with pytest.raises(
        InfeasibleError,
        match=r"today's would stay, and takes .* seconds .among the policies that take at most 0\.5 seconds",
    ):
        rcjax.tune(log, match=0.0, today=slow, max_seconds=0.5, intervals=False)


def test_a_margin_of_nothing_may_be_guaranteed_and_one_of_all_is_refused_at_once(log):
    tuned = rcjax.tune(log, match=0.0, today=BEST, confidence=0.9, intervals=False)
    assert tuned.advice.startswith("keep " if tuned.certificate is None else "use ")
    with pytest.raises(ValueError, match=r"match must be below 100 points, such as 0\.01 \(1%\) for one point"):
        rcjax.tune(log, match=1, today=BEST, confidence=0.9, intervals=False)


def test_another_target_keeps_whether_a_service_follows_its_bill(log):
    tuned = rcjax.tune(log, budget=1.2e-4, follows=False, intervals=False)
    assert not tuned.policy.follows
    assert not tuned.policy_for(Target("budget", 1e-4)).follows


def test_todays_policy_without_figures_gets_figures(log):
    today = dataclasses.replace(rcjax.tune(log, budget=6e-5, intervals=False).policy.rungs[1], expected={})
    policy = rcjax.tune(log, match=0.0, today=today, intervals=False).policy
    assert policy.expected["error"] == pytest.approx(float(rcjax.replay(today, log).error))
    assert "error_low" not in policy.expected


def test_todays_policy_that_stays_has_its_seconds_on_this_log():
    log = timed_log(300, seed=1)
    today = rcjax.tune(log, error_cost=1e-9, intervals=False).policy
    policy = rcjax.tune(log, match=0.0, today=today, intervals=False).policy
    assert policy.expected["seconds"] == pytest.approx(float(rcjax.replay(today, log).seconds.mean))


def test_a_margin_needs_a_tuning_of_its_own(log):
    with pytest.raises(ValueError, match="a margin needs a tuning of its own"):
        rcjax.tune(log, intervals=False).policy_for(Target("match", 0.01))


def test_the_default_of_today_does_not_use_held_out_queries():
    log = rcjax.sample_log(300, seed=11)
    rest, tested = hold_out(log, None, Spec(match=0.05, confidence=0.9))
    assert default_today(log) == default_today(tested) != default_today(rest)
    tuned = rcjax.tune(log, match=0.05, confidence=0.9, intervals=False)
    assert tuned.spec.today == default_today(rest)
    free = dataclasses.replace(tested, query_cost=np.zeros_like(tested.query_cost))  # what they cost is not looked at
    options = {"match": 0.05, "confidence": 0.5}
    positions = [rcjax.certify(tuned.frontier, held, **options).position for held in (tested, free)]
    assert positions[0] == positions[1]


@pytest.mark.thorough
def test_a_guarantee_of_the_difference_is_by_queries_held_out():
    big = rcjax.sample_log(1600, seed=5).select(MODELS)
    tuned = rcjax.tune(big, match=0.05, today=BEST, confidence=0.9, intervals=False)
    certificate = tuned.certificate
    assert (certificate.match, certificate.max_error, certificate.confidence) == (0.05, None, 0.9)
    assert certificate.n_queries == tuned.held_out.n_queries == 800
    assert -0.05 < certificate.error_bound <= 0.05
    seen = compare_policy(tuned.policy, tuned.held_out, BEST)
    assert seen.today.error_difference < certificate.error_bound
    assert seen.today.error_difference == pytest.approx(certificate.error_difference)
    way = "more" if certificate.error_difference > 0 else "less"
    assert (
        f"error, {abs(100 * certificate.error_difference):.1f} points {way} than today's"
        in tuned.certificate.describe("error")
    )
    assert tuned.policy.provenance["guarantee"]["match"] == 0.05


def test_todays_stays_if_no_difference_can_be_guaranteed(log):
    few = rcjax.tune(log, match=0.001, today=BEST, confidence=0.99, intervals=False)
    assert few.certificate is None
    stays = "today's stays: no policy can be guaranteed to have at most 0.1 points more error than today's"
    assert any(note.startswith(stays) for note in few.notes)
