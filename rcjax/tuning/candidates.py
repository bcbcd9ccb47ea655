"""Tables of candidate policies: single models, pairs of models, policies that compare answers, and chains.

One record holds them all: one model is asked; where it is unsure, a second; and where their answers differ, a third.
A chain of more models has a threshold for each model.

Longer chains are candidates only where every confidence is the verdict of a check, 0 or 1. A model then has one
threshold: queries whose answer fails the check are deferred. On three public sets of programming tasks longer chains
have 7 to 47 % fewer failures for the same money. On eight logs whose confidences have more values they gain nothing.
The paper's Markov chain cannot score them, as attempts of one model fail on the same queries. So chains are scored by
walking the queries of the log itself.
"""

import dataclasses
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import jax
import numpy as np

from rcjax._core.batching import part
from rcjax._core.pytrees import Array
from rcjax.policy.decisions import NO_CONFIDENCE
from rcjax.solving.frontier.hull import lower_hull, position_weights, thinned
from rcjax.solving.frontier.points import ALWAYS_ANSWER, NEVER_ANSWER, NEVER_REFUSE, NOBODY, Agreements, Policies

#: Queries that blending weights, chains, gains and seconds are estimated on at most, and up to which replicates of a
#: bootstrap are fitted again: more would not change a choice.
ENOUGH_QUERIES = 5_000

#: Rungs of the ladders of folds and bootstrap replicates, more than a deployed ladder has (`frontier.MOST_RUNGS`); the
#: last rung is repeated, so that few shapes are compiled.
RESAMPLED_RUNGS = 32


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        *("first", "second", "third", "threshold", "fallback", "refusal"),
        *("error", "cost", "label_error", "abstention", "chain"),
    ),
    meta_fields=("k",),
)
@dataclasses.dataclass(frozen=True)
class Candidates:
    """A table of C policies over k models; jax arrays within compiled functions, numpy arrays elsewhere."""

    k: int
    first: Array
    """(C,) position of the model asked first."""
    second: Array
    """(C,) position of the model asked where the first is unsure; a single model has its first again."""
    third: Array
    """(C,) position of the model asked where these answers differ; the second again if answers are not compared."""
    threshold: Array
    """(C,) calibrated confidence up to which the second model is asked; ALWAYS_ANSWER for a single model."""
    fallback: Array
    """(C,) confidence of the second model up to which the third is asked, for queries whose answers are not known."""
    error: Array
    """(C,) error by blended labels, refusals at their price; inf for a threshold that divides no queries."""
    cost: Array
    """(C,) mean cost of the paths of the queries, in money per query."""
    label_error: Array
    """(C,) error by the labels alone; for policies that compare answers, the same as `error`."""
    abstention: Array
    """(C,) share of the queries that get no answer."""
    refusal: Array | None = None
    """(C,) confidence up to which the last model refuses; None: models do not refuse."""
    chain: Array | None = None
    """(C, k) thresholds of a chain's models; NaN for models that the chain does not ask, and for policies given by
    their first, second and third model; None: no policy is a chain."""

    def take(self, indices: Any) -> "Candidates":
        """Return the candidates at some positions."""
        return part(self, indices)

    @property
    def is_single(self) -> Any:
        """(C,) bool: the single models."""
        return self.first == self.third

    @property
    def compares(self) -> Any:
        """(C,) bool: the policies that compare answers."""
        return self.second != self.third

    def with_chains(self, others: "Candidates") -> "Candidates":
        """Append candidates that are chains; numpy arrays."""
        here = np.full((len(self.cost), self.k), np.nan) if self.chain is None else self.chain
        dtype = self.cost.dtype
        others = jax.tree.map(lambda leaf: leaf.astype(dtype) if leaf.dtype.kind == "f" else leaf, others)
        return concatenate(dataclasses.replace(self, chain=here.astype(dtype)), others)

    def loss(self, lam: Any) -> Any:
        """Return error + λ·cost of each candidate for each λ (L,): (L, C)."""
        return self.error + lam[:, None] * self.cost

    def best(self, lam: Any) -> "Candidates":
        """Return the candidate of the least loss for each λ: (L,)."""
        return self.take(self.loss(lam).argmin(1))

    def rungs(self) -> "Candidates":
        """Return the corners of the lower hull, by rising cost: (R,), `RESAMPLED_RUNGS` at most."""
        hull = lower_hull(self.cost, self.error)
        return self.take(hull[thinned(self.cost[hull], self.error[hull], RESAMPLED_RUNGS)])

    def padded(self) -> "Candidates":
        """Repeat the last candidate until there are `RESAMPLED_RUNGS`."""
        count = len(self.cost)
        return self.take(np.minimum(np.arange(max(RESAMPLED_RUNGS, count)), count - 1))

    def policies(self, comparing: bool | None = None, xp: Any = np) -> Policies:
        """Return the candidates as `Policies`: (C,).

        Args:
            comparing: include `agreements`; None: if a candidate compares answers.
            xp: numpy, or jax.numpy within a jitted function.

        >>> none = np.zeros(2)
        >>> some = Candidates(3, *np.array([[0, 1], [2, 1], [2, 1]]), np.array([0.7, 0.0]), *[none] * 5)
        >>> some.policies().bounds[..., 0].tolist()
        [[0.7, 1.0, 0.0], [1.0, 0.0, 1.0]]
        """
        models, dtype = np.arange(self.k), self.threshold.dtype
        first, second, third = (place[:, None] == models for place in (self.first, self.second, self.third))
        thresholds = xp.where(second, self.fallback[:, None], NEVER_ANSWER)
        thresholds = xp.where(first, self.threshold[:, None], thresholds)
        thresholds = xp.where(third, ALWAYS_ANSWER, thresholds).astype(dtype)
        members = first | second | third
        refusals = None
        agreements = None
        if self.chain is not None:
            asked = ~xp.isnan(self.chain)
            longer = asked.any(1, keepdims=True)
            members = xp.where(longer, asked, members)
            thresholds = xp.where(longer, xp.where(asked, self.chain, NEVER_ANSWER), thresholds).astype(dtype)
        if self.refusal is not None:
            refusals = xp.where(third, self.refusal[:, None], NEVER_REFUSE).astype(dtype)
            thresholds = xp.maximum(thresholds, refusals)
        if self.compares.any() if comparing is None else comparing:
            here = second & self.compares[:, None]
            places = (xp.where(here, place[:, None], NOBODY) for place in (self.first, self.third))
            agreements = Agreements(*(place.astype(np.int32) for place in places))
        return Policies.of_cascades(thresholds, members, refusals, xp, agreements)


def concatenate(*several: Candidates, xp: Any = np) -> Candidates:
    """Concatenate tables of candidates; `xp` is numpy, or jax.numpy within a jitted function."""
    return jax.tree.map(lambda *leaves: xp.concatenate(leaves), *several)


_NONE = np.zeros(0)


class Targets(NamedTuple):
    """T = G + B targets that policies are chosen for, in this order; numpy arrays."""

    lam: np.ndarray = _NONE
    """(G,) λ, the errors that a unit of money is worth; the best policy has the least error + λ·cost."""
    budgets: np.ndarray = _NONE
    """(B,) budgets, in money per query; the best policy has the least error within the budget."""

    @property
    def lam_slice(self) -> slice:
        """Slice of the λ among all targets."""
        return slice(len(self.lam))

    @property
    def within(self) -> slice:
        """Slice of the budgets among all targets."""
        return slice(len(self.lam), None)


class ChosenPolicies(NamedTuple):
    """The policies chosen for T targets, as mixtures of rungs; numpy arrays."""

    rungs: Candidates
    """(R,) the rungs."""
    weights: np.ndarray
    """(T, R) share of the queries that goes by each rung."""

    @property
    def error(self) -> np.ndarray:
        """(T,) in-sample error, refusals at their price."""
        return self.weights @ self.rungs.error

    def padded(self) -> "ChosenPolicies":
        """Repeat the last rung, with the weight 0, until there are `RESAMPLED_RUNGS`."""
        count = len(self.rungs.cost)
        weights = np.pad(self.weights, ((0, 0), (0, max(RESAMPLED_RUNGS - count, 0))))
        return ChosenPolicies(self.rungs.padded(), weights)


def choose(table: Candidates, targets: Targets) -> ChosenPolicies:
    """Choose a policy for each target: a corner of the hull for a price, a mixture of two corners for a budget.

    >>> models, error, cost = np.arange(3), np.array([0.3, 0.2, 0.1]), np.array([1.0, 2.0, 9.0])
    >>> table = Candidates(3, *[models] * 3, *np.zeros((2, 3)), error, cost, error, np.zeros(3))
    >>> choose(table, Targets(np.array([0.05]), np.array([1.5]))).weights.tolist()
    [[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]
    """
    rungs = table.rungs()
    place = np.arange(len(rungs.cost), dtype=float)
    at = [rungs.loss(targets.lam).argmin(1), np.interp(targets.budgets, rungs.cost, place)]
    return ChosenPolicies(rungs, position_weights(np.concatenate(at), len(place)))


def choose_unmixed(table: Candidates, targets: Targets) -> ChosenPolicies:
    """Choose one candidate, unmixed, for each target; the cheapest where no candidate is within a budget."""
    fits = table.cost <= targets.budgets[:, None]
    within = np.where(fits.any(1), np.where(fits, table.error, np.inf).argmin(1), table.cost.argmin())
    best = np.concatenate([table.loss(targets.lam).argmin(1), within])
    return ChosenPolicies(table, position_weights(best, len(table.cost)))


#: Most models in a chain.
LONGEST_CHAIN = 8

_MOST_TRIPLES = 2_500  # of models: 25 models have 2,300


def are_verdicts(logprob: np.ndarray, present: np.ndarray) -> bool:
    """Return whether all confidences are 0, 1 or unknown, and a model has at least two of these; (n, k) each.

    >>> present = np.ones((2, 2), bool)
    >>> are_verdicts(np.array([[0.0, -np.inf], [0.0, 0.0]]), present), are_verdicts(np.zeros((2, 2)), present)
    (True, False)
    """
    known = np.isin(logprob, np.array([0.0, -np.inf, NO_CONFIDENCE], logprob.dtype)) | ~present
    several = [np.unique(column[rows]).size > 1 for column, rows in zip(logprob.T, present.T, strict=True)]
    return bool(known.all() and any(several))


def score_chains(
    confidence: np.ndarray, right: np.ndarray, complete: np.ndarray, charge: np.ndarray
) -> Candidates | None:
    """Score chains of three or more models on the queries that all models answered; None where there are no chains.

    A greedy search grows a chain from each model, in the order of the models. It appends the later model that gains
    most right answers for its money on the queries that reach it. Every prefix is a candidate, and so are all triples.

    Args:
        confidence: (n, k) calibrated confidence.
        right: (n, k) probability that the answer is right, by blended labels.
        complete: (n,) bool: the queries that all models answered.
        charge: (n, k) money of each answer.

    >>> verdict = np.array([[0, 0, 1], [1, 0, 1], [0, 1, 1], [0, 0, 1]]) * 0.8 + 0.1
    >>> tried = score_chains(verdict, verdict > 0.5, np.ones(4, bool), np.tile([1.0, 1.0, 9.0], (4, 1)))
    >>> tried.chain.round(2).tolist(), tried.error.tolist(), tried.cost.tolist()
    ([[0.5, 0.5, 0.0]], [0.0], [6.25])
    """
    k, rows = confidence.shape[1], np.flatnonzero(complete)[:ENOUGH_QUERIES]
    if k < 3 or not rows.size:
        return None
    confidence, right, charge = (np.asarray(of, float)[rows] for of in (confidence, right, charge))
    cuts = np.array([_cut(column) for column in confidence.T])
    passes = confidence <= cuts
    chains = {chain for first in range(k) for chain in _grow_chain(first, passes, right, charge)}
    if k * (k - 1) * (k - 2) // 6 <= _MOST_TRIPLES:
        chains |= {*combinations(range(k), 3)}
    useful = sorted(chain for chain in chains if all(0 < cuts[j] < 1 for j in chain[:-1]))
    if not useful:
        return None
    figures = np.array([_walk_chain(chain, passes, right, charge) for chain in useful])
    places = np.full((len(useful), k), np.nan)
    for row, chain in zip(places, useful, strict=True):
        row[list(chain)] = [*cuts[list(chain[:-1])], ALWAYS_ANSWER]
    first, last = (np.array([chain[end] for chain in useful]) for end in (0, -1))
    level = np.zeros(len(useful))
    judged: Any = {
        "error": 1 - figures[:, 0],
        "cost": figures[:, 1],
        "label_error": 1 - figures[:, 0],
        "abstention": level,
    }
    return Candidates(k, first, last, last, level, level, **judged, chain=places)


def _cut(confidence: np.ndarray) -> float:
    """Return the threshold halfway between the two largest confidences; 1 where all confidences are equal.

    Answers that failed their check lie below it.
    """
    values = np.unique(confidence)
    return float(values[-2:].mean()) if values.size > 1 else 1.0


def _grow_chain(first: int, passes: np.ndarray, right: np.ndarray, charge: np.ndarray) -> list[tuple[int, ...]]:
    """Grow a chain from one model greedily; its prefixes of three or more models."""
    chain, reaching, grown = [first], np.ones(len(passes), bool), list[tuple[int, ...]]()
    while len(chain) < LONGEST_CHAIN:
        passed, later = reaching & passes[:, chain[-1]], range(chain[-1] + 1, passes.shape[1])
        if not passed.any() or not later:
            break
        gains = right[passed][:, later].sum(0) - right[passed, chain[-1]].sum()
        worth = gains / np.maximum(charge[passed][:, later].sum(0), np.finfo(float).tiny)
        if worth.max() <= 0:
            break
        chain.append(later[int(worth.argmax())])
        reaching = passed
        grown += [tuple(chain)] if len(chain) > 2 else []
    return grown


def _walk_chain(
    chain: tuple[int, ...], passes: np.ndarray, right: np.ndarray, charge: np.ndarray
) -> tuple[float, float]:
    """Return (share of right answers, money per query) of a chain."""
    at, answered, spent = np.ones(len(passes), bool), np.zeros(len(passes)), np.zeros(len(passes))
    for j in chain:
        answered, spent = np.where(at, right[:, j], answered), spent + np.where(at, charge[:, j], 0.0)
        at = at & passes[:, j]
    return float(answered.mean()), float(spent.mean())
