"""What held-out queries say of the error of a policy: what each of them lost, to bet on. All in float64.

Where judges count beside labels by hand, a query loses 1 − g + R/π · (g − y) by the model that answers (prediction-
powered inference: Angelopoulos, Bates, Fannjiang, Jordan & Zrnic 2023, Science 382): y its label, R whether it has one,
π how likely that was, g what the log that was tuned on predicts of it. Its expectation is the error's whatever g says.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from rcjax.frontier.choosing import InfeasibleError
from rcjax.frontier.frontier import MOST_RUNGS, Frontier
from rcjax.frontier.hull import position_weights
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.label_outcomes import LabelRegression, labelled_by_hand
from rcjax.replaying.packing import require_answers
from rcjax.replaying.walk import outcomes_on_log
from rcjax.tuning.betting import refuted, upper_limit
from rcjax.tuning.overlap import require_unseen

_HELD_OUT = 0.5  # of the queries of a log, where a guarantee is wanted and no other log given


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What became of n held-out queries at m positions; numpy's arrays, queries in an order that is random."""

    wrong: np.ndarray
    """(m, n) 1 for an error, 0 for none; what is expected over lots, the score that is lost, or what judges say."""
    refused: np.ndarray
    """(m, n) 1 for a refusal, or the probability of one."""
    most: np.ndarray
    """(n,) the largest error that each query could have had."""
    price: float
    """What a refusal counts, in errors."""

    @property
    def penalty(self) -> np.ndarray:
        """(m, n) errors, and refusals at their price."""
        return self.wrong + self.price * self.refused

    def errs_below(self, limit: float, level: float) -> np.ndarray:
        """(m,) whether the error, refusals at their price, is shown to be below a limit."""
        return refuted(self.penalty, limit, level, np.maximum(self.most, self.price))

    def error_bound(self, level: float, top: float | None = None) -> float:
        """Upper confidence limit of the error at the first position, refusals at their price; `top` is tried first."""
        top = max(1.0, self.price) if top is None else top
        return upper_limit(self.penalty[0], level, np.maximum(self.most, self.price), top)


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
        require_unseen(held_out, log)
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
    """A held-out log that the ladder of a frontier is tested on.

    Args:
        frontier: the frontier.
        log: the log, of the models of the frontier. Queries that lack a model which may be asked are left out.
        tuned_on: the log that was tuned on, where judges' verdicts count: its labels tell how far these are right.

    Raises InfeasibleError where the frontier has no policy with finite figures; LogError where no query is left, and
    where answers are to be compared and the log has none.
    """

    def __init__(self, frontier: Frontier, log: Log, tuned_on: Log | None = None) -> None:
        self.rungs = frontier.rungs
        if not self.rungs.size:
            raise InfeasibleError("the frontier has no policy with a finite predicted error and cost")
        policies = frontier.policies.take(np.resize(self.rungs, MOST_RUNGS))  # one shape is compiled
        require_answers(policies, log)
        log = labelled_by_hand(log) if tuned_on is None else log
        asked = np.asarray(policies.members).any(0) | (tuned_on is not None)
        names = [frontier.models[j] for j in np.flatnonzero(asked)]
        self.tested = log
        complete = np.flatnonzero(log.select(names).complete)
        if not len(complete):
            raise LogError(f"{log.source}: no query was answered by all of {', '.join(names)}: nothing to test on")
        self.log = log.take(np.random.default_rng(0).permutation(complete))
        right, self.most = np.asarray(self.log.correct, float), np.ones(len(complete))
        if tuned_on is not None:
            right, self.most = _corrected(self.log, tuned_on)
            has_chance = np.isfinite(self.most)  # behind the last label nothing is known of what is left
            right, self.most, self.log = right[has_chance], self.most[has_chance], self.log.take(has_chance)
        data = frontier.model.calibrators, self.log.logprob, right.astype(self.log.logprob.dtype), self.log.answered
        self._outcomes = outcomes_on_log(*data, frontier.model.cost, policies, self.log.answer)
        self._price = frontier.abstain_price or 0.0

    def evidence(self, positions: ArrayLike) -> Evidence:
        """What becomes of the queries at positions (m,) of the ladder."""
        weights = position_weights(np.asarray(positions, float), len(self.rungs))
        wrong, _, refused = (weights @ np.asarray(figure, float)[: len(self.rungs)] for figure in self._outcomes)
        return Evidence(wrong, refused, self.most, self._price)


def _corrected(log: Log, tuned_on: Log) -> tuple[np.ndarray, np.ndarray]:
    """(outcomes (n, k) that the labels correct, (n,) the largest error of each query; infinite behind the last label).

    The labelled answers of a model are a random sample of all: π is the share of labels among the answers to come,
    which is known before each.
    """
    labelled, right = log.labelled, np.asarray(log.correct, float)
    guess = LabelRegression.of(tuned_on).predict(log)[0]
    ahead = labelled[::-1].cumsum(0)[::-1]  # labels that are left to come; where there are none the chance is 0
    chance = ahead / np.arange(log.n_queries, 0, -1)[:, None]
    weight = np.where(labelled, 1 / np.where(labelled, chance, 1.0), 0.0)
    with np.errstate(divide="ignore"):
        return guess + weight * (right - guess), (1 / chance).max(1)
