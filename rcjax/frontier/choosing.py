"""The point of a frontier that meets a target: a budget, a limit on the error, or a price."""

from typing import Any

import numpy as np

from rcjax._base.wording import choose_unit, figure
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.targets import Target


class InfeasibleError(ValueError):
    """No point of the frontier meets the target; the message names the best reachable figure."""

    #: What `rcjax.tune` had come to by then: a `Tuned` without a policy; None if another function raises it.
    tuned: Any = None


def point_for(
    target: Target,
    cost: np.ndarray,
    penalty: np.ndarray,
    abstain_price: float | None,
    counted: Counted = ERRORS,
) -> int:
    """The place of the point that meets a target.

    Args:
        target: a budget: the least error whose cost keeps to it;
            a limit on the error: the least cost that keeps to it; a price: the least error + λ·cost.
        cost: (L,) money per query.
        penalty: (L,) errors, and refusals at their price.
        abstain_price: what a refusal counts, in errors, or None.
        counted: what errors are, in words.

    Raises InfeasibleError where no point meets it.

    >>> cost, error = np.array([1.0, 2.0, 3.0]), np.array([0.3, 0.2, 0.1])
    >>> point_for(Target("budget", 2.5), cost, error, None)
    1
    """
    value, limit = target.value, target.value * (1 + 1e-9)
    if target.name == "budget":
        if not (cost <= limit).any():
            raise InfeasibleError(too_dear(value, float(cost.min())))
        return int(np.lexsort((cost, np.where(cost <= limit, penalty, np.inf)))[0])
    if target.name == "max_error":
        if not (penalty <= limit).any():
            refusing = "" if abstain_price is None else f", a refusal counted as {100 * abstain_price:.4g} %"
            best = f"the best {counted.does(f'{penalty.min():.3%}')}{refusing}"
            raise InfeasibleError(f"no cascade {counted.does(f'{value:.3%}')} or less; {best}")
        return int(np.lexsort((penalty, np.where(penalty <= limit, cost, np.inf)))[0])
    return int(np.argmin(penalty + (1 / value if target.name == "error_cost" else value) * cost))


def too_dear(budget: float, cheapest: float) -> str:
    """The message that no cascade keeps to a budget; both sums are money per query.

    >>> too_dear(1e-6, 1.82154e-5)
    'no cascade costs $1.00 per million queries or less; the cheapest costs $18.22'
    """
    money = choose_unit([cheapest])
    enough = figure(cheapest * money.scale * (1 + 5e-4), 4)  # rounded up: a budget that will do
    return f"no cascade costs {money.full(budget)} or less; the cheapest costs ${enough}"
