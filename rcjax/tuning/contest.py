"""One experiment: ways to choose policies are tuned without some queries, and answer these.

Each *arm* is a way to choose policies from a log: single models, pairs, chains by the model, policies that compare
answers. The queries are dealt into folds; each fold in turn is left out of the fit
(calibrators, marginals, copulas) and of the choice, for every price, budget and limit on the error, and then answered.
Of the losses of each arm on each query come gains of one over another, with their standard errors, and luck: the more
policies are searched, the luckier the best one looks on the queries of the search, and on those that were left out it
is not.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rcjax._core.threads import at_once, side_by_side
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.policies import Policies
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import fit_near
from rcjax.model.label_outcomes import corrected_log, expected_log, expected_without, is_whole
from rcjax.replaying.walk import outcomes_on_log
from rcjax.tuning.agreement_candidates import Agreeing, comparable_models
from rcjax.tuning.agreement_odds import expected_on_log
from rcjax.tuning.choices import Choice, Targets, judge_all
from rcjax.tuning.comparison import Gain
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_candidates import Candidates
from rcjax.tuning.label_weights import charges

__all__ = ["Arm", "Contest", "Judged", "Losses", "compares", "contest", "gains_of"]


class Judged(NamedTuple):
    """What there is to choose from, judged without the queries that are left out; numpy's arrays."""

    models: tuple[str, ...]
    """The k models."""
    pairs: Candidates
    """Single models and pairs."""
    answers: Agreeing | None
    """Policies that compare answers; None where there are none."""
    chains: Any
    """What longer cascades there are under the model, as the contest's `chains` solved them."""


Arm = Callable[[Judged, Targets], Choice]
"""A way to choose policies."""


class Contest(NamedTuple):
    """What is compared, and how."""

    model: CascadeModel
    """Fitted to the whole log."""
    arms: Mapping[str, Arm]
    """By name; what others are held against comes first."""
    chains: Callable[[CascadeModel], Any]
    """Solves the longer cascades of a model fitted without a fold."""
    targets: Targets
    judging: Judging


class Losses(NamedTuple):
    """What became of m queries that were left out, under A arms' policies for T targets; F forms of outcomes."""

    arms: tuple[str, ...]
    targets: Targets
    penalty: np.ndarray
    """(F, A, T, m) errors, and refusals at their price."""
    charge: np.ndarray
    """(A, T, m) money, each answer at its own."""
    expected: np.ndarray
    """(F, A, T, m) the penalty; of arms that compare answers, and what they rival, with errors as they are expected."""
    told: np.ndarray
    """(A, T) the penalty as the queries of the choice told it."""
    folds: int
    """How many there were."""

    def luck(self, arm: str, chosen: slice) -> float:
        """By how much what an arm chose errs more on queries left out than on those of the choice, over some targets.

        Of a policy that nothing was chosen for that is 0, as each label is left out once. Luck falls with the number of
        labels; here a fold was left out of the choice, so by that share the choice by all is less lucky.
        """
        (place,) = self.places([arm])
        luck = (self.penalty[-1, place, chosen].mean(-1) - self.told[place, chosen]).mean()
        return float(luck) * (1 - 1 / self.folds)

    def means(self, arms: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(error, cost), each (S, T), of some arms by what the labels say, refusals at their price."""
        places = self.places(arms)
        return self.penalty[-1, places].mean(-1), self.charge[places].mean(-1)

    def gain(self, arms: Sequence[str], rival: str, expected: bool = False) -> Gain:
        """What some arms (S,) gain on another at every price, over all queries; by expected errors, if need be."""
        lam = self.targets.lam[:, None]
        prices = self.targets.prices
        places, other = self.places(arms), self.places([rival])
        money = lam * self.charge[:, prices]
        counted = self.penalty[:, :, prices] + money
        told = self.expected[:, :, prices] + money if expected else counted
        figures = gains_of(told[:, other] - told[:, places], counted[:, other[0]])
        by_labels = gains_of(counted[:, other] - counted[:, places], counted[:, other[0]])[2:]
        return Gain(*figures, *by_labels)

    def saved(self, arms: Sequence[str], rival: str) -> tuple[np.ndarray, np.ndarray]:
        """((S, B), (S, B)): by how much less some arms err at every budget than another, and the standard error."""
        places, other, budgets = self.places(arms), self.places([rival]), self.targets.within
        less = self.penalty[:, other, budgets] - self.penalty[:, places, budgets]
        return less[0].mean(-1), _standard_error(less[-1])

    def spared(self, arms: Sequence[str], rival: str) -> tuple[np.ndarray, np.ndarray]:
        """((S, E), (S, E)): by how much less some arms cost at every limit than another, and the standard error."""
        places, other, limits = self.places(arms), self.places([rival]), self.targets.limits
        less = self.charge[other, limits] - self.charge[places, limits]
        return less.mean(-1), _standard_error(less)

    def places(self, arms: Sequence[str]) -> list[int]:
        """Where some arms stand."""
        return [self.arms.index(name) for name in arms]


def contest(log: Log, of: Contest, fold: np.ndarray) -> Losses:
    """The losses of all arms on all complete queries of a log, each left out once.

    Queries that lack an answer help to fit, but are not compared on. Where answers lack labels, policies are chosen,
    and gains reckoned, by what is expected of these; errors, and the standard errors of gains, by what the labels
    correct (`rcjax.model.label_outcomes`).

    Args:
        log: the log, of the models of the contest's model.
        of: what is compared.
        fold: (n,) the fold of each query, numbered from 0.
    """
    folds = int(fold.max()) + 1
    logs, forms = _outcome_forms(log, fold, folds)
    parts = side_by_side(lambda k: _tuned_without(fold == k, logs[k], of, forms), range(folds), n=log.n_queries)
    # From the order of the folds back to that of the log.
    order = np.argsort(np.argsort(fold[log.complete], kind="stable"))
    *figures, told = zip(*parts, strict=True)
    queries = np.bincount(fold[log.complete], minlength=folds)
    penalty, charge, expected = (np.concatenate(some, axis=-1)[..., order] for some in figures)
    told = np.average(told, axis=0, weights=queries)
    return Losses(tuple(of.arms), of.targets, penalty, charge, expected, told, folds)


def compares(log: Log, judging: Judging) -> bool:
    """Whether there are policies that may compare answers."""
    return log.answer is not None and comparable_models(len(log.models), judging.refusal)


def gains_of(gain: np.ndarray, rival: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(gain, its standard error, as a share of the loss of the rival over all prices, that standard error).

    The first axis is of the forms of outcomes: gains are of the first, their standard errors of the last, which are the
    same where all answers are labelled.

    Args:
        gain: (F, …, G, m) by how much the loss of a query is below that of the rival.
        rival: (F, G, m) the loss of the rival.
    """
    share = (gain / np.maximum(rival[0].mean(-1), np.finfo(float).tiny)[:, None]).mean(-2)
    return gain[0].mean(-1), _standard_error(gain[-1]), share[0].mean(-1), _standard_error(share[-1])


def _standard_error(values: np.ndarray) -> np.ndarray:
    return values.std(-1, ddof=1) / np.sqrt(values.shape[-1])


def _outcome_forms(log: Log, fold: np.ndarray, folds: int) -> tuple[list[Log], list[jax.Array]]:
    """(the log as it is tuned on without each fold, forms (F,) of the outcomes (n, k) that queries left out have).

    Where answers lack labels, those of a fold play no part in what is expected of the others. Those left out count as
    they are expected to be, by all labels, and as the labels correct that.
    """
    if is_whole(log):
        return [log] * folds, [log.correct]
    expected, told = expected_log(log), corrected_log(log).correct
    known = jax.device_put(expected_without(log, fold, folds).astype(expected.correct.dtype))
    return [dataclasses.replace(expected, correct=right) for right in known], [expected.correct, told]


def _tuned_without(
    out: np.ndarray, log: Log, of: Contest, forms: Sequence[jax.Array]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(penalty, charge, expected, told) as `Losses` has them, of the queries `out` (n,), tuned without them.

    By forms (F,) of outcomes (n, k).
    """
    train, money = np.asarray(log.answered) & ~out[:, None], charges(log)
    rows = log.logprob, log.correct, train
    fitted = fit_near(of.model, *rows, log.cost)
    judged = _judged(fitted, log, train, money, of)
    choices = [arm(judged, of.targets) for arm in of.arms.values()]
    policies = [choice.policies for choice in choices]
    out = out & np.asarray(log.complete)
    refusal = of.judging.refusal
    price = None if refusal is None else 1 - float(refusal)
    walked = [[_fate(fitted, log, (right, money), own, out) for own in policies] for right in forms]
    penalty = np.stack([[fate.penalty(price) for fate in fates] for fates in walked])
    charge = np.stack([fate.cost for fate in walked[0]])
    softened = penalty.copy()
    if judged.answers is not None:
        # What rivals gain is told by what is expected: of all policies of two models at most, and by agreement.
        few = [n for n, own in enumerate(policies) if own.members.sum(1).max() <= 2 or own.agreements is not None]
        compared = [policies[place].comparing() for place in few]
        wrong = np.stack([[fates[place].wrong for place in few] for fates in walked])
        softened[:, few] += expected_on_log(fitted.calibrators, rows, log, compared)[:, :, out] - wrong
    return penalty, charge, softened, np.stack([choice.error for choice in choices])


def _judged(fitted: CascadeModel, log: Log, train: np.ndarray, money: np.ndarray, of: Contest) -> Judged:
    """What there is to choose from; chains at the same time, as they compile, the first time."""
    codes = log.answer if compares(log, of.judging) else None
    rows = log.logprob, log.correct, train, codes
    chains, judged = at_once(
        lambda: of.chains(fitted), lambda: judge_all(fitted.calibrators, rows, money, of.targets.lam, of.judging)
    )
    pairs, answers = judged
    return Judged(log.models, pairs, answers, chains)


def _fate(model: CascadeModel, log: Log, told: tuple[Any, Any], policies: Policies, out: np.ndarray) -> Outcomes:
    """(T, m) what becomes of the queries `out` (n,) under policies (T,), by who is right and what answers cost."""
    right, money = told
    walked = outcomes_on_log(model.calibrators, log.logprob, right, log.answered, money, policies, log.answer)
    return Outcomes(*(np.asarray(figure, float)[:, out] for figure in walked))
