"""Replicates are drawn until p is known: the verdict is that of all of them, and no batch shows in it."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from rcjax.model.goodness_of_fit.bootstrap import (
    SIGNIFICANCE_LEVEL,
    divide_into_batches,
    draw_replicates,
    exceedances_needed,
    p_value,
)


def p_of(statistic, sample, batch):
    """(p-value, how many replicates were drawn, in how many batches) of a statistic, with (B,) replicates to draw."""

    def step(state, some):
        return state + 1, statistic, some

    count, observed, drawn = draw_replicates(step, 0, divide_into_batches(sample, batch), len(sample))
    few = drawn[: len(sample)]
    return float(p_value(observed, few)), int(jnp.isfinite(few).sum()), int(count)


@pytest.mark.thorough
@settings(deadline=None, max_examples=examples(25))  # each size of a batch compiles a loop
@given(st.integers(0, 10**6), st.sampled_from([1, 7, 64, 400]))
def test_early_stopping_keeps_the_verdict_of_all_replicates(seed, batch):
    rng = np.random.default_rng(seed)
    sample, statistic = jnp.asarray(rng.uniform(size=400)), jnp.asarray(rng.uniform(0.8, 1.0))
    p, drawn, _ = p_of(statistic, sample, batch)
    of_all = float(p_value(statistic, sample))
    assert (p < SIGNIFICANCE_LEVEL) == (of_all < SIGNIFICANCE_LEVEL)
    enough = (sample >= statistic).sum() >= exceedances_needed(400)
    assert (drawn == 400 and p == pytest.approx(of_all)) or enough
    assert p == p_of(statistic, sample, 13)[0]


def test_a_clear_p_value_needs_few_replicates_and_a_small_one_all():
    sample = jnp.asarray(np.random.default_rng(0).uniform(size=1000))
    p, drawn, batches = p_of(jnp.asarray(0.4), sample, 50)
    assert drawn < batches * 50 == 100
    assert [exceedances_needed(replicates) for replicates in (100, 1000, 10_000)] == [20, 50, 500]
    assert p == pytest.approx(0.6, abs=0.15)
    p, drawn, batches = p_of(jnp.asarray(0.99), sample, 50)
    assert (drawn, batches) == (1000, 20)
    assert p == pytest.approx(0.01, abs=0.01)
