"""Policies as arrays, and as the models, rules and agreements of the policies that are deployed: there and back."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rcjax.frontier.policies import ABSTAIN, NEVER_ANSWER, NOBODY, Agreements, Policies
from rcjax.policy.answers import Comparison
from rcjax.policy.rules import Agreement, Rule


def cascade_at(names: tuple[str, ...], policies: Policies, index: int, compare: Comparison) -> dict[str, Any]:
    """The `models`, `rules` and `agreements` of a policy over k models: of rules, neighbours alike are one.

    Args:
        names: of the k models.
        policies: L policies, in numpy's arrays.
        index: which of them.
        compare: how answers are compared.

    >>> policies = Policies.of_cascades(np.array([[0.7, 0.0]]), np.array([[True, True]]))
    >>> cascade_at(("small", "large"), policies, 0, "text")["rules"]["small"]
    (Rule(up_to=0.7, action='ask', model='large'), Rule(up_to=1.0, action='answer', model=None))
    """
    members = np.flatnonzero(policies.members[index]).tolist()
    rules = {names[j]: _rules(names, j, policies.bounds[index, j], policies.actions[index, j]) for j in members}
    compared, agreements = policies.agreements or Agreements.none(np.shape(policies.members)), {}
    for j in members:
        earlier, differ = compared.earlier[index, j], compared.differ[index, j]
        if earlier != NOBODY:
            agreements[names[j]] = Agreement(names[earlier], names[differ], compare)
    return {"models": tuple(rules), "rules": rules, "agreements": agreements}


def policies_of(names: tuple[str, ...], cascades: Sequence[Any]) -> Policies:
    """L policies over k models in numpy's arrays, padded to one number of intervals.

    Args:
        names: of the k models.
        cascades: the policies, by their `models`, `rules` and `agreements`, as `rcjax.Policy` has them.
    """
    shape = len(cascades), len(names)
    bounds = np.ones((*shape, max(len(table) for cascade in cascades for table in cascade.rules.values())))
    actions = np.broadcast_to(np.arange(len(names), dtype=np.int32)[:, None], bounds.shape).copy()
    agreements, index = Agreements.none(shape), {name: j for j, name in enumerate(names)}
    for row, cascade in enumerate(cascades):
        for name, table in cascade.rules.items():
            j = index[name]
            bounds[row, j, : len(table)] = [rule.up_to for rule in table]
            acts = [ABSTAIN if rule.action == "abstain" else index[rule.model or name] for rule in table]
            actions[row, j, : len(table)] = acts
        for name, one in cascade.agreements.items():
            agreements.earlier[row, index[name]] = index[one.earlier]
            agreements.differ[row, index[name]] = index[one.model]
    first = np.array([index[cascade.models[0]] for cascade in cascades], np.int32)
    members = np.array([[name in cascade.models for name in names] for cascade in cascades])
    return Policies(first, bounds, actions, members, agreements=agreements if agreements.compares.any() else None)


def as_cascades(policies: Policies) -> Policies:
    """The same with thresholds and refusals, where each model refuses, then asks the next one, then answers."""
    own = np.arange(policies.members.shape[-1])[:, None]
    used = (np.diff(policies.bounds, axis=-1, prepend=0.0) > 0) & policies.members[..., None]
    thresholds, refusals = (
        np.where(used & chosen, policies.bounds, 0.0).max(-1)
        for chosen in (policies.actions != own, policies.actions == ABSTAIN)
    )
    thresholds = np.where(policies.members, thresholds, NEVER_ANSWER)
    refused = refusals if refusals.any() else None
    return Policies.of_cascades(thresholds, policies.members, refused, agreements=policies.agreements)


def _rules(names: tuple[str, ...], j: int, bounds: np.ndarray, actions: np.ndarray) -> tuple[Rule, ...]:
    """The intervals (R,) of a model, by position, as rules: neighbours with the same action merged, no empty ones."""
    table: list[Rule] = []
    start = 0.0
    for end, action in zip(np.asarray(bounds, float).tolist(), np.asarray(actions).tolist(), strict=True):
        if end <= start:
            continue
        asked = None if action in (j, ABSTAIN) else names[action]
        here = Rule(end, "abstain" if action == ABSTAIN else "ask" if asked else "answer", asked)
        if table and (table[-1].action, table[-1].model) == (here.action, here.model):
            table.pop()
        table.append(here)
        start = end
    return tuple(table)
