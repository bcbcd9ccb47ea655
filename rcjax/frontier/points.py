"""Points of a frontier as arrays: policies, and what is to be expected of them."""

import dataclasses
from typing import Any

import jax

from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.policies import Policies


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Points:
    """L points of a frontier, one for each λ; arrays of jax's inside of compiled functions, of numpy's outside."""

    lam: Any  # (L,) error probability per unit of money
    status: Any  # (L,) a `Status`
    expected: Outcomes  # (L,) of a query
    policies: Policies  # (L,)
