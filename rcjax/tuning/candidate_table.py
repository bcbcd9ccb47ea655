"""The table of candidate policies, and the thresholds at which they defer.

A candidate has a first model, a second model that is asked if the first is unsure, and a third model that is asked if
the two answers differ. A chain of more models has a threshold for each model. Tied queries are deferred together; a
ladder position between two thresholds sends a random share of them.

If models may abstain, the last model of a policy abstains up to the confidence ρ that is best for it alone. A query
counts as R right answers if Φ ≤ ρ, and as y otherwise: R = 1 − (price of an abstention, in errors). ρ is the best of
200 thresholds.

Logs whose confidences are verdicts of a check have chains of three or more models as well. Verdicts are 0 or 1, so each
model has one threshold: queries whose answer fails the check are deferred. On three public sets of programming tasks
longer chains have 7 to 47 % fewer failures for the same money. On eight logs whose confidences have more values, they
gain nothing, and are no candidates. The paper's Markov chain cannot score them, as attempts of one model fail on the
same queries. So chains are scored on the queries of the log themselves.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import Array, take_entries
from rcjax._core.numerics import divide
from rcjax.policy.decisions import NO_CONFIDENCE
from rcjax.solving.frontier.points import (
    ALWAYS_ANSWER,
    NEVER_ABSTAIN,
    NEVER_ANSWER,
    NO_MODEL,
    Agreements,
    Policies,
    lower_hull,
    thin_hull,
)

#: Ladders of folds and bootstrap replicates are padded to this many rungs, so that few shapes are compiled; a deployed
#: ladder has fewer (`frontier.MAX_RUNGS`).
RESAMPLED_RUNGS = 32


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        *("first", "second", "third", "threshold", "fallback", "abstain_threshold"),
        *("penalty", "cost", "abstention", "chain"),
    ),
    meta_fields=("k",),
)
@dataclasses.dataclass(frozen=True, eq=False)
class Candidates:
    """A table of C policies over k models; jax arrays within compiled functions, numpy arrays elsewhere.

    Four kinds of policies are written in the same columns:

    | kind           | first | second | third | threshold     | fallback      | chain          |
    |----------------|-------|--------|-------|---------------|---------------|----------------|
    | single model i | i     | i      | i     | ALWAYS_ANSWER | not used      | NaN            |
    | pair           | i     | j      | j     | of i          | not used      | NaN            |
    | agreement      | i     | j      | l     | of i          | of j          | NaN            |
    | chain i, …, l  | i     | l      | l     | not used      | not used      | of each member |
    """

    k: int
    first: Array
    """(C,) index of the model asked first."""
    second: Array
    """(C,) index of the model asked if the first is unsure; the first again for a single model."""
    third: Array
    """(C,) index of the model asked if the two answers differ; the second again if answers are not compared."""
    threshold: Array
    """(C,) calibrated confidence up to which the second model is asked; ALWAYS_ANSWER for a single model."""
    fallback: Array
    """(C,) confidence of the second model up to which the third is asked, if an answer is not known."""
    penalty: Array
    """(C,) errors by blended labels, and abstentions at their price; inf for a model without answers, and for a
    threshold that divides no queries."""
    cost: Array
    """(C,) mean cost of the paths of the queries, in money per query."""
    abstention: Array
    """(C,) share of the queries that get no answer."""
    abstain_threshold: Array | None = None
    """(C,) confidence up to which the last model abstains; None: models do not abstain."""
    chain: Array | None = None
    """(C, k) thresholds of a chain's models; NaN for models that it does not ask, and for candidates of other kinds;
    None: no candidate is a chain."""

    def take(self, indices: Any) -> "Candidates":
        """Return the candidates at some indices."""
        return take_entries(self, indices)

    @property
    def is_single(self) -> Any:
        """(C,) bool: the single models."""
        return self.first == self.third

    @property
    def is_agreement(self) -> Any:
        """(C,) bool: the agreement policies, which compare answers."""
        return self.second != self.third

    def loss(self, lam: Any) -> Any:
        """Return penalty + λ·cost of each candidate for each λ (L,): (L, C)."""
        return self.penalty + lam[:, None] * self.cost

    def best(self, lam: Any) -> "Candidates":
        """Return the candidate of the least loss for each λ: (L,)."""
        return self.take(self.loss(lam).argmin(1))

    def rungs(self) -> "Candidates":
        """Return the corners of the lower hull, by rising cost: (R,), `RESAMPLED_RUNGS` at most."""
        hull = lower_hull(self.cost, self.penalty)
        return self.take(hull[thin_hull(self.cost[hull], self.penalty[hull], RESAMPLED_RUNGS)])

    def padded(self) -> "Candidates":
        """Repeat the last candidate until there are `RESAMPLED_RUNGS`."""
        count = len(self.cost)
        return self.take(np.minimum(np.arange(max(RESAMPLED_RUNGS, count)), count - 1))

    def policies(self, agreement: bool | None = None) -> Policies:
        """Return the candidates as `Policies`: (C,).

        Args:
            agreement: include `agreements`; None: only if a candidate is an agreement policy.

        >>> none = np.zeros(2)
        >>> some = Candidates(3, *np.array([[0, 1], [2, 1], [2, 1]]), np.array([0.7, 0.0]), *[none] * 4)
        >>> some.policies().bounds[..., 0].tolist()
        [[0.7, 1.0, 0.0], [1.0, 0.0, 1.0]]
        """
        models, dtype, xp = np.arange(self.k), self.threshold.dtype, self.threshold.__array_namespace__()
        first, second, third = (place[:, None] == models for place in (self.first, self.second, self.third))
        thresholds = xp.where(second, self.fallback[:, None], NEVER_ANSWER)
        thresholds = xp.where(first, self.threshold[:, None], thresholds)
        thresholds = xp.where(third, ALWAYS_ANSWER, thresholds).astype(dtype)
        members = first | second | third
        abstentions = agreements = None
        if self.chain is not None:
            asked = ~xp.isnan(self.chain)
            is_chain = asked.any(1, keepdims=True)
            members = xp.where(is_chain, asked, members)
            thresholds = xp.where(is_chain, xp.where(asked, self.chain, NEVER_ANSWER), thresholds).astype(dtype)
        if self.abstain_threshold is not None:
            abstentions = xp.where(third, self.abstain_threshold[:, None], NEVER_ABSTAIN).astype(dtype)
            thresholds = xp.maximum(thresholds, abstentions)
        if self.is_agreement.any() if agreement is None else agreement:
            is_second = second & self.is_agreement[:, None]
            places = (xp.where(is_second, place[:, None], NO_MODEL) for place in (self.first, self.third))
            agreements = Agreements(*(place.astype(np.int32) for place in places))
        return Policies.from_cascades(thresholds, members, abstentions, agreements)


#: Abstention thresholds tried for each model, at most.
MAX_ABSTAIN_THRESHOLDS = 200


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ThresholdGrid:
    """M thresholds that divide n queries by their confidence; queries with equal confidences stay together."""

    order: Array  # (n,) the queries by rising confidence, then the queries that do not count
    last: Array  # (M,) index in `order` of the last query up to the threshold
    threshold: Array  # (M,) halfway to the next confidence; NEVER_ANSWER if the threshold divides nothing
    splits: Array  # (M,) bool: queries lie on both sides, and no earlier threshold is the same
    covers_all: Array  # (M,) bool: the threshold at the largest confidence, up to which every query lies
    included: Array  # (n,) bool: the queries that count

    @property
    def count(self) -> Array:
        """() number of queries that count."""
        return self.included.sum()

    def sums(self, values: Array) -> Array:
        """Sum values (n,) over the queries that count, up to each threshold: (M,)."""
        return jnp.cumsum(jnp.where(self.included, values, 0.0)[self.order])[self.last]

    def mean_up_to(self, values: Array) -> Array:
        """Return the part of the mean of values (n,) that comes from the queries up to each threshold: (M,)."""
        return divide(self.sums(values), self.count)

    def mean(self, values: Array, empty: float = 0.0) -> Array:
        """Return the mean of values (n,) over the queries that count; `empty` where there is none."""
        return divide(jnp.where(self.included, values, 0.0).sum(), self.count, empty)


def spread_thresholds(confidence: Array, included: Array, most: int, rising: Array | None = None) -> ThresholdGrid:
    """Spread at most `most` thresholds evenly over the confidences of the queries that count.

    Each threshold lies halfway between two confidences, so that rounding moves no query across.

    Args:
        confidence: (n,) confidences of the queries.
        included: (n,) bool: the queries that count.
        most: number of thresholds at most.
        rising: (n,) the queries by rising confidence, if the caller has sorted them: sorting is the slowest step.

    >>> grid = spread_thresholds(jnp.array([0.75, 0.25, 0.25]), jnp.ones(3, bool), 10)
    >>> grid.threshold.tolist(), grid.last.tolist(), grid.splits.tolist()
    ([0.5, 1.0, 1.0], [1, 1, 2], [True, False, False])
    """
    n = confidence.shape[0]
    count = included.sum()
    rising = jnp.argsort(confidence) if rising is None else rising
    is_included = included[rising]
    before = jnp.cumsum(is_included)  # the queries that count go first, in the same order
    place = jnp.where(is_included, before - 1, count + jnp.arange(n) - before)
    order = jnp.zeros_like(rising).at[place].set(rising, unique_indices=True)
    ordered = jnp.where(included, confidence, jnp.inf)[order]
    # The last query up to each threshold: evenly spread over the queries that count, then moved to the end of its ties.
    last = jnp.maximum(even_parts(count, min(n, most)) - 1, 0)
    last = jnp.searchsorted(ordered, ordered[last], side="right") - 1
    following = jnp.minimum(last + 1, n - 1)
    is_new = jnp.diff(last, prepend=-1) != 0
    low, high = ordered[last], ordered[following]
    splits = is_new & (last + 1 < count) & (high > low)
    middle = low + (high - low) / 2
    middle = jnp.where(middle < high, middle, low)  # the lower if no float lies between
    covers_all = is_new & (last + 1 == count)
    return ThresholdGrid(order, last, jnp.where(splits, middle, NEVER_ANSWER), splits, covers_all, included)


def even_parts(count: Array, parts: int) -> Array:
    """Return ⌈i · count / parts⌉ for i = 1, …, parts; i · count may exceed int32, so it is not formed."""
    i = np.arange(1, parts + 1)
    return count // parts * i - (-(count % parts) * i // parts)


def best_abstention(confidence: Array, right: Array, included: Array, worth: Array) -> tuple[Array, Array, Array]:
    """Return the abstention threshold that gains most over answering everything, for one model.

    The result is (threshold, gain per query, share without an answer), () each. The model abstains up to the threshold,
    which is NEVER_ABSTAIN if no threshold gains.

    Args:
        confidence: (n,) calibrated confidence.
        right: (n,) probability that the answer is right.
        included: (n,) bool: the queries that count.
        worth: () worth of an abstention, in right answers.

    >>> right = jnp.array([0.1, 0.9, 0.8])
    >>> [round(float(figure), 3) for figure in best_abstention(right, right, jnp.ones(3, bool), jnp.asarray(0.7))]
    [0.45, 0.2, 0.333]
    """
    grid = spread_thresholds(confidence, included, MAX_ABSTAIN_THRESHOLDS)
    gain = jnp.where(grid.splits | grid.covers_all, grid.sums(worth - right), -jnp.inf)
    best = jnp.argmax(gain)
    gains = gain[best] > 0
    threshold = jnp.where(gains, grid.threshold[best], NEVER_ABSTAIN)
    share = jnp.where(gains, grid.last[best] + 1.0, 0.0)
    return threshold, divide(jnp.maximum(gain[best], 0.0), grid.count), divide(share, grid.count)


#: Thresholds tried for each pair, at most.
MAX_THRESHOLDS = 400


def candidates_at_thresholds(
    grid: ThresholdGrid,
    models: Sequence[Any],
    k: int,
    abstain_threshold: Array | None,
    fallback: Any = ALWAYS_ANSWER,
    **figures: Array,
) -> Candidates:
    """Make the candidates that ask a first, second and third model, at M thresholds of the first: (M,).

    Args:
        grid: the thresholds.
        models: indices of the three models, of k.
        k: number of models.
        abstain_threshold: () confidence up to which the last model abstains; None: models do not abstain.
        fallback: () confidence of the second model up to which the third is asked, if answers are not known.
        figures: `penalty`, `cost` and `abstention` of the candidates, (M,) each.
    """
    zeros = jnp.zeros_like(grid.threshold)
    first, second, third = (jnp.zeros_like(grid.last) + model for model in models)
    bound = None if abstain_threshold is None else zeros + abstain_threshold
    return Candidates(k, first, second, third, grid.threshold, zeros + fallback, **figures, abstain_threshold=bound)


#: Most models in a chain.
MAX_CHAIN_LENGTH = 8

_MAX_TRIPLES = 2_500  # of models: 25 models have 2,300


def are_verdicts(logprob: np.ndarray, included: np.ndarray) -> bool:
    """Return whether all confidences are 0, 1 or unknown, and some model has two of these; arguments are (n, k).

    >>> included = np.ones((2, 2), bool)
    >>> are_verdicts(np.array([[0.0, -np.inf], [0.0, 0.0]]), included), are_verdicts(np.zeros((2, 2)), included)
    (True, False)
    """
    known = np.isin(logprob, np.array([0.0, -np.inf, NO_CONFIDENCE], logprob.dtype)) | ~included
    several = [np.unique(column[rows]).size > 1 for column, rows in zip(logprob.T, included.T, strict=True)]
    return bool(known.all() and any(several))


def score_chains(
    confidence: np.ndarray,
    right: np.ndarray,
    complete: np.ndarray,
    query_cost: np.ndarray,
    signal_cost: Array | None = None,
) -> Candidates | None:
    """Score chains of three or more models on the queries that all models answered; None where there are no chains.

    A greedy search grows a chain from each model, in the order of the models. It appends the later model that gains
    most right answers for its money on the queries that reach it. Every prefix is a candidate, and so are all triples
    if they are few.

    Args:
        confidence: (n, k) calibrated confidence.
        right: (n, k) probability that the answer is right, by blended labels.
        complete: (n,) bool: the queries that all models answered.
        query_cost: (n, k) money of each answer.
        signal_cost: (n, k) part of `query_cost` that the last model of a chain does not cost; None: there is none.

    >>> verdict = np.array([[0, 0, 1], [1, 0, 1], [0, 1, 1], [0, 0, 1]]) * 0.8 + 0.1
    >>> chains = score_chains(verdict, verdict > 0.5, np.ones(4, bool), np.tile([1.0, 1.0, 9.0], (4, 1)))
    >>> chains.chain.round(2).tolist(), chains.penalty.tolist(), chains.cost.tolist()
    ([[0.5, 0.5, 0.0]], [0.0], [6.25])
    """
    k, n = confidence.shape[1], int(complete.sum())
    if k < 3 or not n:
        return None
    confidence, right, query_cost = (np.asarray(column, float)[complete] for column in (confidence, right, query_cost))
    thresholds = np.array([_threshold_between_top_values(column) for column in confidence.T])
    signals = () if signal_cost is None else (np.asarray(signal_cost, float)[complete],)
    sums = _DeferredSums(confidence <= thresholds, right, query_cost, *signals)
    chains = {chain for first in range(k) for chain in _grow_chain(first, sums)}
    if k * (k - 1) * (k - 2) // 6 <= _MAX_TRIPLES:
        chains |= {*itertools.combinations(range(k), 3)}
    useful = sorted(chain for chain in chains if all(0 < thresholds[j] < 1 for j in chain[:-1]))
    if not useful:
        return None
    shares, bills = np.array([sums.of_chain(chain) for chain in useful]).T / n
    chain_thresholds = np.full((len(useful), k), np.nan)
    for row, chain in zip(chain_thresholds, useful, strict=True):
        row[list(chain)] = [*thresholds[list(chain[:-1])], ALWAYS_ANSWER]
    first, last = (np.array([chain[end] for chain in useful]) for end in (0, -1))
    zeros = np.zeros(len(useful))
    figures: Any = {"penalty": 1 - shares, "cost": bills, "abstention": zeros}
    figures |= {"threshold": zeros, "fallback": zeros, "chain": chain_thresholds}
    return Candidates(k, first, second=last, third=last, **figures)


class _DeferredSums:
    """Sums over the queries that several models defer: right answers, money and `signal_cost` of each of k models.

    The path of a query depends only on the set of models that defer it: queries with the same set are one row.
    """

    def __init__(self, defers: np.ndarray, *figures: np.ndarray) -> None:
        patterns, group = np.unique(np.packbits(defers, axis=1), axis=0, return_inverse=True)
        self.k = defers.shape[1]
        self._defers = np.unpackbits(patterns, axis=1, count=self.k).astype(bool).T
        columns = np.concatenate(figures, axis=1).T
        self._figures = np.stack([np.bincount(group.ravel(), column) for column in columns])
        self._cache: dict[frozenset[int], np.ndarray] = {}

    def deferred_by(self, models: Sequence[int]) -> np.ndarray:
        """Return the sums of each figure and model over the queries that all the given models defer: (2 or 3, k)."""
        key = frozenset(models)
        if key not in self._cache:
            reached = self._defers[list(models)].all(0)
            self._cache[key] = (self._figures @ reached.astype(float)).reshape(-1, self.k)
        return self._cache[key]

    def of_chain(self, chain: Sequence[int]) -> tuple[float, float]:
        """Return (right answers, money) of a chain."""
        reached = [self.deferred_by(chain[:length]) for length in range(len(chain))]
        kept = (
            (here - later)[0, model] for model, (here, later) in zip(chain, itertools.pairwise(reached), strict=False)
        )
        right = reached[-1][0, chain[-1]] + sum(kept)
        cost = sum(here[1, model] for model, here in zip(chain, reached, strict=True))
        return float(right), float(cost - sum(reached[-1][2:, chain[-1]]))


def _threshold_between_top_values(confidence: np.ndarray) -> float:
    """Return the threshold halfway between the two largest confidences; 1 if all confidences are equal."""
    values = np.unique(confidence)
    return float(values[-2:].mean()) if values.size > 1 else 1.0


def _grow_chain(first: int, sums: _DeferredSums) -> list[tuple[int, ...]]:
    """Grow a chain from one model greedily, and return its prefixes of three or more models."""
    chain = (first,)
    while len(chain) < MAX_CHAIN_LENGTH and (later := range(chain[-1] + 1, sums.k)):
        right, cost = sums.deferred_by(chain)[:2]
        worth = (right[later] - right[chain[-1]]) / np.maximum(cost[later], np.finfo(float).tiny)
        if worth.max() <= 0:
            break
        chain = (*chain, later[int(worth.argmax())])
    return [chain[:length] for length in range(3, len(chain) + 1)]
