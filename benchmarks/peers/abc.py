"""Agreement-based cascading: a tier of models answers by majority where enough of them agree, else the next is asked.

Kolawole, Dennis, Talwalkar, Smith 2024 (arXiv 2407.02348), sections 3 and 4: every tier is an ensemble; a query is
deferred where the share of votes for the majority is θ or less, and θ is the least at which the estimated share of
queries that are kept and wrong is at most ε. All models of a tier are billed. The tiers here are two or three models
that are not dearer than those of the next tier, the last one a single model; a tie goes to the dearest model's answer.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.methods import Columns

Tiers = tuple[tuple[int, ...], ...]
SIZES = (2, 3)  # of an ensemble


class Votes(NamedTuple):
    """What a tier says to n queries."""

    share: np.ndarray  # (n,) of the votes that the majority has
    wrong: np.ndarray  # (n,) whether the majority's answer is wrong
    cost: np.ndarray  # (n,) the bills of all its models


def votes(data: Columns, tier: Sequence[int]) -> Votes:
    """The majority of a tier; an answer that there is not (−1) agrees with no other."""
    assert data.answer is not None
    places = [*tier]
    answer = data.answer[:, places]
    same = (answer[:, :, None] == answer[:, None, :]) & (answer[:, :, None] >= 0)
    count = np.maximum(same.sum(2), 1)
    chosen = len(places) - 1 - np.argmax(count[:, ::-1], axis=1)  # of equals the last, which is the dearest
    rows = np.arange(len(answer))
    wrong = data.wrong[:, places][rows, chosen]
    return Votes(count[rows, chosen] / len(places), wrong, data.cost[:, places].sum(1))


def tiers_of(models: int) -> Iterator[Tiers]:
    """Every cascade of one or two ensembles and a last single model."""
    ensembles = [e for size in SIZES for e in itertools.combinations(range(models), size)]
    for first in ensembles:
        for last in range(max(first) + 1, models):
            yield first, (last,)
        for second in ensembles:
            for last in range(max(second) + 1, models):
                if min(second) > max(first):
                    yield first, second, (last,)


def answered(data: Columns, tiers: Tiers, theta: Sequence[float]) -> tuple[float, float]:
    """(error, bill) of a cascade of tiers whose ensembles keep what more than a share θ of them agrees on."""
    reached, error, bill = np.ones(len(data.wrong), bool), 0.0, 0.0
    for tier, limit in zip(tiers, [*theta, -1.0], strict=True):
        tally = votes(data, tier)
        kept = reached & (tally.share > limit)
        error, bill = error + (kept & (tally.wrong > 0)).mean(), bill + (reached * tally.cost).mean()
        reached = reached & ~kept
    return float(error), float(bill)


def agreement_based(train: Columns, test: Columns) -> np.ndarray:
    """(P, 4) figures of the single models, and of all cascades of tiers at every share; none without answers."""
    if train.answer is None:
        return np.zeros((0, 4))
    alone = np.stack([x.mean(0) for x in (train.wrong, train.cost, test.wrong, test.cost)], axis=1)
    rows = [tuple(row) for row in alone]
    for tiers in tiers_of(train.wrong.shape[1]):
        for theta in itertools.product(*([n / len(tier) for n in range(1, len(tier))] for tier in tiers[:-1])):
            rows.append((*answered(train, tiers, theta), *answered(test, tiers, theta)))
    return np.array(rows)


def safe_share(tally: Votes, risk: float) -> float:
    """The least θ at which at most a share `risk` of the queries is kept and wrong (definition 4.1); 1: nothing is."""
    for theta in np.unique(np.append(tally.share, 0.0)):
        if ((tally.share > theta) & (tally.wrong > 0)).mean() <= risk:
            return float(theta)
    return 1.0
