"""Fits of the Markov-copula model to a log, or to a log that resembles an earlier log, and of a copula to pairs."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from rcjax._base.codec import takes
from rcjax._core.batching import map_entries, pad_to_size_class, take_entries, with_automatic_axes
from rcjax._core.compilation import compiled, is_traced
from rcjax._core.numerics import divide, kendall_tau, open_unit
from rcjax.copulas import Copula
from rcjax.copulas.families import as_family
from rcjax.logs.log import Log
from rcjax.model.calibrated_models import FitRecord, check_overlap, find_stated_in_log, fit_calibrators_compiled
from rcjax.model.calibration import Calibrator, Transform
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.label_outcomes import expected_log
from rcjax.model.likelihood import Ranks, compute_ranks, pairs_by_likelihood, weighted_sum
from rcjax.model.marginals import Marginal
from rcjax.model.maximum_likelihood import (
    CopulaFit,
    FitStatus,
    fit_marginal,
    fit_pair,
    from_unconstrained,
    to_unconstrained,
)
from rcjax.policy.decisions import NO_CONFIDENCE


def fit_marginals(
    confidence: jax.Array, answered: jax.Array, start: Marginal | None = None, stated: jax.Array | None = None
) -> Marginal:
    """Fit a marginal to each model's confidences.

    Args:
        confidence: (n, k) calibrated confidence.
        answered: (n, k) whether there is an answer.
        start: marginals of a similar log, at which the fit of mixtures starts.
        stated: (k, A) confidences that become atoms (`stated_confidences`); None: the atoms of `start`, if any.
    """
    return map_entries(fit_marginal, len(confidence), (1, 1, 0, 0))(confidence, answered, stated, start)


def stated_confidences(calibrators: Calibrator) -> jax.Array | None:
    """Return the calibrated confidences of the stated values, padded with infinity: (k, V); None: no stated values.

    Missing confidences have a value too; the next larger value, which other answers may share, replaces it.
    """
    stated = calibrators.stated
    if stated is None:
        return None
    confidence = jnp.where(stated.logprob == NO_CONFIDENCE, stated.lower_bound()[:, None], stated.confidence)
    return jnp.where(jnp.isnan(stated.logprob), jnp.inf, confidence)


def pair_taus(confidence: jax.Array, answered: jax.Array) -> jax.Array:
    """Estimate Kendall's τ of all pairs of models, each on the queries that both answered: (P,).

    `confidence` and `answered` are (n, k).
    """

    def tau(left: jax.Array, right: jax.Array) -> jax.Array:
        return kendall_tau(confidence[:, left], confidence[:, right], answered[:, left] & answered[:, right])

    return map_entries(tau, len(confidence), (0, 0))(*np.triu_indices(confidence.shape[1], 1))


class FittedRows(NamedTuple):
    """Rows of a log under the fitted marginals of its k models, to which the copulas of all P pairs are fitted."""

    marginals: Marginal  # (k,)
    confidence: jax.Array  # (n, k) calibrated confidence
    answered: jax.Array  # (n, k) whether there is an answer
    taus: jax.Array  # (P,) Kendall's τ of the pairs


# The steps of a fit are compiled separately, so that all fits of logs of one size share them.
fit_marginals_compiled = compiled(fit_marginals)

pair_taus_compiled = compiled(pair_taus, runs="long")


Method = Literal["tau", "likelihood"]


@takes(log=Log)
def fit(
    log: Log,
    *,
    copula: str | type[Copula] = "gumbel",
    method: Method = "tau",
    transform: Transform | Literal["auto"] = "auto",
) -> CascadeModel:
    """Fit the Markov-copula model to a log: calibrators, marginals, copulas of all pairs, costs.

    Calibrators and marginals use all answers of a model; the copula of a pair uses the queries that both models
    answered. Arrays have JAX's default float type.

    Args:
        log: training log.
        copula: name or class of a family; `rcjax.model.goodness_of_fit.compare_copulas` compares families.
        method: "tau" inverts Kendall's τ-b, as the paper does; "likelihood" is exact for point masses. Pairs with a
            model that gives few values, which bias τ, are always fitted by likelihood.
        transform: transform of the raw confidence; "auto": by the log's task.

    Raises LogError if a model has no answers, or a pair fewer than two queries in common; ValueError for an unknown
    family or method.

    >>> import rcjax
    >>> model = rcjax.fit(rcjax.sample_log(300, seed=0))
    >>> model.models[0], model.copulas.theta.shape
    ('llama3.2-1b', (10,))
    """
    check_overlap(log)
    if method not in ("tau", "likelihood"):
        raise ValueError(f"method is {method!r}; it is 'tau' or 'likelihood'")
    transform = log.task if transform == "auto" else transform
    family = as_family(copula)
    rows = log.logprob, expected_log(log).correct, log.answered
    fitted = fit_arrays(rows, transform, family, method=method, values=find_stated_in_log(log))
    record = FitRecord.of_log(log, fit={"copula": family.__name__, "method": method})
    return CascadeModel(*fitted, log.cost, log.models, record)


def fit_arrays(
    rows: tuple[ArrayLike, ArrayLike, ArrayLike],
    transform: Transform,
    family: type[Copula],
    *,
    method: Method,
    values: ArrayLike | None,
    start: Marginal | None = None,
) -> tuple[Calibrator, Marginal, Copula]:
    """Fit calibrators, marginals and copulas to arrays, in compiled steps that later logs of this size share.

    Args:
        rows: (n, k) raw log-probability; whether the answer is right; whether there is an answer.
        transform: transform of the raw confidence.
        family: family of the copulas.
        method: "tau" or "likelihood", as in `fit`.
        values: (k, V) raw log-probabilities that models state (`find_stated_logprobs`); None: no stated values.
        start: marginals of a similar log, at which the fit of mixtures starts, which is faster.
    """
    logprob, correct, answered = pad_to_size_class(*rows)
    calibrators, confidence = fit_calibrators_compiled(logprob, correct, answered, transform=transform, values=values)
    marginals = fit_marginals_compiled(confidence, answered, start, stated_confidences(calibrators))
    fitted = FittedRows(marginals, confidence, answered, pair_taus_compiled(confidence, answered))
    if method == "likelihood":
        return calibrators, marginals, fit_family(fitted, family=family).copula
    tied = np.asarray(pairs_by_likelihood(marginals))
    copulas = fit_tied_pairs(fitted, tied, family) if tied.any() else copulas_from_taus(fitted.taus, family=family)
    return calibrators, marginals, copulas


def fit_near(
    model: CascadeModel, logprob: ArrayLike, correct: ArrayLike, answered: ArrayLike, cost: jax.Array
) -> CascadeModel:
    """Fit a model to arrays that resemble its own, starting from its marginals, by its family and method.

    Args:
        model: model fitted to the earlier arrays.
        logprob: (n, k) raw log-probability.
        correct: (n, k) whether the answer is right.
        answered: (n, k) whether there is an answer.
        cost: (k,) mean money per answer.
    """
    method: Method = "likelihood" if (model.record.fit or {}).get("method") == "likelihood" else "tau"
    calibrators, marginals, copulas = fit_arrays(
        (logprob, correct, answered),
        model.calibrators.transform,
        type(model.copulas),
        start=model.marginals,
        method=method,
        values=model.calibrators.stated_logprobs,
    )
    return dataclasses.replace(model, calibrators=calibrators, marginals=marginals, copulas=copulas, cost=cost)


def fit_tied_pairs(rows: FittedRows, tied: ArrayLike, family: type[Copula]) -> Copula:
    """Fit copulas (P,) by τ, and by likelihood for `tied` pairs (P,); the likelihood fit of every pair is computed."""
    inverted, likeliest = copulas_from_taus(rows.taus, family=family), fit_family(rows, family=family).copula
    return jax.tree.map(lambda exact, by_tau: jnp.where(tied, exact, by_tau), likeliest, inverted)


@partial(compiled, static_argnames="family")
def copulas_from_taus(taus: jax.Array, family: type[Copula]) -> Any:
    """Return the copulas of a family with Kendall's τ (P,): (P,)."""
    return jax.vmap(family.from_tau)(taus)


def pair_ranks(marginals: Marginal, confidence: jax.Array, answered: jax.Array) -> tuple[Ranks, Ranks, jax.Array]:
    """Return (ranks of the first models, ranks of the second models, weights) of all pairs, each with leading axis P.

    A query counts for a pair if both models `answered` (n, k) it.
    """
    left, right = np.triu_indices(confidence.shape[1], 1)
    placed = jax.vmap(compute_ranks, in_axes=(0, 1))(marginals, confidence)
    weights = (answered[:, left] & answered[:, right]).T.astype(confidence.dtype)
    return take_entries(placed, left), take_entries(placed, right), weights


@partial(compiled, static_argnames="family")
def fit_family(rows: FittedRows, family: type[Copula]) -> CopulaFit:
    """Fit a family to all pairs by maximum likelihood, each from its τ: (P,)."""
    ranks = pair_ranks(rows.marginals, rows.confidence, rows.answered)
    return jax.vmap(partial(fit_pair, family))(*ranks, rows.taus)


def fit_copula(
    u: jax.Array,
    v: jax.Array,
    family: str | type[Copula],
    weights: jax.Array | None = None,
    *,
    method: Method = "tau",
) -> Copula:
    """Fit a copula family to pairs (u, v), by the estimators of `rcjax.fit`.

    `rcjax.model.goodness_of_fit.compare_copulas` fits one or more families by likelihood, with standard errors, AIC and
    a test of fit.

    The function is pure: `jit` (family and method static) and `vmap` apply. It is differentiable in weights that are
    given and, by "likelihood", in u and v too, by the implicit function theorem. Parameters at an end of their support,
    or profiled over a grid (Student's df), have slope 0.

    Args:
        u, v: (n,) coordinates of the same n ≥ 2 observations. "tau" depends on their order alone, and takes any scale.
            "likelihood" takes ranks in [0, 1] under smooth margins; a single 0 becomes 1/2n, and a single 1 becomes
            1 − 1/2n, since the likelihood at 0 and 1 is 0 or unbounded.
        family: name or class of the family.
        weights: (n,) weight of each observation, at least 0; 2 counts it twice, 0 leaves it out. None: equal weights.
            "tau" takes O(n²) time with weights, and O(n log n) without.
        method: "tau" inverts Kendall's τ-b, which many ties bias; "likelihood" starts from there.

    Raises ValueError for other shapes, and for an unknown family or method. Unless JAX traces, also for NaN, negative
    weights, a constant u or v and, by "likelihood", u or v outside [0, 1] or several values at 0 or at 1, which are a
    point mass.

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
        if name != "weights" and (values == values[0]).all():
            raise ValueError(f"{name} is {values[0]:g} throughout: a constant has no dependence to fit")
        if method == "likelihood" and name != "weights" and max((values == 0).sum(), (values == 1).sum()) > 1:
            raise ValueError(f"{name} is 0, or 1, more than once, a point mass: fit_copula by 'tau' takes ties")
    rows = u, v, None if weights is None else counted
    return with_automatic_axes(partial(_fit_copula, family=as_family(family), method=method), *rows)


@partial(jax.jit, static_argnames=("family", "method"))
def _fit_copula(u: jax.Array, v: jax.Array, weights: jax.Array | None, *, family: type[Copula], method: str) -> Copula:
    if weights is None:
        weights = jnp.ones_like(u)
        tau = kendall_tau(u, v, jnp.ones(u.shape, bool))
    else:
        tau = weighted_tau(u, v, weights)
    if method == "tau":
        return family.from_tau(tau)
    # 0 and 1 move inwards by half of one observation's share of the scale.
    half = 0.5 / len(u)
    u, v = (open_unit(jnp.where(z <= 0, half, jnp.where(z >= 1, 1 - half, z))) for z in (u, v))
    return _fit_differentiably(family, (u, v), weights, tau)


def _fit_differentiably(
    family: type[Copula], columns: tuple[jax.Array, jax.Array], weights: jax.Array, tau: jax.Array
) -> Copula:
    """Fit a pair of smooth ranks (n,) by `fit_pair`, differentiably in ranks and weights."""
    weights = weights * divide(len(weights), weights.sum())  # tolerances are per observation

    (first, second), counted, start = lax.stop_gradient((columns, weights, tau))
    fitted = fit_pair(family, Ranks(first), Ranks(second), counted, start)
    copula: Any = fitted.copula
    if not family.free:
        return copula

    def likelihood(z: jax.Array, columns: tuple[jax.Array, jax.Array], weights: jax.Array) -> jax.Array:
        total = weighted_sum(copula, Ranks(columns[0]), Ranks(columns[1]), weights)
        return total(from_unconstrained(copula, z)) / len(weights)

    settled = from_unconstrained(copula, refine_maximum(likelihood, to_unconstrained(copula), columns, weights))
    # A parameter at an end of its support stays there for all weights.
    inside = fitted.status == FitStatus.CONVERGED
    return jax.tree.map(lambda best, at_end: jnp.where(inside, best, lax.stop_gradient(at_end)), settled, copula)


#: Newton steps from a fit that is nearly at its maximum.
_REFINING_STEPS = 8
#: Curvatures below this share of the largest count as 0, and their directions stay unchanged.
_FLAT_CURVATURE = 1e-10


def refine_maximum(objective: Callable[..., jax.Array], start: jax.Array, *inputs: Any) -> jax.Array:
    """Maximise objective(x, *inputs) near `start` by Newton steps, differentiably in the inputs: (d,).

    By the implicit function theorem dx = −(∂²f/∂x²)⁻¹ (∂²f/∂x∂inputs). Directions in which the objective is not concave
    stay at `start`.

    >>> def objective(x, goal):
    ...     return -((x - goal) ** 2).sum()
    >>> slope = jax.jacobian(lambda goal: refine_maximum(objective, jnp.zeros(1), goal))(jnp.ones(1))
    >>> float(slope[0, 0])
    1.0
    """
    still = lax.stop_gradient(inputs)

    def newton_step(curvature: jax.Array, slope: jax.Array) -> jax.Array:
        bends, axes = jnp.linalg.eigh(curvature)
        down = bends < -_FLAT_CURVATURE * jnp.abs(bends).max()
        return axes @ (jnp.where(down, 1 / jnp.where(down, bends, 1.0), 0.0) * (axes.T @ slope))

    def step(_: Any, x: jax.Array) -> jax.Array:
        moved = x - newton_step(jax.hessian(objective)(x, *still), jax.grad(objective)(x, *still))
        least = objective(x, *still)
        least -= 64 * jnp.finfo(x.dtype).eps * (1 + jnp.abs(least))  # tolerance for rounding
        return jnp.where(objective(moved, *still) >= least, moved, x)

    return lax.custom_root(
        lambda x: jax.grad(objective)(x, *inputs),
        lax.stop_gradient(start),
        # Added zeros make the state vary over the devices of the objective, under `jax.shard_map`.
        lambda _, start: lax.fori_loop(0, _REFINING_STEPS, step, start + jnp.zeros_like(objective(start, *still))),
        lambda linear, slope: newton_step(jax.jacobian(linear)(slope), slope),
    )


_BLOCK = 128  # observations compared with all others at a time


def weighted_tau(x: jax.Array, y: jax.Array, weights: jax.Array) -> jax.Array:
    """Compute Kendall's τ-b, with pairs of observations (n,) weighted by the product of their weights: ().

    It takes O(n²) time, `_BLOCK` observations at a time.

    >>> x, y = jnp.array([[1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]])
    >>> round(float(weighted_tau(x, y, jnp.ones(4))), 4)
    0.6667
    """
    x, y, weights = (jnp.pad(column, (0, -len(column) % _BLOCK)) for column in (x, y, weights))

    def add(sums: jax.Array, rows: jax.Array) -> tuple[jax.Array, None]:
        by_x, by_y = (jnp.sign(values[rows][:, None] - values) for values in (x, y))
        products = jnp.stack([by_x * by_y, by_x * by_x, by_y * by_y])
        return sums + (products @ weights) @ weights[rows], None

    # Added zeros: under `jax.shard_map` the sums vary over the same devices as the terms.
    zeros = jnp.zeros_like(x + y + weights, shape=(3,))
    concordant, untied_x, untied_y = lax.scan(add, zeros, jnp.arange(len(x)).reshape(-1, _BLOCK))[0]
    return divide(concordant, jnp.sqrt(jnp.maximum(untied_x * untied_y, jnp.finfo(x.dtype).tiny)))
