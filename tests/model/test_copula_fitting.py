"""Maximum likelihood of every family: against scipy, under ties, at the ends of the support, in batches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from tiers import thorough

from rcjax.copulas import Clayton, Copula, Frank, Gaussian, Gumbel, Independence, Joe, StudentT, param
from rcjax.copulas.families import FAMILIES
from rcjax.model import likelihood
from rcjax.model.likelihood import SMOOTH, Ranks
from rcjax.model.maximum_likelihood import FitStatus, _direction, constrain, count_parameters, fit_pair

pytestmark = pytest.mark.usefixtures("float64")

N = 1000
INFINITE = float("inf")

#: One programme each, where every operation would be one.
log_likelihood = jax.jit(likelihood.log_likelihood)
tau_of = jax.jit(lambda copula: copula.tau())


class BB1(Copula):
    """Joe (1997): two free parameters, tail dependence on both ends."""

    theta: jax.Array = param(0.5, support=(1e-3, INFINITE))
    delta: jax.Array = param(1.5, support=(1.0, INFINITE))

    def cdf(self, u, v):
        x, y = (jnp.log(jnp.expm1(-self.theta * jnp.log(z))) for z in (u, v))
        return jnp.exp(-jax.nn.softplus(jnp.logaddexp(self.delta * x, self.delta * y) / self.delta) / self.theta)


@functools.partial(jax.jit, static_argnames="shape")
def draw(copula, seed, shape):
    return copula.sample(jax.random.key(seed), shape)


def smooth(u, v):
    return tuple(Ranks(jnp.asarray(z)) for z in (u, v))


def tied(u, low, high):
    """Ranks whose lowest share `low` and highest share `high` are tied."""
    mass = np.where(u <= low, 0, np.where(u >= 1 - high, 1, SMOOTH))
    return Ranks(*map(jnp.asarray, (u, mass, [0.0, 1.0 - high], [float(low), 1.0])))


@pytest.mark.parametrize(
    "family",
    thorough([f for f in FAMILIES if f is not Independence], lambda family: family is not Gumbel),
    ids=lambda f: f.__name__,
)
def test_the_fit_reaches_scipys_maximum(family):
    copula = jax.jit(family.from_tau)(0.4)
    u, v = draw(copula, 1, (400,))
    first, second = tied(np.asarray(u), 0.1, 0.0), tied(np.asarray(v), 0.0, 0.2)
    result = jax.jit(lambda tau: fit_pair(family, first, second, jnp.ones(400), tau))(0.1)
    name = family.free[0]

    @jax.jit
    def loss(value):
        return -log_likelihood(
            family(**{n: value if n == name else getattr(result.copula, n) for n in family.supports}), first, second
        ).sum()

    best = float(getattr(result.copula, name))
    low, high = family.supports[name]
    bracket = max(low, best - 1), min(high, best + 1)
    reference = scipy.optimize.minimize_scalar(
        lambda value: float(loss(float(value))), bounds=bracket, method="bounded", options={"xatol": 1e-7}
    )
    # The likelihood is flat at its top: a difference of 1e-5 there is 1e-10 of it.
    assert abs(best - reference.x) < 1e-4
    np.testing.assert_allclose(result.log_likelihood, -reference.fun, rtol=1e-8)
    assert int(result.status) == FitStatus.CONVERGED
    step = 1e-3
    curvature = (loss(best + step) - 2 * loss(best) + loss(best - step)) / step**2
    np.testing.assert_allclose(result.standard_errors[name], 1 / np.sqrt(curvature), rtol=1e-3)
    truth = float(getattr(copula, name))
    assert abs(best - truth) < 4 * float(result.standard_errors[name])


@pytest.mark.thorough
def test_degrees_of_freedom_are_profiled():
    u, v = draw(StudentT(0.5, 3.0), 2, (N,))
    result = jax.jit(lambda: fit_pair(StudentT, *smooth(u, v), jnp.ones(N)))()
    every = [float(log_likelihood(StudentT(result.copula.rho, df), *smooth(u, v)).sum()) for df in StudentT.grids["df"]]
    assert float(result.copula.df) == StudentT.grids["df"][int(np.argmax(every))]
    assert float(result.copula.df) in (2.0, 3.0, 4.0)
    assert np.isinf(result.standard_errors["df"])


@pytest.mark.thorough
def test_two_parameters_at_once():
    u, v = draw(BB1(0.8, 1.6), 3, (N,))
    result = jax.jit(lambda: fit_pair(BB1, *smooth(u, v), jnp.ones(N)))()
    assert int(result.status) == FitStatus.CONVERGED

    def loss(parameters):
        return -log_likelihood(BB1(*parameters), *smooth(u, v)).sum()

    slope = jax.jit(jax.grad(loss))((result.copula.theta, result.copula.delta))
    np.testing.assert_allclose(slope, 0, atol=0.05)  # per standard error of 0.1: 0.005 of log-likelihood
    for name, truth in (("theta", 0.8), ("delta", 1.6)):
        error = float(result.standard_errors[name])
        assert 0 < error < 0.2
        assert abs(float(getattr(result.copula, name)) - truth) < 4 * error


def test_a_step_goes_uphill_in_every_direction():
    """Newton's, where the curvature is downward; and a family's parameters are those that a fit chooses."""
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    step = _direction(jnp.array([3.0, 1.0]), jnp.asarray(turn @ np.diag([-4.0, 0.5]) @ turn.T))
    np.testing.assert_allclose(step, turn @ np.diag([1 / 4, 2.0]) @ turn.T @ [3.0, 1.0], rtol=1e-9)
    assert float(constrain(jnp.array(0.0), (-np.inf, 2.0))) == pytest.approx(2 - np.log(2))
    assert [count_parameters(family) for family in (Independence, Gumbel, StudentT, BB1)] == [0, 1, 2, 2]


@pytest.mark.parametrize("theta", [-25.0, 15.0])
def test_strong_dependence_in_an_unbounded_family_is_at_no_bound(theta):
    fit = jax.jit(lambda u, v: fit_pair(Frank, *smooth(u, v), jnp.ones(N)))(*draw(Frank(theta), 6, (N,)))
    assert int(fit.status) == FitStatus.CONVERGED
    np.testing.assert_allclose(fit.copula.theta, theta, rtol=0.15)


@pytest.mark.thorough
def test_the_same_confidence_twice_ends_at_a_bound_without_nan():
    u = jnp.linspace(0.01, 0.99, 50)
    for family in (Gumbel, Clayton, Frank, Joe, Gaussian):
        result = jax.jit(lambda family=family: fit_pair(family, *smooth(u, u), jnp.ones(50)))()
        assert int(result.status) != FitStatus.FAILED, FitStatus.FAILED.message
        assert float(tau_of(result.copula)) > 0.9
        assert np.isfinite(result.log_likelihood)


@pytest.mark.thorough
def test_weights_count_repetitions_and_absent_rows_do_not_matter():
    u, v = (np.array(z) for z in draw(Gumbel(2.0), 6, (200,)))
    weights = np.random.default_rng(0).integers(0, 3, 200)
    repeated = single(Gumbel)(np.repeat(u, weights), np.repeat(v, weights), jnp.ones(weights.sum()))
    u[weights == 0] = np.nan
    weighted = single(Gumbel)(u, v, jnp.asarray(weights, float))
    for ours, reference in zip(jax.tree.leaves(weighted), jax.tree.leaves(repeated), strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-8)


@functools.cache
def single(family):
    return jax.jit(lambda u, v, weights: fit_pair(family, *smooth(u, v), weights))


@pytest.mark.thorough
def test_the_fit_works_in_float32(float32):
    u, v = draw(Gumbel(2.0), 8, (N,))
    for family in (Gumbel, Frank, Gaussian):
        result = single(family)(u, v, jnp.ones(N))
        assert result.log_likelihood.dtype == jnp.float32
        assert int(result.status) == FitStatus.CONVERGED
    assert abs(float(single(Gumbel)(u, v, jnp.ones(N)).copula.theta) - 2) < 0.3
