"""How long queries wait under policies: the mean and the 95 % quantile, as arrays and as JSON values."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax.model.calibrated import Fitted
from rcjax.policy.record import recorded_waiting

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
        return {name: _finite(np.asarray(figure)[at]) for name, figure in figures.items()}


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


def _finite(values: np.ndarray) -> Any:
    """Numbers as JSON has them."""
    if np.ndim(values):
        return [_finite(part) for part in values]
    return float(values) if np.isfinite(values) else None


def money_per_call(model: Fitted) -> np.ndarray:
    """(k,) money per answer of each model, without what waiting is worth.

    >>> import rcjax
    >>> model = rcjax.demo_model()
    >>> bool((money_per_call(model) == np.asarray(model.cost)).all())
    True
    """
    _, money = recorded_waiting(model.provenance)
    return np.array([money.get(name, cost) for name, cost in zip(model.models, np.asarray(model.cost), strict=True)])
