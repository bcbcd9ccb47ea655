"""Prices: λ, errors per unit of money, its range and its scale; and what a refusal costs, in errors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._base.arguments import what_it_is


def lam_range(cost: np.ndarray, size: int) -> np.ndarray:
    """(size,) λ on a geometric grid, from where the costs (k,) hardly count to where only the cheapest model does."""
    spent = np.sort(cost)
    gaps = np.diff(spent)[np.diff(spent) > 1e-9 * spent[-1]]
    unit = min([*gaps, *spent[spent > 0][:1]], default=1.0)
    return np.geomspace(1e-4 / max(spent.sum(), unit), 1.0 / unit, size)


def check_lam(lam: Any) -> np.ndarray:
    """The distinct λ in rising order; ValueError where there is none, or one that is not finite or below 0."""
    try:
        prices = np.unique(np.atleast_1d(np.asarray(lam, float)))
    except (TypeError, ValueError):
        raise TypeError(f"lam must be a number or a list of numbers, not {what_it_is(lam)}") from None
    if not prices.size or not np.isfinite(prices).all() or prices[0] < 0:
        raise ValueError("lam must hold at least one finite number, none below 0")
    return prices


def log_lam(lam: Any) -> np.ndarray:
    """log λ, on which scale prices are near or far; finite for λ = 0."""
    return np.log(np.maximum(np.asarray(lam, float), np.finfo(float).tiny))


def check_abstain_price(price: Any) -> float | None:
    """The price as a number of errors, None where it is infinite; ValueError for one below 0."""
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
