"""Policies of a frontier, tuned again on draws of a log's queries by all that led to it.

Where the labels chose, they choose again, what is best within the costs of the points; how policies of a search by the
model are solved again, `by_model` tells.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from rcjax._core.batching import stack
from rcjax._core.size_classes import fill_up
from rcjax._core.threads import side_by_side
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.policies import Policies, either
from rcjax.frontier.refusal import refusal_at
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted, calibrate_log
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import expected_log
from rcjax.tuning.choices import Targets, choose, judge_all
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_weights import charges, judging_of


class Replicates(NamedTuple):
    """What each replicate would do; B replicates, G points."""

    calibrators: Calibrator
    """(B, k)"""
    policies: Policies
    """(B, G)"""


def tune_again(again: "Again", log: Log, draws: np.ndarray) -> Replicates:
    """The policies of a frontier, tuned again on draws of a log's queries.

    Args:
        again: how they are.
        log: the log that they were tuned on.
        draws: (B, n) its rows.
    """
    tuned = side_by_side(lambda queries: again(Draw.of(log, queries)), draws, n=log.n_queries)
    calibrators, policies = zip(*tuned, strict=True)
    return Replicates(stack(calibrators), stack(policies))


class Draw(NamedTuple):
    """What a draw of n queries of a log says, in numpy's arrays; some queries are in it again and again."""

    log: Log  # that it is of
    queries: np.ndarray  # (n,) its rows
    labels: tuple[np.ndarray, np.ndarray, np.ndarray]  # (logprob, correct, answered), each (n, k)
    charge: np.ndarray  # (n, k) money of each answer
    answer: np.ndarray | None  # (n, k) codes of answers

    @classmethod
    def of(cls, log: Log, queries: np.ndarray) -> "Draw":
        """Of some rows of a log; where answers lack labels, they count as these rows let expect."""
        logprob, correct, answered = (
            np.asarray(column)[queries] for column in (log.logprob, log.correct, log.answered)
        )
        if log.hand is not None:
            correct = np.asarray(expected_log(log.take(queries)).correct)
        answer = None if log.answer is None else np.asarray(log.answer)[queries]
        return cls(log, queries, (logprob, correct, answered), charges(log)[queries], answer)


#: How a draw is tuned on: (calibrators (k,), policies (G,)).
Again = Callable[[Draw], tuple[Calibrator, Policies]]


class _ByLabels(NamedTuple):
    """How the labels choose policies for G targets."""

    model: Fitted
    targets: Targets
    lam: np.ndarray  # (G,)
    judging: Judging | None  # how candidates are judged; None: as each draw says
    refusal: jax.Array | None
    comparing: np.ndarray | None  # (G,) where policies stand that compare answers; None: the frontier has none

    def again(self, draw: Draw) -> tuple[Calibrator, Policies]:
        """(calibrators (k,), policies (G,)) by the labels of a draw."""
        transform, k = self.model.calibrators.transform, len(self.model.models)
        calibrators, _ = calibrate_log(*fill_up(*draw.labels), transform=transform)
        judging = self.judging
        if judging is None:
            judging = judging_of(draw.log.take(draw.queries), transform, self.refusal)
        answer = None if self.comparing is None else draw.answer
        pairs, agreeing = judge_all(calibrators, (*draw.labels, answer), draw.charge, judging)
        policies = choose(pairs, None, self.targets, k).policies
        if self.comparing is not None:
            policies = _replaced(policies, choose(pairs, agreeing, self.targets, k).policies, self.comparing)
        return calibrators, policies


def again_by_labels(frontier: Frontier, log: Log, points: np.ndarray, by_price: bool = False) -> Again:
    """How the labels choose some points of a frontier again: what is best within their costs.

    Args:
        frontier: the frontier.
        log: the log that it was tuned on.
        points: (G,) positions of its points.
        by_price: what is best for their λ, as their costs do not count; policies are then judged as each draw says,
            not the whole log.
    """
    model, lam, agreements = frontier.model, np.asarray(frontier.lam)[points], frontier.policies.agreements
    comparing = None if agreements is None else np.asarray(np.asarray(agreements.compares)[points].any(1))
    refusal = refusal_at(frontier.abstain_price, log.cost.dtype)
    return _ByLabels(
        model=model,
        targets=Targets(lam=lam) if by_price else Targets(budgets=_budgets(frontier, points)),
        lam=lam,
        # A few draws are judged as their own queries say, so that those left out have no part in it.
        judging=None if by_price else judging_of(log, model.calibrators.transform, refusal),
        refusal=refusal,
        comparing=comparing,
    ).again


def _budgets(frontier: Frontier, points: np.ndarray) -> np.ndarray:
    """(G,) the budgets that points are the best for: their costs, and what is kept in hand."""
    cost = np.asarray(frontier.cost, float)[points]
    reserve = 0.0 if frontier.reserve is None else np.asarray(frontier.reserve, float)[points]
    return (cost + reserve) * (1 + 1e-9)


def _replaced(policies: Policies, others: Policies, where: np.ndarray) -> Policies:
    """Cascades (G,), where the mask (G,) says so those of others; their intervals alone."""
    if policies.refusals is None or others.refusals is None:
        policies, others = _without_refusals(policies), _without_refusals(others)
    return either(others, policies, where)


def _without_refusals(cascades: Policies) -> Policies:
    if cascades.refusals is None:
        return cascades
    return Policies.of_cascades(cascades.thresholds, cascades.members, agreements=cascades.agreements)
