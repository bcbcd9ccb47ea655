"""What there is to choose from, and where targets stand in it: against the best mixture of two, among all twos."""

import jax
import numpy as np
from helpers.cross_validation_references import best_for, mix_for
from hypothesis import given, settings, strategies as st
from test_candidates import QUERY_COST, K, random_log, score_jitted
from tiers import examples

from rcjax.tuning.candidate_scores import _undominated
from rcjax.tuning.candidate_table import RESAMPLED_RUNGS, Candidates
from rcjax.tuning.cross_validation import Targets, choose_mixtures, choose_single_candidates


def made(seed, count, levels):
    """Policies of two models, with ties where there are few levels."""
    rng = np.random.default_rng(seed)
    cost = rng.integers(1, levels, count) / levels
    error = np.clip(np.exp(-3 * cost) + rng.integers(0, levels, count) / levels * 0.2, 0, 1)
    first, half = np.zeros(count, int), np.full(count, 0.5)
    return Candidates(2, first, first + 1, first + 1, half, half, error, cost, half)


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 5, 60]), st.sampled_from([3, 10, 10**6]))
def test_no_mixture_of_two_candidates_is_better_than_the_choice(seed, count, levels):
    table = made(seed, count, levels)
    targets = Targets(np.geomspace(0.01, 100, 9), np.linspace(-0.1, 1.1, 13))
    choice, one = choose_mixtures(table, targets), choose_single_candidates(table, targets)
    assert len(choice.rungs.cost) <= RESAMPLED_RUNGS
    np.testing.assert_allclose(choice.weights.sum(1), 1, rtol=1e-12)
    assert ((choice.weights > 0).sum(1) <= 2).all()
    filled = choice.padded()
    assert filled.weights.shape == (22, RESAMPLED_RUNGS)
    np.testing.assert_allclose(filled.penalty, choice.penalty, rtol=1e-12)
    wanted = [{name: each} for name, values in zip(("lam", "budget"), targets, strict=True) for each in values]
    for target, weights, alone in zip(wanted, choice.weights, one.weights, strict=True):
        error, cost = weights @ choice.rungs.penalty, weights @ choice.rungs.cost
        mixed = mix_for(table.penalty, table.cost, **target)
        best = sum(share * np.array([table.penalty[place], table.cost[place]]) for share, place in mixed)
        if "lam" in target:
            error, best = error + target["lam"] * cost, best @ [1, target["lam"]]
        np.testing.assert_allclose(error if "lam" in target else (error, cost), best, rtol=1e-9, atol=1e-12)
        assert alone.tolist() == np.eye(count)[best_for(table.penalty, table.cost, **target)].tolist()


def test_a_pair_that_a_single_model_beats_by_labels_is_no_candidate(float64):
    """A pair is dropped if a cheaper single model has fewer errors by labels; single models stay."""
    found, label_penalty = jax.tree.map(np.asarray, score_jitted(*random_log(8, levels=1000), QUERY_COST))
    expected = []
    for place, (error, label_error, cost) in enumerate(zip(found.penalty, label_penalty, found.cost, strict=True)):
        beaten = any(label_penalty[j] < label_error and found.cost[j] < cost for j in range(K))
        if np.isfinite(error) and (place < K or not beaten):
            expected.append(place)
    assert K + 3 < len(expected) < np.isfinite(found.penalty).sum()
    assert _undominated(found, label_penalty).tolist() == expected
