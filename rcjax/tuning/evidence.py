"""What held-out queries say of the error and the cost of a policy: what each of them lost, to bet on. All in float64.

Where judges count beside labels by hand, a query loses 1 − g + R/π · (g − y) by the model that answers (prediction-
powered inference: Angelopoulos, Bates, Fannjiang, Jordan & Zrnic 2023, Science 382): y its label, R whether it has one,
π how likely that was, g what the log that was tuned on predicts of it. Its expectation is the error's whatever g says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rcjax.frontier.frontier import Frontier
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.label_outcomes import LabelRegression, labelled_by_hand
from rcjax.replaying.packing import require_answers
from rcjax.replaying.walk import outcomes_on_log
from rcjax.tuning.betting import AT_ONCE, refuted, upper_limit
from rcjax.tuning.overlap import overlap, require_unseen

_HELD_OUT = 0.5  # of the queries of a log, where a guarantee is wanted and no other log given


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What became of n held-out queries under m policies; numpy's arrays, queries in an order that is random."""

    wrong: np.ndarray
    """(m, n) 1 for an error, 0 for none; what is expected over lots, the score that is lost, or what judges say."""
    refused: np.ndarray
    """(m, n) 1 for a refusal, or the probability of one."""
    cost: np.ndarray
    """(m, n) money, each answer at its model's mean cost."""
    most: np.ndarray
    """(n,) the largest error that each query could have had."""
    price: float
    """What a refusal counts, in errors."""
    low: np.ndarray
    """(m,) the least that a query can cost: the first model alone."""
    high: np.ndarray
    """(m,) the most: every model that may be asked."""

    @property
    def penalty(self) -> np.ndarray:
        """(m, n) errors, and refusals at their price."""
        return self.wrong + self.price * self.refused

    def errs_below(self, limit: float, level: float) -> np.ndarray:
        """(m,) whether the error, refusals at their price, is shown to be below a limit."""
        return refuted(self.penalty, limit, level, np.maximum(self.most, self.price))

    def costs_below(self, limit: float, level: float) -> np.ndarray:
        """(m,) whether the cost is shown to be below a limit; that no query can cost more needs no test."""
        certain = limit * (1 + 1e-9) >= self.high
        return certain | ((limit > self.low) & refuted(self._scaled, (limit - self.low) / self._width, level))

    def error_bound(self, level: float, top: float | None = None) -> float:
        """Upper confidence limit of the error of the first policy, refusals at their price; `top` is tried first."""
        top = max(1.0, self.price) if top is None else top
        return upper_limit(self.penalty[0], level, np.maximum(self.most, self.price), top)

    def cost_bound(self, level: float, top: float = np.inf) -> float:
        """Upper confidence limit of the cost of the first policy; `top` is tried first."""
        low, high, width = float(self.low[0]), float(self.high[0]), float(self._width[0])
        return min(high, low + width * upper_limit(self._scaled[0], level, top=min(1.0, (top - low) / width)))

    @property
    def _width(self) -> np.ndarray:
        return np.where(self.high > self.low, self.high - self.low, 1.0)

    @property
    def _scaled(self) -> np.ndarray:
        """(m, n) how far the cost of each query is on the way from the least to the most."""
        return np.clip((self.cost - self.low[:, None]) / self._width[:, None], 0.0, 1.0)


def hold_out(log: Log, held_out: Log | None, confidence: float | None, judged: bool = False) -> tuple[Log, Log | None]:
    """(the queries to tune on, those of the test; None without a guarantee).

    Args:
        log: the log.
        held_out: a log for the test; None: half of the queries of `log`, drawn at random, where there is a confidence.
        confidence: of the guarantee; None for none.
        judged: whether judges' verdicts count for it. Where only labels by hand do, half of the queries that have them
            are held out: the others are of no use to the test.

    Raises LogError where the two logs share queries, or labels are too few.

    >>> import rcjax
    >>> tuned_on, tested = hold_out(rcjax.sample_log(100, seed=0), None, 0.95)
    >>> tuned_on.n_queries, tested.n_queries
    (50, 50)
    """
    if held_out is not None:
        held_out = held_out.select(log.models).with_waiting(log.second_cost)
        require_unseen(held_out, overlap(held_out, log))
        return log, held_out
    if confidence is None:
        return log, None
    if log.hand is None or judged:
        tested, rest = log.split(_HELD_OUT, seed=0)
        return rest, tested
    whole = np.flatnonzero((log.labelled | ~np.asarray(log.answered)).all(1))
    if len(whole) < 2:
        raise LogError(f"{log.source}: fewer than two queries have labels for all answers: nothing to test on")
    chosen = np.random.default_rng(0).permutation(whole)[: round(_HELD_OUT * len(whole))]
    return log.take(np.setdiff1d(np.arange(log.n_queries), chosen)), log.take(np.sort(chosen))


class HeldOut:
    """A held-out log that a frontier's policies are tested on.

    Args:
        frontier: the frontier.
        log: the log, of the models of the frontier. Queries that lack a model which may be asked are left out.
        tuned_on: the log that was tuned on, where judges' verdicts count: its labels tell how far these are right.

    Raises LogError where no query is left, and where answers are to be compared and the log tells none.
    """

    def __init__(self, frontier: Frontier, log: Log, tuned_on: Log | None = None) -> None:
        require_answers(frontier.policies, log)
        log = labelled_by_hand(log) if tuned_on is None else log
        names = frontier.models if tuned_on is not None else _asked(frontier)
        self.tested = log
        complete = np.flatnonzero(log.select(names).complete)
        if not len(complete):
            raise LogError(f"{log.source}: no query was answered by all of {', '.join(names)}: nothing to test on")
        self.frontier, self.log = frontier, log.take(np.random.default_rng(0).permutation(complete))
        self.right, self.most = np.asarray(self.log.correct, float), np.ones(len(complete))
        if tuned_on is not None:
            self.right, self.most = _corrected(self.log, tuned_on)
            has_chance = np.isfinite(self.most)  # behind the last label nothing is known of what is left
            self.right, self.most, self.log = self.right[has_chance], self.most[has_chance], self.log.take(has_chance)

    def evidence(self, indices: Sequence[int]) -> Evidence:
        """Of policies, by their positions on the frontier."""
        frontier, log, cost = self.frontier, self.log, np.asarray(self.frontier.model.cost, float)
        m, filled = len(indices), np.resize(indices, -(-len(indices) // AT_ONCE) * AT_ONCE)  # few lengths are compiled
        data = frontier.model.calibrators, log.logprob, self.right.astype(log.logprob.dtype), log.answered
        outcomes = outcomes_on_log(*data, frontier.model.cost, frontier.policies.take(filled), log.answer)
        wrong, charge, refused = (np.asarray(figure[:m], float) for figure in outcomes)
        low, high = cost[np.asarray(frontier.first)[indices]], np.asarray(frontier.members)[indices] @ cost
        return Evidence(wrong, refused, charge, self.most, frontier.abstain_price or 0.0, low, high)


def _asked(frontier: Frontier) -> list[str]:
    """The models that some policy may ask."""
    return [name for j, name in enumerate(frontier.models) if np.asarray(frontier.members)[:, j].any()]


def _corrected(log: Log, tuned_on: Log) -> tuple[np.ndarray, np.ndarray]:
    """(outcomes (n, k) that the labels correct, (n,) the largest error of each query; infinite behind the last label).

    The labelled answers of a model are a random sample of all: π is the share of labels among the answers to come,
    which is known before each.
    """
    labelled, right = log.labelled, np.asarray(log.correct, float)
    guess, chance = LabelRegression.of(tuned_on).predict(log)[0], _chances(log)
    weight = np.where(labelled, 1 / np.where(labelled, chance, 1.0), 0.0)
    with np.errstate(divide="ignore"):
        return guess + weight * (right - guess), (1 / chance).max(1)


def _chances(log: Log) -> np.ndarray:
    """(n, k) the probability that an answer is labelled, given those before it; 0 where none is left to come."""
    ahead = log.labelled[::-1].cumsum(0)[::-1]
    return ahead / np.arange(log.n_queries, 0, -1)[:, None]
