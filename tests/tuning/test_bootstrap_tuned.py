"""The bootstrap of tuned policies: against fits and solutions of the draws, and logs that teach little."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from helpers.cross_validation_references import best_for, every_policy, useful
from helpers.selection_references import draws_of, make_log

import rcjax
from rcjax.model.calibrated_models import fit_calibrated
from rcjax.solving.frontier.points import lower_hull
from rcjax.tuning import bootstrapping
from rcjax.tuning.bootstrapping import bootstrap, percentile_intervals
from rcjax.tuning.candidate_table import RESAMPLED_RUNGS
from rcjax.tuning.search import estimate_blending, make_search

pytestmark = pytest.mark.usefixtures("float64")

N, B = 120, 40


@pytest.fixture(scope="module")
def log(float64):
    return make_log(N, 2, seed=1)


@pytest.fixture(scope="module")
def three(float64):
    log = make_log(N, 3, seed=1)
    return log, rcjax.fit(log)


@pytest.fixture(scope="module")
def selected(log):
    """A frontier of pairs chosen by labels, and its bands."""
    frontier = rcjax.tuning.select_frontier(log, lam=np.geomspace(1e-3, 0.05, 6)).frontier
    return frontier, bootstrap(frontier, log, replicates=B)


@pytest.mark.thorough
def test_pairs_by_labels_are_chosen_again_from_each_draw(log, selected):
    """The corners of the hull of all pairs and models."""
    frontier, _ = selected
    draws, blending = draws_of(0, N, B), estimate_blending(log, fit_calibrated(log).calibrators)
    again = make_search(frontier.spec).draw_tuner(frontier, log)
    for draw in draws:
        _, policies = again(draw)
        assert policies.first.shape == (RESAMPLED_RUNGS,)
        every = useful(every_policy(log.take(draw), np.ones((N, 2), bool), blending), 2)
        error, cost = np.array([own[3:5] for own in every]).T
        corners = lower_hull(cost, error)
        for rung in range(RESAMPLED_RUNGS):
            assert_is(policies, rung, every[corners[min(rung, len(corners) - 1)]])


@pytest.mark.thorough
def test_at_prices_pairs_are_chosen_again_from_each_draw_as_the_whole_log_judges(log, selected):
    """A point without figures, as there is in a comparison at one price, is no budget of nothing."""
    frontier, _ = selected
    bare = dataclasses.replace(frontier, cost=frontier.cost * 0)
    fold = np.arange(N) % 5
    draws = np.stack([np.flatnonzero(fold != number) for number in range(5)])
    again, pairs, blending = (
        make_search(bare.spec).draw_tuner(bare, log, np.arange(6)),
        0,
        estimate_blending(log, fit_calibrated(log).calibrators),
    )
    for draw in draws:
        _, policies = again(draw)
        part = log.take(draw)
        every = useful(every_policy(part, np.ones((len(draw), 2), bool), blending), 2)
        error, cost = np.array([own[3:5] for own in every]).T
        for g, price in enumerate(np.asarray(frontier.lam)):
            best = every[best_for(error, cost, lam=price)]
            assert_is(policies, g, best)
            pairs += best.first != best.second
    assert pairs > 5


def assert_is(policies, place, best):
    """A policy (L,) at a place is the one that was found by hand."""
    assert np.flatnonzero(policies.members[place]).tolist() == sorted({best.first, best.second})
    assert int(policies.first[place]) == best.first
    if best.first != best.second:
        assert float(policies.bounds[place, best.first, 0]) == pytest.approx(best.threshold, rel=1e-6)


@pytest.mark.thorough
def test_an_interval_at_a_budget_is_of_replicates_each_at_its_own_position(log):
    """By hand: where the rungs of the frontier cost the money on the draw, and out of it, less where on the log."""
    frontier = rcjax.tuning.select_frontier(log).frontier
    bands = bootstrap(frontier, log, replicates=B)
    seen = [rcjax.replay(frontier, log.take(draw)) for draw in draws_of(0, N, B)]
    whole, money = rcjax.replay(frontier, log), np.asarray(frontier.cost)

    def error_for(one):
        order = np.argsort(one.spent)
        return np.interp(money, np.asarray(one.spent)[order], np.asarray(one.error)[order])

    noise = error_for(whole) - np.stack([error_for(one) for one in seen])
    width = np.diff(percentile_intervals(noise, N, 0.9))[:, 0]
    inner = slice(1, -1)  # at the ends an interval is cut off, or the frontier is
    np.testing.assert_allclose(np.diff(np.asarray(bands.error))[inner, 0], width[inner], rtol=1e-6)


@pytest.mark.thorough
def test_by_default_a_small_log_is_fitted_again_and_a_large_one_is_not(log, selected, monkeypatch):
    frontier, bands = selected
    monkeypatch.setattr(bootstrapping, "ENOUGH_QUERIES", N)
    np.testing.assert_array_equal(bootstrap(frontier, log, replicates=B).error, bands.error)
    monkeypatch.setattr(bootstrapping, "ENOUGH_QUERIES", N - 1)
    kept = bootstrap(frontier, log, replicates=B)
    np.testing.assert_array_equal(kept.error, bootstrap(frontier, log, replicates=B, refit=False).error)
    assert (np.asarray(kept.error) != np.asarray(bands.error)).any()


@pytest.mark.thorough
def test_cascades_of_the_model_are_solved_again_from_each_draw(three):
    """Up to what the start of the mixtures makes: whole fits and solutions of the draws lose as much on the log."""
    log, model = three
    frontier = rcjax.solve_frontier(model, lam=np.geomspace(1e-3, 0.02, 4))
    draws = draws_of(0, N, 20)
    tune_again = make_search(frontier.spec).draw_tuner(frontier, log, np.arange(4))
    differences = []
    for b in range(4):
        again, (calibrators, policies) = rcjax.fit(log.take(draws[b])), tune_again(draws[b])
        np.testing.assert_allclose(calibrators.coefficients, again.calibrators.coefficients, rtol=1e-6, atol=1e-9)
        whole = rcjax.solve_frontier(again, lam=frontier.lam)
        near = dataclasses.replace(whole, policies=policies)
        one, other = (rcjax.replay(each, log) for each in (near, whole))
        differences.append(one.error + frontier.lam * one.cost - other.error - frontier.lam * other.cost)
    assert np.abs(np.mean(differences, axis=0)).max() < 0.01
    assert np.median(np.abs(differences)) < 0.005


def test_a_model_alone_has_the_interval_of_its_own_errors():
    """Beside one that costs nearly as much, an error of 41 % had the interval from 53 to 87 %."""
    rng, n, true = np.random.default_rng(0), 150, np.array([0.4, 0.1])
    right, cost = rng.random((n, 2)) >= true, rng.uniform(0.8, 1.2, (n, 2))
    columns = {"logprob": rng.uniform(-1, -0.1, (n, 2)), "correct": right, "cost": cost / cost.mean(0) * (1, 1.004)}
    names = {"query": np.repeat(np.arange(n), 2), "model": ["cheap", "good"] * n}
    log = rcjax.read_log(pl.DataFrame(names | {name: column.ravel() for name, column in columns.items()}))
    frontier = rcjax.tuning.select_frontier(log).frontier
    alone = np.flatnonzero(np.asarray(frontier.members).sum(1) == 1)
    model = np.asarray(frontier.members)[alone].argmax(1)
    assert {*model.tolist()} == {0, 1}
    error = (1 - right.mean(0))[model]
    half = 1.645 * np.sqrt(error * (1 - error) / n)
    np.testing.assert_allclose(frontier.error[alone], error, atol=1e-9)
    ends = np.asarray(bootstrap(frontier, log).error)[alone]
    assert (np.abs(ends - np.stack([error - half, error + half], axis=1)) < 0.3 * half[:, None]).all()
