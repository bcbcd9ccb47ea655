"""The frontier of the cascades that earn their place: single models, pairs, and policies that compare answers.

Policies are chosen by estimates, which are noisy: the more are searched, the luckier the best one looks. Three things
hold luck down. Pairs are judged by labels that are averaged with what is expected of them (`pairs`). Policies that go
by whether two models' answers are equal (`agreement`) must gain on pairs in the contest. And what was chosen
among many has its error raised by its optimism (`Contest.optimism`), where a single model is counted: so no cascade
stands beside a model that does better.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from rcjax._base.checks import takes
from rcjax.frontier.frontier import Frontier, make_frontier
from rcjax.frontier.hull import lower_hull
from rcjax.frontier.points import Outcomes, Points, PointStatus, check_abstain_price, check_lam, refusal_at
from rcjax.frontier.policies import Policies
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted, calibrated
from rcjax.model.label_outcomes import expected_log
from rcjax.policy.spec import Spec
from rcjax.replaying.comparing import errors_alone
from rcjax.tuning.candidates import Candidates, together
from rcjax.tuning.contest import Contest, leave_out
from rcjax.tuning.judging import FOLDS, charges, judge_all, judging_of, sample_queries
from rcjax.tuning.pairs import Judging


@dataclasses.dataclass(frozen=True)
class Selection:
    """The frontier of the cascades that earn their place, and what they were compared with."""

    frontier: Frontier
    contest: Contest


_FINE = 400  # λ at which policies that go by agreement are taken


@takes(log=Log)
def select_frontier(
    log: Log,
    *,
    model: Fitted | None = None,
    lam: Any = None,
    seed: int = 0,
    abstain_price: float | None = None,
    admits: Callable[[Policies, Fitted], np.ndarray] | None = None,
) -> Selection:
    """The error–cost frontier of the cascades that earn their place on a log.

    Single models and pairs, at every threshold, are judged by the log's own queries (`pairs`). Policies that
    go by whether answers agree, where the log tells answers, are used only where they earn it on the queries of folds
    that were left out (`Contest.agreeing`). The frontier holds the corners of the lower hull, each of which is the
    best at some λ; between two of them stands a ladder. `Frontier.cost` is the bill of the log's queries.
    `Frontier.error` is counted for single models; for others it is raised by their optimism: by how much better the
    best ones look on the queries that they were chosen on than on folds that were left out. Of a log of more than
    50,000 queries, so many are taken at random for that and for the contest.

    Args:
        log: the log to learn from.
        model: what was learnt from it, as `fit` or `calibrated` do, which is the default.
        lam: (L,) the frontier holds the best policy for each of these λ, in error probability per unit of money.
        seed: of the folds.
        abstain_price: the last model of a cascade may refuse to answer, at a price in errors, as in `solve_frontier`:
            what is minimised, and compared on the folds, is error + abstain_price·abstention + λ·cost.
        admits: which of the policies (C,) over a model's models may be chosen from, (C,) bool; None: all may.

    Raises ValueError for an empty or negative `lam` or a negative price; LogError where there are fewer queries than
    folds, or no query has the answers of all models.

    >>> import rcjax
    >>> selection = select_frontier(rcjax.sample_log(300, seed=0))
    >>> selection.frontier.models == rcjax.demo_model().models, int(selection.frontier.members.sum(1).max())
    (True, 2)
    """
    if log.n_queries < FOLDS:
        needs = f"to choose cascades in {FOLDS} folds takes {FOLDS} at the least, and some hundred to be worth it"
        raise LogError(f"{log.source}: too few queries, {log.n_queries}: {needs}: log more")
    prices = None if lam is None else check_lam(lam)
    abstain_price = check_abstain_price(abstain_price)
    model = calibrated(log) if model is None else model
    log = log.select(model.models)
    if not log.complete.any():
        raise LogError(f"{log.source}: no query was answered by all of {', '.join(log.models)}: nothing to compare on")
    sample = sample_queries(log, seed)
    judging = judging_of(sample, model.calibrators.transform, refusal_at(abstain_price, log.cost.dtype))
    contest = leave_out(sample, model, judging, seed=seed).compared(errors_alone(sample))
    may_be = None if admits is None else lambda policies: admits(policies, model)
    table = _candidates(log, model, judging, contest, may_be)
    table = raised_by_optimism(table, contest)
    corners = table.take(lower_hull(table.cost, table.error)[::-1])
    best, prices = (corners, _prices(corners)) if prices is None else (corners.best(prices), prices)
    return Selection(_assemble(model, best, prices, abstain_price, log.compare), contest)


def _candidates(
    log: Log,
    model: Fitted,
    judging: Judging,
    contest: Contest,
    admits: Callable[[Policies], np.ndarray] | None,
) -> Candidates:
    """Single models and pairs on a log of the model's models, and where they earn it policies that compare answers."""
    log, earned = expected_log(log), contest.agreeing
    rows = log.logprob, log.correct, log.answered, log.answer if earned.any() else None
    table, answers = judge_all(model.calibrators, rows, charges(log), judging, admits)
    if answers is None:
        return table
    grid = np.geomspace(contest.targets.lam[0], contest.targets.lam[-1], _FINE)
    return together(table, answers.best(grid[earned[contest.at_price(grid)]]))


def raised_by_optimism(table: Candidates, contest: Contest) -> Candidates:
    """Return the policies with the errors of cascades raised by their optimism; single models as they are."""
    optimism = np.where(table.compares, contest.optimism(True), contest.optimism(False))
    return dataclasses.replace(table, error=np.clip(table.error + np.where(table.alone, 0.0, optimism), 0.0, 1.0))


def _prices(corners: Candidates) -> np.ndarray:
    """(L,) a λ at which each corner of a hull, the dearest first, is the best: amid the slopes on either side."""
    slopes = -np.diff(corners.error) / np.diff(corners.cost)
    if not slopes.size:
        return np.where(corners.cost > 0, 1 / np.where(corners.cost > 0, corners.cost, 1.0), 1.0)
    around = np.concatenate([[slopes[0] / 4], slopes, [4 * slopes[-1]]])
    return np.sqrt(around[:-1] * around[1:])


def _assemble(model: Fitted, table: Candidates, lam: np.ndarray, price: float | None, compare: Any) -> Frontier:
    """The frontier of some policies; `price` is that of a refusal, `compare` how answers are compared."""
    wrong = np.maximum(table.error - (price or 0.0) * table.abstention, 0.0)
    figures = (np.asarray(figure, model.cost.dtype) for figure in (lam, wrong, table.cost, table.abstention))
    lam, *expected = figures
    solved = Points(lam, np.full(len(lam), PointStatus.CONVERGED), Outcomes(*expected), table.policies())
    return make_frontier(model, solved, Spec(abstain_price=price), compare)
