"""One experiment: policies are chosen without some queries, and answer these.

The queries are dealt into folds; each fold in turn is left out of what is fitted and chosen, for every price and
budget, and then answered. Three *ways* to choose by the labels are held against each other: the best
single model; single models and pairs; these, and policies that compare answers. Of the losses of each way on each query
come gains of one over another, with their standard errors, and luck: the more policies are searched, the luckier the
best one looks on the queries of the search, and on those that were left out it is not.
"""

import dataclasses
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
from rcjax.tuning.judging import charges, deal_folds, judge_all
from rcjax.tuning.pairs import Judging

PRICES, BUDGETS = 40, 24


class Losses(NamedTuple):
    """What became of m queries that were left out, chosen for in S ways and for T targets; F forms of outcomes.

    The ways are those of the labels: single models, pairs, policies that compare answers, as far as there are such.
    """

    targets: Targets
    penalty: np.ndarray
    """(F, S, T, m) errors, and refusals at their price."""
    charge: np.ndarray
    """(S, T, m) money."""
    expected: np.ndarray
    """(F, S, T, m) the penalty; where answers are compared, with errors as they are expected."""
    promised: np.ndarray
    """(S, T) the penalty as the queries of the choice told it."""
    folds: int
    """How many there were."""

    def luck(self, chosen: slice) -> np.ndarray:
        """(S,) by how much what was chosen errs more on queries left out than on those of the choice, over targets.

        Of a policy that nothing was chosen for that is 0, as each label is left out once. Luck falls with the number of
        labels; here a fold was left out of the choice, so by that share the choice by all is less lucky.
        """
        luck = (self.penalty[-1, :, chosen].mean(-1) - self.promised[:, chosen]).mean(-1)
        return luck * (1 - 1 / self.folds)

    def gains(self, way: int, rival: int, expected: bool = False) -> Gains:
        """What one way gains on another in error + λ·cost at every price, over all queries.

        Args:
            way: its number.
            rival: what it is held against.
            expected: by the errors that are expected, which is far less noisy: counted by the labels of 300 queries, a
                gain of 7 % has a standard error of 5 %, and two of three would be missed.
        """
        pair, prices = [rival, way], self.targets.prices
        money = self.targets.lam[:, None] * self.charge[pair, prices]
        counted = self.penalty[:, pair, prices] + money  # (F, 2, G, m)
        loss = self.expected[:, pair, prices] + money if expected else counted
        share = np.maximum(counted[0, 0].mean(-1), np.finfo(float).tiny)[:, None]
        by_loss, by_count = (of[:, 0] - of[:, 1] for of in (loss, counted))
        return Gains(Gain.of(by_loss), *(Gain.of((gain / share).mean(-2)) for gain in (by_loss, by_count)))

    def compared(self, alone: np.ndarray) -> Comparison:
        """What they show, beside how often each model errs (k,)."""
        within, ways = self.targets.within, len(self.charge)
        pair, penalty = min(1, ways - 1), self.penalty[:, :, within]
        return Comparison(
            self.targets,
            pairs=self.gains(pair, 0),
            agreement=self.gains(2, pair, expected=True) if ways > 2 else None,
            saved=Gain.of(penalty[:, :1] - penalty),
            alone=alone,
            luck=np.stack([self.luck(kind) for kind in (self.targets.prices, within)]),
        )


def targets_of(log: Log) -> Targets:
    """Prices at which policies differ; budgets from the cheapest model's bill to beyond the dearest's."""
    cost = np.asarray(log.cost, float)
    low, high = float(cost.min()), float(cost.max())
    low = max(low, 1e-6 * high, np.finfo(float).tiny)
    return Targets(lam_range(cost, PRICES), np.geomspace(low, 1.2 * max(high, low), BUDGETS))


def errors_alone(log: Log) -> np.ndarray:
    """(k,) how often each model of a log errs, by its labels."""
    answered = np.asarray(log.answered)
    return 1 - (expected_right(log) * answered).sum(0) / np.maximum(answered.sum(0), 1)


def leave_out(log: Log, model: Fitted, judging: Judging, folds: int = 5, seed: int = 0) -> Losses:
    """The losses of every way to choose on all complete queries of a log, each left out once.

    Where answers lack labels, gains are reckoned by what is expected of these; errors, and the standard errors of
    gains, by what the labels correct (`rcjax.model.label_outcomes`).

    Args:
        log: the log, of the models of `model`.
        model: the model fitted to it.
        judging: how policies are judged by the labels.
        folds: how many.
        seed: of the deal.
    """
    complete, price = log.complete, None if judging.refusal is None else 1 - float(judging.refusal)
    fold, targets, charge = deal_folds(complete, folds, seed), targets_of(log), charges(log)
    forms, logs = [log.correct], [log] * folds
    if not is_whole(log):  # labels of a fold play no part in what is expected of the others
        expected = expected_log(log)
        forms = [expected.correct, corrected_log(log).correct]
        outcomes = jax.device_put(expected_without(log, fold, folds).astype(expected.correct.dtype))
        logs = [dataclasses.replace(expected, correct=right) for right in outcomes]

    def left_out(number: int) -> tuple[np.ndarray, ...]:
        """`penalty`, `charge`, `expected` and `promised` of a fold, as `Losses` has them."""
        calibrators, choices, likely = _chosen_without(
            logs[number], fold == number, model.calibrators, targets, judging
        )
        out = complete & (fold == number)
        walked = [[_answer_log(calibrators, choice, out, log, of, charge) for choice in choices] for of in forms]
        outcomes = Outcomes(*(np.array([[of[n] for of in form] for form in walked]) for n in range(3)))
        penalty = outcomes.penalty(price)
        expected = penalty if likely is None else penalty + (likely[..., out] - outcomes.wrong)
        return penalty, outcomes.cost[0], expected, np.stack([choice.error for choice in choices])

    *figures, promised = zip(*side_by_side(left_out, range(folds), n=log.n_queries), strict=True)
    # From the order of the folds back to that of the log.
    order = np.argsort(np.argsort(fold[complete], kind="stable"))
    penalty, spent, expected = (np.concatenate(some, axis=-1)[..., order] for some in figures)
    promised = np.average(promised, axis=0, weights=np.bincount(fold[complete], minlength=folds))
    return Losses(targets, penalty, spent, expected, promised, folds)


def _chosen_without(
    log: Log, out: np.ndarray, whole: Calibrator, targets: Targets, judging: Judging
) -> tuple[Calibrator, list[Choice], np.ndarray | None]:
    """Calibrated as the `whole` and chosen in each way by all queries of a log but those `out` (n,).

    (k,) calibrators, S choices, and where answers are compared (S, T, n) how likely queries are to be answered wrongly:
    what is gained by comparing is told by what is expected.
    """
    rows = log.logprob, log.correct, np.asarray(log.answered) & ~out[:, None]
    calibrators, _ = calibrate_log(*fill_up(*rows), transform=whole.transform, values=whole.values)
    comparing = log.answer is not None and len(log.models) > 2
    pairs, answers = judge_all(calibrators, (*rows, log.answer if comparing else None), charges(log), judging)
    choices = [choose_one(pairs.take(np.flatnonzero(pairs.alone)), targets)]
    if len(log.models) > 1:
        choices.append(choose(pairs, targets))
    if comparing:
        choices.append(choose(pairs if answers is None else together(pairs, answers), targets))
    filled = [choice.filled() for choice in choices]
    if not comparing:
        return calibrators, filled, None
    wrong = expected_on_log(calibrators, rows, log, [choice.rungs for choice in filled])
    return calibrators, filled, np.stack([choice.weights @ of for choice, of in zip(filled, wrong, strict=True)])


def _answer_log(calibrators: Calibrator, choice: Choice, out: np.ndarray, *of: Any) -> Outcomes:
    """(T, m) what becomes of the queries of a log that are `out` (n,), where targets stand."""
    outcomes = outcomes_on_log(calibrators, choice.rungs.policies(), *of)
    return Outcomes(*(choice.weights @ np.asarray(figure[:, out], float) for figure in outcomes))
