"""Policies of a frontier, tuned again on draws of a log's queries by all that led to it.

Where the labels chose, they choose again; how policies of a search by the model are solved again, `by_model` tells.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from rcjax._core.batching import stack
from rcjax._core.size_classes import fill_up
from rcjax._core.threads import side_by_side
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.policies import Policies
from rcjax.frontier.refusal import refusal_at
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted, calibrate_log
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import expected_log
from rcjax.tuning.choices import judge_all, together
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_weights import charges, judging_of


class Replicates(NamedTuple):
    """What each of B replicates would do, by G policies: the rungs of its ladder, or one for each price."""

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


#: How a draw is tuned on: (calibrators (k,), policies (G,)), as `Replicates` has them.
Again = Callable[[Draw], tuple[Calibrator, Policies]]


class _ByLabels(NamedTuple):
    """How the labels choose policies."""

    model: Fitted
    lam: np.ndarray | None  # (G,) prices to choose for; None: all rungs of a ladder are wanted
    comparing: np.ndarray  # (C,) prices at which policies that compare answers have a place
    judging: Judging | None  # how candidates are judged; None: as each draw says
    refusal: jax.Array | None

    def again(self, draw: Draw) -> tuple[Calibrator, Policies]:
        """(calibrators (k,), policies) by the labels of a draw."""
        transform = self.model.calibrators.transform
        calibrators, _ = calibrate_log(*fill_up(*draw.labels), transform=transform)
        judging = self.judging
        if judging is None:
            judging = judging_of(draw.log.take(draw.queries), transform, self.refusal)
        answer = draw.answer if self.comparing.size else None
        table, answers = judge_all(calibrators, (*draw.labels, answer), draw.charge, judging)
        if answers is not None:
            table = together(table, answers.best(self.comparing))
        chosen = table.rungs().filled() if self.lam is None else table.best(self.lam)
        return calibrators, chosen.policies


def again_by_labels(frontier: Frontier, log: Log, points: np.ndarray | None) -> Again:
    """How the labels tune again: the rungs of a ladder, by rising cost, filled up to `RUNGS` by the last one.

    Args:
        frontier: the frontier that was tuned.
        log: the log that it was tuned on.
        points: (G,) positions of points, to choose what is best at their prices in place of a ladder; policies are
            then judged as each draw says, not the whole log.
    """
    lam, agreements = np.asarray(frontier.lam, float), frontier.policies.agreements
    comparing = np.zeros(len(lam), bool) if agreements is None else np.asarray(agreements.compares).any(1)
    refusal = refusal_at(frontier.abstain_price, log.cost.dtype)
    # A few draws are judged as their own queries say, so that those left out have no part in it.
    judging = judging_of(log, frontier.model.calibrators.transform, refusal) if points is None else None
    chosen = None if points is None else lam[points]
    return _ByLabels(frontier.model, chosen, lam[comparing], judging, refusal).again
