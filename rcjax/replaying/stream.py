"""Queries of a log as a stream: what a service that follows its bill would have done with them, one after the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rcjax.logs.log import Log
from rcjax.model.label_outcomes import corrected_log
from rcjax.policy.following import Bill
from rcjax.policy.ladder import figure_at
from rcjax.policy.policy import AnyPolicy
from rcjax.replaying.replay import walk_rungs


class Stream(NamedTuple):
    """What became of each of n queries that came one after the other."""

    position: np.ndarray  # (n,) on the ladder
    wrong: np.ndarray  # (n,) expected, as the others
    refused: np.ndarray  # (n,)
    spent: np.ndarray  # (n,) money

    def to_json(self) -> dict[str, float]:
        """Means over queries: `error`, `bill` per query, `abstention`; of the `position` also `low`, `high`, `last`."""
        where = self.position
        means = {"error": self.wrong, "bill": self.spent, "abstention": self.refused, "position": where}
        ends = {"low": where.min(), "high": where.max(), "last": where[-1]}
        return {name: float(np.mean(value)) for name, value in (means | ends).items()}


class Rungs(NamedTuple):
    """What becomes of n queries by each of R rungs."""

    tuned: tuple[float, ...]  # (R,) money that a query was tuned to cost
    wrong: np.ndarray  # (R, n)
    refused: np.ndarray  # (R, n)
    spent: np.ndarray  # (R, n) money

    @classmethod
    def of(cls, policy: AnyPolicy, log: Log) -> Rungs:
        """Of the queries of a log that all models of a ladder have answered. LogError as `replay` raises it."""
        log = corrected_log(log.select(policy.models))
        walked = walk_rungs(policy, log if log.complete.all() else log.take(log.complete))
        return cls(policy.costs, walked.wrong, walked.refused, walked.spent)

    def followed(self, bill: Bill, changes: np.ndarray | None = None) -> Stream:
        """The queries as a stream, the position after each by the bill.

        Args:
            bill: at the start.
            changes: (n,) what each query costs, times what the log says; by default as it says.

        >>> rungs = Rungs((1.0, 3.0), np.array([[1, 1], [0, 0]]), np.zeros((2, 2)), np.array([[1.0, 1.0], [4.0, 4.0]]))
        >>> rungs.followed(Bill.of(2.0, window=10)).position.round(3).tolist()
        [0.5, 0.474]
        """
        costs, n = self.tuned, self.wrong.shape[1]
        rows, outcomes = np.empty((n, 4)), np.stack(self[1:]).transpose(2, 0, 1).tolist()  # (n, 3, R), quicker as lists
        for query, by_rung in enumerate(outcomes):
            position = bill.position(costs)
            wrong, refused, spent = (figure_at(figures, position) for figures in by_rung)
            spent *= 1.0 if changes is None else changes[query]
            rows[query] = position, wrong, refused, spent
            bill = bill.pay(spent, expected=figure_at(costs, position))
        return Stream(*rows.T)


def follow(policy: AnyPolicy, log: Log) -> Stream | None:
    """What a policy would have done with the queries of a log, one after the other; None for one that follows no bill.

    Errors and money are those of `replay`. LogError as it raises it.

    >>> import rcjax
    >>> train, fresh = rcjax.sample_log(600, seed=0).split(0.5, seed=0)
    >>> ladder = rcjax.solve_frontier(rcjax.fit(train)).policy(budget=2e-4)
    >>> bool(1.9e-4 < follow(ladder, fresh).to_json()["bill"] < 2.1e-4)
    True
    """
    if policy.budget is None or not policy.follows:
        return None
    return Rungs.of(policy, log).followed(Bill.of(policy.budget))
