"""Is a mean below a limit? By betting: exact in finite samples, for variables whose bounds are known one by one.

A gambler starts with 1 and stakes λ_t on every variable against its expectation's being m or more,

    K_t = K_{t−1} · (1 + λ_t (m − X_t))

If it is, K is a supermartingale, and exceeds 1/α with a probability of α at most, ever (Ville's inequality): so
1/max K is a p-value. λ_t depends on what came before: it is the stake that grows fastest for the mean and variance so
far (aGRAPA), and so small that no X_t can ruin (Waudby-Smith & Ramdas 2024, "Estimating means of bounded random
variables by betting", JRSS B 86(1), sections 4 and B.3).
"""

from __future__ import annotations

import numpy as np
from jax.typing import ArrayLike

from rcjax.frontier.frontier import Frontier
from rcjax.logs.log import Log
from rcjax.model.label_regression import LabelRegression
from rcjax.replaying.packing import pack_frontier
from rcjax.replaying.walk import outcomes_on_log

_MOST_STAKED = 0.75  # of what could be lost at once


def betting_p_value(values: ArrayLike, most: ArrayLike, limit: ArrayLike) -> np.ndarray:
    """(…) p-value of the hypothesis that variables, one after the other, have an expectation of `limit` or more.

    Args:
        values: (n,) the variables, in an order that is not theirs: random, or that of a clock.
        most: (n,) the largest value that each could have, at least `limit`; known before it is seen.
        limit: (…) the limits.

    >>> values = np.tile([0.0, 0.0, 0.0, 1.0], 100)
    >>> betting_p_value(values, np.ones(400), [0.2, 0.25, 0.4]).round(4).tolist()
    [0.945, 0.8525, 0.0]
    """
    values, most, limits = (np.asarray(column, float) for column in (values, most, limit))
    # As if one variable had been seen before: ½, and a variance of ¼.
    count = np.arange(1.0, len(values) + 2)
    mean = np.cumsum(np.append(0.5, values)) / count
    squares = np.cumsum(np.append(0.25, (values - mean[1:]) ** 2))
    mean, variance = mean[:-1], squares[:-1] / count[:-1]

    def log_wealth(limit: float) -> float:
        """The logarithm of the most that the gambler has had."""
        gap, room = limit - mean, np.maximum(most - limit, 1e-12)
        stake = np.clip(gap / (variance + gap**2), 0.0, _MOST_STAKED / room)
        wealth = np.cumsum(np.log1p(np.maximum(stake * (limit - values), -1 + 1e-12)))
        return max(0.0, float(wealth.max(initial=0.0)))

    return np.exp(-np.array([log_wealth(float(limit)) for limit in limits.ravel()]).reshape(limits.shape))


class BoundedLosses:
    """What n held-out queries lose under each of L policies, as variables to bet on, in an order that is random."""

    def __init__(self, values: np.ndarray, most: np.ndarray) -> None:
        self.values = values  # (L, n)
        self.most = most  # (n,)

    def p_value(self, policy: int, limit: ArrayLike) -> np.ndarray:
        """Of the hypothesis that a policy, by its position, loses `limit` or more on average."""
        return betting_p_value(self.values[policy], np.maximum(self.most, limit), limit)


def judged_losses(frontier: Frontier, log: Log, tuned_on: Log, price: float = 0.0) -> BoundedLosses:
    """The losses of the policies of a frontier on held-out queries few of whose answers have labels by hand.

    A loss is 1 − g + R/π · (g − y) of the model that answers: its expectation is the error's, whatever g says. g is
    predicted by the log that was tuned on. π is told by the log; where it is not, the labelled answers of a model are a
    random sample of all, and π is the share of labels among the answers to come, which is known before each.

    Args:
        frontier: L policies.
        log: the held-out log, of the models of the frontier, all of which answered every query.
        tuned_on: the log that was tuned on, of the same models and judges.
        price: what a refusal counts.
    """
    assert log.hand is not None
    order = np.random.default_rng(0).permutation(log.n_queries)
    log = log.take(order)
    labelled, right = log.labelled, np.asarray(log.correct, float)
    guess = LabelRegression.of(tuned_on).predict(log)[0]
    chance = _chances(log)
    weight = np.where(labelled, 1 / np.where(labelled, chance, 1.0), 0.0)
    outcome = guess + weight * (right - guess)
    values = _losses(frontier, log, outcome.astype(log.logprob.dtype), price)
    has_chance = (chance > 0).all(1)  # behind the last label nothing is known of what is left
    most = (1 / np.where(chance > 0, chance, 1.0)).max(1)
    return BoundedLosses(values[:, has_chance], np.maximum(most, price)[has_chance])


def scored_losses(frontier: Frontier, log: Log, price: float = 0.0) -> BoundedLosses:
    """The losses of the policies of a frontier on held-out queries whose answers have scores: from 0 to 1 each.

    Args:
        frontier: L policies.
        log: the held-out log, of the models of the frontier; queries that lack a model that may be asked are left out.
        price: what a refusal counts.
    """
    packed = pack_frontier(frontier, log.logprob.dtype)
    asked = log.select([name for name, used in zip(log.models, packed.asked, strict=True) if used])
    rows = np.random.default_rng(0).permutation(np.flatnonzero(asked.complete))
    log = log.take(rows)
    return BoundedLosses(_losses(frontier, log, log.correct, price), np.full(len(rows), max(1.0, price)))


def _losses(frontier: Frontier, log: Log, correct: ArrayLike, price: float) -> np.ndarray:
    """(L, n) what each policy loses on each query, answers being right as (n, k) says."""
    data = frontier.model.calibrators, log.logprob, correct, log.answered, log.cost
    outcomes = outcomes_on_log(*data, frontier.policies, log.answer)
    return np.asarray(outcomes.wrong, float) + price * np.asarray(outcomes.refused, float)


def _chances(log: Log) -> np.ndarray:
    """(n, k) the probability that an answer is labelled, given those before it; 0 where none is left to come."""
    ahead = log.labelled[::-1].cumsum(0)[::-1]
    return ahead / np.arange(log.n_queries, 0, -1)[:, None]
