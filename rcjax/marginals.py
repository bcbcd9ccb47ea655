"""The distribution of one model's calibrated confidence: point masses at both ends, two scaled betas between them.

Section 4.1 of Zellinger & Thomson (2025):

    F = w_min δ(φ_min) + (1 − w_min − w_max) · [π₁ Beta(a₁, b₁) + π₂ Beta(a₂, b₂)] + w_max δ(φ_max)

with the mixture scaled to (φ_min, φ_max).
φ_min and φ_max are the extremes of the training confidences, the masses are counted, and expectation–maximisation
fits the mixture. All functions are scalar mathematics on one marginal, elementwise in their other argument.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from rcjax._numerics import betainc, betainc_and_power, betaln, divide, extremes, polygammas, total

#: Largest a + b of a fitted component: a spike on tied confidences stays a spike of width about 0.005 of the range.
MAX_CONCENTRATION = 1e4
_MIN_SHAPE = 1e-2
_EM_STEPS, _SHORT_RUN, _REFIT_STEPS = 1_000, 30, 50
_EM_TOLERANCE = 1e-9
#: Of more values than this the likeliest start is found on so many of them; values are gone through in blocks.
_SAMPLE, _BLOCK = 2**14, 2**15
#: Each start: the share of the values below the parting, and how much of a component's values lies across it.
_STARTS = ((0.5, 0.05), (0.05, 0.01), (0.95, 0.01))
_NEWTON_STEPS = 2
_QUANTILE_STEPS = 60
_EVEN_PROBES, _LADDER, _LADDER_PROBES = 65, 7.0, 43


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

    @property
    def smooth(self) -> jax.Array:
        """1 − w_min − w_max, the probability of the continuous part."""
        return jnp.maximum(1 - self.mass_lowest - self.mass_highest, 0.0)

    def cdf(self, confidence: jax.Array) -> jax.Array:
        """F(φ) = P(Φ ≤ φ), differentiable in φ and in every parameter.

        >>> round(float(Marginal(0., 1., 0.2, 0.3, jnp.array([0.5, 0.5]), jnp.ones(2), jnp.ones(2)).cdf(0.5)), 4)
        0.45
        """
        scaled = self._scale(confidence)
        inner = self.mass_lowest + self.smooth * mixture_cdf(self, scaled)
        return jnp.where(confidence < self.lowest, 0.0, jnp.where(confidence >= self.highest, 1.0, inner))

    def density(self, confidence: jax.Array) -> jax.Array:
        """Density of the continuous part, (1 − w_min − w_max) times the mixture's; 0 outside (φ_min, φ_max)."""
        inside = (confidence > self.lowest) & (confidence < self.highest)
        scaled = jnp.where(inside, self._scale(confidence), 0.5)
        width = self.highest - self.lowest
        return jnp.where(inside, divide(self.smooth * mixture_density(self, scaled), width), 0.0)

    def quantile(self, u: jax.Array) -> jax.Array:
        """Q(u) = F⁻¹(u), flat at the point masses: φ_min for u ≤ w_min, φ_max for u ≥ 1 − w_max."""
        u = jnp.asarray(u, dtype=jnp.result_type(self.lowest))
        z = jnp.clip(divide(u - self.mass_lowest, self.smooth, 0.5), 0.0, 1.0)
        inner = self.lowest + (self.highest - self.lowest) * mixture_quantile(self, z)
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
        bottom = jnp.where(left, self.mass_lowest * self.lowest, 0.0)
        return cdf, density, bottom + jnp.where(right, 0.0, smooth + self.mass_highest * self.highest)

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Independent draws of the confidence, of the given shape."""
        return self.quantile(jax.random.uniform(key, shape, dtype=jnp.result_type(self.lowest)))

    def _scale(self, confidence):
        return jnp.clip(divide(confidence - self.lowest, self.highest - self.lowest, 0.5), 0.0, 1.0)


def mixture_cdf(marginal: Marginal, x: jax.Array) -> jax.Array:
    """cdf of the beta mixture on (0, 1), elementwise in x."""
    return (marginal.proportion * betainc(marginal.a, marginal.b, jnp.asarray(x)[..., None])).sum(-1)


def mixture_density(marginal: Marginal, x: jax.Array) -> jax.Array:
    """Density of the beta mixture on (0, 1), elementwise in x."""
    return jnp.exp(_log_components(marginal.proportion, marginal.a, marginal.b, jnp.log(x), jnp.log1p(-x))).sum(-1)


def mixture_mean_below(marginal: Marginal, x: jax.Array, components: jax.Array) -> jax.Array:
    """∫₀ˣ t f(t) dt of the beta mixture's density f (…), given both components' cdfs at x (…, 2)."""
    inside = ((x > 0) & (x < 1))[..., None]
    safe = jnp.where(inside, x[..., None], 0.5)
    log_power = marginal.a * jnp.log(safe) + marginal.b * jnp.log1p(-safe) - betaln(marginal.a, marginal.b)
    step = jnp.where(inside, jnp.exp(log_power) / marginal.a, 0.0)
    return (marginal.proportion * marginal.a / (marginal.a + marginal.b) * (components - step)).sum(-1)


def _components_and_density(marginal, x):
    """(…, 2) cdfs of both components and (…) density of the mixture, at x inside (0, 1)."""
    components, power = betainc_and_power(marginal.a, marginal.b, x[..., None])
    return components, (marginal.proportion * power).sum(-1) / (x * (1 - x))


def _log_components(proportion, a, b, log_x, log_1x):
    """(…, 2): log π + log density of each component, at points given by log x and log(1 − x)."""
    return _log(proportion) + (a - 1) * log_x[..., None] + (b - 1) * log_1x[..., None] - betaln(a, b)


def _log(proportion):
    return jnp.log(jnp.maximum(proportion, jnp.finfo(proportion.dtype).tiny))


def mixture_quantile(marginal: Marginal, z: jax.Array) -> jax.Array:
    """Inverse of the mixture's cdf, elementwise in z: bracketed Newton steps, with the gradients of the inverse."""
    return mixture_quantile_and_components(marginal, z)[0]


@jax.custom_jvp
def mixture_quantile_and_components(marginal: Marginal, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(x, cdfs of both components at x (…, 2)) with x the `mixture_quantile` of z, from the same iterations.

    By the implicit function theorem ∂x = (∂z − ∂F) / f, in z and in the parameters.
    """
    return _invert_mixture(marginal, jnp.asarray(z), probe_mixture(marginal))


@mixture_quantile_and_components.defjvp
def _mixture_quantile_and_components_jvp(primals, tangents):
    marginal, z = primals
    root, components = mixture_quantile_and_components(marginal, z)
    edge = (root <= 0) | (root >= 1)
    inside = jnp.where(edge, 0.5, root)
    _, by_parameters = jax.jvp(lambda m: mixture_cdf(m, inside), (marginal,), (tangents[0],))
    tangent = jnp.where(edge, 0.0, divide(tangents[1] - by_parameters, mixture_density(marginal, inside)))

    def at_root(marginal, root):
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


def _invert_mixture(marginal, z, probes):
    """(x, components at x): safeguarded Newton steps from the inverse cubic through the probes around z."""
    right = jnp.clip(jnp.searchsorted(probes.z, z, method="compare_all"), 1, probes.x.shape[0] - 1)
    columns = jnp.stack([probes.x, probes.z, probes.density])
    left, right = jnp.moveaxis(columns[:, jnp.stack([right - 1, right])], 0, 1)
    tolerance = 8 * jnp.finfo(z.dtype).eps

    def unfinished(carry):
        *_, step, done = carry
        return (step < _QUANTILE_STEPS) & ~jnp.all(done)

    def advance(carry):
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
    none = jnp.zeros((*z.shape, 2), z.dtype)
    start = (_inverse_hermite(z, left, right), none, left[0], right[0], 0, bottom | top)
    x, components, *_ = lax.while_loop(unfinished, advance, start)
    x = jnp.where(bottom, 0.0, jnp.where(top, 1.0, x))
    return x, jnp.where((bottom | top)[..., None], x[..., None], components)


def _inverse_hermite(z, left, right):
    """x(z) by the cubic through both points with the slopes 1/density, held inside the interval."""
    (x0, z0, f0), (x1, z1, f1) = left, right
    width = z1 - z0
    t = jnp.clip(divide(z - z0, width, 0.5), 0.0, 1.0)
    rise = x1 - x0
    # Slopes over three times the chord would make the cubic turn back (Fritsch & Carlson 1980).
    m0, m1 = (jnp.clip(jnp.nan_to_num(width / f, nan=0.0, posinf=0.0), 0.0, 3 * rise) for f in (f0, f1))
    return x0 + rise * t * t * (3 - 2 * t) + t * (1 - t) * (m0 * (1 - t) - m1 * t)


@partial(jax.jit, static_argnames="axis")
def fit_marginal(confidence: jax.Array, answered: jax.Array, axis: str | None = None) -> Marginal:
    """Marginal of one model's calibrated confidences; `vmap` it over models and bootstrap replicates.

    confidence (n,), answered (n,) bool; `axis` names the devices that they are spread over, if they are. With no value
    strictly between the extremes the mixture is uniform and has probability 0; with all values equal, everything is in
    the mass at φ_max (φ_min = φ_max, w_min = 0).
    """
    ends, scaled, inside = _ends(confidence, answered, axis)
    return Marginal(*ends, *fit_beta_mixture(scaled, inside, axis))


@jax.jit
def refit_marginal(start: Marginal, confidence: jax.Array, answered: jax.Array | None = None) -> Marginal:
    """Marginal of confidences (n,) drawn from `start`, for bootstraps: quicker than `fit_marginal`, and near enough.

    Expectation–maximisation climbs from the mixture of `start`, which is the truth, for fifty steps at most. Where the
    two betas overlap that ends a little short of the maximum, and p-values come out a little too large. `vmap` it.
    Confidences that are not `answered` (n,) are left out.
    """
    answered = jnp.ones(confidence.shape, bool) if answered is None else answered
    ends, scaled, inside = _ends(confidence, answered)
    mixture = start.proportion, start.a, start.b
    return Marginal(*ends, *_climb_on(_columns(scaled, inside), mixture, _REFIT_STEPS)[0])


def _ends(confidence, answered, axis=None):
    """((φ_min, φ_max, w_min, w_max), the confidences scaled to (0, 1), which of them lie inside)."""
    lowest, highest = extremes(confidence, answered, axis)
    inside = answered & (confidence > lowest) & (confidence < highest)
    at_ends = jnp.stack([answered, answered & (confidence == lowest), answered & (confidence == highest)])
    count, bottom, top = total(at_ends.astype(confidence.dtype).sum(-1), axis)
    bottom = jnp.where(lowest == highest, 0.0, bottom / count)
    scaled = jnp.where(inside, divide(confidence - lowest, highest - lowest, 0.5), 0.5)
    return (lowest, highest, bottom, top / count), scaled, inside


def _columns(x, present):
    """(3, n): weight, log x, log(1 − x); of many values (blocks, 3, B), filled up with weight 0."""
    x = jnp.clip(x, jnp.finfo(x.dtype).tiny, 1 - jnp.finfo(x.dtype).epsneg)
    columns = jnp.stack([present.astype(x.dtype), jnp.log(x), jnp.log1p(-x)])
    n = columns.shape[1]
    if n <= _BLOCK:
        return columns
    return jnp.moveaxis(jnp.pad(columns, ((0, 0), (0, -n % _BLOCK))).reshape(3, -1, _BLOCK), 1, 0)


def fit_beta_mixture(
    x: jax.Array, present: jax.Array, axis: str | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(π, a, b) of a two-component beta mixture by expectation–maximisation, the likeliest of three starts.

    x (n,) in (0, 1), present (n,) bool. The starts part the values in the middle and near either end, where a rare
    component may hide. The M-step maximises each component's expected likelihood by Newton's method on log a and
    log b. Concentrations are capped at `MAX_CONCENTRATION`, so that a component which collapses on tied values stays
    proper. Iterates until the mean log-likelihood of the likeliest gains less than 1e-9.

    Of more than 16,384 values, so many (evenly by their order) tell which start is likeliest and how far it climbs;
    from there it climbs on all values. `axis` names the devices that the values are spread over, if they are: what
    they exchange is that sample, and sums.
    """
    few = len(x) * (1 if axis is None else lax.axis_size(axis)) <= _SAMPLE
    if few and axis is None:
        return _likeliest(x, present)
    found = _likeliest(*_sample(x, present, axis))
    if few:
        return found
    return _climb_on(_columns(x, present), found, _EM_STEPS, axis)[0]


def _sample(x, present, axis):
    """(values, which are there) of at most so many of the values that are present, evenly by their order."""
    order = jnp.cumsum(present)  # of each, from 1
    before = jnp.zeros((), order.dtype)
    count = order[-1]
    if axis is not None:
        everyone = jnp.arange(lax.axis_size(axis))
        counts = total(jnp.where(everyone == lax.axis_index(axis), count, 0), axis)
        before, count = jnp.where(everyone < lax.axis_index(axis), counts, 0).sum(), counts.sum()
    place = jnp.arange(_SAMPLE, dtype=order.dtype)
    step, rest = count // _SAMPLE, count % _SAMPLE
    wanted = jnp.where(count > _SAMPLE, place * step + place * rest // _SAMPLE, place) - before
    mine = (wanted >= 0) & (wanted < order[-1])
    values = x[jnp.clip(jnp.searchsorted(order, wanted + 1), 0, len(x) - 1)]
    return total(jnp.where(mine, values, 0.0), axis), place < count


def _likeliest(x, present):
    """The mixture of the likeliest of three starts."""
    columns = _columns(x, present)
    weight = present.astype(x.dtype)
    mixtures = jax.vmap(partial(_initial_mixture, x, weight))(jnp.asarray(_STARTS, x.dtype))
    climb = jax.vmap(partial(_climb, columns))

    def unfinished(carry):
        step, _, likelihood, gain = carry
        return (step < _SHORT_RUN) | (step < _EM_STEPS) & (gain[jnp.argmax(likelihood)] > _EM_TOLERANCE)

    def advance(carry):
        step, mixtures, likelihood, _ = carry
        mixtures, new = climb(mixtures)
        return step + 1, mixtures, new, jnp.abs(new - likelihood)

    unknown = jnp.full(len(_STARTS), -jnp.inf, x.dtype)
    _, mixtures, likelihood, _ = lax.while_loop(unfinished, advance, (0, mixtures, unknown, -unknown))
    uniform = (jnp.full(2, 0.5, x.dtype), jnp.ones(2, x.dtype), jnp.ones(2, x.dtype))
    best = jnp.argmax(likelihood)
    return jax.tree.map(lambda fits, flat: jnp.where(weight.any(), fits[best], flat), mixtures, uniform)


def _climb_on(columns, mixture, steps, axis=None):
    """(mixture, steps taken): from a mixture on, until the mean log-likelihood gains less than 1e-9."""

    def unfinished(carry):
        step, _, _, gain = carry
        return (step < steps) & (gain > _EM_TOLERANCE)

    def advance(carry):
        step, mixture, likelihood, _ = carry
        mixture, new = _climb(columns, mixture, axis)
        return step + 1, mixture, new, jnp.abs(new - likelihood)

    unknown = jnp.asarray(-jnp.inf, columns.dtype)
    step, mixture, *_ = lax.while_loop(unfinished, advance, (0, mixture, unknown, -unknown))
    return mixture, step


def _climb(columns, mixture, axis=None):
    """One step of expectation–maximisation: (the next mixture, the mean log-likelihood of this one)."""
    if columns.ndim == 2:
        sums = _expected(columns, mixture)
    else:
        nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(_expected, columns[0], mixture))

        def add(sums, block):
            return jax.tree.map(jnp.add, sums, _expected(block, mixture)), None

        sums = lax.scan(add, nothing, columns)[0]
    (mass, *logs), likelihood, count = total(sums, axis)
    mean_log_x, mean_log_1x = (divide(total_log, mass, jnp.log(0.5)) for total_log in logs)

    def newton(_, shapes):
        a, b = shapes
        return _shape_step(a, b, mean_log_x, mean_log_1x)

    a, b = lax.fori_loop(0, _NEWTON_STEPS, newton, mixture[1:])
    likelihood = divide(likelihood, count)
    return ((mass + 1e-12) / (mass.sum() + 2e-12), a, b), jnp.nan_to_num(likelihood, nan=-jnp.inf)


def _expected(columns, mixture):
    """The sums that a step needs of values (3, n), which is all that it needs of them.

    (3, 2) of each component's share of every value, alone, times log x and times log(1 − x); the log-likelihood; the
    weight.
    """
    weight, log_x, log_1x = columns
    proportion, a, b = mixture
    parts = _log_components(proportion, a, b, log_x, log_1x)
    highest = parts.max(-1, keepdims=True)
    whole = highest + jnp.log(jnp.exp(parts - highest).sum(-1, keepdims=True))
    return columns @ (weight[:, None] * jnp.exp(parts - whole)), (weight @ whole)[0], weight.sum()


def _initial_mixture(x, weight, start):
    """Moments of the lower share of the values and of the rest, each with a little of the other."""
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


def _shape_step(a, b, mean_log_x, mean_log_1x):
    """One Newton step, in log a and log b, towards ψ(a) − ψ(a + b) = E[log x], ψ(b) − ψ(a + b) = E[log(1 − x)]."""
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


def _bounded(a, b):
    a, b = jnp.maximum(a, _MIN_SHAPE), jnp.maximum(b, _MIN_SHAPE)
    shrink = jnp.minimum(1.0, MAX_CONCENTRATION / (a + b))
    return a * shrink, b * shrink


def cramer_von_mises(marginal: Marginal, confidence: jax.Array) -> jax.Array:
    """√∫ (F̂_n − F)² dF of a sample against a marginal: the distance in tables 5 and 6 of the paper.

    confidence (n,). The integral is exact: over the continuous part F̂_n is a step function of u = F(φ), so each
    step contributes a cubic, and at φ_min the squared difference counts with the mass w_min.

    >>> uniform = Marginal(0., 1., 0., 0., jnp.array([0.5, 0.5]), jnp.ones(2), jnp.ones(2))
    >>> round(float(cramer_von_mises(uniform, jnp.array([0.5]))), 4)        # √(1/12)
    0.2887
    """
    n = confidence.shape[0]
    u = jnp.sort(marginal.cdf(confidence))
    start, end = jnp.asarray(marginal.mass_lowest), 1 - jnp.asarray(marginal.mass_highest)
    edges = jnp.concatenate([start[None], jnp.clip(u, start, end), end[None]])
    level = jnp.arange(n + 1) / n
    smooth = ((level - edges[:-1]) ** 3 - (level - edges[1:]) ** 3).sum() / 3
    at_lowest = (jnp.mean(confidence <= marginal.lowest) - start) ** 2
    return jnp.sqrt(smooth + start * at_lowest)
