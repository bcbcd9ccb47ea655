"""What is held out for the test of a guarantee: apart from what is tuned on, with labels by hand, at the same costs."""

import numpy as np
import pytest
from judged_logs import judged_log
from timed_logs import timed_log

import rcjax
from rcjax.logs import LogError
from rcjax.tuning.evidence import hold_out

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.thorough
def test_half_is_held_out_and_nothing_is_in_both():
    log = rcjax.sample_log(101, seed=0)
    rest, tested = hold_out(log, None, 0.95)
    assert tested.n_queries == 50
    assert sorted([*rest.queries, *tested.queries]) == sorted(log.queries)


@pytest.mark.thorough
def test_without_a_confidence_nothing_is():
    log = rcjax.sample_log(30, seed=0)
    assert hold_out(log, None, None) == (log, None)


def test_only_labels_by_hand_are_of_use_unless_judges_count():
    log = judged_log(400, labels=80)
    rest, tested = hold_out(log, None, 0.95)
    assert tested.n_queries == 40
    assert tested.labelled.all()
    assert rest.labelled.all(axis=1).sum() == 40
    assert hold_out(log, None, 0.95, judged=True)[1].n_queries == 200


@pytest.mark.thorough
def test_another_log_counts_waiting_as_the_first_and_shares_no_query():
    log, other = timed_log(60, seed=0).with_waiting(0.01), timed_log(40, seed=1)
    tested = hold_out(log, other, 0.9)[1]
    np.testing.assert_allclose(tested.query_cost, other.query_cost + 0.01 * np.asarray(other.seconds), rtol=1e-12)
    with pytest.raises(LogError):
        hold_out(log, log, 0.9)
