"""Kendall's τ and its inverse."""

# Parameters are annotated as arrays, and a rotation has those of its family, which a type checker cannot see.
# pyright: reportArgumentType=false, reportCallIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from helpers.own_families import Clayton90, Clayton270
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


def debye_tau(theta):
    mean, _ = scipy.integrate.quad(lambda t: t / np.expm1(t) if t else 1.0, 0, theta, epsabs=1e-13)
    return 1 - 4 / theta * (1 - mean / theta)


def joe_tau(theta, terms=200_000):
    k = np.arange(1, terms + 1)
    # What is left out is that of 1/(θ² k³), summed by its integral.
    rest = 1 / (2 * theta**2 * (terms + 0.5) ** 2)
    return 1 - 4 * (np.sum(1 / (k * (theta * k + 2) * (theta * (k - 1) + 2))) + rest)


def test_tau_of_frank_and_joe_matches_debyes_function_and_a_series():
    for theta in (1e-3, 0.5, 5.0, 35.0, 200.0, -4.0):
        # 1 − 4/θ (1 − D) cancels by 1/θ for small θ.
        size = 1e-12 / min(abs(theta), 1.0) ** 2
        assert abs(float(Frank(theta).tau()) - np.sign(theta) * debye_tau(abs(theta))) <= 10 * size
    for theta in (1.0, 1.3, 1.999, 2.0, 2.001, 7.0, 40.0, 98.0):
        assert abs(float(Joe(theta).tau()) - joe_tau(theta)) <= 1e-11


@pytest.mark.parametrize("copula", thorough(DEFINED, lambda copula: isinstance(copula, StudentT)), ids=str)
def test_tau_is_four_times_the_mean_of_the_cdf_less_one(copula):
    # The base class's quadrature over u and p: 2e-4 where C bends in the corners.
    np.testing.assert_allclose(jax.jit(Copula.tau)(copula), copula.tau(), atol=2e-4)


@pytest.mark.parametrize("cls", [*POSITIVE, *BOTH_SIGNS, *NEGATIVE])
def test_from_tau_inverts_tau_within_reach_slopes_included(cls):
    low, high = 0.0 if cls in POSITIVE else -0.98, 0.0 if cls in NEGATIVE else 0.98
    positive = np.array([0.02, 0.3, 0.5, 0.75, 0.9, 0.98, 1.0])
    taus = np.concatenate([-positive, [0.0], positive])
    back, slope = jax.jit(jax.vmap(jax.value_and_grad(lambda tau: cls.from_tau(tau).tau())))(taus)
    np.testing.assert_allclose(back, np.clip(taus, low, high), atol=1e-10)  # of the other sign: independence
    inside, beyond = (taus > low) & (taus < high), (taus < low) | (taus > high)
    np.testing.assert_allclose(slope[inside], 1.0, rtol=1e-6)
    np.testing.assert_array_equal(slope[beyond], 0.0)


def test_from_tau_has_the_known_parameters():
    taus = jnp.array([-1.0, 0.5, 0.75, 0.98])
    np.testing.assert_allclose(Gumbel.from_tau(taus).theta, [1, 2, 4, 50], rtol=1e-12)
    np.testing.assert_allclose(SurvivalClayton.from_tau(taus).theta, [0, 2, 6, 98], rtol=1e-12)
    np.testing.assert_allclose(Gaussian.from_tau(1 / 3).rho, 0.5, rtol=1e-12)
    np.testing.assert_allclose(StudentT.from_tau(-1 / 3).rho, -0.5, rtol=1e-12)
    np.testing.assert_array_equal(StudentT.from_tau(jnp.array([0.1, 0.2])).df, [4.0, 4.0])
    np.testing.assert_array_equal(Independence.from_tau(taus).tau(), np.zeros(4))
    assert Frank.from_tau([[0.1, 0.2]]).theta.shape == (1, 2)
