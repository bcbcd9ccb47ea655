"""Cuts that part queries by their confidence, and the refusal of one model that is best on labelled queries.

A model that refuses up to ρ earns of each query R = 1 − (what a refusal costs, in errors) where Φ ≤ ρ, and else y, the
probability that its answer is right. The best ρ is the best of all cuts.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.numerics import divide
from rcjax.frontier.policies import NEVER_ANSWER, NEVER_REFUSE

#: Cuts tried for each model, at most.
MOST_CUTS = 200


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

    def sums(self, values: jax.Array) -> jax.Array:
        """(M,) the sum of values (n,) over the queries below each cut."""
        return jnp.cumsum(values[self.order])[self.last]

    def means_below(self, values: jax.Array, present: jax.Array) -> jax.Array:
        """(M,) `sums` of the queries that are present (n,), as a share of all that count."""
        return divide(self.sums(jnp.where(present, values, 0.0)), self.count)

    def mean(self, values: jax.Array, present: jax.Array, empty: float = 0.0) -> jax.Array:
        """() the mean of values (n,) over the queries that are present (n,); `empty` where there is none."""
        return divide(jnp.where(present, values, 0.0).sum(), self.count, empty)


def spread_cuts(confidence: jax.Array, present: jax.Array, most: int) -> Cuts:
    """At most so many cuts between the confidences (n,) of the queries that are `present` (n,), spread over them.

    The thresholds lie halfway between confidences that differ, so that no rounding moves a tie across.

    Args:
        confidence: (n,) of the queries.
        present: (n,) which of them count.
        most: cuts.

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
    middle = _between(ordered[last], ordered[following])
    every = fresh & (last + 1 == count)
    return Cuts(order, last, jnp.where(parts, middle, NEVER_ANSWER), parts, every, count)


def _between(low: jax.Array, high: jax.Array) -> jax.Array:
    """Halfway between two confidences; the lower one where there is nothing between, as they are neighbours."""
    middle = low + (high - low) / 2
    return jnp.where(middle < high, middle, low)


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
    gain = cuts.sums(jnp.where(present, worth - right, 0.0))
    gain = jnp.where(cuts.parts | cuts.every, gain, -jnp.inf)
    best = jnp.argmax(gain)
    gains = gain[best] > 0
    refusal = jnp.where(gains, cuts.threshold[best], NEVER_REFUSE)
    share = jnp.where(gains, cuts.last[best] + 1.0, 0.0)
    return refusal, divide(jnp.maximum(gain[best], 0.0), cuts.count), divide(share, cuts.count)
