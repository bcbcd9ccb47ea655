"""The chain of a model's confidences as a distribution of NumPyro and of TensorFlow Probability."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interop_libraries import NAMES, Library
from scipy import stats
from submodels import of_models

import rcjax
from rcjax._core.batching import part
from rcjax.interop import pair
from rcjax.model import chain
from rcjax.model.marginals import Atoms, Marginal

THETAS = np.array([2.5, 1.5, 1.8])
pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module", params=NAMES)
def library(request):
    return Library(request.param)


@pytest.fixture(scope="module")
def model(float64):
    """Three models, with masses at both ends, atoms between, of which one is no atom, and smooth parts."""
    demo = rcjax.demo_model()
    places = np.array([[0.5, 0.7], [0.6, 0.85], [0.55, 0.9]]), np.array([[0.1, 0.2], [0.3, 0.1], [0.2, 0.0]])
    marginals = Marginal(
        *(np.array([0.1, 0.2, 0.25]), np.array([0.9, 1.0, 0.9]), np.array([0.2, 0.1, 0.05]), np.array([0.1, 0.2, 0.3])),
        *(np.tile(row, (3, 1)) for row in ([0.4, 0.6], [2.0, 5.0], [3.0, 1.5])),
        Atoms(*places),
    )
    own = of_models(demo, np.arange(3))
    return jax.tree.map(
        jnp.asarray, dataclasses.replace(own, marginals=marginals, copulas=rcjax.copulas.Gumbel(THETAS))
    )


def values_of(marginal):
    """The point masses of a marginal."""
    atoms = [] if marginal.atoms is None else np.asarray(marginal.atoms.value)[np.asarray(marginal.atoms.mass) > 0]
    return np.array([float(marginal.lowest), *map(float, atoms), float(marginal.highest)])


@pytest.mark.thorough
def test_a_chain_is_made_of_its_pairs(model):
    """log p(1, 2, 3) = log p(1, 2) + log p(2, 3) − log p(2), where p(2) is a mass or SciPy's betas."""
    values = np.asarray(model.sample(jax.random.key(0), (60,)))
    first, middle, last = (part(model.marginals, j) for j in range(3))
    links = [part(model.copulas, place) for place in (0, 2)]  # of the pairs 0 → 1 and 1 → 2
    pairs = [pair(links[0], (first, middle)), pair(links[1], (middle, last))]
    expected = sum(np.asarray(chain.log_prob(p, values[:, j : j + 2])) for j, p in enumerate(pairs))
    span = float(middle.lowest), float(middle.highest - middle.lowest)
    laws = [stats.beta(a, b, *span) for a, b in zip(middle.a, middle.b, strict=True)]
    density = float(middle.smooth) * sum(
        p * law.pdf(values[:, 1]) for p, law in zip(middle.proportion, laws, strict=True)
    )
    masses = [middle.mass_lowest, *middle.atoms.mass[middle.atoms.mass > 0], middle.mass_highest]
    for value, mass in zip(values_of(middle), masses, strict=True):
        density = np.where(np.abs(values[:, 1] - value) < 1e-12, mass, density)
    got = chain.log_prob(chain.through(model.marginals, model.copulas), values)
    np.testing.assert_allclose(got, expected - np.log(density), rtol=1e-9, atol=1e-9)


@pytest.mark.thorough
def test_probabilities_of_masses_are_frequencies(library, model):
    """Of all three models, and so of what the chain remembers, in our draws and in those of `CascadeModel.sample`."""
    distribution = library.ours.CascadeDistribution(model)
    assert tuple(distribution.event_shape) == (3,)
    draws = np.asarray(library.sample(distribution, 0, (20, 500))).reshape(-1, 3)
    ours, theirs = draws, np.asarray(model.sample(jax.random.key(1), (10_000,)))
    lines = [values_of(part(model.marginals, j)) for j in range(3)]
    cells = np.stack(np.meshgrid(*lines, indexing="ij"), -1).reshape(-1, 3)
    expected = np.exp(np.asarray(distribution.log_prob(cells)))
    assert expected.sum() < 1.0
    for sample in (ours, theirs):
        counts = [(np.abs(sample - value) < 1e-9).all(1).sum() for value in cells]
        probabilities = np.append(expected, 1 - expected.sum())
        often = probabilities * 10_000 >= 5
        gap = (np.append(counts, 10_000 - sum(counts)) - probabilities * 10_000)[often] ** 2
        statistic = (gap / (probabilities * 10_000)[often]).sum()
        assert stats.chi2(often.sum() - 1).sf(statistic) > 1e-4


@pytest.mark.thorough
def test_the_likelihood_is_highest_near_the_fit(library):
    """Gradients by every array of a model go through: a step along them is likelier."""
    log = rcjax.sample_log(96, seed=0)
    model = rcjax.fit(log.select(log.models[:3]))
    values = model.calibrate(log.select(log.models[:3]).logprob)

    def total(copulas, marginals):
        own = dataclasses.replace(model, copulas=copulas, marginals=marginals)
        return library.ours.CascadeDistribution(own).log_prob(values).sum()

    slopes = jax.jit(jax.grad(total, (0, 1)))(model.copulas, model.marginals)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
    h = 1e-6
    step = np.array([h, 0.0, 0.0])
    thetas = [dataclasses.replace(model.copulas, theta=model.copulas.theta + sign * step) for sign in (1, -1)]
    difference = float(total(thetas[0], model.marginals) - total(thetas[1], model.marginals)) / 2 / h
    assert float(slopes[0].theta[0]) == pytest.approx(difference, rel=1e-4)
    assert float(slopes[0].theta[1]) == 0.0  # of a pair that are no neighbours
