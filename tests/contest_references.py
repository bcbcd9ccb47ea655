"""What is chosen by the labels of a log, and what becomes of it on queries left out: by loops in plain numpy."""

import itertools
from typing import NamedTuple

import numpy as np
from selection_references import logistic

from rcjax.frontier.policies import ABSTAIN, NOBODY
from rcjax.tuning.choices import RESERVE


class Pair(NamedTuple):
    """A single model (`first` is `second`), or a pair at a threshold, judged on some queries."""

    first: int
    second: int
    threshold: float
    error: float
    cost: float
    reserve: float
    counted: float


def columns(log):
    """(logprob, correct, answered, charge), each (n, k): an answer that is not there costs its model's mean."""
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


def every_policy(log, train, blend):
    """[Pair] every single model, and every pair at every threshold between confidences, on the queries train (n, k).

    A label y counts as (1 − a − b) y + a Φ + b P, what is expected moved so that it has the mean of the labels.
    """
    _, correct, _, charge = columns(log)
    confidence, crossed = calibrated(log, train)
    k, a, b = confidence.shape[1], float(blend.calibrated), float(blend.crossed)
    policies = []
    for j in range(k):
        rows = np.flatnonzero(train[:, j])
        error = 1 - correct[rows, j].mean()
        policies.append(Pair(j, j, 0.0, error, charge[rows, j].mean(), 0.0, error))
    for i, j in crossed:
        rows = np.flatnonzero(train[:, i] & train[:, j])
        phi, mine, theirs = confidence[rows, i], correct[rows, i].astype(float), correct[rows, j].astype(float)
        likely = {"mine": phi, "theirs": confidence[rows, j], "crossed": crossed[i, j][rows]}
        likely = {name: own + ((mine if name == "mine" else theirs) - own).mean() for name, own in likely.items()}
        first = (1 - a - b) * mine + (a + b) * likely["mine"]
        second = (1 - a - b) * theirs + a * likely["theirs"] + b * likely["crossed"]
        for low, high in itertools.pairwise(np.unique(phi)):
            asks = phi <= (low + high) / 2
            bill = charge[rows, i] + np.where(asks, charge[rows, j], 0.0)
            # A first model that has answered more queries than the pair has costs what all of these cost.
            cost = policies[i].cost + np.where(asks, charge[rows, j], 0.0).mean()
            error, counted = (1 - np.where(asks, *both).mean() for both in ((second, first), (theirs, mine)))
            spread = bill.std() / np.sqrt(len(rows))
            policies.append(Pair(i, j, (low + high) / 2, error, cost, RESERVE * spread, counted))
    return policies


def best_for(policies, lam=None, budget=None, max_error=None):
    """The one with the least error + λ·cost; the least error whose bill, and what is kept in hand, a budget pays; or
    the least bill of those that err so often at most, and where none does, the least error."""
    if lam is not None:
        return min(policies, key=lambda own: own.error + lam * own.cost)
    if max_error is not None:
        within = [own for own in policies if own.error <= max_error]
        return min(within, key=lambda own: own.cost) if within else min(policies, key=lambda own: own.error)
    within = [own for own in policies if own.cost + own.reserve <= budget]
    return min(within, key=lambda own: own.error) if within else min(policies, key=lambda own: own.cost + own.reserve)


def follow_bill(policy, confidence, correct, charge):
    """((n,) wrong, (n,) money) of a policy, each answer at its own charge."""
    i, j = policy.first, policy.second
    asks = (confidence[:, i] <= policy.threshold) & (i != j)
    wrong = ~np.where(asks, correct[:, j], correct[:, i])
    return wrong.astype(float), charge[:, i] + np.where(asks, charge[:, j], 0.0)


def dealt(complete, folds, seed):
    """(n,) the fold of each query: in a random order, the complete ones first, to each fold in turn."""
    order = np.random.default_rng(seed).permutation(len(complete))
    fold = np.zeros(len(complete), int)
    for place, query in enumerate(sorted(range(len(complete)), key=lambda i: (not complete[i], order[i]))):
        fold[query] = place % folds
    return fold


def by_folds(log, targets, blend, folds, seed):
    """(wrong (2, T, m), charge (2, T, m), told (2, T)) of single models, and of pairs too: a loop over the folds.

    m complete queries; T prices, then budgets, then limits on the error. `told` is what the queries of the choice say,
    over the folds as they have complete queries.
    """
    _, correct, answered, charge = columns(log)
    complete, n, k = answered.all(1), *correct.shape
    fold = dealt(complete, folds, seed)
    wanted = [{"lam": lam} for lam in targets.lam] + [{"budget": budget} for budget in targets.budgets]
    wanted += [{"max_error": error} for error in targets.errors]
    wrong, money, told = np.zeros((2, len(wanted), n)), np.zeros((2, len(wanted), n)), np.zeros((2, len(wanted)))
    for number in range(folds):
        out = fold == number
        train = answered & ~out[:, None]
        confidence, _ = calibrated(log, train)
        every = every_policy(log, train, blend)
        for arm, among in enumerate((every[:k], every)):
            for place, target in enumerate(wanted):
                own = best_for(among, **target)
                followed = follow_bill(own, confidence, correct, charge)
                wrong[arm, place, out], money[arm, place, out] = (figure[out] for figure in followed)
                told[arm, place] += own.error * (out & complete).sum() / complete.sum()
    return wrong[..., complete], money[..., complete], told


def walk_by_hand(policies, place, confidence, right, charge, answer=None):
    """(wrong, money, refused), each (n,), of one of some policies (L,)."""

    def go(query, j, asked):
        outcome = np.array([0.0, charge[query, j], 0.0])
        bounds, actions = np.asarray(policies.bounds)[place, j], np.asarray(policies.actions)[place, j]
        compared = NOBODY if policies.agreements is None else int(np.asarray(policies.agreements.earlier)[place, j])
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
