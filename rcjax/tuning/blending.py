"""Estimates of the blending weights of labels, by which candidates are scored.

The best weights a and b (`candidates`) differ from log to log. Cross-fitted least squares estimate them: the gain of
each pair at sixteen thresholds is predicted from four folds, and compared with the labels of the fifth fold. A prior
that is worth 300 labels draws both weights to three eighths, which does well on most logs.
"""

from typing import Any

import numpy as np

from rcjax._core.batching import Array
from rcjax.logs.log import Log
from rcjax.model.calibrated_models import fit_calibrators_compiled, pairs
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import FOLDS, deal_folds
from rcjax.tuning.candidates import (
    ENOUGH_QUERIES,
    LabelledAnswers,
    ScoringOptions,
    candidate_rows,
    draw_enough,
    recentre,
)

_THRESHOLDS = 16  # thresholds of each model at which the weights are estimated
_PRIOR = 300  # weight of the prior, in labels


def estimate_blending(log: Log, fitted: Calibrator, abstain_worth: Any = None) -> ScoringOptions:
    """Estimate the blending weights (a, b) by cross-fitted least squares; the defaults for one model or few labels.

    Args:
        log: the log, of which at most 5,000 labelled queries are drawn at random.
        fitted: (k,) calibrators fitted to the log, whose transform and stated values are used.
        abstain_worth: () worth of an abstention, in right answers; None: models do not abstain.

    >>> import rcjax
    >>> from rcjax.model.calibrated_models import fit_calibrated
    >>> log = rcjax.sample_log(300, seed=0)
    >>> options = estimate_blending(log, fit_calibrated(log).calibrators)
    >>> 0 <= options.calibrated <= 1, 0 <= options.conditional <= 1, 0 <= options.label <= 1
    (True, True, True)
    """
    return ScoringOptions(*_estimate_weights(log, fitted), abstain_worth)


def _estimate_weights(log: Log, fitted: Calibrator) -> tuple[float | Array, float | Array]:
    labelled = log.labelled & np.asarray(log.answered)
    defaults = (ScoringOptions.calibrated, ScoringOptions.conditional)
    if not labelled.any(1).all():  # drop queries without labels first, so that folds have equal numbers of labels
        log, labelled = log.take(labelled.any(1)), labelled[labelled.any(1)]
    if log.n_queries > ENOUGH_QUERIES:
        rows = draw_enough(np.arange(log.n_queries))
        log, labelled = log.take(rows), labelled[rows]
    if len(log.models) < 2 or labelled.all(1).sum() < 2 * FOLDS:
        return defaults
    fold = deal_folds(log.queries, labelled.all(1))
    sums = [_normal_equations(log, fitted, labelled, fold == number) for number in range(FOLDS)]
    square, product = (np.sum(part, axis=0) for part in zip(*sums, strict=True))
    prior = np.trace(square) / 2 * _PRIOR / labelled.all(1).sum()
    calibrated, conditional = _least_squares(square + prior * np.eye(2), product + prior * np.array(defaults))
    return float(calibrated), float(conditional)


def _normal_equations(
    log: Log, fitted: Calibrator, labelled: np.ndarray, out: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the normal equations ((2, 2), (2,)), summed over pairs and thresholds.

    Gains of the queries `out` (n,) are predicted from the other queries.
    """
    logprob = np.asarray(log.logprob, float)
    right = np.where(labelled, np.asarray(log.correct, float), 0.0)
    train = labelled & ~out[:, None]
    padded = LabelledAnswers(np.asarray(log.logprob), np.asarray(log.correct), train).padded()
    calibrators, _ = fit_calibrators_compiled(*padded[:3], transform=fitted.transform, values=fitted.stated_logprobs)
    rows = candidate_rows(calibrators, padded)
    confidence, conditional = np.asarray(rows.confidence, float), np.asarray(rows.conditional, float)
    square, product = np.zeros((2, 2)), np.zeros(2)
    for pair, (i, j) in enumerate(pairs(len(log.models))):
        trained, tested = train[:, i] & train[:, j], labelled[:, i] & labelled[:, j] & out
        if not (trained.any() and tested.any()):
            continue
        thresholds = np.unique(np.quantile(logprob[trained, i], np.linspace(0.04, 0.96, _THRESHOLDS), method="lower"))
        first_by_itself = recentre(confidence[: len(out), i], right[:, i], trained) - right[:, i]
        second_by_itself = recentre(confidence[: len(out), j], right[:, j], trained) - right[:, j]
        second_by_first = recentre(conditional[pair, : len(out)], right[:, j], trained) - right[:, j]
        changes = second_by_itself - first_by_itself, second_by_first - first_by_itself
        gain = right[:, j] - right[:, i]
        deferred = logprob[:, i, None] <= thresholds
        predicted = np.stack([*changes, gain])[:, trained] @ deferred[trained] / trained.sum()
        observed = gain[tested] @ deferred[tested] / tested.sum()
        square += predicted[:2] @ predicted[:2].T
        product += predicted[:2] @ (observed - predicted[2])
    return square, product


def _least_squares(square: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Minimise x'Sx − 2x'p over x ≥ 0 with a sum of at most 1: (2,).

    >>> _least_squares(np.eye(2), np.array([0.2, 0.3])).tolist(), _least_squares(np.eye(2), np.array([2.0, 0])).tolist()
    ([0.2, 0.3], [1.0, 0.0])
    """
    # The minimum is inside, on one of the three edges, or at the origin.
    curvature = square[0, 0] + square[1, 1] - 2 * square[0, 1]
    share = np.clip(_ratio(square[1, 1] - square[0, 1] + product[0] - product[1], curvature), 0, 1)
    tries = [np.zeros(2), np.array([share, 1 - share])]
    tries += [np.eye(2)[n] * np.clip(_ratio(product[n], square[n, n]), 0, 1) for n in range(2)]
    if np.linalg.matrix_rank(square) == 2:
        tries.append(np.linalg.solve(square, product))
    feasible = [x for x in tries if (x >= 0).all() and x.sum() <= 1 + 1e-12]
    return min(feasible, key=lambda x: float(x @ square @ x - 2 * x @ product))


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else 0.0
