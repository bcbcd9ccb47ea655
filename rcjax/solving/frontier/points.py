"""Points of a frontier as arrays: policies, their prices, their expected figures, and intervals around these."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.codec import what_it_is
from rcjax._core.pytrees import Array, Status, plain
from rcjax.solving.frontier.policies import Policies


class LossTerms(NamedTuple):
    """The terms of the loss of queries under a policy, or their means: numbers, or numpy or jax arrays of one shape.

    >>> LossTerms(wrong=0.1, cost=2.0, refused=0.5).loss(lam=0.01, abstain_price=0.3)
    0.27
    """

    wrong: Array
    """Wrong answer: 0 or 1, a score lost, or a probability."""
    cost: Array
    """Money per query; seconds where answers are charged seconds."""
    refused: Array
    """Refusal: 0 or 1, or a probability; 0 where models do not refuse."""

    def penalty(self, abstain_price: float | None) -> Any:
        """Return errors, with each refusal as `abstain_price` errors; None: models do not refuse."""
        return self.wrong if abstain_price is None else self.wrong + abstain_price * self.refused

    def loss(self, lam: Any, abstain_price: float | None = None) -> Any:
        """Return error + abstain_price·abstention + λ·cost."""
        return self.penalty(abstain_price) + lam * self.cost


class PointStatus(Status):
    """Result code of the search at a λ, in `Frontier.status` and in the points of a sweep."""

    CONVERGED = 0, "converged"
    AT_BOUND = 1, "converged, with a threshold at the end of a model's range (it always or never answers)"
    NOT_CONVERGED = (
        2,
        "the iterations ran out while the loss was still falling: the thresholds may be slightly off",
    )
    INTERPOLATED = 3, "thresholds between those of two neighbouring optima: a point that no λ leads to"
    NO_DATA = 4, "not solved: in this draw a model has no answer, or two models share no query"
    NOT_FINITE = 5, "failed: error or cost came out as no finite number"
    NO_LAMBDA = 6, "failed: λ is negative, or no finite number"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Points:
    """L points of a frontier, one for each λ; jax arrays within compiled functions, numpy arrays elsewhere."""

    lam: Array  # (L,) error probability per unit of money
    status: Array  # (L,) `PointStatus` of each point
    expected: LossTerms  # (L,) expected terms of the loss per query
    policies: Policies  # (L,) policies


_TAIL = 0.95 - 1e-9  # share of the queries, less the rounding of sums of weights


@partial(jax.tree_util.register_dataclass, data_fields=("mean", "p95"), meta_fields=())
@dataclasses.dataclass(frozen=True)
class Seconds:
    """Seconds per query, summed over the calls along its path, of a policy or of the L policies of a frontier.

    Only queries whose seconds are known along the whole path count; NaN without any. Numpy arrays.
    """

    mean: Array
    """(…) mean seconds per query."""
    p95: Array
    """(…) seconds within which 95 % of the queries are answered, an order statistic."""

    def to_json(self, at: Any = ...) -> dict[str, Any]:
        """Return the figures at an index of the arrays as JSON values; None for NaN.

        >>> Seconds(np.array([1.5, np.nan]), np.array([3.0, np.nan])).to_json()
        {'seconds': [1.5, None], 'seconds_p95': [3.0, None]}
        """
        figures = {"seconds": self.mean, "seconds_p95": self.p95}
        return plain({name: np.asarray(figure)[at] for name, figure in figures.items()})


def seconds_of(waits: ArrayLike, weights: ArrayLike) -> Seconds:
    """Return mean and 95 % quantile of the seconds of queries whose seconds are known under all policies.

    Both are NaN if there is no such query.

    Args:
        waits: (P, n) seconds of n queries under P policies; NaN if they are not known.
        weights: (P, n) share of a query that goes by each policy; 0 for a query that does not count.

    >>> seconds = seconds_of(jnp.array([[3.0, 1.0, 2.0, jnp.nan]]), jnp.ones((1, 4)))
    >>> float(seconds.mean), float(seconds.p95)
    (2.0, 3.0)
    """
    waits = jnp.asarray(waits)
    known = ~jnp.isnan(waits).any(0)
    weights = jnp.where(known, weights, 0).astype(waits.dtype).ravel()
    waits = jnp.where(known, waits, jnp.inf).ravel()
    order, total = jnp.argsort(waits), weights.sum()
    place = jnp.searchsorted(weights[order].cumsum(), (_TAIL) * total)
    mean = jnp.where(weights > 0, weights * waits, 0).sum() / total
    return Seconds(mean, jnp.where(total > 0, waits[order[place]], jnp.nan))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("error", "cost", "abstention"),
    meta_fields=("level", "replicates"),
)
@dataclasses.dataclass(frozen=True)
class Bands:
    """Bootstrap intervals around the L points of a frontier; the last axis is (lower end, upper end)."""

    error: jax.Array  # (L, 2) error probability in service; for `select_frontier`, at the money of the point
    cost: jax.Array  # (L, 2) expected cost of a service that does not follow its bill, in money per query
    level: float  # coverage of each interval
    replicates: int  # number of draws of the log
    abstention: jax.Array | None = None  # (L, 2) share of queries without an answer; None: models do not refuse


def check_level(level: float) -> None:
    """Raise ValueError unless the coverage of an interval lies between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it is a probability between 0 and 1, such as 0.9")


def lam_range(cost: np.ndarray, size: int) -> np.ndarray:
    """Return λ on a geometric grid: (size,).

    At the least λ the costs (k,) hardly matter; at the greatest λ only the cheapest model is asked.
    """
    spent = np.sort(cost)
    gaps = np.diff(spent)[np.diff(spent) > 1e-9 * spent[-1]]
    unit = min([*gaps, *spent[spent > 0][:1]], default=1.0)
    return np.geomspace(1e-4 / max(spent.sum(), unit), 1.0 / unit, size)


def check_lam(lam: Any) -> np.ndarray:
    """Return the distinct λ in rising order. Raises ValueError for none, or a λ that is negative or not finite."""
    try:
        prices = np.unique(np.atleast_1d(np.asarray(lam, float)))
    except (TypeError, ValueError):
        raise TypeError(f"lam must be a number or a list of numbers, not {what_it_is(lam)}") from None
    if not prices.size or not np.isfinite(prices).all() or prices[0] < 0:
        raise ValueError("lam must hold at least one finite number, none below 0")
    return prices


def log_clipped(lam: Any) -> np.ndarray:
    """Return log λ, the scale on which prices are compared; finite for λ = 0."""
    return np.log(np.maximum(np.asarray(lam, float), np.finfo(float).tiny))


def check_abstain_price(price: Any) -> float | None:
    """Return the price of a refusal in errors; None if it is infinite. Raises ValueError for a negative price."""
    if price is None:
        return None
    if not price >= 0:  # so written, NaN is refused too
        raise ValueError(f"abstain_price is {price}; it is what a refusal costs in errors, such as 0.3, at least 0")
    return float(price) if price < np.inf else None


def refusal_at(price: float | None, dtype: Any) -> jax.Array | None:
    """Return the worth of a refusal, in right answers: 1 minus its price in errors, ().

    It is None if models do not refuse: for a price of 1 or more, a wrong answer costs no more than a refusal.
    """
    return None if price is None or price >= 1 else jnp.asarray(1 - price, dtype)
