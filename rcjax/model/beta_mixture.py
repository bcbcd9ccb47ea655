"""The paper's marginal (section 4.1 of Zellinger & Thomson 2025): its smooth part is a mixture of two betas.

    G = π₁ Beta(a₁, b₁) + π₂ Beta(a₂, b₂)

Expectation–maximisation fits it (`rcjax.model.marginal_fitting`).
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special
from jax.typing import ArrayLike

from rcjax._core.beta import betainc, betainc_and_power, betaln
from rcjax._core.numerics import divide
from rcjax._core.parametric import NO_PARAMETER
from rcjax.model.marginals import Marginal, Probes

#: Largest a + b of a fitted component: a spike on tied confidences keeps a width of about 0.005 of the range.
MAX_CONCENTRATION = 1e4

_QUANTILE_STEPS = 60

_EVEN_PROBES, _LADDER, _LADDER_PROBES = 65, 7.0, 43


class BetaMixture(Marginal):
    """A marginal whose smooth part is a mixture of two betas; the uniform distribution by default.

    >>> round(float(BetaMixture(0.2, 0.9, 0.1, 0.1).quantile(0.5)), 4)
    0.55
    """

    # Redeclared so that the ends are positional arguments ahead of the parameters.
    lowest: jax.Array = dataclasses.field(default=0.0, metadata=NO_PARAMETER)  # pyright: ignore[reportAssignmentType]
    highest: jax.Array = dataclasses.field(default=1.0, metadata=NO_PARAMETER)  # pyright: ignore[reportAssignmentType]
    mass_lowest: jax.Array = dataclasses.field(default=0.0, metadata=NO_PARAMETER)  # pyright: ignore
    mass_highest: jax.Array = dataclasses.field(default=0.0, metadata=NO_PARAMETER)  # pyright: ignore
    #: (2,) π, the components' shares; their sum is 1.
    proportion: jax.Array = dataclasses.field(default_factory=lambda: jnp.full(2, 0.5), metadata=NO_PARAMETER)
    a: jax.Array = dataclasses.field(default_factory=lambda: jnp.ones(2), metadata=NO_PARAMETER)  # (2,)
    b: jax.Array = dataclasses.field(default_factory=lambda: jnp.ones(2), metadata=NO_PARAMETER)  # (2,)

    parameter_axes: ClassVar[str] = "(k,c)"

    def smooth_cdf(self, x: ArrayLike) -> jax.Array:
        """G(x), differentiable in x and in every parameter."""
        return mixture_cdf(self, jnp.asarray(x))

    def held_cdf(self, x: ArrayLike) -> jax.Array:
        """G(x), by the incomplete beta function, which is valid at the ends too."""
        return self.smooth_cdf(x)

    def smooth_density(self, x: ArrayLike) -> jax.Array:
        """Density of the mixture inside (0, 1); 0 at the ends."""
        return self.smooth_profile(jnp.asarray(x))[1]

    def smooth_log_density(self, x: ArrayLike) -> jax.Array:
        """Log density of the mixture inside (0, 1)."""
        x = jnp.asarray(x)[..., None]
        log_power = (self.a - 1) * jnp.log(x) + (self.b - 1) * jnp.log1p(-x) - betaln(self.a, self.b)
        return special.logsumexp(log_power, axis=-1, b=self.proportion)

    def smooth_quantile(self, z: ArrayLike) -> jax.Array:
        """The x with G(x) = z, by bracketed Newton steps; gradients are implicit."""
        return mixture_quantile_and_components(self, jnp.asarray(z), lax.stop_gradient(self).probes())[0]

    def smooth_mean_above(self, x: ArrayLike) -> jax.Array:
        """∫ₓ¹ t dG, in closed form."""
        return self.smooth_profile(jnp.asarray(x))[2]

    def smooth_profile(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(G(x), density, ∫ₓ¹ t dG) from one evaluation of the incomplete beta function, elementwise.

        ∫₀ˣ t f(t; a, b) dt = a/(a + b) · I_x(a + 1, b), and I_x(a + 1, b) = I_x(a, b) − xᵃ(1 − x)ᵇ / (a B(a, b))
        (DLMF 8.17.20).
        """
        below, power = betainc_and_power(self.a, self.b, x[..., None])
        above = (self.proportion * self.a / (self.a + self.b) * (1 - below + power / self.a)).sum(-1)
        density = divide((self.proportion * power).sum(-1), x * (1 - x))
        return (self.proportion * below).sum(-1), density, above

    def quantiles_and_means(self, z: jax.Array, first: int, probes: Probes) -> tuple[jax.Array, jax.Array]:
        """(x with G(x) = z, ∫₀ˣ t dG for x[first:])."""
        x, components = mixture_quantile_and_components(self, z, probes)
        return x, mixture_mean_below(self, x[first:], components[first:])

    def probes(self) -> Probes:
        """Points around both components, and evenly spaced ones (`probe_mixture`)."""
        return probe_mixture(self)


def mixture_cdf(marginal: BetaMixture, x: jax.Array) -> jax.Array:
    """The cdf of the beta mixture on (0, 1), elementwise in x."""
    return (marginal.proportion * betainc(marginal.a, marginal.b, jnp.asarray(x)[..., None])).sum(-1)


def mixture_mean_below(marginal: BetaMixture, x: jax.Array, components: jax.Array) -> jax.Array:
    """∫₀ˣ t f(t) dt for the mixture's density f, given the components' cdfs at x (…, 2); (…)."""
    inside = ((x > 0) & (x < 1))[..., None]
    safe = jnp.where(inside, x[..., None], 0.5)
    log_power = marginal.a * jnp.log(safe) + marginal.b * jnp.log1p(-safe) - betaln(marginal.a, marginal.b)
    step = jnp.where(inside, jnp.exp(log_power) / marginal.a, 0.0)
    return (marginal.proportion * marginal.a / (marginal.a + marginal.b) * (components - step)).sum(-1)


def _components_and_density(marginal: BetaMixture, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (cdfs of the components (…, 2), density of the mixture (…)) at x inside (0, 1)."""
    components, power = betainc_and_power(marginal.a, marginal.b, x[..., None])
    return components, (marginal.proportion * power).sum(-1) / (x * (1 - x))


def log_components(proportion: jax.Array, a: jax.Array, b: jax.Array, log_x: jax.Array, log_1x: jax.Array) -> jax.Array:
    """log π + log density of each component; (…, 2).

    Args:
        proportion, a, b: (2,) parameters of the mixture.
        log_x, log_1x: (…) log x and log(1 − x) of the points.
    """
    log_proportion = jnp.log(jnp.maximum(proportion, jnp.finfo(proportion.dtype).tiny))
    return log_proportion + (a - 1) * log_x[..., None] + (b - 1) * log_1x[..., None] - betaln(a, b)


@jax.custom_jvp
def mixture_quantile_and_components(marginal: BetaMixture, z: jax.Array, probes: Probes) -> tuple[jax.Array, jax.Array]:
    """(x, cdfs of both components at x (…, 2)) with x the inverse of the mixture's cdf at z, elementwise in z.

    By bracketed Newton steps between the marginal's probes, which the result does not depend on; by the implicit
    function theorem ∂x = (∂z − ∂F) / f, in z and in the parameters.
    """
    return _invert_mixture(marginal, jnp.asarray(z), probes)


@mixture_quantile_and_components.defjvp
def _mixture_quantile_and_components_jvp(
    primals: tuple[BetaMixture, jax.Array, Probes], tangents: tuple[Any, Any, Any]
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    marginal = primals[0]
    root, components = mixture_quantile_and_components(*primals)
    edge = (root <= 0) | (root >= 1)
    inside = jnp.where(edge, 0.5, root)[..., None]
    a, b, proportion = marginal.a, marginal.b, marginal.proportion
    _, by_shapes = jax.jvp(lambda a, b: betainc(a, b, inside), (a, b), (tangents[0].a, tangents[0].b))
    densities = jnp.exp((a - 1) * jnp.log(inside) + (b - 1) * jnp.log1p(-inside) - betaln(a, b))
    by_parameters = (tangents[0].proportion * components + proportion * by_shapes).sum(-1)
    tangent = jnp.where(edge, 0.0, divide(tangents[1] - by_parameters, (proportion * densities).sum(-1)))
    of_components = jnp.where(edge[..., None], 0.0, by_shapes + densities * tangent[..., None])
    return (root, components), (tangent, of_components)


def probe_mixture(marginal: BetaMixture) -> Probes:
    """Lay out probes: evenly spaced on the logit scale from end to end, and denser around each component.

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


def _invert_mixture(marginal: BetaMixture, z: jax.Array, probes: Probes) -> tuple[jax.Array, jax.Array]:
    """(x, components at x): safeguarded Newton steps from the inverse cubic through the probes around z."""
    z = z + jnp.zeros_like(probes.z, z.dtype, shape=())  # so that z varies over both's devices (`jax.shard_map`)
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
        # Every fourth step, and any Newton step that leaves the bracket, halves the bracket instead.
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
    """x(z) by the cubic through both points with the slopes 1/density, clipped to the interval."""
    (x0, z0, f0), (x1, z1, f1) = left, right
    width = z1 - z0
    t = jnp.clip(divide(z - z0, width, 0.5), 0.0, 1.0)
    rise = x1 - x0
    # Slopes over three times the chord would make the cubic turn back (Fritsch & Carlson 1980).
    m0, m1 = (jnp.clip(jnp.nan_to_num(width / f, nan=0.0, posinf=0.0), 0.0, 3 * rise) for f in (f0, f1))
    return x0 + rise * t * t * (3 - 2 * t) + t * (1 - t) * (m0 * (1 - t) - m1 * t)
