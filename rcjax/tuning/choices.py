"""The one choice: what the labels of some queries say is the best for each price, budget, and limit on the error.

Of single models and pairs (`label_candidates`), and beside them of policies that compare answers
(`agreement_candidates`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from rcjax._core.batching import part
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER, NEVER_REFUSE, Policies, either
from rcjax.model.calibration import Calibrator
from rcjax.tuning.agreement_candidates import Agreeing, as_policies, judge_answers
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_candidates import Candidates, judge_log

#: Standard errors of the bill of a pair that a budget keeps in hand: more costs errors, less overspends more often
#: (`benchmarks.budgets`).
RESERVE = 0.75


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


class ArmChoice(NamedTuple):
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
    judging: Judging,
) -> tuple[Candidates, Agreeing | None]:
    """(single models and pairs, policies that compare answers) by the labels of n queries, in numpy's arrays.

    Args:
        calibrators: (k,) of the models.
        rows: (logprob, correct, present, answer), each (n, k); None for the last where no answers are to be compared.
        charge: (n, k) money of each answer, or (k,) of any.
        judging: how they are judged.
    """
    logprob, correct, present, answer = rows
    labels = logprob, correct, present
    pairs = jax.tree.map(np.asarray, judge_log(calibrators, labels, charge, judging))
    answers = None if answer is None else judge_answers(calibrators, labels, charge, answer, judging)
    return pairs, answers


def choose(pairs: Candidates, answers: Agreeing | None, targets: Targets, k: int) -> ArmChoice:
    """The best for each target, of numpy's arrays.

    Args:
        pairs: single models and pairs.
        answers: policies that compare answers; None: they are not to be chosen.
        targets: T of them.
        k: the number of models.
    """
    error, cost = np.asarray(pairs.error), np.asarray(pairs.cost)
    by_price = best_candidates(pairs, targets.lam)
    chosen = np.concatenate([by_price, _within_limits(targets, error, cost, cost + reserve(pairs))])
    best = ArmChoice(as_cascades(pairs, chosen, k, np), error[chosen], cost[chosen])
    if answers is None:
        return best
    comparing, needed = _choose_comparing(answers, targets, k, refusing=pairs.refused is not None)
    return _better(comparing, needed, best, targets)


def _choose_comparing(answers: Agreeing, targets: Targets, k: int, refusing: bool) -> tuple[ArmChoice, np.ndarray]:
    """(the best policy that compares answers for each target, the money (T,) that a budget needs for it)."""
    error, cost, needed = answers.error, answers.cost, answers.cost + RESERVE * answers.cost_se
    by_price = (error + targets.lam[:, None] * cost).argmin(1)
    chosen = np.concatenate([by_price, _within_limits(targets, error, cost, needed)])
    return ArmChoice(as_policies(answers, chosen, k, refusing), error[chosen], cost[chosen]), needed[chosen]


def _within_limits(targets: Targets, error: np.ndarray, cost: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """(B + E,) positions among C candidates: the best within each budget, and within each limit on the error."""
    needed = np.where(np.isfinite(error), needed, np.inf)
    return np.concatenate([within(targets.budgets, needed, error), within(targets.errors, error, cost)])


def _better(choice: ArmChoice, needed: np.ndarray, rival: ArmChoice, targets: Targets) -> ArmChoice:
    """One choice where it is better than its rival, else that; `needed` (T,) is what a budget must have for it."""
    prices, budgets, limits = targets.prices, targets.within, targets.limits
    loss, rival_loss = (of.error[prices] + targets.lam * of.cost[prices] for of in (choice, rival))
    less, cheaper = choice.error < rival.error, choice.cost < rival.cost
    keeps, rival_keeps = (of.error[limits] <= targets.errors for of in (choice, rival))
    better = np.concatenate(
        [
            loss < rival_loss,
            (needed[budgets] <= targets.budgets) & less[budgets],
            # The cheaper one where both keep to the limit, the one that errs less where neither does.
            np.where(keeps == rival_keeps, np.where(keeps, cheaper[limits], less[limits]), keeps),
        ]
    )
    error, cost = np.where(better, choice.error, rival.error), np.where(better, choice.cost, rival.cost)
    return ArmChoice(either(choice.policies, rival.policies, better), error, cost)


def best_candidates(candidates: Candidates, lam: Any, xp: Any = np) -> Any:
    """(L,) the position of the candidate with the least error + λ·cost for each λ (L,).

    A price parts no queries of one confidence: to pass on all of them, or none, is as good at the least.
    """
    error = candidates.error
    return (error + lam[:, None] * candidates.cost).argmin(-1)


def within(limits: np.ndarray, limited: np.ndarray, least: np.ndarray) -> np.ndarray:
    """(B,) for each limit, the position of the least of those that keep to it; of the least limited where none does.

    Args:
        limits: (B,) budgets, or errors.
        limited: (C,) what each needs, or how often it errs; infinite for what is never to be taken.
        least: (C,) what is to be low: the error within a budget, the bill within a limit on the error.

    >>> within(np.array([2.5, 0.5]), np.array([1.0, 2.0, 3.0]), np.array([0.3, 0.2, 0.1])).tolist()
    [1, 0]
    """
    fits = np.isfinite(limited) & (limited <= limits[:, None])
    return np.where(fits.any(1), np.where(fits, least, np.inf).argmin(1), limited.argmin())


def reserve(candidates: Candidates) -> np.ndarray:
    """(C,) money that a budget keeps in hand: `RESERVE` standard errors of the bill of a pair, whose threshold is free.

    The bill of a single model is what it is.
    """
    return np.where(candidates.first == candidates.second, 0.0, RESERVE * candidates.cost_se)


def as_cascades(trial: Candidates, indices: Any, k: int, xp: Any = jnp) -> Policies:
    """(L,) some of the candidates, as policies over k models.

    Args:
        trial: all candidates.
        indices: (L,) which of them.
        k: the number of models.
        xp: jax.numpy, or numpy outside of a jitted function.
    """
    chosen = part(trial, indices)
    everyone = np.arange(k)
    is_first, is_second = (model[:, None] == everyone for model in (chosen.first, chosen.second))
    alone = xp.where(is_second, ALWAYS_ANSWER, NEVER_ANSWER).astype(chosen.threshold.dtype)
    thresholds, members = xp.where(is_first, chosen.threshold[:, None], alone), is_first | is_second
    if chosen.refused is not None:
        refusals = xp.where(is_second, chosen.refused[:, None], NEVER_REFUSE)
        return Policies.of_cascades(xp.maximum(thresholds, refusals), members, refusals, xp)
    return Policies.of_cascades(thresholds, members, xp=xp)
