"""Intervals for the true error of policies, of which a replay has seen a sample."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from rcjax.logs.log import Log
from rcjax.model.label_outcomes import is_whole
from rcjax.replaying.curves import wilson_interval
from rcjax.replaying.replay import Replay


def error_interval(replayed: Replay, log: Log, level: float = 0.9) -> np.ndarray:
    """(…, 2) interval for the true error of what was replayed on a log: Wilson's, for so many queries as tell it.

    These are all that were replayed, where each of their answers is right or wrong by a label. With scores, or where
    some answers have no label, it is as many as, all right or wrong, would have the standard error of the replay.

    >>> import rcjax
    >>> log = rcjax.sample_log(200, seed=0)
    >>> policy = rcjax.solve_frontier(rcjax.fit(log)).policy(error_cost=0.001)
    >>> low, high = error_interval(rcjax.replay(policy, log), log)
    >>> bool(0 < low < high < 1)
    True
    """
    error = np.clip(np.asarray(replayed.error, float), 0.0, 1.0)
    whole = log.scores is None and is_whole(log)
    return wilson_interval(error, replayed.n if whole else _size(error, replayed, log, level), level)


def _size(error: np.ndarray, replayed: Replay, log: Log, level: float) -> np.ndarray:
    """(…) queries that, right or wrong, would have the standard error of a replay.

    Few labels may show no error at all, and a variance of none. So z²/2 right and z²/2 wrong answers count beside the
    labels, as in Wilson's interval itself, and what these add to the variance of the labels is added here.
    """
    n, variance = replayed.n, np.asarray(replayed.error_se, float) ** 2
    if is_whole(log):
        return np.divide(error * (1 - error), variance, out=np.full(error.shape, float(n)), where=variance > 0)
    labels, square = _labels(replayed, log), NormalDist().inv_cdf((1 + level) / 2) ** 2
    centre = (labels * error + square / 2) / (labels + square)
    more = np.maximum(centre * (1 - centre) - error * (1 - error), 0.0) / labels
    return np.minimum(centre * (1 - centre) / (variance + more), n)


def _labels(replayed: Replay, log: Log) -> np.ndarray:
    """(…) labels on the answers of what was replayed, as many as would tell as much if all answers had the same chance.

    That is 1 / Σ sⱼ/mⱼ, of models with mⱼ labels that give a share sⱼ of the answers.
    """
    columns = [log.models.index(name) for name in replayed.models]
    of_model = np.maximum(log.labelled[:, columns].sum(0), 1)
    answered = np.asarray(log.answered)[:, columns].sum(0)
    chance = np.minimum(of_model / np.maximum(answered, 1), 1.0)
    share = np.asarray(replayed.share, float)
    part = (share / chance).sum(-1) / np.maximum(share.sum(-1), 1e-9)
    return replayed.n / np.maximum(part, 1.0)
