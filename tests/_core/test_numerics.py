"""The primitives: against scipy, and against values of 60 digits computed by mpmath."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from rcjax._core.numerics import (
    betainc,
    betainc_and_power,
    betaln,
    divide,
    log1mexp,
    open_unit,
    polygammas,
    softplus,
)

pytestmark = pytest.mark.usefixtures("float64")

# a, b, x, I_x(a, b), and its derivatives by a, b and x, by mpmath with 60 digits.
ORACLES = np.array(
    [
        (1, 6, 0.15, 0.62285048437499999, -0.40757920384741386, 0.061293935539979333, 2.6622318750000001),
        (2, 2, 0.5, 0.5, -0.22157359027997265, 0.22157359027997265, 1.5),
        (0.01, 0.01, 0.3, 0.49582361360238203, -25.208994015457034, 24.797256035179421, 0.02344462622489961),
        (0.5, 3, 1e-12, 1.87499999999875e-6, -4.9808164592334489e-5, 3.3819807289935462e-7,
         937499.99999812501),
        (3, 0.5, 0.999999, 0.99812500124997267, -0.00033819722244031581, 0.023904068027088769,
         937.49812498745826),
        (20, 5, 0.85, 0.71338249319929691, -0.031009909772533223, 0.1506647920193618, 4.9059648472982377),
        (120, 80, 0.6, 0.49615829847575205, -0.023072990378374794, 0.034633531931014643, 11.501286401696769),
        (0.2, 40, 0.001, 0.56730396406772067, -1.6816540066637974, 0.0027718354354587442, 109.82539784137701),
        (2000, 3000, 0.41, 0.92526212620830418, -0.002421891530673721, 0.0016484225208268043,
         20.270126473186093),
        (9000, 1000, 0.9, 0.49645377924813968, -0.0013297645069778545, 0.011969653740271404,
         132.96955574587917),
        (1, 1, 0.7, 0.69999999999999996, -0.24967246075711269, 0.36119184129778081, 1.0),
        (1e4, 0.5, 0.99995, 0.31731050771170149, -2.4197677376204159e-5, 0.64718825349821015,
         4839.5354812910867),
    ]
)  # fmt: skip

SHAPES = np.geomspace(1e-2, 1e4, 13)
POINTS = np.array([0.0, 1e-300, 1e-15, 1e-4, 0.03, 0.3, 0.5, 0.77, 0.95, 1 - 1e-4, 1 - 1e-12, 1.0])


def test_betainc_matches_scipy():
    a, b, x = np.meshgrid(SHAPES, SHAPES, POINTS)
    ours, reference = np.asarray(jax.jit(betainc)(a, b, x)), scipy.special.betainc(a, b, x)
    small = a + b <= 100
    np.testing.assert_allclose(ours[small], reference[small], rtol=1e-11, atol=1e-13)
    # Beyond, x^a itself carries a relative rounding error of (a + b) |log x| eps.
    np.testing.assert_allclose(ours, reference, rtol=1e-8, atol=1e-11)
    assert np.array_equal(ours[x == 0], 0 * ours[x == 0])
    assert np.array_equal(ours[x == 1], 1 + 0 * ours[x == 1])


def test_betainc_and_its_gradients_match_60_digits():
    a, b, x, value, by_a, by_b, by_x = ORACLES.T
    np.testing.assert_allclose(jax.jit(betainc)(a, b, x), value, rtol=1e-10, atol=0)
    gradient = jax.jit(jax.vmap(jax.grad(betainc, argnums=(0, 1, 2))))
    for ours, oracle in zip(gradient(a, b, x), (by_a, by_b, by_x), strict=True):
        np.testing.assert_allclose(ours, oracle, rtol=1e-8, atol=1e-12)


def test_betainc_has_no_gradient_at_the_ends():
    a, b, x = (z.ravel() for z in np.meshgrid([0.5, 1.0, 2.0], [0.5, 1.0, 7.0], [0.0, 1.0]))
    gradients = jax.jit(jax.vmap(jax.grad(betainc, argnums=(0, 1, 2))))(a, b, x)
    assert not np.any(np.stack(gradients))


def test_slopes_of_the_power_are_those_of_its_formula():
    """Of xᵃ(1 − x)ᵇ / B(a, b), in all three."""
    a, b, x = np.array([(2.0, 3.0, 0.5), (0.3, 5.0, 0.9), (12.0, 0.7, 0.2)]).T
    by_log = [
        np.log(x) - scipy.special.digamma(a) + scipy.special.digamma(a + b),
        np.log1p(-x) - scipy.special.digamma(b) + scipy.special.digamma(a + b),
        a / x - b / (1 - x),
    ]
    power = x**a * (1 - x) ** b / scipy.special.beta(a, b)
    slopes = jax.jit(jax.vmap(jax.grad(lambda *at: betainc_and_power(*at)[1], (0, 1, 2))))(a, b, x)
    np.testing.assert_allclose(slopes, power * np.array(by_log), rtol=1e-12)


@pytest.mark.thorough
def test_betaln_matches_60_digits():
    # jax.scipy.special.betaln is off by 4e-7 at (3, 12).
    a, b = np.array([(3, 12), (20, 5), (0.2, 40), (1e-3, 1e4), (2000, 3000), (1e4, 0.5)]).T
    oracle = [
        -6.9957661563048504,
        -12.26679138056488,
        0.788292897817806,
        6.8979685949627083,
        -3367.6843821531882,
        -4.0327927430633965,
    ]
    np.testing.assert_allclose(jax.jit(betaln)(a, b), oracle, rtol=2e-14, atol=2e-14)
    by_a, by_b = jax.vmap(jax.grad(betaln, argnums=(0, 1)))(a, b)
    digamma = scipy.special.digamma
    np.testing.assert_allclose(by_a, digamma(a) - digamma(a + b), rtol=1e-9)
    np.testing.assert_allclose(by_b, digamma(b) - digamma(a + b), rtol=1e-9, atol=1e-13)


def test_betainc_in_float32(float32):
    a, b, x = np.meshgrid(np.geomspace(0.05, 50, 8), np.geomspace(0.05, 50, 8), POINTS.astype(np.float32))
    a, b = a.astype(np.float32), b.astype(np.float32)
    value = jax.jit(betainc)(a, b, x)
    assert value.dtype == jnp.float32
    reference = scipy.special.betainc(*(z.astype(np.float64) for z in (a, b, x)))
    np.testing.assert_allclose(value, reference, atol=1e-4)
    oracle = ORACLES[[0, 1, 5, 7, 10]]
    by_a, by_b = jax.jit(jax.vmap(jax.grad(betainc, (0, 1))))(*(z.astype(np.float32) for z in oracle[:, :3].T))
    np.testing.assert_allclose(by_a, oracle[:, 4], atol=1e-4, rtol=1e-3)
    np.testing.assert_allclose(by_b, oracle[:, 5], atol=1e-4, rtol=1e-3)


def test_log1mexp_at_both_ends():
    x = jnp.array([-1e-300, -1e-12, -0.69, -0.7, -40.0])
    oracle = [
        -690.77552789821371,
        -27.631021115929048,
        -0.69630429714405671,
        -0.68634100280838515,
        -4.248354255291589e-18,
    ]
    np.testing.assert_allclose(log1mexp(x), oracle, rtol=1e-15)
    assert float(log1mexp(-800.0)) == 0
    assert float(log1mexp(0.0)) == -np.inf
    # d/dx log(1 − e^x) = −1/(e^{−x} − 1)
    gradient = jax.vmap(jax.grad(log1mexp))(x)
    np.testing.assert_allclose(gradient, -1 / np.expm1(-np.asarray(x)), rtol=1e-14)


def test_polygammas_match_scipy():
    x = np.geomspace(1e-3, 1e6, 400)
    digamma, trigamma = jax.jit(polygammas)(x)
    np.testing.assert_allclose(digamma, scipy.special.digamma(x), rtol=1e-12, atol=2e-13)
    np.testing.assert_allclose(trigamma, scipy.special.polygamma(1, x), rtol=1e-11)


def test_divide_and_open_unit_stay_finite():
    assert float(divide(1.0, 0.0, 7.0)) == 7
    assert jax.grad(divide, argnums=(0, 1))(1.0, 0.0) == (0.0, 0.0)
    assert jax.grad(divide, argnums=(0, 1))(1.0, 2.0) == (0.5, -0.25)
    ends = np.asarray(open_unit(jnp.array([0.0, 1.0])))
    assert 0 < ends[0] < 1e-300
    assert 1 - 2e-16 <= ends[1] < 1


def test_softplus_and_its_derivatives_are_those_of_the_formula():
    x = np.array([-800.0, -40.0, -1.5, -1e-9, 0.0, 1e-9, 1.5, 40.0, 800.0])
    slope = scipy.special.expit(x)
    np.testing.assert_allclose(softplus(x), np.logaddexp(x, 0.0), rtol=1e-15)
    np.testing.assert_allclose(jax.vmap(jax.grad(softplus))(x), slope, rtol=1e-15)
    np.testing.assert_allclose(jax.vmap(jax.grad(jax.grad(softplus)))(x), slope * scipy.special.expit(-x), rtol=1e-13)
