"""AutoMix's thresholds: the small model's answer is kept where its verification is confident enough.

Aggarwal et al. 2024 (arXiv 2310.12963), sections 3.2 and 4: the small model verifies its own answer k = 8 times, the
share of "correct" is held against a threshold, and the best threshold on some labels is taken: there by the benefit per
cost, here by what the budget allows. Its verification is a prompt; here it is the confidence of the log, rounded to
eighths. Pairs of all models are tried.
"""

import itertools

import numpy as np

from benchmarks.methods import Columns, outcomes

VERIFICATIONS = 8


def automix(train: Columns, test: Columns) -> np.ndarray:
    """(P, 4) figures of the models alone, and of every pair at the shares that eight verifications can have."""
    rows = [np.stack([x.mean(0) for x in (train.wrong, train.cost, test.wrong, test.cost)], axis=1)]
    shares = (np.arange(VERIFICATIONS) / VERIFICATIONS)[:, None]
    for pair in itertools.combinations(range(train.wrong.shape[1]), 2):
        both = []
        for data in (train, test):
            some = data.cascade(pair)
            verified = np.rint(np.exp(some.confidence) * VERIFICATIONS) / VERIFICATIONS
            both.append(outcomes(some._replace(confidence=verified), shares))
        rows.append(np.stack([x for curve in both for x in (curve.error, curve.cost)], axis=1))
    return np.concatenate(rows)
