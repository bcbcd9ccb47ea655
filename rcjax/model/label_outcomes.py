"""What answers count for where some of them have no label: one form of outcomes to choose by, one to tell figures by.

Both are the labels where all answers have one. For *choosing* policies an answer counts as its label, or as it is
expected to be (`label_regression`): little variance, and the same small bias for all policies alike. For *saying what
they do* the labels correct the regression,

    ỹ = g + R/π · (y − g)        R whether it is labelled, π the share of the model's answers that are

which is right on average whatever a judge says (augmented inverse-probability weighting: Robins, Rotnitzky & Zhao 1994,
"Estimation of regression coefficients when some regressors are not always observed", JASA 89). g is predicted by the
labels of other queries, and drawn towards its mean as far as that lowers the variance (PPI++: Angelopoulos, Duchi &
Zrnic 2023, arXiv 2311.01453).
"""

import dataclasses

import jax
import numpy as np

from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.label_regression import LabelRegression

_FOLDS = 5  # by which the predictions of labelled answers are made by the labels of other queries


def expected_right(log: Log) -> np.ndarray:
    """(n, k) whether each answer is right by its label, or how likely it is right where it has none.

    The log's own column `correct` where every answer has a label.

    >>> import rcjax
    >>> expected_right(rcjax.sample_log(200, seed=0)).dtype
    dtype('bool')
    """
    if is_whole(log):
        return np.asarray(log.correct)
    return np.where(log.labelled, np.asarray(log.correct), LabelRegression.of(log).predict(log)[0])


def expected_without(log: Log, fold: np.ndarray, folds: int) -> np.ndarray:
    """(folds, n, k) `expected_right` with each fold's labels left aside; fold (n,) is that of each query."""
    labelled = log.labelled & ~(fold == np.arange(folds)[:, None])[..., None]
    guess = LabelRegression.of(log, fold != np.arange(folds)[:, None]).predict(log)
    return np.where(labelled, np.asarray(log.correct), guess)


def expected_log(log: Log) -> Log:
    """The log as policies are chosen by it: answers without a label count as right as they are likely to be."""
    return dataclasses.replace(log, hand=None) if is_whole(log) else with_outcomes(log, expected_right(log))


def corrected_log(log: Log) -> Log:
    """The log as figures are told by it: outcomes whose mean is right on average, whatever a judge says.

    Those of single answers may be below 0 or above 1.
    """
    if is_whole(log):
        return dataclasses.replace(log, hand=None)
    labelled, right = log.labelled, np.asarray(log.correct, float)
    fold = _folds(log)
    by_others = LabelRegression.of(log, fold != np.arange(_FOLDS)[:, None]).predict(log)
    answers = np.asarray(log.answered).sum(0)
    weight = np.where(labelled, answers / np.maximum(labelled.sum(0), 1), 0.0)
    guess = _drawn_in(np.choose(fold[:, None], by_others), right, np.asarray(log.answered), weight)
    return with_outcomes(log, guess + weight * (right - guess))


def labelled_by_hand(log: Log) -> Log:
    """The queries of a log whose answers all have a label, as a log without judges.

    Raises `LogError` where there is none.
    """
    if log.hand is None:
        return log
    labelled, answered = log.labelled, np.asarray(log.answered)
    whole = (labelled | ~answered).all(axis=1) & answered.any(axis=1)
    if not whole.any():
        raise LogError(f"{log.source}: no query has a label for the answers of all of {', '.join(log.models)}")
    part = log.take(whole)
    return dataclasses.replace(part, hand=None)


def is_whole(log: Log) -> bool:
    """Whether every answer has a label, so that judges have nothing to add."""
    return log.hand is None or bool((log.labelled | ~np.asarray(log.answered)).all())


def with_outcomes(log: Log, right: np.ndarray) -> Log:
    """The log with outcomes (n, k) in the place of labels."""
    column = np.where(log.answered, right, 0.0).astype(log.logprob.dtype)
    return dataclasses.replace(log, correct=jax.device_put(column), hand=None)


def _drawn_in(plain: np.ndarray, right: np.ndarray, answered: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(n, k) predictions drawn towards their mean, for each model to where they leave the least variance.

    Args:
        plain: (n, k) the predictions.
        right: (n, k) labels, where there is a weight.
        answered: (n, k) whether there is an answer.
        weight: (n, k) 1/π of labelled answers, 0 of others.
    """
    total = np.maximum(weight.sum(0), 1e-300)
    centre = np.where(answered, plain, 0.0).sum(0) / np.maximum(answered.sum(0), 1)
    near, far = ((weight * values).sum(0) / total for values in (plain, right))
    shared = (weight * (plain - near) * (right - far)).sum(0) / total
    spread = (weight * (plain - near) ** 2).sum(0) / total
    scale = np.clip(np.divide(shared, spread, out=np.ones_like(spread), where=spread > 0), 0.0, 1.0)
    return centre + scale * (plain - centre)


def _folds(log: Log) -> np.ndarray:
    """(n,) the fold of each query, at random; the rows of a query that is drawn again are in one."""
    number_of = {query: number for number, query in enumerate(dict.fromkeys(log.queries))}
    shuffled = np.random.default_rng(0).permutation(len(number_of)) % _FOLDS
    return shuffled[[number_of[query] for query in log.queries]]
