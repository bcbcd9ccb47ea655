"""One experiment: ways to choose policies are tuned without some queries, and answer these.

Each *arm* is a way to choose policies: by the labels single models, pairs, or policies that compare answers; the policy
in service. The queries are dealt into folds; each fold in turn is left out of what arms are fitted to and chosen by,
for every price, budget and limit on the error, and then answered. Of the losses of each arm on each query come gains of
one over another, with their standard errors, and luck: the more policies are searched, the luckier the best one looks
on the queries of the search, and on those that were left out it is not.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from rcjax._core.batching import fill_up, side_by_side
from rcjax.frontier.points import Outcomes, lam_range
from rcjax.frontier.policies import Policies
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted, calibrate_log
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import corrected_log, expected_log, expected_right, expected_without, is_whole
from rcjax.replaying.walk import outcomes_on_log
from rcjax.tuning.agreement import expected_on_log
from rcjax.tuning.candidates import Choice, Targets, choose, choose_one, together
from rcjax.tuning.comparison import AtBudgets, AtErrors, Comparison, Gain, Gains, Luck
from rcjax.tuning.judging import charges, judge_all
from rcjax.tuning.pairs import Judging
from rcjax.tuning.resampling import deal_folds


class Entry(NamedTuple):
    """What an arm has for T targets, tuned without the queries that it is to answer."""

    answer: Callable[[Log, Any, Any], Outcomes]
    """(T, n) what becomes of the queries of a log, as `answer_log` tells it."""
    promised: Any = np.nan
    """(T,) the penalty as the queries of the choice tell it."""
    expected: np.ndarray | None = None
    """(T, n) how likely each query is to be answered wrongly, where that is to count beside labels."""


class Contest(NamedTuple):
    """What is compared, and how."""

    arms: tuple[str, ...]
    """What others are held against comes first."""
    targets: Targets
    tune: Callable[[int], Sequence[Entry]]
    """What each arm enters, tuned without a fold, by its number."""
    charge: ArrayLike
    """(n, k) money of each answer, or (k,) of any."""
    price: float | None = None
    """Of a refusal, in errors; None: no model may refuse."""


class Losses(NamedTuple):
    """What became of m queries that were left out, under A arms' policies for T targets; F forms of outcomes."""

    arms: tuple[str, ...]
    targets: Targets
    penalty: np.ndarray
    """(F, A, T, m) errors, and refusals at their price."""
    charge: np.ndarray
    """(A, T, m) money."""
    expected: np.ndarray
    """(F, A, T, m) the penalty; of arms that say so, with errors as they are expected (`Entry.expected`)."""
    promised: np.ndarray
    """(A, T) the penalty as the queries of the choice told it."""
    folds: int
    """How many there were."""

    def luck(self, arm: str, chosen: Any) -> float:
        """By how much what an arm chose errs more on queries left out than on those of the choice, over some targets.

        Of a policy that nothing was chosen for that is 0, as each label is left out once. Luck falls with the number of
        labels; here a fold was left out of the choice, so by that share the choice by all is less lucky.
        """
        index = self.arms.index(arm)
        luck = (self.penalty[-1, index, chosen].mean(-1) - self.promised[index, chosen]).mean()
        return float(luck) * (1 - 1 / self.folds)

    def means(self, arms: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(error, cost), each (S, T), of some arms by what the labels say, refusals at their price."""
        indices = self._indices(arms)
        return self.penalty[-1, indices].mean(-1), self.charge[indices].mean(-1)

    def gains(self, arms: Sequence[str], rival: str, expected: bool = False) -> Gains:
        """What some arms (S,) gain on another in error + λ·cost at every price, over all queries.

        Args:
            arms: their names.
            rival: what they are held against.
            expected: by the errors that are expected, which is far less noisy: counted by the labels of 300 queries, a
                gain of 7 % has a standard error of 5 %, and two of three would be missed.
        """
        indices, (other,) = self._indices(arms), self._indices([rival])
        money = self.targets.lam[:, None] * self.charge[:, self.targets.prices]
        counted = self.penalty[:, :, self.targets.prices] + money
        loss = self.expected[:, :, self.targets.prices] + money if expected else counted
        at_prices, overall = gains_of(loss[:, [other]] - loss[:, indices], counted[:, other])
        return Gains(at_prices, overall, gains_of(counted[:, [other]] - counted[:, indices], counted[:, other])[1])

    def saved(self, arms: Sequence[str], rival: str) -> Gain:
        """(S, B) by how much less some arms err at every budget than another."""
        indices, other, budgets = self._indices(arms), self._indices([rival]), self.targets.within
        return Gain.of(self.penalty[:, other, budgets] - self.penalty[:, indices, budgets])

    def spared(self, arms: Sequence[str], rival: str) -> Gain:
        """(S, E) by how much less some arms cost at every limit on the error than another."""
        indices, other, limits = self._indices(arms), self._indices([rival]), self.targets.limits
        return Gain.of((self.charge[other, limits] - self.charge[indices, limits])[None])

    def _indices(self, arms: Sequence[str]) -> list[int]:
        return [self.arms.index(name) for name in arms]


def contest(log: Log, of: Contest, fold: np.ndarray) -> Losses:
    """The losses of all arms on all complete queries of a log, each left out once.

    Where answers lack labels, gains are reckoned by what is expected of these; errors, and the standard errors of
    gains, by what the labels correct (`rcjax.model.label_outcomes`).

    Args:
        log: the log that is answered.
        of: what is compared.
        fold: (n,) the fold of each query, numbered from 0.
    """
    folds, complete = int(fold.max()) + 1, log.complete
    forms = [log.correct] if is_whole(log) else [expected_log(log).correct, corrected_log(log).correct]

    def left_out(number: int) -> tuple[np.ndarray, ...]:
        return _answered(of.tune(number), log, of, forms, complete & (fold == number))

    *figures, promised = zip(*side_by_side(left_out, range(folds), n=log.n_queries), strict=True)
    # From the order of the folds back to that of the log.
    order = np.argsort(np.argsort(fold[complete], kind="stable"))
    penalty, charge, expected = (np.concatenate(some, axis=-1)[..., order] for some in figures)
    promised = np.average(promised, axis=0, weights=np.bincount(fold[complete], minlength=folds))
    return Losses(of.arms, of.targets, penalty, charge, expected, promised, folds)


def _answered(
    entries: Sequence[Entry], log: Log, of: Contest, forms: Sequence[jax.Array], out: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(penalty, charge, expected, promised) as `Losses` has them, of the queries `out` (n,), by forms (F,) (n, k)."""

    def answer(entry: Entry, right: jax.Array) -> Outcomes:
        return Outcomes(*(np.asarray(figure, float)[:, out] for figure in entry.answer(log, right, of.charge)))

    outcomes = [[answer(entry, right) for entry in entries] for right in forms]
    penalty = np.stack([[outcome.penalty(of.price) for outcome in row] for row in outcomes])
    expected = penalty.copy()
    for arm, entry in enumerate(entries):
        if entry.expected is not None:
            wrong = np.stack([row[arm].wrong for row in outcomes])
            expected[:, arm] += entry.expected[:, out] - wrong
    promised = [np.broadcast_to(entry.promised, penalty.shape[2:3]) for entry in entries]
    return penalty, np.stack([outcome.cost for outcome in outcomes[0]]), expected, np.stack(promised)


def gains_of(gain: np.ndarray, rival: np.ndarray) -> tuple[Gain, Gain]:
    """(gain, as a share of the loss of the rival over all prices), as `Gain.of` has them.

    Args:
        gain: (F, …, G, m) by how much the loss of a query is below that of the rival.
        rival: (F, G, m) the loss of the rival.
    """
    share = (gain / np.maximum(rival[0].mean(-1), np.finfo(float).tiny)[:, None]).mean(-2)
    return Gain.of(gain), Gain.of(share)


def answer_log(calibrators: Calibrator, policies: Policies, log: Log, right: Any, charge: Any) -> Outcomes:
    """(T, n) what becomes of the queries of a log under policies for calibrated confidences.

    Args:
        calibrators: (k,) of the models.
        policies: (T,)
        log: the log.
        right: (n, k) which answers are right, in one of the forms of outcomes.
        charge: (n, k) money of each answer, or (k,) of any.
    """
    return outcomes_on_log(calibrators, log.logprob, right, log.answered, charge, policies, log.answer)


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
