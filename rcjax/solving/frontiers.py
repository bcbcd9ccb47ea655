"""λ → the best cascade and its thresholds: the whole error–cost frontier in one vectorised call."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from rcjax._base.checks import takes
from rcjax._core.batching import cores, in_pieces, join, part, size_class
from rcjax._core.compilation import compiled
from rcjax.model.cascade_model import CascadeModel
from rcjax.policy.spec import Spec
from rcjax.solving.at_lambda import Optima, Solutions, adaptive_points, lay_out, optimise, points_at
from rcjax.solving.bellman import Cut
from rcjax.solving.frontier.frontier import Frontier, make_frontier
from rcjax.solving.frontier.hull import lower_hull
from rcjax.solving.frontier.points import (
    Outcomes,
    Points,
    PointStatus,
    check_abstain_price,
    check_lam,
    lam_range,
    refusal_at,
)
from rcjax.solving.frontier.policies import Search
from rcjax.solving.objective import Tables
from rcjax.solving.paths import CascadePlan, plan_cascades


@takes(model=CascadeModel)
def solve_frontier(
    model: CascadeModel,
    *,
    lam: Any = None,
    cascades: Search = "all",
    max_length: int | None = None,
    abstain_price: float | None = None,
) -> Frontier:
    """The policies that minimise error + λ·cost under the model, for all λ at once.

    Dynamic programming gives the optimum on quadrature nodes, searched from two starts where answering does not gain
    steadily on deferring as confidence grows; Newton steps on the exact gradient settle it. Of all solutions found,
    each λ keeps the best for it, so that cost never rises with λ.

    Args:
        model: the fitted model, of k models.
        lam: (L,) the λ to solve for, in error probability per unit of money, at least 0. By default a geometric grid
            from where cost hardly counts to where the cheapest model is best, with infill between neighbours whose
            thresholds differ most in probability mass (eq. 9 of the paper).
        cascades: "all" subcascades of at most `max_length` models (single models included), the "full" one, a list of
            cascades (tuples of model names in the model's order), or "adaptive" policies, which may skip ahead
            depending on how unsure a model is.
        max_length: the most models in a cascade; None: all.
        abstain_price: the last model of a cascade, and any model of an adaptive policy, may also refuse to answer, at
            this price in errors: 0.3 where three refusals are as bad as 0.9 errors, in money `abstain_cost /
            error_cost`. What is minimised is error + abstain_price·abstention + λ·cost, where an error is a wrong
            answer that was given. At a price of 1 or more nobody refuses, and an infinite one is the same as None.

    Raises ValueError for unknown or misordered models, an empty or negative `lam`, or a negative price.

    >>> import rcjax
    >>> model = rcjax.fit(rcjax.sample_log(300, seed=0))
    >>> frontier = solve_frontier(model, lam=[1.0, 100.0, 10_000.0])
    >>> bool((frontier.cost[1:] <= frontier.cost[:-1]).all()), frontier.thresholds.shape
    (True, (3, 5))
    >>> refusing = solve_frontier(model, lam=[1.0, 100.0, 10_000.0], abstain_price=0.3)
    >>> bool((refusing.penalty + refusing.lam * refusing.cost < frontier.error + frontier.lam * frontier.cost).all())
    True
    """
    plan = plan_cascades(model, cascades, max_length)
    grid = None if lam is None else check_lam(lam)
    abstain_price = check_abstain_price(abstain_price)
    refusal = refusal_at(abstain_price, model.cost.dtype)
    problem, search = lay_out_problem(model, plan, refusal), _named(cascades, max_length, plan, model.models)
    points = solve_on_grid(problem) if grid is None else select(solve_at(problem, grid), refusal)
    return make_frontier(model, points, Spec(cascade=search, abstain_price=abstain_price))


def _named(
    cascades: Search, max_length: int | None, plan: CascadePlan | None, names: tuple[str, ...]
) -> tuple[tuple[str, ...], ...] | str:
    """The search as it is kept: a word, or the names of all cascades."""
    if plan is None or (isinstance(cascades, str) and max_length is None):
        return str(cascades)
    members = np.unique(np.asarray(plan.members[:-1]), axis=0)
    return tuple(tuple(names[j] for j in np.flatnonzero(row)) for row in members)


#: Points of each pass of the automatic grid, and the closest ratio of neighbouring λ.
_GRID, _CLOSEST = 64, 1.0005

#: λ that the CPU solves for at a time, at least.
_SMALLEST_BATCH = 32

_MANY_PAIRS = 32  # from so many on tables are laid out for longer than their program compiles

_MEMORY = 2**29  # bytes that a batch of λ may take

AnyPoints = TypeVar("AnyPoints", bound=Points)


class Problem(NamedTuple):
    """What every λ shares."""

    tables: Tables
    plan: CascadePlan | None  # None for adaptive policies
    refusal: jax.Array | None  # () what one is worth, in right answers; None if nobody refuses


def lay_out_problem(
    model: CascadeModel, plan: CascadePlan | None, refusal: jax.Array | None, panels: int | None = None
) -> Problem:
    """What every λ shares, for a fitted model.

    Args:
        model: the fitted model.
        plan: the cascades that compete; None: adaptive policies.
        refusal: () what one is worth, in right answers; None: nobody refuses.
        panels: of quadrature; by default as `quadrature` has them.
    """
    k = len(model.models)
    indices = np.arange(k * (k - 1) // 2) if plan is None else np.asarray(plan.pairs)
    build = _build_tables if len(indices) < _MANY_PAIRS else _build_many_tables
    tables = build(model.marginals, model.copulas, model.cost, indices, panels=panels)
    return Problem(tables, plan, refusal)


_build_tables = compiled(lay_out, "panels")

_build_many_tables = compiled(lay_out, "panels", runs="long")

_optimise = compiled(optimise, runs="long")

_evaluate = compiled(points_at, "refusing")

_solve_adaptive = compiled(adaptive_points)


def solve_at(problem: Problem, lam: Any) -> Solutions:
    """The solutions at the given λ (L,), on the host."""
    tables, plan, refusal = problem

    def solve(lam: np.ndarray) -> Solutions:
        if plan is None:
            return _solve_adaptive(tables, lam, refusal)
        optima = _optimise(tables, lam, plan, refusal)
        return _evaluate(tables, optima, plan, refusal is not None)

    return _in_batches(problem, solve, np.asarray(lam, tables.cost.dtype))


def evaluate_optima(problem: Problem, optima: Optima) -> Solutions:
    """Cascades at given cuts with their thresholds, and what is to be expected of them, on the host."""
    tables, plan, refusal = problem
    return _in_batches(problem, lambda some: _evaluate(tables, some, plan, refusal is not None), optima)


def _in_batches(problem: Problem, solve: Callable[[Any], Solutions], queries: Any) -> Solutions:
    """The solutions of arrays of numpy's with leading axes (L, …), on the host: as many at a time as memory allows."""
    size = max(1, min(_MEMORY // _bytes_per_lambda(problem), _batch_size(len(jax.tree.leaves(queries)[0]))))
    return in_pieces(solve, queries, size, alike=False)


def _batch_size(count: int) -> int:
    """How many of so many λ are solved for at a time.

    Few sizes occur, as each is a program of its own. On the CPU every core has a batch, and up to 64 λ on two cores
    share one; elsewhere all are solved at once, filled up to a size class.
    """
    if jax.default_backend() != "cpu":
        return size_class(count)
    return max(_SMALLEST_BATCH, -(-count // (8 * cores())) * 8)


def _bytes_per_lambda(problem: Problem) -> int:
    """What the largest arrays of one λ take: values of every end of a path, or of every option, at the nodes."""
    k, nodes = problem.tables.grid.u.shape
    rows = len(problem.tables.left) + (k * k if problem.plan is None else len(problem.plan.heads))
    return 3 * rows * nodes * problem.tables.cost.dtype.itemsize


def solve_on_grid(
    problem: Problem,
    solve: Callable[[Problem, Any], Solutions] = solve_at,
    evaluate: Callable[[Problem, Optima], Solutions] = evaluate_optima,
) -> Solutions:
    """A geometric grid that covers every trade-off, infill in λ, then in thresholds where no λ leads.

    All passes have one shape, so one compilation.

    Args:
        problem: what every λ shares.
        solve: as `solve_at`.
        evaluate: as `evaluate_optima`.
    """
    cost = np.asarray(problem.tables.cost, float)
    lam = lam_range(cost if problem.plan is None else cost[problem.plan.members[-1]], _GRID)
    solved = solve(problem, lam)
    more = solve(problem, _between(solved.lam, _gaps(solved, _CLOSEST)))
    solved = select(_merge(solved, more), problem.refusal)
    return solved if problem.plan is None else _merge(solved, evaluate(problem, _interpolated(solved)))


def _interpolated(solved: Solutions) -> Optima:
    """Points in the gaps between neighbours of one cascade: thresholds between theirs, in probability (eq. 9).

    Optima of error + λ·cost lie on the convex hull of what a cascade can reach; between them lie points no λ finds.
    """
    counts = _share_out(_gaps(solved, 1.0, other_cascades=0.0))
    left = np.repeat(np.arange(len(counts)), counts)
    share = np.concatenate([np.arange(1, n + 1) / (n + 1) for n in counts])

    def between(ranks: np.ndarray) -> np.ndarray:
        return ranks[left] * (1 - share)[:, None] + ranks[left + 1] * share[:, None]

    cut = Cut.at(between(solved.ranks))
    lam = solved.lam[left] ** (1 - share) * solved.lam[left + 1] ** share
    status = np.full(len(lam), PointStatus.INTERPOLATED, solved.status.dtype)
    return Optima(lam.astype(solved.lam.dtype), solved.path[left], jax.device_get(cut), status)


def _merge(solved: Solutions, extra: Solutions) -> Solutions:
    """Both sets of points in order of λ, and of falling cost where λ is equal."""
    joined = join([solved, extra])
    return part(joined, np.lexsort((-joined.expected.cost, joined.lam)))


def _gaps(solved: Solutions, closest: float, other_cascades: float = 1.0) -> np.ndarray:
    """Between neighbours in λ, the largest move of a threshold, in probability mass; 0 where λ are too close."""
    members = solved.policies.members
    same = (members[1:] == members[:-1]).all(1)
    gap = np.where(same, np.abs(np.diff(solved.ranks, axis=0)).max(1), other_cascades)
    return np.where(solved.lam[1:] <= solved.lam[:-1] * closest, 0.0, gap)


def _share_out(gaps: np.ndarray) -> np.ndarray:
    """How many of the `_GRID` new points each gap gets, so that the widest that is left is as narrow as can be."""
    inserted = np.zeros(len(gaps), int)
    for _ in range(_GRID):
        inserted[np.argmax(gaps / (inserted + 1))] += 1
    return inserted


def _between(lam: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    steps = zip(lam[:-1], lam[1:], _share_out(gaps), strict=True)
    return np.concatenate([np.geomspace(low, high, n + 2)[1:-1] for low, high, n in steps])


def select(solved: AnyPoints, refusal: jax.Array | None) -> AnyPoints:
    """For each λ the best of all solutions, so that cost cannot rise with λ, nor a failed λ spoil its neighbours."""
    expected = Outcomes(*(figure.astype(float) for figure in solved.expected))
    lam, cost = solved.lam.astype(float), expected.cost
    error = expected.penalty(None if refusal is None else 1 - float(refusal))
    hull = lower_hull(cost, error)
    if not hull.size:
        return solved
    # A corner of the hull gives way to the cheaper one before it at this λ.
    ties = -np.diff(error[hull]) / np.diff(cost[hull])
    best = hull[len(ties) - np.searchsorted(ties[::-1], lam, side="right")]
    # Ties, which are many where a cascade's end is reached, go to the point that was solved for this λ.
    loss, least = error + lam * cost, error[best] + lam * cost[best]
    slack = 4 * np.finfo(solved.expected.wrong.dtype).eps * np.abs(least)
    best = np.where(loss <= least + slack, np.arange(len(lam)), best)
    return dataclasses.replace(part(solved, best), lam=solved.lam)
