"""Points of a frontier as arrays: policies, their prices, what is to be expected of them, and how sure that is."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.checks import what_it_is
from rcjax._core.json_values import Status, plain
from rcjax.solving.frontier.policies import Policies


class Outcomes(NamedTuple):
    """What becomes of each query, or of queries on average; arrays of one shape, numpy's or jax's.

    >>> Outcomes(wrong=0.1, cost=2.0, refused=0.5).loss(lam=0.01, abstain_price=0.3)
    0.27
    """

    wrong: Any
    """Whether it is answered wrongly, or how likely that is."""
    cost: Any
    """The money that it costs, each answer at its model's mean cost."""
    refused: Any
    """Whether it gets no answer, or how likely that is; 0 where no model may refuse."""

    def penalty(self, abstain_price: float | None) -> Any:
        """Errors, with each refusal as so many of them; None: no model may refuse."""
        return self.wrong if abstain_price is None else self.wrong + abstain_price * self.refused

    def loss(self, lam: Any, abstain_price: float | None = None) -> Any:
        """error + abstain_price·abstention + λ·cost."""
        return self.penalty(abstain_price) + lam * self.cost


class PointStatus(Status):
    """What became of a λ: `Frontier.status`, and the status of a sweep's points."""

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
    """L points of a frontier, one for each λ; arrays of jax's inside of compiled functions, of numpy's outside."""

    lam: Any  # (L,) error probability per unit of money
    status: Any  # (L,) a `PointStatus`
    expected: Outcomes  # (L,) of a query
    policies: Policies  # (L,)


_TAIL = 0.95 - 1e-9  # share of the queries, apart from what sums of weights are rounded by


@partial(jax.tree_util.register_dataclass, data_fields=("mean", "p95"), meta_fields=())
@dataclasses.dataclass(frozen=True)
class Seconds:
    """Seconds per query, summed over the calls along the path that each query takes; numpy's arrays.

    One policy, or with a leading axis L those of a frontier. Of the queries whose seconds are known along
    the whole path; NaN if there are none.
    """

    mean: Any
    """(…) mean seconds per query."""
    p95: Any
    """(…) seconds within which 95 % of the queries are answered, an order statistic."""

    def to_json(self, at: Any = ...) -> dict[str, Any]:
        """The figures of one policy, or of those `at` some places, as JSON values; what is not a number is None.

        >>> Seconds(np.array([1.5, np.nan]), np.array([3.0, np.nan])).to_json()
        {'seconds': [1.5, None], 'seconds_p95': [3.0, None]}
        """
        figures = {"seconds": self.mean, "seconds_p95": self.p95}
        return plain({name: np.asarray(figure)[at] for name, figure in figures.items()})


def seconds_of(waits: ArrayLike, weights: ArrayLike) -> Seconds:
    """The mean and the 95 % quantile, of the queries whose seconds are known under all policies; NaN without any.

    Args:
        waits: (P, n) seconds of n queries under P policies, NaN if they are not known.
        weights: (P, n) the share of a query that goes by each policy; 0 for one that does not count.

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
    """How sure we are of each point of a frontier: L points; an interval's ends come last."""

    error: jax.Array  # (L, 2) interval for the error probability in service, of `select_frontier` for the point's money
    cost: jax.Array  # (L, 2) interval for its expected cost where nobody follows the bill, in money per query
    level: float  # probability that an interval is to cover the truth
    replicates: int  # how often the log was drawn again
    abstention: jax.Array | None = None  # (L, 2) interval for the share of queries without answer; None: models answer


def check_level(level: float) -> None:
    """ValueError unless it is a probability that an interval can have."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it is a probability between 0 and 1, such as 0.9")


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
