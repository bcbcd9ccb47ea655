"""UCCI: the small model's uncertainty becomes a probability of error by isotonic regression, and has a threshold.

Kotte 2026 (arXiv 2605.18796): a query goes to the large model where the calibrated probability that the small one errs
is above τ, which is chosen by minimising the bill under a constraint on the quality that the calibration expects. Its
uncertainty is the margin of the tokens; here it is the confidence of the log. Pairs of all models are tried, since the
paper does not say how two are chosen; of an answer of the large model it expects the large model's mean error.
"""

import itertools

import numpy as np

from benchmarks.methods import Columns, outcomes


def ucci(train: Columns, test: Columns) -> np.ndarray:
    """(P, 4) figures of the single models, and of every pair at each calibrated probability of error."""
    wrong, cost = train.wrong.mean(0), train.cost.mean(0)
    rows = [np.stack([wrong, cost, test.wrong.mean(0), test.cost.mean(0)], axis=1)]
    for small, large in itertools.combinations(range(len(wrong)), 2):
        confidence = train.logprob[:, small]
        order = np.argsort(confidence, kind="stable")
        values, risk = isotonic(confidence[order], train.wrong[order, small])
        # One threshold for each block of equal risk: what is as uncertain is treated alike.
        thresholds = values[np.append(np.diff(risk) < 0, False)]
        if not thresholds.size:
            continue
        kept = confidence[:, None] > thresholds
        expected = np.where(kept, risk[np.searchsorted(values, confidence)][:, None], wrong[large]).mean(0)
        bill = cost[small] + np.where(kept, 0.0, train.cost[:, large, None]).mean(0)
        came = outcomes(test.cascade((small, large)), thresholds[:, None])
        rows.append(np.stack([expected, bill, came.error, came.cost], axis=1))
    return np.concatenate(rows)


def isotonic(confidence: np.ndarray, wrong: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different confidences, rising, and the falling probabilities of error that fit them best.

    Pool adjacent violators (Ayer et al. 1955; Robertson, Wright, Dykstra 1988, section 1.2).
    """
    values, first, counts = np.unique(confidence, return_index=True, return_counts=True)
    blocks: list[list[float]] = []  # mean, weight, how many values
    for mean, weight in zip(np.add.reduceat(wrong, first) / counts, counts, strict=True):
        blocks.append([float(mean), float(weight), 1])
        while len(blocks) > 1 and blocks[-2][0] <= blocks[-1][0]:
            (a, n, p), (b, m, q) = blocks[-2:]
            blocks[-2:] = [[(a * n + b * m) / (n + m), n + m, p + q]]
    return values, np.repeat([block[0] for block in blocks], [int(block[2]) for block in blocks])
