"""A reference for the choice by labels, and for its error on held-out queries, by loops in plain numpy."""

import hashlib
import itertools
from typing import NamedTuple

import numpy as np

from helpers.selection_references import logistic
from rcjax.solving.frontier.points import ABSTAIN, NO_MODEL


class Pair(NamedTuple):
    """A single model (`first` is `second`), or a pair at a threshold, judged on some queries."""

    first: int
    second: int
    threshold: float
    error: float
    cost: float
    counted: float


def columns(log):
    """(logprob, correct, answered, query_cost), each (n, k): an answer that is not there costs its model's mean."""
    logprob, correct, answered, money, mean = (
        np.asarray(column) for column in (log.logprob, log.correct, log.answered, log.query_cost, log.cost)
    )
    return logprob, correct.astype(bool), answered.astype(bool), np.where(answered, money, mean)


def calibrated(log, train):
    """((n, k) confidence, {(i, j): (n,) how likely j is right by the confidence of i}) by the queries train (n, k)."""
    logprob, correct, *_ = columns(log)
    k = logprob.shape[1]
    own = np.stack([logistic(logprob[:, j], correct[:, j], train[:, j]) for j in range(k)], axis=1)
    pairs = itertools.combinations(range(k), 2)
    return own, {(i, j): logistic(logprob[:, i], correct[:, j], train[:, i] & train[:, j]) for i, j in pairs}


def every_policy(log, train, blending):
    """[Pair] every single model, and every pair at every threshold between confidences, on the queries train (n, k).

    A label y counts as (1 − a − b) y + a Φ + b P, what is expected moved so that it has the mean of the labels.
    """
    _, correct, _, query_cost = columns(log)
    confidence, conditional = calibrated(log, train)
    k, a, b = confidence.shape[1], float(blending.calibrated), float(blending.conditional)
    policies = []
    for j in range(k):
        rows = np.flatnonzero(train[:, j])
        error = 1 - correct[rows, j].mean()
        policies.append(Pair(j, j, 0.0, error, query_cost[rows, j].mean(), error))
    for i, j in conditional:
        rows = np.flatnonzero(train[:, i] & train[:, j])
        phi, mine, theirs = confidence[rows, i], correct[rows, i].astype(float), correct[rows, j].astype(float)
        likely = {"mine": phi, "theirs": confidence[rows, j], "conditional": conditional[i, j][rows]}
        likely = {name: own + ((mine if name == "mine" else theirs) - own).mean() for name, own in likely.items()}
        first = (1 - a - b) * mine + (a + b) * likely["mine"]
        second = (1 - a - b) * theirs + a * likely["theirs"] + b * likely["conditional"]
        for low, high in itertools.pairwise(np.unique(phi)):
            asks = phi <= (low + high) / 2
            # A first model that has answered more queries than the pair has costs what all of these cost.
            cost = policies[i].cost + np.where(asks, query_cost[rows, j], 0.0).mean()
            error, counted = (1 - np.where(asks, *both).mean() for both in ((second, first), (theirs, mine)))
            policies.append(Pair(i, j, (low + high) / 2, error, cost, counted))
    return policies


def useful(policies, k):
    """Of every policy of k models those than which no single model errs less and costs less, as counted."""
    return [
        own
        for place, own in enumerate(policies)
        if place < k or not any(o.counted < own.counted - 1e-12 and o.cost < own.cost for o in policies[:k])
    ]


def best_for(error, cost, lam=None, budget=None):
    """The place of the least error + λ·cost, or of the least error that a budget pays, or of what is cheapest."""
    if lam is not None:
        return int((error + lam * cost).argmin())
    fits = np.flatnonzero(cost <= budget)
    return int(fits[error[fits].argmin()] if fits.size else cost.argmin())


def mix_for(error, cost, lam=None, budget=None):
    """[(share, place)] of the mixture of two that is the best there is for a target, among all twos."""
    if lam is not None:
        return [(1.0, best_for(error, cost, lam=lam))]
    # What is cheapest, of equal ones the better; and what no budget needs to go beyond.
    end, beyond = np.lexsort((error, cost))[0], np.lexsort((cost, error))[0]
    for place, there in ((end, budget <= cost[end]), (beyond, budget >= cost[beyond])):
        if there:
            return [(1.0, int(place))]
    low, high = np.flatnonzero(cost <= budget), np.flatnonzero(cost > budget)
    share = (budget - cost[low])[:, None] / (cost[high] - cost[low][:, None])
    figure = (1 - share) * error[low][:, None] + share * error[high]
    row, column = np.unravel_index(figure.argmin(), figure.shape)
    return [(1 - share[row, column], int(low[row])), (share[row, column], int(high[column]))]


def dealt(queries, complete, folds, seed):
    """(n,) the fold of each query, by a hash of its name, the complete ones first, to each fold in turn."""
    order = [hashlib.sha256(f"fold {seed}:{query}".encode()).digest() for query in queries]
    fold = np.zeros(len(complete), int)
    for place, query in enumerate(sorted(range(len(complete)), key=lambda i: (not complete[i], order[i]))):
        fold[query] = place % folds
    return fold


def walk_by_hand(policies, place, confidence, right, query_cost, answer=None):
    """(wrong, money, abstained), each (n,), of one of some policies (L,)."""

    def go(query, j, asked):
        outcome = np.array([0.0, query_cost[query, j], 0.0])
        bounds, actions = np.asarray(policies.bounds)[place, j], np.asarray(policies.actions)[place, j]
        compared = NO_MODEL if policies.agreements is None else int(np.asarray(policies.agreements.earlier)[place, j])
        row = int(np.searchsorted(bounds, confidence[query, j]))  # the first with Φ at most its upper end
        goes = {}
        if compared in asked and answer[query, j] >= 0 and answer[query, compared] >= 0:
            same = answer[query, j] == answer[query, compared]
            goes[j if same else int(np.asarray(policies.agreements.differ)[place, j])] = 1.0
        else:
            goes[int(actions[row])] = 1.0
        for action, chance in goes.items():
            if action == j:
                outcome += chance * np.array([1.0 - right[query, j], 0.0, 0.0])
            elif action == ABSTAIN:
                outcome += chance * np.array([0.0, 0.0, 1.0])
            else:
                outcome += chance * go(query, action, {*asked, j})
        return outcome

    first = int(np.asarray(policies.first)[place])
    return np.array([go(query, first, set()) for query in range(len(confidence))]).T
