"""From what replicates of the bootstrap do to intervals."""

from statistics import NormalDist

import numpy as np

from rcjax.frontier.outcomes import Outcomes

_LUCK_OF_A_DRAW = 2.0  # a replicate's policies look so much luckier than those of the log


def for_money(rungs: Outcomes, money: np.ndarray) -> Outcomes:
    """(B, M, S) what becomes of queries under B ladders that follow their bills, for so much money per query (M,).

    Args:
        rungs: (B, R, S) what becomes of S sets of queries by each rung: the position on each set is where the
            rungs cost the money there, the most expensive or the cheapest rung where none does.
        money: (M,)

    >>> wrong, bill = np.array([[[0.4] * 3, [0.2] * 3]]), np.array([[[1.0] * 3, [3.0, 2.0, 5.0]]])
    >>> for_money(Outcomes(wrong, bill, 0 * bill), np.array([2.0])).wrong.round(2).tolist()
    [[[0.3, 0.2, 0.35]]]
    """
    order = np.argsort(rungs.cost, axis=1)
    ordered = [np.moveaxis(np.take_along_axis(np.asarray(figure, float), order, 1), 2, 1) for figure in rungs]
    costs = ordered[1].reshape(-1, order.shape[1])

    def at(figure: np.ndarray) -> np.ndarray:
        rows = [np.interp(money, cost, row) for cost, row in zip(costs, figure.reshape(costs.shape), strict=True)]
        return np.moveaxis(np.array(rows).reshape(len(order), figure.shape[1], len(money)), 1, 2)

    return Outcomes(*map(at, ordered))


def sample_noise(fixed: np.ndarray) -> np.ndarray:
    """(B, G) how far policies that stay as they are do differently on a draw, from their figures (B, G, 3).

    That replicates choose other policies at a λ, which trade error for cost, says nothing of what this one does.
    """
    return fixed[..., 0] - fixed[..., 1]


def search_luck(fixed: np.ndarray, tuned: np.ndarray) -> np.ndarray:
    """(G,) by how much policies do worse in service than on the log.

    From figures (B, G, 3), on the log, in the bag and out of it: of policies that stay as they are, and of those that
    replicates tune.

    Half of how much worse a replicate's own policies do out of their bag than in it. Where the policies of a log do
    better by a on it than the best there are, and worse by a in service, those of a draw have the noise of the log and
    that of the draw: worse by 2a out of their bag, and better by 2a in it, as they were fitted to both (Efron & Gong
    1983, "A leisurely look at the bootstrap, the jackknife, and cross-validation", The American Statistician 37).
    """
    by_tuned, by_fixed = (mean_of_known(figure[..., 2] - figure[..., 1]) for figure in (tuned, fixed))
    return (by_tuned - by_fixed) / _LUCK_OF_A_DRAW


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
    finite = np.isfinite(values)
    return np.where(finite, values, 0.0).sum(0) / np.maximum(finite.sum(0), 1)
