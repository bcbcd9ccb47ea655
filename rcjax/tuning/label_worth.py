"""What labels by hand, judged queries and bare ones are worth together: so many labels by hand alone.

The error of a policy has, by n labels, a variance of V/n with V = e(1 − e). Where N queries are judged, or bare, of
which n are labelled, it is (`rcjax.model.label_outcomes`)

    V/N + ρ·V·(1/n − 1/N)

with ρ the share of V that judges and confidences leave unexplained: 0 for a judge who is always right, 1 for one who
tells nothing. V over it is the number of labels that would do as well by themselves.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rcjax._base.arguments import check_arguments
from rcjax._base.wording import count
from rcjax.logs.log import Log
from rcjax.policy.policy import AnyPolicy
from rcjax.replaying.replay import replay

__all__ = ["LabelWorth", "Purchase", "label_worth"]


_SPLITS = 201  # of a sum of money between labels and judged queries, that are compared


@dataclasses.dataclass(frozen=True)
class Purchase:
    """What to buy for a sum of money, and what it comes to."""

    labels: int
    """Labels by hand."""
    judged: int
    """Queries that models answer and a judge judges."""
    equivalent: float
    """What all there is would then be worth, in labels by hand alone."""


@dataclasses.dataclass(frozen=True)
class LabelWorth:
    """How much is known of a policy's error, in labels by hand."""

    labels: int
    """Queries with labels by hand, n; where answers are labelled one by one, so many would have as many labels."""
    judged: int
    """Further queries that a judge has looked at."""
    bare: int
    """Further queries that nobody has looked at."""
    unexplained: float
    """ρ, the share of the variance of the policy's errors that is left by judges and confidences."""

    @property
    def queries(self) -> int:
        """All queries, N."""
        return self.labels + self.judged + self.bare

    @property
    def equivalent(self) -> float:
        """So many labels by hand alone would tell as much of the policy's error."""
        return float(_equivalent(self.unexplained, self.labels, self.queries))

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, and `equivalent`."""
        return dataclasses.asdict(self) | {"equivalent": self.equivalent}

    def best_purchase(self, money: float, label_price: float, judge_price: float) -> Purchase:
        """What to spend a sum of money on so that most is known of the policy's error.

        Args:
            money: to spend.
            label_price: of a query labelled by hand, the answers of all its models.
            judge_price: of a further query, answered by all models and judged.

        Raises ValueError for sums that are not positive.

        >>> LabelWorth(300, 2000, 0, 0.3).best_purchase(100.0, label_price=0.5, judge_price=0.002).labels
        164
        """
        check_arguments(LabelWorth.best_purchase, locals())
        if not all(0 < amount < np.inf for amount in (money, label_price, judge_price)):
            raise ValueError("money, label_price and judge_price must be positive numbers")
        labels = np.floor(np.linspace(0, money / label_price, _SPLITS))
        judged = np.floor(np.maximum(money - labels * label_price, 0.0) / judge_price)
        # A label is first of a query that is there already.
        queries = np.maximum(self.queries + judged, self.labels + labels)
        worth = _equivalent(self.unexplained, self.labels + labels, queries)
        best = int(np.argmax(worth))
        return Purchase(int(labels[best]), int(judged[best]), float(worth[best]))

    def describe(self) -> str:
        """The worth in a sentence.

        >>> LabelWorth(300, 2000, 0, 0.3).describe()
        '300 labels and 2,000 judged queries tell as much as 767 labels would'
        """
        others = [
            count(number, f"{kind} query")
            for number, kind in ((self.judged, "judged"), (self.bare, "unlabelled"))
            if number
        ]
        have = " and ".join([count(self.labels, "label"), *others])
        return f"{have} tell as much as {round(self.equivalent):,} labels would"

    def advise(self, money: float, label_price: float, judge_price: float) -> str:
        """What to spend a sum of money on, in a sentence; as `best_purchase` takes it."""
        bought = self.best_purchase(money, label_price, judge_price)
        both = (bought.labels, "label"), (bought.judged, "judged query")
        what = [count(number, kind) for number, kind in both if number] or ["nothing"]
        return f"the next ${money:,.4g}: {' and '.join(what)}, which makes it worth {round(bought.equivalent):,} labels"


def _equivalent(unexplained: float, labels: np.ndarray | float, queries: np.ndarray | float) -> np.ndarray:
    return 1 / (1 / queries + unexplained * np.maximum(1 / labels - 1 / queries, 0.0))  # type: ignore[return-value]


def label_worth(policy: AnyPolicy, log: Log) -> LabelWorth | None:
    """What the labels, judges and queries of a log are worth for the error of a policy.

    Args:
        policy: the policy.
        log: the log, with the answers of its models.

    None where every answer is labelled, or nothing is to be known: the policy errs always, or never.
    Raises `LogError` as `replay` does.
    """
    check_arguments(label_worth, locals())
    part = log.select(policy.models)
    if part.hand is None:
        return None
    part = part.take(part.complete) if part.complete.any() else part
    assert part.hand is not None
    replayed = replay(policy, part)
    error, spread = float(replayed.error), float(replayed.error_se)
    variance = error * (1 - error)
    shares = part.labelled.mean(1)
    judged = part.hand.is_judged.any(1) & (shares == 0)
    labels, queries = round(float(shares.sum())), part.n_queries
    if not (0 < labels < queries and variance > 0 and spread > 0):
        return None
    unexplained = (queries * spread**2 / variance - 1) / (queries / labels - 1)
    further = int(judged.sum())
    return LabelWorth(labels, further, max(queries - labels - further, 0), float(np.clip(unexplained, 0.0, 1.0)))
