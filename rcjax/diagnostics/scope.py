"""Which policies a check says something of.

Policies of the default search are chosen by the labels: single models are counted, pairs rest on the confidences that
decide in them. What the fitted model makes of dependence, by marginals and copulas, is used by searches by the
model alone (`--cascade`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from rcjax.diagnostics.verdicts import Check

Scope = Literal["all", "asked", "weighed", "deciding", "modelled"]

SCOPES: Mapping[str, Scope] = {
    "queries": "all",
    "accuracy": "asked",
    "calibration error": "weighed",
    "separation": "deciding",
    "certain answers": "deciding",
    "marginal": "modelled",
    "copula": "modelled",
    "Markov property": "modelled",
    "predicted error": "all",
    "predicted cost": "all",
}

_WORDS: Mapping[Scope, str] = {
    "all": "every policy",
    "asked": "policies that ask the model",
    "weighed": "policies that ask the model and another one",
    "deciding": "policies that pass queries on from the model",
    "modelled": "only policies found with --cascade",
}


def affects(check: Check, by_model: bool) -> str:
    """Which policies a check says something of, in words. `by_model`: all of them were found by the model alone."""
    scope = SCOPES[check.name]
    if scope == "modelled" and by_model:
        return "policies that ask these models" if check.subject else "every policy"
    return _WORDS[scope]


def concerns(check: Check, asked: Sequence[str], models: Sequence[str], by_model: bool) -> bool:
    """Whether a check says something of a policy.

    Args:
        check: the check.
        asked: the models that the policy asks, in this order.
        models: all of them.
        by_model: whether the policy was found by the model alone.
    """
    scope = SCOPES[check.name]
    if not by_model and (scope == "modelled" or (scope == "weighed" and len(asked) < 2)):
        return False
    subjects = [check.subject] if check.subject in models else re.split(" [&|] ", check.subject)
    return set(asked[:-1] if scope == "deciding" else asked).issuperset(subjects if check.subject else [])
