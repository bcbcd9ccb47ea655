"""Maximum likelihood fit of a copula family to a pair of margins, batched over pairs and replicates."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp

from rcjax._core.batching import part
from rcjax.copulas import Copula
from rcjax.model.ascent import FitStatus, climb
from rcjax.model.pair_likelihood import Ranks, sum_of


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CopulaFit:
    """A copula fitted to a pair by maximum likelihood; leading axes batch it."""

    copula: Copula
    standard_errors: dict[str, jax.Array]  # by parameter, from the Hessian; inf if there is none
    log_likelihood: jax.Array  # () log-likelihood of the weighted observations, without their margins
    status: jax.Array  # () a `FitStatus`


def count_parameters(family: type[Copula]) -> int:
    """Number of fitted parameters, for information criteria; parameters profiled over a grid count."""
    return len(family.free) + len(family.grids)


def fit_pair(
    family: type[Copula], first: Ranks, second: Ranks, weights: jax.Array, tau: jax.Array | float = 0.3
) -> CopulaFit:
    """Fit a family to a pair of margins by maximum likelihood; `vmap` it over pairs and replicates.

    A parameter with a grid is profiled: each value is fitted, and the most likely one kept.

    Args:
        family: family of copulas.
        first, second: ranks of the same n observations under their two margins.
        weights: (n,) weight of each observation; 0: absent.
        tau: () Kendall's τ at which the fit starts.

    >>> from rcjax.copulas import Clayton
    >>> u, v = Clayton(2.0).sample(jax.random.key(0), (1000,))
    >>> first, second = Ranks(u), Ranks(v)
    >>> fitted = fit_pair(Clayton, first, second, jnp.ones(1000))
    >>> abs(float(fitted.copula.theta) - 2.0) < 3 * float(fitted.standard_errors["theta"]), int(fitted.status)
    (True, 0)
    """
    total = jnp.maximum(jnp.sum(weights), 1.0)
    start = family.from_tau(jnp.asarray(tau, first.u.dtype))

    def climb_at(fixed: dict[str, Any]) -> CopulaFit:
        held = dataclasses.replace(start, **fixed)  # pyright: ignore[reportArgumentType]
        likelihood = sum_of(held, first, second, weights)
        found = climb(family, lambda copula: likelihood(copula) / total, held)
        return CopulaFit(found.member, found.standard_errors, found.mean, found.status)

    grid = list(itertools.product(*family.grids.values()))
    columns = dict(zip(family.grids, jnp.asarray(grid, first.u.dtype).T, strict=True))
    climbed = jax.vmap(climb_at)(columns) if columns else climb_at({})
    if columns:
        best = jnp.argmax(jnp.where(climbed.status == FitStatus.FAILED, -jnp.inf, climbed.log_likelihood))
        climbed = part(climbed, best)
    errors = {name: error / jnp.sqrt(total) for name, error in climbed.standard_errors.items()}
    return dataclasses.replace(climbed, standard_errors=errors, log_likelihood=climbed.log_likelihood * total)
