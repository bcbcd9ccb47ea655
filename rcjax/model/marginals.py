"""The distribution of one model's calibrated confidence: point masses, and two scaled betas between the outermost.

Section 4.1 of Zellinger & Thomson (2025):

    F = w_min δ(φ_min) + (1 − w_min − w_max) · [π₁ Beta(a₁, b₁) + π₂ Beta(a₂, b₂)] + w_max δ(φ_max)

with the mixture scaled to (φ_min, φ_max). Where a model states few values, those between are masses too, and the
mixture has what they leave:

    F = Σ_a w_a δ(φ_a) + (1 − Σ_a w_a) · [π₁ Beta(a₁, b₁) + π₂ Beta(a₂, b₂)]

φ_min and φ_max are the extremes of the training confidences, the masses are counted, and expectation–maximisation
fits the mixture. All functions are scalar mathematics on one marginal, elementwise in their other argument.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from rcjax._core.beta import betainc, betainc_and_power, betaln
from rcjax._core.numerics import divide, sorted_numbers

#: Largest a + b of a fitted component: a spike on tied confidences stays a spike of width about 0.005 of the range.
MAX_CONCENTRATION = 1e4

_QUANTILE_STEPS = 60

_EVEN_PROBES, _LADDER, _LADDER_PROBES = 65, 7.0, 43

#: Confidences nearer to an atom than this, in units in the last place of 1, are the atom: others computed it.
_SNAP = 8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Atoms:
    """Point masses between the ends of a marginal, by rising confidence. Places that none takes: φ_max, of mass 0."""

    value: jax.Array  # (A,) calibrated confidence
    mass: jax.Array  # (A,) its probability

    @property
    def stated(self) -> jax.Array:
        """(A,) the confidences, infinite in places that none takes."""
        return jnp.where(self.mass > 0, self.value, jnp.inf)


def at_value(confidence: jax.Array, values: jax.Array) -> jax.Array:
    """(…, A) bool: which of the values (A,), at most one, a confidence is; a value that is infinite is none.

    >>> at_value(jnp.array([0.5, 0.6]), jnp.array([0.5, jnp.inf])).tolist()
    [[True, False], [False, False]]
    """
    near = jnp.abs(jnp.asarray(confidence)[..., None] - values) <= _SNAP * float(jnp.finfo(values.dtype).eps)
    return near & first_true(near)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Marginal:
    """The mixed discrete–continuous marginal of a calibrated confidence. A leading axis batches it over models."""

    lowest: jax.Array  # () φ_min
    highest: jax.Array  # () φ_max
    mass_lowest: jax.Array  # () w_min
    mass_highest: jax.Array  # () w_max
    proportion: jax.Array  # (2,) π, sums to one
    a: jax.Array  # (2,)
    b: jax.Array  # (2,)
    atoms: Atoms | None = None  # point masses between the ends; None: there are none

    @property
    def smooth(self) -> jax.Array:
        """1 − Σ w, the probability of the continuous part."""
        rest = 1 - self.mass_lowest - self.mass_highest
        if self.atoms is not None:
            rest = rest - self.atoms.mass.sum(-1)
            # Where every value is an atom, what rounding leaves is nothing.
            rest = jnp.where(rest > 64 * jnp.finfo(rest.dtype).eps, rest, 0.0)
        return jnp.maximum(rest, 0.0)

    def cdf(self, confidence: jax.Array) -> jax.Array:
        """F(φ) = P(Φ ≤ φ), differentiable in φ and in every parameter.

        >>> round(float(Marginal(0., 1., 0.2, 0.3, jnp.array([0.5, 0.5]), jnp.ones(2), jnp.ones(2)).cdf(0.5)), 4)
        0.45
        """
        scaled = self._scale(confidence)
        inner = self.mass_lowest + self.smooth * mixture_cdf(self, scaled) + self._atoms_up_to(confidence)
        return jnp.where(confidence < self.lowest, 0.0, jnp.where(confidence >= self.highest, 1.0, inner))

    def density(self, confidence: jax.Array) -> jax.Array:
        """Density of the continuous part, (1 − Σ w) times the mixture's; 0 outside (φ_min, φ_max)."""
        return self.profile(confidence)[1]

    def quantile(self, u: jax.Array) -> jax.Array:
        """Q(u) = F⁻¹(u), flat at the point masses: φ_min for u ≤ w_min, φ_max for u ≥ 1 − w_max."""
        u = jnp.asarray(u, dtype=jnp.result_type(self.lowest))
        if self.atoms is None:
            z = jnp.clip(divide(u - self.mass_lowest, self.smooth, 0.5), 0.0, 1.0)
            inner = self.lowest + (self.highest - self.lowest) * mixture_quantile_and_components(self, z)[0]
        else:
            inner = self._quantile_among_atoms(u, self.atoms)
        top = 1 - self.mass_highest
        return jnp.where(u <= self.mass_lowest, self.lowest, jnp.where(u >= top, self.highest, inner))

    def mean_above(self, confidence: jax.Array) -> jax.Array:
        """E[Φ; Φ > φ] = ∫_{F(φ)}^1 Q, in closed form, elementwise."""
        return self.profile(confidence)[2]

    def profile(self, confidence: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(F(φ), density(φ), E[Φ; Φ > φ]) from one evaluation of the incomplete beta function, elementwise.

        ∫₀ˣ t f(t; a, b) dt = a/(a + b) · I_x(a + 1, b), and I_x(a + 1, b) = I_x(a, b) − xᵃ(1 − x)ᵇ / (a B(a, b))
        (DLMF 8.17.20).
        """
        confidence = jnp.asarray(confidence)
        x, width = self._scale(confidence), self.highest - self.lowest
        below, power = betainc_and_power(self.a, self.b, x[..., None])
        scaled = (self.proportion * self.a / (self.a + self.b) * (1 - below + power / self.a)).sum(-1)
        z = (self.proportion * below).sum(-1)
        left, right = confidence < self.lowest, confidence >= self.highest
        cdf = jnp.where(left, 0.0, jnp.where(right, 1.0, self.mass_lowest + self.smooth * z))
        density = divide(self.smooth * (self.proportion * power).sum(-1), width * x * (1 - x))
        smooth = self.smooth * (self.lowest * (1 - z) + width * scaled)
        if self.atoms is not None:
            above = 1 - self._at_or_above(confidence, self.atoms)
            cdf = jnp.where(left | right, cdf, cdf + self._atoms_up_to(confidence))
            smooth += (above * self.atoms.mass * self.atoms.value).sum(-1)
        bottom = jnp.where(left, self.mass_lowest * self.lowest, 0.0)
        return cdf, density, bottom + jnp.where(right, 0.0, smooth + self.mass_highest * self.highest)

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Independent draws of the confidence, of the given shape."""
        return self.quantile(jax.random.uniform(key, shape, dtype=jnp.result_type(self.lowest)))

    def mass_ranks(self) -> tuple[jax.Array, jax.Array]:
        """(start, end), each (2 + A,), of the point masses on the scale of ranks u, by rising confidence.

        The first starts at 0, the last one ends at 1. Start and end are equal where no atom takes the place.
        """
        bottom, top = jnp.asarray(self.mass_lowest)[None], 1 - jnp.asarray(self.mass_highest)[None]
        starts, ends = [jnp.zeros_like(bottom), top], [bottom, jnp.ones_like(top)]
        if self.atoms is not None:
            start, end = self._atom_ranks(self.atoms)
            starts.insert(1, start)
            ends.insert(1, end)
        return jnp.concatenate(starts), jnp.concatenate(ends)

    def _atom_ranks(self, atoms: Atoms) -> tuple[jax.Array, jax.Array]:
        """(start, end), each (A,), of the atoms alone."""
        below = self.mass_lowest + self.smooth * mixture_cdf(self, self._scale(atoms.value))
        end = below + atoms.mass @ np.tri(atoms.mass.shape[-1], dtype=atoms.mass.dtype).T
        return end - atoms.mass, end

    def at_atom(self, confidence: jax.Array) -> jax.Array:
        """(…, A) bool: which atom, at most one, a confidence is."""
        assert self.atoms is not None, "this marginal has no atoms"
        return at_value(confidence, self.atoms.stated)

    @property
    def snap(self) -> float:
        """How near to an atom a confidence is the atom, computed by others."""
        return _SNAP * float(jnp.finfo(self.a.dtype).eps)

    def _at_or_above(self, confidence: jax.Array, atoms: Atoms) -> jax.Array:
        """(…, A) 1 where a confidence is an atom or above it, else 0."""
        return (jnp.asarray(confidence)[..., None] >= atoms.value - self.snap).astype(self.a.dtype)

    def _atoms_up_to(self, confidence: jax.Array) -> jax.Array | float:
        """The probability of the atoms at most at a confidence, elementwise."""
        return 0.0 if self.atoms is None else (self._at_or_above(confidence, self.atoms) * self.atoms.mass).sum(-1)

    def _quantile_among_atoms(self, u: jax.Array, atoms: Atoms) -> jax.Array:
        """Q(u) between the masses at the ends, elementwise: an atom's value on the ranks that it takes."""
        start, end = self._atom_ranks(atoms)
        passed = jnp.clip(u[..., None] - start, 0.0, atoms.mass).sum(-1)
        z = jnp.clip(divide(u - self.mass_lowest - passed, self.smooth, 0.5), 0.0, 1.0)
        inner = self.lowest + (self.highest - self.lowest) * mixture_quantile_and_components(self, z)[0]
        # With nothing smooth between them, ranks that rounding leaves between two atoms are the upper one's.
        above = (u[..., None] <= end) & (atoms.mass > 0) & ((u[..., None] > start) | (self.smooth == 0))
        here = above & first_true(above)
        return jnp.where(here.any(-1), (here * atoms.value).sum(-1), jnp.where(self.smooth > 0, inner, self.highest))

    def _scale(self, confidence: jax.Array) -> jax.Array:
        return jnp.clip(divide(confidence - self.lowest, self.highest - self.lowest, 0.5), 0.0, 1.0)


def first_true(condition: jax.Array) -> jax.Array:
    """(…, A) bool: where the first that is true stands along the last axis; where none is, the first of all."""
    return jnp.argmax(condition, axis=-1)[..., None] == np.arange(condition.shape[-1])


def mixture_cdf(marginal: Marginal, x: jax.Array) -> jax.Array:
    """cdf of the beta mixture on (0, 1), elementwise in x."""
    return (marginal.proportion * betainc(marginal.a, marginal.b, jnp.asarray(x)[..., None])).sum(-1)


def mixture_mean_below(marginal: Marginal, x: jax.Array, components: jax.Array) -> jax.Array:
    """∫₀ˣ t f(t) dt of the beta mixture's density f (…), given both components' cdfs at x (…, 2)."""
    inside = ((x > 0) & (x < 1))[..., None]
    safe = jnp.where(inside, x[..., None], 0.5)
    log_power = marginal.a * jnp.log(safe) + marginal.b * jnp.log1p(-safe) - betaln(marginal.a, marginal.b)
    step = jnp.where(inside, jnp.exp(log_power) / marginal.a, 0.0)
    return (marginal.proportion * marginal.a / (marginal.a + marginal.b) * (components - step)).sum(-1)


def _components_and_density(marginal: Marginal, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(…, 2) cdfs of both components and (…) density of the mixture, at x inside (0, 1)."""
    components, power = betainc_and_power(marginal.a, marginal.b, x[..., None])
    return components, (marginal.proportion * power).sum(-1) / (x * (1 - x))


def log_components(proportion: jax.Array, a: jax.Array, b: jax.Array, log_x: jax.Array, log_1x: jax.Array) -> jax.Array:
    """(…, 2): log π + log density of each component.

    Args:
        proportion, a, b: (2,) of the mixture.
        log_x, log_1x: (…) log x and log(1 − x) of the points.
    """
    log_proportion = jnp.log(jnp.maximum(proportion, jnp.finfo(proportion.dtype).tiny))
    return log_proportion + (a - 1) * log_x[..., None] + (b - 1) * log_1x[..., None] - betaln(a, b)


@jax.custom_jvp
def mixture_quantile_and_components(marginal: Marginal, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(x, cdfs of both components at x (…, 2)) with x the inverse of the mixture's cdf at z, elementwise in z.

    By bracketed Newton steps; by the implicit function theorem ∂x = (∂z − ∂F) / f, in z and in the parameters.
    """
    return _invert_mixture(marginal, jnp.asarray(z), probe_mixture(marginal))


@mixture_quantile_and_components.defjvp
def _mixture_quantile_and_components_jvp(
    primals: tuple[Marginal, jax.Array], tangents: tuple[Any, Any]
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    marginal, z = primals
    root, components = mixture_quantile_and_components(marginal, z)
    edge = (root <= 0) | (root >= 1)
    inside = jnp.where(edge, 0.5, root)
    _, by_parameters = jax.jvp(lambda m: mixture_cdf(m, inside), (marginal,), (tangents[0],))
    tangent = jnp.where(edge, 0.0, divide(tangents[1] - by_parameters, _components_and_density(marginal, inside)[1]))

    def at_root(marginal: Marginal, root: jax.Array) -> jax.Array:
        return betainc(marginal.a, marginal.b, root[..., None])

    return (root, components), (tangent, jax.jvp(at_root, (marginal, root), (tangents[0], tangent))[1])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Probes:
    """Points around every feature of a mixture, from 0 to 1, P of them."""

    x: jax.Array  # (P,) increasing
    components: jax.Array  # (P, 2) the cdfs of both components
    z: jax.Array  # (P,) the cdf of the mixture
    density: jax.Array  # (P,)


def probe_mixture(marginal: Marginal) -> Probes:
    """Probes evenly spaced on the logit scale from end to end, and around each component.

    The logit of a beta variate has mean ψ(a) − ψ(b) and variance ψ′(a) + ψ′(b), with ψ(a) ≈ log(a + ½) − 1/a.
    """
    limit = -jnp.log(jnp.finfo(marginal.a.dtype).epsneg)
    center = jnp.log((marginal.a + 0.5) / (marginal.b + 0.5)) - 1 / marginal.a + 1 / marginal.b
    spread = jnp.sqrt(sum(1 / (shape + 0.5) + 1 / shape**2 for shape in (marginal.a, marginal.b)))
    ladder = jnp.linspace(-_LADDER, _LADDER, _LADDER_PROBES, dtype=limit.dtype)
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


def _invert_mixture(marginal: Marginal, z: jax.Array, probes: Probes) -> tuple[jax.Array, jax.Array]:
    """(x, components at x): safeguarded Newton steps from the inverse cubic through the probes around z."""
    z = z + jnp.zeros_like(probes.z, z.dtype, shape=())  # under `jax.shard_map` all of the loop varies as both do
    right = jnp.clip(jnp.searchsorted(probes.z, z, method="compare_all"), 1, probes.x.shape[0] - 1)
    columns = jnp.stack([probes.x, probes.z, probes.density])
    left, right = jnp.moveaxis(columns[:, jnp.stack([right - 1, right])], 0, 1)
    tolerance = 8 * jnp.finfo(z.dtype).eps

    def unfinished(carry: tuple[Any, ...]) -> jax.Array:
        *_, step, done = carry
        return (step < _QUANTILE_STEPS) & ~jnp.all(done)

    def advance(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        x, _, low, high, step, done = carry
        components, density = _components_and_density(marginal, x)
        residual = components @ marginal.proportion - z
        low, high = jnp.where(residual <= 0, x, low), jnp.where(residual >= 0, x, high)
        newton = x - residual / density
        # A Newton step that leaves the bracket, and every fourth step in any case, halves the bracket instead.
        outside = ~((newton > low) & (newton < high)) | (step % 4 == 3)
        done = (
            done
            | (jnp.abs(residual) <= tolerance)
            | (high - low <= tolerance * high)
            | (jnp.abs(newton - x) <= tolerance * x)
        )
        x = jnp.where(done, x, jnp.where(outside, (low + high) / 2, newton))
        return x, components, low, high, step + 1, done

    bottom, top = z <= 0, z >= 1
    none = jnp.zeros_like(z, shape=(*z.shape, 2))
    start = (_inverse_hermite(z, left, right), none, left[0], right[0], 0, bottom | top)
    x, components, *_ = lax.while_loop(unfinished, advance, start)
    x = jnp.where(bottom, 0.0, jnp.where(top, 1.0, x))
    return x, jnp.where((bottom | top)[..., None], x[..., None], components)


def _inverse_hermite(z: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
    """x(z) by the cubic through both points with the slopes 1/density, held inside the interval."""
    (x0, z0, f0), (x1, z1, f1) = left, right
    width = z1 - z0
    t = jnp.clip(divide(z - z0, width, 0.5), 0.0, 1.0)
    rise = x1 - x0
    # Slopes over three times the chord would make the cubic turn back (Fritsch & Carlson 1980).
    m0, m1 = (jnp.clip(jnp.nan_to_num(width / f, nan=0.0, posinf=0.0), 0.0, 3 * rise) for f in (f0, f1))
    return x0 + rise * t * t * (3 - 2 * t) + t * (1 - t) * (m0 * (1 - t) - m1 * t)


def cramer_von_mises(marginal: Marginal, confidence: jax.Array, present: jax.Array | None = None) -> jax.Array:
    """√∫ (F̂_n − F)² dF of a sample against a marginal: the distance in tables 5 and 6 of the paper.

    confidence (n,), of which only what is `present` (n,) counts. The integral is exact: over the continuous part F̂_n
    is a step function of u = F(φ), so each step contributes a cubic, and at φ_min and the atoms the squared difference
    counts with their mass.

    >>> uniform = Marginal(0., 1., 0., 0., jnp.array([0.5, 0.5]), jnp.ones(2), jnp.ones(2))
    >>> round(float(cramer_von_mises(uniform, jnp.array([0.5]))), 4)        # √(1/12)
    0.2887
    """
    present = jnp.ones(confidence.shape, bool) if present is None else present
    n = present.sum()
    u = sorted_numbers(jnp.where(present, marginal.cdf(confidence), jnp.inf))
    start, end = jnp.asarray(marginal.mass_lowest), 1 - jnp.asarray(marginal.mass_highest)
    edges = jnp.concatenate([start[None], jnp.clip(u, start, end), end[None]])
    level = jnp.minimum(jnp.arange(len(confidence) + 1) / n, 1.0)
    smooth = ((level - edges[:-1]) ** 3 - (level - edges[1:]) ** 3).sum() / 3
    at_lowest = ((present & (confidence <= marginal.lowest)).sum() / n - start) ** 2
    if marginal.atoms is None:
        return jnp.sqrt(smooth + start * at_lowest)
    begin, stop = (edge[1:-1] for edge in marginal.mass_ranks())
    # What falls on an atom has the rank of its end, so within its ranks F̂_n does not rise.
    before = jnp.searchsorted(u, (begin + stop) / 2, side="right") / n
    inside = ((before - begin) ** 3 - (before - stop) ** 3) / 3
    through = (present[:, None] & (confidence[:, None] <= marginal.atoms.value + marginal.snap)).sum(0) / n
    at_atoms = marginal.atoms.mass * (through - stop) ** 2
    across = jnp.where(marginal.atoms.mass > 0, at_atoms - inside, 0.0).sum()
    squared = smooth + across + start * at_lowest
    # With every value an atom nothing but rounding is left, which must not tell one sample from another.
    return jnp.sqrt(jnp.where(squared > 64 * jnp.finfo(squared.dtype).eps, squared, 0.0))
