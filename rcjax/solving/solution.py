"""λ → the best cascade, as a pure function of a fitted model's arrays: to be jitted, vmapped and differentiated.

Which cascade is best is a search, and has no slope. At its result the loss L(φ; x) = error + λ·cost is stationary in
every threshold φ that is free, where x is λ and every array of the model. So the implicit function theorem gives

    dφ = −(∂²L/∂φ²)⁻¹ (∂²L/∂φ∂x) dx

and L itself moves by ∂L/∂x dx alone (the envelope theorem). A threshold that is held, beside a point mass or where a
model passes on everything or nothing, has no slope.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import varying_together
from rcjax._core.compilation import compiled
from rcjax.frontier.points import Outcomes
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER, Search
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.marginals import Marginal
from rcjax.solving.at_lambda import lay_out, optimise, thresholds_at
from rcjax.solving.objective import Tables, evaluate
from rcjax.solving.paths import CascadePlan, plan_cascades

#: Newton steps that settle the thresholds on the gradient of the loss itself.
_STEPS = 5
#: How near a point mass a threshold is held by it, in units in the last place of 1.
_BESIDE = 64


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Solution:
    """The best cascade for each λ, as arrays of JAX's; k models, in the order of `CascadeModel.models`.

    Leading axes are those of λ, and of a model that is vmapped over.
    """

    lam: jax.Array
    """(…) in errors per unit of money."""
    thresholds: jax.Array
    """(…, k) calibrated confidences above which a model answers; 0 for the last, which always does, and 1 for models
    that are not asked."""
    members: jax.Array
    """(…, k) bool, the models of the cascade."""
    error: jax.Array
    """(…) probability of a wrong answer."""
    cost: jax.Array
    """(…) expected money per query."""
    status: jax.Array
    """(…) a `Status`: 0 converged, 1 at a bound."""

    @property
    def loss(self) -> jax.Array:
        """(…) error + λ·cost, which is least."""
        return self.error + self.lam * self.cost


def solve(
    model: CascadeModel,
    lam: jax.Array | float | Sequence[float],
    cascades: Search = "all",
    *,
    max_length: int | None = None,
) -> Solution:
    """The cascades and thresholds that minimise error + λ·cost under the model, as a pure function.

    Works under `jit`, `vmap` (over λ, and over stacked models) and `grad`: error, cost, loss and thresholds have
    derivatives by every array of the model and by λ, forward and reverse, and second ones. Which cascade is best jumps
    at some λ, where there is no slope. `solve_frontier` is this with a grid of λ, checks, names, and as many λ at a
    time as memory allows.

    Args:
        model: the fitted model, of k models; or one with a leading axis, under `vmap`.
        lam: (…) errors per unit of money, at least 0; nothing checks that where it is traced.
        cascades: "all", "full" or a list of cascades, as of `solve_frontier`; "adaptive" has no thresholds.
        max_length: the most models in a cascade; None: all.

    Raises ValueError for unknown models and for adaptive policies.

    >>> import jax, rcjax
    >>> from rcjax.solving.solution import solve
    >>> model = rcjax.demo_model()
    >>> def loss(cost):
    ...     return solve(dataclasses.replace(model, cost=cost), 300.0, "full").loss
    >>> slope = jax.jit(jax.grad(loss))(model.cost)  # λ times the share of queries that each model is asked
    >>> [round(float(share), 3) for share in slope / 300.0][0]
    1.0
    """
    with jax.ensure_compile_time_eval():  # a plan is of names alone
        plan = plan_cascades(model, cascades, max_length)
    if plan is None:
        raise ValueError("cascades='adaptive' has intervals instead of thresholds: use solve_frontier")
    chosen = np.asarray(plan.left), np.asarray(plan.right), np.asarray(plan.pairs)
    lam = jnp.asarray(lam, model.cost.dtype)
    solved = _solve((model.marginals, model.copulas, model.cost), lam.reshape(-1), plan, chosen)
    return jax.tree.map(lambda leaf: leaf.reshape(*lam.shape, *leaf.shape[1:]), solved)


class _Problem(NamedTuple):
    """What the loss is a function of, besides the thresholds."""

    marginals: Marginal  # (k,)
    tables: Tables
    lam: jax.Array  # ()


class _Newton(NamedTuple):
    """Newton's method on the loss's slope, and the best of what it visited."""

    thresholds: jax.Array  # (k,) where it goes next
    best: jax.Array  # (k,) where the slope was least
    left: jax.Array  # () the largest slope there


class _Route(NamedTuple):
    """A cascade of the plan."""

    links: jax.Array  # (P,)
    first: jax.Array  # ()
    defers: jax.Array  # (k,) bool


def _solution(arrays: tuple[Any, ...], lam: jax.Array, plan: CascadePlan, chosen: tuple[Any, Any, Any]) -> Solution:
    """The solutions for λ (L,) of (marginals (k,), copulas of all pairs, cost (k,)), all pairs of the plan `chosen`."""
    (marginals, copulas, cost), lam = varying_together((arrays, lam))
    tables = dataclasses.replace(lay_out(marginals, copulas, cost, chosen), copulas=None)
    still = lax.stop_gradient((marginals, tables, lam))
    optima = optimise(still[1], still[2], plan, "exact")
    settled = thresholds_at(still[0], still[1], optima.path, optima.cut, plan).policies
    members = settled.members
    defers = members & (jnp.cumsum(members, axis=-1) < members.sum(-1, keepdims=True))
    route = _Route(plan.links[optima.path], plan.first[optima.path], defers)
    start = jnp.where(defers, settled.thresholds, jnp.where(members, ALWAYS_ANSWER, NEVER_ANSWER))
    thresholds, expected = jax.vmap(_differentiable, (_Problem(None, None, 0), 0, 0))(  # type: ignore[arg-type]
        _Problem(marginals, tables, lam), route, start
    )
    return Solution(lam, thresholds, members, expected.wrong, expected.cost, optima.status)


#: Inside other transformations, whose tracers `compiled` passes on, it is compiled too.
_solve = compiled(jax.jit(_solution))


def _differentiable(problem: _Problem, route: _Route, start: jax.Array) -> tuple[jax.Array, Outcomes]:
    """(thresholds (k,), what is expected of a query), with their slopes, from thresholds near the optimum."""
    still = lax.stop_gradient(problem)
    free = _curvature(still, route, start)[1]

    def slope(thresholds: jax.Array) -> jax.Array:
        """Of the loss in the thresholds that are free; how far the others are from where they are held."""
        return jnp.where(free, jax.grad(partial(_loss, route))(thresholds, problem), thresholds - start)

    def settle(_: Any, start: jax.Array) -> jax.Array:
        return _newton(still, route, start)

    def solved(linear: Any, slope: jax.Array) -> jax.Array:
        return jnp.linalg.solve(jax.jacobian(linear)(slope), slope)

    thresholds = lax.custom_root(slope, start, settle, solved)
    return thresholds, _expected(route, thresholds, problem)


def _newton(problem: _Problem, route: _Route, start: jax.Array) -> jax.Array:
    """(k,) the thresholds near `start` where the loss is stationary; of all that Newton's method visits, the best."""

    def step(_: Any, newton: _Newton) -> _Newton:
        slope, free, curvature = _curvature(problem, route, newton.thresholds)
        slope = jnp.where(free, slope, 0.0)
        left = jnp.abs(slope).max()
        best = jax.tree.map(partial(jnp.where, left < newton.left), (newton.thresholds, left), newton[1:])
        moved = newton.thresholds - jnp.linalg.solve(curvature, slope)
        inside = (moved > problem.marginals.lowest) & (moved < problem.marginals.highest)
        return _Newton(jnp.where(free & inside, moved, newton.thresholds), *best)

    return lax.fori_loop(0, _STEPS, step, _Newton(start, start, jnp.full_like(start, jnp.inf, shape=()))).best


def _expected(route: _Route, thresholds: jax.Array, problem: _Problem) -> Outcomes:
    u, _, above = jax.vmap(Marginal.profile)(problem.marginals, thresholds)
    return evaluate(problem.tables, u, route.links, route.first, above=above)


def _loss(route: _Route, thresholds: jax.Array, problem: _Problem) -> jax.Array:
    expected = _expected(route, thresholds, problem)
    return expected.wrong + problem.lam * expected.cost


def _curvature(problem: _Problem, route: _Route, thresholds: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(slope of the loss (k,), which thresholds are free (k,), second derivative in these (k, k)): 1 for the others."""

    def slope_at(thresholds: jax.Array) -> tuple[jax.Array, jax.Array]:
        slope = jax.grad(partial(_loss, route))(thresholds, problem)
        return slope, slope

    curvature, slope = jax.jacfwd(slope_at, has_aux=True)(thresholds)
    free = route.defers & ~_held(problem.marginals, thresholds) & (jnp.diagonal(curvature) > 0)
    return slope, free, jnp.where(free[:, None] & free, curvature, jnp.eye(len(free), dtype=curvature.dtype))


def _held(marginals: Marginal, thresholds: jax.Array) -> jax.Array:
    """(k,) whether a threshold is beside a point mass, or outside the range of confidences."""
    margin = _BESIDE * jnp.finfo(thresholds.dtype).eps
    held = (thresholds <= marginals.lowest + margin) | (thresholds >= marginals.highest - margin)
    if marginals.atoms is not None:
        beside = jnp.abs(thresholds[:, None] - marginals.atoms.value) <= margin
        held |= (beside & (marginals.atoms.mass > 0)).any(-1)
    return held
