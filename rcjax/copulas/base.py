"""The base class of bivariate copulas: a family is its cdf, everything else follows.

A family is a subclass with annotated parameters and `cdf(u, v)` in scalar mathematics. Subclassing makes it a frozen
dataclass and a pytree; conditionals and densities come from autodiff, their inverses and τ from root finding and
quadrature, batches from `jax.vmap`. Any derived method may be replaced by a closed form.
"""

import dataclasses
from typing import Any, ClassVar, Self, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._numerics import open_unit

_BISECTIONS = 60


def param(default: float, *, support: tuple[float, float]) -> Any:
    """A parameter of a copula family: its default and the closed interval it lives in."""
    low, high = support
    if not low <= default <= high:
        raise ValueError(f"default {default} lies outside the support {support}")
    return dataclasses.field(default=default, metadata={"support": (float(low), float(high))})


@dataclass_transform(frozen_default=True, field_specifiers=(param, dataclasses.field))
class Copula:
    """A bivariate copula C(u, v); its parameters are the fields of the dataclass.

    Methods are elementwise in u and v and take one copula; `jax.vmap` over a copula whose parameters have a leading
    axis evaluates many at once.

    >>> class FGM(Copula):
    ...     theta: float = param(0.5, support=(-1.0, 1.0))
    ...     def cdf(self, u, v):
    ...         return u * v * (1 + self.theta * (1 - u) * (1 - v))
    >>> round(float(FGM(0.9).tau()), 4)        # 2 θ / 9
    0.2
    """

    supports: ClassVar[dict[str, tuple[float, float]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True)(cls)
        fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        cls.supports = {f.name: f.metadata.get("support", (-np.inf, np.inf)) for f in fields}
        jax.tree_util.register_dataclass(cls, data_fields=[f.name for f in fields], meta_fields=[])

    def cdf(self, u: jax.Array, v: jax.Array) -> jax.Array:
        """C(u, v) = P(U ≤ u, V ≤ v)."""
        raise TypeError(f"{type(self).__name__} defines no cdf(self, u, v)")

    def conditional(self, u: jax.Array, v: jax.Array) -> jax.Array:
        """h(v given u) = ∂C/∂u = P(V ≤ v | U = u)."""
        return jnp.vectorize(jax.grad(self.cdf))(*_floats(u, v))

    def log_density(self, u: jax.Array, v: jax.Array) -> jax.Array:
        """log c(u, v) = log ∂²C/∂u∂v."""
        return jnp.log(jnp.vectorize(jax.grad(self.conditional, argnums=1))(*_floats(u, v)))

    def inverse_conditional(self, u: jax.Array, p: jax.Array) -> jax.Array:
        """The v with h(v given u) = p, by bisection."""
        u, p = jnp.broadcast_arrays(*_floats(u, p))

        def halve(_, bracket):
            low, high = bracket
            middle = (low + high) / 2
            above = self.conditional(u, middle) > p
            return jnp.where(above, low, middle), jnp.where(above, middle, high)

        low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, (jnp.zeros_like(p), jnp.ones_like(p)))
        return (low + high) / 2

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> tuple[jax.Array, jax.Array]:
        """Draws (u, v), each of the given shape, by inverting the conditional (Rosenblatt 1952)."""
        u, p = open_unit(jax.random.uniform(key, (2, *shape)))
        return u, self.inverse_conditional(u, p)

    def tau(self) -> jax.Array:
        """Kendall's τ = 1 − 4 ∫∫ ∂C/∂u ∂C/∂v du dv, by Gauss–Legendre quadrature."""
        nodes, weights = np.polynomial.legendre.leggauss(96)
        # t²(3 − 2t) crowds the nodes towards the corners, where the conditionals vary fastest.
        t = (nodes + 1) / 2
        node, weight = jnp.asarray(t * t * (3 - 2 * t)), jnp.asarray(weights / 2 * 6 * t * (1 - t))
        u, v = jnp.meshgrid(node, node, indexing="ij")
        by_v = jnp.vectorize(jax.grad(self.cdf, argnums=1))(u, v)
        return 1 - 4 * weight @ (self.conditional(u, v) * by_v) @ weight

    @classmethod
    def from_tau(cls, tau: jax.Array) -> Self:
        """The member of a one-parameter family whose Kendall's τ is nearest to `tau` (families override this)."""
        raise TypeError(f"{cls.__name__} defines no from_tau(tau)")


def _floats(*values):
    return tuple(jnp.asarray(value, dtype=jnp.result_type(float)) for value in values)
