"""Queries that the tuning does not see, for the test of a guarantee."""

from __future__ import annotations

import numpy as np

from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.tuning.overlap import overlap, require_unseen

__all__ = ["hold_out"]


_HELD_OUT = 0.5  # of the queries of a log, where a guarantee is wanted and no other log given


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
        second_cost = 0.0 if log.waiting is None else log.waiting.second_cost
        held_out = held_out.select(log.models).with_waiting(second_cost)
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
