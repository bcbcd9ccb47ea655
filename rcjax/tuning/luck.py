"""By how much the best policies look better on the queries of their choice than on others.

A single model is what it is: its error is counted. All else was chosen among many, and its error is raised by the luck
of that choice: by how much more, in the contest, what was chosen errs on the queries that were left out than it did on
those of its choice, over all prices together, or over all budgets. Single figures of it are noise.
"""

import numpy as np

from rcjax.tuning.comparison import Comparison
from rcjax.tuning.trials import Trial

__all__ = ["raised_by_luck"]


def raised_by_luck(trial: Trial, comparison: Comparison, by_price: bool, least: float) -> Trial:
    """Policies with their errors corrected, but for single models.

    Args:
        trial: the policies.
        comparison: what the contest has shown.
        by_price: whether they are the best for prices, or for budgets.
        least: the least luck that there is: by the labels alone nothing looks worse than it is.
    """
    at = comparison.at_budgets
    assert at is not None
    lucks = np.asarray(comparison.luck) if by_price else at.luck[min(1, len(comparison.lengths) - 1) :]
    compares = trial.policies.agreements is not None and trial.policies.agreements.compares.any(-1)
    luck = np.where(compares, lucks[-1], lucks[0])
    penalty = trial.penalty + np.where(trial.alone, 0.0, np.maximum(luck, least))
    return trial._replace(penalty=np.clip(penalty, 0.0, 1.0))
