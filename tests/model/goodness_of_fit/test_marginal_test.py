"""Goodness of fit of a marginal: the sampler of its replicates, and p-values that hold and reject."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rcjax.model.goodness_of_fit.bootstrap import draw_sample, marginal_test
from rcjax.model.marginals import Atoms, Marginal
from rcjax.model.maximum_likelihood import fit_marginal

pytestmark = pytest.mark.usefixtures("float64")

#: Three models of N queries each, as in test_diagnosis, so that either finds the other's programmes compiled.
N, TRAINED_ON = 200, 200
MANY = 1000  # where a p-value of 4 % is not to fall below 2 % by chance
#: lowest, highest, masses, proportion, a, b: smooth, steep at both ends, a spike among tails.
CASES = (
    (0.2, 0.95, 0.1, 0.2, (0.3, 0.7), (2.0, 8.0), (5.0, 1.5)),
    (0.0, 1.0, 0.0, 0.0, (0.5, 0.5), (0.1, 3.0), (0.6, 0.2)),
    (0.4, 0.99, 0.01, 0.76, (0.9, 0.1), (1.0, 300.0), (1.0, 60.0)),
)


def test_samples_have_the_law_of_the_marginal():
    """Shares of the masses within four standard errors, what lies between by Kolmogorov and Smirnov's test."""
    for low, high, bottom, top, share, a, b in CASES:
        marginal = Marginal(*(np.array(each, float) for each in (low, high, bottom, top, share, a, b)))  # type: ignore[arg-type]
        values = draw_sample(marginal, (20, 200), np.random.default_rng(0))
        assert values.shape == (20, 200)
        for value, mass in ((low, bottom), (high, top)):
            assert abs((values == value).mean() - mass) <= 4 * np.sqrt(mass * (1 - mass) / values.size)
        inner = values[(values != low) & (values != high)]
        assert ((inner > low) & (inner < high)).all()
        x = (inner - low) / (high - low)
        rank = sum(s * scipy.stats.beta(*ab).cdf(x) for s, *ab in zip(share, a, b, strict=True))
        assert scipy.stats.kstest(rank, "uniform").pvalue > 1e-3


@pytest.fixture(scope="module")
def draws(float64):
    """(3, N) confidences to judge and (3, TRAINED_ON) to learn from: two betas, three heaps, what has moved since."""
    rng, n = np.random.default_rng(1), N + TRAINED_ON
    betas = np.clip(0.2 + 0.8 * np.where(rng.random(n) < 0.3, rng.beta(2, 6, n), rng.beta(9, 3, n)), 0, 0.93)
    heaps = rng.normal(rng.choice([0.1, 0.5, 0.9], n), 0.02)
    moved = np.concatenate([rng.beta(2, 4, N), rng.beta(4, 2, TRAINED_ON)])
    both = jnp.asarray(np.stack([betas, heaps, moved]))
    return both[:, :N], both[:, N:]


@pytest.fixture(scope="module")
def fit(float64):
    return jax.jit(jax.vmap(lambda values: fit_marginal(values, jnp.ones(N, bool))))


@pytest.fixture(scope="module")
def found(draws, fit):
    """p-values (3,) as trained, and fitted again."""
    fitted = fit(draws[1])
    return [np.asarray(marginal_test(fitted, draws[0], n, jax.random.key(0), MANY).trained_p) for n in (TRAINED_ON, 0)]


@pytest.mark.thorough
def test_the_true_marginal_is_accepted_and_others_are_rejected(found):
    trained, refitted = found
    assert trained[0] > 0.02
    assert refitted[0] > 0.02
    assert refitted[1] == trained[2] == 0.5 / (MANY + 1)
    assert trained[1] < 0.05
    assert refitted[2] > 0.05  # two betas, but not those learnt


@pytest.mark.thorough
def test_stated_values_beyond_the_trained_ends_are_no_misfit():
    """What was the lowest value, or the highest, lies between others there: a mass again, not a beta's spike."""
    values = jnp.array([[0.2, 0.4, 0.6, 0.8, 0.9]])
    rows = jnp.repeat(values, jnp.array([10, 40, 60, 70, 20]), axis=1)
    inner = Atoms(jnp.array([[0.6, 0.8]]), jnp.array([[0.35, 0.4]]))
    mixture = jnp.full((1, 2), 0.5), jnp.ones((1, 2)), jnp.ones((1, 2))
    marginal = Marginal(*jnp.array([[0.4], [0.8], [0.25], [0.0]]), *mixture, atoms=inner)
    test = marginal_test(marginal, rows, 0, jax.random.key(0), replicates=20)
    assert float(test.refitted[0]) == float(test.trained[0]) == 0.0
    assert float(test.trained_p[0]) > 0.9  # nothing but masses: no sample of them can contradict their shape
    # As trained it is held to its own ends.
    trained = marginal_test(marginal, rows, 200, jax.random.key(0), replicates=100)
    assert float(trained.trained_p[0]) < 0.05
    assert float(trained.trained[0]) > 0.05
