"""Fits as functions of how much each query counts, and of what was observed: pure and differentiable.

Every part of a fit but Kendall's τ and the costs solves equations of weighted sums: the score equations of a logistic
regression and of a mixture of betas. From a fitted model a few Newton steps solve them for other weights; the implicit
function theorem gives their derivatives (`stationary`). So a bootstrap is one vmap, and one derivative
stands for it: the infinitesimal jackknife (Jaeckel 1972; Giordano, Stephenson, Liu, Jordan & Broderick 2019, "A Swiss
Army infinitesimal jackknife").
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

from rcjax._core.batching import varying_together
from rcjax._core.compilation import is_traced
from rcjax._core.kendall import kendall_tau
from rcjax._core.meshes import automatic
from rcjax._core.numerics import divide, extremes, open_unit
from rcjax.copulas import Copula
from rcjax.copulas.families import as_family
from rcjax.logs.log import Log
from rcjax.model.ascent import FitStatus, member_at, place_of
from rcjax.model.beta_mixture import BetaMixture, log_components
from rcjax.model.calibration import CalibrationStatus, Calibrator, calibrate_all, transform_confidence
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.copula_fitting import fit_pair
from rcjax.model.fitting import from_taus, stated_confidences
from rcjax.model.label_outcomes import expected_log
from rcjax.model.marginal_fitting import REFIT_STEPS, Mixture, climb_on, columns_of, masses
from rcjax.model.pair_likelihood import Ranks, sum_of
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
    marginals = jax.vmap(_marginal, (0, 1, 1, 0))(model.marginals, confidence, counted, stated_confidences(calibrators))
    copulas = from_taus(model.copulas, weighted_taus(lax.stop_gradient(confidence), counted))
    cost = divide((counted * rows.cost).sum(0), counted.sum(0))
    return dataclasses.replace(model, calibrators=calibrators, marginals=marginals, copulas=copulas, cost=cost)


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


def _marginal(near: Any, confidence: jax.Array, weight: jax.Array, stated: jax.Array | None) -> Any:
    """The marginal of one model's confidences (n,), of which those that are `stated` (A,) are atoms."""
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


def _of_free(free: jax.Array) -> Mixture:
    """(π, a, b) of log odds and logarithms (5,)."""
    return jnp.stack([jax.nn.sigmoid(free[0]), jax.nn.sigmoid(-free[0])]), jnp.exp(free[1:3]), jnp.exp(free[3:])


def fit_copula(
    u: jax.Array,
    v: jax.Array,
    family: str | type[Copula],
    weights: jax.Array | None = None,
    *,
    method: Literal["tau", "likelihood"] = "tau",
) -> Copula:
    """The member of a family of copulas that fits pairs (u, v), by the estimators of `rcjax.fit`.

    Pure: under `jit` (family and method static) and `vmap`, and differentiable by the weights, where they are given,
    and by "likelihood" by u and v too. There the implicit function theorem is used, and a parameter that ends at an
    end of its support has slope 0, as one that is profiled over a grid (Student's df).

    Args:
        u, v: (n,) of the same n ≥ 2 observations. "tau" goes by their order alone, so they may be on any scale;
            "likelihood" takes ranks in [0, 1] under smooth margins, of which a lone 0 counts as 1/2n and a lone 1 as
            1 − 1/2n: an observation there would have no likelihood, or one that outweighs all others.
        family: its name or class.
        weights: (n,) how much each observation counts, at least 0: 2 is twice, 0 as if it were not there. None: all
            the same. With weights "tau" takes time O(n²), without them O(n log n).
        method: "tau" inverts Kendall's τ-b, which ties bias where they are many; "likelihood" climbs from there.

    Raises ValueError for other shapes, for a family or method that does not exist, and where values are at hand (not
    while jax traces) for one that is no number, by "likelihood" for u or v outside [0, 1] or several at 0 or at 1,
    which are a point mass, and for a weight below 0.

    >>> import rcjax
    >>> u, v = rcjax.copulas.Frank(5.0).sample(jax.random.key(0), (1000,))
    >>> [abs(float(fit_copula(u, v, "frank", method=how).theta) - 5) < 1 for how in ("tau", "likelihood")]
    [True, True]
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
    # 0 and 1 are moved inwards by half of what one observation takes of the scale.
    half = 0.5 / len(u)
    u, v = (open_unit(jnp.where(z <= 0, half, jnp.where(z >= 1, 1 - half, z))) for z in (u, v))
    return _likeliest(family, (u, v), weights, tau)


def _likeliest(
    family: type[Copula], columns: tuple[jax.Array, jax.Array], weights: jax.Array, tau: jax.Array
) -> Copula:
    """`fit_pair` of smooth ranks (n,), with derivatives by them and by the weights."""
    weights = weights * divide(len(weights), weights.sum())  # tolerances are per observation

    (first, second), counted, start = lax.stop_gradient((columns, weights, tau))
    fitted = fit_pair(family, Ranks(first), Ranks(second), counted, start)
    copula: Any = fitted.copula
    if not family.free:
        return copula

    def likelihood(z: jax.Array, columns: tuple[jax.Array, jax.Array], weights: jax.Array) -> jax.Array:
        return sum_of(copula, Ranks(columns[0]), Ranks(columns[1]), weights)(member_at(copula, z)) / len(weights)

    settled = member_at(copula, stationary(likelihood, place_of(copula), columns, weights))
    # At an end of its support a parameter stays there, whatever the weights.
    inside = fitted.status == FitStatus.CONVERGED
    return jax.tree.map(lambda best, at_end: jnp.where(inside, best, lax.stop_gradient(at_end)), settled, copula)


#: Rows that are compared with all others at a time.
_BLOCK = 128


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

    return lax.map(tau, jnp.stack(jnp.triu_indices(columns.shape[1], 1), axis=1))
