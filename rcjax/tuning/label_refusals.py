"""The best refusals and thresholds of a single model and of a pair, on queries of which it is known who is right.

A model i that refuses up to ρ_i, asks model j up to φ and answers above, where j refuses up to ρ_j and else answers,
earns of each query

    R where Φ_i ≤ ρ_i        y_i where Φ_i > φ        else y_j where Φ_j > ρ_j, and R where not, less λ·cost_j

Here y is the probability that an answer is right, and R = 1 − (what a refusal costs, in errors). With ρ_j fixed that is
a sum over the queries below ρ_i, between the two cuts, and above φ. One pass over the cuts by rising confidence, which
keeps the best ρ_i so far, finds the best of all pairs of cuts.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.numerics import divide
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER, NEVER_REFUSE
from rcjax.frontier.refusal import Refusal

#: Cuts tried for each model that is asked first, and for each second one, at most.
MOST_CUTS, MOST_SECOND = 200, 24


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cuts:
    """Places that part n queries by their confidence, M of them; ties stay together, or a share of them is parted."""

    order: jax.Array  # (n,) the queries by rising confidence, those that do not count last
    last: jax.Array  # (M,) the place in that order of the last query below the cut
    threshold: jax.Array  # (M,) halfway to the next confidence; NEVER_ANSWER where it parts nothing
    parts: jax.Array  # (M,) whether there are queries on both sides, and no cut before is the same
    every: jax.Array  # (M,) whether all queries are below, and at no cut before
    count: jax.Array  # () queries that count
    start: jax.Array | None = None  # (M,) the place in that order of the first of the queries that are parted
    above: jax.Array | None = None  # (M,) confidence up to which all queries are below the cut
    share: jax.Array | None = None  # (M,) of the queries above that and up to the threshold that are; None: all

    def sums(self, values: jax.Array) -> jax.Array:
        """(M,) the sum of values (n,) over the queries below each cut; of what is parted, the share."""
        total = jnp.cumsum(values[self.order])
        if self.start is None or self.share is None:
            return total[self.last]
        before = jnp.where(self.start > 0, total[self.start - 1], 0.0)
        return before + self.share * (total[self.last] - before)


def spread_cuts(confidence: jax.Array, present: jax.Array, most: int, split: float | None = None) -> Cuts:
    """At most so many cuts between the confidences (n,) of the queries that are `present` (n,), spread over them.

    The thresholds lie halfway between confidences that differ, so that no rounding moves a tie across.

    Args:
        confidence: (n,) of the queries.
        present: (n,) which of them count.
        most: cuts, of each kind.
        split: with a share, there are as many cuts again within the ties of more than such a share of the queries, of
            which they part a share; None: ties stay together.

    >>> cuts = spread_cuts(jnp.array([0.75, 0.25, 0.25]), jnp.ones(3, bool), 10)
    >>> cuts.threshold.tolist(), cuts.last.tolist(), cuts.parts.tolist()
    ([0.5, 1.0, 1.0], [1, 1, 2], [True, False, False])
    """
    n = confidence.shape[0]
    order = jnp.argsort(jnp.where(present, confidence, jnp.inf))
    ordered = jnp.where(present, confidence, jnp.inf)[order]
    count = present.sum()
    tries = min(n, most)
    # The last of the queries below: spread over those present, and moved to the end of its ties.
    last = jnp.maximum(-(-np.arange(1, tries + 1) * count // tries) - 1, 0)
    last = jnp.searchsorted(ordered, ordered[last], side="right") - 1
    following = jnp.minimum(last + 1, n - 1)
    fresh = jnp.diff(last, prepend=-1) != 0
    parts = fresh & (last + 1 < count) & (ordered[following] > ordered[last])
    low, high = ordered[last], ordered[following]
    middle = low + (high - low) / 2
    middle = jnp.where(middle < high, middle, low)  # between neighbours in floating point there is nothing
    every = fresh & (last + 1 == count)
    cuts = Cuts(order, last, jnp.where(parts, middle, NEVER_ANSWER), parts, every, count)
    return cuts if split is None else _with_splits(cuts, ordered, split)


def _with_splits(cuts: Cuts, ordered: jax.Array, least: float) -> Cuts:
    """The cuts, and as many that part ties of more than such a share of the queries; ordered (n,) confidences."""
    tries, n = cuts.last.shape[0], ordered.shape[0]
    rank = jnp.maximum(-(-np.arange(1, tries + 1) * cuts.count // tries) - 1, 0)
    value = ordered[rank]
    start = jnp.searchsorted(ordered, value, side="left")
    last = jnp.searchsorted(ordered, value, side="right") - 1
    size = last + 1 - start
    share = (rank + 1 - start) / size
    fresh = jnp.diff(rank, prepend=-1) != 0  # with fewer queries than tries, some are the same
    parts = fresh & (size > least * cuts.count) & (share < 1) & (rank < cuts.count) & (start + size <= cuts.count)

    def between(low: jax.Array, high: jax.Array) -> jax.Array:
        middle = low + (high - low) / 2
        return jnp.where(middle < high, middle, low)

    above = jnp.where(start > 0, between(ordered[jnp.maximum(start - 1, 0)], value), ALWAYS_ANSWER)
    threshold = jnp.where(last + 1 < cuts.count, between(value, ordered[jnp.minimum(last + 1, n - 1)]), NEVER_ANSWER)
    whole = cuts.threshold
    return Cuts(
        order=cuts.order,
        last=jnp.concatenate([cuts.last, last]),
        threshold=jnp.concatenate([whole, threshold]),
        parts=jnp.concatenate([cuts.parts, parts]),
        every=jnp.concatenate([cuts.every, jnp.zeros_like(parts)]),
        count=cuts.count,
        start=jnp.concatenate([jnp.zeros_like(cuts.last), start]),
        above=jnp.concatenate([whole, above]),
        share=jnp.concatenate([jnp.ones_like(whole), share.astype(whole.dtype)]),
    )


def refuse_alone(
    confidence: jax.Array, right: jax.Array, present: jax.Array, worth: jax.Array
) -> tuple[jax.Array, ...]:
    """(refusal, gain, share refused) of one model that refuses where that gains most on answering everything.

    The refusal is the confidence up to which it refuses, NEVER_REFUSE where nothing is gained; the gain is per query.

    Args:
        confidence: (n,) calibrated.
        right: (n,) how often the answer is right.
        present: (n,) whether the query counts.
        worth: () of a refusal, in right answers.

    >>> right = jnp.array([0.1, 0.9, 0.8])
    >>> [round(float(figure), 3) for figure in refuse_alone(right, right, jnp.ones(3, bool), jnp.asarray(0.7))]
    [0.45, 0.2, 0.333]
    """
    cuts = spread_cuts(confidence, present, MOST_CUTS)
    gain = jnp.cumsum(jnp.where(present, worth - right, 0.0)[cuts.order])[cuts.last]
    gain = jnp.where(cuts.parts | cuts.every, gain, -jnp.inf)
    best = jnp.argmax(gain)
    gains = gain[best] > 0
    refusal = jnp.where(gains, cuts.threshold[best], NEVER_REFUSE)
    share = jnp.where(gains, cuts.last[best] + 1.0, 0.0)
    return refusal, divide(jnp.maximum(gain[best], 0.0), cuts.count), divide(share, cuts.count)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sums:
    """What a pair earns of the queries up to each cut of its first model, as sums over n divided by their number.

    M cuts, the one below all queries first and the one above all last; S refusals of the second model, none first.
    """

    cut: jax.Array  # (M,) confidence of the first model
    parts: jax.Array  # (M,) whether the cut is one that may be made
    share: jax.Array  # (M,) of the queries
    money: jax.Array  # (M,) what the second model costs on them
    squares: jax.Array  # (M,) by how much the square of what a query costs is higher where it is asked
    alone: jax.Array  # (2,) what the first model costs on all queries, and the square of it
    count: jax.Array  # () queries
    first: jax.Array  # (M,) where the first model answers
    second: jax.Array  # (S, M) where the second one is asked, and answers or refuses
    refused: jax.Array  # (S, M) share of the queries that it would refuse
    refusal: jax.Array  # (S,) confidence up to which it refuses
    usable: jax.Array  # (S,) whether it may be had


def sum_up(confidence: jax.Array, right: jax.Array, charge: jax.Array, present: jax.Array, worth: jax.Array) -> Sums:
    """The sums of one pair.

    Args:
        confidence: (2, n) of the first model and the second.
        right: (2, n) how often their answers are right.
        charge: (2, n) money of each answer.
        present: (n,) whether the query counts.
        worth: () of a refusal, in right answers.
    """
    cuts = spread_cuts(confidence[0], present, MOST_CUTS)
    others = spread_cuts(confidence[1], present, MOST_SECOND)
    refusal = jnp.concatenate([jnp.full(1, NEVER_REFUSE, confidence.dtype), others.threshold])

    def upto(values: jax.Array) -> jax.Array:
        """Sums of values (…, n) of the queries up to each cut."""
        total = jnp.cumsum(jnp.where(present, values, 0.0)[..., cuts.order], axis=-1)[..., cuts.last]
        return jnp.pad(divide(total, cuts.count), [(0, 0)] * (values.ndim - 1) + [(1, 0)])

    refuses = confidence[1] <= refusal[:, None]
    squares = jnp.where(present, jnp.stack([charge[0], charge[0] ** 2]), 0.0).sum(1)
    return Sums(
        cut=jnp.pad(cuts.threshold, (1, 0), constant_values=ALWAYS_ANSWER),
        parts=jnp.pad(cuts.parts | cuts.every, (1, 0), constant_values=True),
        share=jnp.pad(divide(cuts.last + 1.0, cuts.count), (1, 0)),
        money=upto(charge[1]),
        squares=upto(charge[1] ** 2 + 2 * charge[0] * charge[1]),
        alone=divide(squares, cuts.count),
        count=cuts.count,
        first=upto(right[0]),
        second=upto(jnp.where(refuses, worth, right[1])),
        refused=upto(refuses.astype(confidence.dtype)),
        refusal=refusal,
        usable=jnp.pad(others.parts, (1, 0), constant_values=True),
    )


def best_cuts(sums: Sums, price: jax.Array, refusal: Refusal) -> tuple[jax.Array, jax.Array]:
    """The refusals of the first model and of the second, as places in the sums, of the cuts that earn most.

    price (): λ, in right answers per unit of money. Scalar: `vmap` it over λ and pairs. Some queries are always passed
    on; all are only where some are refused, as else the second model alone does as well.
    """

    def of_second(second: jax.Array, usable: jax.Array) -> tuple[jax.Array, jax.Array]:
        def visit(carry: tuple[jax.Array, ...], at: tuple[Any, ...]) -> tuple[tuple[jax.Array, ...], None]:
            place, parts, share, money, first, asked = at
            worth, best, start, refused = carry
            none = jnp.where(share >= 1, -jnp.inf, 0.0)
            here = asked - price * money - first + jnp.maximum(start, none)
            better = parts & (place > 0) & (here > worth)
            worth, best = jnp.where(better, here, worth), jnp.where(better, jnp.where(start > none, refused, 0), best)
            refuse = refusal.worth * share - asked + price * money
            rises = parts & (place > 0) & refusal.early & (refuse > start)
            return (worth, best, jnp.where(rises, refuse, start), jnp.where(rises, place, refused)), None

        nothing, nowhere = jnp.full_like(price, -jnp.inf), jnp.zeros((), int)
        columns = np.arange(sums.cut.shape[0]), sums.parts, sums.share, sums.money, sums.first, second
        (worth, best, *_), _ = lax.scan(visit, (nothing, nowhere, nothing, nowhere), columns)
        return jnp.where(usable, worth, -jnp.inf), best

    worth, refused = jax.vmap(of_second)(sums.second, sums.usable)
    best = jnp.argmax(worth)
    return refused[best], best


class Earnings(NamedTuple):
    """What a pair earns with its refusals, at each of M thresholds."""

    right: jax.Array  # (M,) right answers, with what refusals are worth; −∞ where the threshold cannot be had
    refused: jax.Array  # (M,) share of the queries that get no answer
    money: jax.Array  # (M,) what the second model costs
    money_se: jax.Array  # (M,) standard error of what both cost


def earnings(sums: Sums, refused: jax.Array, second: jax.Array, worth: jax.Array) -> Earnings:
    """What one pair earns, at every threshold; none is to be had below the refusal, or that parts nothing.

    Args:
        sums: of the pair.
        refused: () the first model's refusal, as a place of its cuts.
        second: () the second's, as a place of its own.
        worth: () of a refusal, in right answers.
    """
    place = np.arange(sums.cut.shape[0])
    passed = sums.second[second] - sums.second[second, refused]
    earned = worth * sums.share[refused] + passed + sums.first[-1] - sums.first
    share = sums.share[refused] + sums.refused[second] - sums.refused[second, refused]
    money, squares = sums.money - sums.money[refused], sums.squares - sums.squares[refused]
    variance = sums.alone[1] + squares - (sums.alone[0] + money) ** 2
    kept = sums.parts & (place > refused) & ((sums.share < 1) | (refused > 0))
    spread = jnp.sqrt(divide(jnp.maximum(variance, 0.0), sums.count))
    return Earnings(jnp.where(kept, earned, -jnp.inf), share, money, spread)
