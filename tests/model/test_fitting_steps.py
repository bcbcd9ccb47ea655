"""Fits of many queries, in blocks and from samples: the model of few at a time."""

import jax
import numpy as np
import pytest

import rcjax
from rcjax._core import batching
from rcjax.model import maximum_likelihood

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.forgetful]


@pytest.fixture
def small_blocks(monkeypatch):
    """What a log of millions of queries goes through, for one of a few hundred."""
    jax.clear_caches()
    monkeypatch.setattr(batching, "MANY", 64)
    monkeypatch.setattr(maximum_likelihood, "BLOCK_SIZE", 32)
    yield
    jax.clear_caches()


def leaves(tree):
    return [np.asarray(leaf, float) for leaf in jax.tree.leaves(tree)]


@pytest.mark.thorough
def test_blocks_and_sequential_models_give_the_same_fit(small_blocks, monkeypatch):
    log = rcjax.sample_log(300, seed=1).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    blocks = rcjax.fit(log)
    monkeypatch.undo()
    jax.clear_caches()
    for one, other in zip(leaves(blocks), leaves(rcjax.fit(log)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8)


@pytest.mark.thorough
def test_a_fit_started_on_a_sample_reaches_the_maximum_on_all_values(monkeypatch):
    """Started on 128 of 2,000 values, expectation–maximisation ends where it does from three starts on all of them."""
    rng = np.random.default_rng(0)
    x = np.where(rng.random(2000) < 0.3, rng.beta(2.0, 20.0, 2000), rng.beta(6.0, 1.5, 2000))
    present = rng.random(2000) < 0.8

    def likelihood(mixture):
        columns = maximum_likelihood.stack_columns(x, present)
        return float(maximum_likelihood._em_step(columns, mixture)[1])

    full = likelihood(maximum_likelihood.fit_beta_mixture(x, present))
    monkeypatch.setattr(maximum_likelihood, "SAMPLE_SIZE", 128)
    sampled = likelihood(maximum_likelihood.fit_beta_mixture(x, present))
    assert sampled == pytest.approx(full, abs=1e-6)
