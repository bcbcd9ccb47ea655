"""Policies to choose from, judged by labels: single models, pairs of models, policies that compare answers, and chains.

One record holds them all: one model is asked; where it is unsure, a second; and where their answers differ, a third.
A chain of more models has a threshold for each.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from rcjax._core.batching import part
from rcjax.frontier.hull import lower_hull, position_weights, thinned
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER, NEVER_REFUSE, NOBODY, Agreements, Policies

#: Rungs of the ladders that folds and replicates stand on, filled up by the last one: so few shapes are compiled.
RUNGS = 32


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        *("first", "second", "third", "threshold", "fallback", "refusal"),
        *("error", "cost", "counted", "abstention", "chain"),
    ),
    meta_fields=("k",),
)
@dataclasses.dataclass(frozen=True)
class Candidates:
    """C policies over k models; arrays of jax's inside of compiled functions, of numpy's outside."""

    k: int
    first: Any
    """(C,) the model asked first."""
    second: Any
    """(C,) the model asked where the first is unsure; the first again where none is."""
    third: Any
    """(C,) the model asked where the answers of these two differ; the second again where none are compared."""
    threshold: Any
    """(C,) calibrated confidence up to which the second is asked; ALWAYS_ANSWER for a single model."""
    fallback: Any
    """(C,) confidence of the second up to which the third is asked where an answer is not known."""
    error: Any
    """(C,) as judged, a refusal at its price; inf for a threshold that parts no queries."""
    cost: Any
    """(C,) of the queries, each at what its path costs."""
    counted: Any
    """(C,) the error by the labels alone; of policies that compare answers, as judged."""
    abstention: Any
    """(C,) share of the queries that get no answer."""
    refusal: Any = None
    """(C,) confidence up to which the last model refuses; None: none does."""
    chain: Any = None
    """(C, k) thresholds of a chain's models; NaN of models that it does not ask, and of all where the policy is given
    by its first, second and third model. None: no policy is a chain."""

    def take(self, indices: Any) -> "Candidates":
        """Some of them, by position."""
        return part(self, indices)

    @property
    def alone(self) -> Any:
        """(C,) bool: single models, whose errors are counted, and which nothing was chosen for."""
        return self.first == self.third

    @property
    def compares(self) -> Any:
        """(C,) bool: those that go by whether answers are equal."""
        return self.second != self.third

    def with_chains(self, others: "Candidates") -> "Candidates":
        """These, and others that are chains; numpy's arrays."""
        here = np.full((len(self.cost), self.k), np.nan) if self.chain is None else self.chain
        dtype = self.cost.dtype
        others = jax.tree.map(lambda leaf: leaf.astype(dtype) if leaf.dtype.kind == "f" else leaf, others)
        return together(dataclasses.replace(self, chain=here.astype(dtype)), others)

    def loss(self, lam: Any) -> Any:
        """(L, C) error + λ·cost for each λ (L,)."""
        return self.error + lam[:, None] * self.cost

    def best(self, lam: Any) -> "Candidates":
        """(L,) the best for each λ (L,)."""
        return self.take(self.loss(lam).argmin(1))

    def rungs(self) -> "Candidates":
        """(R,) the corners of their lower hull, by rising cost: at most `RUNGS`."""
        hull = lower_hull(self.cost, self.error)
        return self.take(hull[thinned(self.cost[hull], self.error[hull], RUNGS)])

    def filled(self) -> "Candidates":
        """The same, filled up to `RUNGS` policies by the last one."""
        count = len(self.cost)
        return self.take(np.minimum(np.arange(max(RUNGS, count)), count - 1))

    def policies(self, comparing: bool | None = None, xp: Any = np) -> Policies:
        """(C,) what they do.

        Args:
            comparing: whether to give policies that may compare answers; None: where one of these does.
            xp: numpy, or jax.numpy for use inside a jitted function.

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
        members, refusals, agreements = first | second | third, None, None
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


def together(*several: Candidates, xp: Any = np) -> Candidates:
    """All of several candidates, one after the other; `xp` is numpy, or jax.numpy within a jitted function."""
    return jax.tree.map(lambda *leaves: xp.concatenate(leaves), *several)


_NONE = np.zeros(0)


class Targets(NamedTuple):
    """What policies are chosen for, T = G + B targets in this order: numpy's arrays."""

    lam: np.ndarray = _NONE
    """(G,) prices, in errors per unit of money: the least error + λ·cost."""
    budgets: np.ndarray = _NONE
    """(B,) money per query: the least error whose bill keeps to it."""

    @property
    def prices(self) -> slice:
        """Where the prices stand among all targets."""
        return slice(len(self.lam))

    @property
    def within(self) -> slice:
        """Where the budgets stand."""
        return slice(len(self.lam), None)


class ChosenPolicies(NamedTuple):
    """Where T targets stand among some policies; numpy's arrays."""

    rungs: Candidates
    """(R,)"""
    weights: np.ndarray
    """(T, R) the share of the queries that goes by each."""

    @property
    def error(self) -> np.ndarray:
        """(T,) as the queries of the choice say, refusals at their price."""
        return self.weights @ self.rungs.error

    def filled(self) -> "ChosenPolicies":
        """The same, of `RUNGS` rungs, if there are not more."""
        count = len(self.rungs.cost)
        weights = np.pad(self.weights, ((0, 0), (0, max(RUNGS - count, 0))))
        return ChosenPolicies(self.rungs.filled(), weights)


def choose(table: Candidates, targets: Targets) -> ChosenPolicies:
    """Where targets stand: a price at a corner of the hull, a budget between two.

    >>> models, error, cost = np.arange(3), np.array([0.3, 0.2, 0.1]), np.array([1.0, 2.0, 9.0])
    >>> table = Candidates(3, *[models] * 3, *np.zeros((2, 3)), error, cost, error, np.zeros(3))
    >>> choose(table, Targets(np.array([0.05]), np.array([1.5]))).weights.tolist()
    [[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]
    """
    rungs = table.rungs()
    place = np.arange(len(rungs.cost), dtype=float)
    at = [rungs.loss(targets.lam).argmin(1), np.interp(targets.budgets, rungs.cost, place)]
    return ChosenPolicies(rungs, position_weights(np.concatenate(at), len(place)))


def choose_one(table: Candidates, targets: Targets) -> ChosenPolicies:
    """The best single policy for each target: the cheapest where none keeps to a budget."""
    fits = table.cost <= targets.budgets[:, None]
    within = np.where(fits.any(1), np.where(fits, table.error, np.inf).argmin(1), table.cost.argmin())
    best = np.concatenate([table.loss(targets.lam).argmin(1), within])
    return ChosenPolicies(table, position_weights(best, len(table.cost)))
