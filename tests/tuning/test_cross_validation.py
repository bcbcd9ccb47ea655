"""Held-out losses of each candidate set, against loops over folds in numpy."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import agreement_logs
from helpers.cross_validation_references import best_for, columns, dealt, mix_for, walk_by_hand
from helpers.selection_references import make_log

import rcjax
from rcjax.model.fitting import fit_near
from rcjax.policy.spec import Target
from rcjax.solving.frontier.points import lam_range
from rcjax.tuning.candidate_scores import Blending, TrainingRows, _score_agreement, _score_pairs, calibrate_padded_rows
from rcjax.tuning.cross_validation import (
    BUDGETS,
    N_LAM,
    CandidateSet,
    CrossValidation,
    Gain,
    SetGain,
    Targets,
    choose_targets,
    cross_validate,
)
from rcjax.tuning.search import estimate_blending

pytestmark = pytest.mark.usefixtures("float64")

N, FOLDS = 120, 5


def losses_of(log, blending, seed, price=None):
    """(the losses, the comparison that is made of them, the model) of every way to choose."""
    model = rcjax.fit(log)
    losses = cross_validate(log, model, blending, price, seed)
    return losses, losses.summarise(), model


# -- targets


def test_targets_run_from_the_cheapest_bill_beyond_the_dearest():
    log = make_log(N, 3, seed=1)
    targets = choose_targets(log)
    bills = np.asarray(log.query_cost).mean(0)
    np.testing.assert_allclose(targets.lam, lam_range(bills, N_LAM), rtol=1e-12)
    assert targets.budgets[[0, -1]] == pytest.approx([bills.min(), 1.2 * bills.max()])
    np.testing.assert_allclose(
        np.diff(np.log(targets.budgets)), np.log(1.2 * bills.max() / bills.min()) / (BUDGETS - 1)
    )
    free = choose_targets(make_log(N, 2, seed=1, query_cost=np.array([0.0, 2.0])))
    assert (free.budgets > 0).all()
    assert np.isfinite(choose_targets(make_log(N, 2, seed=1, query_cost=np.zeros(2))).budgets).all()


def on_complete(rows):
    """The rows of candidates, of which only those count that every model answered."""
    return dataclasses.replace(rows, included=rows.included & rows.included.all(1, keepdims=True))


def by_hand(log, model, blending, targets, seed, price=None):
    """Means of `deal_by_hand` over the eight deals of a short log."""
    deals = [deal_by_hand(log, model, blending, targets, 8 * seed + number, price) for number in range(8)]
    return [np.mean(figures, axis=0) for figures in zip(*deals, strict=True)]


def deal_by_hand(log, model, blending, targets, seed, price):
    """(penalty (S, T, m), cost (S, T, m), in_sample (S, T)) by loops: fit without the fold, judge, choose, walk."""
    logprob, right, answered, query_cost = columns(log)
    complete, k = answered.all(1), right.shape[1]
    fold = dealt(log.queries, complete, FOLDS, seed)
    by_set = {}
    for number in range(FOLDS):
        out = fold == number
        train = answered & ~out[:, None]
        rows = logprob, right, train
        fitted = fit_near(model, *rows, log.cost)
        training = TrainingRows(*rows, query_cost=query_cost)
        padded = on_complete(calibrate_padded_rows(fitted.calibrators, training, price))
        trial, label_penalty = jax.tree.map(np.asarray, _score_pairs(padded, blending))
        wanted = [{"lam": lam} for lam in targets.lam] + [{"budget": budget} for budget in targets.budgets]
        use = np.isfinite(trial.penalty)
        if price is None:
            errs_less = label_penalty[:k] < label_penalty[:, None] - 1e-9
            beaten = errs_less & (trial.cost[:k] < trial.cost[:, None])
            use &= ~beaten.any(1) | (trial.first == trial.second)
        among = {name: [(trial, np.flatnonzero(use))] for name in ("models", "pairs")}
        if log.answer is not None:
            training = training._replace(answer=log.answer)
            padded = on_complete(calibrate_padded_rows(fitted.calibrators, training, price))
            compared = jax.tree.map(np.asarray, _score_agreement(padded, blending))
            among["answers"] = [*among["pairs"], (compared, np.flatnonzero(np.isfinite(compared.penalty)))]
        confidence = np.asarray(fitted.calibrate(logprob))
        part = out & complete
        codes = None if log.answer is None else np.asarray(log.answer)[part]
        for name, tables in among.items():
            error, cost = (
                np.concatenate([getattr(own, of)[rows] for own, rows in tables]) for of in ("penalty", "cost")
            )
            error = np.where(np.arange(len(error)) < k, error, np.inf) if name == "models" else error
            every = [(own, row) for own, rows in tables for row in rows]
            penalty, money, in_sample = by_set.setdefault(name, [np.zeros((len(wanted), len(out))) for _ in range(3)])
            for row, target in enumerate(wanted):
                mixed = [(1.0, best_for(error, cost, **target))] if name == "models" else mix_for(error, cost, **target)
                for share, place in mixed:
                    own, index = every[place]
                    policies = own.take(np.array([index])).policies()
                    walked = walk_by_hand(policies, 0, confidence[part], right[part], query_cost[part], codes)
                    penalty[row, part] += share * (walked[0] + (price or 0.0) * walked[2])
                    money[row, part] += share * walked[1]
                    in_sample[row] += share * error[place] * part.sum() / complete.sum()
    penalty, money, in_sample = map(np.array, zip(*by_set.values(), strict=True))
    return penalty[..., complete], money[..., complete], in_sample[..., 0]


# -- single models and pairs


@pytest.fixture(scope="module")
def two(float64):
    """(log, losses, comparison, what a loop over the folds says) of two models, with gaps."""
    log = make_log(N, 2, seed=1, missing=0.2)
    # Money that has its own say for each query: those that are passed on are dearer.
    money = np.asarray(log.query_cost) * np.where(np.asarray(log.logprob)[:, :1] < -0.5, 1.7, 0.6)
    money = np.where(np.asarray(log.answered), np.nan_to_num(money), 0.0)
    log = dataclasses.replace(log, query_cost=money, cost=money.sum(0) / np.asarray(log.answered).sum(0))
    # Where a confidence is there thrice by chance, no threshold parts it here: that is done below.
    blending = estimate_blending(log, rcjax.fit(log).calibrators)
    losses, comparison, model = losses_of(log, blending, 7)
    return log, losses, comparison, by_hand(log, model, blending, losses.targets, 7)


def test_losses_are_a_loop_over_the_folds(two):
    log, losses, _, (wrong, money, in_sample) = two
    assert losses.penalty.expected.shape == (2, N_LAM + BUDGETS, log.complete.sum())
    np.testing.assert_allclose(losses.penalty.expected, wrong, atol=1e-12)
    np.testing.assert_allclose(losses.cost, money, rtol=1e-9)
    np.testing.assert_allclose(losses.in_sample, in_sample, atol=1e-7)
    np.testing.assert_array_equal(losses.estimated, losses.penalty)
    assert len(np.unique(money[1].mean(-1))) > 12  # pairs at many thresholds
    assert (wrong[0] != wrong[1]).any()


# -- candidate sets, of whatever there is to choose from


LOGS = {
    "answers, one confidence for many": (lambda: agreement_logs.make_log(90, 0.2, seed=1), None),
    "abstentions": (lambda: agreement_logs.make_log(90, 0.2, seed=2), 0.3),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOGS)
def test_losses_of_every_candidate_set_are_those_of_a_loop(name):
    make, price = LOGS[name]
    log = make()
    blending = estimate_blending(log, rcjax.fit(log).calibrators)
    losses, _, model = losses_of(log, blending, 5, price)
    penalty, money, in_sample = by_hand(log, model, blending, losses.targets, 5, price)
    assert len(losses.cost) == len(money) == 3
    np.testing.assert_allclose(losses.cost.mean(-1), money.mean(-1), rtol=1e-6)
    np.testing.assert_allclose(losses.penalty.corrected, penalty, atol=1e-9)
    np.testing.assert_allclose(losses.cost, money, rtol=1e-9)
    np.testing.assert_allclose(losses.in_sample, in_sample, atol=1e-9)


def test_held_out_labels_do_not_change_the_choice():
    """A log whose labels are drawn by lot: what was chosen among many is lucky; this shows by how much."""
    lucky = []
    for seed in range(3):
        coin = np.random.default_rng(seed).random((N, 2)) < 0.5
        log = make_log(N, 2, seed=seed, correct=coin)
        models, pairs = cross_validate(log, rcjax.fit(log), Blending(0.0, 0.0)).summarise().set_optimism
        lucky.append(pairs)
        assert abs(models) < 0.02 + 2 / np.sqrt(N)
    assert min(lucky) > 0.01


@pytest.mark.thorough
def test_a_single_model_has_no_gain():
    log = make_log(N, 1, seed=5)
    shown = cross_validate(log, rcjax.fit(log), Blending()).summarise()
    assert all((figure == 0).all() for gain in shown.pair_gains for figure in gain)
    np.testing.assert_allclose(shown.set_optimism, 0, atol=1e-12)  # nothing was chosen
    assert shown.gain_at_budget.mean.shape == (1, BUDGETS)


def test_a_second_comparison_compiles_nothing(two, compilations):
    log = make_log(N, 2, seed=3)
    model = rcjax.fit(log)
    with compilations() as compiled:
        cross_validate(log, model, Blending())
    assert not compiled


# -- what the figures of a cross-validation mean


def made(saved, gain, rival=None):
    """A cross-validation at three prices and budgets, which are 1, 10 and 100; cascades are optimistic by a point."""
    targets, none = Targets(np.geomspace(1, 100, 3), np.geomspace(1, 100, 3)), Gain(0.0, 0.0)
    pairs, agreement = (
        None if of is None else SetGain(Gain(np.array(of), np.ones(3)), none, none) for of in (gain, rival)
    )
    rows = 2 + (rival is not None)
    saves = Gain(np.outer(np.arange(rows), saved), np.ones((rows, 3)))
    return CrossValidation(targets, pairs, agreement, saves, np.array([0.01, 0.02, 0.05][:rows]), Blending())


def test_the_gain_at_a_target_is_that_of_the_nearest_target():
    validation, bills = made([0.1, 0.2, 0.3], [1.0, 2.0, 3.0], [10.0, 20.0, 30.0]), np.array([0.5, 5.0, 50.0])
    assert validation.gain(CandidateSet.PAIRS, Target("budget", 8.0), bills).mean == 0.2
    assert (
        validation.gain(CandidateSet.PAIRS, Target("budget", 4.9), bills).mean == 0.1
    )  # the second model cannot be paid for yet
    assert validation.gain(CandidateSet.AGREEMENT, Target("budget", 8.0), bills).mean == 0.4
    assert validation.gain(CandidateSet.PAIRS, Target("lam", 9.0), bills).mean == 2.0
    assert validation.gain(CandidateSet.PAIRS, Target("error_cost", 0.01), bills).mean == 3.0
    assert validation.gain(CandidateSet.AGREEMENT, Target("lam", 9.0), bills) == (22.0, np.sqrt(2))
    assert validation.excess_optimism(CandidateSet.PAIRS) == pytest.approx(0.01)
    assert validation.excess_optimism(CandidateSet.AGREEMENT) == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("overall", "by_labels", "earned"),
    [
        (0.01, Gain(0.01, 1.0), True),
        (0.0019, Gain(0.01, 1.0), False),
        (0.0021, Gain(-2.9, 1.0), True),  # labels left out do not contradict
        (0.3, Gain(-3.1, 1.0), False),
    ],
)
def test_agreement_must_gain_at_its_price_and_on_average(overall, by_labels, earned):
    gains = SetGain(Gain(np.array([0.1, -0.1, 0.0]), np.zeros(3)), Gain(overall, 1.0), by_labels)
    validation = made([0.0] * 3, [0.0] * 3)
    assert dataclasses.replace(validation, agreement_gains=gains).uses_agreement.tolist() == [earned, False, False]
    assert not validation.uses_agreement.any()


def test_the_order_of_the_queries_decides_nothing():
    """Folds dealt by position moved the saving that `match` finds on a real log between 10 and 20 %."""
    log = make_log(N, 3, seed=4)
    shuffled = log.take(np.random.default_rng(0).permutation(N))
    first, second = (rcjax.tuning.select_frontier(part).frontier for part in (log, shuffled))
    np.testing.assert_allclose(second.cost, first.cost, rtol=1e-9)
    np.testing.assert_allclose(second.error, first.error, atol=1e-9)
