"""The paper's factorisation of the joint law of confidences (eq. 5, proposition 2), evaluated and solved.

The law of Φ_j is taken to depend on Φ_i ≤ φ_i alone, whichever models were asked before i:

    a_j(v) = P(i is reached and defers) · ∂ᵥC_ij(u_i, v) / u_i

rcjax integrates the whole chain instead; both agree for two models. The state of the program here is the last
threshold. Thresholds of neighbours move each other, hence the full Hessian.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import rcjax
from rcjax._core.batching import map_in_chunks, take_entries
from rcjax.copulas import Copula
from rcjax.model import Marginal
from rcjax.policy.spec import Spec
from rcjax.solving.bellman import CascadePlan, Cut, SearchTables, gain_tolerance, plan_cascades
from rcjax.solving.frontier.frontier import make_frontier
from rcjax.solving.frontier.points import ALWAYS_ANSWER, NEVER_ANSWER, LossTerms, PointStatus, Policies, check_lam
from rcjax.solving.optimum import OptimalCuts, SolvedPoints, drop_unreached, thresholds_of_cuts
from rcjax.solving.quadrature import QuadratureGrid, QuadratureTables, build_tables
from rcjax.solving.tradeoff import build_search_tables, keep_best, solve_on_grid

_STEPS = 6

_LENGTHS = (1.0, 0.3, 0.05, 0.0)

_MAX_MOVE = 0.05

_NEVER = -1e30

_LAM_AT_ONCE = 32  # λ that are solved for together


def truncated_transition(copula: Copula, u: jax.Array, target: QuadratureGrid) -> jax.Array:
    """(G,) density at the target's nodes given that the source's rank is at most u: ∂ᵥ C(u, v) / u."""
    v = target.edges[1:-1]
    positive = u > 0
    safe = jnp.where(positive, u, 0.5)
    cumulative = jnp.where(positive, copula.cdf(safe, v) / safe, copula.conditional(jnp.zeros_like(u), v))
    return target.density(jnp.pad(cumulative, 1, constant_values=(0.0, 1.0)))


def evaluate(
    tables: QuadratureTables,
    copulas: Copula,
    u: jax.Array,
    links: jax.Array,
    first: jax.Array,
    above: jax.Array | None = None,
) -> LossTerms:
    """What is expected of a query by a cascade; scalar in u: `vmap` it over λ.

    Args:
        tables: the quadrature of the model.
        copulas: (P,) of its pairs.
        u: (k,) the cuts, on the scale of ranks; the last model of the cascade has 0.
        links: (P,) whether i defers to j, for the pairs (i, j).
        first: () the model asked first.
        above: (k,) E[Φ_j; Φ_j > φ_j] in closed form, in place of the quadrature over the panel that u cuts.
    """
    grid = tables.grid
    below = jax.vmap(QuadratureGrid.weights_below)(grid, u)
    law = jax.vmap(truncated_transition)(copulas, u[tables.left], take_entries(grid, tables.right))

    def pass_on(density: jax.Array, link: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        i, j, deferred, after = link
        return density.at[j].add((deferred * density[i]).sum() * after), None

    start = (jnp.arange(len(u)) == first)[:, None] * jnp.ones_like(below)
    deferred = links[:, None] * below[tables.left]
    density, _ = lax.scan(pass_on, start, (tables.left, tables.right, deferred, law))
    answered = grid.weight - below
    wrong = (answered * (1 - grid.quantile) * density).sum(-1)
    if above is not None:
        missing = above - (answered * grid.quantile).sum(-1)
        at_cut = jax.vmap(lambda grid, cut, values: grid.interpolation_weights(cut) @ values)
        wrong -= missing * at_cut(grid, u, density)
    cost = ((grid.weight * density).sum(-1) * tables.cost).sum()
    return LossTerms(wrong.sum(), cost, jnp.zeros_like(cost))


@jax.jit
def error_and_cost(model: rcjax.CascadeModel, thresholds: Any) -> tuple[jax.Array, jax.Array]:
    """(error (n,), cost (n,)) of every model in turn at thresholds (n, k − 1 or more); the last model answers all."""
    k = len(model.models)
    neighbours = np.cumsum([0, *range(k - 1, 1, -1)])[: k - 1]
    copulas = take_entries(model.copulas, neighbours)
    tables = build_tables(model.marginals, copulas, model.cost, np.arange(k - 1), np.arange(1, k))

    def single(cuts: jax.Array) -> LossTerms:
        u, _, above = jax.vmap(Marginal.profile)(model.marginals, jnp.append(cuts[: k - 1], ALWAYS_ANSWER))
        return evaluate(tables, copulas, u, jnp.ones(k - 1, bool), jnp.zeros((), int), above)

    expected = jax.vmap(single)(jnp.asarray(thresholds, model.cost.dtype))
    return expected.wrong, expected.cost


def solve_frontier(model: rcjax.CascadeModel, cascades: Any = "full", lam: Any = None) -> rcjax.Frontier:
    """`rcjax.solve_frontier` under the paper's factorisation.

    Args:
        model: the fitted model.
        cascades: "all" subcascades, the "full" one, or a list of cascades.
        lam: (L,) the λ to solve for; None: the automatic grid.
    """
    plan = plan_cascades(model.models, cascades)
    assert plan is not None  # adaptive policies have no such factorisation
    search, copulas = build_search_tables(model, plan, None), take_entries(model.copulas, np.asarray(plan.pairs))

    def points(search: SearchTables, optima: OptimalCuts) -> SolvedPoints:
        return map_in_chunks(
            lambda some: _points_at(search.tables, copulas, some, plan), optima, _LAM_AT_ONCE, same_programs=False
        )

    def solve(search: SearchTables, lam: Any) -> SolvedPoints:
        lam = np.asarray(lam, search.tables.cost.dtype)
        optima = map_in_chunks(
            lambda some: _optimise(search.tables, copulas, some, plan), lam, _LAM_AT_ONCE, same_programs=False
        )
        return points(search, optima)

    solved = solve_on_grid(search, solve, points) if lam is None else keep_best(solve(search, check_lam(lam)), None)
    return make_frontier(model, solved, Spec(cascade=cascades))


@jax.jit
def _optimise(tables: QuadratureTables, copulas: Copula, lam: jax.Array, plan: CascadePlan) -> OptimalCuts:
    """The best cascade for each λ (L,), and its cuts."""
    cascade, cuts = _best_cascades(tables, copulas, lam, plan)
    low, high = tables.grid.smooth_range

    def improve(
        u: jax.Array, lam: jax.Array, links: jax.Array, first: jax.Array, defers: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return _newton(lambda u: evaluate(tables, copulas, u, links, first).loss(lam), u, low, high, defers)

    cuts, gain = jax.vmap(improve)(cuts, lam, plan.links[cascade], plan.first[cascade], plan.defers[cascade])
    status = jnp.where(gain > gain_tolerance(lam.dtype), PointStatus.NOT_CONVERGED, PointStatus.CONVERGED)
    return OptimalCuts(lam, cascade, Cut.at(cuts), status.astype(int))


@jax.jit
def _points_at(tables: QuadratureTables, copulas: Copula, optima: OptimalCuts, plan: CascadePlan) -> SolvedPoints:
    """The optima with their thresholds, and what is expected of them."""
    lam, cascade, cut, status = optima
    members = plan.members[cascade]
    u = jnp.where(plan.defers[cascade], cut.u, jnp.where(members, 0.0, 1.0))
    thresholds, ranks, above = thresholds_of_cuts(tables, dataclasses.replace(cut, u=u))

    def single(u: jax.Array, above: jax.Array, cascade: jax.Array) -> LossTerms:
        return evaluate(tables, copulas, u, plan.links[cascade], plan.first[cascade], above)

    expected = jax.vmap(single)(ranks, above, cascade)
    members = jnp.where(plan.has_all_prefixes, drop_unreached(thresholds, members), members)
    thresholds = jnp.where(members, thresholds, NEVER_ANSWER)
    return SolvedPoints(lam, status, expected, Policies.from_cascades(thresholds, members), ranks, cascade)


def _newton(
    loss: Callable[[jax.Array], jax.Array], u: jax.Array, low: jax.Array, high: jax.Array, deferring: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(u (k,), gain of the last step ()) after projected Newton steps on the loss of one λ that never raise it.

    Cuts move within [low, high], between the point masses; a cut at or inside a mass stays, for the loss is linear
    there. `deferring` (k,) is true for models of the cascade but the last.
    """
    free = deferring & (u >= low) & (u <= high) & (low < high)
    lengths = jnp.asarray(_LENGTHS, u.dtype)

    def direction(u: jax.Array) -> jax.Array:
        gradient, hessian = jax.grad(loss)(u), jax.hessian(loss)(u)
        both = free[:, None] & free[None, :]
        hessian = jnp.where(both, hessian, 0.0) + jnp.diag(jnp.where(free, 1e-9, 1.0))
        move = jnp.linalg.solve(hessian, jnp.where(free, -gradient, 0.0))
        move = jnp.where((move * gradient).sum() < 0, move, -gradient)
        outward = ((u <= low) & (gradient > 0)) | ((u >= high) & (gradient < 0))
        return jnp.clip(jnp.where(free & ~outward, jnp.nan_to_num(move), 0.0), -_MAX_MOVE, _MAX_MOVE)

    def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        u, value = carry
        trials = jnp.where(free, jnp.clip(u + lengths[:, None] * direction(u), low, high), u)
        values = jax.vmap(loss)(trials)
        best = jnp.argmin(values)
        return (trials[best], values[best]), value - values[best]

    (u, _), gains = jax.lax.scan(step, (u, loss(u)), length=_STEPS)
    return u, gains[-1]


def _best_cascades(
    tables: QuadratureTables, copulas: Copula, lam: jax.Array, plan: CascadePlan
) -> tuple[jax.Array, jax.Array]:
    """(number of the best cascade (L,), its cuts (L, k)) with every threshold at an edge of a cell.

    With J(u_i) what deferring from i to j below u_i is worth to a query, and G(v given u) = C(u, v)/u,
    J(u_i) = −λ·cost_j + max over u_j of ∫_{u_j}^1 Q_j dG(v given u_i) + G(u_j given u_i)·J(u_j).
    """
    passed, earned, passed_first, earned_first = _pass_or_answer(tables, copulas)
    edges = tables.grid.edges

    def defer(carry: tuple[Any, ...], step: Any) -> tuple[tuple[Any, ...], Any]:
        worth, choices = carry
        end, rest, pair = step
        total = earned[pair] + passed[pair] * worth[rest][:, None]
        price = lam * tables.cost[tables.right[pair]]
        worth = worth.at[end].set(total.max(-1) - price[:, None])
        return (worth, choices.at[end].set(jnp.argmax(total, -1))), None

    # The last model of a cascade passes nothing: its cut is the first edge.
    nothing = jnp.where(jnp.arange(edges.shape[1]) > 0, _NEVER, 0.0).astype(lam.dtype)
    worth = jnp.broadcast_to(nothing, (*plan.suffix_first.shape, *lam.shape, edges.shape[1]))
    choices, rests = jnp.zeros(worth.shape, int), jnp.arange(plan.suffix_first.shape[0])
    if plan.steps.shape[0]:
        (worth, choices), _ = lax.scan(defer, (worth, choices), tuple(plan.steps.T))
        rests = rests.at[plan.steps[:, 0]].set(plan.steps[:, 1])
    asked = plan.suffix_first[plan.suffixes]
    total = earned_first[asked][:, None] + passed_first[asked][:, None] * worth[plan.suffixes]
    best = jnp.argmax(total.max(-1) - lam * tables.cost[asked][:, None], axis=0)

    def follow(end: jax.Array, edge: jax.Array, choices: jax.Array) -> Any:
        def ask(carry: tuple[Any, ...], _: Any) -> tuple[tuple[Any, ...], Any]:
            u, end, edge = carry
            j = plan.suffix_first[end]
            return (u.at[j].set(edges[j, edge]), rests[end], choices[end, edge]), None

        start = (jnp.zeros(edges.shape[0], edges.dtype), end, edge)
        return lax.scan(ask, start, length=edges.shape[0])[0][0]

    first_edge = jnp.argmax(total, -1)[best, jnp.arange(lam.shape[0])]
    return best, jax.vmap(follow, (0, 0, 1))(plan.suffixes[best], first_edge, choices)


def _pass_or_answer(tables: QuadratureTables, copulas: Copula) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Of each pair (i, j), G(e_m given e_n) and what j earns above e_m (P, N, N), by edges n of i and m of j.

    The same (k, N) of each model that is asked first.
    """
    below = jax.vmap(lambda grid: jax.vmap(grid.weights_below)(grid.edges))(tables.grid)
    earned = (tables.grid.weight[:, None] - below) * tables.grid.quantile[:, None]
    law = jax.vmap(jax.vmap(truncated_transition, (None, 0, None)))
    density = law(copulas, tables.grid.edges[tables.left], take_entries(tables.grid, tables.right))
    passing, earning = (density @ jnp.swapaxes(table[tables.right], 1, 2) for table in (below, earned))
    return passing, earning, below.sum(-1), earned.sum(-1)
