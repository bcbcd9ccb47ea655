"""Every family at the ends of its parameters and just beside them, values and slopes, against mpmath's digits."""

# Parameters are annotated as arrays, and a rotation has those of its family, which a type checker cannot see.
# pyright: reportArgumentType=false, reportCallIssue=false

import itertools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rcjax.copulas import (
    BB1,
    BB7,
    Clayton,
    Frank,
    Gaussian,
    Gumbel,
    Joe,
    StudentT,
    SurvivalClayton,
    SurvivalGumbel,
    SurvivalJoe,
    Tawn,
)

METHODS = ("cdf", "conditional", "log_density", "inverse_conditional")
BESIDE = (1e-12, 1e-9, 1e-6)
#: The largest z of `rcjax.model.maximum_likelihood` is 300, that of a correlation 12.
FARTHEST, RHO = 301.0, float(1 - 2 / (1 + np.exp(12)))
ONE = (1.0, *(1 + step for step in BESIDE), 50.0, FARTHEST)
ZERO = (0.0, *BESIDE, 98.0, FARTHEST)
BOTH = (0.0, *BESIDE, *(-step for step in BESIDE), -12.0, 198.0, 300.0)
TWO_TAILS = (*itertools.product((0.0, 1e-9, 0.5, 98.0), (1.0, 1 + 1e-9, 2.0)), (0.5, 50.0), (FARTHEST, 50.0))
SIDES = (
    *((theta, alpha, beta) for theta in (1.0, 1 + 1e-9, 50.0) for alpha, beta in ((0.3, 0.9), (1.0, 0.5), (1.0, 1.0))),
    *((3.0, 0.0, 0.7), (3.0, 1.0, 0.0), (FARTHEST, 0.7, 0.6)),
)
CORRELATIONS = (0.0, *BESIDE, -RHO, -0.9995, 0.9995, RHO)


class Textbook:
    """C, h = ∂C/∂u and c as books print them (Nelsen 2006; Joe 2014), for mpmath's numbers."""

    def __init__(self, cdf, conditional, density):
        self.cdf, self.conditional, self.density = cdf, conditional, density

    def log_density(self, u, v, *parameters):
        return mp.log(self.density(u, v, *parameters))

    @property
    def survival(self):
        """Of (1 − U, 1 − V)."""
        return Textbook(
            lambda u, v, *p: u + v - 1 + self.cdf(1 - u, 1 - v, *p),
            lambda u, v, *p: 1 - self.conditional(1 - u, 1 - v, *p),
            lambda u, v, *p: self.density(1 - u, 1 - v, *p),
        )

    def inverse(self, u, p, parameters, near):
        """(v with h(v given u) = p, its slopes in u, in p and in the parameters)."""
        v, below, above = mp.mpf(near), mp.mpf(0), mp.mpf(1)
        for _ in range(100):
            short = p - self.conditional(u, v, *parameters)
            below, above = (v, above) if short > 0 else (below, v)
            newer = v + short / self.density(u, v, *parameters)
            v, before = newer if below < newer < above else (below + above) / 2, v
            if abs(v - before) < mp.mpf(10) ** (-0.4 * mp.mp.dps):
                break
        density = self.density(u, v, *parameters)
        arguments = (u, v, *parameters)
        slopes = [partial_slope(self.conditional, arguments, place) for place in range(len(arguments))]
        return [v, -slopes[0] / density, 1 / density, *(-slope / density for slope in slopes[2:])]


def partial_slope(function, arguments, place):
    return mp.diff(lambda x: function(*arguments[:place], x, *arguments[place + 1 :]), arguments[place])


def _sum(u, v, t):
    return u**-t + v**-t - 1


def _logs(u, v, t):
    x, y = -mp.log(u), -mp.log(v)
    return x, y, (x**t + y**t) ** (1 / t)


def _powers(u, v, t):
    a, b = (1 - u) ** t, (1 - v) ** t
    return a, b, a + b - a * b


def _gumbel_density(u, v, t):
    x, y, w = _logs(u, v, t)
    return mp.exp(-w) / (u * v) * (x * y) ** (t - 1) * w ** (1 - 2 * t) * (w + t - 1)


def _joe_density(u, v, t):
    a, b, s = _powers(u, v, t)
    return s ** (1 / t - 2) * (a * b) ** (1 - 1 / t) * (t - 1 + s)


def _bb1(u, v, t, d):
    a, b = u**-t - 1, v**-t - 1
    return a, b, (a**d + b**d) ** (1 / d)


def _bb1_density(u, v, t, d):
    a, b, w = _bb1(u, v, t, d)
    head = (1 + w) ** (-1 / t - 2) * w ** (1 - 2 * d) * (t * (d - 1) + (t * d + 1) * w)
    return head * (a * b) ** (d - 1) * (u * v) ** (-t - 1)


def _bb7(u, v, t, d):
    a, b = 1 - (1 - u) ** t, 1 - (1 - v) ** t
    return a, b, (a**-d + b**-d - 1) ** (-1 / d)


def _bb7_density(u, v, t, d):
    a, b, z = _bb7(u, v, t, d)
    tail = (a * b) ** (-1 - d) * ((1 - u) * (1 - v)) ** (t - 1) * (t - 1 + (1 + t * d) * (1 - z))
    return (1 - z) ** (1 / t - 2) * z ** (1 + 2 * d) * tail


def _tawn(u, v, t, a, b):
    """C, and the slopes of −log C in −log u, in −log v and in both."""
    x, y = -mp.log(u), -mp.log(v)
    w = ((a * x) ** t + (b * y) ** t) ** (1 / t)
    by_x = 1 - a + a * (a * x / w) ** (t - 1)
    by_y = 1 - b + b * (b * y / w) ** (t - 1)
    both = (1 - t) * a * b * (a * x * b * y / w**2) ** (t - 1) / w
    return mp.exp(-(1 - a) * x - (1 - b) * y - w), by_x, by_y, both


def _frank_sum(u, v, t):
    return mp.expm1(-t) + mp.expm1(-t * u) * mp.expm1(-t * v)


CLAYTON = Textbook(
    lambda u, v, t: _sum(u, v, t) ** (-1 / t),
    lambda u, v, t: u ** (-t - 1) * _sum(u, v, t) ** (-1 / t - 1),
    lambda u, v, t: (1 + t) * (u * v) ** (-t - 1) * _sum(u, v, t) ** (-1 / t - 2),
)
GUMBEL = Textbook(
    lambda u, v, t: mp.exp(-_logs(u, v, t)[2]),
    lambda u, v, t: mp.exp(-_logs(u, v, t)[2]) / u * (_logs(u, v, t)[2] / _logs(u, v, t)[0]) ** (1 - t),
    _gumbel_density,
)
JOE = Textbook(
    lambda u, v, t: 1 - _powers(u, v, t)[2] ** (1 / t),
    lambda u, v, t: _powers(u, v, t)[2] ** (1 / t - 1) * (1 - u) ** (t - 1) * (1 - (1 - v) ** t),
    _joe_density,
)
BB1_BOOK = Textbook(
    lambda u, v, t, d: (1 + _bb1(u, v, t, d)[2]) ** (-1 / t),
    lambda u, v, t, d: (
        (1 + _bb1(u, v, t, d)[2]) ** (-1 / t - 1)
        * (_bb1(u, v, t, d)[0] / _bb1(u, v, t, d)[2]) ** (d - 1)
        * u ** (-t - 1)
    ),
    _bb1_density,
)
BB7_BOOK = Textbook(
    lambda u, v, t, d: 1 - (1 - _bb7(u, v, t, d)[2]) ** (1 / t),
    lambda u, v, t, d: (
        (_bb7(u, v, t, d)[2] / _bb7(u, v, t, d)[0]) ** (1 + d)
        * (1 - _bb7(u, v, t, d)[2]) ** (1 / t - 1)
        * (1 - u) ** (t - 1)
    ),
    _bb7_density,
)
TAWN_BOOK = Textbook(
    lambda *at: _tawn(*at)[0],
    lambda u, *at: _tawn(u, *at)[0] * _tawn(u, *at)[1] / u,
    lambda u, v, *at: _tawn(u, v, *at)[0] * (_tawn(u, v, *at)[1] * _tawn(u, v, *at)[2] - _tawn(u, v, *at)[3]) / (u * v),
)
FRANK = Textbook(
    lambda u, v, t: -mp.log(_frank_sum(u, v, t) / mp.expm1(-t)) / t,
    lambda u, v, t: mp.exp(-t * u) * mp.expm1(-t * v) / _frank_sum(u, v, t),
    lambda u, v, t: -t * mp.expm1(-t) * mp.exp(-t * (u + v)) / _frank_sum(u, v, t) ** 2,
)


def _normal_score(u):
    return mp.sqrt(2) * mp.erfinv(2 * u - 1)


def _normal_conditional(u, v, r):
    return mp.ncdf((_normal_score(v) - r * _normal_score(u)) / mp.sqrt(1 - r * r))


def _normal_density(u, v, r):
    x, y = _normal_score(u), _normal_score(v)
    return mp.exp(-(r * r * (x * x + y * y) - 2 * r * x * y) / (2 * (1 - r * r))) / mp.sqrt(1 - r * r)


#: Its cdf is an integral, which `test_copula_references` looks at.
GAUSSIAN = Textbook(None, _normal_conditional, _normal_density)

#: (family, its textbook, parameters).
FAMILIES = {
    "clayton": (Clayton, CLAYTON, ZERO),
    "survival clayton": (SurvivalClayton, CLAYTON.survival, ZERO),
    "gumbel": (Gumbel, GUMBEL, ONE),
    "survival gumbel": (SurvivalGumbel, GUMBEL.survival, ONE),
    "frank": (Frank, FRANK, BOTH),
    "joe": (Joe, JOE, ONE),
    "survival joe": (SurvivalJoe, JOE.survival, ONE),
    "bb1": (BB1, BB1_BOOK, TWO_TAILS),
    "bb7": (BB7, BB7_BOOK, [(delta, theta) for theta, delta in TWO_TAILS]),
    "tawn": (Tawn, TAWN_BOOK, SIDES),
    "gaussian": (Gaussian, GAUSSIAN, CORRELATIONS),
}
PLACES = (1e-6, 0.05, 0.5, 0.93, 1 - 1e-4)


def expected(textbook, method, point, near):
    """[value, slope in u, in v (in p, of the inverse), in each parameter], in mpmath's digits; None where unknown."""
    u, v, *parameters = (mp.mpf(float(x)) for x in point)
    if textbook.cdf is not None:
        # Books divide by θ: what so little beside 0 changes is no digit of ours.
        parameters = [mp.mpf(10) ** (-mp.mp.dps // 3) if parameter == 0 else parameter for parameter in parameters]
    if method == "inverse_conditional":
        return textbook.inverse(u, v, parameters, near) if 0 < near < 1 else None
    function = getattr(textbook, method)
    if function is None:
        return None
    arguments = (u, v, *parameters)
    return [function(*arguments), *(partial_slope(function, arguments, place) for place in range(len(arguments)))]


def values_and_slopes(family, count):
    """All methods at once, {method: (value, slopes)}: one programme for each family."""

    def call(*arguments):
        def values(u, v, *parameters):
            copula = family(*parameters)
            return jnp.stack([getattr(copula, method)(u, v) for method in METHODS])

        return values(*arguments), jax.jacfwd(values, tuple(range(count)))(*arguments)

    return jax.jit(jax.vmap(call))


def misses_of(name, digits):
    """What is off by more than rounding allows, in words."""
    family, textbook, parameters = FAMILIES[name]
    parameters = [parameter if isinstance(parameter, tuple) else (parameter,) for parameter in parameters]
    kind = np.dtype(jnp.result_type(float)).type
    points = [tuple(map(kind, (u, v, *p))) for p in parameters for u, v in itertools.product(PLACES, PLACES)]
    columns = map(np.array, zip(*points, strict=True))
    values, slopes = values_and_slopes(family, len(points[0]))(*columns)
    table = np.concatenate([np.asarray(values)[..., None], np.stack(slopes, axis=-1)], axis=-1, dtype=float)
    misses = []
    with mp.workdps(digits):
        for point, got in zip(points, table, strict=True):
            for method, row in zip(METHODS, got, strict=True):
                truth = expected(textbook, method, point, float(row[0]))
                misses += [] if truth is None else off(method, point, row, [float(x) for x in truth])
    return misses


def off(method, point, got, truth):
    """A line for each of a row's figures that is off.

    A rounding of an argument moves a figure by its slope, and a rounding of a slope's is that of the value over the
    distance that its argument may move by.
    """
    eps = float(jnp.finfo(jnp.result_type(float)).eps)
    lines = []
    u, v, *parameters = map(float, point)
    moves = [min(u, 1 - u), min(v, 1 - v), *(max(1.0, abs(p)) for p in parameters)]
    size = abs(truth[0]) if method == "log_density" else min(1.0, abs(truth[0]))
    rounding = size + 1e-3 + sum(abs(s) * m for s, m in zip(truth[1:], moves, strict=True))
    for number, (ours, right) in enumerate(zip(got, truth, strict=True)):
        if abs(right) > float(jnp.finfo(jnp.result_type(float)).max):
            continue  # no number of this type is near it
        scale = rounding / (1 if number == 0 else moves[number - 1])
        if not abs(ours - right) <= 1e5 * eps * (abs(right) + scale):
            what = ["value", "slope in u", "slope in v", *(f"slope in parameter {n}" for n in range(3))][number]
            at = ", ".join(f"{float(x):.17g}" for x in point)
            lines.append(f"{method}, {what} at ({at}): {ours:.12g} and not {right:.12g}")
    return lines


@pytest.mark.thorough
@pytest.mark.parametrize("wide", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("name", FAMILIES)
def test_values_and_slopes_at_the_limits_are_right(name, wide):
    with jax.enable_x64(wide):
        misses = misses_of(name, 40 if FAMILIES[name][1].cdf is None else 320)
    assert not misses, "\n".join(misses)


@pytest.mark.thorough
@pytest.mark.parametrize("wide", [pytest.param(True, marks=pytest.mark.thorough), False], ids=["float64", "float32"])
def test_students_quantile_is_zero_at_the_median(wide):
    with jax.enable_x64(wide):
        slope = float(jax.grad(lambda rho: StudentT(rho, 4.0).conditional(0.5, 0.5))(-0.99998772))
    assert slope == 0


@pytest.mark.thorough
@pytest.mark.usefixtures("float64")
def test_rounding_does_not_lead_out_of_the_unit_interval():
    assert float(SurvivalGumbel(1.0).cdf(0.0, 1e-30)) >= 0
    assert float(SurvivalJoe(1.0).cdf(0.0, 1e-30)) >= 0
    assert float(Frank.from_tau(-0.5).inverse_conditional(0.0, 1.0)) <= 1
    assert 0.999 < float(Gumbel(FARTHEST).spearman()) <= 1


@pytest.mark.thorough
@pytest.mark.usefixtures("float64")
def test_at_perfect_correlation_the_tail_of_students_copula_does_not_depend_on_the_degrees_of_freedom():
    slope = jax.grad(lambda df: StudentT(1.0, df).tail_dependence().lower)(4.0)
    assert abs(float(slope)) < 1e-12


@pytest.mark.thorough
def test_the_slopes_of_franks_tau_stay_finite_in_single_precision():
    theta = jnp.asarray([-FARTHEST, -198.0, 198.0, FARTHEST], jnp.float32)
    slopes = jax.vmap(jax.grad(lambda theta: Frank(theta).tau()))(theta)
    np.testing.assert_allclose(slopes, 4 / theta**2, rtol=0.05)  # τ is near 1 − 4/|θ|
