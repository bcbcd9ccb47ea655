"""From what replicates of the bootstrap do to an interval around a figure."""

from statistics import NormalDist

import numpy as np

__all__ = ["mean_of_known", "quantiles", "sample_noise", "search_luck"]


_LUCK_OF_A_DRAW = 2.0  # a replicate's policies look so much luckier than those of the log


def sample_noise(kept: np.ndarray) -> np.ndarray:
    """(B, G) how far policies that are kept do differently on a draw, from their figures (B, G, 3).

    That replicates choose other policies at a λ, which trade error for cost, says nothing of what this one does.
    """
    return kept[..., 0] - kept[..., 1]


def search_luck(kept: np.ndarray, tuned: np.ndarray) -> np.ndarray:
    """(G,) by how much policies do worse in service than on the log, from figures (B, G, 3) kept and tuned.

    Half of how much worse a replicate's own policies do out of their bag than in it. Where the policies of a log do
    better by a on it than the best there are, and worse by a in service, those of a draw have the noise of the log and
    that of the draw: worse by 2a out of their bag, and better by 2a in it, as they were fitted to both (Efron & Gong
    1983, "A leisurely look at the bootstrap, the jackknife, and cross-validation", The American Statistician 37).
    """
    return (mean_of_known(tuned[..., 2] - tuned[..., 1]) - mean_of_known(kept[..., 2] - kept[..., 1])) / _LUCK_OF_A_DRAW


def quantiles(spread: np.ndarray, n: int, level: float) -> np.ndarray:
    """(L, 2) ends of an interval from replicates (B, L), wider for few queries as Student's t is than the normal.

    A bootstrap of n queries is too narrow by √((n − 1)/n) besides, and it is skewed as the figure itself is, not as
    the truth around it: the tails change sides (Hesterberg 2015, "What teachers should know about the bootstrap",
    sections 4.1 and 4.4: percentiles, expanded).
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    freedom = max(n - 1, 1)  # Cornish and Fisher's expansion, good to 1 % from ten queries on
    student = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    spread = spread[np.isfinite(spread).all(1)]
    middle = spread.mean(0)
    tails = np.quantile(spread, [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull")
    upper, lower = middle - tails
    widened = np.stack([lower, upper]) * student / z * np.sqrt(n / max(n - 1, 1))
    return (middle + widened).T


def mean_of_known(values: np.ndarray) -> np.ndarray:
    """(G,) mean over the replicates that know; 0 where none does."""
    known = np.isfinite(values)
    return np.where(known, values, 0.0).sum(0) / np.maximum(known.sum(0), 1)
