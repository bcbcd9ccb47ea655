"""The scores of chains of three or more models, for logs whose confidences are verdicts of a check.

Verdicts are 0 or 1, so each model has one threshold: queries whose answer fails the check are deferred. On three public
sets of programming tasks longer chains have 7 to 47 % fewer failures for the same money. On eight logs whose
confidences have more values, they gain nothing, and are no candidates. The paper's Markov chain cannot score them, as
attempts of one model fail on the same queries. So chains are scored on the queries of the log themselves.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from rcjax._core.batching import Array
from rcjax.policy.decisions import NO_CONFIDENCE
from rcjax.solving.frontier.points import ALWAYS_ANSWER
from rcjax.tuning.candidate_table import Candidates

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
    places = np.full((len(useful), k), np.nan)
    for row, chain in zip(places, useful, strict=True):
        row[list(chain)] = [*thresholds[list(chain[:-1])], ALWAYS_ANSWER]
    first, last = (np.array([chain[end] for chain in useful]) for end in (0, -1))
    level = np.zeros(len(useful))
    figures: Any = {"penalty": 1 - shares, "cost": bills, "abstention": level}
    return Candidates(k, first, second=last, third=last, threshold=level, fallback=level, **figures, chain=places)


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
