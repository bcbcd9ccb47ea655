"""Copulas and models as distributions of other libraries: a module for each, and the chain of two that they share.

Takes a `Copula` with marginals, or a `CascadeModel`; gives distributions of NumPyro or of TensorFlow Probability on
JAX. Neither is imported before its module is."""

from typing import Any

import jax
import jax.numpy as jnp

from rcjax._base.checks import instance, what_it_is
from rcjax.copulas import Copula
from rcjax.model import chain
from rcjax.model.marginals import Marginal


class Uniform:
    """The margin of a bare copula, with the methods that margins of other libraries have."""

    batch_shape: tuple[int, ...] = ()
    event_shape: tuple[int, ...] = ()

    def cdf(self, value: jax.Array) -> jax.Array:
        """The value itself, held within [0, 1]."""
        return jnp.clip(value, 0.0, 1.0)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """0 within [0, 1], else −∞."""
        return jnp.where((value < 0) | (value > 1), -jnp.inf, 0.0 * value)

    def quantile(self, level: jax.Array) -> jax.Array:
        """The level itself."""
        return level


def check_pair(copula: Copula, marginals: tuple[Any, Any] | None) -> None:
    """TypeError for what is no copula, or no two distributions or `Marginal`s; ValueError for one of vectors."""
    instance(copula, Copula, "copula")
    if marginals is not None and (not isinstance(marginals, tuple | list) or len(marginals) != 2):
        raise TypeError(f"marginals must be a pair of distributions or None, not {what_it_is(marginals)}")
    for margin in marginals or ():
        if isinstance(margin, Marginal):
            continue
        if not all(hasattr(margin, name) for name in ("cdf", "log_prob", "batch_shape", "event_shape")):
            raise TypeError(f"a marginal must be a distribution or a rcjax Marginal, not {what_it_is(margin)}")
        if tuple(margin.event_shape):
            raise ValueError(f"a marginal has event shape {tuple(margin.event_shape)}; it must be of single numbers")


def pair(copula: Copula, marginals: tuple[Any, Any] | None) -> chain.Chain:
    """A copula and two margins, of another library or `Marginal`s, as a chain; None: uniform. Raises as `check_pair`.

    >>> from rcjax.copulas import Gumbel
    >>> round(float(chain.log_prob(pair(Gumbel(1.0), None), jnp.array([0.2, 0.7]))), 4)
    0.0
    """
    check_pair(copula, marginals)
    margins = (Uniform(), Uniform()) if marginals is None else marginals
    joined = jax.tree.map(lambda leaf: jnp.asarray(leaf)[..., None], copula)
    return chain.Chain(joined, tuple(_one_margin(margin) for margin in margins))


def _one_margin(margin: Any) -> Any:
    if isinstance(margin, Marginal):
        return chain.map_marginal(lambda leaf, core: jnp.expand_dims(leaf, jnp.ndim(leaf) - core), margin)
    return margin
