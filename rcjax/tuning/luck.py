"""By how much cascades look better on the queries of their choice than single models do.

The best of many looks better than it is on other queries, and there are many more cascades to choose from than models.
In the contest, what was chosen errs more on the queries that were left out than it did on those of its choice, over all
prices together, or all budgets, or all limits on the error: single figures of that are noise. By as much more as that
is for cascades than for single models, the errors of cascades are raised: by that of the kind of target that they are
to be chosen for. So both are told by one measure, and single models are as counted.
"""

import numpy as np

from rcjax.policy.targets import TargetName
from rcjax.tuning.comparison import Comparison
from rcjax.tuning.trials import Trial

__all__ = ["luck_of", "raised_by_luck"]


def raised_by_luck(trial: Trial, comparison: Comparison, target: TargetName) -> Trial:
    """Policies with their errors corrected, but for single models.

    Args:
        trial: the policies.
        comparison: what the contest has shown.
        target: the kind of target that they are to be chosen for.
    """
    agreements = trial.policies.agreements
    compares = False if agreements is None else agreements.compares.any(-1)
    luck = np.where(compares, luck_of(comparison, target, True), luck_of(comparison, target, False))
    penalty = trial.penalty + np.where(trial.alone, 0.0, luck)
    return trial._replace(penalty=np.clip(penalty, 0.0, 1.0))


def luck_of(comparison: Comparison, target: TargetName, comparing: bool) -> float:
    """How much luckier the choice of pairs is than that of single models, 0 at the least.

    Args:
        comparison: what the contest has shown.
        target: the kind of target that is chosen for.
        comparing: of policies that may compare answers, where there are any.
    """
    if comparison.luck is None:
        return 0.0
    luck = comparison.luck.at(target)
    return max(float(luck[-1 if comparing else min(1, len(luck) - 1)] - luck[0]), 0.0)
