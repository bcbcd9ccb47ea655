"""Drift without labels: bins against the distance elsewhere, ties, and how often chance alone alarms."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from misses import in_turn
from tiers import examples

from rcjax.goodness_of_fit.two_samples import compare
from rcjax.serving.gateway.drift import bins_of, counted, distance, distance_by_chance
from rcjax.serving.gateway.expectations import Reach


def reach_of(logprobs, weights=None):
    order = np.argsort(logprobs, kind="stable")
    weights = np.ones(len(order)) if weights is None else weights
    return Reach(tuple(logprobs[order].tolist()), (), tuple(weights[order].tolist()))


def continuous(rng, n):
    return np.log(rng.uniform(size=n))


def with_atoms(rng, n):
    """Two in five are certain, one in ten has a probability of 0."""
    u = rng.uniform(size=n)
    return np.where(u < 0.4, 0.0, np.where(u < 0.5, -math.inf, continuous(rng, n)))


def votes(rng, n):
    return np.log(rng.integers(1, 6, n) / 5)


KINDS = {"continuous": continuous, "with atoms": with_atoms, "votes": votes}


def single(logprobs):
    with np.errstate(over="ignore"):
        return logprobs.astype(np.float32).astype(float)


def drift(reference, logprobs):
    bins = bins_of(reach_of(single(reference)))
    return distance(bins, counted(bins, logprobs.tolist())), distance_by_chance(len(logprobs), bins.size)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_distance_of_values_tied_within_bins(kind):
    rng = np.random.default_rng(0)
    reference, logprobs = single(KINDS[kind](rng, 300)), KINDS[kind](rng, 500) * 1.5
    bins = bins_of(reach_of(reference))
    places = np.array([bins.index(x) for x in [*logprobs.tolist(), *reference.tolist()]], float)
    labels = np.repeat([1, 0], [500, 300])[None].astype(np.uint8)
    other = compare(places, np.full(800, 0.5), np.zeros(800), labels).distance
    assert distance(bins, counted(bins, logprobs.tolist())) == pytest.approx(other, rel=1e-4)


def left_by_bins(kind, seed):
    """The share of the distance that is left by bins, where a model's log-probabilities have grown by a half."""
    rng = np.random.default_rng(seed)
    reference, logprobs = single(KINDS[kind](rng, 360)), single(KINDS[kind](rng, 2000) * 1.5)
    labels = np.repeat([1, 0], [2000, 360])[None].astype(np.uint8)
    values = np.concatenate([logprobs, reference])
    return drift(reference, logprobs)[0] / compare(values, np.full(2360, 0.5), np.zeros(2360), labels).distance


@pytest.mark.parametrize("kind", KINDS)
def test_bins_lose_little_of_the_distance_and_add_nothing(kind):
    left = [left_by_bins(kind, seed) for seed in range(40)]
    assert max(left) <= 1 + 1e-4  # single precision, there
    assert np.median(left) > 0.93


numbers = st.lists(
    st.sampled_from([-math.inf, -1e-30, -0.25, -0.5, 0.0]) | st.floats(-1e300, 0), min_size=1, max_size=80
)


@settings(max_examples=examples(200))
@given(reference=numbers, logprobs=numbers)
def test_any_numbers_have_bins(reference, logprobs):
    bins = bins_of(reach_of(single(np.array(reference))))
    assert list(bins.edges) == sorted({*bins.edges})
    assert len(bins.edges) <= 41
    assert math.isclose(sum(bins.shares), 1)
    assert bins.size == pytest.approx(len(reference))
    same = distance(bins, counted(bins, reference))
    assert same == pytest.approx(0, abs=1e-9)
    assert 0 <= distance(bins, counted(bins, logprobs)) < 1


def test_a_value_as_heavy_as_a_bin_is_apart_from_what_is_near():
    reference = np.array([0.0] * 60 + [-float(i) for i in range(1, 41)])
    moved, limit = drift(reference, np.array([0.0] * 30 + [-1e-9] * 30 + [-float(i) for i in range(1, 41)]))
    assert moved > 0.08
    same, _ = drift(reference, reference)
    assert same == pytest.approx(0, abs=1e-9)
    assert limit > 0


def test_what_was_tied_in_single_precision_stays_tied():
    third = math.log(1 / 3)
    bins = bins_of(reach_of(single(np.full(50, third))))
    assert bins.shares[bins.index(third)] == 1


def test_nothing_on_either_side_says_nothing():
    assert bins_of(Reach((), (), ())) is None
    bins = bins_of(reach_of(np.array([-1.0])))
    assert distance(bins, [0] * len(bins.shares)) is None


# How often chance alone alarms


def most_by_chance(trials, level=0.05, sure=0.999):
    """How many alarms a test of this level has at most, with this probability (by the normal law)."""
    return trials * level + NormalDist().inv_cdf(sure) * math.sqrt(trials * level * (1 - level))


@pytest.mark.thorough
@in_turn("kind", KINDS)
@in_turn("old, new", [(360, 100), (360, 1000), (40, 1000)])
def test_chance_alone_exceeds_the_limit_in_five_per_cent(kind, old, new):
    rng = np.random.default_rng(2)
    pairs = [drift(KINDS[kind](rng, old), KINDS[kind](rng, new)) for _ in range(400)]
    alarms = sum(moved > limit for moved, limit in pairs)
    assert alarms <= most_by_chance(400)
    assert alarms > 0  # the limit is one that chance can reach


def test_weights_that_differ_make_a_reference_smaller():
    logprobs = continuous(np.random.default_rng(0), 360)
    assert bins_of(reach_of(logprobs, np.full(360, 0.25))).size == pytest.approx(360)
    halves = np.where(np.arange(360) < 180, 0.1, 0.4)
    assert bins_of(reach_of(logprobs, halves)).size == pytest.approx(360 * 0.25**2 / np.mean(halves**2))


def test_weighted_queries_count_for_fewer():
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(400):
        weights = np.where(rng.uniform(size=360) < 0.5, 0.1, 1.0)
        bins = bins_of(reach_of(single(continuous(rng, 360)), weights))
        assert bins.size < 250
        counts = counted(bins, continuous(rng, 1000).tolist())
        alarms += distance(bins, counts) > distance_by_chance(1000, bins.size)
    assert alarms <= most_by_chance(400)
