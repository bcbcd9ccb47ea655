"""The trade-off of error and cost under a model: its frontier for all λ, and the outcomes at given thresholds."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.codec import takes
from rcjax._core.batching import (
    Array,
    count_cores,
    join,
    map_in_chunks,
    number_pairs,
    size_class,
    take_entries,
    with_automatic_axes,
)
from rcjax._core.compilation import compiled, in_full_precision, is_traced
from rcjax.copulas import Copula
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.marginals import Marginal
from rcjax.policy.spec import CascadeSet, Spec
from rcjax.solving.bellman import AdaptiveTables, CascadePlan, Cut, SearchTables, check_cascade, plan_cascades
from rcjax.solving.frontier.frontier import Frontier, make_frontier
from rcjax.solving.frontier.points import (
    ALWAYS_ANSWER,
    LossTerms,
    Points,
    PointStatus,
    abstain_worth_at,
    check_lam,
    lam_range,
    lower_hull,
)
from rcjax.solving.optimum import OptimalCuts, SolvedPoints, adaptive_points, build_pair_tables, optimise, points_at
from rcjax.solving.quadrature import PANELS, Outcome, QuadratureTables, build_tables, outcome_of_cuts

#: Rows of thresholds evaluated at a time. Rows are padded to one of these numbers, so that two programs serve any
#: number of rows; with `_MANY_ROWS` the integrands still fit into a CPU's caches.
_FEW_ROWS, _MANY_ROWS = 16, 384


class ErrorAndCost(NamedTuple):
    """Error and cost of policies that answer every query."""

    error: Array
    """Probability of a wrong answer."""
    cost: Array
    """Money per query."""


@takes(model=CascadeModel)
def error_and_cost(model: CascadeModel, thresholds: ArrayLike, cascade: Sequence[str] | None = None) -> ErrorAndCost:
    """Predict (error probability, expected cost per query) of a cascade at given thresholds under a model.

    Model j answers a query if Φ_j > φ_j; the last model always answers. The function is pure and jittable.
    It is differentiable in every array of the model and in thresholds; beyond φ_min or φ_max the slope is 0. Money is
    that of `model.cost`.

    Args:
        model: fitted model of k models.
        thresholds: calibrated confidence, in one of three forms. (…, m): for the cascade's m models in the order asked;
            the last is ignored. (…, m − 1): for all models of the cascade but the last. (…, k): for all models of
            `model.models`, as a row of `Frontier.thresholds`.
        cascade: names of the cascade's models, in the order asked; None: all.

    Raises ValueError for unknown models, another order than the model's, or a wrong number of thresholds.

    >>> import rcjax
    >>> model = rcjax.demo_model()
    >>> error, cost = error_and_cost(model, jnp.array([0.6]), ("llama3.2-1b", "llama3.1-70b"))
    >>> bool(0 < error < 1), bool(model.cost[0] < cost)
    (True, True)
    """
    members = check_cascade(model.models, model.models if cascade is None else cascade)
    k, m = len(model.models), len(members)
    positions = np.array(members)
    columns = {m - 1: np.arange(m - 1), m: np.arange(m - 1), k: np.array(members[:-1], int)}
    *shape, count = np.shape(thresholds) or (-1,)
    if count not in columns:
        raise ValueError(
            f"thresholds has shape {np.shape(thresholds)}; its last axis must be the {m} models of the cascade, all "
            f"but the last ({m - 1}), or all {k} models"
        )
    neighbours = number_pairs(k)[positions[:-1], positions[1:]]
    arrays = model.marginals, model.copulas, model.cost
    traced = is_traced(jax.tree.leaves((arrays, thresholds)))
    xp: Any = jnp if traced else np
    rows = xp.asarray(thresholds, dtype=model.cost.dtype)[..., columns[count]].reshape(math.prod(shape), m - 1)
    marginals, copulas, cost = arrays if traced else jax.tree.map(np.asarray, arrays)
    fitted = take_entries(marginals, positions), take_entries(copulas, neighbours), cost[positions]
    if traced:
        expected = with_automatic_axes(_predict_rows, *fitted, rows, like=rows, trailing=1)
    else:
        size = _FEW_ROWS if len(rows) <= _FEW_ROWS else _MANY_ROWS
        expected = map_in_chunks(lambda piece: _predict_rows(*fitted, piece), rows, size)
    return jax.device_put(jax.tree.map(lambda leaf: leaf.reshape(shape), expected))


@jax.jit
@in_full_precision
def _predict_rows(marginals: Marginal, copulas: Copula, cost: jax.Array, rows: jax.Array) -> ErrorAndCost:
    """Evaluate a cascade of m models, joined by m − 1 copulas, at rows of thresholds (n, m − 1): (n,)."""
    m = cost.shape[0]
    tables = build_tables(marginals, copulas, cost, np.arange(m - 1), np.arange(1, m))

    def single(thresholds: jax.Array) -> ErrorAndCost:
        u, _, above = jax.vmap(Marginal.profile)(marginals, jnp.append(thresholds, ALWAYS_ANSWER))
        links, first = jnp.ones(m - 1, bool), jnp.zeros((), int)
        expected = outcome_of_cuts(tables, u, links, first, above=above)
        return ErrorAndCost(expected.error, expected.cost)

    return jax.vmap(single)(rows)


@takes(frontier=Frontier)
def outcomes(frontier: Frontier) -> Outcome:
    """Compute the outcomes of a frontier's cascades, path by path, under its model; arrays (L, …).

    An objective of `minimise` can be evaluated on the result, for any cascades, such as those of `solve_frontier`.

    Args:
        frontier: frontier of L cascades.

    Raises ValueError for adaptive policies, and for policies that compare answers.

    >>> import rcjax
    >>> frontier = rcjax.solve_frontier(rcjax.demo_model(), lam=[100.0, 1000.0])
    >>> outcome = outcomes(frontier)
    >>> outcome.error.shape, bool(abs(outcome.cost - frontier.cost).max() < 1e-9)
    ((2,), True)
    """
    model, policies, thresholds = frontier.model, frontier.policies, frontier.thresholds
    if thresholds is None or policies.agreements is not None or not isinstance(model, CascadeModel):
        raise ValueError(
            "frontier must hold cascades of a fitted model with one threshold per model that do not compare answers"
        )
    tables = build_search_tables(model, None, None).tables
    return _outcomes_of_rows(tables, (thresholds, policies.members, frontier.abstain_thresholds))


@compiled
def _outcomes_of_rows(tables: QuadratureTables, policies: tuple[jax.Array, jax.Array, jax.Array | None]) -> Outcome:
    """Evaluate L cascades given by (thresholds, members, abstention thresholds or None), each (L, k): (L, …)."""
    left, right = tables.left, tables.right

    def single(policy: tuple[jax.Array, jax.Array, jax.Array | None]) -> Outcome:
        thresholds, members, abstain_thresholds = policy
        asked_so_far = jnp.cumsum(members)
        links = members[left] & members[right] & (asked_so_far[right] == asked_so_far[left] + 1)
        u, _, above = jax.vmap(Marginal.profile)(tables.marginals, jnp.where(members, thresholds, ALWAYS_ANSWER))
        cdf = jax.vmap(Marginal.cdf)
        cuts = None if abstain_thresholds is None else cdf(tables.marginals, abstain_thresholds)
        return outcome_of_cuts(tables, u, links, jnp.argmax(members), above=above, abstain_cuts=cuts)

    return jax.vmap(single)(policies)


@takes(model=CascadeModel)
def solve_frontier(
    model: CascadeModel, *, lam: Any = None, cascades: CascadeSet = "all", abstain_price: float | None = None
) -> Frontier:
    """Find the policies that minimise error + λ·cost under the model, for all λ at once.

    Dynamic programming gives the optimum on quadrature nodes, and Newton steps turn its cuts into thresholds. The
    advantage of answering over deferring nearly always grows with confidence; elsewhere the search has two starts. Each
    λ keeps the best of all solutions, so that cost never rises with λ.

    Args:
        model: fitted model of k models.
        lam: (L,) λ in error probability per unit of money, at least 0. None: a geometric grid, from λ at which cost
            hardly counts to λ at which the cheapest model is best, with infill between neighbours whose thresholds
            differ most in probability mass (eq. 9 of the paper).
        cascades: candidates. "all": all subcascades of at most twelve models, single models included; "full": the
            cascade of all models; the names of one cascade's models, in the model's order, or a list of such names;
            "adaptive": policies that may skip models, depending on the confidence.
        abstain_price: price of an abstention in errors, in money `abstain_cost / error_cost`; at 0.3, ten abstentions
            are as bad as three errors. The last model of a cascade, and any model of an adaptive policy, may then
            abstain. The objective is error + abstain_price·abstention + λ·cost, where errors are wrong answers given.
            At a price of 1 or more no model abstains.

    Raises ValueError for unknown or misordered models, an empty or negative `lam`, or a negative price.

    >>> import rcjax
    >>> model = rcjax.demo_model()
    >>> frontier = solve_frontier(model, lam=[100.0, 1000.0])
    >>> bool(frontier.cost[1] < frontier.cost[0]), frontier.thresholds.shape
    (True, (2, 5))
    >>> unsure = solve_frontier(model, lam=[100.0, 1000.0], abstain_price=0.3)
    >>> bool((unsure.penalty + unsure.lam * unsure.cost < frontier.error + frontier.lam * frontier.cost).all())
    True
    """
    plan = plan_cascades(model.models, cascades)
    grid = None if lam is None else check_lam(lam)
    abstain_price = Spec(abstain_price=abstain_price).abstain_price
    abstain_worth = abstain_worth_at(abstain_price, model.cost.dtype)
    search = build_search_tables(model, plan, abstain_worth)
    points = solve_on_grid(search) if grid is None else keep_best(solve_at(search, grid), abstain_worth)
    return make_frontier(
        model, points, Spec(cascade=_describe_search(cascades, plan, model.models), abstain_price=abstain_price)
    )


def _describe_search(
    cascades: CascadeSet, plan: CascadePlan | None, names: tuple[str, ...]
) -> tuple[tuple[str, ...], ...] | str:
    """Describe a search for the record of a frontier: by a word, or by the names of all cascades."""
    if plan is None or isinstance(cascades, str):
        return str(cascades)
    members = np.unique(np.asarray(plan.members[:-1]), axis=0)
    return tuple(tuple(names[j] for j in np.flatnonzero(row)) for row in members)


#: Points of each pass of the automatic grid, and the ratio of neighbouring λ up to which no λ is inserted.
_GRID_SIZE, _CLOSEST = 64, 1.0005
_MIN_BATCH = 32  # least number of λ that the CPU solves for at a time
_MANY_PAIRS = 32  # pairs from which building tables takes longer than compiling its program
_BATCH_BYTES = 2**29  # most memory of a batch of λ

AnySearch = SearchTables | AdaptiveTables
AnyPoints = TypeVar("AnyPoints", bound=Points)


def build_search_tables(
    model: CascadeModel, plan: CascadePlan | None, abstain_worth: jax.Array | None, panels: int = PANELS
) -> AnySearch:
    """Build the tables of the search of a fitted model's policies.

    Args:
        model: fitted model.
        plan: candidate cascades; None: adaptive policies.
        abstain_worth: () worth of an abstention, in right answers; None: no abstentions.
        panels: panels of the quadrature.
    """
    k = len(model.models)
    indices = np.arange(k * (k - 1) // 2) if plan is None else np.asarray(plan.pairs)
    build = _pair_tables_compiled if len(indices) < _MANY_PAIRS else _many_pair_tables_compiled
    tables = build(model.marginals, model.copulas, model.cost, indices, panels=panels)
    return AdaptiveTables(tables, abstain_worth) if plan is None else SearchTables(tables, plan, abstain_worth)


_pair_tables_compiled = compiled(build_pair_tables, "panels")
_many_pair_tables_compiled = compiled(build_pair_tables, "panels", runs="long")


def solve_at(search: AnySearch, lam: Any) -> SolvedPoints:
    """Solve for given λ (L,), with results on the host."""

    def solve(lam: Any) -> SolvedPoints:
        if isinstance(search, AdaptiveTables):
            return adaptive_points(search, lam)
        return points_at(search, optimise(search, lam))

    return _in_batches(search, solve, np.asarray(lam, search.tables.cost.dtype))


def evaluate_optima(search: SearchTables, optima: OptimalCuts) -> SolvedPoints:
    """Turn cuts into thresholds and evaluate their outcomes, with results on the host."""
    return _in_batches(search, lambda batch: points_at(search, batch), optima)


def _in_batches(search: AnySearch, solve: Callable[[Any], SolvedPoints], batches: Any) -> SolvedPoints:
    """Solve for NumPy arrays with leading axes (L, …), in batches that fit into memory, with results on the host."""
    size = max(1, min(_BATCH_BYTES // _bytes_per_lambda(search), _batch_size(len(jax.tree.leaves(batches)[0]))))
    return map_in_chunks(solve, batches, size, same_programs=False)


def _batch_size(count: int) -> int:
    """Return the number of λ to solve for at a time, out of `count`.

    Few sizes occur, since each needs a program. On the CPU every core takes a batch of at least `_MIN_BATCH` λ;
    elsewhere all λ are solved at once, padded to a size class.
    """
    if jax.default_backend() != "cpu":
        return size_class(count)
    return max(_MIN_BATCH, -(-count // (8 * count_cores())) * 8)


def _bytes_per_lambda(search: AnySearch) -> int:
    """Estimate the memory of one λ's largest arrays: values at the nodes, of all suffixes or all options."""
    k, nodes = search.tables.grid.u.shape
    rows = len(search.tables.left) + (k * k if isinstance(search, AdaptiveTables) else len(search.plan.suffix_first))
    return 3 * rows * nodes * search.tables.cost.dtype.itemsize


def solve_on_grid(
    search: AnySearch,
    solve: Callable[[Any, Any], SolvedPoints] = solve_at,
    evaluate: Callable[[SearchTables, OptimalCuts], SolvedPoints] = evaluate_optima,
) -> SolvedPoints:
    """Solve on a geometric grid that covers every trade-off, with infill in λ, then in thresholds off the hull.

    All passes have one shape, so that they compile once. `solve` and `evaluate` may replace the search's own steps.
    """
    cost = np.asarray(search.tables.cost, float)
    lam = lam_range(cost if isinstance(search, AdaptiveTables) else cost[search.plan.members[-1]], _GRID_SIZE)
    solved = solve(search, lam)
    infill = solve(search, _infill(solved.lam, _gaps(solved, _CLOSEST)))
    solved = keep_best(_merge(solved, infill), search.abstain_worth)
    return solved if isinstance(search, AdaptiveTables) else _merge(solved, evaluate(search, _interpolated(solved)))


def _interpolated(solved: SolvedPoints) -> OptimalCuts:
    """Interpolate thresholds, in probability, between neighbours of the same cascade (eq. 9).

    Optima of error + λ·cost lie on the convex hull of a cascade's trade-offs; no λ leads to the points between them.
    """
    counts = _share_out(_gaps(solved, 1.0, other_cascades=0.0))
    left = np.repeat(np.arange(len(counts)), counts)
    share = np.concatenate([np.arange(1, n + 1) / (n + 1) for n in counts])

    def between(ranks: Array) -> Array:
        return ranks[left] * (1 - share)[:, None] + ranks[left + 1] * share[:, None]

    assert solved.cascade is not None  # adaptive policies are not interpolated
    cut = Cut.at(between(solved.ranks))
    lam = solved.lam[left] ** (1 - share) * solved.lam[left + 1] ** share
    status = np.full(len(lam), PointStatus.INTERPOLATED, solved.status.dtype)
    return OptimalCuts(lam.astype(solved.lam.dtype), solved.cascade[left], jax.device_get(cut), status)


def _merge(solved: SolvedPoints, extra: SolvedPoints) -> SolvedPoints:
    """Merge two sets of points in order of λ, and of falling cost at equal λ."""
    joined = join([solved, extra])
    return take_entries(joined, np.lexsort((-joined.expected.cost, joined.lam)))


def _gaps(solved: SolvedPoints, closest: float, other_cascades: float = 1.0) -> np.ndarray:
    """Return the largest move of a threshold between neighbours in λ, in probability mass.

    The gap is 0 up to the ratio `closest` of neighbouring λ, and `other_cascades` between different cascades.
    """
    members = solved.policies.members
    is_same = (members[1:] == members[:-1]).all(1)
    gap = np.where(is_same, np.abs(np.diff(solved.ranks, axis=0)).max(1), other_cascades)
    return np.where(solved.lam[1:] <= solved.lam[:-1] * closest, 0.0, gap)


def _share_out(gaps: np.ndarray) -> np.ndarray:
    """Distribute `_GRID_SIZE` new points over the gaps such that the widest remaining gap is smallest."""
    inserted = np.zeros(len(gaps), int)
    for _ in range(_GRID_SIZE):
        inserted[np.argmax(gaps / (inserted + 1))] += 1
    return inserted


def _infill(lam: Array, gaps: np.ndarray) -> np.ndarray:
    """Return `_GRID_SIZE` new λ, spaced geometrically within the gaps."""
    steps = zip(lam[:-1], lam[1:], _share_out(gaps), strict=True)
    return np.concatenate([np.geomspace(low, high, n + 2)[1:-1] for low, high, n in steps])


def keep_best(solved: AnyPoints, abstain_worth: jax.Array | None) -> AnyPoints:
    """Give each λ the best of all solutions, so that cost never rises with λ, even where the search failed."""
    expected = LossTerms(*(figure.astype(float) for figure in solved.expected))
    lam, cost = solved.lam.astype(float), expected.cost
    error = expected.penalty(None if abstain_worth is None else 1 - float(abstain_worth))
    hull = lower_hull(cost, error)
    if not hull.size:
        return solved
    # λ at which each corner of the hull ties with the cheaper corner before it.
    ties = -np.diff(error[hull]) / np.diff(cost[hull])
    best = hull[len(ties) - np.searchsorted(ties[::-1], lam, side="right")]
    # Ties, frequent where all λ lead to one policy, go to the point that was solved for this λ.
    loss, least = error + lam * cost, error[best] + lam * cost[best]
    slack = 4 * np.finfo(solved.expected.wrong.dtype).eps * np.abs(least)
    best = np.where(loss <= least + slack, np.arange(len(lam)), best)
    return dataclasses.replace(take_entries(solved, best), lam=solved.lam)
