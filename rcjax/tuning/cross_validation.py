"""The arms of the contest that chooses cascades: single models, pairs, policies that compare answers.

All are chosen by the labels (`label_candidates`, `agreement_candidates`).
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from rcjax._core.batching import fill_up
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.prices import lam_range
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted, calibrate_log
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import expected_log, expected_right, expected_without, is_whole
from rcjax.tuning.agreement_odds import expected_on_log
from rcjax.tuning.candidates import together
from rcjax.tuning.choices import Choice, Targets, choose, choose_one, judge_all
from rcjax.tuning.comparison import AtBudgets, AtErrors, Comparison, Luck
from rcjax.tuning.contest import Contest, Entry, Losses, answer_log, contest
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_weights import charges
from rcjax.tuning.resampling import deal_folds

PRICES, BUDGETS, ERRORS = 40, 24, 12

MODELS, PAIRS, ANSWERS = "models", "pairs", "answers"  # the arms


def targets_of(log: Log) -> Targets:
    """Prices at which policies differ; budgets from the cheapest model's bill to beyond the dearest's; errors between
    those of the single models, by their labels."""
    cost = np.asarray(log.cost, float)
    low, high = float(cost.min()), float(cost.max())
    low = max(low, 1e-6 * high, np.finfo(float).tiny)
    error = errors_alone(log)
    budgets, errors = np.geomspace(low, 1.2 * max(high, low), BUDGETS), np.linspace(error.min(), error.max(), ERRORS)
    return Targets(lam_range(cost, PRICES), budgets, errors)


def errors_alone(log: Log) -> np.ndarray:
    """(k,) how often each model of a log errs, by its labels."""
    answered = np.asarray(log.answered)
    return 1 - (expected_right(log) * answered).sum(0) / np.maximum(answered.sum(0), 1)


def cross_validate(log: Log, model: Fitted, judging: Judging, folds: int = 5, seed: int = 0) -> Comparison:
    """Compare single models, pairs and policies that compare answers on a log, on a grid of each kind of target.

    Args:
        log: the log, of the models of `model`.
        model: the model fitted to it.
        judging: how policies are judged by the labels.
        folds: how many.
        seed: of the deal.
    """
    comparing = log.answer is not None and len(log.models) > 2
    arms = (MODELS, *([PAIRS] if len(log.models) > 1 else []), *([ANSWERS] if comparing else []))
    fold, targets = deal_folds(log.complete, folds, seed), targets_of(log)
    logs = _labels_without(log, fold, folds)

    def tune(number: int) -> list[Entry]:
        return _tuned_without(logs[number], fold == number, model.calibrators, targets, judging, arms)

    price = None if judging.refusal is None else 1 - float(judging.refusal)
    losses = contest(log, Contest(arms, targets, tune, charges(log), price), fold)
    return _compared(losses, errors_alone(log))


def _labels_without(log: Log, fold: np.ndarray, folds: int) -> list[Log]:
    """The log as it is tuned on without each fold.

    Where answers lack labels, those of a fold play no part in what is expected of the others.
    """
    if is_whole(log):
        return [log] * folds
    expected = expected_log(log)
    outcomes = jax.device_put(expected_without(log, fold, folds).astype(expected.correct.dtype))
    return [dataclasses.replace(expected, correct=right) for right in outcomes]


def _tuned_without(
    log: Log, out: np.ndarray, whole: Calibrator, targets: Targets, judging: Judging, arms: Sequence[str]
) -> list[Entry]:
    """What each arm has, calibrated as the `whole` and chosen by all queries of a log but those `out` (n,)."""
    rows = log.logprob, log.correct, np.asarray(log.answered) & ~out[:, None]
    calibrators, _ = calibrate_log(*fill_up(*rows), transform=whole.transform, values=whole.values)
    answer = log.answer if ANSWERS in arms else None
    pairs, answers = judge_all(calibrators, (*rows, answer), charges(log), judging)
    by_name = {MODELS: choose_one(pairs.take(np.flatnonzero(pairs.alone)), targets)}
    by_name[PAIRS] = choose(pairs, targets)
    by_name[ANSWERS] = choose(pairs if answers is None else together(pairs, answers), targets)
    choices = [by_name[arm].filled() for arm in arms]
    expected: Sequence[np.ndarray | None] = [None] * len(arms)
    if ANSWERS in arms:  # what is gained by comparing answers is told by what is expected
        told = expected_on_log(calibrators, rows, log, [choice.rungs for choice in choices])
        expected = [choice.weights @ wrong for choice, wrong in zip(choices, told, strict=True)]
    answered = (partial(_answer_log, calibrators, choice) for choice in choices)
    return [Entry(*figures) for figures in zip(answered, (choice.error for choice in choices), expected, strict=True)]


def _answer_log(calibrators: Calibrator, choice: Choice, *of: Any) -> Outcomes:
    """(T, n) what becomes of the queries of a log where targets stand."""
    outcomes = answer_log(calibrators, choice.rungs.policies(), *of)
    return Outcomes(*(choice.weights @ np.asarray(figure, float) for figure in outcomes))


def _compared(losses: Losses, alone: np.ndarray) -> Comparison:
    """What a contest has shown; `alone` (k,): how often each model errs."""
    arms, targets, agreement = losses.arms, losses.targets, None
    bills = losses.means(arms)[1][:, targets.limits]
    pair = PAIRS if PAIRS in arms else MODELS
    if ANSWERS in arms:
        agreement = losses.gains([ANSWERS], pair, expected=True).of_arm(0)
    return Comparison(
        targets.lam,
        losses.gains([pair], MODELS).of_arm(0),
        agreement=agreement,
        at_budgets=AtBudgets(targets.budgets, losses.saved(arms, MODELS)),
        at_errors=AtErrors(targets.errors, bills, losses.spared(arms, MODELS), alone),
        luck=Luck(*(np.array([losses.luck(arm, kind) for arm in arms]) for kind in (targets.prices, targets.within))),
    )
