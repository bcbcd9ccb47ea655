"""Fits as pure, differentiable functions of the weights of queries and of the data.

Logistic regressions and mixtures of betas solve score equations, which are weighted sums over queries. From a fitted
model a few Newton steps solve them for other weights, and the implicit function theorem gives derivatives
(`stationary`). A bootstrap is then one `vmap`, and a single derivative approximates it: the infinitesimal jackknife
(Jaeckel 1972; Giordano, Stephenson, Liu, Jordan & Broderick 2019, "A Swiss Army infinitesimal jackknife").
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from rcjax._core.batching import automatic, varying_together
from rcjax._core.compilation import is_traced
from rcjax._core.numerics import divide, extremes, kendall_tau, open_unit
from rcjax.copulas import Copula
from rcjax.copulas.families import as_family
from rcjax.logs.log import Log
from rcjax.model.calibration import CalibrationStatus, Calibrator, calibrate_all, transform_confidence
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import from_taus, stated_confidences
from rcjax.model.label_outcomes import expected_log
from rcjax.model.likelihood import Ranks, sum_of
from rcjax.model.marginals import BetaMixture, log_components
from rcjax.model.maximum_likelihood import (
    REFIT_STEPS,
    FitStatus,
    Mixture,
    columns_of,
    fit_pair,
    masses,
    member_at,
    place_of,
    run_em,
)
from rcjax.model.stated import estimate
from rcjax.policy.decisions import NO_CONFIDENCE

_STEPS = 8
#: Curvatures below this share of the largest count as 0, and their directions stay unchanged.
_FLAT = 1e-10


def stationary(objective: Callable[..., jax.Array], start: jax.Array, *inputs: Any) -> jax.Array:
    """Maximise objective(x, *inputs) near `start` by Newton steps, differentiably in the inputs; (d,).

    By the implicit function theorem dx = −(∂²f/∂x²)⁻¹ (∂²f/∂x∂inputs). Directions in which the objective is not concave
    stay at `start`.

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
        least -= 64 * jnp.finfo(x.dtype).eps * (1 + jnp.abs(least))  # tolerance for rounding
        return jnp.where(objective(moved, *still) >= least, moved, x)

    return lax.custom_root(
        lambda x: jax.grad(objective)(x, *inputs),
        lax.stop_gradient(start),
        # Added zeros make the state vary over the devices of the objective, under `jax.shard_map`.
        lambda _, start: lax.fori_loop(0, _STEPS, step, start + jnp.zeros_like(objective(start, *still))),
        lambda linear, slope: divided(jax.jacobian(linear)(slope), slope),
    )


class WeightedRows(NamedTuple):
    """The data of a log that a fit needs, n queries and k models, as JAX arrays without NaN."""

    logprob: jax.Array  # (n, k) raw log-probability; −1 without an answer
    correct: jax.Array  # (n, k) label 0 or 1, or the probability that an unlabelled answer is right
    answered: jax.Array  # (n, k) bool
    cost: jax.Array  # (n, k) money; 0 without an answer


def rows_of(log: Log) -> WeightedRows:
    """Take the rows of a log, with the outcomes of unlabelled answers that `rcjax.fit` uses."""
    answered = jnp.asarray(np.asarray(log.answered))
    columns = log.logprob, expected_log(log).correct, log.query_cost
    logprob, correct, cost = (
        jnp.where(answered, jnp.asarray(column, jnp.result_type(float)), otherwise)
        for column, otherwise in zip(columns, (-1.0, 0.0, 0.0), strict=True)
    )
    return WeightedRows(logprob, correct, answered, cost)


def reweigh(model: CascadeModel, rows: WeightedRows, weights: jax.Array) -> CascadeModel:
    """Refit a model to weighted rows; it must have been fitted to the same rows unweighted, or to similar ones.

    The function is pure: `jit`, `vmap` (over weights, models and rows) and `grad` in the weights apply. Gradients in
    the log-probabilities leave out τ, which depends on ranks. Copulas invert Kendall's τ-b of weighted pairs. Standard
    errors, statuses and provenance stay those of the first fit.

    Args:
        model: fitted model of k models.
        rows: rows of a log of these models, in their order (`rows_of`).
        weights: (n,) weight of each query, at least 0; 2 counts a query twice, 0 leaves it out.
    """
    model, rows, weights = varying_together((model, rows, jnp.asarray(weights, model.cost.dtype)))
    counted = weights[:, None] * rows.answered
    calibrators = jax.vmap(_calibrator, (0, 1, 1, 1))(model.calibrators, rows.logprob, rows.correct, counted)
    confidence = calibrate_all(calibrators, rows.logprob, rows.answered)
    marginals = jax.vmap(_marginal, (0, 1, 1, 0))(model.marginals, confidence, counted, stated_confidences(calibrators))
    copulas = from_taus(model.copulas, weighted_taus(lax.stop_gradient(confidence), counted))
    cost = divide((counted * rows.cost).sum(0), counted.sum(0))
    return dataclasses.replace(model, calibrators=calibrators, marginals=marginals, copulas=copulas, cost=cost)


def _calibrator(near: Calibrator, logprob: jax.Array, correct: jax.Array, weight: jax.Array) -> Calibrator:
    """Refit the calibrator of one model to weighted answers (n,)."""
    features, every = transform_confidence(logprob, near.transform), weight
    if near.stated is not None:  # missing confidences are a stated value, not part of the regression
        weight = jnp.where(logprob == NO_CONFIDENCE, 0.0, weight)
    there = (weight > 0) & jnp.isfinite(features)
    smallest, largest = extremes(features, there)
    smallest, largest = (jnp.where(jnp.isfinite(edge), edge, 0.0) for edge in (smallest, largest))
    features = jnp.clip(features, smallest, largest)
    # Standardised features decorrelate the two coefficients without changing the fit.
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


def _marginal(near: Any, confidence: jax.Array, weight: jax.Array, stated: jax.Array | None) -> Any:
    """Refit the marginal of one model to weighted confidences (n,), with atoms at `stated` (A,)."""
    ends, atoms, scaled, inside = masses(confidence, weight, stated)
    info = jnp.finfo(scaled.dtype)
    scaled, weight = jnp.clip(scaled, info.tiny, 1 - info.epsneg), jnp.where(inside, weight, 0.0)
    if isinstance(near, BetaMixture):
        return BetaMixture(*ends, *_mixture(near, scaled, weight), atoms=atoms)

    def likelihood(z: jax.Array, x: jax.Array, weight: jax.Array) -> jax.Array:
        terms = jnp.where(weight > 0, member_at(near, z).smooth_log_density(x), 0.0)
        return divide((weight * terms).sum(), weight.sum())

    lowest, highest, bottom, top = ends
    settled = member_at(near, stationary(likelihood, place_of(near), scaled, weight)) if near.free else near
    return dataclasses.replace(
        settled, lowest=lowest, highest=highest, mass_lowest=bottom, mass_highest=top, atoms=atoms
    )


def _mixture(near: BetaMixture, x: jax.Array, weight: jax.Array) -> Mixture:
    """Refit (π, a, b) of a mixture of two betas to weighted values x (n,) in (0, 1)."""

    def likelihood(free: jax.Array, x: jax.Array, weight: jax.Array) -> jax.Array:
        proportion, a, b = _of_free(free)
        density = special.logsumexp(log_components(proportion, a, b, jnp.log(x), jnp.log1p(-x)), axis=-1)
        return divide((weight * density).sum(), weight.sum())

    # Expectation–maximisation is safer far from the maximum; Newton's method then converges.
    mixture = lax.stop_gradient((near.proportion, near.a, near.b))
    (proportion, a, b), _ = run_em(columns_of(*lax.stop_gradient((x, weight > 0, weight))), mixture, REFIT_STEPS)
    share = jnp.clip(proportion, jnp.finfo(x.dtype).tiny, 1.0)
    start = jnp.concatenate([jnp.log(share[:1]) - jnp.log(share[1:]), jnp.log(a), jnp.log(b)])
    return _of_free(stationary(likelihood, start, x, weight))


def _of_free(free: jax.Array) -> Mixture:
    """Map unconstrained numbers (5,), log-odds and logarithms, to (π, a, b)."""
    return jnp.stack([jax.nn.sigmoid(free[0]), jax.nn.sigmoid(-free[0])]), jnp.exp(free[1:3]), jnp.exp(free[3:])


def fit_copula(
    u: jax.Array,
    v: jax.Array,
    family: str | type[Copula],
    weights: jax.Array | None = None,
    *,
    method: Literal["tau", "likelihood"] = "tau",
) -> Copula:
    """Fit a copula family to pairs (u, v), by the estimators of `rcjax.fit`.

    `rcjax.model.goodness_of_fit.compare_copulas` fits one or more families by likelihood, with standard errors, AIC and
    a test of fit.

    The function is pure: `jit` (family and method static) and `vmap` apply. It is differentiable in weights that are
    given and, by "likelihood", in u and v too, by the implicit function theorem. Parameters at an end of their support,
    or profiled over a grid (Student's df), have slope 0.

    Args:
        u, v: (n,) coordinates of the same n ≥ 2 observations. "tau" depends on their order alone, so that any scale
            does. "likelihood" takes ranks in [0, 1] under smooth margins; a single 0 becomes 1/2n, and a single 1
            becomes 1 − 1/2n, since the likelihood there is 0 or unbounded.
        family: name or class of the family.
        weights: (n,) weight of each observation, at least 0; 2 counts it twice, 0 leaves it out. None: equal weights.
            "tau" takes O(n²) time with weights, and O(n log n) without.
        method: "tau" inverts Kendall's τ-b, which many ties bias; "likelihood" starts from there.

    Raises ValueError for other shapes, and for an unknown family or method; unless JAX traces, for NaN and negative
    weights too. By "likelihood", u or v outside [0, 1] raise it as well, and so do several at 0 or at 1, which are a
    point mass.

    >>> import rcjax
    >>> u, v = rcjax.copulas.Clayton(2.0).sample(jax.random.key(0), (300,))
    >>> [round(float(fit_copula(u, v, "clayton", method=how).theta), 1) for how in ("tau", "likelihood")]
    [1.8, 1.9]
    """
    if method not in ("tau", "likelihood"):
        raise ValueError(f"method is {method!r}; it is 'tau' or 'likelihood'")
    dtype = jnp.result_type(float)
    u, v = jnp.asarray(u, dtype), jnp.asarray(v, dtype)
    counted = jnp.ones_like(u) if weights is None else jnp.asarray(weights, dtype)
    unit = (0.0, 1.0) if method == "likelihood" else (-np.inf, np.inf)
    for name, column, (low, high) in (("u", u, unit), ("v", v, unit), ("weights", counted, (0.0, np.inf))):
        if column.shape != u.shape or column.ndim != 1 or len(column) < 2:
            raise ValueError(
                f"{name} has shape {column.shape}; u, v and weights must be (n,), n ≥ 2: jax.vmap for more"
            )
        if is_traced([column]):
            continue
        values = np.asarray(column)
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= low) & (values <= high)))
        if len(wrong):
            raise ValueError(f"{name}[{wrong[0]}] is {values[wrong[0]]:g}; it must be finite, {low:g} to {high:g}")
        if method == "likelihood" and name != "weights" and max((values == 0).sum(), (values == 1).sum()) > 1:
            raise ValueError(f"{name} is 0, or 1, more than once, a point mass: fit_copula by 'tau' takes ties")
    rows = u, v, None if weights is None else counted
    return automatic(partial(_fit, family=as_family(family), method=method), *rows)


@partial(jax.jit, static_argnames=("family", "method"))
def _fit(u: jax.Array, v: jax.Array, weights: jax.Array | None, *, family: type[Copula], method: str) -> Copula:
    if weights is None:
        weights = jnp.ones_like(u)
        tau = kendall_tau(u, v, jnp.ones(u.shape, bool))
    else:
        tau = weighted_taus(jnp.stack([u, v], 1), jnp.stack([weights, weights], 1))[0]
    if method == "tau":
        return family.from_tau(tau)
    # 0 and 1 move inwards by half of one observation's share of the scale.
    half = 0.5 / len(u)
    u, v = (open_unit(jnp.where(z <= 0, half, jnp.where(z >= 1, 1 - half, z))) for z in (u, v))
    return _likeliest(family, (u, v), weights, tau)


def _likeliest(
    family: type[Copula], columns: tuple[jax.Array, jax.Array], weights: jax.Array, tau: jax.Array
) -> Copula:
    """`fit_pair` for smooth ranks (n,), differentiable in ranks and weights."""
    weights = weights * divide(len(weights), weights.sum())  # tolerances are per observation

    (first, second), counted, start = lax.stop_gradient((columns, weights, tau))
    fitted = fit_pair(family, Ranks(first), Ranks(second), counted, start)
    copula: Any = fitted.copula
    if not family.free:
        return copula

    def likelihood(z: jax.Array, columns: tuple[jax.Array, jax.Array], weights: jax.Array) -> jax.Array:
        return sum_of(copula, Ranks(columns[0]), Ranks(columns[1]), weights)(member_at(copula, z)) / len(weights)

    settled = member_at(copula, stationary(likelihood, place_of(copula), columns, weights))
    # A parameter at an end of its support stays there for all weights.
    inside = fitted.status == FitStatus.CONVERGED
    return jax.tree.map(lambda best, at_end: jnp.where(inside, best, lax.stop_gradient(at_end)), settled, copula)


#: Rows compared with all others at a time.
_BLOCK = 128


def weighted_taus(columns: jax.Array, weights: jax.Array) -> jax.Array:
    """Kendall's τ-b of all pairs of columns, with pairs of rows weighted by the product of their weights; (P,).

    It takes O(n²) time per pair of columns, `_BLOCK` rows at a time.

    Args:
        columns: (n, k) observations.
        weights: (n, k) weights; in a pair of columns a row has the first one's weight if both weights are positive,
            else 0.

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

        # Added zeros: under `jax.shard_map` the sums vary over the same devices as the terms.
        nothing = jnp.zeros_like(x + y + weight, shape=(3,))
        concordant, untied_x, untied_y = lax.scan(add, nothing, blocks)[0]
        return divide(concordant, jnp.sqrt(jnp.maximum(untied_x * untied_y, jnp.finfo(columns.dtype).tiny)))

    return lax.map(tau, jnp.stack(jnp.triu_indices(columns.shape[1], 1), axis=1))
