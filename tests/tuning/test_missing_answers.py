"""Logs in which a model's answers are missing for queries that are harder, or easier, than the others."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.selection_references import make_log

import rcjax
from rcjax.logs import OddLogWarning
from rcjax.tuning.cross_validation import CandidateSet
from rcjax.tuning.replaying.comparing import compare_policy
from rcjax.tuning.search import select_frontier

N = 192


def with_gaps(lacking, seed=1):
    """A log of two models; the second did not answer most of the "hard" or of the "easy" queries."""
    rng = np.random.default_rng(seed)
    difficulty, skill = rng.normal(size=(N, 1)), np.array([0.3, 1.5])
    right = rng.uniform(size=(N, 2)) < 1 / (1 + np.exp(1.5 * difficulty - skill))
    belief = 1 / (1 + np.exp(1.5 * difficulty - skill + 0.9 * rng.normal(size=(N, 2))))
    is_missing = (difficulty[:, 0] > 0) if lacking == "hard" else (difficulty[:, 0] < 0)
    answered = np.stack([np.ones(N, bool), ~is_missing | (rng.uniform(size=N) < 0.15)], axis=1)
    cost = np.array([1e-5, 1e-3]) * np.exp(0.3 * difficulty)
    return make_log(N, 2, logprob=np.log(belief), correct=right, query_cost=cost, answered=answered)


@pytest.fixture(scope="module", params=["hard", "easy"])
def log(request):
    return with_gaps(request.param)


def test_optimism_is_no_difference_between_two_sets_of_queries(log):
    found = select_frontier(log).cross_validation
    assert np.abs(found.set_optimism).max() < 0.03
    assert found.excess_optimism(CandidateSet.PAIRS) < 0.03


@pytest.mark.filterwarnings("ignore::rcjax.logs.OddLogWarning")
def test_all_figures_are_of_the_queries_that_every_model_answered(log):
    tuned = rcjax.tune(log, error_cost=0.002)
    frontier, complete = tuned.frontier, log.take(log.complete)
    wrong = 1 - np.asarray(complete.correct).mean(0)
    cost = np.asarray(complete.query_cost).mean(0)
    for error, bill, members in zip(frontier.error, frontier.cost, frontier.members, strict=True):
        if members.sum() == 1:
            j = int(members.argmax())
            assert (float(error), float(bill)) == pytest.approx((wrong[j], cost[j]), rel=1e-5)
    assert [model.accuracy for model in tuned.single_models] == pytest.approx((1 - wrong).tolist())
    assert [model.cost for model in tuned.single_models] == pytest.approx(cost.tolist(), rel=1e-5)
    for figure, ends in ((frontier.error, frontier.bands.error), (frontier.cost, frontier.bands.cost)):
        assert ((ends[:, 0] <= figure) & (figure <= ends[:, 1])).all()
    expected = tuned.policy.expected
    assert expected["error_low"] <= expected["error"] <= expected["error_high"]
    again = compare_policy(tuned.policy, log)  # as `rcjax evaluate` replays it
    assert again.n_queries == complete.n_queries
    assert again.cost == pytest.approx(expected["cost"], rel=1e-5)


@pytest.mark.filterwarnings("ignore::rcjax.logs.OddLogWarning")
@pytest.mark.parametrize("lacking", ["hard", "easy"])
def test_a_check_counts_the_queries_that_figures_are_of(lacking):
    """The policy asks the first model alone, which answered every query."""
    log, fresh = with_gaps(lacking), with_gaps(lacking, seed=2)
    policy = rcjax.tune(log, error_cost=1e-4, intervals=False).policy
    assert policy.models == ("m0",)
    check = rcjax.check_policy(policy, fresh, retuning=False)
    assert check.n_queries == fresh.complete.sum() < N
    assert check.error.observed == pytest.approx(1 - np.asarray(fresh.correct)[fresh.complete, 0].mean())
    assert f"{N - check.n_queries} of {N} queries lack the answer of some model, and do not count" in check.remarks


def test_what_figures_leave_out_is_counted(log):
    answered = int(log.complete.sum())
    with pytest.warns(OddLogWarning, match=f"figures are of the {answered} of {N} queries .*m0 is right in "):
        rcjax.tune(log, intervals=False)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_few_complete_queries_warn_and_have_no_intervals():
    """Each model answered two thirds of the queries, and a single query has all answers."""
    turn = (np.arange(60)[:, None] % 3 != np.arange(3)) | (np.arange(60) == 7)[:, None]
    log = make_log(60, 3, seed=7, answered=turn)
    with pytest.warns(OddLogWarning, match="every model answered only 1 of 60 queries"):
        tuned = rcjax.tune(log, error_cost=100.0)
    right, count = np.asarray(log.correct).sum(0), turn.sum(0)
    assert tuned.frontier.bands is None
    assert "error_low" not in tuned.policy.expected
    assert [model.accuracy for model in tuned.single_models] == pytest.approx((right / count).tolist())
    assert jnp.isfinite(tuned.frontier.error).all()
