"""Replicates are drawn until p is known: the verdict is that of all of them, and no batch shows in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from rcjax.goodness_of_fit.bootstrap import SIGNIFICANT, exceedances_needed, in_batches, p_value, replicate


def p_of(statistics, sample, batch):
    """(p-values, how many replicates were drawn for each) of statistics (S,), with B replicates (B, S) to draw from."""

    def step(state, some):
        return state + 1, list(statistics), list(some.T)

    batches = jax.vmap(lambda places: sample[places])(in_batches(jnp.arange(len(sample)), batch))
    count, observed, drawn = replicate(step, 0, batches, len(sample))
    p_values = [p_value(one, few[: len(sample)]) for one, few in zip(observed, drawn, strict=True)]
    return np.asarray(p_values), [int(jnp.isfinite(few[: len(sample)]).sum()) for few in drawn], int(count)


@pytest.mark.thorough
@settings(deadline=None, max_examples=examples(25))  # each size of a batch compiles a loop
@given(st.integers(0, 10**6), st.sampled_from([1, 7, 64, 400]))
def test_the_verdict_is_that_of_all_replicates(seed, batch):
    rng = np.random.default_rng(seed)
    sample, statistics = jnp.asarray(rng.uniform(size=(400, 2))), jnp.asarray(rng.uniform([0.8, 0.9], 1.0))
    few, drawn, _ = p_of(statistics, sample, batch)
    every = np.asarray([p_value(one, values) for one, values in zip(statistics, sample.T, strict=True)])
    assert ((few < SIGNIFICANT) == (every < SIGNIFICANT)).all()
    exceedances = (sample >= statistics).sum(0)
    for p, p_of_all, count, exceeding in zip(few, every, drawn, exceedances, strict=True):
        assert (count == 400 and p == pytest.approx(p_of_all)) or exceeding >= exceedances_needed(400)
    again, _, _ = p_of(statistics, sample, 13)
    np.testing.assert_array_equal(few, again)


def test_what_is_sure_needs_few_replicates_and_what_is_rare_all_of_them():
    sample = jnp.asarray(np.random.default_rng(0).uniform(size=(1000, 1)))
    (p,), (drawn,), batches = p_of(jnp.array([0.4]), sample, 50)
    assert drawn < batches * 50 == 100
    assert p == pytest.approx(0.6, abs=0.15)
    (p,), (drawn,), batches = p_of(jnp.array([0.99]), sample, 50)
    assert (drawn, batches) == (1000, 20)
    assert p == pytest.approx(0.01, abs=0.01)
