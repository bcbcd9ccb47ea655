"""Policies to choose from, judged on a log: single models and pairs, and those that go by whether answers agree.

Of all of them, a frontier has those that no other beats in both error and cost. The corners of their convex hull are
best at some price of an error; between two corners, where no price leads, stand the best that a budget or a limit on
the error can have there.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from rcjax._core.batching import part
from rcjax.frontier.hull import lower_hull, pareto
from rcjax.frontier.points import PointStatus
from rcjax.frontier.policies import NEVER_REFUSE, Policies, either, of_one_kind
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted
from rcjax.policy.targets import TargetName
from rcjax.tuning.agreement_candidates import as_policies, judge_answers
from rcjax.tuning.choices import RESERVE, as_cascades, reserve
from rcjax.tuning.comparison import Comparison
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_candidates import Candidates, judge_log
from rcjax.tuning.label_weights import charges

#: How far above the frontier a policy may be, in standard errors of its error.
SLACK = 0.1


_ROUNDING = 1e-6  # of an error, and of a bill, in single precision


_MOST_POINTS = 250  # of a frontier


_FINE = 400  # λ at which policies that go by agreement are taken to the frontier


class Trial(NamedTuple):
    """Policies to choose from, C of them, in numpy's arrays."""

    penalty: np.ndarray  # (C,) errors, and refusals at their price
    cost: np.ndarray  # (C,) of the queries, each at what its path costs
    reserve: np.ndarray  # (C,) money that a budget keeps in hand for it (`RESERVE`)
    abstention: np.ndarray  # (C,)
    policies: Policies  # (C,)

    def take(self, indices: np.ndarray) -> "Trial":
        """Some of them, by position."""
        return part(self, indices)

    @property
    def alone(self) -> np.ndarray:
        """(C,) bool: single models, whose errors are counted, and which nothing was chosen for."""
        return self.policies.members.sum(-1) == 1

    def loss(self, lam: np.ndarray) -> np.ndarray:
        """(L, C) for each λ (L,)."""
        return self.penalty + lam[:, None] * self.cost


def all_trials(*several: Trial) -> Trial:
    """Policies one after the other, as of one kind."""
    policies = of_one_kind(*(trial.policies for trial in several))
    alike = (trial._replace(policies=unified) for trial, unified in zip(several, policies, strict=True))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *alike)


@dataclasses.dataclass(frozen=True)
class AgreementTrial:
    """Policies that go by whether answers agree, on trial, and where these have earned their place."""

    trial: Trial
    comparison: Comparison

    @classmethod
    def of(cls, log: Log, model: Fitted, comparison: Comparison, judging: Judging) -> "AgreementTrial | None":
        """None where they have earned no place at all.

        Args:
            log: the log that was tuned on.
            model: the model fitted to it.
            comparison: what cross-validation shows.
            judging: how policies are judged.
        """
        return cls(judge_agreements(log, model, judging), comparison) if comparison.agreeing.any() else None

    def only(self, indices: np.ndarray) -> "AgreementTrial | None":
        """Some of them alone, by position; None for none."""
        return dataclasses.replace(self, trial=self.trial.take(indices)) if indices.size else None

    def near_best(self, pairs: Trial, n: int) -> Trial:
        """Those within the slack of the best of all, at some λ where they have earned a place."""
        grid = self.comparison.lam
        lam = np.exp(np.interp(np.linspace(0, 1, _FINE), np.linspace(0, 1, len(grid)), np.log(grid)))
        lam = lam[self.comparison.agreeing[self.comparison.nearest(lam)]]
        near = np.zeros(len(self.trial.cost), bool)
        for price in lam:
            mine, theirs = self.trial.loss(price[None])[0], pairs.loss(price[None])[0]
            best = mine.argmin()
            slack = SLACK * np.sqrt(max(self.trial.penalty[best] * (1 - self.trial.penalty[best]), 0.0) / n)
            near |= mine <= min(mine[best], theirs.min()) + slack
        return self.trial.take(np.flatnonzero(near))

    def better(self, points: Trial, lam: np.ndarray) -> Trial:
        """Points (L,), in whose place the best for their λ (L,) stand where these do better and have earned it."""
        best = np.array([self.trial.loss(price[None])[0].argmin() for price in lam])
        mine = self.trial.take(best)
        better = mine.penalty + lam * mine.cost < points.penalty + lam * points.cost
        better &= self.comparison.agreeing[self.comparison.nearest(lam)]
        policies = either(mine.policies, points.policies, better)
        figures = (np.where(better, *pair) for pair in zip(mine[:-1], points[:-1], strict=True))
        return Trial(*figures, policies=policies)


def judge_pairs(log: Log, model: Fitted, judging: Judging) -> Trial:
    """Every single model and pair.

    Args:
        log: the log to judge by.
        model: the model fitted to it.
        judging: how they are judged.
    """
    rows = log.logprob, log.correct, log.answered
    trial = jax.tree.map(np.asarray, judge_log(model.calibrators, rows, charges(log), judging))
    return pairs_on_trial(trial, len(model.models))


def pairs_on_trial(trial: Candidates, k: int) -> Trial:
    """Single models and pairs of k models, in numpy's arrays, but for those that are of no use.

    Of no use are thresholds that part no queries, and pairs than which a single model errs less often and costs less on
    the log itself: whatever is expected, nobody would choose them.
    """
    error = np.asarray(trial.error)
    use = np.isfinite(error)
    if trial.refused is None:
        less = trial.counted[:k] < trial.counted[:, None] - _ROUNDING
        beaten = less & (trial.cost[:k] < trial.cost[:, None] * (1 - _ROUNDING))
        use &= (trial.first == trial.second) | ~beaten.any(1)
    useful = np.flatnonzero(use)
    policies = may_refuse(as_cascades(trial, useful, k, np))
    abstention = np.zeros_like(error) if trial.abstention is None else np.asarray(trial.abstention)
    figures = (np.asarray(figure)[useful] for figure in (error, trial.cost, reserve(trial), abstention))
    return Trial(*figures, policies=policies)


def judge_agreements(log: Log, model: Fitted, judging: Judging) -> Trial:
    """Every policy that goes by whether answers agree."""
    assert log.answer is not None
    rows = log.logprob, log.correct, log.answered
    trial = judge_answers(model.calibrators, rows, charges(log), log.answer, judging)
    trial = part(trial, np.flatnonzero(np.isfinite(trial.error)))
    policies = as_policies(trial, np.arange(len(trial.error)), len(model.models), True)
    return Trial(trial.error, trial.cost, RESERVE * trial.cost_se, trial.abstention, policies)


def may_refuse(policies: Policies) -> Policies:
    """Cascades as such that may refuse, if only nothing: so all are of one kind."""
    if policies.refusals is not None:
        return policies
    never = np.full_like(policies.thresholds, NEVER_REFUSE)
    return Policies.of_cascades(policies.thresholds, policies.members, never, agreements=policies.agreements)


def raised_by_luck(trial: Trial, comparison: Comparison, target: TargetName) -> Trial:
    """Policies, but for single models with errors that are raised by the luck of their choice (`Comparison.luckier`).

    Args:
        trial: the policies.
        comparison: what the contest has shown.
        target: the kind of target that they are to be chosen for.
    """
    agreements = trial.policies.agreements
    compares = False if agreements is None else agreements.compares.any(-1)
    luck = np.where(compares, comparison.luckier(target, True), comparison.luckier(target, False))
    penalty = trial.penalty + np.where(trial.alone, 0.0, luck)
    return trial._replace(penalty=np.clip(penalty, 0.0, 1.0))


def undominated(points: Trial) -> tuple[Trial, np.ndarray, np.ndarray]:
    """(policies, λ, status), each of L, the dearest first: CONVERGED at the corners of the hull, else INTERPOLATED."""
    hull, front = lower_hull(points.cost, points.penalty), pareto(points.cost, points.penalty)
    points, instead = _instead_of_models(points, front)
    # Who sees single models in a table beside the policy asks why one of them is none.
    shown = _thinned(front, np.concatenate([hull, instead, np.flatnonzero(points.alone)]))[::-1]
    slopes = -np.diff(points.penalty[hull]) / np.diff(points.cost[hull])
    lam, corner = _prices(points.cost[shown], points.cost[hull], slopes)
    return points.take(shown), lam, np.where(corner, PointStatus.CONVERGED, PointStatus.INTERPOLATED)


def _instead_of_models(points: Trial, front: np.ndarray) -> tuple[Trial, np.ndarray]:
    """(the policies with less in hand for cascades that stand instead of a single model, positions of these cascades).

    A single model needs nothing in hand. Where only that sets it above a cascade, which errs less and costs less, a
    budget that pays for the model pays for the cascade: else it would get what is worse than either.
    """
    models, (error, cost) = np.flatnonzero(points.alone), (points.penalty, points.cost)
    reserve, instead = points.reserve.copy(), []
    for model in models[pareto(cost[models], error[models])]:
        better = front[(cost[front] <= cost[model]) & (error[front] <= error[model])]
        cascade = better[(cost + reserve)[better].argmin()]
        if cost[cascade] + reserve[cascade] > cost[model]:
            reserve[cascade] = cost[model] - cost[cascade]
            instead.append(cascade)
    return points._replace(reserve=reserve), np.array(instead, int)


def _thinned(points: np.ndarray, always: np.ndarray) -> np.ndarray:
    """At most so many of some points, by position, spread evenly; and those that stay in any case."""
    if len(points) <= _MOST_POINTS:
        return points
    spread = points[np.linspace(0, len(points) - 1, _MOST_POINTS).round().astype(int)]
    return points[np.isin(points, spread) | np.isin(points, always)]


def _prices(cost: np.ndarray, corners: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(λ, whether it is a corner of the hull) of points with these costs: λ is the slope, amid both at a corner.

    Corners by rising cost, slopes (falling) between neighbours.
    """
    if not slopes.size:
        return np.where(cost > 0, 1 / np.where(cost > 0, cost, 1.0), 1.0), np.ones(len(cost), bool)
    around = np.concatenate([[4 * slopes[0]], slopes, [slopes[-1] / 4]])
    following = np.searchsorted(corners, cost)
    corner = corners[np.minimum(following, len(corners) - 1)] == cost
    amid = np.sqrt(around[following] * around[np.minimum(following + 1, len(around) - 1)])
    return np.where(corner, amid, around[following]), corner
