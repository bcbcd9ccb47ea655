"""What there is to choose from, judged by labels, and where among it a target stands.

Of single models and pairs (`label_candidates`), and of policies that compare answers (`agreement_candidates`), a table
keeps the single models, and of the others the corners of their lower hull, which are best at some price of an error. A
budget, or a limit on the error, stands between two corners of the whole.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from rcjax._core.batching import fill_up
from rcjax._core.compilation import compiled
from rcjax.frontier.hull import lower_hull, position_weights
from rcjax.frontier.policies import Policies
from rcjax.model.calibration import Calibrator
from rcjax.tuning.agreement_candidates import agreeing
from rcjax.tuning.candidates import RUNGS, Candidates
from rcjax.tuning.judging import AS_USUAL, Judging
from rcjax.tuning.label_candidates import CandidateRows, candidates

_ROUNDING = 1e-6  # of an error, and of a bill, in single precision

_NONE = np.zeros(0)


class Targets(NamedTuple):
    """What policies are chosen for, T = G + B + E targets in this order: numpy's arrays."""

    lam: np.ndarray = _NONE
    """(G,) prices, in errors per unit of money: the least error + λ·cost."""
    budgets: np.ndarray = _NONE
    """(B,) money per query: the least error whose bill keeps to it."""
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


def judge(
    calibrators: Calibrator, rows: tuple[Any, Any, Any], charge: Any, judging: Judging, answer: Any = None
) -> Candidates:
    """Single models and pairs, or where there are answers policies that compare them, judged on n queries.

    Args:
        calibrators: (k,) of the models.
        rows: (logprob, correct, present), each (n, k), as `CandidateRows.of` takes them.
        charge: (n, k) money of each answer, or (k,) of any.
        judging: how they are judged.
        answer: (n, k) codes of answers.
    """
    known = CandidateRows.of(calibrators, rows, charge, answer)
    return candidates(known, judging) if answer is None else agreeing(known, judging)


_judge_filled = compiled(judge, runs="long")


def judge_log(
    calibrators: Calibrator, rows: tuple[Any, Any, Any], charge: Any, judging: Judging = AS_USUAL, answer: Any = None
) -> Candidates:
    """`judge`, compiled for one log at a time, in numpy's arrays: folds, replicates and logs of like size share it.

    Args:
        calibrators, rows, charge, judging, answer: as of `judge`.
    """
    money = fill_up(charge)[0] if np.ndim(charge) > 1 else charge
    codes = None if answer is None else fill_up(answer)[0]
    return jax.tree.map(np.asarray, _judge_filled(calibrators, fill_up(*rows), money, judging, codes))


def judge_all(
    calibrators: Calibrator,
    rows: tuple[Any, Any, Any, Any],
    charge: Any,
    judging: Judging,
    admits: Callable[[Policies], np.ndarray] | None = None,
) -> tuple[Candidates, Candidates | None]:
    """(single models and pairs, policies that compare answers or None): what of them may be chosen for some target.

    Args:
        calibrators: (k,) of the models.
        rows: (logprob, correct, present, answer), each (n, k); None for the last where no answers are to be compared.
        charge: (n, k) money of each answer, or (k,) of any.
        judging: how they are judged.
        admits: which policies (C,) may be chosen, (C,) bool; None: all.
    """
    *labels, answer = rows
    pairs = judge_log(calibrators, tuple(labels), charge, judging)
    pairs = _corners(pairs, _useful(pairs), admits)
    if answer is None:
        return pairs, None
    triples = judge_log(calibrators, tuple(labels), charge, judging, answer)
    triples = _corners(triples, np.flatnonzero(np.isfinite(triples.error)), admits)
    return pairs, triples if triples.cost.size else None


def _useful(pairs: Candidates) -> np.ndarray:
    """Positions of all but thresholds that part no queries, and what a single model beats in error and cost as counted.

    Whatever is expected, nobody would choose these.
    """
    use, k = np.isfinite(pairs.error), pairs.k
    if pairs.refusal is None:
        less = pairs.counted[:k] < pairs.counted[:, None] - _ROUNDING
        beaten = less & (pairs.cost[:k] < pairs.cost[:, None] * (1 - _ROUNDING))
        use &= pairs.alone | ~beaten.any(1)
    return np.flatnonzero(use)


def _corners(trial: Candidates, useful: np.ndarray, admits: Callable[[Policies], np.ndarray] | None) -> Candidates:
    """Of the `useful`, by position, that may be chosen: the single models, and the corners of the others' hull."""
    if admits is not None and useful.size:
        useful = useful[admits(trial.take(useful).policies())]
    alone = trial.alone[useful]
    others = useful[~alone]
    corners = others[lower_hull(trial.cost[others], trial.error[others])]
    return trial.take(np.concatenate([useful[alone], corners]))


class Choice(NamedTuple):
    """Where T targets stand among some policies; numpy's arrays."""

    rungs: Candidates
    """(R,)"""
    weights: np.ndarray
    """(T, R) the share of the queries that goes by each."""

    @property
    def error(self) -> np.ndarray:
        """(T,) as the queries of the choice say, refusals at their price."""
        return self.weights @ self.rungs.error

    def filled(self) -> "Choice":
        """The same, of `RUNGS` rungs, if there are not more."""
        count = len(self.rungs.cost)
        weights = np.pad(self.weights, ((0, 0), (0, max(RUNGS - count, 0))))
        return Choice(self.rungs.filled(), weights)


def choose(table: Candidates, targets: Targets) -> Choice:
    """Where targets stand: a price at a corner of the hull, a limit between two.

    >>> models, error, cost = np.arange(3), np.array([0.3, 0.2, 0.1]), np.array([1.0, 2.0, 9.0])
    >>> table = Candidates(3, *[models] * 3, *np.zeros((2, 3)), error, cost, error, np.zeros(3))
    >>> choose(table, Targets(np.array([0.05]), np.array([1.5]), np.array([0.5]))).weights.tolist()
    [[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]
    """
    rungs = table.rungs()
    place = np.arange(len(rungs.cost), dtype=float)
    at = [
        rungs.loss(targets.lam).argmin(1),
        np.interp(targets.budgets, rungs.cost, place),
        np.interp(-targets.errors, -rungs.error, place),
    ]
    return Choice(rungs, position_weights(np.concatenate(at), len(place)))


def choose_one(table: Candidates, targets: Targets) -> Choice:
    """The best single policy for each target: the cheapest, or the one that errs least, where none keeps to a limit."""
    error, cost = table.error, table.cost
    best = [
        table.loss(targets.lam).argmin(1),
        _within(targets.budgets, cost, error),
        _within(targets.errors, error, cost),
    ]
    return Choice(table, position_weights(np.concatenate(best), len(cost)))


def _within(limits: np.ndarray, limited: np.ndarray, least: np.ndarray) -> np.ndarray:
    """(B,) for each limit, the position of the least of those that keep to it; of the least limited where none does.

    >>> _within(np.array([2.5, 0.5]), np.array([1.0, 2.0, 3.0]), np.array([0.3, 0.2, 0.1])).tolist()
    [1, 0]
    """
    fits = limited <= limits[:, None]
    return np.where(fits.any(1), np.where(fits, least, np.inf).argmin(1), limited.argmin())
