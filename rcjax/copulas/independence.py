"""The independence copula, the baseline that every family must beat."""

from typing import Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rcjax.copulas.base import ClosedForm, TailDependence, param
from rcjax.copulas.unit import Unit


class Independence(ClosedForm):
    """C(u, v) = u v, without a free parameter; the shape of `scale` is that of the batch of pairs.

    >>> float(Independence().cdf(0.5, 0.5))
    0.25
    """

    scale: jax.Array | float = param(1.0, support=(-float("inf"), float("inf")), free=False)

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """C = u v and S = (1 − u)(1 − v)."""
        u, _ = self._spread(u, v)
        return u.value * v.value, u.complement * v.complement

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """h(v given u) = v."""
        return self._spread(u, v)[1]

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c = 0."""
        return jnp.zeros_like(self._spread(u, v)[0].value)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """v = p."""
        return self.two_sided_conditional(u, p)

    def spearman(self) -> jax.Array:
        """Spearman's ρ = 0."""
        return self.tau()

    def tail_dependence(self) -> TailDependence:
        """λ_L = λ_U = 0."""
        return TailDependence(self.tau(), self.tau())

    def tau(self) -> jax.Array:
        """Kendall's τ = 0."""
        return jnp.zeros_like(jnp.asarray(self.scale))

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """Independence for every τ, in the shape of τ."""
        return cls(jnp.ones_like(jnp.asarray(tau, jnp.result_type(float))))

    def _spread(self, u: Unit, v: Unit) -> tuple[Unit, Unit]:
        """Broadcast u and v against each other and the batch."""
        shape = jnp.broadcast_shapes(*map(jnp.shape, (u.value, v.value, self.scale)))
        return jax.tree.map(lambda part: jnp.broadcast_to(part, shape), (u, v))
