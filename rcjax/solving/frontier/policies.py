"""Policies as arrays: intervals of calibrated confidence, with the action of the model in each.

Cascades with one threshold for each model, and policies that skip models, are one type. `cascade_at` converts arrays to
the models, rules and agreements of a deployed policy; `policies_of` converts them back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import numpy as np

from rcjax._core.batching import part
from rcjax._core.pytrees import Array
from rcjax.policy.decisions import Agreement, AnswerForm, Rule

CascadeSet = Literal["all", "full", "adaptive"] | Sequence[Sequence[str]]


#: Action of a model that refuses to answer; other actions are positions of models.
ABSTAIN = -1


#: Thresholds of a model that answers every query, and of a model that answers none.
ALWAYS_ANSWER, NEVER_ANSWER = 0.0, 1.0


#: Refusal threshold of a model that does not refuse.
NEVER_REFUSE = 0.0


#: Position in place of a model, where a model does not compare answers.
NOBODY = -1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Agreements:
    """The comparisons of answers in policies over k models; numpy or jax arrays.

    A model compares its answer with the answer of an earlier model. If they are equal, the answer is kept; if they
    differ, a later model is asked. If one of them is not known, the model's intervals of confidence decide.
    """

    earlier: Array
    """(…, k) position of the earlier model; NOBODY for a model that does not compare answers."""
    differ: Array
    """(…, k) position of the model to ask if the answers differ; NOBODY for a model that does not compare answers."""

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Agreements:
        """Return the agreements of models (…, k) that do not compare answers.

        >>> Agreements.none((2,)).earlier.tolist()
        [-1, -1]
        """
        return cls(np.full(shape, NOBODY, np.int32), np.full(shape, NOBODY, np.int32))

    @property
    def compares(self) -> Any:
        """(…, k) bool: the models that compare their answer with an earlier one."""
        return self.earlier != NOBODY


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("first", "bounds", "actions", "members", "agreements"),
    meta_fields=(),
)
@dataclasses.dataclass(frozen=True)
class Policies:
    """Policies over k models, with R intervals of confidence for each model; numpy or jax arrays."""

    first: Array
    """(…) position of the model asked first."""
    bounds: Array
    """(…, k, R) upper ends of the intervals of calibrated confidence; the last is 1."""
    actions: Array
    """(…, k, R) action in each interval: the model's own position to answer, a later position to ask, or ABSTAIN."""
    members: Array
    """(…, k) bool: the models that may be asked."""
    agreements: Agreements | None = None
    """(…, k) comparisons of answers; None: no model compares answers."""

    @classmethod
    def of_cascades(
        cls,
        thresholds: Any,
        members: Any,
        refusals: Any = None,
        xp: Any = np,
        agreements: Agreements | None = None,
    ) -> Policies:
        """Make cascades from thresholds: each member asks the next up to its threshold, and answers above it.

        The thresholds become the last bounds but one, and the refusals the bounds before.

        Args:
            thresholds: (…, k) calibrated confidence up to which a member asks the next.
            members: (…, k) bool: the models of the cascade.
            refusals: (…, k) calibrated confidence up to which a member refuses, at most its threshold; None: models do
                not refuse.
            xp: numpy, or jax.numpy within a jitted function.
            agreements: (…, k) comparisons between members.

        >>> policies = Policies.of_cascades(np.array([[0.7, 1.0, 0.0]]), np.array([[True, False, True]]))
        >>> policies.first.tolist(), policies.bounds[0].tolist(), policies.actions[0].tolist()
        ([0], [[0.7, 1.0], [1.0, 1.0], [0.0, 1.0]], [[2, 0], [2, 1], [2, 2]])
        """
        models = np.arange(members.shape[-1])
        later = members[..., None, :] & (models > models[:, None])
        following = xp.where(later.any(-1), later.argmax(-1), models)
        ends, targets = [thresholds, xp.ones_like(thresholds)], [following, xp.broadcast_to(models, following.shape)]
        if refusals is not None:
            ends, targets = [refusals, *ends], [xp.full_like(following, ABSTAIN), *targets]
        bounds, actions = (xp.stack(columns, axis=-1) for columns in (ends, targets))
        return cls(members.argmax(-1), bounds, actions, members, agreements)

    def take(self, index: Any) -> Policies:
        """Return the policies at an index of the leading axes."""
        return part(self, index)

    def on_host(self) -> Policies:
        """Convert the arrays to numpy."""
        return jax.tree.map(np.asarray, self)


def cascade_at(names: tuple[str, ...], policies: Policies, index: int, compare: AnswerForm) -> dict[str, Any]:
    """Return the `models`, `rules` and `agreements` of one policy; neighbouring rules with one action are merged.

    Args:
        names: names of the k models.
        policies: L policies, in numpy arrays.
        index: position of the policy.
        compare: comparison of answers.

    >>> policies = Policies.of_cascades(np.array([[0.7, 0.0]]), np.array([[True, True]]))
    >>> cascade_at(("small", "large"), policies, 0, "text")["rules"]["small"]
    (Rule(up_to=0.7, action='ask', model='large'), Rule(up_to=1.0, action='answer', model=None))
    """
    members = np.flatnonzero(policies.members[index]).tolist()
    rules = {names[j]: _rules(names, j, policies.bounds[index, j], policies.actions[index, j]) for j in members}
    compared = policies.agreements or Agreements.none(np.shape(policies.members))
    agreements = {}
    for j in members:
        earlier, differ = compared.earlier[index, j], compared.differ[index, j]
        if earlier != NOBODY:
            agreements[names[j]] = Agreement(names[earlier], names[differ], compare)
    return {"models": tuple(rules), "rules": rules, "agreements": agreements}


def policies_of(orders: Sequence[tuple[str, ...]], cascades: Sequence[Any]) -> Policies:
    """Convert L policies to arrays over k models, padded to one number of intervals; numpy arrays.

    Args:
        orders: order of the k models for each policy; a policy asks later models only.
        cascades: the policies, with `models`, `rules` and `agreements` as in `rcjax.Policy`.
    """
    shape = len(cascades), len(orders[0])
    bounds = np.ones((*shape, max(len(table) for cascade in cascades for table in cascade.rules.values())))
    actions = np.broadcast_to(np.arange(shape[1], dtype=np.int32)[:, None], bounds.shape).copy()
    first, members, agreements = np.zeros(shape[0], np.int32), np.zeros(shape, bool), Agreements.none(shape)
    for row, (order, cascade) in enumerate(zip(orders, cascades, strict=True)):
        index = {name: j for j, name in enumerate(order)}
        first[row] = index[cascade.models[0]]
        for name, table in cascade.rules.items():
            j = index[name]
            members[row, j] = True
            bounds[row, j, : len(table)] = [rule.up_to for rule in table]
            acts = [ABSTAIN if rule.action == "abstain" else index[rule.model or name] for rule in table]
            actions[row, j, : len(table)] = acts
        for name, one in cascade.agreements.items():
            agreements.earlier[row, index[name]] = index[one.earlier]
            agreements.differ[row, index[name]] = index[one.model]
    return Policies(first, bounds, actions, members, agreements=agreements if agreements.compares.any() else None)


def _rules(names: tuple[str, ...], j: int, bounds: Array, actions: Array) -> tuple[Rule, ...]:
    """Convert the intervals (R,) of model j to rules; neighbours with one action are merged, empty ones dropped."""
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
