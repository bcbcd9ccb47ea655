"""The frontier of the cascades that earn their place: single models, pairs, and policies that compare answers.

Policies are chosen by estimates, which are noisy: the more are searched, the luckier the best one looks. Three things
hold luck down. Pairs are judged by labels that are averaged with what is expected of them (`judging`). Policies that go
by whether two models' answers are equal (`agreement_candidates`) must gain on pairs in the contest. And what was chosen
among many has its error raised by the luck of that (`Comparison.luckier`), where a single model is counted: so no
cascade stands beside a model that does better.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rcjax.frontier.frontier import Frontier, make_frontier
from rcjax.frontier.hull import lower_hull
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
from rcjax.tuning.choices import Table, judge_all, together
from rcjax.tuning.comparison import Comparison
from rcjax.tuning.cross_validation import cross_validate
from rcjax.tuning.label_weights import charges, judging_of
from rcjax.tuning.replicates import Again, again_by_labels
from rcjax.tuning.resampling import require_queries, sample_queries
from rcjax.tuning.seconds_limit import SecondsFilter
from rcjax.tuning.verdict import tell_choice

_FINE = 400  # λ at which policies that go by agreement are taken


@dataclasses.dataclass(frozen=True)
class Selection:
    """The frontier of the cascades that earn their place, and what they were compared with."""

    frontier: Frontier
    comparison: Comparison
    target: TargetName = "budget"
    """The kind of target that errors of cascades are corrected for."""

    def verdict(self, point: int, target: Mapping[str, float] | None = None, alone: Sequence[str] = ()) -> str:
        """What to do, and why, in words: `point` is a place of the frontier.

        Differences are on queries left out, with one standard error: in percentage points of errors where `target` is a
        budget, by its name; in money where it is a limit on the error; else in money with what errors cost. `alone`
        are single models between which a ladder divides the queries.
        """
        return tell_choice(self.frontier, self.comparison, point, target or {}, alone)


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
    that were left out (`Comparison.agreeing`). The frontier holds the corners of the lower hull, each of which is the
    best at some λ; between two of them stands a ladder. `Frontier.cost` is the bill of the log's queries.
    `Frontier.error` is counted for single models; of others it is raised by how much better the best for such a target
    look on the queries that they were chosen on than on folds that were left out. Of more than 50,000 queries, so many
    are taken at random for that and for the contest.

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
    table, prices, comparison = _search(log, model, how)
    return Selection(_assemble(model, table, prices, how.abstain_price, log.compare), comparison, target)


class SearchedBy(NamedTuple):
    """A way to search for a frontier."""

    fit: Callable[[Log, Spec], Fitted]
    """What it learns from a log first."""
    find: Callable[[Log, Fitted, Spec, SecondsFilter | None], tuple[Frontier, Selection | None]]
    """The frontier of what was learnt, with what its policies were compared with, where they were."""
    again: Callable[[Frontier, Log, Any], Again]
    """How some points (G,) of a frontier are tuned again on a draw; by the labels, its ladder where none are given."""


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


def _search(log: Log, model: Fitted, how: _How) -> tuple[Table, np.ndarray, Comparison]:
    """(the policies that earn their place on a log of the model's models, their λ, what they were compared with)."""
    refusal = refusal_at(how.abstain_price, log.cost.dtype)
    sample = sample_queries(log, how.seed)
    judging = judging_of(sample, model.calibrators.transform, refusal)
    comparison = cross_validate(sample, model, judging, how.folds, how.seed)
    log, earned = expected_log(log), comparison.agreeing
    rows = log.logprob, log.correct, log.answered, log.answer if earned.any() else None

    def admitted(policies: Policies) -> np.ndarray:
        return how.admits(policies, model) if how.admits else np.ones(len(policies.first), bool)

    table, answers = judge_all(model.calibrators, rows, charges(log), judging, admitted if how.admits else None)
    if answers is not None:
        grid = np.geomspace(comparison.lam[0], comparison.lam[-1], _FINE)
        table = together(table, answers.best(grid[earned[comparison.nearest(grid)]]))
    table = raised_by_luck(table, comparison, how.target)
    corners = table.take(lower_hull(table.cost, table.error)[::-1])
    if how.lam is not None:
        return corners.best(how.lam), how.lam, comparison
    return corners, _prices(corners), comparison


def raised_by_luck(table: Table, comparison: Comparison, target: TargetName) -> Table:
    """Policies, but for single models with errors that are raised by the luck of their choice (`Comparison.luckier`).

    Args:
        table: the policies.
        comparison: what the contest has shown.
        target: the kind of target that they are to be chosen for.
    """
    agreements = table.policies.agreements
    compares = False if agreements is None else agreements.compares.any(-1)
    luck = np.where(compares, comparison.luckier(target, True), comparison.luckier(target, False))
    return table._replace(error=np.clip(table.error + np.where(table.alone, 0.0, luck), 0.0, 1.0))


def _prices(corners: Table) -> np.ndarray:
    """(L,) a λ at which each corner of a hull, the dearest first, is the best: amid the slopes on either side."""
    slopes = -np.diff(corners.error) / np.diff(corners.cost)
    if not slopes.size:
        return np.where(corners.cost > 0, 1 / np.where(corners.cost > 0, corners.cost, 1.0), 1.0)
    around = np.concatenate([[slopes[0] / 4], slopes, [4 * slopes[-1]]])
    return np.sqrt(around[:-1] * around[1:])


def _assemble(model: Fitted, table: Table, lam: np.ndarray, price: float | None, compare: Any) -> Frontier:
    """The frontier of some policies; `price` is that of a refusal, `compare` how answers are compared."""
    chosen, dtype = table.policies, model.cost.dtype
    policies = Policies.of_cascades(
        np.where(chosen.members, chosen.thresholds, NEVER_ANSWER).astype(dtype),
        chosen.members,
        None if chosen.refusals is None else chosen.refusals.astype(dtype),
        agreements=chosen.agreements,
    )
    wrong = np.maximum(table.error - (price or 0.0) * table.abstention, 0.0)
    lam, *figures = (np.asarray(figure, dtype) for figure in (lam, wrong, table.cost, table.abstention))
    status = np.full(len(lam), PointStatus.CONVERGED)
    solved = Points(lam, status, Outcomes(*figures), policies)
    return make_frontier(model, solved, search="selected", abstain_price=price, compare=compare)
