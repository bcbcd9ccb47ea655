"""The one choice: what the labels of some queries say is the best for each price, budget, and limit on the error.

Of single models and pairs (`label_candidates`), and beside them of policies that compare answers
(`agreement_candidates`).
"""

from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from rcjax.frontier.policies import Policies, either
from rcjax.model.calibration import Calibrator
from rcjax.tuning.agreement_candidates import Agreeing, as_policies, judge_answers
from rcjax.tuning.judging import AS_USUAL, Judging
from rcjax.tuning.label_candidates import Candidates, judge_log
from rcjax.tuning.label_choices import RESERVE, as_cascades, best_candidates, merged, reserve, within

__all__ = ["Choice", "Targets", "choose", "judge_all", "tune_by_labels"]


_NONE = np.zeros(0)


class Targets(NamedTuple):
    """What policies are chosen for, T = G + B + E targets in this order: numpy's arrays."""

    lam: np.ndarray = _NONE
    """(G,) prices, in errors per unit of money: the least error + λ·cost."""
    budgets: np.ndarray = _NONE
    """(B,) money per query: the least error whose bill keeps to it, with something in hand."""
    errors: np.ndarray = _NONE
    """(E,) limits on the error, refusals at their price: the least bill that keeps to it."""

    @property
    def prices(self) -> slice:
        """Where the prices stand among all targets."""
        return slice(len(self.lam))

    @property
    def within(self) -> slice:
        """Where the budgets stand."""
        return slice(len(self.lam), len(self.lam) + len(self.budgets))

    @property
    def limits(self) -> slice:
        """Where the limits on the error stand."""
        return slice(self.within.stop, self.within.stop + len(self.errors))


class Choice(NamedTuple):
    """What an arm has for each of T targets; numpy's arrays."""

    policies: Policies
    """(T,)"""
    error: np.ndarray
    """(T,) what the queries of the choice say of each, refusals at their price."""
    cost: np.ndarray
    """(T,) money per query, likewise."""


def judge_all(
    calibrators: Calibrator,
    rows: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike | None],
    charge: ArrayLike,
    lam: np.ndarray,
    judging: Judging,
) -> tuple[Candidates, Agreeing | None]:
    """(single models and pairs, policies that compare answers) by the labels of n queries, in numpy's arrays.

    Args:
        calibrators: (k,) of the models.
        rows: (logprob, correct, present, answer), each (n, k); None for the last where no answers are to be compared.
        charge: (n, k) money of each answer, or (k,) of any.
        lam: (L,) prices that refusals are the best for, where models may refuse.
        judging: how they are judged.
    """
    *log, answer = rows
    prices = np.asarray(lam, np.asarray(charge).dtype)
    pairs = jax.tree.map(np.asarray, judge_log(calibrators, log[0], log[1], log[2], charge, prices, judging))
    if answer is None:
        return pairs, None
    return pairs, judge_answers(calibrators, log[0], log[1], log[2], charge, answer, judging)


def choose(pairs: Candidates, answers: Agreeing | None, targets: Targets, k: int) -> Choice:
    """The best for each target, of numpy's arrays.

    Args:
        pairs: single models and pairs.
        answers: policies that compare answers; None: they are not to be chosen.
        targets: T of them.
        k: the number of models.
    """
    row, by_price = merged(pairs), np.zeros(0, int)
    if len(targets.lam):  # there may be budgets alone
        by_price = best_candidates(pairs, targets.lam)
        if pairs.refused is not None:  # each λ has candidates of its own
            by_price = by_price + np.arange(len(targets.lam)) * pairs.error.shape[-1]
    error, cost = np.asarray(row.error), np.asarray(row.cost)
    places = np.concatenate([by_price, _within(targets, error, cost, cost + reserve(row))])
    best = Choice(as_cascades(row, places, k, np).simplest(), error[places], cost[places])
    return best if answers is None else _better(best, answers, targets, (k, pairs.refused is not None))


def _within(targets: Targets, error: np.ndarray, cost: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """(B + E,) places among C candidates: the best within each budget, and within each limit on the error."""
    needed = np.where(np.isfinite(error), needed, np.inf)
    return np.concatenate([within(targets.budgets, needed, error), within(targets.errors, error, cost)])


def _better(pairs: Choice, answers: Agreeing, targets: Targets, kind: tuple[int, bool]) -> Choice:
    """The pairs chosen, or policies that compare answers where these are better; `kind` is as of `as_policies`."""
    lam, needed = targets.lam, answers.cost + RESERVE * answers.cost_se
    by_price = (answers.error + lam[:, None] * answers.cost).argmin(1)
    places = np.concatenate([by_price, _within(targets, answers.error, answers.cost, needed)])
    error, cost, needed = answers.error[places], answers.cost[places], needed[places]
    at, to, rest = targets.prices, targets.within, targets.limits
    better = np.concatenate(
        [
            error[at] + lam * cost[at] < pairs.error[at] + lam * pairs.cost[at],
            (needed[to] <= targets.budgets) & (error[to] < pairs.error[to]),
            _cheaper_within(targets.errors, (error[rest], cost[rest]), (pairs.error[rest], pairs.cost[rest])),
        ]
    )
    figures = (np.where(better, mine, other) for mine, other in ((error, pairs.error), (cost, pairs.cost)))
    return Choice(either(as_policies(answers, places, *kind), pairs.policies, better), *figures)


def _cheaper_within(
    limits: np.ndarray, own: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """(E,) bool: whether one policy, (error, cost), is the better for each limit on the error than another.

    The cheaper one where both keep to it, the one that errs less where neither does.
    """
    keeps, does = (figures[0] <= limits for figures in (own, other))
    return np.where(keeps == does, np.where(keeps, own[1] < other[1], own[0] < other[0]), keeps)


def tune_by_labels(
    calibrators: Calibrator,
    rows: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike | None],
    charge: ArrayLike,
    lam: np.ndarray,
    judging: Judging = AS_USUAL,
) -> Policies:
    """(L,) the best for each λ: of single models, pairs, and where there are answers, policies that compare them.

    Args:
        calibrators, rows, charge, judging: as of `judge_all`.
        lam: (L,) in errors per unit of money.
    """
    prices, k = np.asarray(lam, np.asarray(charge).dtype), np.shape(rows[0])[1]
    return choose(*judge_all(calibrators, rows, charge, prices, judging), Targets(prices), k).policies
