"""What it is worth to refuse an answer, where models may."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def check_abstain_price(price: Any) -> float | None:
    """The price as a number of errors, None if it is infinite; ValueError for one below 0."""
    if price is None:
        return None
    if not price >= 0:  # so written, NaN is refused too
        raise ValueError(f"abstain_price is {price}; it is what a refusal costs in errors, such as 0.3, at least 0")
    return float(price) if price < np.inf else None


def refusal_at(price: float | None, dtype: Any) -> jax.Array | None:
    """() what a refusal is worth, in right answers: 1 less its price in errors.

    None if nobody refuses, as a wrong answer is no more expensive.
    """
    return None if price is None or price >= 1 else jnp.asarray(1 - price, dtype)
