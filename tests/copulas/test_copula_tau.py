"""Kendall's τ, its inverse, and tail dependence."""

# Parameters are annotated as arrays, and a rotation has those of its family, which a type checker cannot see.
# pyright: reportArgumentType=false, reportCallIssue=false

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from own_families import FGM, Clayton90, Clayton270
from tiers import thorough

from rcjax.copulas import (
    Clayton,
    Copula,
    Frank,
    Gaussian,
    Gumbel,
    Independence,
    Joe,
    StudentT,
    SurvivalClayton,
    SurvivalGumbel,
    SurvivalJoe,
)

pytestmark = pytest.mark.usefixtures("float64")


POSITIVE = (Gumbel, SurvivalGumbel, Clayton, SurvivalClayton, Joe, SurvivalJoe)
NEGATIVE = (Clayton90, Clayton270)
BOTH_SIGNS = (Frank, Gaussian, StudentT)
DEFINED = (Gumbel(3.0), Clayton(0.7), Frank(-6.0), Joe(1.8), Gaussian(-0.4), StudentT(0.6, 3.0))


@functools.cache
def program(method):
    return jax.jit(getattr(Copula, method))


def derived(method, copula):
    """What the base class makes of the cdf, whatever closed form the family has."""
    return program(method)(copula)


def debye_tau(theta):
    mean, _ = scipy.integrate.quad(lambda t: t / np.expm1(t) if t else 1.0, 0, theta, epsabs=1e-13)
    return 1 - 4 / theta * (1 - mean / theta)


def joe_tau(theta, terms=200_000):
    k = np.arange(1, terms + 1)
    # What is left out is that of 1/(θ² k³), summed by its integral.
    rest = 1 / (2 * theta**2 * (terms + 0.5) ** 2)
    return 1 - 4 * (np.sum(1 / (k * (theta * k + 2) * (theta * (k - 1) + 2))) + rest)


@pytest.mark.parametrize("theta", [1e-3, 0.5, 5.0, 35.0, 200.0, -4.0])
def test_franks_tau_is_debyes(theta):
    # 1 − 4/θ (1 − D) cancels by 1/θ for small θ.
    size = 1e-12 / min(abs(theta), 1.0) ** 2
    assert abs(float(Frank(theta).tau()) - np.sign(theta) * debye_tau(abs(theta))) <= 10 * size


@pytest.mark.parametrize("theta", [1.0, 1.3, 1.999, 2.0, 2.001, 7.0, 40.0, 98.0])
def test_joes_tau_is_its_series(theta):
    assert abs(float(Joe(theta).tau()) - joe_tau(theta)) <= 1e-11


@pytest.mark.parametrize("copula", thorough(DEFINED, lambda copula: isinstance(copula, StudentT)), ids=str)
def test_tau_is_four_times_the_mean_of_the_cdf_less_one(copula):
    # The base class's quadrature over u and p: 2e-4 where C bends in the corners.
    np.testing.assert_allclose(derived("tau", copula), copula.tau(), atol=2e-4)


@pytest.mark.parametrize("cls", [*POSITIVE, *BOTH_SIGNS, *NEGATIVE])
def test_from_tau_is_the_inverse_of_tau(cls):
    taus = np.array([0.0, 0.02, 0.3, 0.5, 0.75, 0.9, 0.98])
    if cls in NEGATIVE:
        taus = -taus
    if cls in BOTH_SIGNS:
        taus = np.concatenate([-taus[1:], taus])
    there_and_back = jax.jit(lambda taus: cls.from_tau(taus).tau())
    np.testing.assert_allclose(there_and_back(taus), taus, atol=1e-10)
    # A grid of any shape, and a plain number.
    assert jax.eval_shape(there_and_back, taus.reshape(1, -1)).shape == (1, len(taus))
    np.testing.assert_allclose(cls.from_tau(float(taus[3])).tau(), taus[3], atol=1e-10)


@pytest.mark.parametrize("cls", [*POSITIVE, *BOTH_SIGNS, *NEGATIVE])
def test_from_tau_holds_what_is_out_of_reach(cls):
    low, high = map(float, jax.jit(lambda taus: cls.from_tau(taus).tau())(jnp.array([-1.0, 1.0])))
    assert low == pytest.approx(0.0 if cls in POSITIVE else -0.98, abs=1e-10)
    assert high == pytest.approx(0.0 if cls in NEGATIVE else 0.98, abs=1e-10)


@pytest.mark.parametrize("cls", [*POSITIVE, *NEGATIVE])
def test_a_tau_of_the_other_sign_gives_independence(cls):
    sign = 1 if cls in NEGATIVE else -1
    u, v = np.array([0.1, 0.4, 0.9]), np.array([0.3, 0.4, 0.2])
    for tau in (0.0, 0.3 * sign):
        np.testing.assert_allclose(cls.from_tau(tau).cdf(u, v), u * v, atol=1e-9)


def test_from_tau_has_the_known_parameters():
    taus = jnp.array([-1.0, 0.5, 0.75, 0.98])
    np.testing.assert_allclose(Gumbel.from_tau(taus).theta, [1, 2, 4, 50], rtol=1e-12)
    np.testing.assert_allclose(SurvivalClayton.from_tau(taus).theta, [0, 2, 6, 98], rtol=1e-12)
    np.testing.assert_allclose(Gaussian.from_tau(1 / 3).rho, 0.5, rtol=1e-12)
    np.testing.assert_allclose(StudentT.from_tau(-1 / 3).rho, -0.5, rtol=1e-12)
    np.testing.assert_array_equal(StudentT.from_tau(jnp.array([0.1, 0.2])).df, [4.0, 4.0])
    np.testing.assert_array_equal(Independence.from_tau(taus).tau(), np.zeros(4))


@pytest.mark.parametrize("cls", [*POSITIVE, *BOTH_SIGNS, *NEGATIVE])
def test_the_gradient_of_from_tau_is_one_over_the_slope_of_tau(cls):
    taus = np.array([0.2, 0.5, 0.9]) * (-1 if cls in NEGATIVE else 1)
    name = next(iter(cls.supports))

    def parameter(tau):
        return getattr(cls.from_tau(tau), name)

    found = np.asarray(jax.jit(jax.vmap(jax.grad(parameter)))(taus))
    step = 1e-6
    many = jax.jit(jax.vmap(parameter))
    np.testing.assert_allclose(found, (many(taus + step) - many(taus - step)) / (2 * step), rtol=1e-6)


def test_tails_have_the_known_values():
    theta = jnp.array([1.0, 2.0, 50.0])
    root = 2 - 2 ** (1 / np.array([1.0, 2.0, 50.0]))
    for family, lower, upper in (
        (Gumbel(theta), 0, root),
        (SurvivalGumbel(theta), root, 0),
        (Joe(theta), 0, root),
        (SurvivalJoe(theta), root, 0),
        (Clayton(theta), 2.0 ** -np.array([1, 0.5, 0.02]), 0),
        (SurvivalClayton(theta), 0, 2.0 ** -np.array([1, 0.5, 0.02])),
        (Clayton90(theta), 0, 0),
        (Frank(theta), 0, 0),
        (Gaussian(theta / 60), 0, 0),
        (Independence(theta), 0, 0),
    ):
        found = family.tail_dependence()
        np.testing.assert_allclose(found[0], np.broadcast_to(lower, 3), atol=1e-15)
        np.testing.assert_allclose(found[1], np.broadcast_to(upper, 3), atol=1e-15)
    assert [float(tail) for tail in Clayton(0.0).tail_dependence()] == [0.0, 0.0]
    assert [float(tail) for tail in Gaussian(1.0).tail_dependence()] == [1.0, 1.0]
    # Demarta & McNeil (2005), table 1.
    for rho, df, expected in ((0.5, 4.0, 0.25), (0.9, 4.0, 0.63), (0.0, 4.0, 0.08), (0.5, 10.0, 0.08)):
        lower, upper = StudentT(rho, df).tail_dependence()
        assert lower == upper == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(
    ("copula", "side"),
    [
        (Gumbel(2.0), 1),
        (SurvivalGumbel(3.0), 0),
        (Clayton(2.0), 0),
        (Clayton(2.0), 1),
        (SurvivalJoe(2.5), 0),
        (SurvivalJoe(2.5), 1),
        (Frank(4.0), 0),
        (FGM(0.8), 1),
        pytest.param(StudentT(0.5, 2.0), 0, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_the_tails_are_the_slope_of_the_diagonal(copula, side):
    # The base class takes the slope at √eps = 1e-8 of either end, where these are as near to their limits. Others
    # are slow to reach them: Gumbel's lower tail at θ = 2 has a slope of 8e-4 there, and its limit is 0.
    found = derived("tail_dependence", copula)[side]
    np.testing.assert_allclose(found, copula.tail_dependence()[side], atol=1e-6)
