"""The best refusals and thresholds of a single model and of a pair, on queries of which it is known who is right.

A model i that refuses up to ρ_i, asks model j up to φ and answers above, where j refuses up to ρ_j and else answers,
earns of each query

    R where Φ_i ≤ ρ_i        y_i where Φ_i > φ        else y_j where Φ_j > ρ_j, and R where not, less λ·cost_j

Here y is the probability that an answer is right, and R = 1 − (what a refusal costs, in errors). With ρ_j fixed that is
a sum over the queries below ρ_i, between the two cuts, and above φ. One pass over the cuts by rising confidence, which
keeps the best ρ_i so far, finds the best of all pairs of cuts.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.numerics import divide
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER, NEVER_REFUSE
from rcjax.solving.bellman import Refusal

#: Cuts tried for each model that is asked first, and for each second one, at most.
MOST_CUTS, MOST_SECOND = 200, 24


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cuts:
    """Places that part n queries by their confidence, M of them; ties stay together."""

    order: jax.Array  # (n,) the queries by rising confidence, those that do not count last
    last: jax.Array  # (M,) the place in that order of the last query below the cut
    threshold: jax.Array  # (M,) halfway to the next confidence; NEVER_ANSWER where it parts nothing
    parts: jax.Array  # (M,) whether there are queries on both sides, and no cut before is the same
    every: jax.Array  # (M,) whether all queries are below, and at no cut before
    count: jax.Array  # () queries that count


def spread_cuts(confidence: jax.Array, present: jax.Array, most: int) -> Cuts:
    """At most so many cuts between the confidences (n,) of the queries that are `present` (n,), spread over them.

    The thresholds lie halfway between confidences that differ, so that no rounding moves a tie across.

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
    return Cuts(order, last, jnp.where(parts, middle, NEVER_ANSWER), parts, every, count)


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
    first: jax.Array  # (M,) where the first model answers
    second: jax.Array  # (S, M) where the second one is asked, and answers or refuses
    refused: jax.Array  # (S, M) share of the queries that it would refuse
    refusal: jax.Array  # (S,) confidence up to which it refuses
    usable: jax.Array  # (S,) whether it may be had


def sum_up(confidence: jax.Array, right: jax.Array, present: jax.Array, worth: jax.Array) -> Sums:
    """The sums of one pair.

    Args:
        confidence: (2, n) of the first model and the second.
        right: (2, n) how often their answers are right.
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
    return Sums(
        cut=jnp.pad(cuts.threshold, (1, 0), constant_values=ALWAYS_ANSWER),
        parts=jnp.pad(cuts.parts | cuts.every, (1, 0), constant_values=True),
        share=jnp.pad(divide(cuts.last + 1.0, cuts.count), (1, 0)),
        first=upto(right[0]),
        second=upto(jnp.where(refuses, worth, right[1])),
        refused=upto(refuses.astype(confidence.dtype)),
        refusal=refusal,
        usable=jnp.pad(others.parts, (1, 0), constant_values=True),
    )


def best_cuts(sums: Sums, price: jax.Array, refusal: Refusal) -> tuple[jax.Array, jax.Array]:
    """The refusals of the first model and of the second, as places in the sums, of the cuts that earn most.

    price (): λ times what asking the second model costs, in right answers. Scalar: `vmap` it over λ and pairs. Some
    queries are always passed on; all are only where some are refused, as else the second model alone does as well.
    """

    def of_second(second: jax.Array, usable: jax.Array) -> tuple[jax.Array, jax.Array]:
        def visit(carry: tuple[jax.Array, ...], at: tuple[Any, ...]) -> tuple[tuple[jax.Array, ...], None]:
            place, parts, share, first, asked = at
            worth, best, start, refused = carry
            none = jnp.where(share >= 1, -jnp.inf, 0.0)
            here = asked - price * share - first + jnp.maximum(start, none)
            better = parts & (place > 0) & (here > worth)
            worth, best = jnp.where(better, here, worth), jnp.where(better, jnp.where(start > none, refused, 0), best)
            refuse = refusal.worth * share - asked + price * share
            rises = parts & (place > 0) & refusal.early & (refuse > start)
            return (worth, best, jnp.where(rises, refuse, start), jnp.where(rises, place, refused)), None

        nothing, nowhere = jnp.full_like(price, -jnp.inf), jnp.zeros((), int)
        columns = np.arange(sums.cut.shape[0]), sums.parts, sums.share, sums.first, second
        (worth, best, *_), _ = lax.scan(visit, (nothing, nowhere, nothing, nowhere), columns)
        return jnp.where(usable, worth, -jnp.inf), best

    worth, refused = jax.vmap(of_second)(sums.second, sums.usable)
    best = jnp.argmax(worth)
    return refused[best], best


def earnings(sums: Sums, refused: jax.Array, second: jax.Array, worth: jax.Array) -> tuple[jax.Array, ...]:
    """(right answers with what refusals are worth, share refused, share passed on), each (M,), at every threshold.

    Of one pair; −∞ is earned where the threshold is not above the refusal, or parts nothing.

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
    kept = sums.parts & (place > refused) & ((sums.share < 1) | (refused > 0))
    return jnp.where(kept, earned, -jnp.inf), share, sums.share - sums.share[refused]
