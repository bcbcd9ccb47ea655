"""From a statistic and its replicates to a p-value."""

import jax
import jax.numpy as jnp


def p_value(statistic: jax.Array, replicates: jax.Array) -> jax.Array:
    """(exceedances + ½)/(B + 1) of a statistic () among B replicates; NaN where it, or each of them, is not finite.

    Replicates that are not finite do not count.

    >>> float(p_value(jnp.asarray(0.3), jnp.array([0.1, 0.2, 0.4])))
    0.375
    """
    valid = jnp.isfinite(replicates)
    exceeding = (valid & (replicates >= statistic)).sum()
    return jnp.where(jnp.isfinite(statistic) & valid.any(), (exceeding + 0.5) / (valid.sum() + 1), jnp.nan)
