"""FrugalGPT: the best list of three models, with the thresholds that err least on the labels within the budget.

Chen, Zaharia, Zou 2023 (arXiv 2305.05176), section 3: maximise the reward over lists of m APIs and their thresholds,
the average bill being within the budget. Its scorer is a trained model; here it is the confidence of the log. Lists
are searched whole, in the order of their bills, with a grid of quantiles as thresholds.
"""

import itertools

import numpy as np

from benchmarks.methods import Columns, outcomes, pareto

LONGEST = 3  # models in a list, as in the paper
LEVELS = 24  # quantiles per threshold


def frugalgpt(train: Columns, test: Columns) -> np.ndarray:
    """(P, 4) figures of the lists and thresholds that nothing beats on the labels."""
    models = range(train.wrong.shape[1])
    rows = []
    for length in range(1, min(LONGEST, len(models)) + 1):
        for chain in itertools.combinations(models, length):
            rows.append(best_thresholds(chain, train, test))
    points = np.concatenate(rows)
    return points[pareto(points[:, 1], points[:, 0])]


def best_thresholds(chain: tuple[int, ...], train: Columns, test: Columns) -> np.ndarray:
    """(P, 4) figures of one list, at the combinations of a grid that nothing beats on the labels."""
    seen, fresh = train.cascade(chain), test.cascade(chain)
    levels = np.arange(LEVELS + 1) / LEVELS
    grids = [np.unique(np.quantile(column, levels, method="lower")) for column in seen.confidence.T[:-1]]
    combinations = np.array([*itertools.product(*grids)])
    counted = outcomes(seen, combinations)
    front = pareto(counted.cost, counted.error)
    came = outcomes(fresh, combinations[front])
    return np.stack([counted.error[front], counted.cost[front], came.error, came.cost], axis=1)
