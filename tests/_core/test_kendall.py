"""Kendall's τ-b against scipy, with ties, missing entries and constants."""

import jax
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings, strategies as st
from tiers import examples

from rcjax._core.numerics import kendall_tau

pytestmark = pytest.mark.usefixtures("float64")
SIZE = 33

batched = jax.jit(jax.vmap(kendall_tau))


def scipys(x, y, present):
    if min(len(set(x[present])), len(set(y[present]))) < 2:
        return 0.0
    return scipy.stats.kendalltau(x[present], y[present]).statistic


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 10, 10**6]), st.floats(0, 1))
def test_tau_matches_scipy_with_ties_and_missing_entries(seed, levels, missing):
    rng = np.random.default_rng(seed)
    x, noise = rng.integers(0, levels, (2, 4, SIZE)).astype(float)
    y = np.where(rng.uniform(size=(4, SIZE)) < 0.5, x, noise)
    x[:, 0], y[:, 1] = np.inf, -np.inf
    present = rng.uniform(size=(4, SIZE)) >= missing
    x, y = np.where(present, x, np.nan), np.where(present, y, np.nan)
    expected = [scipys(*row) for row in zip(x, y, present, strict=True)]
    np.testing.assert_allclose(batched(x, y, present), expected, atol=1e-14)


def test_constants_and_single_entries_have_tau_zero():
    entries = np.array([0, 1, 2, SIZE])
    present = np.arange(SIZE) < entries[:, None]
    varying, constant = np.tile(np.arange(SIZE) * 1.0, (4, 1)), np.full((4, SIZE), 0.5)
    assert np.array_equal(batched(varying, constant, present), [0, 0, 0, 0])
    assert np.array_equal(batched(constant, varying, present), [0, 0, 0, 0])
    assert np.array_equal(batched(varying, varying, present), [0, 0, 1, 1])
    assert np.array_equal(batched(varying, -varying, present), [0, 0, -1, -1])


@pytest.mark.thorough
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65])
def test_tau_is_right_for_sizes_around_powers_of_two(n):
    rng = np.random.default_rng(n)
    x = np.round(rng.normal(size=n), 1)
    y = np.round(x + rng.normal(size=n), 2)
    tau = float(jax.jit(kendall_tau)(x, y, np.ones(n, bool)))
    assert tau == pytest.approx(scipys(x, y, np.ones(n, bool)) if n > 1 else 0.0, abs=1e-14)


def test_tau_of_a_large_log_is_right_in_float32(float32):
    """2·10¹⁰ pairs: sums of float32 would lose what integers keep."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=200_000).astype(np.float32)
    y = (-x + 0.01 * rng.normal(size=200_000)).astype(np.float32)  # nearly all of them discordant
    tau = jax.jit(kendall_tau)(x, y, np.ones(200_000, bool))
    assert float(tau) == pytest.approx(scipy.stats.kendalltau(x, y).statistic, abs=1e-6)
