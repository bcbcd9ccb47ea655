"""Which queries of a log are left out: folds, confidences in those, and samples of what is too much."""

import numpy as np

from rcjax._core.batching import fill_up
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted, calibrate_log
from rcjax.model.calibration import calibrate_rows
from rcjax.model.label_outcomes import expected_without

FOLDS = 5  # in which a log is tuned on, each in turn left out

_MOST_COMPARED = 50_000  # queries that policies are compared on: more show no smaller gains worth having


def deal_folds(complete: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """(n,) the fold of each query, at random: the folds are of one size, and hold as many complete queries each.

    complete (n,) bool: the queries that every model answered. Dealt without regard to it, a fold of a log with gaps
    may hold none that cascades could be judged on.

    >>> complete = np.arange(12) < 4
    >>> fold = deal_folds(complete, 4, seed=0)
    >>> np.bincount(fold[complete]).tolist(), np.bincount(fold).tolist()
    ([1, 1, 1, 1], [3, 3, 3, 3])
    """
    shuffled = np.random.default_rng(seed).permutation(len(complete))
    dealt = np.lexsort((shuffled, ~np.asarray(complete)))  # the complete ones first
    fold = np.empty(len(complete), int)
    fold[dealt] = np.arange(len(complete)) % folds
    return fold


def held_out_confidence(log: Log, model: Fitted, seed: int = 0) -> np.ndarray:
    """(n, k) calibrated confidences, those of each of five folds by what the others tell; NaN for no answer.

    By them the calibration error of a log is told that a model was fitted to, wherever it is told.

    Args:
        log: the log, of the models of `model`.
        model: what was fitted to it.
        seed: of the folds.
    """
    fold, confidence = deal_folds(log.complete, FOLDS, seed), np.full_like(log.logprob, np.nan)
    how = {"transform": model.calibrators.transform, "values": model.calibrators.values}
    for number, right in enumerate(expected_without(log, fold, FOLDS)):
        out = fold == number
        calibrators, _ = calibrate_log(*fill_up(log.logprob, right, np.asarray(log.answered) & ~out[:, None]), **how)
        confidence[out] = np.asarray(calibrate_rows(calibrators, log.logprob))[out]
    return np.where(np.asarray(log.answered), confidence, np.nan)


def sample_queries(log: Log, seed: int) -> Log:
    """At most 50,000 of the queries of a log, at random: the log itself where it has no more."""
    if log.n_queries <= _MOST_COMPARED:
        return log
    chosen = np.random.default_rng(seed).choice(log.n_queries, _MOST_COMPARED, replace=False)
    return log.take(np.sort(chosen))
