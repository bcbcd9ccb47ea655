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
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted, calibrate_log
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import corrected_log, expected_log, expected_without, is_whole
from rcjax.policy.spec import Target
from rcjax.solving.frontier.points import Outcomes, lam_range, log_lam
from rcjax.tuning.agreement import expected_on_log
from rcjax.tuning.candidates import ChosenPolicies, Targets, choose, choose_one, together
from rcjax.tuning.judging import charges, deal_folds, judge_all
from rcjax.tuning.pairs import Judging
from rcjax.tuning.replaying.walk import outcomes_on_log

PRICES, BUDGETS = 40, 24

_LEAST, _CONTRADICTION = 0.002, 3.0  # of error + λ·cost over all prices together, as a share of it; standard errors


class Gain(NamedTuple):
    """By how much one thing is better than its rival, on queries that were left out: numbers, or numpy's arrays."""

    mean: Any
    """Over the queries."""
    se: Any
    """Its standard error."""

    @classmethod
    def of(cls, forms: np.ndarray) -> "Gain":
        """Of what each of m queries gains, (F, …, m), in the forms that outcomes have (`contest`).

        The mean is of the first form; the standard error of the last, which is the same where all answers are labelled.

        >>> float(Gain.of(np.array([[0.0, 2.0, 1.0, 1.0]])).mean)
        1.0
        """
        return cls(forms[0].mean(-1), forms[-1].std(-1, ddof=1) / np.sqrt(forms.shape[-1]))

    def at(self, index: Any) -> "Gain":
        """That of one of several."""
        return Gain(self.mean[index], self.se[index])


class Gains(NamedTuple):
    """What an arm gains on a rival in error + λ·cost at G prices."""

    at_prices: Gain
    """(G,)"""
    overall: Gain
    """() as a share of the rival's error + λ·cost, averaged over the prices."""
    counted: Gain
    """() the same by the labels of the queries left out themselves."""

    @property
    def earned(self) -> bool:
        """Whether the arm gains enough to have a place, and the labels left out do not contradict.

        The frontier keeps the policies without it, so that a gain which is not there costs little, and one that is
        missed much.
        """
        return bool(self.overall.mean > _LEAST and self.counted.mean > -_CONTRADICTION * self.counted.se)


@dataclasses.dataclass(frozen=True)
class Contest:
    """Cross-validated figures of single models, pairs, and policies that compare answers, on queries left out.

    S nested candidate sets: single models; with pairs; with policies that compare answers. Each is chosen from on the
    other folds. What is best for one target may be another for the next.
    """

    targets: Targets  # G prices, B budgets, each rising
    pairs: Gains  # of pairs, on single models
    agreement: Gains | None  # of policies that may compare answers, on pairs; None: the log tells no answers
    saved: Gain  # (S, B) by how much the error is below that of the best single model
    alone: np.ndarray  # (k,) how often each model errs, by all labels
    luck: np.ndarray  # (S,) optimism: held-out error minus in-sample error, mean over budgets

    @property
    def agreeing(self) -> np.ndarray:
        """(G,) bool: the prices where comparing answers earns its place: it gains over all together, and at the price.

        Of forty prices, one or another always looks better by luck.
        """
        if self.agreement is None or not self.agreement.earned:
            return np.zeros(len(self.targets.lam), bool)
        return self.agreement.at_prices.mean > 0

    def optimism(self, comparing: bool) -> float:
        """Return by how much more optimistic the error of a chosen cascade is than that of a single model, 0 at least.

        The best of many looks better than it is on other queries, and there are many more cascades to choose from than
        models. The errors of cascades are raised by this: both are told by one measure, single models as counted. It is
        a mean over all budgets, as single figures are noise.

        Args:
            comparing: for policies that may compare answers, where there are any.
        """
        return max(float(self.luck[self.row(comparing)] - self.luck[0]), 0.0)

    def row(self, comparing: bool) -> int:
        """The candidate set that a cascade comes from: pairs, or where it compares answers, all."""
        return len(self.luck) - 1 if comparing else min(1, len(self.luck) - 1)

    def gain(self, comparing: bool, target: Target, bills: np.ndarray) -> Gain:
        """The gain of cascades on the best single model at a target, in errors, on queries left out.

        Args:
            comparing: for policies that compare answers.
            target: a budget, or a price of an error; the gain at a price is of error + λ·cost.
            bills: (k,) dollars per query of the models alone.
        """
        if target.name == "budget":
            return self.saved.at((self.row(comparing), self.at_budget(target.value, bills)))
        lam = target.value if target.name == "lam" else 1 / target.value
        place = int(self.at_price(lam))
        pairs = self.pairs.at_prices.at(place)
        if self.agreement is None or not comparing:
            return pairs
        more = self.agreement.at_prices.at(place)
        return Gain(pairs.mean + more.mean, np.hypot(pairs.se, more.se))

    def at_budget(self, budget: float, bills: Any = ()) -> int:
        """The place of the budget nearest to one, on the logarithmic scale.

        Of those that pay for as many of some bills, those of the models alone, where there are such: what a cascade
        saves falls at once where the next model can be had for the same money.
        """
        ends, end, alone = (log_lam(money) for money in (self.targets.budgets, budget, bills))
        alike = (alone <= ends[:, None] + 1e-9).sum(1) == (alone <= end + 1e-9).sum()
        return int(np.where(alike | ~alike.any(), np.abs(ends - end), np.inf).argmin())

    def at_price(self, lam: Any) -> np.ndarray:
        """(…) the place of the price nearest to each λ, on the logarithmic scale."""
        return np.abs(log_lam(self.targets.lam) - log_lam(lam)[..., None]).argmin(-1)


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

    def compared(self, alone: np.ndarray) -> Contest:
        """What they show, beside how often each model errs (k,)."""
        within, ways = self.targets.within, len(self.charge)
        pair, penalty = min(1, ways - 1), self.penalty[:, :, within]
        return Contest(
            self.targets,
            pairs=self.gains(pair, 0),
            agreement=self.gains(2, pair, expected=True) if ways > 2 else None,
            saved=Gain.of(penalty[:, :1] - penalty),
            alone=alone,
            luck=self.luck(within),
        )


def targets_of(log: Log) -> Targets:
    """Prices at which policies differ; budgets from the cheapest model's bill to beyond the dearest's."""
    cost = np.asarray(log.cost, float)
    low, high = float(cost.min()), float(cost.max())
    low = max(low, 1e-6 * high, np.finfo(float).tiny)
    return Targets(lam_range(cost, PRICES), np.geomspace(low, 1.2 * max(high, low), BUDGETS))


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
) -> tuple[Calibrator, list[ChosenPolicies], np.ndarray | None]:
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


def _answer_log(calibrators: Calibrator, choice: ChosenPolicies, out: np.ndarray, *of: Any) -> Outcomes:
    """(T, m) what becomes of the queries of a log that are `out` (n,), where targets stand."""
    outcomes = outcomes_on_log(calibrators, choice.rungs.policies(), *of)
    return Outcomes(*(choice.weights @ np.asarray(figure[:, out], float) for figure in outcomes))
