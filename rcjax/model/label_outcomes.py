"""What answers count for where some of them have no label: one form of outcomes to choose by, one to tell figures by.

Both are the labels where all answers have one. For *choosing* policies an answer counts as its label, or as it is
expected to be (`LabelRegression`): little variance, and the same small bias for all policies alike. For *saying what
they do* the labels correct the regression,

    ỹ = g + R/π · (y − g)        R whether it is labelled, π the share of the model's answers that are

which is right on average whatever a judge says (augmented inverse-probability weighting: Robins, Rotnitzky & Zhao 1994,
"Estimation of regression coefficients when some regressors are not always observed", JASA 89). g is predicted by the
labels of other queries, and drawn towards its mean as far as that lowers the variance (PPI++: Angelopoulos, Duchi &
Zrnic 2023, arXiv 2311.01453).

g is a ridge regression on the log-odds, of the labels by hand on

    1 · is there a judge · ξ · ξ where there is a judge · ξ of the other models · each judge · the judges of the others

with one coefficient for all models, and one more for each model by which it may differ. The priors of the latter are
narrow: with a hundred labels a judge is known to err, and hardly where it errs more. So a judge that is lenient to one
model is found out by that model's own intercept.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from rcjax._core.batching import fill_up
from rcjax._core.compilation import compiled
from rcjax.logs.errors import LogError
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.model.calibration import Transform, transform_confidence

#: Standard deviations of the prior of a coefficient for all models, and of a model's own part of it.
_SHARED, _BY_MODEL = 3.0, 1.0

#: Of the model's own intercept: models differ in accuracy as they please.
_BY_MODEL_INTERCEPT = 3.0

_NEWTON_STEPS = 15

_STEPS = np.array([1.0, 0.5, 0.25, 0.0625])  # lengths of a Newton step that are tried


class Scale(NamedTuple):
    """What the ξ of k models are measured by, so that those of another log mean the same; (k,) numpy's arrays."""

    low: np.ndarray  # the least finite ξ, which −∞ counts as
    high: np.ndarray  # the largest
    centre: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, raw: np.ndarray) -> "Scale":
        """That of a log's ξ (n, k), NaN if there is no answer."""
        finite = np.where(np.isfinite(raw), raw, np.nan)
        with np.errstate(all="ignore"):
            low, high = (np.nan_to_num(end(finite, axis=0)) for end in (np.fmin.reduce, np.fmax.reduce))
        answered = ~np.isnan(raw)
        count, bounded = np.maximum(answered.sum(0), 1), np.clip(raw, low, high)
        centre = np.where(answered, bounded, 0.0).sum(0) / count
        spread = np.sqrt((np.where(answered, bounded - centre, 0.0) ** 2).sum(0) / count)
        return cls(low, high, centre, np.where(spread > 0, spread, 1.0))

    def standard(self, raw: np.ndarray) -> np.ndarray:
        """(n, k) with mean 0 and deviation 1 on the log that the scale is of; 0 where there is no answer."""
        return np.nan_to_num((np.clip(raw, self.low, self.high) - self.centre) / self.spread)


@dataclasses.dataclass(frozen=True)
class LabelRegression:
    """W regressions of the labels by hand, by as many parts of them, and what their features are measured by."""

    scale: Scale
    coefficients: np.ndarray  # (W, F·(k + 1))
    transform: Transform

    @classmethod
    def of(cls, log: Log, counted: np.ndarray | None = None) -> "LabelRegression":
        """Fitted to the labels of a log with `Log.hand`.

        Args:
            log: the log.
            counted: (W, n) bool, the queries whose labels count for each regression; None: one, of all.
        """
        assert log.hand is not None
        scale = Scale.of(_transformed(log, log.task))
        columns = _features(log, scale, log.task)
        query, model = np.nonzero(log.labelled & np.asarray(log.answered))
        weight = np.ones((1, len(query))) if counted is None else counted[:, query]
        dtype, zeros = log.logprob.dtype, np.zeros(len(log.models), log.logprob.dtype)
        right = np.asarray(log.correct)[query, model]
        rows, right, model = fill_up(columns[query, model], right, model)
        (weight,) = fill_up(weight, axis=1)
        fitted = _fit(rows.astype(dtype), model, right.astype(dtype), weight.astype(dtype), zeros)
        return cls(scale, np.asarray(fitted), log.task)

    def predict(self, log: Log) -> np.ndarray:
        """(W, n, k) how likely each answer of a log of the same models and judges is right, its label left aside."""
        columns = _features(log, self.scale, self.transform).astype(log.logprob.dtype)
        (filled,) = fill_up(columns)
        zeros = np.zeros(len(log.models), filled.dtype)
        return np.asarray(_predict(filled, self.coefficients, zeros), float)[:, : log.n_queries]


def _transformed(log: Log, transform: Transform) -> np.ndarray:
    """(n, k) ξ of the raw confidences, NaN if there is no answer."""
    answered = np.asarray(log.answered)
    return np.where(answered, transform_confidence(jnp.where(log.answered, log.logprob, -1.0), transform), np.nan)


def _features(log: Log, scale: Scale, transform: Transform) -> np.ndarray:
    """(n, k, F) what is known of answers apart from their labels; zeros for one that was not given."""
    assert log.hand is not None
    answered, judged = np.asarray(log.answered), np.asarray(log.hand.judged, float)
    z = scale.standard(_transformed(log, transform))
    verdict = 2 * np.nan_to_num(judged, nan=0.5) - 1  # (n, k, J) in [−1, 1]; 0 where there is none
    has = np.isfinite(judged).any(-1) & answered
    others = _of_others(z, answered)
    theirs = _of_others(verdict.mean(-1) if judged.shape[-1] else np.zeros(z.shape), has)
    columns = [np.ones(z.shape), has, z, z * has, others, others * has, theirs, *np.moveaxis(verdict, -1, 0)]
    return np.stack(columns, -1) * answered[..., None]


def _of_others(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(n, k) the mean over the other models that are known; 0 where none is."""
    held = np.where(mask, values, 0.0)
    count = mask.sum(1, keepdims=True) - mask
    return (held.sum(1, keepdims=True) - held) / np.maximum(count, 1)


def _design(columns: jax.Array, model: jax.Array, k: int) -> jax.Array:
    """(m, F·(k + 1)) features, and again for each answer's own model."""
    indicator = (model[:, None] == jnp.arange(k)).astype(columns.dtype)
    return jnp.concatenate([columns, (indicator[:, :, None] * columns[:, None]).reshape(len(columns), -1)], axis=1)


def _precision(size: int, k: int, dtype: Any) -> jax.Array:
    """(F·(k + 1),) one over the variance of each coefficient's prior."""
    shared = np.full(size, _SHARED**-2.0)
    by_model = np.full(size, _BY_MODEL**-2.0)
    by_model[0] = _BY_MODEL_INTERCEPT**-2.0
    return jnp.asarray(np.concatenate([shared, np.tile(by_model, k)]), dtype)


@compiled
def _fit(columns: jax.Array, model: jax.Array, right: jax.Array, weight: jax.Array, zeros: jax.Array) -> jax.Array:
    """(W, F·(k + 1)) coefficients by weights (W, m) of m labelled answers; `zeros` (k,) is there for its shape."""
    k = len(zeros)
    design, precision = _design(columns, model, k), _precision(columns.shape[1], k, columns.dtype)

    def objective(beta: jax.Array, weight: jax.Array) -> jax.Array:
        score = design @ beta
        return (weight * (right * score - jax.nn.softplus(score))).sum() - 0.5 * (precision * beta * beta).sum()

    def fit(weight: jax.Array) -> jax.Array:
        def step(_: Any, beta: jax.Array) -> jax.Array:
            expected = special.expit(design @ beta)
            gradient = design.T @ (weight * (right - expected)) - precision * beta
            information = (design.T * (weight * expected * (1 - expected))) @ design + jnp.diag(precision)
            change = jax.scipy.linalg.solve(information, gradient, assume_a="pos")
            tried = beta + jnp.asarray(_STEPS, beta.dtype)[:, None] * change
            return tried[jnp.argmax(jax.vmap(objective, (0, None))(tried, weight))]

        return jax.lax.fori_loop(0, _NEWTON_STEPS, step, jnp.zeros(design.shape[1], columns.dtype))

    return jax.vmap(fit)(weight)


@compiled
def _predict(columns: jax.Array, beta: jax.Array, zeros: jax.Array) -> jax.Array:
    """(…, n, k) probabilities of features (n, k, F) by coefficients (…, F·(k + 1))."""
    size = columns.shape[-1]
    shared, mine = beta[..., :size], beta[..., size:].reshape(*beta.shape[:-1], len(zeros), size)
    return special.expit(jnp.einsum("nkf,...kf->...nk", columns, shared[..., None, :] + mine))


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
    if is_whole(log):
        return np.broadcast_to(log.correct, (folds, *np.shape(log.correct)))
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


def alike(log: Log) -> Log:
    """A log in which equal answers to a query are equally right: each counts as the mean of those that are equal to it.

    Two policies that give a query the same answer differ by nothing then, whatever labels each model's answer has.
    """
    if log.answer is None:
        return log
    codes, right = np.asarray(log.answer), np.asarray(log.correct, float)
    known = np.asarray(log.answered) & (codes != NO_ANSWER)
    equal = (codes[:, :, None] == codes[:, None, :]) & known[:, :, None] & known[:, None, :]
    mean = (equal * right[:, None, :]).sum(2) / np.maximum(equal.sum(2), 1)
    return with_outcomes(log, np.where(known, mean, right))


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
