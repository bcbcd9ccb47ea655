"""Maximum likelihood fits of copulas by Newton's method, and of marginals by expectation–maximisation.

Newton's method runs on unconstrained parameters z until every fit of the batch has converged, or the steps are used up.
Each step evaluates value, gradient and Hessian once; a step that lowers the value is undone and shortened.
Expectation–maximisation of a mixture of two betas (`rcjax.model.marginals`) runs from several starts, and continues
from the most likely mixture.
"""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import Status, take_entries
from rcjax._core.compilation import in_full_precision
from rcjax._core.numerics import divide, extremes, polygammas
from rcjax.copulas import Copula
from rcjax.copulas.base import FARTHEST_PARAMETER
from rcjax.model.likelihood import Ranks, weighted_sum
from rcjax.model.marginals import MAX_CONCENTRATION, MIN_SHAPE, Atoms, Marginal, beta_log_densities, matches_value


class FitStatus(Status):
    """Status of a maximum likelihood fit."""

    CONVERGED = 0, "converged"
    AT_BOUND = 1, "at an end of the parameter's support: the standard error does not hold there"
    NOT_CONVERGED = 2, "not converged: the likelihood is flat, or there are too few observations"
    FAILED = 3, "no finite likelihood: the family cannot describe the observations"


_COPULA_STEPS = 16  # most Newton steps of a copula's fit
_MAX_STEP = 3.0  # longest step from z = 0, in unconstrained numbers
_FARTHEST_Z = 12.0  # |z| at a finite end of a support: the parameter is within e^−12 of the end
_Z_AT_END = 7.0  # |z| from which a parameter counts as at a finite end: within a thousandth of the end
_START_SHARE = 1 / 3  # share of the way to an end, in z, within which a fit starts


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CopulaFit:
    """A copula fitted by maximum likelihood; leading axes batch it."""

    copula: Copula
    standard_errors: dict[str, jax.Array]  # by parameter, from the Hessian; inf if there is none
    log_likelihood: jax.Array  # () log-likelihood of the weighted observations, without their margins
    status: jax.Array  # () a `FitStatus`


class _Iterate(NamedTuple):
    """The highest iterate so far, with the derivatives of the objective there."""

    z: jax.Array  # (p,) unconstrained parameters
    mean: jax.Array  # () objective; −∞ before the start is evaluated
    gradient: jax.Array  # (p,)
    hessian: jax.Array  # (p, p)

    @property
    def can_rise(self) -> jax.Array:
        """() bool: Newton's step still promises a gain above the tolerance."""
        promised_gain = self.gradient @ _direction(self.gradient, self.hessian) / 2
        return ~(jnp.isfinite(self.mean) & (promised_gain <= jnp.sqrt(jnp.finfo(self.z.dtype).eps) * 1e-2))


def maximise(mean_likelihood: Callable[..., Any], start: Copula) -> CopulaFit:
    """Maximise a mean log-likelihood per observation in a member's free parameters, by Newton's method.

    The other parameters of `start` stay. Standard errors and likelihood are those of one observation.
    """
    family, names = type(start), start.free
    supports = [family.supports[name] for name in names]
    if not names:
        mean = mean_likelihood(start)
        status = jnp.where(jnp.isfinite(mean), FitStatus.CONVERGED, FitStatus.FAILED)
        return CopulaFit(start, {name: jnp.full_like(mean, jnp.inf) for name in family.grids}, mean, status)

    def value(z: jax.Array) -> jax.Array:
        return mean_likelihood(from_unconstrained(start, z))

    z = to_unconstrained(start)
    nearest, farthest = jnp.asarray([_range_of_z(support) for support in supports], z.dtype).T
    best = _newton(value, jnp.clip(z, _START_SHARE * nearest, _START_SHARE * farthest), (nearest, farthest))
    z, mean, _, hessian = best
    low, high = (jnp.where(jnp.abs(end) == _FARTHEST_Z, jnp.sign(end) * _Z_AT_END, end) for end in (nearest, farthest))
    bounded = jnp.any((z <= low) | (z >= high))
    settled = jnp.where(best.can_rise, FitStatus.NOT_CONVERGED, FitStatus.CONVERGED)
    status = jnp.where(bounded, FitStatus.AT_BOUND, settled)
    status = jnp.where(jnp.isfinite(mean), status, FitStatus.FAILED)
    errors = dict(zip(names, _standard_errors(z, hessian, supports), strict=True))
    errors |= {name: jnp.full_like(mean, jnp.inf) for name in family.grids}
    return CopulaFit(from_unconstrained(start, z), errors, mean, status)


class _Climb(NamedTuple):
    """State of Newton's method."""

    count: jax.Array | int  # () number of steps taken
    trial: jax.Array  # (p,) point to evaluate next
    length: jax.Array  # () share of the Newton step that leads to the trial
    best: _Iterate


def _newton(value: Callable[[jax.Array], Any], z: jax.Array, ends: tuple[jax.Array, jax.Array]) -> _Iterate:
    """Maximise a function of p unconstrained numbers by Newton's method; a step that lowers the value is shortened.

    The numbers start at z (p,), and stay between both `ends`, (p,) each.
    """

    def step(state: _Climb) -> _Climb:
        count, trial, length, best = state
        current = _Iterate(trial, *_derivatives(value, trial))
        rises = (current.mean >= best.mean) & jnp.all(jnp.isfinite(current.gradient))
        best = jax.tree.map(lambda new, old: jnp.where(rises, new, old), current, best)
        length = jnp.where(rises, jnp.minimum(4 * length, 1.0), length / 4)
        longest = _MAX_STEP + jnp.abs(best.z) / 2
        ahead = best.z + length * jnp.clip(_direction(best.gradient, best.hessian), -longest, longest)
        return _Climb(count + 1, jnp.clip(ahead, *ends), length, best)

    # Added zeros make the loop's state vary over the same devices as the objective, under `jax.shard_map`.
    zero = jnp.zeros_like(value(z), z.dtype)
    z = z + zero
    nowhere = _Iterate(z, zero - jnp.inf, jnp.zeros_like(z), zero - jnp.eye(len(z), dtype=z.dtype))
    start = _Climb(0, z, zero + 1, nowhere)
    return lax.while_loop(lambda state: (state.count < _COPULA_STEPS) & state.best.can_rise, step, start).best


def from_unconstrained(member: Any, z: jax.Array) -> Any:
    """Replace a member's free parameters by the parameters of unconstrained numbers z (p,)."""
    free = {name: constrain(part, member.supports[name]) for name, part in zip(member.free, z, strict=True)}
    return dataclasses.replace(member, **free)


def to_unconstrained(member: Any) -> jax.Array:
    """Return the unconstrained numbers of a member's free parameters, the inverse of `from_unconstrained`: (p,)."""
    return jnp.stack([unconstrain(jnp.asarray(getattr(member, name)), member.supports[name]) for name in member.free])


def _derivatives(function: Callable[..., Any], z: jax.Array) -> tuple[jax.Array, ...]:
    """Return (value (), gradient (p,), Hessian (p, p)) of a function of p parameters, by forward mode twice."""
    if z.shape == (1,):  # one direction without `vmap`, which would double the time of tracing
        unit = (jnp.ones_like(z),)
        (value, slope), (_, curvature) = jax.jvp(lambda z: jax.jvp(function, (z,), unit), (z,), unit)
        return value, slope[None], curvature[None, None]

    def value_twice(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        value = function(z)
        return value, value

    def gradient_and_value(z: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        gradient, value = jax.jacfwd(value_twice, has_aux=True)(z)
        return gradient, (gradient, value)

    hessian, (gradient, value) = jax.jacfwd(gradient_and_value, has_aux=True)(z)
    return value, gradient, hessian


def _direction(gradient: jax.Array, hessian: jax.Array) -> jax.Array:
    """Return Newton's step, with every curvature made negative so that it leads uphill."""
    small = jnp.finfo(gradient.dtype).eps
    if gradient.shape == (1,):
        return gradient / jnp.maximum(jnp.abs(hessian[0]), small)
    curvature, axes = jnp.linalg.eigh(hessian)
    return axes @ ((axes.T @ gradient) / jnp.maximum(jnp.abs(curvature), small))


def _standard_errors(z: jax.Array, hessian: jax.Array, supports: list[tuple[float, float]]) -> jax.Array:
    """Estimate the parameters' standard errors for one observation, by the delta method.

    They are infinite unless the Hessian is negative definite. Divide by √n for n observations.
    """
    if z.shape == (1,):
        variances = -1 / jnp.where(hessian[0] < 0, hessian[0], -1.0)
        negative = hessian[0, 0] < 0
    else:
        negative = jnp.all(jnp.linalg.eigvalsh(hessian) < 0)
        variances = jnp.diagonal(jnp.linalg.inv(jnp.where(negative, -hessian, jnp.eye(len(z), dtype=z.dtype))))
    slopes = [jax.grad(constrain)(part, support) for part, support in zip(z, supports, strict=True)]
    errors = jnp.sqrt(jnp.maximum(variances, 0.0)) * jnp.abs(jnp.stack(slopes))
    return jnp.where(negative, errors, jnp.inf)


def constrain(z: jax.Array, support: tuple[float, float]) -> jax.Array:
    """Map an unconstrained number to a parameter in a support.

    >>> [round(float(constrain(0.0, s)), 4) for s in ((-1.0, 1.0), (1.0, float("inf")), (-float("inf"), float("inf")))]
    [0.0, 1.6931, 0.0]
    """
    low, high = support
    if np.isfinite(low) and np.isfinite(high):
        return low + (high - low) * jax.nn.sigmoid(z)
    if np.isfinite(low):
        return low + jax.nn.softplus(z)
    return high - jax.nn.softplus(z) if np.isfinite(high) else jnp.asarray(z)


def unconstrain(value: jax.Array, support: tuple[float, float]) -> jax.Array:
    """Invert `constrain`; about ±`_FARTHEST_Z` at finite ends."""
    low, high = support
    tiny = float(np.exp(-_FARTHEST_Z))
    if np.isfinite(low) and np.isfinite(high):
        share = jnp.clip((value - low) / (high - low), tiny, 1 - tiny)
        return jnp.log(share) - jnp.log1p(-share)
    if np.isfinite(low) or np.isfinite(high):
        distance = jnp.maximum(value - low if np.isfinite(low) else high - value, tiny)
        return distance + jnp.log(-jnp.expm1(-distance))
    return jnp.asarray(value)


def _range_of_z(support: tuple[float, float]) -> tuple[float, float]:
    """Return the least and the largest z: ±`_FARTHEST_Z` at finite ends of the support, else ±`FARTHEST_PARAMETER`."""
    low, high = np.isfinite(support)
    return -_FARTHEST_Z if low or high else -FARTHEST_PARAMETER, _FARTHEST_Z if low and high else FARTHEST_PARAMETER


def count_parameters(family: type[Copula]) -> int:
    """Count the fitted parameters, including parameters profiled over a grid, for information criteria."""
    return len(family.free) + len(family.grids)


def fit_pair(
    family: type[Copula], first: Ranks, second: Ranks, weights: jax.Array, tau: jax.Array | float = 0.3
) -> CopulaFit:
    """Fit a family to a pair of margins by maximum likelihood; `vmap` it over pairs and replicates.

    A parameter with a grid is profiled: each value is fitted, and the most likely fit kept.

    Args:
        family: family of copulas.
        first, second: ranks of the same n observations under their two margins.
        weights: (n,) weight of each observation; 0: absent.
        tau: () Kendall's τ at which the fit starts.
    """
    total = jnp.maximum(jnp.sum(weights), 1.0)
    start = family.from_tau(jnp.asarray(tau, first.u.dtype))

    def fit_at(fixed: dict[str, Any]) -> CopulaFit:
        member = dataclasses.replace(start, **fixed)  # pyright: ignore[reportArgumentType]
        likelihood = weighted_sum(member, first, second, weights)
        return maximise(lambda copula: likelihood(copula) / total, member)

    if family.grids:
        grid = jnp.asarray(list(itertools.product(*family.grids.values())), first.u.dtype)
        fits = jax.vmap(fit_at)(dict(zip(family.grids, grid.T, strict=True)))
        failed = fits.status == FitStatus.FAILED
        fitted = take_entries(fits, jnp.argmax(jnp.where(failed, -jnp.inf, fits.log_likelihood)))
    else:
        fitted = fit_at({})
    errors = {name: error / jnp.sqrt(total) for name, error in fitted.standard_errors.items()}
    return dataclasses.replace(fitted, standard_errors=errors, log_likelihood=fitted.log_likelihood * total)


_EM_STEPS = 1_000  # most steps of expectation–maximisation
_SHORT_RUN = 30  # least steps from each of several starts, before the likelihoods are compared
_REFIT_STEPS = 50  # most steps from a similar mixture
_EM_TOLERANCE = 1e-9  # gain of the mean log-likelihood, per step, that ends expectation–maximisation
SAMPLE_SIZE = 2**14  # largest sample on which starts are compared
BLOCK_SIZE = 2**15  # number of values processed at a time

#: Starts: (share of the values below the cut, share of each component's values across it).
_STARTS = ((0.5, 0.05), (0.05, 0.01), (0.95, 0.01))

_NEWTON_STEPS = 2  # Newton steps of an M-step; the next M-step continues from the result

#: Parameters (π, a, b) of a mixture of two betas, each (2,).
Mixture = tuple[jax.Array, jax.Array, jax.Array]


@jax.jit
@in_full_precision
def fit_marginal(
    confidence: jax.Array, answered: jax.Array, stated: jax.Array | None = None, start: Marginal | None = None
) -> Marginal:
    """Fit the marginal of one model's calibrated confidences; `vmap` it over models and bootstrap replicates.

    If no value lies strictly between the extremes, the mixture is uniform and has probability 0. If all values are
    equal, the mass at φ_max holds everything (φ_min = φ_max, w_min = 0).

    A bootstrap knows the marginal that its confidences are drawn from. Expectation–maximisation then starts at the
    marginal's mixture and takes fifty steps at most, which is faster. If the two betas overlap, it ends a little short
    of the maximum, and p-values are slightly too large.

    Args:
        confidence: (n,) calibrated confidence.
        answered: (n,) whether there is an answer.
        stated: (A,) confidences that become atoms, padded with infinity; None: the atoms of `start`.
        start: marginal that the confidences are drawn from, at whose mixture the fit starts.
    """
    if stated is None and start is not None and start.atoms is not None:
        stated = start.atoms.value
    masses = split_into_masses(confidence, answered, stated)
    if start is None:
        mixture = fit_beta_mixture(masses.scaled, masses.smooth)
    else:
        columns = stack_columns(masses.scaled, masses.smooth)
        mixture, _ = run_em(columns, (start.proportion, start.a, start.b), _REFIT_STEPS)
    return Marginal(*masses.ends, *mixture, atoms=masses.atoms)


class _Masses(NamedTuple):
    """The point masses of n confidences, and the smooth values beside them."""

    ends: tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # φ_min, φ_max, w_min, w_max
    atoms: Atoms | None
    scaled: jax.Array  # (n,) confidences scaled to (0, 1) between the ends
    smooth: jax.Array  # (n,) bool: the values outside the masses


def split_into_masses(confidence: jax.Array, present: jax.Array, stated: jax.Array | None) -> _Masses:
    """Divide the confidences (n,) present into ends, atoms and smooth values; `stated` is as in `fit_marginal`."""
    lowest, highest = extremes(confidence, present)
    inside = present & (confidence > lowest) & (confidence < highest)
    indicators = [present[None], (present & (confidence == lowest))[None], (present & (confidence == highest))[None]]
    if stated is not None:
        # Values at the ends are not atoms; the others are sorted.
        stated = jnp.sort(jnp.where((stated > lowest) & (stated < highest), stated, jnp.inf))
        at_atoms = matches_value(confidence, stated).T & inside
        inside &= ~at_atoms.any(0)
        indicators.append(at_atoms)
    count, bottom, top, *atom_counts = jnp.concatenate(indicators).astype(confidence.dtype).sum(-1)
    bottom = jnp.where(lowest == highest, 0.0, bottom / count)
    scaled = jnp.where(inside, divide(confidence - lowest, highest - lowest, 0.5), 0.5)
    ends = lowest, highest, bottom, top / count
    if stated is None:
        return _Masses(ends, None, scaled, inside)
    mass = jnp.stack(atom_counts) / count
    order = jnp.argsort(jnp.where(mass > 0, stated, jnp.inf))  # values without answers become padding
    return _Masses(ends, Atoms(jnp.where(mass > 0, stated, highest)[order], mass[order]), scaled, inside)


def stack_columns(x: jax.Array, present: jax.Array) -> jax.Array:
    """Stack presence, log x and log(1 − x) of values: (3, n).

    More than `BLOCK_SIZE` values are padded and divided into blocks; (blocks, 3, B).
    """
    x = jnp.clip(x, jnp.finfo(x.dtype).tiny, 1 - jnp.finfo(x.dtype).epsneg)
    columns = jnp.stack([present.astype(x.dtype), jnp.log(x), jnp.log1p(-x)])
    n = len(x)
    if n <= BLOCK_SIZE:
        return columns
    return jnp.moveaxis(jnp.pad(columns, ((0, 0), (0, -n % BLOCK_SIZE))).reshape(3, -1, BLOCK_SIZE), 1, 0)


def fit_beta_mixture(x: jax.Array, present: jax.Array) -> Mixture:
    """Fit (π, a, b) of a mixture of two betas to the values (n,) present in (0, 1), with the best of three starts.

    The starts cut the values in the middle and near either end, where a rare component may hide. The M-step maximises
    each component's expected likelihood by Newton's method on log a and log b. Concentrations are capped at
    `MAX_CONCENTRATION`, so that a component which collapses on tied values stays proper. Expectation–maximisation ends
    when the mean log-likelihood of the best start gains less than 1e-9. More than `SAMPLE_SIZE` values are sampled for
    the starts, and the best start continues on all values.
    """
    if len(x) <= SAMPLE_SIZE:
        return _fit_from_starts(x, present)
    return run_em(stack_columns(x, present), _fit_from_starts(*_sample(x, present)), _EM_STEPS)[0]


def _sample(x: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Take `SAMPLE_SIZE` of the values present, evenly by position, and return (values, bool of values present)."""
    order = jnp.cumsum(present)  # number of each value present, from 1
    count = order[-1]
    number = jnp.arange(SAMPLE_SIZE, dtype=order.dtype)
    step, remainder = count // SAMPLE_SIZE, count % SAMPLE_SIZE
    wanted = jnp.where(count > SAMPLE_SIZE, number * step + number * remainder // SAMPLE_SIZE, number)
    values = x[jnp.clip(jnp.searchsorted(order, wanted + 1), 0, len(x) - 1)]
    return jnp.where(wanted < count, values, 0.0), number < count


def _fit_from_starts(x: jax.Array, present: jax.Array) -> Mixture:
    """Fit the mixture from three starts, and keep the most likely."""
    weight = present.astype(x.dtype)
    starts = jax.vmap(partial(_initial_mixture, x, weight))(jnp.asarray(_STARTS, x.dtype))
    mixtures, likelihood = run_em(stack_columns(x, present), starts, _EM_STEPS, _SHORT_RUN)
    uniform = (jnp.full(2, 0.5, x.dtype), jnp.ones(2, x.dtype), jnp.ones(2, x.dtype))
    best = jnp.argmax(likelihood)
    return jax.tree.map(lambda fits, flat: jnp.where(weight.any(), fits[best], flat), mixtures, uniform)


class _Expectation(NamedTuple):
    """State of expectation–maximisation; a leading axis batches all but the number of steps."""

    step: jax.Array | int  # () number of steps taken
    mixture: Mixture
    likelihood: jax.Array  # () mean log-likelihood of the mixture one step before
    gain: jax.Array  # () gain of the last step


def run_em(columns: jax.Array, mixture: Mixture, most: int, least: int = 0) -> tuple[Mixture, jax.Array]:
    """Run expectation–maximisation until the most likely mixture gains less than 1e-9.

    Returns (mixture, mean log-likelihood one step before); a leading axis of `mixture` batches both.

    Args:
        columns: values stacked by `stack_columns`.
        mixture: initial mixture, (2,) each, or several, (S, 2) each.
        most: greatest number of steps.
        least: least number of steps.
    """
    shape = mixture[0].shape[:-1]
    take_step = partial(_em_step, columns)
    if shape:
        take_step = jax.vmap(take_step)

    def unfinished(state: _Expectation) -> jax.Array:
        gain = state.gain.ravel()[jnp.argmax(state.likelihood)]
        return (state.step < least) | (state.step < most) & (gain > _EM_TOLERANCE)

    def advance(state: _Expectation) -> _Expectation:
        mixture, likelihood = take_step(state.mixture)
        return _Expectation(state.step + 1, mixture, likelihood, jnp.abs(likelihood - state.likelihood))

    unknown = jnp.full_like(columns, -jnp.inf, shape=shape)  # varies over the devices of the columns (`jax.shard_map`)
    last = lax.while_loop(unfinished, advance, _Expectation(0, mixture, unknown, -unknown))
    return last.mixture, last.likelihood


def _em_step(columns: jax.Array, mixture: Mixture) -> tuple[Mixture, jax.Array]:
    """Take a step of expectation–maximisation, and return (next mixture, mean log-likelihood of the given mixture)."""
    if columns.ndim == 2:
        sums = _expected(columns, mixture)
    else:
        zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(_expected, columns[0], mixture))

        def add(sums: tuple[jax.Array, ...], block: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
            return jax.tree.map(jnp.add, sums, _expected(block, mixture)), None

        sums = lax.scan(add, zeros, columns)[0]
    (mass, *logs), likelihood, count = sums
    mean_log_x, mean_log_1x = (divide(total_log, mass, jnp.log(0.5)) for total_log in logs)

    def newton(_, shapes: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, b = shapes
        return _shape_step(a, b, mean_log_x, mean_log_1x)

    a, b = lax.fori_loop(0, _NEWTON_STEPS, newton, mixture[1:])
    likelihood = divide(likelihood, count)
    return ((mass + 1e-12) / (mass.sum() + 2e-12), a, b), jnp.nan_to_num(likelihood, nan=-jnp.inf)


def _expected(columns: jax.Array, mixture: Mixture) -> tuple[jax.Array, ...]:
    """Compute the sufficient statistics of a step, from values (3, n).

    Returns (sums (3, 2), log-likelihood (), count ()): sums of each component's responsibility, of its product with
    log x, and of its product with log(1 − x).
    """
    present, log_x, log_1x = columns
    proportion, a, b = mixture
    log_proportion = jnp.log(jnp.maximum(proportion, jnp.finfo(proportion.dtype).tiny))
    first, second = (log_proportion + beta_log_densities(a, b, log_x, log_1x)).T
    # Two components need one exponential, of the difference of their log densities.
    behind = jnp.exp(-jnp.abs(first - second))
    ahead = present / (1 + behind)
    shares = ahead * jnp.where(first > second, 1.0, behind), ahead * jnp.where(first > second, behind, 1.0)
    log_density = jnp.maximum(first, second) + jnp.log1p(behind)
    return jnp.stack([columns @ share for share in shares], axis=-1), present @ log_density, present.sum()


def _initial_mixture(x: jax.Array, weight: jax.Array, start: jax.Array) -> Mixture:
    """Match moments of the lower share of the values and of the upper, each mixed with a little of the other."""
    share, overlap = start
    cut = jnp.sort(jnp.where(weight > 0, x, jnp.inf))[(weight.sum() * share).astype(int)]
    upper = jnp.where(x >= cut, 1 - overlap, overlap)
    shares = weight[:, None] * jnp.stack([1 - upper, upper], axis=-1)
    mass = shares.sum(0)
    mean = divide(shares.T @ x, mass, 0.5)
    variance = divide((shares * (x[:, None] - mean) ** 2).sum(0), mass, 1 / 12)
    limit = mean * (1 - mean) / (1 + MAX_CONCENTRATION)
    concentration = mean * (1 - mean) / jnp.maximum(variance, limit) - 1
    a, b = _bounded_shapes(mean * concentration, (1 - mean) * concentration)
    return divide(mass, mass.sum(), 0.5), a, b


def _shape_step(
    a: jax.Array, b: jax.Array, mean_log_x: jax.Array, mean_log_1x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Take a Newton step in log a and log b towards ψ(a) − ψ(a + b) = E[log x], ψ(b) − ψ(a + b) = E[log(1 − x)]."""
    digamma, trigamma = polygammas(jnp.stack([a, b, a + b]))
    gradient_a, gradient_b = digamma[0] - digamma[2] - mean_log_x, digamma[1] - digamma[2] - mean_log_1x
    shared = trigamma[2]
    # d/d(log a) multiplies the trigammas by a.
    aa, bb = (trigamma[0] - shared) * a, (trigamma[1] - shared) * b
    ab, ba = -shared * b, -shared * a
    determinant = aa * bb - ab * ba
    step_a = (bb * gradient_a - ab * gradient_b) / determinant
    step_b = (aa * gradient_b - ba * gradient_a) / determinant
    step_a, step_b = (jnp.clip(jnp.nan_to_num(step), -1.0, 1.0) for step in (step_a, step_b))
    return _bounded_shapes(a * jnp.exp(-step_a), b * jnp.exp(-step_b))


def _bounded_shapes(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = jnp.maximum(a, MIN_SHAPE), jnp.maximum(b, MIN_SHAPE)
    shrink = jnp.minimum(1.0, MAX_CONCENTRATION / (a + b))
    return a * shrink, b * shrink
