"""What each kind of traffic can have: a segment's own policies, or those that several segments share."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rcjax._core.size_classes import fill_up
from rcjax.frontier.frontier import Frontier, make_frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.points import Points
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting_steps import calibrate_log
from rcjax.model.label_outcomes import expected_log
from rcjax.model.provenance import Details
from rcjax.replaying.replay import replay
from rcjax.solving.lambda_grid import log_lam
from rcjax.tuning.bills import with_seconds
from rcjax.tuning.comparison import over_neighbours
from rcjax.tuning.judging import AS_USUAL
from rcjax.tuning.segment_budget import Menu
from rcjax.tuning.segment_trials import Trials, pooled_rows
from rcjax.tuning.trials import judge_pairs, undominated

__all__ = ["Traffic", "own_traffic", "queries_of", "shared_traffic"]


class Traffic(NamedTuple):
    """Segments that have one policy, and those that there are to choose from."""

    names: tuple[str, ...]
    frontier: Frontier
    menu: Menu
    counted: Mapping[str, np.ndarray]
    """(2, L) by segment: error and cost of each policy, counted on the segment's queries and corrected for luck."""
    shared: bool = False
    """Whether it takes queries of no known segment, too."""

    def frontier_of(self, name: str, log: Log) -> Frontier:
        """The frontier as it is in one of the segments: with its figures, costs and queries."""
        part = log.take(queries_of(log, name))
        fitted = self.frontier.model
        details = Details.of_log(part, fit=fitted.options)
        error, cost = self.counted[name]
        model = dataclasses.replace(fitted, cost=_costs(part, fitted), details=details)
        frontier = dataclasses.replace(self.frontier, model=model, error=error, cost=cost, bands=None, seconds=None)
        return with_seconds(frontier, part)


def queries_of(log: Log, *names: str) -> np.ndarray:
    """Positions of the queries of some segments."""
    assert log.segment is not None
    return np.flatnonzero(np.isin(np.array(log.segment, object), names))


def own_traffic(log: Log, model: CascadeModel, trials: Trials, name: str, share: float) -> Traffic:
    """A segment's own policies: single models and pairs, judged by its labels and everyone's.

    The errors that are expected are raised by how much better the best of them look than on queries left out; costs are
    those of the segment's own queries.

    Args:
        log: the log, with segments.
        model: the model fitted to it.
        trials: what cross-validation says.
        name: of the segment.
        share: of the traffic.
    """
    trial = trials.segments[name]
    assert trial.weight is not None
    rows = queries_of(log, name)
    part, others = log.take(rows), np.setdiff1d(np.arange(log.n_queries), rows)
    pooled = expected_log(log).take(pooled_rows(rows, others, trial.weight))
    pooled = dataclasses.replace(pooled, cost=part.cost)
    how = {"transform": model.calibrators.transform, "values": model.calibrators.values}
    calibrators, _ = calibrate_log(*fill_up(pooled.logprob, pooled.correct, pooled.answered), **how)
    details = Details.of_log(part, fit=model.options)
    fitted = dataclasses.replace(model, calibrators=calibrators, cost=part.cost, details=details)
    judged = judge_pairs(pooled, fitted, trials.lam, AS_USUAL)
    best = judged.penalty[judged.loss(trials.lam).argmin(1)]
    trial_of_points, lam, status = undominated(judged)
    luck = np.interp(log_lam(lam), log_lam(trials.lam), over_neighbours(trial.error - best))
    error = np.clip(trial_of_points.penalty + luck, 0.0, 1.0)
    outcomes = Outcomes(error, trial_of_points.cost, np.zeros_like(error))
    frontier = make_frontier(fitted, Points(lam, status, outcomes, trial_of_points.policies), search="selected")
    cost = np.asarray(replay(frontier, part).spent, float)
    frontier = dataclasses.replace(frontier, cost=cost)
    menu = Menu(share, trial_of_points.penalty, trial_of_points.cost, error, cost, trial_of_points.reserve)
    return Traffic((name,), frontier, menu, {name: np.stack([error, cost])})


def shared_traffic(frontier: Frontier, log: Log, shares: Mapping[str, float], tuned_on: Mapping[str, float]) -> Traffic:
    """Policies that some segments share, as they are expected to do in this traffic.

    By the frontier's own figures, and by what differs between this mix and the one that it was tuned on.

    Args:
        frontier: of these segments, or of all.
        log: the log, with segments.
        shares: of all the traffic, by segment that shares a policy; at least one.
        tuned_on: the shares of the segments in the log that the frontier was tuned on.
    """
    figures = promised = np.stack([np.asarray(figure, float) for figure in (frontier.penalty, frontier.cost)])
    whole, names = sum(shares.values()), [*dict.fromkeys([*shares, *tuned_on])]
    now = np.array([shares.get(name, 0.0) / whole for name in names])
    before = np.array([tuned_on.get(name, 0.0) for name in names])
    counted = np.stack([_counted(frontier, log, name) for name in names])
    has_queries = ~np.isnan(counted[:, 0, 0])
    base = before * has_queries
    mean = np.tensordot(base / (base.sum() or 1.0), np.nan_to_num(counted), 1)
    apart = np.where(has_queries[:, None, None], counted - mean, 0.0)
    if (np.abs(now - before) > 1e-12).any():
        figures = promised + np.tensordot(now, apart, 1)
        figures[0] = np.clip(figures[0], 0.0, 1.0)
    in_segments = {name: _possible(promised + apart[names.index(name)]) for name in shares}
    reserve = None if frontier.reserve is None else np.asarray(frontier.reserve, float)
    menu = Menu(whole, promised[0], promised[1], figures[0], figures[1], reserve)
    return Traffic(tuple(shares), frontier, menu, in_segments, shared=True)


def _possible(figures: np.ndarray) -> np.ndarray:
    return np.stack([np.clip(figures[0], 0.0, 1.0), np.maximum(figures[1], 0.0)])


def _counted(frontier: Frontier, log: Log, name: str) -> np.ndarray:
    """(2, L) error and cost of each policy on the queries of a segment; NaN where no query has all answers."""
    try:
        replayed = replay(frontier, log.take(queries_of(log, name)))
    except LogError:
        return np.full((2, len(frontier.lam)), np.nan)
    return np.stack([np.asarray(replayed.error, float), np.asarray(replayed.spent, float)])


def _costs(part: Log, model: CascadeModel) -> np.ndarray:
    """(k,) mean cost of each model's answers in a segment; that of all where it gave none there."""
    cost = np.asarray(part.cost, float)
    return np.where(np.isfinite(cost), cost, np.asarray(model.cost, float))
