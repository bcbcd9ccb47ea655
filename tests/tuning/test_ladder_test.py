"""The test of a ladder: the queries held out for it, and their losses where judges count beside labels by hand."""

import dataclasses

import numpy as np
import pytest
from helpers.judged_logs import judged_log, partly

import rcjax
from rcjax.logs import LogError
from rcjax.policy import Spec
from rcjax.solving.frontier.points import LossTerms
from rcjax.tuning.certify import LadderTest, hold_out

pytestmark = pytest.mark.usefixtures("float64")
SURE = Spec(max_error=0.2, confidence=0.95)


@pytest.fixture(scope="module")
def log(float64):
    return judged_log(300, 100)


@pytest.fixture(scope="module")
def frontier(log):
    return rcjax.solve_frontier(rcjax.fit(log), lam=[100.0, 1000.0])


@pytest.mark.thorough
def test_losses_are_those_of_the_labels_if_all_answers_are_labelled(log, frontier):
    held_out = LadderTest.of(frontier, judged_log(200, 200, seed=9), log)
    whole = rcjax.replay(frontier, rcjax.sample_log(200, seed=9).select(log.models))
    error = np.asarray(whole.error)[frontier.rung_indices]
    assert held_out.at([0, 1, 0.25]).wrong.mean(1) == pytest.approx([*error, error @ [0.75, 0.25]], abs=1e-12)
    assert (held_out.most == 1).all()


def test_queries_after_the_last_label_do_not_count(log, frontier):
    held_out = LadderTest.of(frontier, judged_log(200, 20, seed=9), log)
    wrong = held_out.at([1]).wrong
    assert 20 <= wrong.size == len(held_out.most) <= 200
    assert (wrong <= held_out.most + 1e-12).all()
    assert held_out.is_below([1], held_out.error_bound(1, 0.1) + 1e-6, 0.1)


def test_half_of_a_log_is_held_out_for_a_guarantee():
    log = rcjax.sample_log(101, seed=0)
    rest, tested = hold_out(log, None, SURE)
    assert tested.n_queries == 50
    assert sorted([*rest.queries, *tested.queries]) == sorted(log.queries)


def test_only_queries_with_labels_by_hand_are_held_out_unless_judges_count():
    log = judged_log(400, labels=80)
    rest, tested = hold_out(log, None, SURE)
    assert tested.n_queries == 40
    assert tested.labelled.all()
    assert rest.labelled.all(axis=1).sum() == 40
    judged = dataclasses.replace(SURE, judged=True)
    assert hold_out(log, None, judged)[1].n_queries == 200
    drawn = np.zeros((400, len(log.models)), bool)  # by the same generator as the half that is held out
    drawn[np.random.default_rng(0).permutation(400)[:80]] = True
    others = partly(rcjax.sample_log(400, seed=0).select(log.models), drawn, np.asarray(log.hand_labels.judged))
    halves = hold_out(others, None, judged)
    assert [half.labelled.any(1).sum() for half in halves] == [40, 40]


def test_a_held_out_log_that_shares_queries_is_refused(log):
    with pytest.raises(LogError):
        hold_out(log, log, SURE)


def test_abstentions_that_cost_more_than_errors_have_bounds_above_one(log):
    nothing, one = np.zeros((1, 50)), np.ones((1, 50))
    held_out = LadderTest(log, LossTerms(nothing, nothing, one), np.ones(50), abstain_price=2.0)
    assert held_out.error_bound(0, 0.05) == 2.0
    assert not held_out.is_below([0], 1.5, 0.05)
