"""The frontier of the cascades that earn their place: single models, pairs, and policies that compare answers.

Policies are chosen by estimates, which are noisy: the more are searched, the luckier the best one looks. Three things
hold luck down. Pairs are judged by labels that are averaged with what is expected of them (`judging`). Policies that go
by whether two models' answers are equal (`agreement_candidates`) must gain on pairs in the contest. And what was chosen
among many has its error raised by the luck of that (`Comparison.luckier`), where a single model is counted: so no
cascade stands beside a model that does better.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from rcjax.frontier.frontier import Frontier, make_frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.points import Points, PointStatus
from rcjax.frontier.policies import NEVER_ANSWER, Policies
from rcjax.frontier.prices import check_lam
from rcjax.frontier.refusal import check_abstain_price, refusal_at
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted, calibrated
from rcjax.model.label_outcomes import expected_log
from rcjax.policy.spec import Spec
from rcjax.policy.targets import Target, TargetName
from rcjax.tuning.comparison import Comparison
from rcjax.tuning.cross_validation import cross_validate
from rcjax.tuning.label_weights import judging_of
from rcjax.tuning.replicates import Again, again_by_labels
from rcjax.tuning.resampling import require_queries, sample_queries
from rcjax.tuning.seconds_limit import SecondsFilter
from rcjax.tuning.trials import (
    AgreementTrial,
    Trial,
    all_trials,
    judge_pairs,
    raised_by_luck,
    undominated,
)
from rcjax.tuning.verdict import tell_choice


@dataclasses.dataclass(frozen=True)
class Selection:
    """The frontier of the cascades that earn their place, and what they were compared with."""

    frontier: Frontier
    comparison: Comparison
    target: TargetName = "budget"
    """The kind of target that errors of cascades are corrected for."""

    def verdict(self, point: int, target: Mapping[str, float] | None = None) -> str:
        """What to do, and why, in words: `point` is a place of the frontier.

        Differences are on queries left out, with one standard error: in percentage points of errors where `target` is a
        budget or a limit on the error, by its name; else of loss, error + λ·cost, at the λ of the point.
        """
        return tell_choice(self.frontier, self.comparison, point, target or {})


def select_frontier(
    log: Log,
    *,
    model: Fitted | None = None,
    lam: Any = None,
    folds: int = 5,
    seed: int = 0,
    abstain_price: float | None = None,
    admits: Callable[[Policies, Fitted], np.ndarray] | None = None,
    target: TargetName = "budget",
) -> Selection:
    """The error–cost frontier of the cascades that earn their place on a log.

    Single models and pairs, at every threshold, are judged by the log's own queries (`label_candidates`). Policies that
    go by whether answers agree, where the log tells answers, are used only where they earn it on the queries of folds
    that were left out (`Comparison.agreeing`). The frontier holds the policies that no other beats in error and cost:
    the corners of their convex hull (`PointStatus.CONVERGED`), which some λ leads to, and between them what budgets and
    limits on the error can have there (`PointStatus.INTERPOLATED`). `Frontier.cost` is the bill of the log's queries.
    `Frontier.error` is counted for single models; of others it is raised by how much better the best for such a target
    look on the queries that they were chosen on than on folds that were left out. A budget keeps `Frontier.reserve` in
    hand. Of more than 50,000 queries, so many are taken at random for that and for the contest.

    Args:
        log: the log to learn from.
        model: what was learnt from it, as `fit` or `calibrated` do, which is the default.
        lam: (L,) the frontier holds the best policy for each of these λ, in error probability per unit of money.
        folds: of the comparison; 2 or more.
        seed: of the folds.
        abstain_price: the last model of a cascade may refuse to answer, at a price in errors, as in `solve_frontier`:
            what is minimised, and compared on the folds, is error + abstain_price·abstention + λ·cost.
        admits: which of the policies (C,) over a model's models may be chosen from, (C,) bool; None: all may.
        target: the kind of target that policies are to be chosen for, whose luck errors are raised by; a price where
            `lam` is given.

    Raises ValueError for `folds` below 2, for an empty or negative `lam`, a negative price or a target that is none;
    LogError where there are fewer queries than folds, or no query has the answers of all models.

    >>> import rcjax
    >>> selection = select_frontier(rcjax.sample_log(300, seed=0))
    >>> selection.frontier.models == rcjax.demo_model().models, int(selection.frontier.members.sum(1).max())
    (True, 2)
    """
    require_queries(log, folds)
    prices = None if lam is None else check_lam(lam)
    Target(target, 1.0)  # refuses a name that is none
    target = target if lam is None else "lam"
    how = _How(prices, folds, seed, check_abstain_price(abstain_price), admits, target)
    model = calibrated(log) if model is None else model
    log = log.select(model.models)
    if not log.complete.any():
        raise LogError(f"{log.source}: no query was answered by all of {', '.join(log.models)}: nothing to compare on")
    points, comparison = _search(log, model, how)
    return Selection(_assemble(model, points, how.abstain_price, log.compare), comparison, target)


class SearchedBy(NamedTuple):
    """A way to search for a frontier."""

    fit: Callable[[Log, Spec], Fitted]
    """What it learns from a log first."""
    find: Callable[[Log, Fitted, Spec, SecondsFilter | None], tuple[Frontier, Selection | None]]
    """The frontier of what was learnt, with what its policies were compared with, where they were."""
    again: Callable[[Frontier, Log, np.ndarray], Again]
    """How some points (G,) of a frontier are tuned again on a draw."""


def _calibrated(log: Log, spec: Spec) -> Fitted:
    return calibrated(log, spec.transform)


def _find(log: Log, model: Fitted, spec: Spec, limit: SecondsFilter | None) -> tuple[Frontier, Selection]:
    admits = None if limit is None else limit.admits
    how: dict[str, Any] = {"abstain_price": spec.abstain_price, "target": spec.aim}
    selection = select_frontier(log, model=model, admits=admits, **how)
    return selection.frontier, selection


BY_LABELS = SearchedBy(_calibrated, _find, again_by_labels)


class _How(NamedTuple):
    """How to search, as `select_frontier` takes it."""

    lam: np.ndarray | None
    folds: int
    seed: int
    abstain_price: float | None
    admits: Callable[[Policies, Fitted], np.ndarray] | None
    target: TargetName

    def admitted(self, trial: Trial, model: Fitted) -> np.ndarray:
        """The positions of the policies that may be chosen from."""
        if self.admits is None or not len(trial.cost):
            return np.arange(len(trial.cost))
        return np.flatnonzero(self.admits(trial.policies, model))


class _Points(NamedTuple):
    """Policies of a frontier, L of them."""

    trial: Trial
    lam: np.ndarray
    status: np.ndarray


class _Earned(NamedTuple):
    """The policies that have earned a place."""

    pairs: Trial
    """Single models and pairs."""
    agreeing: AgreementTrial | None
    """Policies that go by whether answers agree; None where these have earned no place."""

    def admitted(self, how: _How, model: Fitted) -> "_Earned":
        """Those that may be chosen from."""
        agreeing = self.agreeing and self.agreeing.only(how.admitted(self.agreeing.trial, model))
        return _Earned(self.pairs.take(how.admitted(self.pairs, model)), agreeing)

    def together(self, n: int) -> Trial:
        """One after the other, judged on n queries."""
        return self.pairs if self.agreeing is None else all_trials(self.pairs, self.agreeing.near_best(self.pairs, n))

    def best(self, lam: np.ndarray) -> Trial:
        """(L,) for each price the best pair, or what beats it by agreement."""
        best = self.pairs.take(np.argmin(self.pairs.loss(lam), axis=1))
        return best if self.agreeing is None else self.agreeing.better(best, lam)


def _search(log: Log, model: Fitted, how: _How) -> tuple[_Points, Comparison]:
    """The policies that earn their place on a log of the model's models, and what they were compared with."""
    refusal = refusal_at(how.abstain_price, log.cost.dtype)
    sample = sample_queries(log, how.seed)
    judging = judging_of(sample, model.calibrators.transform, refusal)
    comparison = cross_validate(sample, model, judging, how.folds, how.seed)
    log = expected_log(log)
    earned = _Earned(judge_pairs(log, model, judging), AgreementTrial.of(log, model, comparison, judging))
    earned = earned if how.admits is None else earned.admitted(how, model)
    if how.lam is None:
        trial = raised_by_luck(earned.together(log.n_queries), comparison, how.target)
        return _Points(*undominated(trial)), comparison
    trial = raised_by_luck(earned.best(how.lam), comparison, how.target)
    return _Points(trial, how.lam, np.full(len(how.lam), PointStatus.CONVERGED)), comparison


def _assemble(model: Fitted, points: _Points, price: float | None, compare: Any) -> Frontier:
    """The frontier of some policies; `price` is that of a refusal, `compare` how answers are compared."""
    trial, dtype = points.trial, model.cost.dtype
    chosen = trial.policies
    policies = Policies.of_cascades(
        np.where(chosen.members, chosen.thresholds, NEVER_ANSWER).astype(dtype),
        chosen.members,
        None if price is None else chosen.refusals.astype(dtype),
        agreements=chosen.agreements,
    )
    wrong = np.maximum(trial.penalty - (price or 0.0) * trial.abstention, 0.0)
    lam, *figures = (np.asarray(figure, dtype) for figure in (points.lam, wrong, trial.cost, trial.abstention))
    solved = Points(lam, points.status, Outcomes(*figures), policies)
    frontier = make_frontier(model, solved, search="selected", abstain_price=price, compare=compare)
    return dataclasses.replace(frontier, reserve=jax.device_put(trial.reserve.astype(dtype)))
