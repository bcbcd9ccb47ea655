"""BARGAIN: the lowest threshold of a cheap model at which answers are, surely enough, those of the dear one.

Zeighami, Shankar, Parameswaran 2025 (arXiv 2509.02896), the variant for an accuracy target: twenty thresholds, at equal
shares of the queries, are tried from the highest on. For each it is tested that the output agrees with the dear model
on a share T, by betting on the labels one by one (Waudby-Smith & Ramdas 2024), each at the level δ; the first that
fails ends it. What the dear model answers agrees by definition.

There the queries to be answered are at hand, so that the share above a threshold is certain and labels are drawn only
there. Here a policy is for queries to come: the labels are a sample of all, and the bet is on the whole disagreement.
"""

import numpy as np

from benchmarks.methods import Columns, outcomes
from rcjax.tuning.certify import refutes_mean

THRESHOLDS, FAILS = 20, 0.05  # how many are tried; δ
TARGETS = 1 - np.geomspace(0.005, 0.5, 30)


def thresholds_for(
    confidence: np.ndarray, differs: np.ndarray, accuracy: np.ndarray, fails: float = FAILS
) -> np.ndarray:
    """(T,) confidences up to which queries go to the dear model; infinite where all must.

    Args:
        confidence, differs: (n,) of the cheap model, in random order: whether its answer is not the dear one's.
        accuracy: (T,) shares of answers that are to be the dear model's.
        fails: δ, how likely a promise may be false.
    """
    chosen, going = np.full(len(accuracy), np.inf), np.ones(len(accuracy), bool)
    for share in np.arange(1, THRESHOLDS + 1) / THRESHOLDS:
        threshold = np.quantile(confidence, 1 - share, method="lower") if share < 1 else -np.inf
        loss = (confidence > threshold) * differs
        going &= refutes_mean(loss, 1 - accuracy, fails)
        if not going.any():
            break
        chosen[going] = threshold
    return chosen


def bargain(train: Columns, test: Columns) -> np.ndarray:
    """(P, 4) figures of the thresholds for thirty targets, of every model before the dearest, and of all alone.

    Where the log tells no answers, a cheap answer differs where it is wrong and the dear one is not.
    """
    last = train.wrong.shape[1] - 1
    rows = [np.stack([x.mean(0) for x in (train.wrong, train.cost, test.wrong, test.cost)], axis=1)]
    for small in range(last):
        differs = differences(train, small, last)
        thresholds = np.unique(thresholds_for(train.logprob[:, small], differs, TARGETS))[:, None]
        both = [outcomes(data.cascade((small, last)), thresholds) for data in (train, test)]
        rows.append(np.stack([x for curve in both for x in (curve.error, curve.cost)], axis=1))
    return np.concatenate(rows)


def differences(data: Columns, small: int, large: int) -> np.ndarray:
    """(n,) 1 where the answer of one model is another than that of the other."""
    if data.answer is None:
        return (data.wrong[:, small] > data.wrong[:, large]).astype(float)
    return ((data.answer[:, small] != data.answer[:, large]) | (data.answer[:, small] < 0)).astype(float)
