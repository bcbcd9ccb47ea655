"""The Hamiltonian sampler of the posterior against its normal approximation, compiled as for users."""

import jax
import numpy as np
import pytest
from helpers.posterior_samples import cdf, three, unlike

import rcjax

pytest.importorskip("numpyro")
pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.optimised]


@pytest.mark.thorough
def test_nuts_mixes_and_agrees_with_laplace():
    log = three(200)
    nuts = rcjax.bayes.sample_posterior(log, method="nuts", seed=1)
    assert nuts.r_hat is not None
    assert nuts.effective_samples is not None
    assert max(float(value.max()) for value in nuts.r_hat.values()) < 1.01
    assert min(float(value.min()) for value in nuts.effective_samples.values()) > 400
    assert int(nuts.divergences) <= 10
    assert nuts.sites["slope"].shape == (4, 1000, 3)
    assert nuts.draws == 4000
    laplace = rcjax.bayes.sample_posterior(log, method="laplace", draws=4000, seed=1)
    # Skewed towards 0 are a share and a τ: their means lie up to 0.3 standard deviations from the mode.
    for name in ("intercept", "slope", "slope_pool", "tau", "tau_pool"):
        draws = np.asarray(nuts.sites[name]).reshape(4000, -1)
        gap = unlike(draws, np.asarray(laplace.sites[name]).reshape(4000, -1).mean(0))
        assert (gap < 0.35).all(), (name, gap)
        np.testing.assert_allclose(laplace.sites[name].std((0, 1)).ravel(), draws.std(0), rtol=0.15)
    # What the marginals say of the share below a confidence, however the mixture is written.
    confidence = nuts.reference.calibrate(log.logprob)[::20]
    for j in range(3):
        below = [
            cdf(jax.tree.map(lambda x, j=j: x[::10, j], p.model.marginals), confidence[:, j]) for p in (nuts, laplace)
        ]
        np.testing.assert_allclose(below[1].mean(0), below[0].mean(0), atol=0.02)
