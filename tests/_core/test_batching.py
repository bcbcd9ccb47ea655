"""Many at a time: results do not show that a log was filled up, and threads keep order, floats and failures."""

import dataclasses
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import rcjax
from rcjax._core import batching
from rcjax._core.batching import LARGEST, map_in_threads, pad_to_size_class, size_class, with_thread_settings


@given(st.integers(1, 2 * LARGEST))
def test_a_size_class_is_little_larger_than_its_sizes(n):
    size = size_class(n)
    assert size >= n
    assert size_class(size) == size
    assert n > LARGEST or size <= max(96, 2 * n if n <= 1536 else 1.2 * n)
    assert n <= LARGEST or size == n


def test_there_are_few_size_classes():
    assert len({size_class(n) for n in range(1, LARGEST)}) < 45


def test_padding_adds_zeros_along_an_axis():
    one, other = pad_to_size_class(np.ones((2, 100)), np.ones((2, 100), bool), axis=1)
    assert one.shape == other.shape == (2, 192)
    assert one.sum() == other.sum() == 200
    (same,) = pad_to_size_class(np.ones(192))
    assert same.shape == (192,)


def with_gaps(n, seed):
    """A log of n queries of three models, of which some lack answers."""
    log = rcjax.sample_log(n, seed).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    missing = np.random.default_rng(seed).random((n, 3)) < 0.05
    answered = np.asarray(log.answered) & ~missing
    columns = {
        "logprob": np.where(answered, log.logprob, np.nan),
        "correct": np.asarray(log.correct) & answered,
        "answered": answered,
        "query_cost": np.where(answered, log.query_cost, 0.0),
    }
    return dataclasses.replace(log, **jax.device_put(columns))


def results(log, model):
    """What the functions that fill logs up return, as arrays."""
    frontier = rcjax.tuning.select_frontier(log, model=model, lam=[10.0, 1000.0]).frontier
    by_model = rcjax.solve_frontier(model, lam=[10.0, 1000.0], cascades="full")
    return {
        "frontier": (frontier.error, frontier.cost, frontier.thresholds),
        "bands": rcjax.tuning.bootstrap(frontier, log, replicates=20),
        "replay": rcjax.replay(by_model, log),
        "one": rcjax.replay(by_model.policy(lam=1000.0), log),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("n", [95, 97])
def test_padding_does_not_change_results(n, monkeypatch, float64):
    log = with_gaps(n, seed=n)
    model = rcjax.fit(log)
    filled = {"fit": (model.calibrators, model.copulas), **results(log, model)}
    monkeypatch.setattr(batching, "size_class", lambda size: size)
    repeated = rcjax.fit(log)
    plain = {"fit": (repeated.calibrators, repeated.copulas), **results(log, model)}
    for name in filled:
        # The calibrators of a draw stop where a step is small: sums in another order end that far from each other.
        tolerance = 1e-8 if name == "bands" else 1e-12
        for one, other in zip(*map(jax.tree.leaves, (filled[name], plain[name])), strict=True):
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.thorough
def test_another_length_of_a_size_class_compiles_nothing(compilations, float64):
    log, other = with_gaps(120, seed=1), with_gaps(131, seed=2)  # of a class, their complete queries too
    results(log, rcjax.fit(log))
    with compilations() as messages:
        results(other, rcjax.fit(other))
    assert not messages


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(batching, "count_cores", lambda: 2)


def test_results_are_in_order_of_the_items(two_cores):
    second_is_done = threading.Event()

    def slow_at_first(x):
        if x == 1:
            assert second_is_done.wait(timeout=60)
        elif x == 2:
            second_is_done.set()
        return x * x

    assert map_in_threads(slow_at_first, range(20), n=1) == [x * x for x in range(20)]


@pytest.mark.parametrize("wide", [False, True])
def test_threads_have_the_floats_and_the_device_of_their_caller(wide, two_cores):
    device = jax.devices()[0]
    with jax.enable_x64(wide), jax.default_device(device):
        kinds = map_in_threads(lambda _: (jnp.ones(1).dtype, jax.config.jax_default_device), range(4), n=1)
        later = with_thread_settings(lambda: jnp.ones(1).dtype)
    assert kinds == [(jnp.dtype("float64" if wide else "float32"), device)] * 4
    with jax.enable_x64(not wide):
        assert later() == kinds[0][0]


def test_a_failure_is_raised_and_ends_the_others(two_cores):
    done, failed = [], threading.Event()

    def fail_early(x):
        if x == 1:
            failed.set()
            raise ValueError("no")
        assert x == 0 or failed.wait(timeout=60)
        time.sleep(1e-4)  # lets the thread that failed go on, however busy the machine
        done.append(x)

    with pytest.raises(ValueError, match="no"):
        map_in_threads(fail_early, range(20_000), n=1)
    assert len(done) < 20_000 - 1
