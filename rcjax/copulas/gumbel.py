"""The Gumbel copula: upper tail dependence, the paper's choice for the confidences of two models."""

from typing import Self

import jax
import jax.numpy as jnp

from rcjax._numerics import open_unit
from rcjax.copulas.base import Copula, param


class Gumbel(Copula):
    """C(u, v) = exp(−((−log u)^θ + (−log v)^θ)^{1/θ}), θ ≥ 1; θ = 1 is independence.

    Everything in log-space, with x = −log u and y = −log v, so that θ = 50 near (1, 1) neither overflows nor loses
    digits. Nelsen (2006), An Introduction to Copulas, family 4.2.4.

    >>> float(Gumbel(2.0).tau())
    0.5
    """

    theta: jax.Array = param(2.0, support=(1.0, float("inf")))

    #: τ-inversion stops here (τ = 0.98): beyond it two models' confidences are the same to the resolution of a log.
    MAX_THETA = 50.0

    def cdf(self, u: jax.Array, v: jax.Array) -> jax.Array:
        """C(u, v)."""
        x, y = _surprise(u), _surprise(v)
        return jnp.exp(-jnp.exp(jnp.logaddexp(self.theta * jnp.log(x), self.theta * jnp.log(y)) / self.theta))

    def conditional(self, u: jax.Array, v: jax.Array) -> jax.Array:
        """h(v given u) = exp(−x·expm1(d) − (θ − 1)d) with d = log(1 + (y/x)^θ)/θ."""
        x, y = _surprise(u), _surprise(v)
        d = jax.nn.softplus(self.theta * (jnp.log(y) - jnp.log(x))) / self.theta
        return jnp.exp(-x * jnp.expm1(d) - (self.theta - 1) * d)

    def log_density(self, u: jax.Array, v: jax.Array) -> jax.Array:
        """log c(u, v)."""
        x, y = _surprise(u), _surprise(v)
        ratio = self.theta * (jnp.log(y) - jnp.log(x))
        d, other = jax.nn.softplus(ratio) / self.theta, jax.nn.softplus(-ratio) / self.theta
        w = jnp.exp(jnp.logaddexp(self.theta * jnp.log(x), self.theta * jnp.log(y)) / self.theta)
        corner = jnp.minimum(x, y) - jnp.maximum(x, y) * jnp.expm1(jnp.minimum(d, other))
        return corner - (self.theta - 1) * (d + other) + jnp.log(w + self.theta - 1) - jnp.log(w)

    def inverse_conditional(self, u: jax.Array, p: jax.Array) -> jax.Array:
        """The v with h(v given u) = p: Newton on x·expm1(d) + (θ − 1)d + log p, which is convex in d."""
        x, log_p = _surprise(u), jnp.log(open_unit(p))
        # The root lies below the intercept of either term alone: start there, and convexity keeps Newton on course.
        d = jnp.minimum(jnp.log1p(-log_p / x), -log_p / jnp.maximum(self.theta - 1, jnp.finfo(x.dtype).tiny))
        for _ in range(12):
            value = x * jnp.expm1(d) + (self.theta - 1) * d + log_p
            d = jnp.maximum(d - value / (x * jnp.exp(d) + self.theta - 1), 0.0)
        scaled = self.theta * d
        log_ratio = scaled + jnp.log(-jnp.expm1(-jnp.maximum(scaled, jnp.finfo(d.dtype).tiny)))
        return jnp.exp(-x * jnp.exp(log_ratio / self.theta))

    def tau(self) -> jax.Array:
        """Kendall's τ = 1 − 1/θ."""
        return 1 - 1 / jnp.asarray(self.theta)

    @classmethod
    def from_tau(cls, tau: jax.Array) -> Self:
        """θ = 1/(1 − τ), held between 1 (τ ≤ 0: independence) and 50 (section 4.2 of the paper)."""
        return cls(1 / (1 - jnp.clip(tau, 0.0, 1 - 1 / cls.MAX_THETA)))

    def tail_dependence(self) -> tuple[jax.Array, jax.Array]:
        """(lower, upper) tail dependence: 0 and 2 − 2^{1/θ}."""
        theta = jnp.asarray(self.theta)
        return jnp.zeros_like(theta), 2 - 2 ** (1 / theta)


def _surprise(u):
    """−log u, kept off 0 and ∞."""
    return -jnp.log(open_unit(u))
