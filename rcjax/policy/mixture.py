"""A random mixture of policies: each query is answered by one of them, with given probabilities.

The points of a frontier lie apart; between two of them a mixture meets a budget, or an error, exactly, and its
expected error and cost are the weighted means of theirs. `Frontier.mixture` and `rcjax tune --mix` make one; a
service loads it with nothing but the standard library:

    policy = load_policy("policy.json").choose(query_id)  # a Policy, the same for this query wherever it is asked
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from rcjax._base.hashing import draw_lot
from rcjax._base.json_checks import amount, require, sequence
from rcjax.policy.policy import AnyPolicy, Policy, part_from

_MEANS = (
    *("error", "cost", "abstention", "error_low", "error_high", "cost_low", "cost_high"),
    "seconds",  # a quantile does not add up: a replay tells it
)


@dataclass(frozen=True, slots=True)
class Mixture(AnyPolicy):
    """Policies, and the probability of each: immutable, safe to share between threads, equal by value, picklable.

    Args:
        policies: one or more; a query is answered by one of them from its first model to its last.
        weights: the probability of each policy, at least 0, with sum 1 (to 1e-9).

    What cannot be right raises ValueError with its place.

    Example:
        >>> from rcjax.policy.policy import Calibration, Rule
        >>> plain = Calibration("none", intercept=0.0, slope=1.0, smallest=-9.0, largest=0.0)
        >>> small, large = (
        ...     Policy((name,), {name: plain}, {name: [Rule(1, "answer")]}, {name: cost}, expected=expected)
        ...     for name, cost, expected in (
        ...         ("small", 1e-5, {"error": 0.3, "cost": 1e-5}),
        ...         ("large", 2e-4, {"error": 0.1, "cost": 2e-4}),
        ...     )
        ... )
        >>> mixture = Mixture((small, large), (0.75, 0.25))
        >>> mixture.choose("q1").models, mixture.choose("q4").models
        (('small',), ('large',))
        >>> f"{mixture.expected['error']:.2f}"
        '0.25'
    """

    FORMAT, by_lot = "rcjax-mixture", True
    _keys = "weights", "expected", "policies"

    policies: tuple[Policy, ...]
    weights: tuple[float, ...]
    _ends: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)  # the class is frozen
        put("policies", sequence(self.policies, "policies", part_from))
        weights = sequence(self.weights, "weights", amount)
        require(len(weights) == len(self.policies), "weights", f"must be {len(self.policies)} numbers", list(weights))
        total = math.fsum(weights)
        require(abs(total - 1) <= 1e-9, "weights", "must sum to 1", total)
        put("weights", weights)
        put("_ends", tuple(accumulate(weights))[:-1])

    def choose(self, query: int | str | None = None) -> Policy:
        """The policy that answers a query.

        With the query's id, retries and other machines choose alike: it is the first policy whose weight, added to
        those before it, exceeds `draw_lot("mixture", query)`, a hash of the id. Without one, it is drawn at random.
        """
        lot = random.random() if query is None else draw_lot("mixture", query)
        return self.policies[bisect_right(self._ends, lot)]

    def _with_parts(self, change: Callable[[Policy], Policy]) -> Mixture:
        """The same, each policy of which is what a function makes of it."""
        return Mixture(tuple(map(change, self.policies)), self.weights)

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Where the first policy comes from, and with it all that are of one frontier."""
        return self.policies[0].provenance

    @property
    def expected(self) -> Mapping[str, float | None]:
        """What the tuning promised: `"error"` and `"cost"` are the weighted means of the policies' own.

        So are the ends of their intervals: wide enough, as two means are no surer together than each alone. Where
        two policies are mixed, `"lam"` is the errors saved per unit of money between them, refusals at their price, and
        `"error_cost"` 1/lam. None for what some policy does not tell.
        """
        promises = [policy.expected for policy in self.policies]
        means = {name: self._mean(name) for name in _MEANS if any(name in expected for expected in promises)}
        for name in ("level", "abstain_price"):
            values = {expected.get(name) for expected in promises}
            if len(values) == 1 and values != {None}:
                means[name] = values.pop()
        return MappingProxyType(means | self._slope())

    def _mean(self, name: str) -> float | None:
        values = [policy.expected.get(name) for policy in self.policies]
        if any(value is None for value in values):
            return None
        return math.fsum(weight * (value or 0.0) for weight, value in zip(self.weights, values, strict=True))

    def _slope(self) -> dict[str, float | None]:
        if len(self.policies) == 1:
            return {name: self.policies[0].expected.get(name) for name in ("lam", "error_cost")}
        if len(self.policies) > 2:
            return {}
        (error, cost), (other_error, other_cost) = (
            (_penalty(policy.expected), policy.expected.get("cost")) for policy in self.policies
        )
        if None in (error, cost, other_error, other_cost) or cost == other_cost:
            return {}
        lam = (error - other_error) / (other_cost - cost)  # type: ignore[operator]
        return {"lam": lam, "error_cost": 1 / lam} if lam > 0 and math.isfinite(1 / lam) else {}


def _penalty(expected: Mapping[str, float | None]) -> float | None:
    """The error, and refusals at their price."""
    error, price, refused = (expected.get(name) for name in ("error", "abstain_price", "abstention"))
    return error if error is None or not price or not refused else error + price * refused
