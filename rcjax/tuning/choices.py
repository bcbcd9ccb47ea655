"""What there is to choose from, judged by labels, and where among it a target stands.

Of single models and pairs (`label_candidates`), and of policies that compare answers (`agreement_candidates`), a table
keeps the single models, and of the others the corners of their lower hull, which are best at some price of an error. A
budget, or a limit on the error, stands between two corners of the whole.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from rcjax._core.batching import part
from rcjax.frontier.hull import lower_hull, position_weights, thinned
from rcjax.frontier.policies import Policies, of_one_kind
from rcjax.model.calibration import Calibrator
from rcjax.tuning.agreement_candidates import as_policies, judge_answers
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_candidates import Candidates, as_cascades, judge_log

#: Rungs of the ladders that folds and replicates stand on, filled up by the last one: so few shapes are compiled.
RUNGS = 32


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


class Table(NamedTuple):
    """Policies to choose from, C of them; numpy's arrays."""

    error: np.ndarray
    """(C,) as judged, refusals at their price."""
    cost: np.ndarray
    """(C,) of the queries, each at what its path costs."""
    abstention: np.ndarray
    """(C,) share of the queries that get no answer."""
    policies: Policies
    """(C,)"""

    def take(self, indices: np.ndarray) -> "Table":
        """Some of them, by position."""
        return part(self, indices)

    def loss(self, lam: np.ndarray) -> np.ndarray:
        """(L, C) error + λ·cost for each λ (L,)."""
        return self.error + lam[:, None] * self.cost

    def best(self, lam: np.ndarray) -> "Table":
        """(L,) the best for each λ (L,)."""
        return self.take(self.loss(lam).argmin(1))

    @property
    def alone(self) -> np.ndarray:
        """(C,) bool: single models, whose errors are counted, and which nothing was chosen for."""
        return self.policies.members.sum(-1) == 1

    def rungs(self) -> "Table":
        """(R,) the corners of its lower hull, by rising cost: at most `RUNGS`."""
        hull = lower_hull(self.cost, self.error)
        return self.take(hull[thinned(self.cost[hull], self.error[hull], RUNGS)])

    def filled(self) -> "Table":
        """The same, filled up to `RUNGS` policies by the last one."""
        count = len(self.cost)
        return self.take(np.minimum(np.arange(max(RUNGS, count)), count - 1))


def together(*tables: Table) -> Table:
    """Policies one after the other, as of one kind."""
    policies = of_one_kind(*(table.policies for table in tables))
    alike = (table._replace(policies=unified) for table, unified in zip(tables, policies, strict=True))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *alike)


def judge_all(
    calibrators: Calibrator,
    rows: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike | None],
    charge: ArrayLike,
    judging: Judging,
    admits: Callable[[Policies], np.ndarray] | None = None,
) -> tuple[Table, Table | None]:
    """(single models and pairs, policies that compare answers or None) by the labels of n queries.

    Args:
        calibrators: (k,) of the models.
        rows: (logprob, correct, present, answer), each (n, k); None for the last where no answers are to be compared.
        charge: (n, k) money of each answer, or (k,) of any.
        judging: how they are judged.
        admits: which policies (C,) may be chosen, (C,) bool; None: all.
    """
    labels, answer = rows[:3], rows[3]
    k, refusing = np.shape(labels[0])[1], judging.refusal is not None
    pairs = jax.tree.map(np.asarray, judge_log(calibrators, labels, charge, judging))
    none = np.zeros_like(pairs.error) if pairs.abstention is None else pairs.abstention
    judged = _Judged(pairs.error, pairs.cost, none, lambda some: as_cascades(pairs, some, k, np))
    table = judged.corners(_useful(pairs, k), pairs.first == pairs.second, admits)
    if answer is None:
        return table, None
    three = judge_answers(calibrators, labels, charge, answer, judging)
    policies = partial(as_policies, three, k=k, refusing=refusing)
    judged = _Judged(three.error, three.cost, three.abstention, policies)
    several = judged.corners(np.flatnonzero(np.isfinite(three.error)), np.zeros(three.error.shape, bool), admits)
    return table, several if several.cost.size else None


def _useful(pairs: Candidates, k: int) -> np.ndarray:
    """Positions of all but thresholds that part no queries, and what a single model beats in error and cost as counted.

    Whatever is expected, nobody would choose these.
    """
    use = np.isfinite(pairs.error)
    if pairs.refused is None:
        less = pairs.counted[:k] < pairs.counted[:, None] - _ROUNDING
        beaten = less & (pairs.cost[:k] < pairs.cost[:, None] * (1 - _ROUNDING))
        use &= (pairs.first == pairs.second) | ~beaten.any(1)
    return np.flatnonzero(use)


class _Judged(NamedTuple):
    """C candidates, as they were judged."""

    error: np.ndarray
    cost: np.ndarray
    abstention: np.ndarray
    policies: Callable[[np.ndarray], Policies]
    """What some of them do, by position."""

    def corners(self, useful: np.ndarray, alone: np.ndarray, admits: Callable[[Policies], np.ndarray] | None) -> Table:
        """Of the `useful`, by position, that may be chosen: those `alone` (C,), and the corners of the others' hull."""
        if admits is not None and useful.size:
            useful = useful[admits(self.policies(useful))]
        others = useful[~alone[useful]]
        kept = np.concatenate([useful[alone[useful]], others[lower_hull(self.cost[others], self.error[others])]])
        return Table(self.error[kept], self.cost[kept], self.abstention[kept], self.policies(kept))


class Choice(NamedTuple):
    """Where T targets stand among some policies; numpy's arrays."""

    rungs: Table
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


def choose(table: Table, targets: Targets) -> Choice:
    """Where targets stand: a price at a corner of the hull, a limit between two.

    >>> policies = Policies.of_cascades(np.zeros((3, 3)), np.eye(3, dtype=bool))
    >>> table = Table(np.array([0.3, 0.2, 0.1]), np.array([1.0, 2.0, 9.0]), np.zeros(3), policies)
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


def choose_one(table: Table, targets: Targets) -> Choice:
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
