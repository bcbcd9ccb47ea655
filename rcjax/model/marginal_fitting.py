"""Fitting the marginal of a confidence: its ends, its point masses, and its smooth part.

Expectation–maximisation runs from several starts, of which the most likely is continued. `rcjax.model.marginals`
defines the distribution (section 4.1 of Zellinger & Thomson 2025).
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rcjax._core.beta import polygammas
from rcjax._core.compilation import in_full
from rcjax._core.numerics import divide, extremes
from rcjax.model.ascent import Ascent, FitStatus, climb
from rcjax.model.beta_mixture import MAX_CONCENTRATION, BetaMixture, log_components
from rcjax.model.marginals import Atoms, Marginal, at_value

_MIN_SHAPE = 1e-2

_EM_STEPS, _SHORT_RUN, REFIT_STEPS = 1_000, 30, 50

#: Greatest number of Newton steps for other families, whose defaults may be far from the maximum.
_NEWTON_LIMIT = 50

_EM_TOLERANCE = 1e-9

#: Largest sample on which starts are compared; number of values processed at a time.
_SAMPLE, _BLOCK = 2**14, 2**15

#: Starts: (share of the values below the cut, share of each component's values across it).
_STARTS = ((0.5, 0.05), (0.05, 0.01), (0.95, 0.01))

_NEWTON_STEPS = 2

#: Parameters (π, a, b) of a mixture of two betas, each (2,).
Mixture = tuple[jax.Array, jax.Array, jax.Array]


@jax.jit
@in_full
def fit_marginal(
    confidence: jax.Array, answered: jax.Array, stated: jax.Array | None = None, near: Marginal | None = None
) -> Marginal:
    """Fit the marginal of one model's calibrated confidences; `vmap` it over models and bootstrap replicates.

    If no value lies strictly between the extremes, the mixture is uniform and has probability 0. If all values are
    equal, the mass at φ_max holds everything (φ_min = φ_max, w_min = 0).

    Bootstraps know the marginal that confidences are drawn from. Expectation–maximisation then starts at its mixture
    and takes fifty steps at most, which is faster. If the two betas overlap, it ends a little short of the maximum, and
    p-values are slightly too large.

    Args:
        confidence: (n,) calibrated confidence.
        answered: (n,) whether there is an answer.
        stated: (A,) confidences that become atoms, padded with infinity; None: the atoms of `near`.
        near: marginal that the confidences are drawn from.
    """
    if near is None:
        ends, atoms, scaled, inside = masses(confidence, answered, stated)
        return BetaMixture(*ends, *fit_beta_mixture(scaled, inside), atoms=atoms)
    if stated is None and near.atoms is not None:
        stated = near.atoms.value
    if not isinstance(near, BetaMixture):
        return likeliest_marginal(type(near), confidence, answered, stated, near).member
    ends, atoms, scaled, inside = masses(confidence, answered, stated)
    mixture = near.proportion, near.a, near.b
    return BetaMixture(*ends, *climb_on(columns_of(scaled, inside), mixture, REFIT_STEPS)[0], atoms=atoms)


def likeliest_marginal(
    family: type[Marginal],
    confidence: jax.Array,
    answered: jax.Array,
    stated: jax.Array | None = None,
    near: Marginal | None = None,
) -> Ascent:
    """Fit a marginal family to one model's calibrated confidences by maximum likelihood, with Newton's method.

    Ends are the extremes and masses are counted, as in `fit_marginal`. The mean log-likelihood is that of the smooth
    part, scaled to (0, 1), per value in it.

    Args:
        family: family of marginals; the fit starts at its default parameters.
        confidence, answered, stated: as in `fit_marginal`.
        near: another marginal to start at.

    >>> from rcjax.model.marginals import param
    >>> class Power(Marginal):
    ...     a: float = param(1.0, support=(0.01, 100.0))
    ...     def smooth_cdf(self, x):
    ...         return x**self.a
    >>> values = jax.random.uniform(jax.random.key(0), (500,)) ** 0.5
    >>> found = likeliest_marginal(Power, values, jnp.ones(500, bool))
    >>> abs(float(found.member.a) - 2) < 3 * float(found.standard_errors["a"]), int(found.status)
    (True, 0)
    """
    (lowest, highest, bottom, top), atoms, scaled, inside = masses(confidence, answered, stated)
    start = family() if near is None else near
    parameters = {name: jnp.asarray(getattr(start, name), scaled.dtype) for name in family.supports}
    start = dataclasses.replace(
        start, lowest=lowest, highest=highest, mass_lowest=bottom, mass_highest=top, atoms=atoms, **parameters
    )
    info = jnp.finfo(scaled.dtype)
    x, weight = jnp.clip(scaled, info.tiny, 1 - info.epsneg), inside.astype(scaled.dtype)
    total = weight.sum()

    def mean(marginal: Marginal) -> jax.Array:
        return divide((weight * jnp.where(inside, marginal.smooth_log_density(x), 0.0)).sum(), total)

    found = climb(family, mean, start, _NEWTON_LIMIT, within=0.9)
    errors = {name: divide(error, jnp.sqrt(total), jnp.inf) for name, error in found.standard_errors.items()}
    status = jnp.where(total > 0, found.status, FitStatus.NOT_CONVERGED)
    return dataclasses.replace(found, standard_errors=errors, status=status)


def masses(
    confidence: jax.Array, weight: jax.Array, stated: jax.Array | None
) -> tuple[tuple[jax.Array, jax.Array, jax.Array, jax.Array], Atoms | None, jax.Array, jax.Array]:
    """Divide confidences into ends, atoms and smooth values.

    Returns ((φ_min, φ_max, w_min, w_max), atoms, confidences scaled to (0, 1) (n,), whether each is smooth (n,)).

    Args:
        confidence: (n,) calibrated confidence.
        weight: (n,) weight of each confidence; 0 or False: absent.
        stated: (A,) confidences that become atoms, as in `fit_marginal`.
    """
    present = weight > 0
    lowest, highest = extremes(confidence, present)
    inside = present & (confidence > lowest) & (confidence < highest)
    held = [present[None], (present & (confidence == lowest))[None], (present & (confidence == highest))[None]]
    if stated is not None:
        # Values at the ends are no atoms; the others are sorted.
        stated = jnp.sort(jnp.where((stated > lowest) & (stated < highest), stated, jnp.inf))
        here = at_value(confidence, stated).T & inside
        inside &= ~here.any(0)
        held.append(here)
    count, bottom, top, *at_atoms = (jnp.concatenate(held) * weight).astype(confidence.dtype).sum(-1)
    bottom = jnp.where(lowest == highest, 0.0, bottom / count)
    scaled = jnp.where(inside, divide(confidence - lowest, highest - lowest, 0.5), 0.5)
    ends = lowest, highest, bottom, top / count
    if stated is None:
        return ends, None, scaled, inside
    mass = jnp.stack(at_atoms) / count
    order = jnp.argsort(jnp.where(mass > 0, stated, jnp.inf))  # values without answers become padding
    return ends, Atoms(jnp.where(mass > 0, stated, highest)[order], mass[order]), scaled, inside


def columns_of(x: jax.Array, present: jax.Array, weight: jax.Array | None = None) -> jax.Array:
    """Stack presence, log x and log(1 − x) of values, and weights if given; (3, n) or (4, n).

    More than `_BLOCK` values are padded and divided into blocks; (blocks, 3, B) or (blocks, 4, B).
    """
    x = jnp.clip(x, jnp.finfo(x.dtype).tiny, 1 - jnp.finfo(x.dtype).epsneg)
    rows = [present.astype(x.dtype), jnp.log(x), jnp.log1p(-x)]
    columns = jnp.stack(rows if weight is None else [*rows, weight])
    count, n = columns.shape
    if n <= _BLOCK:
        return columns
    return jnp.moveaxis(jnp.pad(columns, ((0, 0), (0, -n % _BLOCK))).reshape(count, -1, _BLOCK), 1, 0)


def fit_beta_mixture(x: jax.Array, present: jax.Array) -> Mixture:
    """Fit (π, a, b) of a two-component beta mixture by expectation–maximisation, with the best of three starts.

    The values x (n,) lie in (0, 1); present (n,) is bool. The starts cut the values in the middle and near either end,
    where a rare component may hide. The M-step maximises each component's expected likelihood by Newton's method on
    log a and log b. Concentrations are capped at `MAX_CONCENTRATION`, so that a component which collapses on tied
    values stays proper. Iteration ends when the mean log-likelihood of the best start gains less than 1e-9.

    With more than 16,384 values, the starts are compared and fitted on a sample of that size, and the best one is
    continued on all values.
    """
    if len(x) <= _SAMPLE:
        return _likeliest(x, present)
    return climb_on(columns_of(x, present), _likeliest(*_sample(x, present)), _EM_STEPS)[0]


def _sample(x: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Take `_SAMPLE` of the values present, evenly by position; (values, whether each is present)."""
    order = jnp.cumsum(present)  # number of each value present, from 1
    count = order[-1]
    number = jnp.arange(_SAMPLE, dtype=order.dtype)
    step, rest = count // _SAMPLE, count % _SAMPLE
    wanted = jnp.where(count > _SAMPLE, number * step + number * rest // _SAMPLE, number)
    values = x[jnp.clip(jnp.searchsorted(order, wanted + 1), 0, len(x) - 1)]
    return jnp.where(wanted < count, values, 0.0), number < count


def _likeliest(x: jax.Array, present: jax.Array) -> Mixture:
    """Fit the mixture from three starts, and keep the most likely."""
    columns = columns_of(x, present)
    weight = present.astype(x.dtype)
    mixtures = jax.vmap(partial(_initial_mixture, x, weight))(jnp.asarray(_STARTS, x.dtype))
    climb = jax.vmap(partial(_climb, columns))

    def unfinished(carry: tuple[Any, ...]) -> jax.Array:
        step, _, likelihood, gain = carry
        return (step < _SHORT_RUN) | (step < _EM_STEPS) & (gain[jnp.argmax(likelihood)] > _EM_TOLERANCE)

    def advance(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        step, mixtures, likelihood, _ = carry
        mixtures, new = climb(mixtures)
        return step + 1, mixtures, new, jnp.abs(new - likelihood)

    unknown = jnp.full(len(_STARTS), -jnp.inf, x.dtype)
    _, mixtures, likelihood, _ = lax.while_loop(unfinished, advance, (0, mixtures, unknown, -unknown))
    uniform = (jnp.full(2, 0.5, x.dtype), jnp.ones(2, x.dtype), jnp.ones(2, x.dtype))
    best = jnp.argmax(likelihood)
    return jax.tree.map(lambda fits, flat: jnp.where(weight.any(), fits[best], flat), mixtures, uniform)


def climb_on(columns: jax.Array, mixture: Mixture, steps: int) -> tuple[Mixture, jax.Array]:
    """Continue expectation–maximisation until the gain is less than 1e-9, and return (mixture, steps taken).

    Args:
        columns: values as `columns_of` stacks them.
        mixture: initial mixture.
        steps: greatest number of steps.
    """

    def unfinished(carry: tuple[Any, ...]) -> jax.Array:
        step, _, _, gain = carry
        return (step < steps) & (gain > _EM_TOLERANCE)

    def advance(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        step, mixture, likelihood, _ = carry
        mixture, new = _climb(columns, mixture)
        return step + 1, mixture, new, jnp.abs(new - likelihood)

    unknown = jnp.full_like(columns, -jnp.inf, shape=())  # varies over the devices of the columns (`jax.shard_map`)
    step, mixture, *_ = lax.while_loop(unfinished, advance, (0, mixture, unknown, -unknown))
    return mixture, step


def _climb(columns: jax.Array, mixture: Mixture) -> tuple[Mixture, jax.Array]:
    """Take one step of expectation–maximisation; (next mixture, mean log-likelihood of the given one)."""
    if columns.ndim == 2:
        sums = _expected(columns, mixture)
    else:
        nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(_expected, columns[0], mixture))

        def add(sums: tuple[jax.Array, ...], block: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
            return jax.tree.map(jnp.add, sums, _expected(block, mixture)), None

        sums = lax.scan(add, nothing, columns)[0]
    (mass, *logs), likelihood, count = sums
    mean_log_x, mean_log_1x = (divide(total_log, mass, jnp.log(0.5)) for total_log in logs)

    def newton(_, shapes: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, b = shapes
        return _shape_step(a, b, mean_log_x, mean_log_1x)

    a, b = lax.fori_loop(0, _NEWTON_STEPS, newton, mixture[1:])
    likelihood = divide(likelihood, count)
    return ((mass + 1e-12) / (mass.sum() + 2e-12), a, b), jnp.nan_to_num(likelihood, nan=-jnp.inf)


def _expected(columns: jax.Array, mixture: Mixture) -> tuple[jax.Array, ...]:
    """Sufficient statistics of a step, from values (3, n), or (4, n) with weights.

    Returns (sums (3, 2), log-likelihood (), weight ()). The sums are of each component's responsibility, alone, times
    log x, and times log(1 − x).
    """
    present, log_x, log_1x, *counted = columns
    (weight,) = counted or [present]
    proportion, a, b = mixture
    first, second = log_components(proportion, a, b, log_x, log_1x).T
    # Two components need one exponential, of the difference of their log densities.
    behind = jnp.exp(-jnp.abs(first - second))
    ahead = weight / (1 + behind)
    shares = ahead * jnp.where(first > second, 1.0, behind), ahead * jnp.where(first > second, behind, 1.0)
    log_density = jnp.maximum(first, second) + jnp.log1p(behind)
    return jnp.stack([columns[:3] @ share for share in shares], axis=-1), weight @ log_density, weight.sum()


def _initial_mixture(x: jax.Array, weight: jax.Array, start: jax.Array) -> Mixture:
    """Match moments of the lower share of the values and of the rest, each mixed with a little of the other."""
    share, little = start
    parting = jnp.sort(jnp.where(weight > 0, x, jnp.inf))[(weight.sum() * share).astype(int)]
    upper = jnp.where(x >= parting, 1 - little, little)
    shares = weight[:, None] * jnp.stack([1 - upper, upper], axis=-1)
    mass = shares.sum(0)
    mean = divide(shares.T @ x, mass, 0.5)
    variance = divide((shares * (x[:, None] - mean) ** 2).sum(0), mass, 1 / 12)
    limit = mean * (1 - mean) / (1 + MAX_CONCENTRATION)
    concentration = mean * (1 - mean) / jnp.maximum(variance, limit) - 1
    a, b = _bounded(mean * concentration, (1 - mean) * concentration)
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
    return _bounded(a * jnp.exp(-step_a), b * jnp.exp(-step_b))


def _bounded(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = jnp.maximum(a, _MIN_SHAPE), jnp.maximum(b, _MIN_SHAPE)
    shrink = jnp.minimum(1.0, MAX_CONCENTRATION / (a + b))
    return a * shrink, b * shrink
