"""Families with closed forms of their own: Independence, Plackett, FGM; BB1, BB7 and Tawn, of two and three parameters.

Plackett's and that of Farlie, Gumbel and Morgenstern (FGM) take either sign and have no tails. BB1 and BB7 have tails
at both ends, and Tawn's is asymmetric.
"""

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._core.numerics import Unit, as_floats, divide, log1mexp, log1p_ratio, log_of_pair, softplus, unit_from_log
from rcjax.copulas.archimedean import Clayton, cdf_of_gain, cdf_of_s, clayton_lower_tail
from rcjax.copulas.base import (
    ClosedForm,
    Exchangeable,
    TailDependence,
    clip_unit,
    gauss_nodes,
    is_outside_square,
    no_tail_dependence,
    param,
)

_MIN_LOG_K = -30.0  # log k below which a series takes the place of a logarithm
_MIN_THETA = 1e-30  # a floor for θ: as good as 0, and its logarithm is finite in float32


class Independence(ClosedForm):
    """The copula C(u, v) = u v, without a free parameter; the shape of `placeholder` is that of the batch.

    >>> float(Independence().cdf(0.5, 0.5))
    0.25
    """

    placeholder: jax.Array | float = param(1.0, support=(-float("inf"), float("inf")), free=False)

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """Return C = u v and S = (1 − u)(1 − v)."""
        u, _ = self._spread(u, v)
        return u.value * v.value, u.complement * v.complement

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """Return h(v given u) = v."""
        return self._spread(u, v)[1]

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """Return log c = 0."""
        return jnp.zeros_like(self._spread(u, v)[0].value)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """Return v = p."""
        return self.two_sided_conditional(u, p)

    def spearman(self) -> jax.Array:
        """Return Spearman's ρ = 0."""
        return self.tau()

    tail_dependence = no_tail_dependence

    def tau(self) -> jax.Array:
        """Return Kendall's τ = 0."""
        return jnp.zeros_like(jnp.asarray(self.placeholder))

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """Return independence for every τ, in the shape of τ."""
        return cls(jnp.ones_like(as_floats(tau)))

    def _spread(self, u: Unit, v: Unit) -> tuple[Unit, Unit]:
        """Broadcast u and v against each other and the batch."""
        shape = jnp.broadcast_shapes(*map(jnp.shape, (u.value, v.value, self.placeholder)))
        return jax.tree.map(lambda part: jnp.broadcast_to(part, shape), (u, v))


class Plackett(Exchangeable):
    """The Plackett copula: θ = C (1 − u − v + C) / ((u − C)(v − C)) everywhere, θ > 0; θ = 1 is independence.

    Plackett (1965), "A class of bivariate distributions".

    >>> round(float(Plackett(4.0).spearman()), 4)
    0.4344
    """

    theta: jax.Array | float = param(3.0, support=(1e-3, float("inf")))

    def cdf(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return C(u, v) = P(U ≤ u, V ≤ v), the smaller root of a quadratic equation."""
        u, v = clip_unit(u), clip_unit(v)
        a, root = jnp.asarray(self.theta) - 1, jnp.sqrt(self._discriminant(u, v))
        total = 1 + a * (u + v)
        positive = total > 0
        quotient = 2 * u * v * (a + 1) / jnp.where(positive, total + root, 1.0)
        return jnp.where(positive, quotient, (root - total) / jnp.where(positive, 1.0, -2 * a))

    def log_density(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return the log of θ (1 + (θ − 1)(u + v − 2 u v)) / root³."""
        beyond, theta = is_outside_square(u, v), jnp.asarray(self.theta)
        u, v = (jnp.where(beyond, 0.5, jnp.asarray(z)) for z in (u, v))
        # The same as 1 + (θ − 1)(…), with both terms positive.
        mixed = (u * v + (1 - u) * (1 - v)) + theta * (u * (1 - v) + v * (1 - u))
        inside = jnp.log(theta) + jnp.log(mixed) - 1.5 * jnp.log(self._discriminant(u, v))
        return jnp.where(beyond, -jnp.inf, inside)

    tail_dependence = no_tail_dependence

    def _discriminant(self, u: jax.Array, v: jax.Array) -> jax.Array:
        """Return the discriminant of the quadratic equation, (1 + (θ − 1)(u − v))² + 4 (θ − 1) v (1 − u)."""
        a = jnp.asarray(self.theta) - 1
        rounding = jnp.finfo(jnp.result_type(float)).tiny
        return jnp.maximum((1 + a * (u - v)) ** 2 + 4 * a * v * (1 - u), rounding)


class FGM(Exchangeable):
    """The Farlie–Gumbel–Morgenstern copula C(u, v) = u v (1 + θ (1 − u)(1 − v)), −1 ≤ θ ≤ 1; θ = 0 is independence.

    Nelsen (2006), example 3.12.

    >>> round(float(FGM(0.9).tau()), 4)
    0.2
    """

    theta: jax.Array | float = param(0.5, support=(-1.0, 1.0))

    def cdf(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return C(u, v) = P(U ≤ u, V ≤ v)."""
        u, v, theta = clip_unit(u), clip_unit(v), jnp.asarray(self.theta)
        return u * v * ((1 + theta) - theta * (u + v - u * v))  # at θ = −1 nothing cancels near (0, 0)

    def log_density(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return log c = log(1 + θ (1 − 2u)(1 − 2v))."""
        # Where c is small, it is 1 − |θ| + 2 |θ| (a + b − 2ab), of the distances a and b to the nearest corner.
        beyond, size = is_outside_square(u, v), jnp.abs(jnp.asarray(self.theta))
        u, v = (jnp.where(beyond, 0.5, jnp.asarray(z)) for z in (u, v))
        excess = self.theta * (1 - 2 * u) * (1 - 2 * v)
        a, b = jnp.minimum(u, 1 - u), jnp.minimum(v, 1 - v)
        small = excess < -0.5
        near = jnp.log(jnp.where(small, (1 - size) + 2 * size * (a + b - 2 * a * b), 1.0))
        return jnp.where(beyond, -jnp.inf, jnp.where(small, near, jnp.log1p(jnp.where(small, 0.0, excess))))

    def inverse_conditional(self, u: ArrayLike, p: ArrayLike) -> jax.Array:
        """Solve v + α v (1 − v) = p for v, with α = θ (1 − 2u)."""
        theta, u, p = jnp.asarray(self.theta), jnp.asarray(u), jnp.asarray(p)
        alpha, above = theta * (1 - 2 * u), (1 + theta) - 2 * theta * u  # 1 + α, which does not cancel
        square = above**2 - 4 * alpha * p
        root = jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))
        return jnp.minimum(2 * p / (above + root), 1.0)

    def spearman(self) -> jax.Array:
        """Return Spearman's ρ = θ/3."""
        return jnp.asarray(self.theta) / 3

    tail_dependence = no_tail_dependence

    def tau(self) -> jax.Array:
        """Return Kendall's τ = 2θ/9."""
        return 2 * jnp.asarray(self.theta) / 9


class BB1(ClosedForm):
    """The BB1 copula C(u, v) = (1 + ((u^{−θ} − 1)^δ + (v^{−θ} − 1)^δ)^{1/δ})^{−1/θ}, θ ≥ 0, δ ≥ 1.

    δ = 1 is Clayton's, θ = 0 is Gumbel's. Formulas are in log-space, with x = −log u and y = −log v. Let
    X = (e^{θx} − 1)/θ, Y = (e^{θy} − 1)/θ and W = (X^δ + Y^δ)^{1/δ}; then −log C = log(1 + θ W)/θ. Joe (2014),
    Dependence Modeling with Copulas, section 4.17.

    >>> float(BB1(2.0, 1.0).tau()), float(BB1(0.0, 2.0).tau())
    (0.5, 0.5)
    """

    theta: jax.Array | float = param(0.5, support=(0.0, float("inf")))
    delta: jax.Array | float = param(1.5, support=(1.0, float("inf")))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """Return C = u v e^g and S = (1 − u)(1 − v) + u v (e^g − 1), with g = x + y + log C."""
        return cdf_of_gain(u, v, self._by_size(u, v)[0])

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """Return h with log h = (1 + θ) log(C/u) − (δ − 1) log(W/X)."""
        theta, (x, log_x, _, log_y) = as_floats(self.theta), self._powers(u, v)
        by_x = softplus(self.delta * (log_y - log_x)) / self.delta
        return unit_from_log(-(1 + theta) * _fall(theta, x, log_x, by_x) - (self.delta - 1) * by_x)

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """Return log c = (1 + θ) g − (δ − 1) log(W²/(X Y)) − log W + log(δ − 1 + (1 + θ) W/(1 + θ W))."""
        gain, log_w, apart = self._by_size(u, v)
        theta, delta = as_floats(self.theta), as_floats(self.delta)
        share = jnp.exp(log_w - theta * _log1p_over(theta, log_w))  # W/(1 + θ W)
        return (1 + theta) * gain - (delta - 1) * apart - log_w + jnp.log(delta - 1 + (1 + theta) * share)

    def tail_dependence(self) -> TailDependence:
        """Return λ_L = 2^{−1/(θ δ)} and λ_U = 2 − 2^{1/δ}."""
        delta = jnp.asarray(self.delta)
        lower = clayton_lower_tail(jnp.asarray(self.theta) * delta)
        return TailDependence(lower, jnp.broadcast_to(2 - 2 ** (1 / delta), lower.shape))

    def tau(self) -> jax.Array:
        """Return Kendall's τ = 1 − 2/(δ (θ + 2))."""
        return 1 - 2 / (jnp.asarray(self.delta) * (jnp.asarray(self.theta) + 2))

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """Return the member with δ = 1 + θ/2 = (1 − τ)^{−1/2}; independence where τ ≤ 0.

        Each parameter then has half of the dependence.
        """
        delta = 1 / jnp.sqrt(1 - jnp.maximum(cls._clip_tau(tau), 0.0))
        return cls(2 * (delta - 1), delta)

    def _powers(self, u: Unit, v: Unit) -> tuple[jax.Array, ...]:
        """Return (x, log X, y, log Y)."""
        x, y, theta = -u.log, -v.log, as_floats(self.theta)
        return x, _log_expm1_over(theta, x, jnp.log(x)), y, _log_expm1_over(theta, y, jnp.log(y))

    def _by_size(self, u: Unit, v: Unit) -> tuple[jax.Array, ...]:
        """Return (g = x + y + log C, log W, log(W²/(X Y)))."""
        x, log_x, y, log_y = self._powers(u, v)
        theta, swap = as_floats(self.theta), x > y
        less, more, log_more = jnp.where(swap, y, x), jnp.where(swap, x, y), jnp.where(swap, log_x, log_y)
        apart = jnp.where(swap, log_x - log_y, log_y - log_x)
        growth = softplus(-self.delta * apart) / self.delta  # log(W/max(X, Y))
        return less - _fall(theta, more, log_more, growth), log_more + growth, apart + 2 * growth


def _fall(theta: jax.Array, x: jax.Array, log_x: jax.Array, growth: jax.Array) -> jax.Array:
    """Return log(u/C) = log(1 + θ X/(1 + θ X) (W/X − 1))/θ, for growth = log(W/X)."""
    # A growth of 0 has no logarithm.
    growth = jnp.maximum(growth, jnp.finfo(growth.dtype).tiny)
    return _log1p_over(theta, log_x - theta * x + growth + log1mexp(-growth))


class BB7(ClosedForm):
    """The BB7 copula C(u, v) = 1 − (1 − C′(1 − ū^θ, 1 − v̄^θ))^{1/θ}, θ ≥ 1, δ ≥ 0, with C′ Clayton's of δ.

    Here ū = 1 − u and v̄ = 1 − v. θ = 1 is Clayton's, δ = 0 is Joe's. Formulas are in log-space, with a = θ log ū and
    b = θ log v̄. Joe (2014), Dependence Modeling with Copulas, section 4.21.

    >>> round(float(BB7(1.0, 2.0).tau()), 4), round(float(BB7(2.0, 0.0).tau()), 4)
    (0.5, 0.3551)
    """

    theta: jax.Array | float = param(1.5, support=(1.0, float("inf")))
    delta: jax.Array | float = param(0.5, support=(0.0, float("inf")))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """Return C = 1 − s^{1/θ} and S = ū + v̄ − s^{1/θ}, with s = 1 − C′."""
        return cdf_of_s(self.theta, u, v, self._log_s, self._growth)

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """Return h with log h = (1 + δ) log(C′/(1 − ū^θ)) − (1 − 1/θ) log(s/ū^θ)."""
        a, b = self._logs(u, v)
        fall = _log1p_over(jnp.asarray(self.delta), self._log_odds(a, b))
        return unit_from_log(-(1 + self.delta) * fall - (1 - 1 / jnp.asarray(self.theta)) * self._growth(a, b))

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """Return log c = (1 − 1/θ)(a + b) + (1/θ − 2) log s + log(c′/(1 + δ)) + log(θ − 1 + (1 + θ δ) s).

        c′ is Clayton's density.
        """
        theta, (a, b) = as_floats(self.theta), self._logs(u, v)
        log_s = self._log_s(a, b)
        inner = Clayton(self.delta).two_sided_log_density(_turned(a), _turned(b)) - jnp.log1p(jnp.asarray(self.delta))
        last = jnp.log(theta - 1 + (1 + theta * self.delta) * jnp.exp(log_s))
        return (1 - 1 / theta) * (a + b) + (1 / theta - 2) * log_s + inner + last

    def tail_dependence(self) -> TailDependence:
        """Return λ_L = 2^{−1/δ} and λ_U = 2 − 2^{1/θ}."""
        upper = 2 - 2 ** (1 / jnp.asarray(self.theta))
        return TailDependence(*jnp.broadcast_arrays(clayton_lower_tail(self.delta), upper))

    def tau(self) -> jax.Array:
        """Return Kendall's τ = 1 − 4 ∫₀¹ z (1 − z^θ) (1 − (1 − z^θ)^δ)/(δ z^θ) dz / θ, from the generator."""
        node, weight = gauss_nodes()
        theta, delta = (as_floats(value)[..., None] for value in (self.theta, self.delta))
        power = jnp.exp(theta * jnp.log(node))  # z^θ
        tiny = power < 1e-9
        log_complement = jnp.log1p(-jnp.where(tiny, 0.5, power))
        # (1 − (1 − z^θ)^δ)/δ, or its limit at δ = 0.
        fall = -log_complement * jnp.exp(_log_expm1_over(delta, -log_complement, 0.0) + delta * log_complement)
        integrand = node * (1 - power) * jnp.where(tiny, 1.0, fall / jnp.where(tiny, 1.0, power))
        return 1 - 4 * (integrand @ weight) / jnp.asarray(self.theta)

    @classmethod
    def _other_parameters(cls, tau: jax.Array) -> dict[str, Any]:
        """Return δ of the Clayton copula with τ/2; `from_tau` then solves for θ."""
        half = jnp.maximum(tau, 0.0) / 2
        return {"delta": 2 * half / (1 - half)}

    def _logs(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        return self.theta * u.log_complement, self.theta * v.log_complement

    def _log_odds(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """Return log K, with K = ((1 − v̄^θ)^{−δ} − 1) (1 − ū^θ)^δ/δ: −log(C′/(1 − ū^θ)) is log(1 + δ K)/δ."""
        delta = as_floats(self.delta)
        return delta * log1mexp(a) + _log_expm1_over(delta, -log1mexp(b), _log_of_minus_log1mexp(b))

    def _growth(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """Return log(s/ū^θ) = log(1 + (1 − ū^θ)(1 − C′/(1 − ū^θ))/ū^θ)."""
        delta, log_k = as_floats(self.delta), self._log_odds(a, b)
        tiny = log_k < _MIN_LOG_K
        fall = _log1p_over(delta, jnp.where(tiny, 0.0, log_k))
        log_share = jnp.where(tiny, log_k - (1 + delta) / 2 * jnp.exp(jnp.where(tiny, log_k, 0.0)), log1mexp(-fall))
        return softplus(log1mexp(a) + log_share - a)

    def _log_s(self, a: jax.Array, b: jax.Array) -> jax.Array:
        below, _ = Clayton(self.delta).two_sided_cdf(_turned(a), _turned(b))
        near = below < 0.5
        far = jnp.maximum(a, b) + self._growth(jnp.maximum(a, b), jnp.minimum(a, b))
        return jnp.where(near, jnp.log1p(-jnp.where(near, below, 0.0)), far)


def _turned(a: jax.Array) -> Unit:
    """Return 1 − ū^θ with its complement, for a = θ log ū."""
    return Unit(-jnp.expm1(a), jnp.exp(a))


def _log_of_minus_log1mexp(b: jax.Array) -> jax.Array:
    """Return log(−log(1 − e^b)) for b < 0; it tends to b as b falls."""
    near = b < -1.0
    z = jnp.exp(jnp.where(near, b, -1.0))
    return jnp.where(near, b + jnp.log(log1p_ratio(-z)), jnp.log(-log1mexp(jnp.where(near, -0.5, b))))


def _log1p_over(theta: jax.Array, log_k: jax.Array) -> jax.Array:
    """Return log(1 + θ k)/θ for k = exp(log_k) and θ ≥ 0; k at θ = 0."""
    theta = as_floats(theta)
    log_y = jnp.log(jnp.maximum(theta, _MIN_THETA)) + log_k
    near = log_y < -1.0
    k = jnp.exp(jnp.where(near, log_k, 0.0))
    small = k * log1p_ratio(jnp.where(near, theta * k, 0.0))
    large = softplus(jnp.where(near, 0.0, log_y)) / jnp.where(near, 1.0, theta)
    return jnp.where(near, small, large)


def _log_expm1_over(theta: jax.Array, x: jax.Array, log_x: jax.Array | float) -> jax.Array:
    """Return log((e^{θx} − 1)/θ) for x ≥ 0 and θ ≥ 0; log x at θ = 0."""
    z = as_floats(theta) * x
    near = z < 0.5
    # (1 − e^{−z})/z, as its Taylor polynomial of degree 10.
    little = jnp.where(near, z, 0.0)
    ratio = jnp.ones_like(little)
    for power in range(11, 1, -1):
        ratio = 1 - little / power * ratio
    much = jnp.where(near, 1.0, z)
    small, far = jnp.exp(-much), jnp.log(much)
    log_ratio = jnp.where(near, jnp.log(ratio), log_of_pair(-jnp.expm1(-much), small) - far)
    return log_x + z + log_ratio


class Tawn(ClosedForm):
    """The Tawn copula C(u, v) = u^{1−α} v^{1−β} exp(−((−α log u)^θ + (−β log v)^θ)^{1/θ}), θ ≥ 1, 0 ≤ α, β ≤ 1.

    It is not exchangeable. α = β = 1 is Gumbel's; α = 0, β = 0 or θ = 1 is independence. Strong dependence is a ridge
    beside the diagonal, along v^β = u^α. Formulas are in log-space, with s = −α log u, t = −β log v, w = (s^θ +
    t^θ)^{1/θ}. Tawn (1988), Bivariate extreme value theory: models and estimation.

    >>> round(float(Tawn(3.0, 0.5, 0.9).tau()), 4), float(Tawn(2.0, 1.0, 1.0).tau())
    (0.3674, 0.5)
    """

    exchangeable: ClassVar[bool] = False

    theta: jax.Array | float = param(2.0, support=(1.0, float("inf")))
    alpha: jax.Array | float = param(0.7, support=(0.0, 1.0))
    beta: jax.Array | float = param(0.7, support=(0.0, 1.0))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """Return C = u v e^g and S = (1 − u)(1 − v) + u v (e^g − 1), with g = s + t − w."""
        return cdf_of_gain(u, v, self._by_size(u, v)[0])

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """Return h with log h = s − w + (1 − β) log v + log(1 − α + α (s/w)^{θ−1})."""
        _, _, by_s, by_t = self._by_size(u, v)
        s, t, shorter = -jnp.asarray(self.alpha) * u.log, -jnp.asarray(self.beta) * v.log, by_s < by_t
        growth = jnp.where(shorter, s, t) * jnp.expm1(jnp.where(shorter, by_s, by_t))  # w less the larger one
        rise = growth + jnp.where(shorter, 0.0, t - s)
        base, power = (1 - jnp.asarray(self.beta)) * v.log - rise, (self.theta - 1) * by_s
        log_h = base + _log_mixed(self.alpha, power)
        # At α = 1 the product has a slope in α even if (s/w)^{θ−1} underflows; its logarithm has none.
        h = jnp.exp(base) * (1 - self.alpha + self.alpha * jnp.exp(-power))
        high = log_h > -1.0
        above = -jnp.expm1(jnp.where(high, log_h, -1.0))
        return Unit(jnp.where(h > 1, 1.0, h), jnp.where(above < 0, 0.0, jnp.where(high, above, 1 - h)))

    def two_sided_conditional_on_v(self, u: Unit, v: Unit) -> Unit:
        """Return ∂C/∂v, by exchanging α with β and u with v."""
        return Tawn(self.theta, self.beta, self.alpha).two_sided_conditional(v, u)

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """Return log c = g + log(A B + (θ − 1) α β (s t / w²)^{θ−1} / w).

        A = 1 − α + α (s/w)^{θ−1}, and B = 1 − β + β (t/w)^{θ−1}.
        """
        gain, log_w, by_s, by_t = self._by_size(u, v)
        powers = (self.theta - 1) * by_s, (self.theta - 1) * by_t
        apart = _log_mixed(self.alpha, powers[0]) + _log_mixed(self.beta, powers[1])
        together = _log(self.alpha) + _log(self.beta) - powers[0] - powers[1] - log_w
        return gain + apart + jnp.log1p((self.theta - 1) * jnp.exp(together - apart))

    def tail_dependence(self) -> TailDependence:
        """Return λ_L = 0 and λ_U = α + β − (α^θ + β^θ)^{1/θ}."""
        theta, alpha, beta = self._arrays()
        less, more = jnp.minimum(alpha, beta), jnp.maximum(alpha, beta)
        upper = less - more * jnp.expm1(softplus(theta * (_log(less) - _log(more))) / theta)
        return TailDependence(jnp.zeros_like(upper), upper)

    def tau(self) -> jax.Array:
        """Return Kendall's τ = (1 − 1/θ) ∫₀¹ dp / (1 + (1/α − 1)(1 − p)^{1/θ} + (1/β − 1) p^{1/θ}).

        It follows from ∫ t (1 − t) A″/A dt for C = exp(−(x + y) A(y/(x + y))) (Ghoudi, Khoudraji & Rivest 1998), by
        substituting p = t^θ/(s^θ + t^θ).
        """
        node, weight = gauss_nodes()
        theta, alpha, beta = (value[..., None] for value in self._arrays())
        below = (1 - alpha) * beta * (1 - node) ** (1 / theta) + (1 - beta) * alpha * node ** (1 / theta)
        return (1 - 1 / theta[..., 0]) * (divide(alpha * beta, alpha * beta + below) @ weight)

    @classmethod
    def _other_parameters(cls, tau: jax.Array) -> dict[str, Any]:
        """Return α = β such that the largest τ, α/(2 − α) at θ = ∞, is (1 + τ)/2."""
        tau = jnp.maximum(tau, 0.0)
        share = 2 * (1 + tau) / (3 + tau)
        return {"alpha": share, "beta": share}

    def _arrays(self) -> list[jax.Array]:
        return [as_floats(value) for value in (self.theta, self.alpha, self.beta)]

    def _by_size(self, u: Unit, v: Unit) -> tuple[jax.Array, ...]:
        """Return (g = s + t − w, log w, log(w/s), log(w/t))."""
        log_s, log_t = _log(self.alpha) + jnp.log(-u.log), _log(self.beta) + jnp.log(-v.log)
        s, t = -jnp.asarray(self.alpha) * u.log, -jnp.asarray(self.beta) * v.log
        swap = log_s > log_t
        less, more = jnp.where(swap, t, s), jnp.where(swap, s, t)
        apart = jnp.where(swap, log_s - log_t, log_t - log_s)
        growth = softplus(-self.theta * apart) / self.theta  # log(w/max(s, t))
        by_s, by_t = growth + jnp.where(swap, 0.0, apart), growth + jnp.where(swap, apart, 0.0)
        return less - more * jnp.expm1(growth), jnp.where(swap, log_s, log_t) + growth, by_s, by_t


def _log(share: jax.Array | float) -> jax.Array:
    """Return the log of a share, with 0 replaced by the smallest number."""
    share = as_floats(share)
    return jnp.log(jnp.maximum(share, jnp.finfo(share.dtype).tiny))


def _log_mixed(share: jax.Array | float, k: jax.Array) -> jax.Array:
    """Return log(1 − α + α e^{−k}) for k ≥ 0, finite at α = 1 even if e^{−k} underflows."""
    complement = 1 - as_floats(share)
    far = -0.9 * float(np.log(jnp.finfo(complement.dtype).tiny))
    near = jnp.log(complement + share * jnp.exp(-jnp.minimum(k, far)))
    mixed_in = _log(share) - jnp.maximum(k, far)
    mixed = jnp.where(
        complement > 0, jnp.logaddexp(jnp.log(jnp.where(complement > 0, complement, 1.0)), mixed_in), mixed_in
    )
    return jnp.where(k < far, near, mixed)
