"""How likely an answer is right where nobody has labelled it: from judges, confidences and the labels there are.

A ridge regression on the log-odds, of the labels by hand on

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

from rcjax._core.compilation import compiled
from rcjax._core.size_classes import fill_up
from rcjax.logs.log import Log
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
        """That of a log's ξ (n, k), NaN where there is no answer."""
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
    """(n, k) ξ of the raw confidences, NaN where there is no answer."""
    answered = np.asarray(log.answered)
    return np.where(answered, transform_confidence(jnp.where(log.answered, log.logprob, -1.0), transform), np.nan)


def _features(log: Log, scale: Scale, transform: Transform) -> np.ndarray:
    """(n, k, F) what is known of answers but for their labels; zeros for one that was not given."""
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
