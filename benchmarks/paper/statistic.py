"""The statistic of table 4 of the paper."""

import jax
import jax.numpy as jnp

from rcjax.copulas import Copula
from rcjax.goodness_of_fit.copula_fit import empirical_copula


def paper_statistic(
    copula: Copula, x: jax.Array, y: jax.Array, key: jax.Array, present: jax.Array | None = None
) -> jax.Array:
    """√n · mean_i (C_n(Û_i, V̂_i) − C(Û_i, V̂_i))², as in table 4 of the paper, with ties broken at random.

    Args:
        copula: C, fitted beforehand, by Kendall's τ in the paper.
        x, y: (n,) the confidences of the two models.
        key: of JAX, for the ties.
        present: (n,) whether both answered the query; by default all of them.

    >>> from rcjax.copulas import Gumbel
    >>> u, v = Gumbel(2.0).sample(jax.random.key(0), (500,))
    >>> bool(paper_statistic(Gumbel(2.0), u, v, jax.random.key(1)) < 0.005)
    True
    """
    present = jnp.ones(x.shape, bool) if present is None else present
    n = present.sum()
    at_random = jax.random.uniform(key, (*x.shape, 2)).T
    x, y = (jnp.argsort(jnp.lexsort((tie, values, ~present))) for tie, values in zip(at_random, (x, y), strict=True))
    empirical = empirical_copula(x, y, present)
    u, v = (jnp.minimum((rank + 1) / (n + 1), 1.0) for rank in (x, y))
    return jnp.where(present, (empirical - copula.cdf(u, v)) ** 2, 0.0).sum() / jnp.sqrt(n)
