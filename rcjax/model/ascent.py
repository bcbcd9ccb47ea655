"""Maximum likelihood for the parameters of a family of copulas or of marginals, batched over fits.

Newton's method runs on unconstrained parameters z until every fit of the batch has converged, or the steps are used up.
Each step evaluates value, gradient and Hessian once; a step that lowers the value is undone and shortened.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.json_values import Status
from rcjax._core.parametric import Parametric
from rcjax.copulas.base import FARTHEST


class FitStatus(Status):
    """Status of a maximum likelihood fit."""

    CONVERGED = 0, "converged"
    AT_BOUND = 1, "at an end of the parameter's support: the standard error does not hold there"
    NOT_CONVERGED = 2, "not converged: the likelihood is flat, or there are too few observations"
    FAILED = 3, "no finite likelihood: the family cannot describe what was observed"


STEPS, _LONGEST = 16, 3.0

_FAR = 12.0  # |z| at a finite end of a support: the parameter is within e^−12 of it

_AT_END = 7.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ascent:
    """The maximum likelihood fit of a family; leading axes batch it."""

    member: Any
    standard_errors: dict[str, jax.Array]  # by parameter, from the Hessian; inf if there is none
    mean: jax.Array  # () mean log-likelihood at the maximum
    status: jax.Array  # () a `FitStatus`


def climb(
    family: type[Parametric], objective: Callable[..., Any], start: Any, steps: int = STEPS, within: float = 1 / 3
) -> Ascent:
    """Maximise objective(member) in the free parameters by Newton's method.

    Args:
        family: family of the member.
        objective: function of a member, in units of a mean log-likelihood per observation.
        start: initial member; its other fields stay.
        steps: greatest number of steps.
        within: initial parameters are clipped to this share of the way to an end, in unconstrained numbers.
    """
    names, supports = family.free, [family.supports[name] for name in family.free]
    if not names:
        mean = objective(start)
        status = jnp.where(jnp.isfinite(mean), FitStatus.CONVERGED, FitStatus.FAILED)
        return Ascent(start, {name: jnp.full_like(mean, jnp.inf) for name in family.grids}, mean, status)

    def value(z: jax.Array) -> jax.Array:
        return objective(member_at(start, z))

    z = place_of(start)
    nearest, farthest = jnp.asarray([_reach(support) for support in supports], z.dtype).T
    z = jnp.clip(z, within * nearest, within * farthest)

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        count, trial, length, best = state
        mean, gradient, hessian = _derivatives(value, trial)
        climbs = (mean >= best[1]) & jnp.all(jnp.isfinite(gradient))
        best = jax.tree.map(lambda new, old: jnp.where(climbs, new, old), (trial, mean, gradient, hessian), best)
        length = jnp.where(climbs, jnp.minimum(4 * length, 1.0), length / 4)
        z, _, gradient, hessian = best
        longest = _LONGEST + jnp.abs(z) / 2
        ahead = z + length * jnp.clip(_direction(gradient, hessian), -longest, longest)
        return count + 1, jnp.clip(ahead, nearest, farthest), length, best

    def climbable(best: tuple[jax.Array, ...]) -> jax.Array:
        """Whether Newton's step still promises a gain above the tolerance."""
        _, mean, gradient, hessian = best
        rest = gradient @ _direction(gradient, hessian) / 2
        return ~(jnp.isfinite(mean) & (rest <= jnp.sqrt(jnp.finfo(z.dtype).eps) * 1e-2))

    # Added zeros make the loop's state vary over the same devices as the objective, under `jax.shard_map`.
    like = jnp.zeros_like(value(z), z.dtype)
    z = z + like
    nowhere = z, like - jnp.inf, jnp.zeros_like(z), like - jnp.eye(len(names), dtype=z.dtype)
    state = 0, z, like + 1, nowhere
    *_, best = lax.while_loop(lambda state: (state[0] < steps) & climbable(state[-1]), step, state)
    z, mean, _, hessian = best
    low, high = (jnp.where(jnp.abs(end) == _FAR, jnp.sign(end) * _AT_END, end) for end in (nearest, farthest))
    bounded = jnp.any((z <= low) | (z >= high))
    settled = jnp.where(climbable(best), FitStatus.NOT_CONVERGED, FitStatus.CONVERGED)
    status = jnp.where(bounded, FitStatus.AT_BOUND, settled)
    status = jnp.where(jnp.isfinite(mean), status, FitStatus.FAILED)
    errors = dict(zip(names, _standard_errors(z, hessian, supports), strict=True))
    return Ascent(
        member_at(start, z), errors | {name: jnp.full_like(mean, jnp.inf) for name in family.grids}, mean, status
    )


def member_at(member: Any, z: jax.Array) -> Any:
    """Replace a member's free parameters by those that unconstrained numbers z (p,) stand for."""
    free = {name: constrain(part, member.supports[name]) for name, part in zip(member.free, z, strict=True)}
    return dataclasses.replace(member, **free)


def place_of(member: Any) -> jax.Array:
    """Unconstrained numbers of a member's free parameters, the inverse of `member_at`; (p,)."""
    return jnp.stack([unconstrain(jnp.asarray(getattr(member, name)), member.supports[name]) for name in member.free])


def _derivatives(function: Callable[..., Any], z: jax.Array) -> tuple[jax.Array, ...]:
    """(value (), gradient (p,), Hessian (p, p)) of a function of p parameters, by forward mode twice."""
    if z.shape == (1,):  # one direction without `vmap`, which would double the time of tracing
        (value, slope), (_, curvature) = jax.jvp(partial(_along, function), (z,), (jnp.ones_like(z),))
        return value, slope[None], curvature[None, None]

    def value_twice(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        value = function(z)
        return value, value

    def gradient_and_value(z: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        gradient, value = jax.jacfwd(value_twice, has_aux=True)(z)
        return gradient, (gradient, value)

    hessian, (gradient, value) = jax.jacfwd(gradient_and_value, has_aux=True)(z)
    return value, gradient, hessian


def _along(function: Callable[..., Any], z: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.jvp(function, (z,), (jnp.ones_like(z),))


def _direction(gradient: jax.Array, hessian: jax.Array) -> jax.Array:
    """Newton's step, with every curvature made negative so that it leads uphill."""
    small = jnp.finfo(gradient.dtype).eps
    if gradient.shape == (1,):
        return gradient / jnp.maximum(jnp.abs(hessian[0]), small)
    curvature, axes = jnp.linalg.eigh(hessian)
    return axes @ ((axes.T @ gradient) / jnp.maximum(jnp.abs(curvature), small))


def _standard_errors(z: jax.Array, hessian: jax.Array, supports: list[tuple[float, float]]) -> jax.Array:
    """Standard errors of the parameters for one observation, by the delta method; inf unless the Hessian is negative.

    Divide by √n for n observations.
    """
    if z.shape == (1,):
        variances = -1 / jnp.where(hessian[0] < 0, hessian[0], -1.0)
        negative = hessian[0, 0] < 0
    else:
        negative = jnp.all(jnp.linalg.eigvalsh(hessian) < 0)
        variances = jnp.diagonal(jnp.linalg.inv(jnp.where(negative, -hessian, jnp.eye(len(z), dtype=z.dtype))))
    slopes = [jax.grad(constrain)(part, support) for part, support in zip(z, supports, strict=True)]
    errors = jnp.sqrt(jnp.maximum(variances, 0.0)) * jnp.abs(jnp.stack(slopes))
    return jnp.where(negative, errors, jnp.inf)


def constrain(z: jax.Array, support: tuple[float, float]) -> jax.Array:
    """Map an unconstrained number to a parameter in a support.

    >>> [round(float(constrain(0.0, s)), 4) for s in ((-1.0, 1.0), (1.0, float("inf")), (-float("inf"), float("inf")))]
    [0.0, 1.6931, 0.0]
    """
    low, high = support
    if np.isfinite(low) and np.isfinite(high):
        return low + (high - low) * jax.nn.sigmoid(z)
    if np.isfinite(low):
        return low + jax.nn.softplus(z)
    return high - jax.nn.softplus(z) if np.isfinite(high) else jnp.asarray(z)


def unconstrain(value: jax.Array, support: tuple[float, float]) -> jax.Array:
    """The inverse of `constrain`; about ±`_FAR` at finite ends."""
    low, high = support
    tiny = float(np.exp(-_FAR))
    if np.isfinite(low) and np.isfinite(high):
        share = jnp.clip((value - low) / (high - low), tiny, 1 - tiny)
        return jnp.log(share) - jnp.log1p(-share)
    if np.isfinite(low) or np.isfinite(high):
        distance = jnp.maximum(value - low if np.isfinite(low) else high - value, tiny)
        return distance + jnp.log(-jnp.expm1(-distance))
    return jnp.asarray(value)


def _reach(support: tuple[float, float]) -> tuple[float, float]:
    """The least and the largest z: ±`_FAR` at finite ends of the support, ±`FARTHEST` at infinite ones."""
    low, high = np.isfinite(support)
    return -_FAR if low or high else -FARTHEST, _FAR if low and high else FARTHEST
