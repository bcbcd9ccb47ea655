"""Points of a frontier as arrays: policies, what is to be expected of them, and what a solver says of each."""

import dataclasses
from typing import Any

import jax

from rcjax._core.json_values import Status
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.policies import Policies


class PointStatus(Status):
    """What became of a λ: `Frontier.status`, and the status of a sweep's points."""

    CONVERGED = 0, "converged"
    AT_BOUND = 1, "converged, with a threshold at the end of a model's range (it always or never answers)"
    NOT_CONVERGED = (
        2,
        "the iterations ran out while the loss was still falling: the thresholds may be slightly off",
    )
    INTERPOLATED = 3, "thresholds between those of two neighbouring optima: a point that no λ leads to"
    NO_DATA = 4, "not solved: in this draw a model has no answer, or two models share no query"
    NOT_FINITE = 5, "failed: error or cost came out as no finite number"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Points:
    """L points of a frontier, one for each λ; arrays of jax's inside of compiled functions, of numpy's outside."""

    lam: Any  # (L,) error probability per unit of money
    status: Any  # (L,) a `PointStatus`
    expected: Outcomes  # (L,) of a query
    policies: Policies  # (L,)
