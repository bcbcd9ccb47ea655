"""One experiment: ways to choose policies are tuned without some queries, and answer these.

Each *arm* is a way to choose policies: by the labels single models, pairs, or policies that compare answers; the policy
in service. The queries are dealt into folds; each fold in turn is left out of what arms are fitted to and chosen by,
for every price, budget and limit on the error, and then answered. Of the losses of each arm on each query come gains of
one over another, with their standard errors, and luck: the more policies are searched, the luckier the best one looks
on the queries of the search, and on those that were left out it is not.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from rcjax._core.batching import fill_up, side_by_side
from rcjax.frontier.points import Outcomes, lam_range
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted, calibrate_log
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import corrected_log, expected_log, expected_right, expected_without, is_whole
from rcjax.replaying.walk import outcomes_on_log
from rcjax.tuning.agreement import expected_on_log
from rcjax.tuning.candidates import Choice, Targets, choose, choose_one, together
from rcjax.tuning.comparison import Comparison, Gain, Gains
from rcjax.tuning.judging import charges, judge_all
from rcjax.tuning.pairs import Judging
from rcjax.tuning.resampling import deal_folds

PRICES, BUDGETS, ERRORS = 40, 24, 12

MODELS, PAIRS, ANSWERS = "models", "pairs", "answers"  # arms by the labels


class Entry(NamedTuple):
    """What an arm has for T targets, tuned without the queries that it is to answer."""

    answer: Callable[[Log, Any, Any], Outcomes]
    """(T, n) what becomes of the queries of a log, by who is right (n, k) and the money of each answer."""
    promised: Any = np.nan
    """(T,) the penalty as the queries of the choice tell it."""
    expected: np.ndarray | None = None
    """(T, n) how likely each query is to be answered wrongly, where that is to count beside labels."""


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

    def luck(self, chosen: slice) -> np.ndarray:
        """(A,) by how much what an arm chose errs more on queries left out than on those of the choice, over targets.

        Of a policy that nothing was chosen for that is 0, as each label is left out once. Luck falls with the number of
        labels; here a fold was left out of the choice, so by that share the choice by all is less lucky.
        """
        luck = (self.penalty[-1, :, chosen].mean(-1) - self.promised[:, chosen]).mean(-1)
        return luck * (1 - 1 / self.folds)

    def gains(self, arm: str, rival: str, expected: bool = False) -> Gains:
        """What an arm gains on another in error + λ·cost at every price, over all queries.

        Args:
            arm: its name.
            rival: what it is held against.
            expected: by the errors that are expected, which is far less noisy: counted by the labels of 300 queries, a
                gain of 7 % has a standard error of 5 %, and two of three would be missed.
        """
        pair, prices = [self.arms.index(name) for name in (rival, arm)], self.targets.prices
        money = self.targets.lam[:, None] * self.charge[pair, prices]
        counted = self.penalty[:, pair, prices] + money  # (F, 2, G, m)
        loss = self.expected[:, pair, prices] + money if expected else counted
        share = np.maximum(counted[0, 0].mean(-1), np.finfo(float).tiny)[:, None]
        by_loss, by_count = (of[:, 0] - of[:, 1] for of in (loss, counted))
        return Gains(Gain.of(by_loss), *(Gain.of((gain / share).mean(-2)) for gain in (by_loss, by_count)))

    def saved(self) -> Gain:
        """(A, B) by how much less arms err at every budget than the first."""
        penalty = self.penalty[:, :, self.targets.within]
        return Gain.of(penalty[:, :1] - penalty)

    def spared(self) -> Gain:
        """(A, E) by how much less arms cost at every limit on the error than the first."""
        charge = self.charge[:, self.targets.limits]
        return Gain.of((charge[:1] - charge)[None])


def contest(
    log: Log,
    fold: np.ndarray,
    targets: Targets,
    tune: Callable[[int], Mapping[str, Entry]],
    charge: Any,
    price: float | None = None,
) -> Losses:
    """The losses of all arms on all complete queries of a log, each left out once.

    Where answers lack labels, gains are reckoned by what is expected of these; errors, and the standard errors of
    gains, by what the labels correct (`rcjax.model.label_outcomes`).

    Args:
        log: the log that is answered.
        fold: (n,) the fold of each query, numbered from 0.
        targets: T of them.
        tune: what each arm enters, tuned without a fold, by its number; what others are held against comes first.
        charge: (n, k) money of each answer, or (k,) of any.
        price: of a refusal, in errors; None: no model may refuse.
    """
    folds, complete = int(fold.max()) + 1, log.complete
    forms = [log.correct] if is_whole(log) else [expected_log(log).correct, corrected_log(log).correct]

    def left_out(number: int) -> tuple[Any, ...]:
        """The names of the arms, and (penalty, charge, expected, promised) as `Losses` has them."""
        entries, out, rows = tune(number), complete & (fold == number), []
        for entry in entries.values():
            outcomes = [
                Outcomes(*(np.asarray(x, float)[:, out] for x in entry.answer(log, of, charge))) for of in forms
            ]
            penalty = np.stack([outcome.penalty(price) for outcome in outcomes])
            expected = penalty
            if entry.expected is not None:
                expected = penalty + (entry.expected[:, out] - np.stack([outcome.wrong for outcome in outcomes]))
            rows.append((penalty, outcomes[0].cost, expected, np.broadcast_to(entry.promised, penalty.shape[1:2])))
        penalty, spent, expected, promised = zip(*rows, strict=True)
        return tuple(entries), np.stack(penalty, 1), np.stack(spent), np.stack(expected, 1), np.stack(promised)

    arms, *figures, promised = zip(*side_by_side(left_out, range(folds), n=log.n_queries), strict=True)
    # From the order of the folds back to that of the log.
    order = np.argsort(np.argsort(fold[complete], kind="stable"))
    penalty, spent, expected = (np.concatenate(some, axis=-1)[..., order] for some in figures)
    promised = np.average(promised, axis=0, weights=np.bincount(fold[complete], minlength=folds))
    return Losses(arms[0], targets, penalty, spent, expected, promised, folds)


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
    fold, targets = deal_folds(log.complete, folds, seed), targets_of(log)
    logs = [log] * folds
    if not is_whole(log):  # labels of a fold play no part in what is expected of the others
        expected = expected_log(log)
        outcomes = jax.device_put(expected_without(log, fold, folds).astype(expected.correct.dtype))
        logs = [dataclasses.replace(expected, correct=right) for right in outcomes]

    def tune(number: int) -> dict[str, Entry]:
        return _tuned_without(logs[number], fold == number, model.calibrators, targets, judging)

    price = None if judging.refusal is None else 1 - float(judging.refusal)
    losses = contest(log, fold, targets, tune, charges(log), price)
    pair = PAIRS if PAIRS in losses.arms else MODELS
    return Comparison(
        targets,
        losses.gains(pair, MODELS),
        losses.gains(ANSWERS, pair, expected=True) if ANSWERS in losses.arms else None,
        losses.saved(),
        losses.spared(),
        losses.charge[0, targets.limits].mean(-1),
        errors_alone(log),
        np.stack([losses.luck(kind) for kind in (targets.prices, targets.within)]),
    )


def _tuned_without(
    log: Log, out: np.ndarray, whole: Calibrator, targets: Targets, judging: Judging
) -> dict[str, Entry]:
    """What each arm has, calibrated as the `whole` and chosen by all queries of a log but those `out` (n,)."""
    rows = log.logprob, log.correct, np.asarray(log.answered) & ~out[:, None]
    calibrators, _ = calibrate_log(*fill_up(*rows), transform=whole.transform, values=whole.values)
    comparing = log.answer is not None and len(log.models) > 2
    pairs, answers = judge_all(calibrators, (*rows, log.answer if comparing else None), charges(log), judging)
    choices = {MODELS: choose_one(pairs.take(np.flatnonzero(pairs.alone)), targets)}
    if len(log.models) > 1:
        choices[PAIRS] = choose(pairs, targets)
    if comparing:
        choices[ANSWERS] = choose(pairs if answers is None else together(pairs, answers), targets)
    filled = [choice.filled() for choice in choices.values()]
    expected: list[Any] = [None] * len(filled)
    if comparing:  # what is gained by comparing answers is told by what is expected
        told = expected_on_log(calibrators, rows, log, [choice.rungs for choice in filled])
        expected = [choice.weights @ wrong for choice, wrong in zip(filled, told, strict=True)]
    entries = [
        Entry(partial(_answer_log, calibrators, choice), choice.error, likely)
        for choice, likely in zip(filled, expected, strict=True)
    ]
    return dict(zip(choices, entries, strict=True))


def _answer_log(calibrators: Calibrator, choice: Choice, *of: Any) -> Outcomes:
    """(T, n) what becomes of the queries of a log where targets stand."""
    outcomes = outcomes_on_log(calibrators, choice.rungs.policies(), *of)
    return Outcomes(*(choice.weights @ np.asarray(figure, float) for figure in outcomes))
