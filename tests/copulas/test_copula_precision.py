"""Digits that formulas must keep: logarithms near 1, Student's t beside u + v = 1, many points, small differences."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.own_families import Joe90
from tiers import thorough

from rcjax._core.numerics import log1p_ratio, log_of_pair
from rcjax.copulas import FGM, NegativeClayton, StudentT

pytestmark = pytest.mark.usefixtures("float64")
#: (u, v, ρ, ν, C) by mpmath with 30 digits. Where C is all but u, 80 nodes went past it.
BESIDE = np.array([
    (1e-6, 0.9999989899999999, 0.6, 2.0, 9.5927876595412412e-7),
    (1e-3, 0.998999999, 0.3, 10.0, 0.00099673917592552293),
    (0.45, 0.54999999955, 0.8, 10.0, 0.38980629813779298),
])  # fmt: skip


def test_log_densities_are_exact_to_rounding():
    complement = np.concatenate([10.0 ** -np.arange(1, 60, 3), np.linspace(0.05, 0.95, 19)])
    y = np.concatenate([np.linspace(-0.5, 1, 31), 10.0 ** -np.arange(1, 300, 30), -(10.0 ** -np.arange(1, 300, 30))])
    with mp.workdps(400):
        logs = np.array([float(mp.log1p(-mp.mpf(c))) for c in complement])
        ratios = np.array([1.0 if z == 0 else float(mp.log1p(mp.mpf(z)) / mp.mpf(z)) for z in y.tolist()])
    np.testing.assert_allclose(jax.jit(log_of_pair)(1 - complement, complement), logs, rtol=6e-16)
    np.testing.assert_allclose(jax.jit(log1p_ratio)(y), ratios, rtol=6e-16)


@pytest.mark.thorough
def test_students_cdf_is_right_beside_the_line_where_its_integrand_is_a_spike():
    u, v, rho, df, expected = BESIDE.T
    np.testing.assert_allclose(jax.jit(StudentT.cdf)(StudentT(rho, df), u, v), expected, rtol=1e-11)
    assert np.all(jax.jit(StudentT.cdf)(StudentT(0.9, 40.0), 0.001, np.linspace(0.99, 0.999, 999)) <= 0.001)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "method", thorough(["conditional", "inverse_conditional", "log_density"], lambda name: name == "log_density")
)
def test_many_points_at_once_match_few_points(method):
    call = jax.jit(lambda df, u, v: getattr(StudentT(0.6, df), method)(u, v))
    df = jnp.array([1.0, 2.5, 30.0, 5000.0])
    u, v = (10.0 ** -np.linspace(0.01, 12, 61))[:, None], np.linspace(0.01, 0.99, 61)[:, None]
    many = call(df, u, v)
    few = np.stack([call(df, u[at], v[at]) for at in range(len(u))])
    np.testing.assert_allclose(many, few, rtol=1e-11, atol=1e-12)


def test_fgm_keeps_its_digits_where_its_density_is_0():
    u, v = np.array([1e-12, 1e-9, 0.3, 1 - 2.0**-40]), np.array([3e-13, 0.7, 1e-12, 1 - 2.0**-40])
    with mp.workdps(60):
        pairs = [(mp.mpf(a), mp.mpf(b)) for a, b in zip(u.tolist(), v.tolist(), strict=True)]
        cdf = [float(a * b * (a + b - a * b)) for a, b in pairs]
        conditional = [float(b * (2 * a + b - 2 * a * b)) for a, b in pairs]
        density = [float(2 * (a + b - 2 * a * b)) for a, b in pairs]

    @jax.jit
    def methods(copula):
        back = copula.conditional(u, copula.inverse_conditional(u, v))
        return copula.cdf(u, v), copula.conditional(u, v), copula.pdf(u, v), back

    for ours, expected in zip(methods(FGM(-1.0)), (cdf, conditional, density, v), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-14)
    np.testing.assert_allclose(jax.grad(FGM.log_density)(FGM(0.0), 0.2, 0.3).theta, 0.24, rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_negative_dependence_errs_by_a_rounding_of_the_smaller_rank(dtype):
    """C = v − C′ = u − S′ of the family that is turned: the other difference lost all digits of 7.5e-25."""
    u, v = np.array([1e-12, 1e-6, 1e-6, 0.5], dtype), np.array([0.5, 3e-7, 0.9, 1e-12], dtype)
    with mp.workdps(80):
        pairs = [(mp.mpf(a), mp.mpf(b)) for a, b in zip(u.tolist(), v.tolist(), strict=True)]
        joe = [float(b - 1 + mp.sqrt(a**2 + (1 - b) ** 2 - a**2 * (1 - b) ** 2)) for a, b in pairs]
        clayton = [float(b - 1 / mp.sqrt((1 - a) ** -2 + b**-2 - 1)) for a, b in pairs]
    for family, expected in ((Joe90, joe), (NegativeClayton, clayton)):
        result = np.asarray(jax.jit(family.cdf)(family(dtype(2.0)), u, v), float)
        assert (result >= 0).all()
        assert (np.abs(result - expected) <= 4 * np.finfo(dtype).eps * np.minimum(u, v)).all(), (
            family,
            result,
            expected,
        )
