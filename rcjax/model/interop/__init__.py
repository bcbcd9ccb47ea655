"""Copulas and models as distributions of other libraries: a module for each library, and the `Pair` that both use.

Takes a `Copula` with two distributions, or a `CascadeModel`; gives distributions of NumPyro or of TensorFlow
Probability on JAX. Importing this package imports neither library."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.codec import describe_type, require_instance
from rcjax._core.numerics import open_unit
from rcjax.copulas import Copula


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Uniform:
    """The uniform margin of a bare copula, with the methods of other libraries' distributions."""

    batch_shape = ()

    def cdf(self, value: jax.Array) -> jax.Array:
        """Return the value, clipped to [0, 1]."""
        return jnp.clip(value, 0.0, 1.0)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the log density: 0 within [0, 1], else −∞."""
        return jnp.where((value < 0) | (value > 1), -jnp.inf, 0.0 * value)

    def quantile(self, level: jax.Array) -> jax.Array:
        """Return the level."""
        return level


class Pair(NamedTuple):
    """Two margins joined by a copula; array-valued parameters are a batch."""

    copula: Copula
    margins: tuple[Any, Any]
    size = 2

    @classmethod
    def join(cls, copula: Copula, marginals: tuple[Any, Any] | None) -> "Pair":
        """Join two distributions of another library by a copula; None: uniform margins.

        Raises TypeError for other objects, and for distributions of vectors.

        >>> from rcjax.copulas import Gumbel
        >>> round(float(Pair.join(Gumbel(1.0), None).log_prob(jnp.array([0.2, 0.7]))), 4)
        0.0
        """
        require_instance(copula, Copula, "copula")
        if marginals is None:
            return cls(copula, (Uniform(), Uniform()))
        first, second = marginals
        for margin in (first, second):
            if not hasattr(margin, "log_prob") or tuple(margin.event_shape):
                raise TypeError(f"a marginal must be a distribution of single numbers, not {describe_type(margin)}")
        return cls(copula, (first, second))

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape to which copula and margins broadcast."""
        shapes = map(jnp.shape, jax.tree.leaves(self.copula))
        return np.broadcast_shapes(*shapes, *(tuple(margin.batch_shape) for margin in self.margins))

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return log f(x) + log g(y) + log c(F(x), G(y)) of values (…, 2), broadcast against the batch.

        Ranks are clipped to the open unit interval: in float64, a normal margin is clipped 8 standard deviations out.
        """
        columns = jnp.moveaxis(jnp.asarray(value, jnp.result_type(float)), -1, 0)
        rows = list(zip(self.margins, columns, strict=True))
        u, v = (open_unit(margin.cdf(column)) for margin, column in rows)
        return _log_density_compiled(self.copula, u, v) + sum(margin.log_prob(column) for margin, column in rows)

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw pairs by inverting the conditional (Rosenblatt 1952): (*shape, *batch, 2)."""
        u, p = open_unit(jax.random.uniform(key, (2, *shape, *self.batch_shape)))
        ranks = u, _inverse_conditional_compiled(self.copula, u, p)
        # TensorFlow Probability says `quantile`, NumPyro `icdf`.
        quantiles = (getattr(margin, "quantile", None) or margin.icdf for margin in self.margins)
        return jnp.stack([quantile(rank) for quantile, rank in zip(quantiles, ranks, strict=True)], -1)


# Jitted, so that derivatives and root searches are traced once.
_log_density_compiled = jax.jit(lambda copula, u, v: copula.log_density(u, v))
_inverse_conditional_compiled = jax.jit(lambda copula, u, p: copula.inverse_conditional(u, p))
