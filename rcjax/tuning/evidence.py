"""What held-out queries say of the error and cost of a policy, as p-values and limits. All in float64."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from rcjax.frontier.frontier import Frontier
from rcjax.frontier.policies import ABSTAIN, entered
from rcjax.tuning.p_values import mean_p_value, upper_limit


@dataclasses.dataclass(frozen=True)
class Evidence:
    """n queries under one policy.

    Errors are counted, unless refusals have a price, lots decide of some, or answers have scores.
    """

    n: int
    errors: float  # a whole number, but for scores: the sum of what is lost, in full ones
    refusals: int
    price: float | None  # what a refusal counts, in errors; None: the policy cannot refuse
    cost: float  # mean, in money per query
    low: float  # the least that a query can cost: the first model alone
    high: float  # the most: every model that may be asked
    asked: int  # number of models that may be asked
    lost: float | None = None  # mean penalty, where lots decide of some queries, or there are scores; None: counted
    bet: Callable[[float], Any] | None = None  # p-value of an error by a bet on every query; None: by the mean
    scored: bool = False  # answers have scores
    lots: bool = False  # lots decide what becomes of some query

    def error_p_value(self, probability: float) -> float:
        """Of the null that the policy errs with a higher probability, refusals at their price."""
        if self.bet is not None:
            return float(self.bet(probability))
        return mean_p_value(self.penalty, self.n, probability, counted=self.price is None and self.lost is None)

    @property
    def penalty(self) -> float:
        """Errors, and refusals at their price, as a share of the queries."""
        counted = (self.errors + (self.price or 0.0) * self.refusals) / self.n
        return counted if self.lost is None else self.lost

    def share_p_value(self, share: float) -> float:
        """Of the null that the cost lies, in expectation, above this share of the way from `low` to `high`."""
        scaled = min(max((self.cost - self.low) / (self.high - self.low), 0.0), 1.0)
        # With two models a query costs the one or the other, so that counting those that were deferred is exact.
        return mean_p_value(scaled, self.n, share, counted=self.asked == 2 and not self.lots)

    def cost_p_value(self, cost: float) -> float:
        """Of the null that the policy costs more, in expectation; what cannot be has a p-value of 0."""
        if cost * (1 + 1e-9) >= self.high:
            return 0.0
        return 1.0 if cost <= self.low else self.share_p_value((cost - self.low) / (self.high - self.low))

    def error_bound(self, level: float) -> float:
        """Upper confidence limit of the error, refusals at their price."""
        return upper_limit(self.error_p_value, level)

    def cost_bound(self, level: float) -> float:
        """Upper confidence limit of the cost."""
        width = self.high - self.low
        return self.low + width * upper_limit(self.share_p_value, level) if width > 0 else self.high


def evidence_of(
    frontier: Frontier, n: int, error: np.ndarray, abstention: np.ndarray, cost: np.ndarray, scored: bool = False
) -> list[Evidence]:
    """What n queries say of each policy (L,) of a frontier.

    Args:
        frontier: the frontier.
        n: how many queries there are.
        error, abstention, cost: (L,) means on them, predicted or seen.
        scored: whether answers have scores.
    """
    members, model_cost = np.asarray(frontier.members), np.asarray(frontier.model.cost, float)
    low, high = model_cost[np.asarray(frontier.first)], members @ model_cost
    counts = [np.rint(rate * n).astype(int) for rate in (error, abstention)]
    counts[0] = np.asarray(error, float) * n if scored else counts[0]
    columns = (column.tolist() for column in (*counts, cost, low, high, members.sum(1)))
    prices = [frontier.abstain_price if refuses else None for refuses in _may_refuse(frontier).tolist()]
    lost = np.minimum(error + (frontier.abstain_price or 0.0) * abstention, 1.0).tolist()
    by_lots = _by_lots(frontier).tolist()
    rows = zip(*columns, prices, lost, by_lots, strict=True)
    return [
        Evidence(n, errors, refusals, price, *rest, lost=loss if lots or scored else None, scored=scored, lots=lots)
        for errors, refusals, *rest, price, loss, lots in rows
    ]


def _by_lots(frontier: Frontier) -> np.ndarray:
    """(L,) whether lots decide what becomes of some query."""
    policies = frontier.policies
    if policies.shares is None:
        return np.zeros(len(frontier.members), bool)
    split = entered(policies.bounds, policies.shares) & (np.asarray(policies.shares) < 1)
    return np.asarray((split.any(-1) & np.asarray(policies.members)).any(-1))


def _may_refuse(frontier: Frontier) -> np.ndarray:
    """(L,) whether a query could be refused."""
    live = entered(frontier.bounds, frontier.policies.shares, 0.0) & (np.asarray(frontier.actions) == ABSTAIN)
    return (live.any(-1) & np.asarray(frontier.members)).any(-1)
