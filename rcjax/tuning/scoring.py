"""Estimate the blending weights of labels on a log, and score every candidate policy with them.

The best weights a and b (`pairs`) differ from log to log. They are estimated by cross-fitted least squares: pairs are
scored on some folds, at all thresholds, and held against the labels of the fold left out. A prior that is worth 300
labels draws both to three eighths, which does well on most logs.

A table of candidates keeps the single models, and the corners of the lower hull of the others. Each corner is the best
policy at some price of an error.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from rcjax._core.batching import fill_up
from rcjax._core.compilation import compiled
from rcjax._core.pytrees import Array
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted, calibrate_log, pairs
from rcjax.model.calibration import Calibrator, Transform, calibrate_rows
from rcjax.model.label_outcomes import expected_without
from rcjax.solving.frontier.hull import lower_hull
from rcjax.solving.frontier.points import Policies
from rcjax.tuning.agreement import score_triples
from rcjax.tuning.candidates import (
    ENOUGH_QUERIES,
    Candidates,
    are_verdicts,
    score_chains,
)
from rcjax.tuning.pairs import Blending, CandidateRows, recentre, score_pairs

FOLDS = 5  # of a log for cross-validation

_MOST_COMPARED = 50_000  # queries that policies are compared on: the gains that more would show are too small to matter


def deal_folds(complete: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Deal queries into folds at random, with as many complete queries in each: (n,) the fold of each query.

    A plain random deal of a log with gaps may leave a fold without a query that all models answered. `complete` (n,)
    bool are the queries that all models answered.

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
    """Calibrate each of five folds by the others: (n, k) held-out calibrated confidences; NaN for no answer.

    They give the calibration error of a log on which a model was fitted.

    Args:
        log: the log, with the models of `model`.
        model: the model that was fitted to the log.
        seed: seed of the folds.
    """
    fold = deal_folds(log.complete, FOLDS, seed)
    confidence = np.full_like(log.logprob, np.nan)
    how = {"transform": model.calibrators.transform, "values": model.calibrators.values}
    for number, right in enumerate(expected_without(log, fold, FOLDS)):
        out = fold == number
        calibrators, _ = calibrate_log(*fill_up(log.logprob, right, np.asarray(log.answered) & ~out[:, None]), **how)
        confidence[out] = np.asarray(calibrate_rows(calibrators, log.logprob))[out]
    return np.where(np.asarray(log.answered), confidence, np.nan)


def sample_queries(log: Log, seed: int) -> Log:
    """Take at most 50,000 queries of a log at random; return the log itself where it has no more."""
    if log.n_queries <= _MOST_COMPARED:
        return log
    chosen = np.random.default_rng(seed).choice(log.n_queries, _MOST_COMPARED, replace=False)
    return log.take(np.sort(chosen))


_CUTS = 16  # thresholds of each model at which the weights are estimated

_PRIOR = 300  # weight of the prior, in labels


_calibrate_rows = compiled(CandidateRows.of, runs="long")


def charges(log: Log) -> np.ndarray:
    """Return the cost of each answer, and the mean cost of its model where an answer is missing: (n, k) money.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> bool((charges(log) == np.asarray(log.query_cost)).all())
    True
    """
    return np.where(np.asarray(log.answered), np.asarray(log.query_cost), np.asarray(log.cost))


def estimate_blending(log: Log, transform: Transform, refusal: Any = None) -> Blending:
    """Estimate the blending weights (a, b) by cross-fitted least squares; the defaults for one model or few labels.

    Args:
        log: the log; its first 5,000 labelled queries at most are used.
        transform: the transform of the raw confidence.
        refusal: () worth of a refusal, in right answers; None: models do not refuse.

    >>> import rcjax
    >>> blending = estimate_blending(rcjax.sample_log(300, seed=0), "choice")
    >>> 0 <= blending.calibrated <= 1, 0 <= blending.conditional <= 1, 0 <= blending.label <= 1
    (True, True, True)
    """
    known = _ESTIMATED.setdefault(log, {})
    if transform not in known:
        known[transform] = _weights(log, transform)
    return Blending(*known[transform], refusal)


#: Weights of the logs in use: a search needs them, and its bootstrap needs them again.
_ESTIMATED: WeakKeyDictionary[Log, dict[Transform, tuple[float | Array, float | Array]]] = WeakKeyDictionary()


def _weights(log: Log, transform: Transform) -> tuple[float | Array, float | Array]:
    """Estimate (a, b) of `estimate_blending`."""
    labelled = log.labelled & np.asarray(log.answered)
    usual = (Blending.calibrated, Blending.conditional)
    if not labelled.any(1).all():  # queries without a label play no part, in the deal of folds either
        log, labelled = log.take(labelled.any(1)), labelled[labelled.any(1)]
    if log.n_queries > ENOUGH_QUERIES:
        log, labelled = log.take(slice(ENOUGH_QUERIES)), labelled[:ENOUGH_QUERIES]
    if len(log.models) < 2 or labelled.all(1).sum() < 2 * FOLDS:
        return usual
    fold = deal_folds(np.asarray(labelled.all(1)), FOLDS, seed=0)
    sums = [_normal_equations(log, transform, labelled, fold == number) for number in range(FOLDS)]
    square, product = (np.sum(part, axis=0) for part in zip(*sums, strict=True))
    prior = np.trace(square) / 2 * _PRIOR / labelled.all(1).sum()
    calibrated, conditional = _least_squares(square + prior * np.eye(2), product + prior * np.array(usual))
    return float(calibrated), float(conditional)


def _normal_equations(
    log: Log, transform: Transform, labelled: np.ndarray, out: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the normal equations ((2, 2), (2,)) for the queries `out` (n,), predicted from the others.

    They are summed over all pairs and cuts.
    """
    logprob = np.asarray(log.logprob, float)
    right = np.where(labelled, np.asarray(log.correct, float), 0.0)
    train = labelled & ~out[:, None]
    rows = fill_up(np.asarray(log.logprob), np.asarray(log.correct), train)
    known = _calibrate_rows(calibrate_log(*rows, transform=transform)[0], rows)
    confidence, conditional = np.asarray(known.confidence, float), np.asarray(known.conditional, float)
    square, product = np.zeros((2, 2)), np.zeros(2)
    for pair, (i, j) in enumerate(pairs(len(log.models))):
        trained, left_out = train[:, i] & train[:, j], labelled[:, i] & labelled[:, j] & out
        if not (trained.any() and left_out.any()):
            continue
        cuts = np.unique(np.quantile(logprob[trained, i], np.linspace(0.04, 0.96, _CUTS), method="lower"))
        first = recentre(confidence[: len(out), i], right[:, i], trained) - right[:, i]
        by_itself = recentre(confidence[: len(out), j], right[:, j], trained) - right[:, j] - first
        by_first = recentre(conditional[pair, : len(out)], right[:, j], trained) - right[:, j] - first
        gain = right[:, j] - right[:, i]
        deferred = logprob[:, i, None] <= cuts
        predicted = np.stack([by_itself, by_first, gain])[:, trained] @ deferred[trained] / trained.sum()
        counted = gain[left_out] @ deferred[left_out] / left_out.sum()
        square += predicted[:2] @ predicted[:2].T
        product += predicted[:2] @ (counted - predicted[2])
    return square, product


def _least_squares(square: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Minimise x'Sx − 2x'p over x ≥ 0 with a sum of at most 1: (2,).

    >>> _least_squares(np.eye(2), np.array([0.2, 0.3])).tolist(), _least_squares(np.eye(2), np.array([2.0, 0])).tolist()
    ([0.2, 0.3], [1.0, 0.0])
    """
    along = square[0, 0] + square[1, 1] - 2 * square[0, 1]
    share = np.clip(_ratio(square[1, 1] - square[0, 1] + product[0] - product[1], along), 0, 1)
    tries = [np.zeros(2), np.array([share, 1 - share])]
    tries += [np.eye(2)[n] * np.clip(_ratio(product[n], square[n, n]), 0, 1) for n in range(2)]
    if np.linalg.matrix_rank(square) == 2:
        tries.append(np.linalg.solve(square, product))
    inside = [x for x in tries if (x >= 0).all() and x.sum() <= 1 + 1e-12]
    return min(inside, key=lambda x: float(x @ square @ x - 2 * x @ product))


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else 0.0


_ROUNDING = 1e-6  # of an error, and of a bill, in single precision


_score_pairs = compiled(score_pairs, runs="long")
_score_triples = compiled(score_triples, runs="long")


def score_log(
    calibrators: Calibrator, columns: tuple[Any, Any, Any], charge: Any, blending: Blending, answer: Any = None
) -> Candidates:
    """Score single models and pairs on n queries; given `answer`, score policies that compare answers instead.

    Rows are filled up, so that folds, replicates and logs of similar size share one compilation. The table is of numpy
    arrays.

    Args:
        calibrators: (k,) calibrators of the models.
        columns: (logprob, correct, present), each (n, k), as `CandidateRows.of` takes them.
        charge: money of each answer (n, k), or of every answer of a model (k,).
        blending: the blending weights of labels, and the worth of a refusal.
        answer: (n, k) codes of answers.
    """
    money = fill_up(charge)[0] if np.ndim(charge) > 1 else charge
    codes = None if answer is None else fill_up(answer)[0]
    rows = replace(_calibrate_rows(calibrators, fill_up(*columns)), charge=money, answer=codes)
    return jax.tree.map(np.asarray, (_score_pairs if answer is None else _score_triples)(rows, blending))


def score_all(
    calibrators: Calibrator,
    columns: tuple[Any, Any, Any, Any],
    charge: Any,
    blending: Blending,
    admits: Callable[[Policies], np.ndarray] | None = None,
) -> tuple[Candidates, Candidates | None]:
    """Score all candidates; keep single models, and those of the others that are the best for some target.

    The result is (single models and pairs, policies that compare answers or None). Chains of more models are among the
    pairs where every confidence is the verdict of a check.

    Args:
        calibrators: (k,) calibrators of the models.
        columns: (logprob, correct, present, answer), each (n, k); None as `answer`: answers are not compared.
        charge: money of each answer (n, k), or of every answer of a model (k,).
        blending: the blending weights of labels, and the worth of a refusal.
        admits: function from policies (C,) to those that may be chosen, (C,) bool; None: all.
    """
    *labels, answer = columns
    table = score_log(calibrators, tuple(labels), charge, blending)
    table = _keep_corners(table, _undominated(table), admits)
    longer = None if blending.refusal_worth is not None else _score_chains(calibrators, labels, charge, blending)
    if longer is not None:
        table = table.with_chains(_keep_corners(longer, np.arange(len(longer.cost)), admits))
    if answer is None:
        return table, None
    triples = score_log(calibrators, tuple(labels), charge, blending, answer)
    triples = _keep_corners(triples, np.flatnonzero(np.isfinite(triples.error)), admits)
    if longer is not None and triples.cost.size:
        triples = replace(triples, chain=np.full((len(triples.cost), triples.k), np.nan, table.cost.dtype))
    return table, triples if triples.cost.size else None


def _score_chains(calibrators: Calibrator, labels: Sequence[Any], charge: Any, blending: Blending) -> Candidates | None:
    """Score chains of more than two models, where confidences are verdicts; None elsewhere."""
    logprob, correct, present = map(np.asarray, labels)
    if not are_verdicts(logprob, present):
        return None
    confidence = np.asarray(calibrate_rows(calibrators, logprob), float)
    expected = np.stack([recentre(*of) for of in zip(confidence.T, correct.T.astype(float), present.T, strict=True)], 1)
    right = float(blending.label) * correct + (1 - float(blending.label)) * expected
    return score_chains(
        confidence, right, np.asarray(present.all(1)), np.broadcast_to(np.asarray(charge, float), logprob.shape)
    )


def _undominated(pairs: Candidates) -> np.ndarray:
    """Return the positions of candidates worth keeping: not dominated by a single model, in error as counted and cost.

    Thresholds that divide no queries are dropped too.
    """
    use, k = np.isfinite(pairs.error), pairs.k
    if pairs.refusal is None:
        rising = np.argsort(pairs.cost[:k])
        errors = np.append(np.inf, pairs.label_error[:k][rising])
        least = np.minimum.accumulate(errors)  # among the 0, 1, … cheapest models
        cheaper = np.searchsorted(pairs.cost[:k][rising], pairs.cost * (1 - _ROUNDING))
        use &= pairs.is_single | (least[cheaper] >= pairs.label_error - _ROUNDING)
    return np.flatnonzero(use)


def _keep_corners(trial: Candidates, useful: np.ndarray, admits: Callable[[Policies], np.ndarray] | None) -> Candidates:
    """Keep the single models, and the corners of the lower hull of the others, among admitted `useful` positions."""
    if admits is not None and useful.size:
        useful = useful[admits(trial.take(useful).policies())]
    alone = trial.is_single[useful]
    others = useful[~alone]
    corners = others[lower_hull(trial.cost[others], trial.error[others])]
    return trial.take(np.concatenate([useful[alone], corners]))
