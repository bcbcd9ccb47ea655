"""The Gumbel copula: upper tail dependence, the paper's choice for the confidences of two models."""

from typing import Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from rcjax._core.numerics import softplus
from rcjax.copulas.base import ClosedForm, TailDependence, param
from rcjax.copulas.rotation import Rotation
from rcjax.copulas.unit import Unit, from_log

_NEWTON_STEPS = 12


class Gumbel(ClosedForm):
    """C(u, v) = exp(−((−log u)^θ + (−log v)^θ)^{1/θ}), θ ≥ 1; θ = 1 is independence.

    Formulas are in log-space, with x = −log u, y = −log v and w = (x^θ + y^θ)^{1/θ}: θ = 50 near (1, 1) neither
    overflows nor loses digits. Nelsen (2006), An Introduction to Copulas, family 4.2.4.

    >>> float(Gumbel(2.0).tau())
    0.5
    """

    theta: jax.Array | float = param(2.0, support=(1.0, float("inf")))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """C = e^{−w}, and S = (1 − u)(1 − v) + u v (e^{x + y − w} − 1)."""
        less, more, _, d = self._by_size(u, v)
        growth = jnp.expm1(d)
        above = u.complement * v.complement + u.value * v.value * jnp.expm1(less - more * growth)
        return jnp.exp(-more * (1 + growth)), above

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """log h = −x expm1(d) − (θ − 1) d with d = log(1 + (y/x)^θ)/θ."""
        x, y = -u.log, -v.log
        d = _growth(self.theta, x, y)
        return from_log(-x * jnp.expm1(d) - (self.theta - 1) * d)

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c = x + y − w − (θ − 1)(d + d′) + log(w + θ − 1) − log w, with d′ the d of (y, x).

        The smaller of d and d′ is log(w/max(x, y)), and the other is larger by |log(y/x)|.
        """
        less, more, apart, d = self._by_size(u, v)
        growth = jnp.expm1(d)
        slope = less - more * growth - (self.theta - 1) * (apart + 2 * d)
        return slope + jnp.log(more * (1 + growth) + (self.theta - 1)) - (jnp.log(more) + d)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """Solve x expm1(d) + (θ − 1) d + log p = 0, convex in d, by Newton's method."""
        x, log_p = -u.log, p.log
        # The root lies below the intercept of either term alone. From there convexity makes Newton's method converge.
        # Gradients come from the steps, not from the start, which has none at θ = 1.
        theta = self.theta
        d = jnp.minimum(jnp.log1p(-log_p / x), -log_p / jnp.maximum(theta - 1, jnp.finfo(x.dtype).tiny))
        d = lax.stop_gradient(d)

        def step(_, d: jax.Array) -> jax.Array:
            value = x * jnp.expm1(d) + (theta - 1) * d + log_p
            return jnp.maximum(d - value / (x * jnp.exp(d) + (theta - 1)), 0.0)

        # A loop, because unrolled steps compile for longer, and XLA repeats them for every use of the result.
        d = lax.fori_loop(0, _NEWTON_STEPS, step, d)
        scaled = theta * d
        log_ratio = scaled + jnp.log(-jnp.expm1(-jnp.maximum(scaled, jnp.finfo(d.dtype).tiny)))
        return from_log(-x * jnp.exp(log_ratio / theta))

    def _by_size(self, u: Unit, v: Unit) -> tuple[jax.Array, ...]:
        """(the smaller of x and y, the larger one, |log(y/x)|, log(w/the larger one))."""
        x, y = -u.log, -v.log
        log_x, log_y = jnp.log(x), jnp.log(y)
        # One comparison orders all three: x and y may differ by a rounding that their logarithms do not show, and
        # separate minima would mix slopes of both sides.
        swap = x > y
        less, more = jnp.where(swap, y, x), jnp.where(swap, x, y)
        apart = jnp.where(swap, log_x - log_y, log_y - log_x)
        return less, more, apart, softplus(-self.theta * apart) / self.theta

    def tail_dependence(self) -> TailDependence:
        """λ_L = 0 and λ_U = 2 − 2^(1/θ)."""
        upper = 2 - 2 ** (1 / jnp.asarray(self.theta))
        return TailDependence(jnp.zeros_like(upper), upper)

    def tau(self) -> jax.Array:
        """Kendall's τ = 1 − 1/θ."""
        return 1 - 1 / jnp.asarray(self.theta)

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """θ = 1/(1 − τ), held between 1 (τ ≤ 0: independence) and 50 (section 4.2 of the paper)."""
        return cls(1 / (1 - jnp.maximum(cls._within_reach(tau), 0.0)))


class SurvivalGumbel(Rotation, of=Gumbel, degrees=180):
    """The law of (1 − U, 1 − V) for a Gumbel (U, V): lower tail dependence."""

    theta: jax.Array | float = param(2.0, support=(1.0, float("inf")))


def _growth(theta: jax.Array | float, x: jax.Array, y: jax.Array) -> jax.Array:
    """log(1 + (y/x)^θ)/θ = log(w/x)."""
    return softplus(theta * (jnp.log(y) - jnp.log(x))) / theta
