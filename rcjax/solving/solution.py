"""The best cascade at given λ as a pure function of a fitted model's arrays, for `jit`, `vmap` and `grad`.

The search over cascades has no derivative. At its result the loss L(φ; x) = error + λ·cost is stationary in every free
threshold φ, where x is λ and every array of the model. The implicit function theorem gives

    dφ = −(∂²L/∂φ²)⁻¹ (∂²L/∂φ∂x) dx

and dL = ∂L/∂x dx (the envelope theorem). A held threshold, beside a point mass or at an end of the confidences, has
derivative 0.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._base.checks import takes
from rcjax._core.batching import varying_together
from rcjax._core.compilation import compiled, is_traced
from rcjax._core.exporting import exportable
from rcjax._core.meshes import automatic
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.marginals import Marginal
from rcjax.solving.at_lambda import lay_out, optimise, points_at
from rcjax.solving.frontier.points import Outcomes, PointStatus
from rcjax.solving.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER, CascadeSet
from rcjax.solving.objective import Tables, evaluate
from rcjax.solving.paths import CascadePlan, plan_cascades

#: Newton steps on the exact gradient of the loss.
_STEPS = 5
#: Distance from a point mass within which a threshold is held, in machine epsilons.
_BESIDE = 64


@exportable
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Solution:
    """The best cascade for each λ, as JAX arrays; k models, in the order of `CascadeModel.models`.

    Leading axes are those of λ, and of models under `vmap`.
    """

    lam: jax.Array
    """λ in errors per unit of money; (…)."""
    thresholds: jax.Array
    """Calibrated confidence above which a model answers; 0 for the last model, 1 for models not asked; (…, k)."""
    members: jax.Array
    """Whether a model is in the cascade; (…, k) bool."""
    error: jax.Array
    """Probability of a wrong answer; (…)."""
    cost: jax.Array
    """Expected money per query; (…)."""
    status: jax.Array
    """A `Status`: 0 converged, 1 at a bound, 2 not converged, 6 invalid λ; (…)."""
    loss: jax.Array
    """Minimum of error + λ·cost; its gradients compile fastest, by the envelope theorem; (…)."""


@takes(model=CascadeModel)
def solve(
    model: CascadeModel,
    lam: jax.Array | float | Sequence[float],
    cascades: CascadeSet = "all",
) -> Solution:
    """Minimise error + λ·cost under the model over cascades and thresholds, as a pure function.

    It works under `jit`, `vmap` (over λ, and over stacked models) and `grad`. Error, cost, loss and thresholds have
    first and second derivatives in λ and in every array of the model, in forward and reverse mode. The best cascade
    changes at some λ, where there is no derivative. `solve_frontier` adds a grid of λ, checks, names, and batches of λ
    that fit into memory.

    Args:
        model: fitted model of k models; under `vmap` with a leading axis.
        lam: (…) errors per unit of money, finite and at least 0. For invalid traced values `status` is 6 and all
            figures are NaN.
        cascades: "all", "full" or a list of cascades, as in `solve_frontier`; not "adaptive".

    Raises ValueError for unknown models, for adaptive policies, and for λ that are negative or not finite, unless
    traced.

    >>> import jax, rcjax
    >>> from rcjax.solving.solution import solve
    >>> model = rcjax.demo_model()
    >>> def loss(cost):
    ...     return solve(dataclasses.replace(model, cost=cost), 300.0, "full").loss
    >>> slope = jax.jit(jax.grad(loss))(model.cost)  # λ times the share of queries that each model is asked
    >>> [round(float(share), 3) for share in slope / 300.0][0]
    1.0
    """
    with jax.ensure_compile_time_eval():  # a plan depends on names alone
        plan = plan_cascades(model, cascades)
    if plan is None:
        raise ValueError("cascades='adaptive' has intervals instead of thresholds: use solve_frontier")
    lam = jnp.asarray(lam, model.cost.dtype)
    if not is_traced([lam]) and not bool(((np.asarray(lam) >= 0) & np.isfinite(lam)).all()):
        raise ValueError("lam must be finite and at least 0: errors per unit of money")

    def solved(arrays: tuple[Any, ...], lam: jax.Array) -> Solution:
        flat = _solve(arrays, lam.reshape(-1), plan)
        return jax.tree.map(lambda leaf: leaf.reshape(*lam.shape, *leaf.shape[1:]), flat)

    return automatic(solved, (model.marginals, model.copulas, model.cost), lam, like=lam)


class _Problem(NamedTuple):
    """The loss of one cascade at one λ, as a function of its thresholds (k,)."""

    tables: Tables
    lam: jax.Array  # ()
    links: jax.Array  # (P,)
    first: jax.Array  # ()
    defers: jax.Array  # (k,) bool

    def expected(self, thresholds: jax.Array) -> Outcomes:
        """Expected outcome of a query."""
        u, _, above = jax.vmap(Marginal.profile)(self.tables.marginals, thresholds)
        return evaluate(self.tables, u, self.links, self.first, above=above)

    def slope(self, thresholds: jax.Array) -> jax.Array:
        """Gradient of the loss in the thresholds; (k,)."""
        return jax.grad(lambda thresholds: self.expected(thresholds).loss(self.lam))(thresholds)

    def curvature(self, thresholds: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Gradient of the loss, 0 at held thresholds (k,); which thresholds are free (k,); Hessian (k, k).

        Rows and columns of held thresholds are those of the identity.
        """
        curvature, slope = jax.jacfwd(lambda thresholds: (self.slope(thresholds),) * 2, has_aux=True)(thresholds)
        free = self.defers & ~_held(self.tables.marginals, thresholds) & (jnp.diagonal(curvature) > 0)
        within = jnp.where(free[:, None] & free, curvature, jnp.eye(len(free), dtype=curvature.dtype))
        return jnp.where(free, slope, 0.0), free, within


def _solution(arrays: tuple[Any, ...], lam: jax.Array, plan: CascadePlan) -> Solution:
    """Solve for λ (L,), given (marginals (k,), copulas of all pairs, cost (k,))."""
    (marginals, copulas, cost), given = varying_together((arrays, lam))
    possible = (given >= 0) & jnp.isfinite(given)
    lam = jnp.where(possible, given, 1.0)  # invalid λ are solved as 1, and get their status
    tables = lay_out(marginals, copulas, cost, plan.pairs)
    still = lax.stop_gradient(tables)
    optima = optimise(still, lax.stop_gradient(lam), plan)
    settled = points_at(still, optima, plan).policies
    members = settled.members
    defers = members & (jnp.cumsum(members, axis=-1) < members.sum(-1, keepdims=True))
    start = jnp.where(defers, settled.bounds[..., -2], jnp.where(members, ALWAYS_ANSWER, NEVER_ANSWER))
    problem = _Problem(tables, lam, plan.links[optima.path], plan.first[optima.path], defers)
    axes: Any = _Problem(None, 0, 0, 0, 0)  # type: ignore[arg-type]
    thresholds, _, _ = jax.vmap(_stationary, (axes, 0))(problem, lax.stop_gradient(start))
    expected = jax.vmap(_Problem.expected, (axes, 0))(problem, thresholds)
    least = jax.vmap(_least, (axes, 0, 0))(problem, thresholds, expected.loss(lam))
    thresholds, wrong, spent, least = jax.tree.map(
        lambda leaf: jnp.where(possible.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.nan),
        (thresholds, expected.wrong, expected.cost, least),
    )
    status = jnp.where(possible, optima.status, PointStatus.NO_LAMBDA)
    return Solution(given, thresholds, members & possible[:, None], wrong, spent, status, least)


#: `compiled` passes tracers on uncompiled; `jit` inside compiles under other transformations too.
_solve = compiled(jax.jit(_solution))


@jax.custom_jvp
def _stationary(problem: _Problem, start: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Refine the optimum `start` by Newton's method, and keep the best of its iterates.

    Returns (thresholds (k,), which are free (k,), Hessian (k, k)).
    """

    def step(thresholds: jax.Array, _: None) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        slope, free, curvature = problem.curvature(thresholds)
        moved = thresholds - jnp.linalg.solve(curvature, slope)
        inside = (moved > problem.tables.marginals.lowest) & (moved < problem.tables.marginals.highest)
        left = jnp.nan_to_num(jnp.abs(slope).max(), nan=jnp.inf)
        return jnp.where(free & inside, moved, thresholds), (thresholds, left, free, curvature)

    _, (visited, left, free, curvature) = lax.scan(step, lax.stop_gradient(start), length=_STEPS)
    best = jnp.argmin(left)
    return visited[best], free[best], curvature[best]


@_stationary.defjvp
def _stationary_jvp(primals: tuple[_Problem, jax.Array], tangents: tuple[_Problem, Any]) -> tuple[Any, Any]:
    """Differentiate by the implicit function theorem; held thresholds have derivative 0."""
    problem, _ = primals
    thresholds, free, curvature = _stationary(*primals)
    _, moved = jax.jvp(lambda problem: problem.slope(thresholds), (problem,), (tangents[0],))
    known = _curvature(problem, thresholds, curvature)
    slope = -jnp.linalg.solve(known, jnp.where(free, moved, 0.0))
    still = np.zeros(free.shape, jax.dtypes.float0)
    return (thresholds, free, curvature), (slope, still, jnp.zeros_like(curvature))


@jax.custom_jvp
def _curvature(problem: _Problem, thresholds: jax.Array, known: jax.Array) -> jax.Array:
    """The known Hessian (k, k) at these thresholds; it is recomputed only to be differentiated."""
    return known


@_curvature.defjvp
def _curvature_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    _, slope = jax.jvp(lambda problem, thresholds: problem.curvature(thresholds)[2], primals[:2], tangents[:2])
    return _curvature(*primals), slope


@jax.custom_jvp
def _least(problem: _Problem, thresholds: jax.Array, known: jax.Array) -> jax.Array:
    """The known loss at stationary thresholds (k,): its first derivative does not depend on theirs; ()."""
    return known


@_least.defjvp
def _least_jvp(
    primals: tuple[_Problem, jax.Array, jax.Array], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    """Differentiate by the envelope theorem; second derivatives do depend on the thresholds."""
    problem, thresholds, _ = primals
    _, slope = jax.jvp(lambda problem: problem.expected(thresholds).loss(problem.lam), (problem,), (tangents[0],))
    return _least(*primals), slope


def _held(marginals: Marginal, thresholds: jax.Array) -> jax.Array:
    """Whether a threshold is beside a point mass or outside the range of confidences; (k,)."""
    margin = _BESIDE * jnp.finfo(thresholds.dtype).eps
    held = (thresholds <= marginals.lowest + margin) | (thresholds >= marginals.highest - margin)
    if marginals.atoms is not None:
        beside = jnp.abs(thresholds[:, None] - marginals.atoms.value) <= margin
        held |= (beside & (marginals.atoms.mass > 0)).any(-1)
    return held
