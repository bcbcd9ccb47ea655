"""Policies as arrays: intervals of calibrated confidence, and what a model does in each.

Cascades, which have one threshold for each model, and policies that skip ahead are one type. `cascade_at` gives the
models, rules and agreements of the policies that are deployed, `policies_of` takes them.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import numpy as np

from rcjax._core.batching import part
from rcjax.policy.decisions import Agreement, Comparison, Rule

Search = Literal["all", "full", "adaptive"] | Sequence[Sequence[str]]

#: The action of a model that gives no answer: no position of a model.
ABSTAIN = -1

#: Thresholds of a model that answers everything, and of one that answers nothing.
ALWAYS_ANSWER, NEVER_ANSWER = 0.0, 1.0

#: Refusal threshold of a model that refuses nothing.
NEVER_REFUSE = 0.0

#: The earlier model of one that compares no answers.
NOBODY = -1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Agreements:
    """What models do by whether their answer is that of an earlier one; arrays of numpy's or jax's.

    A model that was asked after that one, where both answers are known, keeps its answer where they are equal. Where
    one is not known, its intervals of confidence hold.
    """

    earlier: Any
    """(…, k) position of the model whose answer a model's own is compared with; NOBODY where it is not."""
    differ: Any
    """(…, k) what it does where they differ: the position of a later model to ask; NOBODY where it compares nothing."""

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "Agreements":
        """Of models (…, k) none of which compares answers.

        >>> Agreements.none((2,)).earlier.tolist()
        [-1, -1]
        """
        return cls(np.full(shape, NOBODY, np.int32), np.full(shape, NOBODY, np.int32))

    @property
    def compares(self) -> Any:
        """(…, k) bool: whether a model compares its answer with an earlier one."""
        return self.earlier != NOBODY


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("first", "bounds", "actions", "members", "agreements"),
    meta_fields=(),
)
@dataclasses.dataclass(frozen=True)
class Policies:
    """Policies over k models, with R intervals of confidence for each model; arrays of numpy's or jax's."""

    first: Any
    """(…) position of the model asked first."""
    bounds: Any
    """(…, k, R) upper ends of the intervals of calibrated confidence; the last is 1."""
    actions: Any
    """(…, k, R) there: a model's own position to answer, a later model's to ask that one, ABSTAIN to refuse."""
    members: Any
    """(…, k) bool, the models that may be asked."""
    agreements: Agreements | None = None
    """(…, k) what models do by whether answers are equal; None: nobody compares them."""

    @classmethod
    def of_cascades(
        cls,
        thresholds: Any,
        members: Any,
        refusals: Any = None,
        xp: Any = np,
        agreements: Agreements | None = None,
    ) -> "Policies":
        """Cascades by their thresholds: each member asks the next one up to its threshold, and answers above it.

        Thresholds are the last bounds but one, and refusals, if any, those before.

        Args:
            thresholds: (…, k) calibrated confidence.
            members: (…, k) whether the model is in the cascade.
            refusals: (…, k) none above its threshold: up to here a member abstains. None: nobody does.
            xp: numpy, or jax.numpy for use inside a jitted function.
            agreements: (…, k) between members.

        >>> policies = Policies.of_cascades(np.array([[0.7, 1.0, 0.0]]), np.array([[True, False, True]]))
        >>> policies.first.tolist(), policies.bounds[0].tolist(), policies.actions[0].tolist()
        ([0], [[0.7, 1.0], [1.0, 1.0], [0.0, 1.0]], [[2, 0], [2, 1], [2, 2]])
        """
        everyone = np.arange(members.shape[-1])
        later = members[..., None, :] & (everyone > everyone[:, None])
        following = xp.where(later.any(-1), later.argmax(-1), everyone)
        whole = xp.ones_like(thresholds)
        ends, targets = [thresholds, whole], [following, xp.broadcast_to(everyone, following.shape)]
        if refusals is not None:
            ends, targets = [refusals, *ends], [xp.full_like(following, ABSTAIN), *targets]
        bounds, actions = (xp.stack(columns, axis=-1) for columns in (ends, targets))
        return cls(members.argmax(-1), bounds, actions, members, agreements)

    def take(self, index: Any) -> "Policies":
        """Those at some places of the leading axes."""
        return part(self, index)

    def on_host(self) -> "Policies":
        """The same in numpy's arrays."""
        return jax.tree.map(np.asarray, self)


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


def policies_of(orders: Sequence[tuple[str, ...]], cascades: Sequence[Any]) -> Policies:
    """L policies over k models in numpy's arrays, padded to one number of intervals.

    Args:
        orders: for each, the k models in the order that it counts them by, in which it only asks later ones.
        cascades: the policies, by their `models`, `rules` and `agreements`, as `rcjax.Policy` has them.
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
