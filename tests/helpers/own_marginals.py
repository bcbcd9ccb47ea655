"""Marginals of one's own, as users write them."""

# Parameters are annotated as arrays.
# pyright: reportArgumentType=false

import jax
import jax.numpy as jnp

from rcjax._core.numerics import betainc
from rcjax.model import Marginal, param


class Kumaraswamy(Marginal):
    """Kumaraswamy (1980): a cdf in closed form."""

    a: jax.Array = param(1.0, support=(0.05, jnp.inf))
    b: jax.Array = param(1.0, support=(0.05, jnp.inf))

    def smooth_cdf(self, x):
        return -jnp.expm1(self.b * jnp.log1p(-(x**self.a)))


class OneBeta(Marginal):
    """One beta, of which the mixture of two alike has closed forms."""

    a: jax.Array = param(1.0, support=(0.05, jnp.inf))
    b: jax.Array = param(1.0, support=(0.05, jnp.inf))

    def smooth_cdf(self, x):
        return betainc(self.a, self.b, x)


class LogitNormal(Marginal):
    """The log-odds are normal: no mean in closed form."""

    mean: jax.Array = param(0.0, support=(-6.0, 6.0))
    spread: jax.Array = param(1.0, support=(0.05, 10.0))

    def smooth_cdf(self, x):
        return jax.scipy.special.ndtr((jnp.log(x) - jnp.log1p(-x) - self.mean) / self.spread)
