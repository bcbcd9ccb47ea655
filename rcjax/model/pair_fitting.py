"""A copula fitted to pairs (u, v) by the estimators of `rcjax.fit`: a pure function of pairs and weights."""

import dataclasses
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.compilation import is_traced
from rcjax._core.kendall import kendall_tau
from rcjax._core.numerics import divide, open_unit
from rcjax.copulas import Copula
from rcjax.copulas.families import as_family
from rcjax.model.copula_fitting import FitStatus, constrain, fit_pair, unconstrain
from rcjax.model.pair_likelihood import Ranks, sum_of
from rcjax.model.weighted import stationary, weighted_taus


def fit_copula(
    u: jax.Array,
    v: jax.Array,
    family: str | type[Copula],
    weights: jax.Array | None = None,
    *,
    method: Literal["tau", "likelihood"] = "tau",
) -> Copula:
    """The member of a family of copulas that fits pairs (u, v), by the estimators of `rcjax.fit`.

    Pure: under `jit` (family and method static) and `vmap`, and differentiable by the weights, where they are given,
    and by "likelihood" by u and v too. There the implicit function theorem is used, and a parameter that ends at an
    end of its support has slope 0, as one that is profiled over a grid (Student's df).

    Args:
        u, v: (n,) of the same n ≥ 2 observations. "tau" goes by their order alone, so they may be on any scale;
            "likelihood" takes ranks in [0, 1] under smooth margins, of which a lone 0 counts as 1/2n and a lone 1 as
            1 − 1/2n: an observation there would have no likelihood, or one that outweighs all others.
        family: its name or class.
        weights: (n,) how much each observation counts, at least 0: 2 is twice, 0 as if it were not there. None: all
            the same. With weights "tau" takes time O(n²), without them O(n log n).
        method: "tau" inverts Kendall's τ-b, which ties bias where they are many; "likelihood" climbs from there.

    Raises ValueError for other shapes, for a family or method that does not exist, and where values are at hand (not
    while jax traces) for one that is no number, by "likelihood" for u or v outside [0, 1] or several at 0 or at 1,
    which are a point mass, and for a weight below 0.

    >>> import rcjax
    >>> u, v = rcjax.copulas.Frank(5.0).sample(jax.random.key(0), (1000,))
    >>> [abs(float(fit_copula(u, v, "frank", method=how).theta) - 5) < 1 for how in ("tau", "likelihood")]
    [True, True]
    """
    if method not in ("tau", "likelihood"):
        raise ValueError(f"method is {method!r}; it is 'tau' or 'likelihood'")
    dtype = jnp.result_type(float)
    columns = {"u": u, "v": v} | ({} if weights is None else {"weights": weights})
    columns = {name: jnp.asarray(column, dtype) for name, column in columns.items()}
    _check(columns, method)
    return _fit(**columns, family=as_family(family), method=method)


def _check(columns: dict[str, jax.Array], method: str) -> None:
    """ValueError that names the argument, and the place of the first value that is wrong."""
    for name, column in columns.items():
        if column.ndim != 1 or column.shape != columns["u"].shape:
            raise ValueError(
                f"{name} has shape {column.shape}; it must be (n,), as u has {columns['u'].shape}: jax.vmap for more"
            )
        if len(column) < 2:
            raise ValueError(f"{name} has {len(column)} values; dependence must be fitted to 2 or more")
        if is_traced([column]):
            continue
        values = np.asarray(column)
        low, high = (0.0, np.inf) if name == "weights" else (0.0, 1.0) if method == "likelihood" else (-np.inf, np.inf)
        wrong = ~(np.isfinite(values) & (values >= low) & (values <= high))
        if wrong.any():
            row = int(np.argmax(wrong))
            interval = "at least 0" if name == "weights" else "in [0, 1]" if method == "likelihood" else "a number"
            raise ValueError(f"{name}[{row}] is {values[row]:g}; it must be {interval}")
        if method == "likelihood" and name != "weights":
            _refuse_mass(name, values)
        if name == "weights" and (values > 0).sum() < 2:
            raise ValueError("weights must be above 0 for 2 observations or more")


def _refuse_mass(name: str, ranks: np.ndarray) -> None:
    """ValueError where several ranks (n,) are 0, or are 1: margins that are not smooth."""
    for end in (0, 1):
        count = int((ranks == end).sum())
        if count > 1:
            raise ValueError(
                f"{name} is {end} in {count:,} of {len(ranks):,} observations, a point mass: "
                "rcjax.fit has a likelihood for masses, and fit_copula by 'tau' takes ties"
            )


def _off_the_ends(ranks: jax.Array) -> jax.Array:
    """The ranks (n,), 0 and 1 moved inwards by half of what one observation takes of the scale."""
    half = 0.5 / len(ranks)
    return open_unit(jnp.where(ranks <= 0, half, jnp.where(ranks >= 1, 1 - half, ranks)))


@partial(jax.jit, static_argnames=("family", "method"))
def _fit(u: jax.Array, v: jax.Array, weights: jax.Array | None = None, *, family: type[Copula], method: str) -> Copula:
    if weights is None:
        weights = jnp.ones_like(u)
        tau = kendall_tau(u, v, jnp.ones(u.shape, bool))
    else:
        tau = weighted_taus(jnp.stack([u, v], 1), jnp.stack([weights, weights], 1))[0]
    if method == "tau":
        return family.from_tau(tau)
    return _likeliest(family, (_off_the_ends(u), _off_the_ends(v)), weights, tau)


def _likeliest(
    family: type[Copula], columns: tuple[jax.Array, jax.Array], weights: jax.Array, tau: jax.Array
) -> Copula:
    """`fit_pair` of smooth ranks (n,), with derivatives by them and by the weights."""
    weights = weights * divide(len(weights), weights.sum())  # tolerances are per observation

    def ranked(columns: tuple[jax.Array, jax.Array]) -> tuple[Ranks, Ranks]:
        first, second = (Ranks(u, jnp.zeros((), u.dtype), jnp.ones((), u.dtype), None) for u in columns)
        return first, second

    fitted = fit_pair(family, *ranked(lax.stop_gradient(columns)), lax.stop_gradient(weights), lax.stop_gradient(tau))
    copula: Any = fitted.copula
    names, supports = family.free, [family.supports[name] for name in family.free]
    if not names:
        return copula

    def member(z: jax.Array) -> Any:
        values = {name: constrain(z[i], support) for i, (name, support) in enumerate(zip(names, supports, strict=True))}
        return dataclasses.replace(copula, **values)

    def likelihood(z: jax.Array, columns: tuple[jax.Array, jax.Array], weights: jax.Array) -> jax.Array:
        return sum_of(copula, *ranked(columns), weights)(member(z)) / len(weights)

    start = jnp.stack(
        [unconstrain(getattr(copula, name), support) for name, support in zip(names, supports, strict=True)]
    )
    settled = member(stationary(likelihood, start, columns, weights))
    # At an end of its support a parameter stays there, whatever the weights.
    inside = fitted.status == FitStatus.CONVERGED
    return jax.tree.map(lambda best, at_end: jnp.where(inside, best, lax.stop_gradient(at_end)), settled, copula)
