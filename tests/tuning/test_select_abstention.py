"""Where models may abstain: the frontier of the cascades that earn their place, intervals around it, guarantees."""

import dataclasses

import numpy as np
import pytest
from helpers.selection_references import make_log

import rcjax
from rcjax.tuning.search import make_search

pytestmark = pytest.mark.usefixtures("float64")
N, K, PRICE = 90, 3, 0.2
LAM = np.array([1e-3, 4e-3, 2e-2])


@pytest.fixture(scope="module")
def log(float64):
    return make_log(N, K, seed=3)


@pytest.fixture(scope="module")
def model(log):
    return rcjax.fit(log)


@pytest.fixture(scope="module")
def selection(log, model):
    return rcjax.tuning.select_frontier(log, model=model, lam=LAM, abstain_price=PRICE)


@pytest.fixture(scope="module")
def whole(log, model):
    return rcjax.tuning.select_frontier(log, model=model, abstain_price=PRICE).frontier


@pytest.mark.thorough
def test_the_figures_are_those_of_the_log(log, selection, whole):
    """But for the smoothing and the luck of the error: who is asked, and which queries get no answer, is counted."""
    for frontier in (selection.frontier, whole):
        seen = rcjax.replay(frontier, log)
        np.testing.assert_allclose(frontier.cost, seen.spent, rtol=1e-9)
        np.testing.assert_allclose(frontier.abstention, seen.abstention, atol=1e-12)
        assert np.abs(np.asarray(frontier.error - seen.error)).max() < 0.15
        assert frontier.abstain_price == PRICE
    assert float(whole.abstention.max()) > 0.1
    assert (np.asarray(whole.abstain_thresholds) <= np.asarray(whole.thresholds)).all()


@pytest.mark.thorough
def test_an_abstention_that_costs_an_error_changes_nothing(log, model):
    found, never = (rcjax.tuning.select_frontier(log, model=model, abstain_price=each).frontier for each in (1.0, None))
    for name in ("lam", "error", "cost", "thresholds", "members"):
        np.testing.assert_array_equal(getattr(found, name), getattr(never, name))
    assert found.policy_at(7).rules == never.policy_at(7).rules
    assert not np.asarray(found.abstention).any()


# -- intervals


@pytest.mark.thorough
def test_tuned_again_on_the_log_itself_the_policies_are_the_same(log, selection):
    frontier = selection.frontier
    _, again = make_search(frontier.spec).draw_tuner(frontier, log, np.arange(len(LAM)))(np.arange(N))
    np.testing.assert_array_equal(again.members, frontier.members)
    np.testing.assert_array_equal(again.actions, frontier.policies.actions)
    np.testing.assert_allclose(again.bounds, frontier.policies.bounds, rtol=1e-6)


# -- guarantees


@pytest.fixture(scope="module")
def held_out(float64):
    return dataclasses.replace(make_log(600, K, seed=4), source="held out")


@pytest.mark.thorough
def test_an_abstention_counts_at_its_price(whole, held_out):
    found = rcjax.certify(whole, held_out, max_error=0.25, confidence=0.9)
    seen = rcjax.replay(found.policy, held_out)
    errors, abstentions = (round(float(share) * seen.n_queries) for share in (seen.error, seen.abstention))
    assert (found.errors, found.abstentions, found.n_queries) == (errors, abstentions, seen.n_queries)
    assert abstentions > 0
    mean = (errors + PRICE * abstentions) / seen.n_queries
    assert mean < found.error_bound <= 0.25
    guarantee = found.policy.provenance["guarantee"]
    assert (guarantee["abstentions"], guarantee["abstain_price"]) == (abstentions, PRICE)
    with pytest.raises(rcjax.InfeasibleError, match=r"abstained on \d+, each counted as 20 %"):
        rcjax.certify(whole, held_out, max_error=0.02)
