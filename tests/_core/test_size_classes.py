"""Logs are filled up to a few sizes, and nothing that is computed from them shows it."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

import rcjax
from rcjax._core import size_classes
from rcjax._core.size_classes import LARGEST, fill_up, size_class

pytestmark = pytest.mark.usefixtures("float64")


@given(st.integers(1, 2 * LARGEST))
def test_a_class_holds_its_sizes_and_is_not_much_larger(n):
    size = size_class(n)
    assert size >= n
    assert size_class(size) == size
    assert n > LARGEST or size <= max(96, 2 * n if n <= 1536 else 1.2 * n)
    assert n <= LARGEST or size == n


def test_there_are_few_classes():
    assert len({size_class(n) for n in range(1, LARGEST)}) < 45


def test_filling_adds_zeros_along_an_axis():
    one, other = fill_up(np.ones((2, 100)), np.ones((2, 100), bool), axis=1)
    assert one.shape == other.shape == (2, 192)
    assert one.sum() == other.sum() == 200
    (same,) = fill_up(np.ones(192))
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


def compare(filled, plain, tolerance=1e-12):
    for one, other in zip(jax.tree.leaves(filled), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def likelihood(model, log):
    """(k,) the mean log-likelihood of the confidences strictly inside the range of each marginal."""
    means = []
    for j in range(len(model.models)):
        marginal = jax.tree.map(lambda leaf, j=j: leaf[j], model.marginals)
        x = (np.asarray(model.calibrate(log.logprob))[:, j] - marginal.lowest) / (marginal.highest - marginal.lowest)
        x = x[np.asarray(log.answered)[:, j]]
        x = x[(x > 1e-12) & (x < 1 - 1e-12)]
        shapes = zip(marginal.proportion, marginal.a, marginal.b, strict=True)
        parts = [w * stats.beta(a, b).pdf(x) for w, a, b in shapes]
        means.append(np.log(sum(parts)).mean())
    return np.array(means)


def results(log, model):
    """What the functions that fill logs up return, as arrays."""
    frontier = rcjax.tuning.select_frontier(log, model=model, lam=[10.0, 1000.0]).frontier
    by_model = rcjax.solve_frontier(model, lam=[10.0, 1000.0], cascades="full")
    policy = by_model.policy(lam=1000.0)
    return {
        "frontier": (frontier.error, frontier.cost, frontier.thresholds),
        "bands": rcjax.tuning.bootstrap(frontier, log, replicates=20),
        "replay": rcjax.replay(by_model, log),
        "one": rcjax.replay(policy, log),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("n", [97, *(pytest.param(n, marks=pytest.mark.thorough) for n in (50, 95, 96, 192, 193))])
def test_results_are_those_without_filling(n, monkeypatch):
    log = with_gaps(n, seed=n)
    model = rcjax.fit(log)
    filled = results(log, model)
    monkeypatch.setattr(size_classes, "size_class", lambda size: size)
    plain = results(log, model)
    for name in filled:
        # The calibrators of a draw stop where a step is small: sums in another order end that far from each other.
        compare(filled[name], plain[name], tolerance=1e-8 if name == "bands" else 1e-12)


@pytest.mark.thorough
@settings(max_examples=5, deadline=None)
@given(st.integers(30, 400), st.integers(0, 2**31))
def test_fits_of_random_logs_are_those_without_filling(n, seed):
    log = with_gaps(n, seed)
    filled = rcjax.fit(log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(size_classes, "size_class", lambda size: size)
        plain = rcjax.fit(log)
    compare(filled.calibrators, plain.calibrators)
    compare(filled.copulas, plain.copulas)
    # Expectation–maximisation stops where a step gains 1e-9 on average. Of few queries it may climb slowly past where
    # sums in another order would have stopped it, or name the components the other way round: as likely all the same.
    compare(likelihood(filled, log), likelihood(plain, log), tolerance=1e-9)
    ends = ("lowest", "highest", "mass_lowest", "mass_highest")
    compare(*([getattr(model.marginals, end) for end in ends] for model in (filled, plain)))


@pytest.mark.thorough
def test_another_length_of_a_class_compiles_nothing(compilations):
    log = with_gaps(100, seed=1)
    results(log, rcjax.fit(log))
    other = with_gaps(111, seed=2)
    with compilations() as messages:
        results(other, rcjax.fit(other))
    assert not messages
