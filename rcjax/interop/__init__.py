"""Copulas and models as distributions of other libraries: a module for each, and the pair of margins that they share.

Takes a `Copula` with two distributions, or a `CascadeModel`; gives distributions of NumPyro or of TensorFlow
Probability on JAX. Neither is imported before its module is."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.checks import instance, what_it_is
from rcjax._core.numerics import open_unit
from rcjax.copulas import Copula


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Uniform:
    """The margin of a bare copula, with the methods that distributions of other libraries have."""

    batch_shape = ()

    def cdf(self, value: jax.Array) -> jax.Array:
        """The value itself, held within [0, 1]."""
        return jnp.clip(value, 0.0, 1.0)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """0 within [0, 1], else −∞."""
        return jnp.where((value < 0) | (value > 1), -jnp.inf, 0.0 * value)

    def quantile(self, level: jax.Array) -> jax.Array:
        """The level itself."""
        return level


class Pair(NamedTuple):
    """Two margins joined by a copula; arrays of parameters are a batch."""

    copula: Copula
    margins: tuple[Any, Any]
    size = 2

    @classmethod
    def of(cls, copula: Copula, marginals: tuple[Any, Any] | None) -> "Pair":
        """Of a copula and two distributions of another library; None: uniform ones.

        Raises TypeError for what is none of these, or a distribution of vectors.

        >>> from rcjax.copulas import Gumbel
        >>> round(float(Pair.of(Gumbel(1.0), None).log_prob(jnp.array([0.2, 0.7]))), 4)
        0.0
        """
        instance(copula, Copula, "copula")
        if marginals is None:
            return cls(copula, (Uniform(), Uniform()))
        first, second = marginals
        for margin in (first, second):
            if not hasattr(margin, "log_prob") or tuple(margin.event_shape):
                raise TypeError(f"a marginal must be a distribution of single numbers, not {what_it_is(margin)}")
        return cls(copula, (first, second))

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """What copula and margins broadcast to."""
        shapes = map(jnp.shape, jax.tree.leaves(self.copula))
        return np.broadcast_shapes(*shapes, *(tuple(margin.batch_shape) for margin in self.margins))

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """log f(x) + log g(y) + log c(F(x), G(y)) of values (…, 2), broadcast against the batch.

        Ranks are kept off 0 and 1 by what the float type resolves: 8 standard deviations of a normal margin in float64.
        """
        columns = jnp.moveaxis(jnp.asarray(value, jnp.result_type(float)), -1, 0)
        rows = list(zip(self.margins, columns, strict=True))
        u, v = (open_unit(margin.cdf(column)) for margin, column in rows)
        return _log_density(self.copula, u, v) + sum(margin.log_prob(column) for margin, column in rows)

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Draws (*shape, *batch, 2), by inverting the conditional (Rosenblatt 1952)."""
        u, p = open_unit(jax.random.uniform(key, (2, *shape, *self.batch_shape)))
        ranks = u, _inverse_conditional(self.copula, u, p)
        # TensorFlow Probability's name, and NumPyro's.
        quantiles = (getattr(margin, "quantile", None) or margin.icdf for margin in self.margins)
        return jnp.stack([quantile(rank) for quantile, rank in zip(quantiles, ranks, strict=True)], -1)


# Jitted, so that a derivative or a search is not traced at each call.
_log_density = jax.jit(lambda copula, u, v: copula.log_density(u, v))
_inverse_conditional = jax.jit(lambda copula, u, p: copula.inverse_conditional(u, p))
