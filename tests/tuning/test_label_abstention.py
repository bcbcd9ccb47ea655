"""Abstentions of single models and pairs judged on a log, against loops over the definition."""

import itertools

import jax
import numpy as np
import pytest
from helpers.selection_references import centred

from rcjax.tuning.candidate_scores import Blending, CalibratedRows, score_pairs

pytestmark = pytest.mark.usefixtures("float64")

K, N = 3, 9
COST = np.array([1.0, 10.0, 40.0])
judged_by = jax.jit(lambda *rows, worth: score_pairs(CalibratedRows(*rows, abstain_worth=worth), Blending()))


def random_log(seed, levels=6, missing=0.2):
    """(confidence, conditional, correct, present), with ties, and two queries at least that all have answered."""
    rng = np.random.default_rng(seed)
    confidence = rng.integers(1, levels + 1, (N, K)) / (levels + 1)
    present = (rng.uniform(size=(N, K)) >= missing) | (np.arange(N) < 2)[:, None]
    return confidence, rng.uniform(size=(K, N)), (rng.uniform(size=(N, K)) < 0.6) & present, present


def worth_at(price):
    return jax.device_put(np.asarray(1.0 - price))


def cuts(confidence):
    """Halfway between the distinct ones; what lies below all, and above all."""
    levels = np.unique(confidence)
    return [0.0, *(levels[1:] + levels[:-1]) / 2, 1.0]


def by_definition(confidence, conditional, correct, present, price):
    """[(first, second, threshold, error, abstention)], each model abstaining up to its own best threshold."""
    rows, level = [], {}
    for j in range(K):
        kept = present[:, j]
        phi = confidence[kept, j]
        right = correct[kept, j] / 4 + 3 / 4 * centred(phi, correct[kept, j])
        gains = {cut: (1 - price - right[phi <= cut]).sum() for cut in cuts(phi)}
        level[j] = max(gains, key=gains.get)
        error = 1 - correct[kept, j].mean() - gains[level[j]] / kept.sum()
        rows.append((j, j, 0.0, error, (phi <= level[j]).mean()))
    for row, (i, j) in enumerate(itertools.combinations(range(K), 2)):
        both = present[:, i] & present[:, j]
        first, second = confidence[both, i], confidence[both, j]
        y = correct[both, i] / 4 + 3 / 4 * centred(first, correct[both, i])
        then = correct[both, j] / 4 + 3 / 8 * centred(second, correct[both, j])
        then = then + 3 / 8 * centred(conditional[row, both], correct[both, j])
        for high in cuts(first)[1:-1]:
            asked, abstains = first <= high, second <= level[j]
            wrong = np.where(asked, np.where(abstains, price, 1 - then), 1 - y)
            rows.append((i, j, high, wrong.mean(), (asked & abstains).mean()))
    return rows


FIGURES = ("first", "second", "threshold", "penalty", "abstention")


@pytest.mark.parametrize("price", [0.1, 0.3, 0.6])
def test_the_last_model_abstains_up_to_the_threshold_that_is_best_for_it_alone(price):
    for seed in range(6):
        log = random_log(seed, levels=(2, 4, 50)[seed % 3])
        table, _ = judged_by(*log, np.tile(COST, (len(log[0]), 1)), worth=worth_at(price))
        kept = np.isfinite(table.penalty)
        rows = sorted(zip(*(np.asarray(getattr(table, name))[kept].tolist() for name in FIGURES), strict=True))
        np.testing.assert_allclose(rows, sorted(by_definition(*log, price)), atol=1e-10, err_msg=str(seed))
