"""What held-out queries lost where judges count beside labels by hand."""

import numpy as np
import pytest
from judged_logs import judged_log

import rcjax
from rcjax.tuning.evidence import HeldOut

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def log(float64):
    return judged_log(300, 100)


@pytest.fixture(scope="module")
def frontier(log):
    return rcjax.solve_frontier(rcjax.fit(log), lam=[100.0, 1000.0])


@pytest.mark.thorough
def test_losses_are_those_of_the_labels_where_all_is_labelled(log, frontier):
    evidence = HeldOut(frontier, judged_log(200, 200, seed=9), log).evidence([0, 1])
    whole = rcjax.replay(frontier, rcjax.sample_log(200, seed=9).select(log.models))
    assert evidence.wrong.mean(1) == pytest.approx(np.asarray(whole.error), abs=1e-12)
    assert (evidence.most == 1).all()


def test_what_is_behind_the_last_label_does_not_count(log, frontier):
    evidence = HeldOut(frontier, judged_log(200, 20, seed=9), log).evidence([1])
    assert 20 <= evidence.wrong.size == len(evidence.most) <= 200
    assert (evidence.wrong <= evidence.most + 1e-12).all()
    assert evidence.errs_below(evidence.error_bound(0.1) + 1e-6, 0.1)
