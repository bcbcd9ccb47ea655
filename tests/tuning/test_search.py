"""The two searches for a frontier, by their public names: what they find, what limits it, and tuning on a draw."""

import dataclasses

import jax
import numpy as np
import pytest

import rcjax
from rcjax.logs.errors import LogError
from rcjax.logs.log import HandLabels
from rcjax.model.calibrated_models import fit_calibrated
from rcjax.policy.spec import OWN_OBJECTIVE, SecondsLimit, Spec
from rcjax.solving.frontier.frontier import InfeasibleError
from rcjax.tuning.candidate_scores import Blending
from rcjax.tuning.candidate_table import RESAMPLED_RUNGS, Candidates
from rcjax.tuning.cross_validation import CandidateSet
from rcjax.tuning.replaying.walk import loss_terms_on_log
from rcjax.tuning.search import (
    LabelSearch,
    SecondsFilter,
    add_optimism,
    estimate_blending,
    make_search,
    take_training_rows,
)

pytestmark = pytest.mark.usefixtures("float64")

N, MODELS = 192, ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
LAM = [100.0, 1000.0]


@pytest.fixture(scope="module")
def log(float64):
    log = rcjax.sample_log(N, seed=1).select(MODELS)
    return dataclasses.replace(log, seconds=jax.device_put(np.tile([0.5, 1.0, 4.0], (N, 1))))


@pytest.fixture(scope="module")
def by_labels():
    return make_search(Spec())


@pytest.fixture(scope="module")
def model(log, by_labels):
    return by_labels.fit(log)


@pytest.fixture(scope="module")
def frontier(log, model, by_labels):
    return by_labels.find(log, model).frontier


@pytest.mark.parametrize("cascade", ["full", (MODELS[:2],)])
def test_a_spec_names_its_search(cascade):
    assert make_search(Spec()) == LabelSearch(Spec())
    assert make_search(Spec(cascade=cascade)).cascades == cascade


def test_an_objective_of_ones_own_cannot_be_searched_again():
    with pytest.raises(ValueError, match="needs its objective"):
        make_search(Spec(cascade=OWN_OBJECTIVE))


def test_single_models_are_counted_by_their_labels_and_cascades_with_their_optimism(log, frontier):
    wrong = 1 - np.asarray(log.correct, float).mean(0)
    alone = np.asarray(frontier.members).sum(1) == 1
    first = np.asarray(frontier.policies.first)
    assert 0 < alone.sum() < len(alone)
    np.testing.assert_allclose(np.asarray(frontier.error)[alone], wrong[first[alone]], rtol=1e-12)
    np.testing.assert_allclose(np.asarray(frontier.cost)[alone], np.asarray(log.cost)[first[alone]], rtol=1e-12)


def test_optimism_is_added_to_cascades_alone_and_leaves_errors_between_0_and_1(frontier):
    class Validation:
        def excess_optimism(self, candidates):
            return 0.2 if candidates == CandidateSet.AGREEMENT else 0.05

    first, second, third = np.array([[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 1]])
    error = np.array([0.3, 0.3, 0.3, 0.99])
    nothing = np.zeros(4)
    table = Candidates(3, first, second, third, nothing, nothing, error, nothing, nothing)
    np.testing.assert_allclose(add_optimism(table, Validation()).penalty, [0.3, 0.35, 0.5, 1.0])


def test_uninformative_confidences_promise_no_gain(by_labels):
    """The best of some hundred thresholds looks better than a mixture of two models, by chance."""
    rng = np.random.default_rng(1)
    log = rcjax.sample_log(N, seed=1).select(MODELS)
    noise = jax.device_put(np.log(rng.uniform(0.3, 1.0, (N, 3))))
    log = dataclasses.replace(log, logprob=noise)
    frontier = by_labels.find(log, by_labels.fit(log)).frontier
    errors, costs = 1 - np.asarray(log.correct, float).mean(0), np.asarray(log.cost, float)
    mixture = np.interp(np.asarray(frontier.cost), costs, errors)
    assert (np.asarray(frontier.error) >= mixture - 0.01).all()


def test_at_given_prices_the_policies_are_those_of_the_frontier(log, model, by_labels, frontier):
    lam = np.sort(np.asarray(frontier.lam))[[1, -2]]
    few = by_labels.find(log, model, lam=lam).frontier
    places = np.searchsorted(np.asarray(frontier.lam), lam)
    np.testing.assert_array_equal(np.asarray(few.lam), lam)
    np.testing.assert_allclose(few.thresholds, np.asarray(frontier.thresholds)[places], rtol=1e-12)


def test_a_draw_repeats_rows_and_expects_labels_from_its_own_alone(log):
    rows = np.array([3, 3, 7])
    logprob, correct, answered, answer, _, money = take_training_rows(log, rows)
    np.testing.assert_array_equal(logprob, np.asarray(log.logprob)[rows])
    np.testing.assert_array_equal(money, np.asarray(log.query_cost)[rows])
    assert (correct.shape, answered.all(), answer) == ((3, 3), True, None)
    labelled = np.ones((N, 3), bool)
    labelled[100:] = False
    hand = HandLabels(*jax.device_put([labelled, np.zeros((N, 3, 0))]), judges=())
    some, rows = dataclasses.replace(log, hand_labels=hand), np.arange(80, 120)
    turned = dataclasses.replace(some, correct=some.correct.at[:80].set(~np.asarray(some.correct)[:80]))
    expected, again = (take_training_rows(one, rows).correct for one in (some, turned))
    np.testing.assert_array_equal(expected, again)  # labels outside the draw do not count
    np.testing.assert_array_equal(expected[:20], np.asarray(log.correct)[80:100])
    assert ((expected[20:] > 0) & (expected[20:] < 1)).all()


def test_a_ladder_tuned_on_a_draw_rises_in_cost_whatever_the_order_of_the_draw(log, frontier, by_labels):
    tune_again = by_labels.draw_tuner(frontier, log)
    rows = np.random.default_rng(1).integers(0, N, N)
    (calibrators, ladder), (_, shuffled) = tune_again(rows), tune_again(rows[::-1])
    assert ladder.members.shape == (RESAMPLED_RUNGS, 3)
    np.testing.assert_array_equal(ladder.members, shuffled.members)
    np.testing.assert_allclose(ladder.bounds, shuffled.bounds, rtol=1e-9)
    draw = log.take(rows)
    bill = np.asarray(loss_terms_on_log(calibrators, ladder, draw, draw.correct, draw.query_cost).cost).mean(1)
    assert (np.diff(bill) >= -1e-12).all()


def test_a_search_at_the_prices_of_points_has_a_policy_for_each(log, frontier, by_labels):
    points = np.array([0, len(frontier.lam) - 1])
    _, policies = by_labels.draw_tuner(frontier, log, points)(np.arange(N))
    assert policies.members.shape == (2, 3)
    costs = (np.asarray(policies.members) * np.asarray(log.cost)).max(1)
    assert costs[0] >= costs[1]  # the higher price of money has the cheaper policy


def test_a_draw_of_every_query_calibrates_stated_values_as_the_log_does(log, by_labels):
    """Draws once had the curve alone at values that models state, and so did the blending weights."""
    tenths = np.log(np.round(np.exp(np.asarray(log.logprob)), 1).clip(0.1))
    stated = dataclasses.replace(log, logprob=jax.device_put(tenths))
    model = by_labels.fit(stated)
    assert model.calibrators.stated is not None
    found = by_labels.find(stated, model)
    drawn, _ = by_labels.draw_tuner(found.frontier, stated, np.arange(1))(np.arange(N))
    jax.tree.map(np.testing.assert_array_equal, drawn, model.calibrators)
    by_curve = dataclasses.replace(model.calibrators, stated=None)
    assert (
        found.cross_validation.blending
        == estimate_blending(stated, model.calibrators)
        != estimate_blending(stated, by_curve)
    )


def test_rounding_errors_set_no_blending_weights(log):
    """With one confidence for each model, the order of the rows once decided whether the weights were 0 or 1."""
    constant = dataclasses.replace(log, logprob=np.zeros_like(log.logprob))
    calibrators = fit_calibrated(constant).calibrators
    for seed in range(5):
        shuffled = constant.take(np.random.default_rng(seed).permutation(N))
        assert estimate_blending(shuffled, calibrators) == Blending()


@pytest.mark.parametrize("limit", ["0.9", "p95=2"])
def test_a_limit_on_seconds_leaves_out_policies_that_often_ask_the_slow_model(log, model, frontier, by_labels, limit):
    quick = SecondsFilter.of(SecondsLimit.of(limit), log)
    admitted = quick.admits(frontier.policies, model)
    kept = quick.within(frontier)
    np.testing.assert_array_equal(np.asarray(kept.lam), np.asarray(frontier.lam)[admitted])
    searched = by_labels.find(log, model, limit=quick).frontier
    assert quick.admits(searched.policies, model).all()
    assert not admitted[np.asarray(frontier.members)[:, 2] & (np.asarray(frontier.members).sum(1) == 1)].any()


def test_an_infeasible_limit_on_seconds_names_the_fastest_model(log, model, frontier):
    none = SecondsFilter.of(SecondsLimit.of("0.1"), log)
    with pytest.raises(InfeasibleError, match=r"the fastest, llama3\.2-1b alone, takes 0\.5 seconds"):
        none.require_any(model)
    with pytest.raises(InfeasibleError, match="no policy of this frontier"):
        none.within(frontier)


def test_too_few_queries_are_refused(log, by_labels):
    few = log.take(slice(4))
    with pytest.raises(LogError, match="too few queries, 4"):
        rcjax.tuning.select_frontier(few)


@pytest.mark.thorough
def test_the_search_by_the_model_is_solve_frontier_without_cross_validation(log):
    search = make_search(Spec(cascade="full"))
    model = search.fit(log)
    selection = search.find(log, model, lam=LAM)
    found = selection.frontier
    solved = rcjax.solve_frontier(model, cascades="full", lam=LAM)
    assert selection.cross_validation is None
    np.testing.assert_array_equal(found.thresholds, solved.thresholds)
    _, policies = search.draw_tuner(found, log, np.array([0, 1]))(np.arange(N))
    np.testing.assert_allclose(policies.thresholds, solved.thresholds, atol=0.05)
