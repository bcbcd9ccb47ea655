"""Is a mean below a limit? By betting: exact in finite samples, for losses whose upper ends are known.

A gambler starts with 1 and stakes λ_t on each loss X_t against its expectation's being m or more,

    K_t = K_{t−1} · (1 + λ_t (m − X_t)),    0 ≤ λ_t < 1/(u_t − m),    X_t ≤ u_t

If it is, K is a supermartingale without debts, and reaches 1/α with a probability of α at most, ever (Ville's
inequality): where it does, m is refuted at the level α (Waudby-Smith & Ramdas 2024, "Estimating means of bounded random
variables by betting", JRSS B 86(1)). Any stake will do that depends on what came before alone. This one aims at 1/α
with the losses to come: where r of them are left, of variance v, and log K is c short of log 1/α, it is √(2c/(rv))
(Voráček & Orabona 2025, "STaR-Bets: Sequential target-recalculating bets for tighter confidence intervals", arXiv
2505.22422). Of losses of 0 or 1 it refutes nearly as much as the binomial tail, of others far more.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

_MOST_STAKED = 0.9  # of what could be lost at once

_LOSSES_KNOWN = 4.0  # losses for which the variance that is supposed at first stands

_BLOCKS = 200  # at whose beginnings stakes are reckoned, of more losses than that

_GRID, _REFINED = 32, 4  # limits that are tried at once, so often one between two others


def refuted(losses: ArrayLike, limit: ArrayLike, level: float, most: ArrayLike = 1.0) -> np.ndarray:
    """(…) bool: whether n losses, one after the other, refute that their expectation is `limit` or more.

    Args:
        losses: (…, n) in an order that is not theirs: random, or that of a clock.
        limit: (…) the limits.
        level: the probability, at most, of a wrong refutation.
        most: (n,) the largest value that each could have, known before it is seen; or () of all.

    >>> losses = np.tile([0.0, 0.0, 0.0, 1.0], 75)
    >>> refuted(losses, [0.2, 0.25, 0.3, 0.35], 0.05).tolist()
    [False, False, True, True]
    """
    x, m = np.asarray(losses, float), np.maximum(np.asarray(limit, float)[..., None], 1e-12)
    n = x.shape[-1]
    if n == 0:
        return np.zeros(np.broadcast_shapes(x.shape[:-1], m.shape[:-1]), bool)
    room = np.maximum(np.broadcast_to(most, n) - m, 1e-12)
    missing = np.full(np.broadcast_shapes((*x.shape[:-1], 1), m.shape), -math.log(level))
    weight = _LOSSES_KNOWN / m
    squares = weight * m * room.mean(-1, keepdims=True)  # as if each were 0 or the most
    for block in np.array_split(np.arange(n), min(n, _BLOCKS)):
        variance = np.maximum(squares / (weight + block[0]), 1e-12)
        stake = np.minimum(np.sqrt(2 * missing / ((n - block[0]) * variance)), _MOST_STAKED / room[..., block])
        below = m - x[..., block]
        gained = np.cumsum(np.log1p(stake * below), axis=-1)
        there = (missing == 0) | (gained.max(-1, keepdims=True) >= missing)
        missing = np.where(there, 0.0, missing - gained[..., -1:])
        squares = squares + (below**2).sum(-1, keepdims=True)
    return missing[..., 0] == 0


def upper_limit(losses: ArrayLike, level: float, most: ArrayLike = 1.0, top: float = 1.0) -> float:
    """The largest limit up to `top` that losses do not refute: an upper confidence limit of their expectation.

    Args:
        losses, level, most: as of `refuted`.
        top: the largest limit that is tried.

    >>> round(upper_limit(np.tile([0.0, 0.0, 0.0, 1.0], 75), 0.05), 2)
    0.3
    """
    low, high = 0.0, top
    for _ in range(_REFINED):
        grid = np.linspace(low, high, _GRID + 1)
        kept = np.flatnonzero(~refuted(losses, grid[1:], level, most))
        place = int(kept[-1]) + 1 if len(kept) else 0  # 0 is never refuted
        if place == _GRID:
            return float(high)
        low, high = grid[place : place + 2]
    return float(high)
