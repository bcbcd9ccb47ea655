"""A fitted model as a function of how much each query counts, and of its log-probabilities: pure and differentiable.

Every part of a fit but Kendall's τ and the costs solves equations of weighted sums: the score equations of a logistic
regression and of a mixture of betas. From a fitted model a few Newton steps solve them for other weights; the implicit
function theorem gives their derivatives (`stationary`). So a bootstrap is one vmap, and one derivative
stands for it: the infinitesimal jackknife (Jaeckel 1972; Giordano, Stephenson, Liu, Jordan & Broderick 2019, "A Swiss
Army infinitesimal jackknife").
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from rcjax._core.batching import varying_together
from rcjax._core.numerics import divide, extremes
from rcjax.copulas import Copula, OneOf
from rcjax.logs.log import Log
from rcjax.model.calibration import CalibrationStatus, Calibrator, calibrate_all, transform_confidence
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.label_outcomes import expected_log
from rcjax.model.marginal_fitting import REFIT_STEPS, climb_on, columns_of
from rcjax.model.marginals import Atoms, Marginal, at_value, log_components
from rcjax.model.pairs import pairs
from rcjax.model.stated import estimate
from rcjax.policy.decisions import NO_CONFIDENCE

_STEPS = 8
#: Curvatures below this share of the largest are none: what they belong to stays where it is.
_FLAT = 1e-10


def stationary(objective: Callable[..., jax.Array], start: jax.Array, *inputs: Any) -> jax.Array:
    """The maximum (d,) of objective(x, *inputs) near `start`, by Newton steps, with derivatives by the inputs.

    By the implicit function theorem dx = −(∂²f/∂x²)⁻¹ (∂²f/∂x∂inputs). Directions in which the objective does not curve
    down stay where they are.

    >>> def objective(x, goal):
    ...     return -((x - goal) ** 2).sum()
    >>> slope = jax.jacobian(lambda goal: stationary(objective, jnp.zeros(1), goal))(jnp.ones(1))
    >>> float(slope[0, 0])
    1.0
    """
    still = lax.stop_gradient(inputs)

    def divided(curvature: jax.Array, slope: jax.Array) -> jax.Array:
        bends, axes = jnp.linalg.eigh(curvature)
        down = bends < -_FLAT * jnp.abs(bends).max()
        return axes @ (jnp.where(down, 1 / jnp.where(down, bends, 1.0), 0.0) * (axes.T @ slope))

    def step(_: Any, x: jax.Array) -> jax.Array:
        moved = x - divided(jax.hessian(objective)(x, *still), jax.grad(objective)(x, *still))
        least = objective(x, *still)
        least -= 64 * jnp.finfo(x.dtype).eps * (1 + jnp.abs(least))  # what rounding takes
        return jnp.where(objective(moved, *still) >= least, moved, x)

    return lax.custom_root(
        lambda x: jax.grad(objective)(x, *inputs),
        lax.stop_gradient(start),
        # From what varies as the objective does, over the devices of `jax.shard_map`.
        lambda _, start: lax.fori_loop(0, _STEPS, step, start + jnp.zeros_like(objective(start, *still))),
        lambda linear, slope: divided(jax.jacobian(linear)(slope), slope),
    )


#: Rows that are compared with all others at a time.
_BLOCK = 128


class WeightedRows(NamedTuple):
    """What a fit takes of a log, n queries and k models; arrays of JAX's, without NaN."""

    logprob: jax.Array  # (n, k); −1 where there is no answer
    correct: jax.Array  # (n, k) how likely an answer is right: 0 or 1 where that is known
    answered: jax.Array  # (n, k) bool
    cost: jax.Array  # (n, k) money; 0 where there is no answer


def rows_of(log: Log) -> WeightedRows:
    """The rows of a log; what its answers without a label are taken for as `rcjax.fit` takes it."""
    answered = jnp.asarray(np.asarray(log.answered))
    columns = log.logprob, expected_log(log).correct, log.query_cost
    logprob, correct, cost = (
        jnp.where(answered, jnp.asarray(column, jnp.result_type(float)), otherwise)
        for column, otherwise in zip(columns, (-1.0, 0.0, 0.0), strict=True)
    )
    return WeightedRows(logprob, correct, answered, cost)


def reweigh(model: CascadeModel, rows: WeightedRows, weights: jax.Array) -> CascadeModel:
    """The model fitted to weighted rows, from a model that is fitted to them unweighted or to rows much like them.

    Pure: under `jit`, `vmap` (over weights, models and rows) and `grad` by the weights, and apart from τ, which goes by
    ranks, by the log-probabilities. Its copulas are found by Kendall's τ-b of weighted pairs. What the fit says of
    itself (standard errors, statuses, provenance) stays as it was.

    Args:
        model: the fitted model, of k models.
        rows: of a log of these models, in their order (`rows_of`).
        weights: (n,) how much each query counts, at least 0: 2 is twice the query, 0 as if it were not there.

    >>> import jax, rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> model, rows = rcjax.fit(log), rows_of(log)
    >>> same = reweigh(model, rows, jnp.ones(300))
    >>> bool(jnp.allclose(same.marginals.mass_highest, model.marginals.mass_highest))
    True
    """
    model, rows, weights = varying_together((model, rows, jnp.asarray(weights, model.cost.dtype)))
    counted = weights[:, None] * rows.answered
    calibrators = jax.vmap(_calibrator, (0, 1, 1, 1))(model.calibrators, rows.logprob, rows.correct, counted)
    confidence = calibrate_all(calibrators, rows.logprob, rows.answered)
    marginals = jax.vmap(_marginal, (0, 1, 1))(model.marginals, confidence, counted)
    copulas = _of_taus(model.copulas, weighted_taus(lax.stop_gradient(confidence), counted))
    cost = divide((counted * rows.cost).sum(0), counted.sum(0))
    return dataclasses.replace(model, calibrators=calibrators, marginals=marginals, copulas=copulas, cost=cost)


def weighted_taus(columns: jax.Array, weights: jax.Array) -> jax.Array:
    """(P,) Kendall's τ-b of all pairs of columns, each pair of rows counted by the product of their weights.

    In O(n²) for each pair of columns, some rows at a time.

    Args:
        columns: (n, k).
        weights: (n, k); of a pair of columns a row counts where both have a weight, by that of the first.

    >>> columns = jnp.array([[1.0, 1.0], [2.0, 3.0], [3.0, 2.0], [4.0, 4.0]])
    >>> round(float(weighted_taus(columns, jnp.ones((4, 2)))[0]), 4)
    0.6667
    """
    n = len(columns)
    columns, weights = (jnp.pad(array, ((0, -n % _BLOCK), (0, 0))) for array in (columns, weights))
    blocks = jnp.arange(len(columns)).reshape(-1, _BLOCK)

    def tau(pair: jax.Array) -> jax.Array:
        (x, y), (first, second) = columns[:, pair].T, weights[:, pair].T
        weight = jnp.where(second > 0, first, 0.0)

        def add(sums: jax.Array, rows: jax.Array) -> tuple[jax.Array, None]:
            by_x, by_y = (jnp.sign(values[rows][:, None] - values) for values in (x, y))
            products = jnp.stack([by_x * by_y, by_x * by_x, by_y * by_y])
            return sums + (products @ weight) @ weight[rows], None

        # Like what is added, so that under `jax.shard_map` both vary over the same devices.
        nothing = jnp.zeros_like(x + y + weight, shape=(3,))
        concordant, untied_x, untied_y = lax.scan(add, nothing, blocks)[0]
        return divide(concordant, jnp.sqrt(jnp.maximum(untied_x * untied_y, jnp.finfo(columns.dtype).tiny)))

    return lax.map(tau, jnp.asarray(np.array(pairs(columns.shape[1]), int).reshape(-1, 2)))


def _calibrator(near: Calibrator, logprob: jax.Array, correct: jax.Array, weight: jax.Array) -> Calibrator:
    """The calibrator of one model; columns (n,) of its answers."""
    features, every = transform_confidence(logprob, near.transform), weight
    if near.stated is not None:  # answers without a confidence are a value of their own
        weight = jnp.where(logprob == NO_CONFIDENCE, 0.0, weight)
    there = (weight > 0) & jnp.isfinite(features)
    smallest, largest = extremes(features, there)
    smallest, largest = (jnp.where(jnp.isfinite(edge), edge, 0.0) for edge in (smallest, largest))
    features = jnp.clip(features, smallest, largest)
    # On a scale of their own, which moves nothing: the two coefficients then hardly depend on each other.
    center = lax.stop_gradient(divide((weight * features).sum(), weight.sum()))
    spread = lax.stop_gradient(jnp.sqrt(divide((weight * (features - center) ** 2).sum(), weight.sum())))
    spread = jnp.where(spread > 0, spread, 1.0)
    constant = near.status == CalibrationStatus.CONSTANT
    penalised = ~constant & (near.status != CalibrationStatus.CONVERGED)

    def likelihood(beta: jax.Array, z: jax.Array, weight: jax.Array) -> jax.Array:
        score = beta[0] + beta[1] * z
        log_likelihood = (weight * (correct * score - jax.nn.softplus(score))).sum()
        variance = weight * jax.nn.sigmoid(score) * jax.nn.sigmoid(-score)
        around = z - divide((variance * z).sum(), variance.sum())  # moments about 0 would cancel
        determinant = jnp.where(penalised, variance.sum() * (variance * around**2).sum(), 1.0)
        return log_likelihood + 0.5 * jnp.log(determinant)  # Firth 1993

    right, count = (weight * correct).sum(), weight.sum()
    flat = jnp.stack([special.logit((right + 0.5) / (count + 1)), jnp.zeros_like(count)])
    intercept, slope = near.coefficients
    start = jnp.stack([intercept + slope * center, slope * spread])
    intercept, slope = stationary(likelihood, start, (features - center) / spread, weight)
    fitted = jnp.stack([intercept - slope * center / spread, slope / spread])
    coefficients = jnp.where(constant, flat, fitted)
    calibrator = dataclasses.replace(near, coefficients=coefficients, smallest=smallest, largest=largest, stated=None)
    if near.stated is None:
        return calibrator
    values = lax.stop_gradient(near.stated.logprob)
    curve = calibrator.curve, coefficients[1]
    return dataclasses.replace(calibrator, stated=estimate(logprob, (every, every * correct), values, curve))


def _marginal(near: Marginal, confidence: jax.Array, weight: jax.Array) -> Marginal:
    """The marginal of one model's confidences (n,)."""
    there = weight > 0
    lowest, highest = extremes(confidence, there)
    inside = there & (confidence > lowest) & (confidence < highest)
    atoms, count = near.atoms, weight.sum()
    if atoms is not None:
        # What is stated is calibrated anew: each atom is where its answers are now.
        here = at_value(lax.stop_gradient(confidence), lax.stop_gradient(atoms.value)).T & inside
        inside &= ~here.any(0)
        mass = (here * weight).sum(-1)
        value = divide((here * weight * confidence).sum(-1), mass, atoms.value)
        atoms = Atoms(value, mass / count)
    below, above = ((weight * (confidence == end)).sum() / count for end in (lowest, highest))
    below = jnp.where(lowest == highest, 0.0, below)
    scaled = jnp.where(inside, divide(confidence - lowest, highest - lowest, 0.5), 0.5)
    info = jnp.finfo(scaled.dtype)
    scaled = jnp.clip(scaled, info.tiny, 1 - info.epsneg)
    proportion, a, b = _mixture(near, scaled, jnp.where(inside, weight, 0.0))
    return Marginal(lowest, highest, below, above, proportion, a, b, atoms)


def _mixture(near: Marginal, x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(π, a, b) of the mixture of two betas that is likeliest for weighted values x (n,) in (0, 1)."""

    def likelihood(free: jax.Array, x: jax.Array, weight: jax.Array) -> jax.Array:
        proportion, a, b = _of_free(free)
        density = special.logsumexp(log_components(proportion, a, b, jnp.log(x), jnp.log1p(-x)), axis=-1)
        return divide((weight * density).sum(), weight.sum())

    # From afar expectation–maximisation climbs more surely than Newton's method, which settles what it reaches.
    mixture = lax.stop_gradient((near.proportion, near.a, near.b))
    (proportion, a, b), _ = climb_on(columns_of(*lax.stop_gradient((x, weight > 0, weight))), mixture, REFIT_STEPS)
    share = jnp.clip(proportion, jnp.finfo(x.dtype).tiny, 1.0)
    start = jnp.concatenate([jnp.log(share[:1]) - jnp.log(share[1:]), jnp.log(a), jnp.log(b)])
    return _of_free(stationary(likelihood, start, x, weight))


def _of_free(free: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(π, a, b) of log odds and logarithms (5,)."""
    return jnp.stack([jax.nn.sigmoid(free[0]), jax.nn.sigmoid(-free[0])]), jnp.exp(free[1:3]), jnp.exp(free[3:])


def _of_taus(near: Copula, taus: jax.Array) -> Any:
    """The copulas (P,) of the families that pairs have, from their τ."""
    if isinstance(near, OneOf):
        return dataclasses.replace(near, members=tuple(_of_taus(member, taus) for member in near.members))
    return jax.vmap(type(near).from_tau)(taus)
