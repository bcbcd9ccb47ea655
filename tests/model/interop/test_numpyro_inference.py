"""A copula's parameters by NumPyro's samplers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.distributions.copula.api as references

import rcjax

numpyro = pytest.importorskip("numpyro")
from numpyro import distributions as dist  # noqa: E402
from numpyro.infer import MCMC, NUTS, util  # noqa: E402

from rcjax.model.interop.numpyro import NumPyroCascade, NumPyroCopula  # noqa: E402

pytestmark = pytest.mark.usefixtures("float64")


def pairs(n=200):
    return np.stack(rcjax.copulas.Gumbel(2.0).sample(jax.random.key(0), (n,)), -1)


def model(data):
    theta = numpyro.sample("theta", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("queries", len(data)):
        numpyro.sample("ranks", NumPyroCopula(rcjax.copulas.Gumbel(1 + theta)), obs=data)


@pytest.mark.thorough
def test_a_plate_of_observations_matches_the_reference_density():
    data = pairs(50)
    got, _ = util.log_density(model, (data,), {}, {"theta": jnp.asarray(1.3)})
    expected = np.log(references.GumbelCopula(2.3).pdf(data)).sum() + float(dist.LogNormal(0.0, 1.0).log_prob(1.3))
    assert float(got) == pytest.approx(expected, rel=1e-8)


def test_predictions_batches_and_expansions():
    wide = NumPyroCopula(rcjax.copulas.Gumbel(jnp.array([1.5, 3.0]))).expand((4, 2))
    assert wide.batch_shape == (4, 2)
    draws = wide.sample(jax.random.key(0), (3,))
    assert draws.shape == (3, 4, 2, 2)
    assert wide.log_prob(draws).shape == (3, 4, 2)
    assert bool(wide.support(draws).all())
    assert NumPyroCopula(rcjax.copulas.Gumbel(2.0)).has_rsample
    assert not NumPyroCascade(rcjax.demo_model()).has_rsample
    with pytest.raises(ValueError, match=r"theta is 0\.5; it must lie in"):
        NumPyroCopula(rcjax.copulas.Gumbel(0.5))


@pytest.mark.thorough
def test_the_posterior_of_theta_matches_a_grid():
    """NUTS against Bayes' theorem on a grid with statsmodels' density, and against the fit by likelihood."""
    data = pairs()
    sampler = MCMC(NUTS(model), num_warmup=300, num_samples=2000, progress_bar=False)
    sampler.run(jax.random.key(1), data)
    drawn = np.asarray(sampler.get_samples()["theta"])
    grid = np.linspace(0.3, 2.5, 400)
    log = np.array([np.log(references.GumbelCopula(1 + t).pdf(data)).sum() for t in grid])
    log += np.asarray(dist.LogNormal(0.0, 1.0).log_prob(grid))
    weight = np.exp(log - log.max())
    mean = (weight @ grid) / weight.sum()
    deviation = np.sqrt(weight @ (grid - mean) ** 2 / weight.sum())
    assert drawn.mean() == pytest.approx(mean, abs=0.15 * deviation)
    assert drawn.std() == pytest.approx(deviation, rel=0.1)
