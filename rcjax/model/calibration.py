"""Calibration of raw confidences: the transforms of the paper, and logistic regression on the transformed confidence.

Section 3 of Zellinger & Thomson (2025). LLM confidences crowd together near certainty; the transform ξ spreads them out
before the regression. Functions take log-probabilities: near certainty 1 − exp(logprob) rounds to 0, while ξ still
tells confidences apart.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special
from jax.typing import ArrayLike

from rcjax._core.batching import Status, pad_to_size_class
from rcjax._core.compilation import compiled, in_full_precision
from rcjax._core.numerics import divide, extremes, log1mexp
from rcjax.model.stated import StatedValues, estimate_stated, stack_stated_values
from rcjax.policy.decisions import NO_CONFIDENCE, Calibration, Transform


class CalibrationStatus(Status):
    """Status of a calibrator's fit."""

    CONVERGED = 0, "converged"
    SEPARABLE = 1, "a threshold tells right from wrong without error: only Firth's penalty keeps the slope finite"
    CONSTANT = 2, "confidence or correctness does not vary: one calibrated confidence for all"
    NOT_CONVERGED = 3, "the iterations ran out"


_LOG_2 = 0.6931471805599453

_NEWTON_STEPS = 40  # most steps, shorter ones included

_MIN_STEP = 1 / 32  # shortest share of a Newton step that is tried

_ARMIJO_SHARE = 0.25  # share of the gain predicted by the slope that a step must reach (Armijo's rule)


def transform_confidence(logprob: jax.Array, transform: Transform) -> jax.Array:
    """Transform the raw confidence p = exp(logprob) to ξ, elementwise; a missing confidence counts as p = 0.

    ξ is infinite at an end of [0, 1] where its formula is. The transforms:

    - `choice`: log 1/(1 − p);
    - `generation`: log 1/(1 − p) − log 2 for p ≥ ½, and log p + log 2 below. It is monotone and antisymmetric about
      p = ½; the paper prints log 1/p for p < ½, which is not monotone.
    - `none`: the log-probability, as in the ablation of the transforms (table 2 of the paper).

    >>> transform_confidence(jnp.log(jnp.array([0.25, 0.75])), "generation").round(3).tolist()
    [-0.693..., 0.693...]
    """
    logprob = jnp.where(logprob == NO_CONFIDENCE, -jnp.inf, logprob)
    if transform == "none":
        return logprob
    finite = jnp.where(logprob < 0, logprob, -1.0)
    surprise = jnp.where(logprob < 0, -log1mexp(finite), jnp.where(logprob == 0, jnp.inf, jnp.nan))
    if transform == "choice":
        return surprise
    if transform == "generation":
        return jnp.where(logprob >= -_LOG_2, surprise - _LOG_2, logprob + _LOG_2)
    raise ValueError(f"transform is {transform!r}; it is one of 'choice', 'generation', 'none'")


def invert_transform(transformed: jax.Array, transform: Transform) -> jax.Array:
    """Invert `transform_confidence`, elementwise.

    >>> f"{float(invert_transform(transform_confidence(-1e-9, 'choice'), 'choice')):.2g}"
    '-1e-09'
    """
    if transform == "none":
        return jnp.asarray(transformed)
    if transform == "choice":
        return log1mexp(-transformed)
    upper = log1mexp(-(jnp.maximum(transformed, 0.0) + _LOG_2))
    return jnp.where(transformed >= 0, upper, transformed - _LOG_2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Calibrator:
    """Logistic calibration of one model, Φ = σ(intercept + slope · ξ); a leading axis batches it over models.

    The smallest or largest finite ξ of the training log replaces an infinite ξ. Values that a model states repeatedly
    have separate estimates (`rcjax.model.stated`), and confidences between two values are clipped to their estimates.
    """

    coefficients: jax.Array  # (2,) intercept, slope
    smallest: jax.Array  # () the smallest finite ξ of the training log
    largest: jax.Array  # () the largest finite ξ of the training log
    slope_p: jax.Array  # () p-value of the slope, by the likelihood ratio, or of a trend without one
    status: jax.Array  # () a `CalibrationStatus`
    transform: Transform = dataclasses.field(metadata={"static": True})
    stated: StatedValues | None = None  # None: the model states no values

    def __call__(self, logprob: jax.Array) -> jax.Array:
        """Return the calibrated confidence of raw log-probabilities, elementwise."""
        curve = self.curve(logprob)
        return curve if self.stated is None else self.stated.amend(logprob, curve)

    def curve(self, logprob: jax.Array) -> jax.Array:
        """Return the calibrated confidence by the logistic regression alone, elementwise."""
        xi = self._without_infinities(transform_confidence(logprob, self.transform))
        return special.expit(self.coefficients[0] + self.coefficients[1] * xi)

    def xi(self, logprob: jax.Array) -> jax.Array:
        """Return the ξ at which the regression alone would give the calibrated confidence, elementwise.

        It differs from ξ at and near stated values. Requires `xi_slope` ≠ 0.
        """
        xi = self._without_infinities(transform_confidence(logprob, self.transform))
        if self.stated is None:
            return xi
        return divide(special.logit(self(logprob)) - self.coefficients[0], self.xi_slope, xi)

    @property
    def stated_logprobs(self) -> jax.Array | None:
        """(…, V) raw log-probabilities of the stated values, for `fit_calibrator`; None: no model states values."""
        return None if self.stated is None else self.stated.logprob

    @property
    def xi_slope(self) -> jax.Array:
        """(…) slope of the calibrated log-odds in `xi`.

        It is the regression's slope, or 1 if ξ is constant, for example if every confidence is 0 or 1.
        """
        slope = self.coefficients[..., 1]
        if self.stated is None:
            return slope
        return jnp.where(self.smallest == self.largest, 1.0, slope)

    def to_calibration(self) -> Calibration:
        """Convert the calibrator of one model, not a batch, to plain Python, as a policy holds it."""
        intercept, slope = (float(c) for c in self.coefficients)
        stated, lowest = None, None
        if self.stated is not None:
            stated, lowest = self.stated.raw_and_calibrated() or None, self.stated.no_confidence()
        return Calibration(self.transform, intercept, slope, float(self.smallest), float(self.largest), stated, lowest)

    @classmethod
    def from_calibrations(cls, calibrations: Sequence[Calibration], dtype: Any) -> "Calibrator":
        """Stack calibrations of policies that share a transform, as numpy arrays (k,): the inverse of `to_calibration`.

        `slope_p` is NaN and `status` 0, since policies do not hold them.
        """
        line = np.array([(c.intercept, c.slope) for c in calibrations], dtype)
        low, high = (np.array([getattr(c, end) for c in calibrations], dtype) for end in ("smallest", "largest"))
        values, lowest = [c.stated or () for c in calibrations], [c.no_confidence for c in calibrations]
        unknown: Any = np.full_like(low, np.nan)
        status: Any = np.zeros(len(low), int)
        stated = stack_stated_values(values, dtype, lowest)
        return cls(line, low, high, unknown, status, calibrations[0].transform, stated)  # type: ignore[arg-type]

    def inverse(self, confidence: jax.Array) -> jax.Array:
        """Find a log-probability with the given calibrated confidence by the curve alone, elementwise.

        The slope must not be 0.
        """
        xi = divide(special.logit(confidence) - self.coefficients[0], self.coefficients[1], self.smallest)
        return invert_transform(jnp.clip(xi, self.smallest, self.largest), self.transform)

    def _without_infinities(self, xi: jax.Array) -> jax.Array:
        """Replace infinite ξ by the training extremes; finite ξ stay, even beyond the extremes."""
        xi = jnp.where(xi == jnp.inf, self.largest, xi)
        return jnp.where(xi == -jnp.inf, self.smallest, xi)


# Jitted, so that the programs that contain it do not trace it again.
@partial(jax.jit, static_argnames="transform")
@in_full_precision
def fit_calibrator(
    logprob: jax.Array, correct: jax.Array, answered: jax.Array, transform: Transform, values: jax.Array | None = None
) -> Calibrator:
    """Fit a logistic regression of `correct` on the transformed confidence, for one model; `vmap` it over models.

    Newton's method maximises the likelihood without a penalty. Two cases have no such maximum:

    - SEPARABLE: a threshold on ξ separates right from wrong answers. The fit maximises Firth's (1993) penalised
      likelihood (Jeffreys' prior), which is always finite.
    - CONSTANT: ξ or `correct` does not vary. The slope is 0 and Φ = (c + ½)/(n + 1), with c of n answers right, which
      is Firth's estimate for an intercept alone.

    Args:
        logprob: (n,) raw log-probability.
        correct: (n,) whether the answer is right, or its probability if there is no label.
        answered: (n,) whether there is an answer; other queries are ignored.
        transform: transform of the raw confidence.
        values: (V,) raw log-probabilities that the model states, padded with NaN (`find_stated_logprobs`); None: the
            model states no values. Missing confidences count as a value, and are left out of the regression.
    """
    all_answered = answered
    if values is not None:
        answered = answered & (logprob != NO_CONFIDENCE)
    xi = transform_confidence(jnp.where(answered, logprob, -1.0), transform)
    smallest, largest, separable = _find_ends(xi, correct, answered)
    side = jnp.where(jnp.isfinite(xi), 0.0, jnp.sign(xi))
    xi = jnp.clip(xi, smallest, largest)
    weight = answered.astype(xi.dtype)
    target = jnp.where(answered, correct, 0).astype(xi.dtype)

    right, count = jnp.stack([target.sum(), weight.sum()])
    constant = (smallest == largest) | (right == 0) | (right == count)
    coefficients, converged = _newton_logistic(xi, target, weight, separable)
    score = coefficients[0] + coefficients[1] * xi
    null = special.xlogy(right, right) + special.xlogy(count - right, count - right) - special.xlogy(count, count)
    # Wald's test would find no slope where it is steep: its standard error explodes near separation.
    ratio = (target * score - weight * jnp.logaddexp(score, 0)).sum() - null
    rate = (right + 0.5) / (count + 1)
    flat = jnp.stack([special.logit(rate), jnp.zeros_like(rate)])
    coefficients = jnp.where(constant, flat, coefficients)
    fitted = jnp.where(separable, CalibrationStatus.SEPARABLE, CalibrationStatus.CONVERGED)
    status = jnp.where(converged, fitted, CalibrationStatus.NOT_CONVERGED)
    calibrator = Calibrator(
        coefficients=coefficients,
        smallest=smallest,
        largest=largest,
        slope_p=lax.erfc(jnp.sqrt(jnp.where(constant, _measure_trend(side, target, weight), jnp.maximum(ratio, 0.0)))),
        status=jnp.where(constant, CalibrationStatus.CONSTANT, status),
        transform=transform,
    )
    if values is None:
        return calibrator
    weight = all_answered.astype(xi.dtype)
    right = jnp.where(all_answered, correct, 0).astype(xi.dtype)
    raw = jnp.where(all_answered, logprob, -1.0)
    stated = estimate_stated(raw, weight, right, values, calibrator.curve, coefficients[1])
    return dataclasses.replace(calibrator, stated=stated)


def _measure_trend(side: jax.Array, target: jax.Array, weight: jax.Array) -> jax.Array:
    """Return half of Cochran and Armitage's statistic for a trend of the outcome (n,) over sides −1, 0 and 1 (n,)."""
    count = jnp.maximum(weight.sum(), 1)
    x, y = (weight * (each - (weight * each).sum() / count) for each in (side, target))
    variances = (x * x).sum() * (y * y).sum()
    return jnp.where(variances > 0, count * (x * y).sum() ** 2 / jnp.where(variances > 0, 2 * variances, 1.0), 0.0)


def _find_ends(xi: jax.Array, correct: jax.Array, answered: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (smallest finite ξ, largest finite ξ, whether a threshold on ξ divides right from wrong answers)."""
    # Estimated outcomes lie strictly between 0 and 1, so that no threshold separates them.
    groups = jnp.stack([jnp.isfinite(xi), correct > 0, correct < 1]) & answered
    lows, highs = extremes(xi, groups)
    # If all answers are certain, no ξ is finite; any value serves, since the slope is 0.
    smallest, largest = (jnp.where(jnp.isfinite(edge), edge, 0.0) for edge in (lows[0], highs[0]))
    (right_low, wrong_low), (right_high, wrong_high) = (jnp.clip(ends[1:], smallest, largest) for ends in (lows, highs))
    return smallest, largest, (right_low >= wrong_high) | (wrong_low >= right_high)  # ties at the threshold included


@jax.jit
@in_full_precision
def calibrate_all(calibrators: Calibrator, logprob: jax.Array, answered: jax.Array | None = None) -> jax.Array:
    """Calibrate the answers of k models: (…, k); a finite placeholder where `answered` (…, k) is False."""
    finite = logprob if answered is None else jnp.where(answered, logprob, -1.0)
    return jax.vmap(lambda calibrator, column: calibrator(column), in_axes=(0, -1), out_axes=-1)(calibrators, finite)


_calibrate_all_compiled = compiled(calibrate_all)


def calibrate_rows(calibrators: Calibrator, logprob: ArrayLike) -> jax.Array:
    """Calibrate the rows of a log (n, k) by `calibrate_all`, padded so that logs of similar size share a program."""
    n = np.shape(logprob)[0]
    confidence = _calibrate_all_compiled(calibrators, *pad_to_size_class(logprob))
    return confidence if len(confidence) == n else jax.device_put(np.asarray(confidence)[:n])


class _Newton(NamedTuple):
    """State of Newton's method: the current point, and the step to try next."""

    number: jax.Array | int  # () steps taken; −1 until the start is evaluated
    beta: jax.Array  # (2,)
    value: jax.Array  # () the penalised likelihood
    inverse: jax.Array  # (2, 2) of Fisher's matrix
    direction: jax.Array  # (2,) full Newton step
    slope: jax.Array  # () gain of the full step predicted by the gradient
    length: jax.Array  # () share of the step to try; 0: no share improves
    change: jax.Array  # () largest change of a coefficient in the last step


def _penalised_likelihood(
    beta: jax.Array, powers: jax.Array, target: jax.Array, weight: jax.Array, firth: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (penalised likelihood, inverse of Fisher's matrix, gradient) at coefficients (2,).

    `powers` (3, n) are 1, z and z² of the standardised feature z.
    """
    score = beta[0] + beta[1] * powers[1]
    small = jnp.exp(-jnp.abs(score))  # computed once, since exponentials dominate the time
    fitted, softplus = jnp.where(score >= 0, 1.0, small) / (1 + small), jnp.maximum(score, 0.0) + jnp.log1p(small)
    variance = weight * fitted * (1 - fitted)
    matrix = (powers @ variance)[np.array([[0, 1], [1, 2]])]
    inverse = _inverse(matrix)
    leverage = variance * (jnp.stack([inverse[0, 0], 2 * inverse[0, 1], inverse[1, 1]]) @ powers)
    residual = target - weight * fitted + jnp.where(firth, leverage * (0.5 - fitted), 0.0)
    likelihood = (target * score - weight * softplus).sum()
    value = likelihood + jnp.where(firth, 0.5 * jnp.log(_determinant(matrix)), 0.0)
    return value, inverse, powers[:2] @ residual


def _newton_logistic(xi: jax.Array, target: jax.Array, weight: jax.Array, firth: jax.Array) -> tuple[jax.Array, ...]:
    """Fit a logistic regression, and return (coefficients (2,), converged ()).

    Newton's method starts from zero on the standardised feature, and halves steps that lower the penalised likelihood.
    """
    count = jnp.maximum(weight.sum(), 1)
    center = (weight * xi).sum() / count
    spread = jnp.sqrt((weight * (xi - center) ** 2).sum() / count)
    spread = jnp.where(spread > 0, spread, 1.0)
    z = (xi - center) / spread
    powers = jnp.stack([jnp.ones_like(z), z, z * z])
    evaluate = partial(_penalised_likelihood, powers=powers, target=target, weight=weight, firth=firth)
    tolerance, rounding = jnp.sqrt(jnp.finfo(z.dtype).eps), 16 * jnp.finfo(z.dtype).eps

    def unfinished(state: _Newton) -> jax.Array:
        return (state.number < _NEWTON_STEPS) & (state.change > tolerance)

    # The start, full steps and shorter steps share one evaluation: the program is a third as large.
    def try_step(state: _Newton) -> _Newton:
        step = state.length * state.direction
        value, inverse, gradient = evaluate(state.beta + step)
        taken = value - state.value >= _ARMIJO_SHARE * state.length * state.slope - rounding * jnp.abs(state.value)
        direction, full = inverse @ gradient, jnp.ones_like(state.length)
        change = jnp.where(state.number < 0, jnp.inf, jnp.abs(step).max())
        accepted = state.number + 1, state.beta + step, value, inverse, direction, gradient @ direction, full, change
        length = jnp.where(state.length > _MIN_STEP, state.length / 2, 0.0)
        shorter = state._replace(length=length, change=jnp.where(length > 0, state.change, 0.0))
        return jax.tree.map(partial(jnp.where, taken), _Newton(*accepted), shorter)

    zero, unit = jnp.zeros(2, z.dtype), jnp.ones((), z.dtype)
    start = _Newton(-1, zero, -jnp.inf * unit, jnp.zeros((2, 2), z.dtype), zero, 0 * unit, unit, jnp.inf * unit)
    last = lax.while_loop(unfinished, try_step, start)
    # From the standardised feature back to ξ.
    slope = last.beta[1] / spread
    return jnp.stack([last.beta[0] - center * slope, slope]), last.change <= tolerance


def _determinant(matrix: jax.Array) -> jax.Array:
    return jnp.maximum(matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0], jnp.finfo(matrix.dtype).tiny)


def _inverse(matrix: jax.Array) -> jax.Array:
    adjugate = jnp.stack([matrix[1, 1], -matrix[0, 1], -matrix[1, 0], matrix[0, 0]]).reshape(2, 2)
    return adjugate / _determinant(matrix)


def expected_calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Compute the expected calibration error over ten bins between the deciles of the confidence; in [0, 1].

    It is the mean of |accuracy − mean confidence| over the bins, weighted by their share of the answers. Bins are
    [edge, next edge); the last bin is closed. Section 5.1 of the paper.

    Args:
        confidence: (n,) calibrated confidence.
        correct: (n,) whether the answer is right.

    >>> expected_calibration_error(np.array([0.5, 0.5, 0.5, 0.5]), np.array([1, 0, 1, 0]))
    0.0
    """
    confidence = np.asarray(confidence, float)
    return binned_gap(decile_bins(confidence), np.asarray(correct, float) - confidence)


def binned_gap(bins: np.ndarray, gap: np.ndarray) -> float:
    """Return Σ over bins of |Σ gaps in the bin| / n, for gaps (n,) between outcome and confidence, and bins (n,)."""
    return float(np.abs(np.bincount(bins, weights=gap)).sum() / len(gap))


def decile_bins(confidence: np.ndarray) -> np.ndarray:
    """Assign each confidence (n,) to one of ten bins between the deciles: (n,).

    Bins are [edge, next edge); the last bin is closed. Bins between equal deciles are empty. Raises ValueError without
    confidences.
    """
    if not len(confidence):
        raise ValueError("confidence is empty: deciles need at least one answer")
    # Rounding in np.percentile can make a decile differ from the data point that it equals.
    low, remainder = np.divmod(np.arange(1, 10) * (len(confidence) - 1), 10)
    ordered = np.sort(confidence)
    edges = ordered[low] + remainder.astype(ordered.dtype) / 10 * (ordered[low + (remainder > 0)] - ordered[low])
    return np.searchsorted(edges, confidence, side="right")
