"""Comparison of copula families fitted to the same pairs of observations."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from rcjax._core.compilation import compiled
from rcjax._core.numerics import kendall_tau
from rcjax.copulas import Copula, TailDependence
from rcjax.copulas.families import FAMILIES, as_family
from rcjax.model.goodness_of_fit.copula_fit import copula_test
from rcjax.model.likelihood import Ranks
from rcjax.model.maximum_likelihood import CopulaFit, FitStatus, count_parameters, fit_pair


@dataclasses.dataclass(frozen=True)
class CopulaResult:
    """The maximum likelihood fit of one family to n pairs of observations."""

    family: str
    """Name of the family."""
    copula: Copula
    """Fitted copula."""
    parameters: dict[str, float]
    """Estimates by name."""
    standard_errors: dict[str, float]
    """Standard errors by name, from the Hessian; infinite if there is none, as at an end of a support."""
    log_likelihood: float
    """Log-likelihood of the ranks; NaN if the fit failed."""
    aic: float
    """2 × parameters − 2 log L."""
    bic: float
    """log(n) × parameters − 2 log L."""
    status: str
    """Status of the fit: "converged", or the reason for failure."""
    tau: float
    """Kendall's τ of the fitted copula."""
    spearman: float
    """Spearman's ρ of the fitted copula."""
    tail_dependence: TailDependence
    """(λ_L, λ_U) of the fitted copula."""
    p_value: float | None
    """p-value of S_n (`copula_test`), small if the family does not describe the pairs; None without replicates."""


def compare_copulas(
    x: ArrayLike,
    y: ArrayLike,
    families: str | Sequence[str | type[Copula]] = "auto",
    *,
    replicates: int = 0,
    seed: int = 0,
) -> tuple[CopulaResult, ...]:
    """Fit copula families to pairs of observations by likelihood; the least AIC comes first, failed fits last.

    Observations enter by their ranks over n + 1, ties by their mean rank. If many tie, as confidences do at 0 and 1,
    `rcjax.fit` has an exact likelihood.

    Args:
        x, y: (n,) observations of the two variables, on any scale, n at least 10.
        families: "auto" for all of rcjax, or names and classes.
        replicates: bootstrap replicates of S_n for every family; 0: no test of fit.
        seed: seed of the replicates.

    Raises ValueError for other shapes, NaN, and unknown families.

    >>> from rcjax.copulas import Clayton
    >>> u, v = Clayton(2.0).sample(jax.random.key(0), (500,))
    >>> best, *others = compare_copulas(u, v, ["clayton", "gumbel"])
    >>> best.family, best.status, abs(best.parameters["theta"] - 2) < 3 * best.standard_errors["theta"]
    ('Clayton', 'converged', True)
    """
    columns = [np.asarray(values, float) for values in (x, y)]
    if columns[0].ndim != 1 or columns[0].shape != columns[1].shape or len(columns[0]) < 10:
        raise ValueError(f"x and y have shapes {columns[0].shape} and {columns[1].shape}; both must be (n,), n ≥ 10")
    for name, values in zip("xy", columns, strict=True):
        if not np.isfinite(values).all():
            raise ValueError(f"{name}[{np.flatnonzero(~np.isfinite(values))[0]}] is no finite number")
    tried = FAMILIES if families == "auto" else (families,) if isinstance(families, str) else tuple(families)
    ranks = [jnp.asarray(_mean_ranks(values), jnp.result_type(float)) for values in columns]
    results = [_result(as_family(family), ranks, replicates, seed) for family in tried]
    return tuple(sorted(results, key=lambda result: np.inf if np.isnan(result.aic) else result.aic))


def _mean_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks over n + 1, ties at their mean rank; (n,)."""
    ordered = np.sort(values)
    below, through = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return (below + through + 1) / 2 / (len(values) + 1)


def _result(family: type[Copula], ranks: list[jax.Array], replicates: int, seed: int) -> CopulaResult:
    fit, measures = jax.device_get(_fit(*ranks, family=family))
    names, count, n = (*family.free, *family.grids), count_parameters(family), len(ranks[0])
    value = np.nan if fit.status == FitStatus.FAILED else float(fit.log_likelihood)
    p_value = None
    if replicates:
        u, v = ranks
        test = copula_test(family, u, v, np.ones(n, bool), jax.random.key(seed), replicates)
        p_value = float(test.process_p)
    tau, spearman, tails = measures
    return CopulaResult(
        family=family.__name__,
        copula=fit.copula,
        parameters={name: float(getattr(fit.copula, name)) for name in names},
        standard_errors={name: float(fit.standard_errors[name]) for name in names},
        log_likelihood=value,
        aic=2 * count - 2 * value,
        bic=float(np.log(n)) * count - 2 * value,
        status=FitStatus(int(fit.status)).message,
        tau=float(tau),
        spearman=float(spearman),
        tail_dependence=TailDependence(*map(float, tails)),  # pyright: ignore[reportArgumentType]
        p_value=p_value,
    )


@partial(compiled, static_argnames="family")
def _fit(u: jax.Array, v: jax.Array, family: type[Copula]) -> tuple[CopulaFit, Any]:
    """(the fit, (τ, Spearman's ρ, tail dependence) of the fitted copula)."""
    tau = kendall_tau(u, v, jnp.ones(u.shape, bool))
    fit = fit_pair(family, Ranks(u), Ranks(v), jnp.ones_like(u), tau)
    return fit, (fit.copula.tau(), fit.copula.spearman(), fit.copula.tail_dependence())
