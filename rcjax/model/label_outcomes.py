"""Estimated outcomes for logs in which some answers have no label: one estimate for selection, one for evaluation.

Both estimates are the labels if every answer has a label. *Selecting* policies takes the label, or else the
probability that the answer is right (`LabelRegression`): the probability has little variance, and a small bias that all
policies share. *Evaluating* policies corrects the regression by the labels,

    ỹ = g + R/π · (y − g)

R is 1 for a labelled answer, else 0, and π is the labelled share of the model's answers. The mean of ỹ is unbiased
whatever a judge says. This is augmented inverse-probability weighting (Robins, Rotnitzky & Zhao 1994, "Estimation of
regression coefficients when some regressors are not always observed", JASA 89). g is predicted from labels of other
queries, and shrunk towards its mean to the least variance (PPI++: Angelopoulos, Duchi & Zrnic 2023, arXiv 2311.01453).

g is a ridge regression, on the log-odds, of the labels by hand on these features:

- 1; whether a judge gave a verdict; each judge's verdict; the mean verdict on the other models;
- ξ; the mean ξ of the other models; and both times whether a judge gave a verdict.

Each feature has a coefficient shared by all models, and a deviation per model with a narrower prior: a hundred labels
show that a judge errs, but hardly for which model. The intercepts' deviations have a wide prior, so that a judge may be
lenient to one model.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from rcjax._core.batching import pad_to_size_class
from rcjax._core.compilation import compiled
from rcjax.logs.errors import LogError
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.model.calibration import Transform, transform_confidence
from rcjax.policy.policy import hash_to_uniform

#: Prior standard deviations of a shared coefficient, and of a model's deviation from it.
_SHARED, _BY_MODEL = 3.0, 1.0

#: Prior standard deviation of the intercepts' deviations, wide because models differ in accuracy.
_BY_MODEL_INTERCEPT = 3.0

_NEWTON_STEPS = 15  # from coefficients of 0

_STEP_SHARES = np.array([1.0, 0.5, 0.25, 0.0625])  # shares of a Newton step that are tried


class FeatureScale(NamedTuple):
    """Standardisation of the ξ of k models, kept so that another log is scaled alike; numpy arrays (k,)."""

    low: np.ndarray  # least finite ξ, which replaces −∞
    high: np.ndarray  # largest finite ξ, which replaces ∞
    centre: np.ndarray
    spread: np.ndarray

    @classmethod
    def measure(cls, raw: np.ndarray) -> "FeatureScale":
        """Compute the scale of a log's ξ (n, k), NaN for missing answers."""
        finite = np.where(np.isfinite(raw), raw, np.nan)
        with np.errstate(all="ignore"):
            low, high = (np.nan_to_num(end(finite, axis=0)) for end in (np.fmin.reduce, np.fmax.reduce))
        answered = ~np.isnan(raw)
        count = np.maximum(answered.sum(0), 1)
        bounded = np.clip(raw, low, high)
        centre = np.where(answered, bounded, 0.0).sum(0) / count
        spread = np.sqrt((np.where(answered, bounded - centre, 0.0) ** 2).sum(0) / count)
        return cls(low, high, centre, np.where(high > low, spread, 1.0))

    def standardise(self, raw: np.ndarray) -> np.ndarray:
        """Standardise ξ (n, k); missing answers become 0."""
        return np.nan_to_num((np.clip(raw, self.low, self.high) - self.centre) / self.spread)


@dataclasses.dataclass(frozen=True)
class LabelRegression:
    """W regressions of the labels by hand, each fitted to a part of the queries, with the scale of their features."""

    scale: FeatureScale
    coefficients: np.ndarray  # (W, F·(k + 1))
    transform: Transform

    @classmethod
    def fit(cls, log: Log, counted: np.ndarray | None = None) -> "LabelRegression":
        """Fit the regressions to the labels of a log with `Log.hand_labels`.

        Args:
            log: training log.
            counted: (W, n) bool, the queries whose labels each regression uses; None: one regression on all.
        """
        assert log.hand_labels is not None
        scale = FeatureScale.measure(_transformed(log, log.task))
        columns = _features(log, scale, log.task)
        query, model = np.nonzero(log.labelled & np.asarray(log.answered))
        weight = np.ones((1, len(query))) if counted is None else counted[:, query]
        dtype = log.logprob.dtype
        right = np.asarray(log.correct)[query, model]
        rows, right, model = pad_to_size_class(columns[query, model], right, model)
        (weight,) = pad_to_size_class(weight, axis=1)
        fitted = _fit(rows.astype(dtype), model, right.astype(dtype), weight.astype(dtype), k=len(log.models))
        return cls(scale, np.asarray(fitted), log.task)

    def predict(self, log: Log) -> np.ndarray:
        """Estimate the probability that each answer of a log is right, without its label: (W, n, k).

        The log has the models of the training log.
        """
        columns = _features(log, self.scale, self.transform).astype(log.logprob.dtype)
        (filled,) = pad_to_size_class(columns)
        return np.asarray(_predict(filled, self.coefficients), float)[:, : log.n_queries]


def _transformed(log: Log, transform: Transform) -> np.ndarray:
    """Transform the raw confidences of a log to ξ, NaN for missing answers: (n, k)."""
    answered = np.asarray(log.answered)
    return np.where(answered, transform_confidence(jnp.where(log.answered, log.logprob, -1.0), transform), np.nan)


def _features(log: Log, scale: FeatureScale, transform: Transform) -> np.ndarray:
    """Compute the features of answers, which their labels do not enter; zeros for missing answers: (n, k, F)."""
    assert log.hand_labels is not None
    answered, judged = np.asarray(log.answered), np.asarray(log.hand_labels.judged, float)
    z = scale.standardise(_transformed(log, transform))
    verdict = 2 * np.nan_to_num(judged, nan=0.5) - 1  # (n, k, J) in [−1, 1]; 0: no verdict
    is_judged = np.isfinite(judged).any(-1) & answered
    others = _mean_of_others(z, answered)
    verdict_on_others = _mean_of_others(verdict.mean(-1) if judged.shape[-1] else np.zeros(z.shape), is_judged)
    columns = [np.ones(z.shape), is_judged, z, z * is_judged, others, others * is_judged, verdict_on_others]
    columns += [*np.moveaxis(verdict, -1, 0)]
    return np.stack(columns, -1) * answered[..., None]


def _mean_of_others(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Average each row over the other models in the mask; 0 if there are none: (n, k)."""
    kept = np.where(mask, values, 0.0)
    count = mask.sum(1, keepdims=True) - mask
    return (kept.sum(1, keepdims=True) - kept) / np.maximum(count, 1)


def _design(columns: jax.Array, model: jax.Array, k: int) -> jax.Array:
    """Build the design matrix of m answers: shared coefficients first, then each model's deviations: (m, F·(k + 1))."""
    indicator = (model[:, None] == jnp.arange(k)).astype(columns.dtype)
    return jnp.concatenate([columns, (indicator[:, :, None] * columns[:, None]).reshape(len(columns), -1)], axis=1)


def _precision(size: int, k: int, dtype: Any) -> jax.Array:
    """Return the prior precision of each coefficient: (F·(k + 1),)."""
    shared = np.full(size, _SHARED**-2.0)
    by_model = np.full(size, _BY_MODEL**-2.0)
    by_model[0] = _BY_MODEL_INTERCEPT**-2.0
    return jnp.asarray(np.concatenate([shared, np.tile(by_model, k)]), dtype)


@partial(compiled, static_argnames="k")
def _fit(columns: jax.Array, model: jax.Array, right: jax.Array, weight: jax.Array, k: int) -> jax.Array:
    """Fit a regression for each row of weights (W, m) of m labelled answers: (W, F·(k + 1))."""
    design = _design(columns, model, k)
    precision = _precision(columns.shape[1], k, columns.dtype)

    def objective(beta: jax.Array, weight: jax.Array) -> jax.Array:
        score = design @ beta
        return (weight * (right * score - jax.nn.softplus(score))).sum() - 0.5 * (precision * beta * beta).sum()

    def fit(weight: jax.Array) -> jax.Array:
        def step(_: Any, beta: jax.Array) -> jax.Array:
            expected = special.expit(design @ beta)
            gradient = design.T @ (weight * (right - expected)) - precision * beta
            information = (design.T * (weight * expected * (1 - expected))) @ design + jnp.diag(precision)
            change = jax.scipy.linalg.solve(information, gradient, assume_a="pos")
            tried = beta + jnp.asarray(_STEP_SHARES, beta.dtype)[:, None] * change
            return tried[jnp.argmax(jax.vmap(objective, (0, None))(tried, weight))]

        return jax.lax.fori_loop(0, _NEWTON_STEPS, step, jnp.zeros(design.shape[1], columns.dtype))

    return jax.vmap(fit)(weight)


@compiled
def _predict(columns: jax.Array, beta: jax.Array) -> jax.Array:
    """Return the probabilities for features (n, k, F) and coefficients (…, F·(k + 1)): (…, n, k)."""
    size = columns.shape[-1]
    shared, deviation = beta[..., :size], beta[..., size:].reshape(*beta.shape[:-1], -1, size)
    return special.expit(jnp.einsum("nkf,...kf->...nk", columns, shared[..., None, :] + deviation))


#: Folds of a log, for cross-validation and cross-fitting: the other folds supply the estimates of a fold.
FOLDS = 5


def deal_folds(queries: Sequence[int | str], complete: np.ndarray, seed: int = 0) -> np.ndarray:
    """Deal queries into folds at random, by their names, and return each query's fold: (n,).

    The order of the queries does not matter, unless names repeat. The folds' numbers of complete queries differ by at
    most one; a plain random deal of a log with gaps may leave a fold without any.

    Args:
        queries: names of the n queries.
        complete: (n,) bool: the queries that all models answered.
        seed: seed of the deal.

    >>> complete = np.arange(15) < 5
    >>> fold = deal_folds(range(15), complete)
    >>> np.bincount(fold[complete]).tolist(), np.bincount(fold).tolist()
    ([1, 1, 1, 1, 1], [3, 3, 3, 3, 3])
    """
    lots = np.array([hash_to_uniform(f"fold {seed}", query) for query in queries])
    order = np.lexsort((lots, ~np.asarray(complete)))  # complete queries come first
    fold = np.empty(len(order), int)
    fold[order] = np.arange(len(order)) % FOLDS
    return fold


def expected_outcomes_by_fold(log: Log, fold: np.ndarray) -> np.ndarray:
    """Compute the outcomes of `expected_log` without the labels of each fold in turn: (FOLDS, n, k).

    `fold` (n,) is the fold of each query.
    """
    if is_fully_labelled(log):
        return np.broadcast_to(log.correct, (FOLDS, *np.shape(log.correct)))
    labelled = log.labelled & ~(fold == np.arange(FOLDS)[:, None])[..., None]
    prediction = _predict_folds(log, fold)
    return np.where(labelled, np.asarray(log.correct), prediction)


def _predict_folds(log: Log, fold: np.ndarray) -> np.ndarray:
    """Predict the outcomes of all answers by regressions that each leave out the labels of one fold: (FOLDS, n, k)."""
    return LabelRegression.fit(log, fold != np.arange(FOLDS)[:, None]).predict(log)


def _once_per_log(derive: Callable[[Log], Log]) -> Callable[[Log], Log]:
    """Keep the result of a function of a log in `Log.derived`."""

    @wraps(derive)
    def derive_once(log: Log) -> Log:
        if derive.__name__ not in log.derived:
            log.derived[derive.__name__] = derive(log)
        return log.derived[derive.__name__]

    return derive_once


@_once_per_log
def expected_log(log: Log) -> Log:
    """Return the log for selecting policies: unlabelled answers count with the probability that they are right."""
    if is_fully_labelled(log):
        return dataclasses.replace(log, hand_labels=None)
    estimated = LabelRegression.fit(log).predict(log)[0]
    return with_outcomes(log, np.where(log.labelled, np.asarray(log.correct), estimated))


@_once_per_log
def corrected_log(log: Log) -> Log:
    """Return the log for evaluating policies: outcomes whose mean is unbiased, whatever a judge says.

    Outcomes of single answers may be below 0 or above 1.
    """
    if is_fully_labelled(log):
        return dataclasses.replace(log, hand_labels=None)
    labelled, right = log.labelled, np.asarray(log.correct, float)
    fold = _folds(log)
    cross_fitted = _predict_folds(log, fold)
    answers = np.asarray(log.answered).sum(0)
    weight = np.where(labelled, answers / np.maximum(labelled.sum(0), 1), 0.0)
    prediction = _shrink(np.choose(fold[:, None], cross_fitted), right, np.asarray(log.answered), weight)
    return with_outcomes(log, prediction + weight * (right - prediction))


def average_equal_answers(log: Log) -> Log:
    """Give equal answers to a query the mean of their outcomes.

    Two policies that return the same answer then score the same, whichever model's answer is labelled.
    """
    if log.answer is None:
        return log
    codes, right = np.asarray(log.answer), np.asarray(log.correct, float)
    known = np.asarray(log.answered) & (codes != NO_ANSWER)
    equal = (codes[:, :, None] == codes[:, None, :]) & known[:, :, None] & known[:, None, :]
    mean = (equal * right[:, None, :]).sum(2) / np.maximum(equal.sum(2), 1)
    return with_outcomes(log, np.where(known, mean, right))


def take_hand_labelled(log: Log) -> Log:
    """Keep the queries of a log whose answers all have a label, as a log without judges.

    Raises `LogError` if there are none.
    """
    if log.hand_labels is None:
        return log
    rows = fully_labelled_queries(log) & np.asarray(log.answered).any(1)
    if not rows.any():
        raise LogError(f"{log.source}: no query has a label for the answers of all of {', '.join(log.models)}")
    return dataclasses.replace(log.take(rows), hand_labels=None)


def fully_labelled_queries(log: Log) -> np.ndarray:
    """Return which queries have a label for every answer: (n,) bool."""
    return np.all(log.labelled | ~np.asarray(log.answered), axis=1)


def is_fully_labelled(log: Log) -> bool:
    """Return whether every answer has a label."""
    return log.hand_labels is None or bool(fully_labelled_queries(log).all())


def with_outcomes(log: Log, right: np.ndarray) -> Log:
    """Replace the labels of a log by outcomes (n, k)."""
    column = np.where(log.answered, right, 0.0).astype(log.logprob.dtype)
    return dataclasses.replace(log, correct=jax.device_put(column), hand_labels=None)


def _shrink(predictions: np.ndarray, right: np.ndarray, answered: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Shrink each model's predictions towards their mean, to the least variance of the corrected outcomes: (n, k).

    All arrays are (n, k); `weight` is 1/π of labelled answers, and 0 of others, whose labels are not used.
    """
    total = np.maximum(weight.sum(0), 1e-300)
    centre = np.where(answered, predictions, 0.0).sum(0) / np.maximum(answered.sum(0), 1)
    mean_prediction, mean_label = ((weight * values).sum(0) / total for values in (predictions, right))
    covariance = (weight * (predictions - mean_prediction) * (right - mean_label)).sum(0) / total
    variance = (weight * (predictions - mean_prediction) ** 2).sum(0) / total
    scale = np.clip(np.divide(covariance, variance, out=np.ones_like(variance), where=variance > 0), 0.0, 1.0)
    return centre + scale * (predictions - centre)


def _folds(log: Log) -> np.ndarray:
    """Deal the log's distinct queries into folds at random, and return the fold of each row: (n,).

    A bootstrap may have drawn a query repeatedly; all its rows share a fold.
    """
    number_of = {query: number for number, query in enumerate(dict.fromkeys(log.queries))}
    fold = deal_folds([*number_of], np.ones(len(number_of), bool))
    return fold[[number_of[query] for query in log.queries]]
