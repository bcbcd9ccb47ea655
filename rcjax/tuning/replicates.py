"""Policies of a frontier, tuned again on draws of a log's queries by all that led to it.

Where the labels chose, they choose again; how policies of a search by the model are solved again, `by_model` tells.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rcjax._core.batching import fill_up, side_by_side, stack
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.policies import Policies
from rcjax.frontier.prices import refusal_at
from rcjax.logs.log import Log
from rcjax.model.calibrated import calibrate_log
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import expected_log
from rcjax.tuning.candidates import together
from rcjax.tuning.choices import judge_all
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
    tuned = side_by_side(lambda queries: again(log, queries), draws, n=log.n_queries)
    calibrators, policies = zip(*tuned, strict=True)
    return Replicates(stack(calibrators), stack(policies))


def drawn(log: Log, queries: np.ndarray) -> tuple[tuple[Any, Any, Any], np.ndarray, np.ndarray | None]:
    """((logprob, correct, answered), money of each answer, codes of answers or None), each (n, k), of a draw.

    Args:
        log: that it is of. Where its answers lack labels, they count as those of the draw let expect.
        queries: (n,) its rows; some are in it again and again.
    """
    logprob, correct, answered = (np.asarray(column)[queries] for column in (log.logprob, log.correct, log.answered))
    if log.hand is not None:
        correct = np.asarray(expected_log(log.take(queries)).correct)
    answer = None if log.answer is None else np.asarray(log.answer)[queries]
    return (logprob, correct, answered), charges(log)[queries], answer


#: How a draw of a log, by its rows, is tuned on: (calibrators (k,), policies (G,)), as `Replicates` has them.
Again = Callable[[Log, np.ndarray], tuple[Calibrator, Policies]]


def again_by_labels(frontier: Frontier, log: Log, points: np.ndarray | None) -> Again:
    """How the labels tune again: the rungs of a ladder, by rising cost, filled up to `RUNGS` by the last one.

    Args:
        frontier: the frontier that was tuned.
        log: the log that it was tuned on.
        points: (G,) positions of points, to choose what is best at their prices in place of a ladder; policies are
            then judged as each draw says, not the whole log.
    """
    lam, agreements = np.asarray(frontier.lam, float), frontier.policies.agreements
    comparing = lam[[] if agreements is None else np.asarray(agreements.compares).any(1)]
    transform, refusal = frontier.model.calibrators.transform, refusal_at(frontier.abstain_price, log.cost.dtype)
    # A few draws are judged as their own queries say, so that those left out have no part in it.
    whole = judging_of(log, transform, refusal) if points is None else None

    def again(log: Log, queries: np.ndarray) -> tuple[Calibrator, Policies]:
        labels, charge, answer = drawn(log, queries)
        calibrators, _ = calibrate_log(*fill_up(*labels), transform=transform)
        judging = judging_of(log.take(queries), transform, refusal) if whole is None else whole
        answer = answer if comparing.size else None
        found, answers = judge_all(calibrators, (*labels, answer), charge, judging)
        if answers is not None:
            found = together(found, answers.best(comparing))
        chosen = found.rungs().filled() if points is None else found.best(lam[points])
        return calibrators, chosen.policies(comparing=answer is not None)

    return again
