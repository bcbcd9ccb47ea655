"""The distribution of one model's calibrated confidence: point masses at both ends, two scaled betas between them.

Section 4.1 of Zellinger & Thomson (2025):

    F = w_min δ(φ_min) + (1 − w_min − w_max) · [π₁ Beta(a₁, b₁) + π₂ Beta(a₂, b₂)] + w_max δ(φ_max)

with the mixture scaled to (φ_min, φ_max).
φ_min and φ_max are the extremes of the training confidences, the masses are counted, and expectation–maximisation
fits the mixture. All functions are scalar mathematics on one marginal, elementwise in their other argument.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from rcjax._numerics import betainc, betaln, divide, polygammas

#: Largest a + b of a fitted component: a spike on tied confidences stays a spike of width about 0.005 of the range.
MAX_CONCENTRATION = 1e4
_MIN_SHAPE = 1e-2
_EM_STEPS = 1_000
_EM_TOLERANCE = 1e-9
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
        return self.cdf_and_mean_above(confidence)[1]

    def cdf_and_mean_above(self, confidence: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(F(φ), E[Φ; Φ > φ]) from one evaluation of the incomplete beta function.

        ∫₀ˣ t f(t; a, b) dt = a/(a + b) · I_x(a + 1, b), and I_x(a + 1, b) = I_x(a, b) − xᵃ(1 − x)ᵇ / (a B(a, b))
        (DLMF 8.17.20).
        """
        confidence = jnp.asarray(confidence)
        x = self._scale(confidence)[..., None]
        below = betainc(self.a, self.b, x)
        log_step = special.xlogy(self.a, x) + special.xlog1py(self.b, -x) - betaln(self.a, self.b)
        above = 1 - below + jnp.exp(log_step) / self.a
        scaled = (self.proportion * self.a / (self.a + self.b) * above).sum(-1)
        z = (self.proportion * below).sum(-1)
        smooth = self.smooth * (self.lowest * (1 - z) + (self.highest - self.lowest) * scaled)
        bottom = jnp.where(confidence < self.lowest, self.mass_lowest * self.lowest, 0.0)
        top = jnp.where(confidence < self.highest, smooth + self.mass_highest * self.highest, 0.0)
        inner = self.mass_lowest + self.smooth * z
        cdf = jnp.where(confidence < self.lowest, 0.0, jnp.where(confidence >= self.highest, 1.0, inner))
        return cdf, bottom + top

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Independent draws of the confidence, of the given shape."""
        return self.quantile(jax.random.uniform(key, shape, dtype=jnp.result_type(self.lowest)))

    def _scale(self, confidence):
        return jnp.clip(divide(confidence - self.lowest, self.highest - self.lowest, 0.5), 0.0, 1.0)


def mixture_cdf(marginal: Marginal, x: jax.Array) -> jax.Array:
    """cdf of the beta mixture on (0, 1), elementwise in x."""
    x = jnp.asarray(x)[..., None]
    return (marginal.proportion * betainc(marginal.a, marginal.b, x)).sum(-1)


def mixture_density(marginal: Marginal, x: jax.Array) -> jax.Array:
    """Density of the beta mixture on (0, 1), elementwise in x."""
    return jnp.exp(
        special.logsumexp(
            _log_components(marginal.proportion, marginal.a, marginal.b, jnp.log(x), jnp.log1p(-x)), axis=-1
        )
    )


def _log_components(proportion, a, b, log_x, log_1x):
    """(…, 2): log π + log density of each component, at points given by log x and log(1 − x)."""
    return _log(proportion) + (a - 1) * log_x[..., None] + (b - 1) * log_1x[..., None] - betaln(a, b)


def _log(proportion):
    return jnp.log(jnp.maximum(proportion, jnp.finfo(proportion.dtype).tiny))


@jax.custom_jvp
def mixture_quantile(marginal: Marginal, z: jax.Array) -> jax.Array:
    """Inverse of the mixture's cdf, elementwise in z: bracketed Newton steps, with the gradients of the inverse.

    By the implicit function theorem ∂x = (∂z − ∂F) / f, in z and in the parameters.
    """
    return _invert_mixture(marginal, jnp.asarray(z))


@mixture_quantile.defjvp
def _mixture_quantile_jvp(primals, tangents):
    marginal, z = primals
    root = mixture_quantile(marginal, z)
    edge = (root <= 0) | (root >= 1)
    inside = jnp.where(edge, 0.5, root)
    _, by_parameters = jax.jvp(lambda m: mixture_cdf(m, inside), (marginal,), (tangents[0],))
    density = mixture_density(marginal, inside)
    return root, jnp.where(edge, 0.0, divide(tangents[1] - by_parameters, density))


def _invert_mixture(marginal, z):
    """Safeguarded Newton steps from the inverse cubic through probes that surround every feature of the mixture."""
    probes, components, density = probe_mixture(marginal)
    values = components @ marginal.proportion
    place = jnp.clip(jnp.searchsorted(values, z), 1, probes.shape[0] - 1)
    low, high = probes[place - 1], probes[place]
    guess = _inverse_hermite(z, (low, values[place - 1], density[place - 1]), (high, values[place], density[place]))
    tolerance = 8 * jnp.finfo(z.dtype).eps

    def unfinished(carry):
        *_, step, done = carry
        return (step < _QUANTILE_STEPS) & ~jnp.all(done)

    def advance(carry):
        x, low, high, step, done = carry
        residual = mixture_cdf(marginal, x) - z
        low, high = jnp.where(residual <= 0, x, low), jnp.where(residual >= 0, x, high)
        newton = x - residual / mixture_density(marginal, x)
        # A Newton step that leaves the bracket, and every fourth step in any case, halves the bracket instead.
        outside = ~((newton > low) & (newton < high)) | (step % 4 == 3)
        done = (
            done
            | (jnp.abs(residual) <= tolerance)
            | (high - low <= tolerance * high)
            | (jnp.abs(newton - x) <= tolerance * x)
        )
        return jnp.where(done, x, jnp.where(outside, (low + high) / 2, newton)), low, high, step + 1, done

    start = (guess, low, high, 0, (z <= 0) | (z >= 1))
    x, *_ = lax.while_loop(unfinished, advance, start)
    return jnp.where(z <= 0, 0.0, jnp.where(z >= 1, 1.0, x))


def probe_mixture(marginal: Marginal) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Points around every feature of the mixture: (increasing x in [0, 1], both components' cdfs (n, 2), density).

    Evenly spaced on the logit scale from end to end, and around each component: the logit of a beta variate has mean
    ψ(a) − ψ(b) and variance ψ′(a) + ψ′(b).
    """
    limit = -jnp.log(jnp.finfo(marginal.a.dtype).epsneg)
    (digamma_a, trigamma_a), (digamma_b, trigamma_b) = polygammas(marginal.a), polygammas(marginal.b)
    center, spread = digamma_a - digamma_b, jnp.sqrt(trigamma_a + trigamma_b)
    ladder = jnp.linspace(-_LADDER, _LADDER, _LADDER_PROBES, dtype=limit.dtype)
    local = (center[:, None] + spread[:, None] * ladder).reshape(-1)
    logit = jnp.sort(jnp.concatenate([jnp.linspace(-1.0, 1.0, _EVEN_PROBES) * limit, jnp.clip(local, -limit, limit)]))
    x = special.expit(logit)
    inside = jnp.clip(x, jnp.finfo(x.dtype).tiny, 1 - jnp.finfo(x.dtype).epsneg)
    density = mixture_density(marginal, inside)
    # Rounding must not make a cdf fall from one probe to the next.
    components = lax.cummax(betainc(marginal.a, marginal.b, inside[:, None]), axis=0)
    return (
        jnp.pad(inside, 1, constant_values=(0.0, 1.0)),
        jnp.pad(components, ((1, 1), (0, 0)), constant_values=((0.0, 1.0), (0.0, 0.0))),
        jnp.pad(density, 1, mode="edge"),
    )


def _inverse_hermite(z, left, right):
    """x(z) by the cubic through both points with the slopes 1/density, held inside the interval."""
    (x0, z0, f0), (x1, z1, f1) = left, right
    width = z1 - z0
    t = jnp.clip(divide(z - z0, width, 0.5), 0.0, 1.0)
    rise = x1 - x0
    # Slopes over three times the chord would make the cubic turn back (Fritsch & Carlson 1980).
    m0, m1 = (jnp.clip(jnp.nan_to_num(width / f, nan=0.0, posinf=0.0), 0.0, 3 * rise) for f in (f0, f1))
    return x0 + rise * t * t * (3 - 2 * t) + t * (1 - t) * (m0 * (1 - t) - m1 * t)


def fit_marginal(confidence: jax.Array, answered: jax.Array) -> Marginal:
    """Marginal of one model's calibrated confidences; `vmap` it over models and bootstrap replicates.

    confidence (n,), answered (n,) bool. With no value strictly between the extremes the mixture is uniform and has
    probability 0; with all values equal, everything is in the mass at φ_max (φ_min = φ_max, w_min = 0).
    """
    lowest = jnp.min(jnp.where(answered, confidence, jnp.inf))
    highest = jnp.max(jnp.where(answered, confidence, -jnp.inf))
    inside = answered & (confidence > lowest) & (confidence < highest)
    count = answered.sum()
    top = (answered & (confidence == highest)).sum() / count
    bottom = jnp.where(lowest == highest, 0.0, (answered & (confidence == lowest)).sum() / count)
    scaled = jnp.where(inside, divide(confidence - lowest, highest - lowest, 0.5), 0.5)
    proportion, a, b = fit_beta_mixture(scaled, inside)
    dtype = confidence.dtype
    return Marginal(lowest, highest, bottom.astype(dtype), top.astype(dtype), proportion, a, b)


def fit_beta_mixture(x: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(π, a, b) of a two-component beta mixture by expectation–maximisation, from the lower and the upper half.

    x (n,) in (0, 1), present (n,) bool. The M-step maximises each component's expected likelihood by Newton's
    method on log a and log b. Concentrations are capped at `MAX_CONCENTRATION`, so that a component which
    collapses on tied values stays proper. Iterates until the mean log-likelihood gains less than 1e-9.
    """
    x = jnp.clip(x, jnp.finfo(x.dtype).tiny, 1 - jnp.finfo(x.dtype).epsneg)
    log_x, log_1x = jnp.log(x), jnp.log1p(-x)
    weight = present.astype(x.dtype)
    total = jnp.maximum(weight.sum(), 1.0)

    def maximise(share, a, b):
        mass = share.sum(0)
        mean_log_x, mean_log_1x = (divide(share.T @ t, mass, jnp.log(0.5)) for t in (log_x, log_1x))
        for _ in range(_NEWTON_STEPS):
            a, b = _shape_step(a, b, mean_log_x, mean_log_1x)
        return (mass + 1e-12) / (mass.sum() + 2e-12), a, b

    def expect(proportion, a, b):
        parts = _log_components(proportion, a, b, log_x, log_1x)
        whole = special.logsumexp(parts, axis=-1, keepdims=True)
        return weight[:, None] * jnp.exp(parts - whole), (weight * whole[:, 0]).sum() / total

    def unfinished(carry):
        step, *_, gain = carry
        return (step < _EM_STEPS) & (gain > _EM_TOLERANCE)

    def advance(carry):
        step, proportion, a, b, likelihood, _ = carry
        share, new = expect(proportion, a, b)
        proportion, a, b = maximise(share, a, b)
        return step + 1, proportion, a, b, new, jnp.where(step == 0, jnp.inf, jnp.abs(new - likelihood))

    proportion, a, b = _initial_mixture(x, weight)
    zero = jnp.zeros((), x.dtype)
    state = lax.while_loop(unfinished, advance, (0, proportion, a, b, zero, zero + jnp.inf))
    _, proportion, a, b, *_ = state
    empty = weight.sum() == 0
    uniform = (jnp.full(2, 0.5, x.dtype), jnp.ones(2, x.dtype), jnp.ones(2, x.dtype))
    proportion, a, b = (jnp.where(empty, u, fitted) for u, fitted in zip(uniform, (proportion, a, b), strict=True))
    return proportion, a, b


def _initial_mixture(x, weight):
    """Moments of the lower and the upper half of the values, each with a little of the other."""
    rank = jnp.cumsum(weight[jnp.argsort(x)])[jnp.argsort(jnp.argsort(x))]
    upper = jnp.where(rank > weight.sum() / 2, 0.95, 0.05)
    share = weight[:, None] * jnp.stack([1 - upper, upper], axis=-1)
    mass = share.sum(0)
    mean = divide(share.T @ x, mass, 0.5)
    variance = divide((share * (x[:, None] - mean) ** 2).sum(0), mass, 1 / 12)
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
