"""The distribution of one model's calibrated confidence: point masses, and a smooth part between the outer masses.

Section 4.1 of Zellinger & Thomson (2025):

    F = w_min δ(φ_min) + (1 − w_min − w_max) · G((φ − φ_min)/(φ_max − φ_min)) + w_max δ(φ_max)
    G = π₁ Beta(a₁, b₁) + π₂ Beta(a₂, b₂)

φ_min and φ_max are the extremes of the training confidences, the masses are counted, and G is fitted to the rest by
expectation–maximisation (`rcjax.model.maximum_likelihood`). If a model states few values, the inner values are masses
(atoms) too, and G describes the other confidences:

    F = Σ_a w_a δ(φ_a) + (1 − Σ_a w_a) · G

Functions take one marginal, and all but `cramer_von_mises` are elementwise in their other argument.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special
from jax.typing import ArrayLike

from rcjax._core.numerics import betainc, betainc_and_power, betaln, divide

#: Machine epsilons within which a confidence counts as an atom: other programs round the same confidence otherwise.
_ROUNDING_ERRORS = 8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Atoms:
    """Point masses between the ends of a marginal, by rising confidence, padded with φ_max of mass 0."""

    value: jax.Array  # (A,) calibrated confidence
    mass: jax.Array  # (A,) probability

    @property
    def stated(self) -> jax.Array:
        """(A,) confidences, padded with infinity."""
        return jnp.where(self.mass > 0, self.value, jnp.inf)


def matches_value(confidence: jax.Array, values: jax.Array) -> jax.Array:
    """Mark the value (A,) that a confidence equals, if any: (…, A) bool. Infinite values are padding.

    >>> matches_value(jnp.array([0.5, 0.6]), jnp.array([0.5, jnp.inf])).tolist()
    [[True, False], [False, False]]
    """
    near = jnp.abs(jnp.asarray(confidence)[..., None] - values) <= _ROUNDING_ERRORS * float(jnp.finfo(values.dtype).eps)
    return near & first_true(near)


def first_true(condition: jax.Array) -> jax.Array:
    """Mark the first True along the last axis, or the first entry if all are False: (…, A) bool."""
    return jnp.argmax(condition, axis=-1)[..., None] == np.arange(condition.shape[-1])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Probes:
    """P points from 0 to 1 around both betas of a mixture, with its cdf and density there."""

    x: jax.Array  # (P,) increasing
    components: jax.Array  # (P, 2) cdfs of the betas
    z: jax.Array  # (P,) cdf
    density: jax.Array  # (P,)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Marginal:
    """The mixed discrete–continuous marginal of a calibrated confidence; a leading axis batches it over models.

    >>> even = jnp.full(2, 0.5), jnp.ones(2), jnp.ones(2)  # both betas uniform
    >>> round(float(Marginal(0.2, 0.9, 0.1, 0.1, *even).quantile(0.5)), 4)
    0.55
    """

    lowest: jax.Array
    """() φ_min."""
    highest: jax.Array
    """() φ_max."""
    mass_lowest: jax.Array
    """() w_min."""
    mass_highest: jax.Array
    """() w_max."""
    proportion: jax.Array
    """(2,) π, the shares of the betas, whose sum is 1."""
    a: jax.Array
    """(2,) first parameters of the betas."""
    b: jax.Array
    """(2,) second parameters of the betas."""
    atoms: Atoms | None = None
    """Point masses between the ends; None: the model does not state values."""

    # The smooth part, on (0, 1).

    def smooth_cdf(self, x: ArrayLike) -> jax.Array:
        """Return G(x), differentiable in x and in every parameter."""
        return (self.proportion * betainc(self.a, self.b, jnp.asarray(x)[..., None])).sum(-1)

    def smooth_log_density(self, x: ArrayLike) -> jax.Array:
        """Return the log density of G inside (0, 1)."""
        x = jnp.asarray(x)
        log_densities = beta_log_densities(self.a, self.b, jnp.log(x), jnp.log1p(-x))
        return special.logsumexp(log_densities, axis=-1, b=self.proportion)

    def smooth_quantile(self, z: ArrayLike) -> jax.Array:
        """Solve G(x) = z for x, by bracketed Newton steps; gradients are implicit."""
        return quantile_and_components(self, jnp.asarray(z), lay_out_probes(lax.stop_gradient(self)))[0]

    def smooth_profile(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return (G(x), density, ∫ₓ¹ t dG) from one evaluation of the incomplete beta function, elementwise.

        ∫₀ˣ t f(t; a, b) dt = a/(a + b) · I_x(a + 1, b), and I_x(a + 1, b) = I_x(a, b) − xᵃ(1 − x)ᵇ / (a B(a, b))
        (DLMF 8.17.20).
        """
        below, power = betainc_and_power(self.a, self.b, x[..., None])
        above = (self.proportion * self.a / (self.a + self.b) * (1 - below + power / self.a)).sum(-1)
        density = divide((self.proportion * power).sum(-1), x * (1 - x))
        return (self.proportion * below).sum(-1), density, above

    # The whole distribution.

    @property
    def smooth_mass(self) -> jax.Array:
        """() probability of the continuous part, 1 − Σ w."""
        smooth = 1 - self.mass_lowest - self.mass_highest
        if self.atoms is not None:
            smooth = smooth - self.atoms.mass.sum(-1)
            # If every value is an atom, the difference is a rounding error.
            smooth = jnp.where(smooth > 64 * jnp.finfo(smooth.dtype).eps, smooth, 0.0)
        return jnp.maximum(smooth, 0.0)

    def cdf(self, confidence: jax.Array) -> jax.Array:
        """Return F(φ) = P(Φ ≤ φ), differentiable in φ and in every parameter.

        >>> round(float(Marginal(0., 1., 0.2, 0.3, jnp.array([0.5, 0.5]), jnp.ones(2), jnp.ones(2)).cdf(0.5)), 4)
        0.45
        """
        return self.profile(confidence)[0]

    def quantile(self, u: jax.Array) -> jax.Array:
        """Return Q(u) = F⁻¹(u), flat at the point masses: φ_min for u ≤ w_min, φ_max for u ≥ 1 − w_max."""
        u = jnp.asarray(u, dtype=jnp.result_type(self.lowest))
        if self.atoms is None:
            inner = self._inner_quantile(u - self.mass_lowest)
        else:
            inner = self._quantile_among_atoms(u, self.atoms)
        top = 1 - self.mass_highest
        return jnp.where(u <= self.mass_lowest, self.lowest, jnp.where(u >= top, self.highest, inner))

    def density(self, confidence: jax.Array) -> jax.Array:
        """Return the density of the smooth part, (1 − Σ w) times that of G; 0 outside (φ_min, φ_max)."""
        return self.profile(confidence)[1]

    def mean_above(self, confidence: jax.Array) -> jax.Array:
        """Return E[Φ; Φ > φ] = ∫_{F(φ)}^1 Q, elementwise."""
        return self.profile(confidence)[2]

    def profile(self, confidence: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return (F(φ), density(φ), E[Φ; Φ > φ]), elementwise, from one `smooth_profile`."""
        # F(φ) = w_min + (1 − Σ w)·G(x) + Σ w_a over φ_a ≤ φ, with φ = φ_min + width·x, and
        # E[Φ; Φ > φ] = (1 − Σ w)·∫ₓ¹ (φ_min + width·t) dG(t) + Σ w_a φ_a over φ_a > φ + w_max φ_max.
        confidence = jnp.asarray(confidence)
        x, width = self._scale(confidence), self.highest - self.lowest
        z, slope, mean_above = self.smooth_profile(x)
        left, right = confidence < self.lowest, confidence >= self.highest
        cdf = jnp.where(left, 0.0, jnp.where(right, 1.0, self.mass_lowest + self.smooth_mass * z))
        density = divide(self.smooth_mass * slope, width)
        smooth = self.smooth_mass * (self.lowest * (1 - z) + width * mean_above)
        if self.atoms is not None:
            above = 1 - self._at_or_above(confidence, self.atoms)
            cdf = jnp.where(left | right, cdf, cdf + ((1 - above) * self.atoms.mass).sum(-1))
            smooth += (above * self.atoms.mass * self.atoms.value).sum(-1)
        bottom = jnp.where(left, self.mass_lowest * self.lowest, 0.0)
        return cdf, density, bottom + jnp.where(right, 0.0, smooth + self.mass_highest * self.highest)

    def mass_ranks(self) -> tuple[jax.Array, jax.Array]:
        """Return (start, end) of the point masses on the scale of ranks u, by rising confidence: (2 + A,) each.

        The first mass starts at 0, and the last ends at 1. Start and end of padding are equal.
        """
        bottom, top = jnp.asarray(self.mass_lowest)[None], 1 - jnp.asarray(self.mass_highest)[None]
        starts, ends = [jnp.zeros_like(bottom), top], [bottom, jnp.ones_like(top)]
        if self.atoms is not None:
            start, end = self._atom_ranks(self.atoms)
            starts.insert(1, start)
            ends.insert(1, end)
        return jnp.concatenate(starts), jnp.concatenate(ends)

    def _atom_ranks(self, atoms: Atoms) -> tuple[jax.Array, jax.Array]:
        """Return (start, end) of the atoms on the scale of ranks u: (A,) each."""
        below = self.mass_lowest + self.smooth_mass * self.smooth_cdf(self._scale(atoms.value))
        end = below + atoms.mass @ np.tri(atoms.mass.shape[-1], dtype=atoms.mass.dtype).T
        return end - atoms.mass, end

    def mark_atom(self, confidence: jax.Array) -> jax.Array:
        """Mark the atom that a confidence equals, if any: (…, A) bool."""
        assert self.atoms is not None, "this marginal has no atoms"
        return matches_value(confidence, self.atoms.stated)

    @property
    def snap(self) -> float:
        """The distance within which a confidence counts as an atom, in confidence."""
        return _ROUNDING_ERRORS * float(jnp.finfo(jnp.result_type(self.lowest, float)).eps)

    def _at_or_above(self, confidence: jax.Array, atoms: Atoms) -> jax.Array:
        """Return 1 for atoms that a confidence reaches, else 0: (…, A)."""
        return (jnp.asarray(confidence)[..., None] >= atoms.value - self.snap).astype(atoms.mass.dtype)

    def _quantile_among_atoms(self, u: jax.Array, atoms: Atoms) -> jax.Array:
        """Return Q(u) between the masses at the ends, elementwise; constant on the ranks of an atom."""
        start, end = self._atom_ranks(atoms)
        passed = jnp.clip(u[..., None] - start, 0.0, atoms.mass).sum(-1)
        inner = self._inner_quantile(u - self.mass_lowest - passed)
        # Without a smooth part, ranks that rounding leaves between two atoms belong to the upper atom.
        above = (u[..., None] <= end) & (atoms.mass > 0) & ((u[..., None] > start) | (self.smooth_mass == 0))
        at_atom = above & first_true(above)
        return jnp.where(
            at_atom.any(-1), (at_atom * atoms.value).sum(-1), jnp.where(self.smooth_mass > 0, inner, self.highest)
        )

    def _inner_quantile(self, smooth_rank: jax.Array) -> jax.Array:
        """Return the confidence below which the smooth part has probability `smooth_rank`, elementwise."""
        z = jnp.clip(divide(smooth_rank, self.smooth_mass, 0.5), 0.0, 1.0)
        return self.unscale(self.smooth_quantile(z))

    def unscale(self, x: Any) -> Any:
        """Return the confidence φ_min + (φ_max − φ_min) x for x in [0, 1], elementwise."""
        return self.lowest + (self.highest - self.lowest) * x

    def _scale(self, confidence: jax.Array) -> jax.Array:
        return jnp.clip(divide(confidence - self.lowest, self.highest - self.lowest, 0.5), 0.0, 1.0)


def cramer_von_mises(marginal: Marginal, confidence: jax.Array, present: jax.Array | None = None) -> jax.Array:
    """Compute √∫ (F̂_n − F)² dF of a sample against a marginal: the distance in tables 5 and 6 of the paper.

    The integral is exact: over the continuous part F̂_n is a step function of u = F(φ), and each step contributes a
    cubic. At φ_min and the atoms the squared difference is weighted by their mass.

    Args:
        marginal: marginal of one model.
        confidence: (n,) confidences of the sample.
        present: (n,) bool, whether an entry belongs to the sample; None: all do.
    """
    present = jnp.ones(confidence.shape, bool) if present is None else present
    n = present.sum()
    u = jnp.sort(jnp.where(present, marginal.cdf(confidence), jnp.inf))
    start, end = jnp.asarray(marginal.mass_lowest), 1 - jnp.asarray(marginal.mass_highest)
    edges = jnp.concatenate([start[None], jnp.clip(u, start, end), end[None]])
    level = jnp.minimum(jnp.arange(len(confidence) + 1) / n, 1.0)
    smooth = ((level - edges[:-1]) ** 3 - (level - edges[1:]) ** 3).sum() / 3
    at_lowest = ((present & (confidence <= marginal.lowest)).sum() / n - start) ** 2
    if marginal.atoms is None:
        return jnp.sqrt(smooth + start * at_lowest)
    # F̂_n is a constant c within the ranks [a, b] of an atom φ_a, as confidences at φ_a have the rank b. The integral
    # ∫ₐᵇ (c − u)² du there, which `smooth` counts, is replaced by (b − a)·(F̂_n(φ_a) − b)².
    first_rank, last_rank = (edge[1:-1] for edge in marginal.mass_ranks())
    level_below = jnp.searchsorted(u, (first_rank + last_rank) / 2, side="right") / n
    counted = ((level_below - first_rank) ** 3 - (level_below - last_rank) ** 3) / 3
    level_at = (present[:, None] & (confidence[:, None] <= marginal.atoms.value + marginal.snap)).sum(0) / n
    at_atoms = marginal.atoms.mass * (level_at - last_rank) ** 2
    correction = jnp.where(marginal.atoms.mass > 0, at_atoms - counted, 0.0).sum()
    squared = smooth + correction + start * at_lowest
    # If every value is an atom, only rounding errors remain; they must not distinguish samples.
    return jnp.sqrt(jnp.where(squared > 64 * jnp.finfo(squared.dtype).eps, squared, 0.0))


#: Largest a + b of a fitted component: a spike on tied confidences keeps a width of about 0.005 of the range.
MAX_CONCENTRATION = 1e4

MIN_SHAPE = 1e-2  # least a and b of a fitted component

_QUANTILE_STEPS = 60  # most steps of the inversion; every fourth one halves the bracket

#: Probes evenly spaced in log-odds from end to end; probes around each component, and the standard deviations of its
#: log-odds that these span on either side.
_EVEN_PROBES, _LOCAL_PROBES, _SPAN = 65, 43, 7.0


def mean_below(marginal: Marginal, x: jax.Array, components: jax.Array) -> jax.Array:
    """Compute ∫₀ˣ t f(t) dt for the mixture's density f, given the components' cdfs at x (…, 2): (…)."""
    inside = (x > 0) & (x < 1)
    safe = jnp.where(inside, x, 0.5)
    log_x, log_1x = jnp.log(safe), jnp.log1p(-safe)
    log_power = beta_log_densities(marginal.a, marginal.b, log_x, log_1x) + (log_x + log_1x)[..., None]
    step = jnp.where(inside[..., None], jnp.exp(log_power) / marginal.a, 0.0)
    return (marginal.proportion * marginal.a / (marginal.a + marginal.b) * (components - step)).sum(-1)


def _components_and_density(marginal: Marginal, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (cdfs of the components (…, 2), density of the mixture (…)) at x inside (0, 1)."""
    components, power = betainc_and_power(marginal.a, marginal.b, x[..., None])
    return components, (marginal.proportion * power).sum(-1) / (x * (1 - x))


def beta_log_densities(a: jax.Array, b: jax.Array, log_x: jax.Array, log_1x: jax.Array) -> jax.Array:
    """Return the log densities of two betas: (…, 2).

    Args:
        a, b: (2,) parameters of the betas.
        log_x, log_1x: (…) log x and log(1 − x) of the points.
    """
    return (a - 1) * log_x[..., None] + (b - 1) * log_1x[..., None] - betaln(a, b)


@jax.custom_jvp
def quantile_and_components(marginal: Marginal, z: jax.Array, probes: Probes) -> tuple[jax.Array, jax.Array]:
    """Return (x, cdfs of both components at x (…, 2)); x solves G(x) = z, elementwise in z.

    Bracketed Newton steps start between the marginal's probes; the result does not depend on the probes. By the
    implicit function theorem ∂x = (∂z − ∂F) / f, in z and in the parameters.
    """
    return _newton_quantile(marginal, jnp.asarray(z), probes)


@quantile_and_components.defjvp
def _quantile_and_components_jvp(
    primals: tuple[Marginal, jax.Array, Probes], tangents: tuple[Any, Any, Any]
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    marginal = primals[0]
    root, components = quantile_and_components(*primals)
    edge = (root <= 0) | (root >= 1)
    inside = jnp.where(edge, 0.5, root)
    a, b, proportion = marginal.a, marginal.b, marginal.proportion
    _, by_shapes = jax.jvp(lambda a, b: betainc(a, b, inside[..., None]), (a, b), (tangents[0].a, tangents[0].b))
    densities = jnp.exp(beta_log_densities(a, b, jnp.log(inside), jnp.log1p(-inside)))
    by_parameters = (tangents[0].proportion * components + proportion * by_shapes).sum(-1)
    tangent = jnp.where(edge, 0.0, divide(tangents[1] - by_parameters, (proportion * densities).sum(-1)))
    of_components = jnp.where(edge[..., None], 0.0, by_shapes + densities * tangent[..., None])
    return (root, components), (tangent, of_components)


def lay_out_probes(marginal: Marginal) -> Probes:
    """Lay out probes: evenly spaced on the logit scale from end to end, and denser around each component.

    The logit of a beta variate has mean ψ(a) − ψ(b) and variance ψ′(a) + ψ′(b), with ψ(a) ≈ log(a + ½) − 1/a.
    """
    limit = -jnp.log(jnp.finfo(marginal.a.dtype).epsneg)
    center = jnp.log((marginal.a + 0.5) / (marginal.b + 0.5)) - 1 / marginal.a + 1 / marginal.b
    spread = jnp.sqrt(sum(1 / (shape + 0.5) + 1 / shape**2 for shape in (marginal.a, marginal.b)))
    ladder = jnp.linspace(-_SPAN, _SPAN, _LOCAL_PROBES, dtype=limit.dtype)
    local = (center[:, None] + spread[:, None] * ladder).reshape(-1)
    logit = jnp.sort(jnp.concatenate([jnp.linspace(-1.0, 1.0, _EVEN_PROBES) * limit, jnp.clip(local, -limit, limit)]))
    x = jnp.clip(special.expit(logit), jnp.finfo(logit.dtype).tiny, 1 - jnp.finfo(logit.dtype).epsneg)
    components, density = _components_and_density(marginal, x)
    components = jnp.pad(components, ((1, 1), (0, 0)), constant_values=((0.0, 1.0), (0.0, 0.0)))
    return Probes(
        x=jnp.pad(x, 1, constant_values=(0.0, 1.0)),
        components=components,
        z=jnp.clip(components @ marginal.proportion, 0.0, 1.0),
        density=jnp.pad(density, 1, mode="edge"),
    )


class _Quantiles(NamedTuple):
    """State of the inversion of G at levels z (…)."""

    x: jax.Array  # (…) next point
    components: jax.Array  # (…, 2) cdfs of both components at the point before
    low: jax.Array  # (…) ends of the bracket
    high: jax.Array
    step: jax.Array | int  # () number of steps taken
    done: jax.Array  # (…) bool


def _newton_quantile(marginal: Marginal, z: jax.Array, probes: Probes) -> tuple[jax.Array, jax.Array]:
    """Return (x, components at x), by safeguarded Newton steps from the inverse cubic through the probes around z."""
    z = z + jnp.zeros_like(probes.z, z.dtype, shape=())  # varies over the devices of z and probes (`jax.shard_map`)
    right = jnp.clip(jnp.searchsorted(probes.z, z, method="compare_all"), 1, probes.x.shape[0] - 1)
    columns = jnp.stack([probes.x, probes.z, probes.density])
    left, right = jnp.moveaxis(columns[:, jnp.stack([right - 1, right])], 0, 1)
    tolerance = 8 * jnp.finfo(z.dtype).eps

    def unfinished(state: _Quantiles) -> jax.Array:
        return (state.step < _QUANTILE_STEPS) & ~jnp.all(state.done)

    def advance(state: _Quantiles) -> _Quantiles:
        x, _, low, high, step, done = state
        components, density = _components_and_density(marginal, x)
        residual = components @ marginal.proportion - z
        low, high = jnp.where(residual <= 0, x, low), jnp.where(residual >= 0, x, high)
        newton = x - residual / density
        # Every fourth step, and any Newton step that leaves the bracket, halves the bracket instead.
        outside = ~((newton > low) & (newton < high)) | (step % 4 == 3)
        done |= (jnp.abs(residual) <= tolerance) | (high - low <= tolerance * high)
        done |= jnp.abs(newton - x) <= tolerance * x
        x = jnp.where(done, x, jnp.where(outside, (low + high) / 2, newton))
        return _Quantiles(x, components, low, high, step + 1, done)

    bottom, top = z <= 0, z >= 1
    unknown = jnp.zeros_like(z, shape=(*z.shape, 2))
    start = _Quantiles(_inverse_hermite(z, left, right), unknown, left[0], right[0], 0, bottom | top)
    last = lax.while_loop(unfinished, advance, start)
    x = jnp.where(bottom, 0.0, jnp.where(top, 1.0, last.x))
    return x, jnp.where((bottom | top)[..., None], x[..., None], last.components)


def _inverse_hermite(z: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
    """Return x(z) on the cubic through both points with the slopes 1/density, clipped to the interval."""
    (x0, z0, f0), (x1, z1, f1) = left, right
    width = z1 - z0
    t = jnp.clip(divide(z - z0, width, 0.5), 0.0, 1.0)
    rise = x1 - x0
    # Slopes over three times the chord would make the cubic turn back (Fritsch & Carlson 1980).
    m0, m1 = (jnp.clip(jnp.nan_to_num(width / f, nan=0.0, posinf=0.0), 0.0, 3 * rise) for f in (f0, f1))
    return x0 + rise * t * t * (3 - 2 * t) + t * (1 - t) * (m0 * (1 - t) - m1 * t)
