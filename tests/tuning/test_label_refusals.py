"""Refusals of single models and pairs judged on a log, against loops over the definition."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from misses import in_turn
from selection_references import centred

from rcjax.replaying.walk import outcomes
from rcjax.tuning import label_refusals
from rcjax.tuning.choices import as_cascades, best_candidates, merged
from rcjax.tuning.judging import AS_USUAL, Blend, Judging
from rcjax.tuning.label_candidates import CandidateRows, candidates, refusing_candidates
from rcjax.tuning.label_refusals import refuse_alone, spread_cuts

pytestmark = pytest.mark.usefixtures("float64")

K, N = 3, 9
COST = np.array([1.0, 10.0, 40.0])
LAM = np.array([1e-4, 2e-3, 1e-2, 3e-2])
judged_by = jax.jit(refusing_candidates)
without_refusals = jax.jit(lambda *rows: candidates(CandidateRows(*rows), AS_USUAL))


def random_log(seed, levels=6, missing=0.2):
    """(confidence, crossed, correct, present), with ties, and two queries at least that all have answered."""
    rng = np.random.default_rng(seed)
    confidence = rng.integers(1, levels + 1, (N, K)) / (levels + 1)
    present = (rng.uniform(size=(N, K)) >= missing) | (np.arange(N) < 2)[:, None]
    return confidence, rng.uniform(size=(K, N)), (rng.uniform(size=(N, K)) < 0.6) & present, present


def price_of(price):
    return jax.device_put(np.asarray(1.0 - price))


def tried(*arguments):
    """Of (confidence, crossed, correct, present, charge, λ, refusal), judged as is usual."""
    *rows, lam, refusal = arguments
    return judged_by(CandidateRows(*rows), lam, Judging(refusal=refusal))


def loss(candidates):
    return np.asarray(candidates.error) + LAM[:, None] * np.asarray(candidates.cost)


def cuts(confidence):
    """Halfway between the distinct ones; what lies below all, and above all."""
    levels = np.unique(confidence)
    return [0.0, *(levels[1:] + levels[:-1]) / 2, 1.0]


def by_definition(confidence, crossed, correct, present, price):
    """(L,) the least penalty + λ·cost of every single model and pair with any refusals, by trying them all."""
    least = np.full(len(LAM), np.inf)
    for j in range(K):
        kept = present[:, j]
        phi = confidence[kept, j]
        right = correct[kept, j] / 4 + 3 / 4 * centred(phi, correct[kept, j])
        gains = [(right[phi <= level] - (1 - price)).sum() for level in cuts(phi)]
        least = np.minimum(least, 1 - correct[kept, j].mean() + min(gains) / kept.sum() + LAM * COST[j])
    for row, (i, j) in enumerate(itertools.combinations(range(K), 2)):
        both = present[:, i] & present[:, j]
        first, second = confidence[both, i], confidence[both, j]
        y = correct[both, i] / 4 + 3 / 4 * centred(first, correct[both, i])
        then = correct[both, j] / 4 + 3 / 8 * centred(second, correct[both, j])
        then = then + 3 / 8 * centred(crossed[row, both], correct[both, j])
        for high in cuts(first)[1:-1]:
            for last in cuts(second)[:-1]:
                asked = first <= high
                wrong = np.where(asked, np.where(second <= last, price, 1 - then), 1 - y)
                least = np.minimum(least, wrong.mean() + LAM * (COST[i] + COST[j] * asked.mean()))
    return least


@pytest.mark.thorough
@in_turn("price", [0.1, 0.3, 0.6])
def test_no_refusals_and_thresholds_are_better(price):
    for seed in range(6):
        log = random_log(seed, levels=(2, 4, 50)[seed % 3])
        candidates = tried(*log, COST, LAM, price_of(price))
        np.testing.assert_allclose(loss(candidates).min(1), by_definition(*log, price), rtol=1e-10, err_msg=str(seed))


@pytest.mark.parametrize("price", [0.1, 0.3, 0.6])
def test_to_refuse_is_no_worse_than_never_to(price):
    for seed in range(20, 40):
        log = random_log(seed)
        never = without_refusals(*log, COST)
        least = np.min(np.asarray(never.error) + LAM[:, None] * np.asarray(never.cost), axis=1)
        assert (loss(tried(*log, COST, LAM, price_of(price))).min(1) <= least + 1e-12).all()


def test_where_a_refusal_is_worth_nothing_all_is_as_without():
    for seed in range(5):
        log = random_log(seed)
        candidates, never = tried(*log, COST, LAM, price_of(1.0)), without_refusals(*log, COST)
        assert (np.asarray(candidates.abstention)[np.arange(len(LAM)), loss(candidates).argmin(1)] == 0).all()
        np.testing.assert_allclose(
            loss(candidates).min(1),
            (np.asarray(never.error) + LAM[:, None] * np.asarray(never.cost)).min(1),
            rtol=1e-12,
        )


def test_where_it_costs_nothing_the_cheapest_model_refuses_all():
    confidence, crossed, correct, present = random_log(3)
    candidates = tried(confidence.clip(max=0.9), crossed, correct, present, COST, LAM, price_of(0.0))
    best = loss(candidates).argmin(1)
    assert (best == 0).all()
    np.testing.assert_allclose(np.asarray(candidates.abstention)[:, 0], 1.0)
    np.testing.assert_allclose(np.asarray(candidates.refused)[:, 0], 1.0)


def test_by_labels_alone_the_figures_are_those_of_a_walk():
    """Without smoothing, every candidate's figures are what its cascade makes of the queries themselves."""
    confidence, crossed, correct, present = random_log(1, missing=0.0)
    charge = COST * np.random.default_rng(1).uniform(0.2, 5, (N, K))
    rows = CandidateRows(confidence, crossed, correct, present, charge)
    candidates = judged_by(rows, LAM, Judging(Blend(0.0, 0.0), price_of(0.3)))
    flat = jax.jit(merged)(candidates)
    cascades = jax.jit(lambda flat: as_cascades(flat, jnp.arange(len(flat.error)), K))(flat)
    wrong, spent, refused = (np.asarray(column) for column in jax.jit(outcomes)(confidence, correct, charge, cascades))
    kept = np.isfinite(flat.error)
    assert kept.sum() > 20
    np.testing.assert_allclose((wrong + 0.3 * refused).mean(1)[kept], flat.error[kept], atol=1e-12)
    np.testing.assert_allclose(spent.mean(1)[kept], flat.cost[kept], rtol=1e-12)
    np.testing.assert_allclose(spent.std(1)[kept] / np.sqrt(N), flat.cost_se[kept], rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(refused.mean(1)[kept], flat.abstention[kept], atol=1e-12)


def test_each_price_chooses_among_its_own_candidates():
    log = random_log(5)
    candidates = tried(*log, COST, LAM, price_of(0.2))
    np.testing.assert_array_equal(jax.jit(best_candidates)(candidates, LAM), loss(candidates).argmin(1))


def test_in_single_precision(float32):
    confidence, crossed, correct, present = random_log(0)
    lower = [each.astype(np.float32) for each in (confidence, crossed, COST, LAM)]
    candidates = tried(*lower[:2], correct, present, *lower[2:], jnp.asarray(0.7))
    assert candidates.error.dtype == candidates.abstention.dtype == candidates.refused.dtype == jnp.float32
    expected = by_definition(confidence, crossed, correct, present, 0.3)
    np.testing.assert_allclose(loss(candidates).min(1), expected, rtol=1e-5)


def test_of_no_queries_nothing_is_known():
    confidence, crossed, correct, present = random_log(0)
    nobody = np.zeros_like(present)
    nobody[:, 0] = True
    candidates = tried(confidence, crossed, correct & nobody, nobody, COST, LAM, price_of(0.3))
    assert np.isfinite(np.asarray(candidates.error)[:, 0]).all()
    assert not np.isfinite(np.asarray(candidates.error)[:, 1:]).any()


def test_few_cuts_are_spread_over_many_queries(monkeypatch):
    confidence, present = np.random.default_rng(0).uniform(size=101), np.ones(101, bool)
    candidates = jax.jit(spread_cuts, static_argnums=2)(confidence, present, 10)
    below = (confidence[:, None] <= np.asarray(candidates.threshold)).sum(0)
    np.testing.assert_array_equal(below[:-1], [11, 21, 31, 41, 51, 61, 71, 81, 91])
    assert not candidates.parts[-1]
    monkeypatch.setattr(label_refusals, "MOST_CUTS", 10)
    right = np.where(confidence > 0.5, 0.9, 0.1)
    refusal, gain, share = jax.jit(refuse_alone)(confidence, right, present, np.asarray(0.5))
    assert abs(float(refusal) - 0.5) < 0.1
    assert float(gain) == pytest.approx(0.4 * float(share), abs=0.04)
