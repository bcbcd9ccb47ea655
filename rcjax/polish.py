"""The polish: a few projected Newton steps on the thresholds, all λ at once, and what became of each.

At the optimum of the exact chain the Hessian is diagonal: the gradient in u_j is a_j(u_j)·[Q_j(u_j) − what deferring
is worth there], and by the envelope theorem later thresholds do not move that worth to first order. One
Hessian–vector product with the ones vector is therefore the whole Hessian. The paper's factorisation has no such
structure and pays for the full matrix.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rcjax.cascade import Chain

#: What became of each λ.
CONVERGED, AT_BOUND, NOT_CONVERGED, INTERPOLATED = 0, 1, 2, 3
STATUS_MESSAGES = {
    CONVERGED: "converged",
    AT_BOUND: "converged, with a threshold at the end of a model's range (it always or never answers)",
    NOT_CONVERGED: "the Newton steps ran out before the gradient vanished: the thresholds may be slightly off",
    INTERPOLATED: "thresholds between those of two neighbouring optima: a point that no λ leads to",
}
_STEPS = {"exact": 2, "paper": 6}
_LENGTHS = (1.0, 0.3, 0.05, 0.0)
_MAX_MOVE = 0.05


def polish(
    loss: Callable[[jax.Array], jax.Array],
    u: jax.Array,
    low: jax.Array,
    high: jax.Array,
    deferring: jax.Array,
    chain: Chain,
) -> tuple[jax.Array, jax.Array]:
    """(u (k,), status ()) after Newton steps on the loss of one λ that never raise it; `vmap` it over λ.

    Cuts move within [low, high], between the point masses; a cut at or inside a mass stays, for the loss is linear
    there. `deferring` (k,) is true for models of the cascade but the last.
    """
    free = deferring & (u >= low) & (u <= high) & (low < high)
    lengths = jnp.asarray(_LENGTHS, u.dtype)
    slope = jax.grad(loss)

    def direction(u):
        if chain == "exact":
            gradient, curvature = jax.jvp(slope, (u,), (free.astype(u.dtype),))
            move = -gradient / jnp.where(curvature > 0, curvature, jnp.inf)
        else:
            gradient, hessian = slope(u), jax.hessian(loss)(u)
            both = free[:, None] & free[None, :]
            hessian = jnp.where(both, hessian, 0.0) + jnp.diag(jnp.where(free, 1e-9, 1.0))
            move = jnp.linalg.solve(hessian, jnp.where(free, -gradient, 0.0))
            move = jnp.where((move * gradient).sum() < 0, move, -gradient)
        outward = ((u <= low) & (gradient > 0)) | ((u >= high) & (gradient < 0))
        move = jnp.where(free & ~outward, jnp.nan_to_num(move), 0.0)
        return jnp.clip(move, -_MAX_MOVE, _MAX_MOVE), gradient

    def step(carry, _):
        u, _ = carry
        move, gradient = direction(u)
        trials = jnp.where(free, jnp.clip(u + lengths[:, None] * move, low, high), u)
        best = trials[jnp.argmin(jax.vmap(loss)(trials))]
        return (best, jnp.abs(move * gradient).sum()), None

    (u, decrease), _ = jax.lax.scan(step, (u, jnp.asarray(jnp.inf, u.dtype)), length=_STEPS[chain])
    at_bound = (deferring & ((u <= low) | (u >= high))).any()
    tolerance = jnp.sqrt(jnp.finfo(u.dtype).eps)
    return u, jnp.where(decrease > tolerance, NOT_CONVERGED, jnp.where(at_bound, AT_BOUND, CONVERGED))
