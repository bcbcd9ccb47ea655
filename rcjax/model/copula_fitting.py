"""Maximum likelihood for the parameters of a copula: any family, any number of pairs, families and replicates at once.

Newton's method on unconstrained parameters z, until no fit of the batch has anything left to climb, or sixteen steps
are done. One evaluation of value, gradient and Hessian per step: a step that does not climb is taken back and
shortened.
"""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import part
from rcjax._core.json_values import Status
from rcjax.copulas import Copula
from rcjax.copulas.base import FARTHEST
from rcjax.model.pair_likelihood import Ranks, sum_of


class FitStatus(Status):
    """What became of the fit of a copula to a pair."""

    CONVERGED = 0, "converged"
    AT_BOUND = 1, "at an end of the parameter's support: the standard error does not hold there"
    NOT_CONVERGED = 2, "not converged: the likelihood is flat, or the pair has too few observations"
    FAILED = 3, "no finite likelihood: the family cannot describe this pair"


_STEPS, _LONGEST = 16, 3.0

_FAR = 12.0  # |z| of a parameter as good as at the end of its support

_AT_END = 7.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CopulaFit:
    """A copula fitted to a pair by maximum likelihood. Leading axes batch it."""

    copula: Copula
    standard_errors: dict[str, jax.Array]  # of each parameter, from the Hessian; inf where there is none
    log_likelihood: jax.Array  # () of the weighted observations, less that of their margins
    status: jax.Array  # () a `FitStatus`


def count_parameters(family: type[Copula]) -> int:
    """Parameters that a fit chooses, for information criteria; one that is profiled over a grid counts."""
    return len(family.free) + len(family.grids)


def fit_pair(
    family: type[Copula], first: Ranks, second: Ranks, weights: jax.Array, tau: jax.Array | float = 0.3
) -> CopulaFit:
    """The member of a family under which a pair of margins is likeliest.

    Scalar in the pair: `vmap` it over pairs and replicates. A parameter with a grid is profiled: the search is run for
    each value, and the likeliest is kept.

    Args:
        family: the family of copulas.
        first, second: ranks of the same n observations under their two margins.
        weights: (n,) how often each observation counts; 0: absent.
        tau: () Kendall's τ of the member where the search starts.

    >>> from rcjax.copulas import Clayton
    >>> u, v = Clayton(2.0).sample(jax.random.key(0), (1000,))
    >>> first, second = Ranks(u), Ranks(v)
    >>> fitted = fit_pair(Clayton, first, second, jnp.ones(1000))
    >>> abs(float(fitted.copula.theta) - 2.0) < 3 * float(fitted.standard_errors["theta"]), int(fitted.status)
    (True, 0)
    """
    total = jnp.maximum(jnp.sum(weights), 1.0)
    start = family.from_tau(jnp.asarray(tau, first.u.dtype))

    def climb(fixed: dict[str, Any]) -> CopulaFit:
        held = dataclasses.replace(start, **fixed)  # pyright: ignore[reportArgumentType]
        likelihood = sum_of(held, first, second, weights)
        return _climb(family, lambda copula: likelihood(copula) / total, held)

    grid = list(itertools.product(*family.grids.values()))
    columns = dict(zip(family.grids, jnp.asarray(grid, first.u.dtype).T, strict=True))
    climbed = jax.vmap(climb)(columns) if columns else climb({})
    if columns:
        best = jnp.argmax(jnp.where(climbed.status == FitStatus.FAILED, -jnp.inf, climbed.log_likelihood))
        climbed = part(climbed, best)
    errors = {name: error / jnp.sqrt(total) for name, error in climbed.standard_errors.items()}
    return dataclasses.replace(climbed, standard_errors=errors, log_likelihood=climbed.log_likelihood * total)


def _climb(family: type[Copula], objective: Callable[..., Any], start: Any) -> CopulaFit:
    """Newton's ascent of objective(copula) from `start` in the free parameters; per unit of weight."""
    names, supports = family.free, [family.supports[name] for name in family.free]
    if not names:
        mean = objective(start)
        status = jnp.where(jnp.isfinite(mean), FitStatus.CONVERGED, FitStatus.FAILED)
        return CopulaFit(start, {name: jnp.full_like(mean, jnp.inf) for name in family.grids}, mean, status)

    def value(z: jax.Array) -> jax.Array:
        return objective(member_at(start, z))

    z = place_of(start)
    nearest, farthest = jnp.asarray([_reach(support) for support in supports], z.dtype).T
    z = jnp.clip(z, nearest / 3, farthest / 3)

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
        """Half the climb that Newton still expects, per observation, where it is worth a step."""
        _, mean, gradient, hessian = best
        rest = gradient @ _direction(gradient, hessian) / 2
        return ~(jnp.isfinite(mean) & (rest <= jnp.sqrt(jnp.finfo(z.dtype).eps) * 1e-2))

    # All like the objective, so that under `jax.shard_map` it varies over the same devices.
    like = jnp.zeros_like(value(z), z.dtype)
    z = z + like
    nowhere = z, like - jnp.inf, jnp.zeros_like(z), like - jnp.eye(len(names), dtype=z.dtype)
    state = 0, z, like + 1, nowhere
    *_, best = lax.while_loop(lambda state: (state[0] < _STEPS) & climbable(state[-1]), step, state)
    z, mean, _, hessian = best
    low, high = (jnp.where(jnp.abs(end) == _FAR, jnp.sign(end) * _AT_END, end) for end in (nearest, farthest))
    bounded = jnp.any((z <= low) | (z >= high))
    settled = jnp.where(climbable(best), FitStatus.NOT_CONVERGED, FitStatus.CONVERGED)
    status = jnp.where(bounded, FitStatus.AT_BOUND, settled)
    status = jnp.where(jnp.isfinite(mean), status, FitStatus.FAILED)
    errors = dict(zip(names, _standard_errors(z, hessian, supports), strict=True))
    return CopulaFit(
        member_at(start, z), errors | {name: jnp.full_like(mean, jnp.inf) for name in family.grids}, mean, status
    )


def member_at(copula: Any, z: jax.Array) -> Any:
    """The copula with free parameters that unconstrained numbers z (p,) stand for."""
    free = {name: constrain(part, copula.supports[name]) for name, part in zip(copula.free, z, strict=True)}
    return dataclasses.replace(copula, **free)


def place_of(copula: Any) -> jax.Array:
    """(p,) the unconstrained numbers of a copula's free parameters: the inverse of `member_at`."""
    return jnp.stack([unconstrain(jnp.asarray(getattr(copula, name)), copula.supports[name]) for name in copula.free])


def _derivatives(function: Callable[..., Any], z: jax.Array) -> tuple[jax.Array, ...]:
    """(value (), gradient (p,), Hessian (p, p)) of a function of p parameters, forwards twice."""
    if z.shape == (1,):  # in one direction: to batch a single one doubles the time of tracing
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
    """Newton's step uphill, with the curvature taken as downward in every direction."""
    small = jnp.finfo(gradient.dtype).eps
    if gradient.shape == (1,):
        return gradient / jnp.maximum(jnp.abs(hessian[0]), small)
    curvature, axes = jnp.linalg.eigh(hessian)
    return axes @ ((axes.T @ gradient) / jnp.maximum(jnp.abs(curvature), small))


def _standard_errors(z: jax.Array, hessian: jax.Array, supports: list[tuple[float, float]]) -> jax.Array:
    """Of the parameters, per square root of the weight, by the delta method; inf where the Hessian is not negative."""
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
    """The parameter in a support that an unconstrained number stands for.

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
    """The inverse of `constrain`; ±_FAR-like large numbers at the ends."""
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
    """The least z and the largest: an end of the support; without one, dependence as strong as rounding shows."""
    low, high = np.isfinite(support)
    return -_FAR if low or high else -FARTHEST, _FAR if low and high else FARTHEST
