"""Which of the candidates are the best: for prices, and within budgets; and as policies."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import part
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER, NEVER_REFUSE, Policies, Splits
from rcjax.tuning.label_candidates import Candidates

#: Standard errors of the bill of a pair that a budget keeps in hand: more costs errors, less overspends more often
#: (`benchmarks.budgets`).
RESERVE = 0.75


def merged(candidates: Candidates) -> Candidates:
    """The candidates in one row: where models may refuse each λ has its own, (L, C), and so many are there, (L·C,)."""
    if candidates.refused is None:
        return candidates
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), candidates)


def best_candidates(candidates: Candidates, lam: Any, xp: Any = np) -> Any:
    """(L,) the place of the candidate with the least error + λ·cost for each λ (L,), among all of them or its own.

    A price parts no queries of one confidence: to pass on all of them, or none, is as good at the least.
    """
    error = candidates.error
    if candidates.share is not None:
        error = xp.where(candidates.share < 1, xp.inf, error)
    return (error + lam[:, None] * candidates.cost).argmin(-1)


def within(limits: np.ndarray, limited: np.ndarray, least: np.ndarray) -> np.ndarray:
    """(B,) for each limit, the place of the least of those that keep to it; of the least limited where none does.

    Args:
        limits: (B,) budgets, or errors.
        limited: (C,) what each needs, or how often it errs; infinite for what is never to be taken.
        least: (C,) what is to be low: the error within a budget, the bill within a limit on the error.

    >>> within(np.array([2.5, 0.5]), np.array([1.0, 2.0, 3.0]), np.array([0.3, 0.2, 0.1])).tolist()
    [1, 0]
    """
    fits = np.isfinite(limited) & (limited <= limits[:, None])
    return np.where(fits.any(1), np.where(fits, least, np.inf).argmin(1), limited.argmin())


def reserve(candidates: Candidates) -> np.ndarray:
    """(C,) money that a budget keeps in hand: `RESERVE` standard errors of the bill of a pair, whose threshold is free.

    The bill of a single model is what it is.
    """
    return np.where(candidates.first == candidates.second, 0.0, RESERVE * candidates.cost_se)


def as_cascades(trial: Candidates, places: Any, k: int, xp: Any = jnp) -> Policies:
    """(L,) the candidates at some places, as policies over k models.

    Args:
        trial: all candidates.
        places: (L,) by position.
        k: the number of models.
        xp: jax.numpy, or numpy outside of a jitted function.
    """
    chosen = part(trial, places)
    everyone = np.arange(k)
    is_first, is_second = (place[:, None] == everyone for place in (chosen.first, chosen.second))
    alone = xp.where(is_second, ALWAYS_ANSWER, NEVER_ANSWER).astype(chosen.threshold.dtype)
    thresholds, members = xp.where(is_first, chosen.threshold[:, None], alone), is_first | is_second
    if chosen.refused is not None:
        refusals = xp.where(is_second, chosen.refused[:, None], NEVER_REFUSE)
        return Policies.of_cascades(xp.maximum(thresholds, refusals), members, refusals, xp)
    if chosen.share is None or chosen.above is None:
        return Policies.of_cascades(thresholds, members, xp=xp)
    above = xp.where(is_first, chosen.above[:, None], thresholds)
    share = xp.where(is_first, chosen.share[:, None], xp.ones_like(thresholds))
    return Policies.of_cascades(thresholds, members, xp=xp, splits=Splits(above, share))
