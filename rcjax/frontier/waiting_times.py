"""How long queries wait under policies: mean, median and the tail, with intervals, as arrays and as JSON values."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from rcjax._base import json_checks as check
from rcjax.model.cascade_model import CascadeModel
from rcjax.policy.record import recorded_waiting

#: The figures by their names in JSON, and the share of the queries that waits no longer; None for the mean.
FIGURES: Mapping[str, float | None] = {"seconds": None, "seconds_p50": 0.5, "seconds_p95": 0.95, "seconds_p99": 0.99}


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("figures", "intervals", "known", "unknown", "money"),
    meta_fields=("level",),
)
@dataclasses.dataclass(frozen=True)
class Seconds:
    """Seconds per query, summed over the calls along the path that each query takes; numpy's arrays.

    One policy or mixture, or with a leading axis L those of a frontier. Quantiles are order statistics: so many queries
    waited no longer.
    """

    figures: Any
    """(…, 4) mean, median, 95 % and 99 % quantile; NaN where no query's seconds are known."""
    intervals: Any
    """(…, 4, 2) for the true figures; infinite where so few queries put no bound on a quantile."""
    known: Any
    """(…) number of queries whose seconds are known along the whole path: those that the figures are of."""
    unknown: Any
    """(…) number of queries left out, as the seconds of some call on their path are not known."""
    level: float
    """The probability that an interval is to have."""
    money: Any = None
    """(…) expected money per query without what waiting is worth; None where costs do not count waiting."""

    @property
    def mean(self) -> Any:
        """(…) mean seconds per query."""
        return self.figures[..., 0]

    @property
    def p50(self) -> Any:
        """(…) seconds within which half of the queries are answered."""
        return self.figures[..., 1]

    @property
    def p95(self) -> Any:
        """(…) seconds within which 95 % of the queries are answered."""
        return self.figures[..., 2]

    @property
    def p99(self) -> Any:
        """(…) seconds within which 99 % of the queries are answered."""
        return self.figures[..., 3]

    def to_json(self, at: Any = ...) -> dict[str, Any]:
        """The figures of one policy, or of those `at` some places, as JSON values; what is not a number is None.

        >>> seconds = Seconds(np.array([1.5, 1, 3, 4]), np.array([[1, 2], [1, 1], [2, np.inf], [2, 5]]), 90, 10, 0.9)
        >>> record = seconds.to_json()
        >>> record["seconds_p95"], record["seconds_p95_interval"], record["seconds_known"], record["seconds_unknown"]
        (3.0, [2.0, None], 90, 10)
        """
        figures, intervals = np.asarray(self.figures)[at], np.asarray(self.intervals)[at]
        record = {name: _finite(figures[..., column]) for column, name in enumerate(FIGURES)}
        record |= {f"{name}_interval": _finite(intervals[..., column, :]) for column, name in enumerate(FIGURES)}
        record |= {f"seconds_{name}": np.asarray(getattr(self, name))[at].tolist() for name in ("known", "unknown")}
        return record if self.money is None else record | {"money": _finite(np.asarray(self.money)[at])}

    def expected(self, index: int) -> dict[str, float | None]:
        """What a policy promises, by the names of `Policy.expected`: figures, and their ends `_low` and `_high`."""
        record = self.to_json(index)
        ends = {
            f"{name}_{end}": record[f"{name}_interval"][i] for name in FIGURES for i, end in enumerate(("low", "high"))
        }
        money = {} if self.money is None else {"money": record["money"]}
        return {name: record[name] for name in FIGURES} | ends | {"seconds_level": self.level} | money


def _finite(values: np.ndarray) -> Any:
    """Numbers as JSON has them."""
    if values.ndim:
        return [_finite(part) for part in values]
    return float(values) if np.isfinite(values) else None


def money_per_call(model: CascadeModel) -> np.ndarray:
    """(k,) money per answer of each model, without what waiting is worth.

    >>> import rcjax
    >>> model = rcjax.demo_model()
    >>> bool((money_per_call(model) == np.asarray(model.cost)).all())
    True
    """
    _, money = recorded_waiting(model.provenance)
    return np.array([money.get(name, cost) for name, cost in zip(model.models, np.asarray(model.cost), strict=True)])


def seconds_from_json(points: Sequence[Mapping[str, Any]], level: Any) -> Seconds:
    """The inverse of `Seconds.to_json` for the points of a frontier. ValueError names the place of what is wrong."""
    coverage = check.share(level, "seconds_level")
    rows = [_point(point, f"frontier[{row}]") for row, point in enumerate(points)]
    figures, intervals, counts, money = (np.array(column) for column in zip(*rows, strict=True))
    counted = None if np.isnan(money).all() else money
    return Seconds(figures, intervals, counts[:, 0], counts[:, 1], coverage, counted)


def _point(point: Mapping[str, Any], where: str) -> tuple[Any, ...]:
    figures = [_amount(point.get(name), f"{where}.{name}", np.nan) for name in FIGURES]
    ends = []
    for name in FIGURES:
        at = f"{where}.{name}_interval"
        pair = check.of_length(point.get(f"{name}_interval"), at, 2, check.as_it_is)
        ends.append([_amount(end, at, other) for end, other in zip(pair, (0.0, np.inf), strict=True)])
    counts = [check.whole(point.get(f"seconds_{name}"), f"{where}.seconds_{name}") for name in ("known", "unknown")]
    return figures, ends, counts, _amount(point.get("money"), f"{where}.money", np.nan)


def _amount(value: Any, where: str, nothing: float) -> float:
    return nothing if value is None else check.amount(value, where)
