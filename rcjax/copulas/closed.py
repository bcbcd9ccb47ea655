"""Families in closed form: written once in u and 1 − u, so that no corner and no rotation loses digits."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rcjax.copulas.base import Copula, outside
from rcjax.copulas.unit import Unit, unit, with_flips


class ClosedForm(Copula):
    """A copula whose closed forms take each probability with its complement.

    A family gives `two_sided_cdf`, `two_sided_conditional`, `two_sided_log_density` and `two_sided_inverse`; it is
    taken to be exchangeable, C(u, v) = C(v, u), unless it gives `two_sided_conditional_on_v`. All five may be called
    for the same point: what is not used costs nothing once compiled.
    """

    exchangeable: ClassVar[bool] = True

    def cdf(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """C(u, v) = P(U ≤ u, V ≤ v)."""
        below = self.lower_cdf(unit(u), unit(v))
        return jnp.where(_below_0(u) | _below_0(v), 0.0, below)

    def conditional(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """h(v given u) = ∂C/∂u = P(V ≤ v | U = u)."""
        return jnp.where(_below_0(v), 0.0, self.two_sided_conditional(unit(u), unit(v)).value)

    def conditional_on_v(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """∂C/∂v = P(U ≤ u | V = v)."""
        return jnp.where(_below_0(u), 0.0, self.two_sided_conditional_on_v(unit(u), unit(v)).value)

    def log_density(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """log c(u, v) = log ∂²C/∂u∂v; −∞ outside the unit square."""
        inside = self.two_sided_log_density(unit(u), unit(v))
        return jnp.where(outside(u, v), -jnp.inf, inside)

    def inverse_conditional(self, u: ArrayLike, p: ArrayLike) -> jax.Array:
        """The v with h(v given u) = p."""
        return self.two_sided_inverse(unit(u), unit(p)).value

    def lower_cdf(self, u: Unit, v: Unit) -> jax.Array:
        """C(u, v) alone."""
        return self.two_sided_cdf(u, v)[0]

    def two_sided_conditional_on_v(self, u: Unit, v: Unit) -> Unit:
        """∂C/∂v and its complement."""
        return self.two_sided_conditional(v, u)


class RadialForm(ClosedForm):
    """Base class of families that are their own survival copulas; a subclass defines `lower_cdf` in place of both."""

    def lower_cdf(self, u: Unit, v: Unit) -> jax.Array:
        """C(u, v) alone."""
        raise NotImplementedError

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """C(u, v), and S(u, v) = C(1 − u, 1 − v)."""
        below, above = self.lower_cdf(*with_flips(u, v, *jax.tree.leaves(self)))
        return below, above


def _below_0(u: ArrayLike) -> jax.Array:
    return jnp.asarray(u) < 0  # above 1, `unit` has it at 1 already
