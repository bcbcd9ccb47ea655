"""What a model does in each interval of calibrated confidence, by its rules; and a rule by agreement:
its answer is kept where an earlier model gave the same. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from rcjax._base.codec import Checked, Filled, Record, Share, check_fields, keyed
from rcjax._base.json_checks import name, require
from rcjax.policy.answers import Comparison, comparable

Action = Literal["answer", "ask", "abstain"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do in one interval of calibrated confidence.

    The interval is closed on the right: from just above the `up_to` of the rule before (for the first rule,
    from 0) to this `up_to`, included. The action is to keep the `"answer"`, to `"ask"` the model `model`, or to
    `"abstain"`: give no answer, and ask nobody else.
    Raises ValueError for an `up_to` outside [0, 1], an unknown action, or a model that does not go with it.

    Example:
        >>> Rule(0.8, "ask", "large")
        Rule(up_to=0.8, action='ask', model='large')
    """

    up_to: Share
    action: Action
    model: str | None = None

    ALSO: ClassVar = {  # in its schema
        "if": {"properties": {"action": {"const": "ask"}}},
        "then": {"required": ["model"], "properties": {"model": {"type": "string"}}},
        "else": {"properties": {"model": {"type": "null"}}},
    }

    def __post_init__(self) -> None:
        check_fields(self)
        if self.action == "ask":
            name(self.model, "model")
        elif self.model is not None:
            require(False, "model", "is for the action 'ask' only", self.model)


def _whole_range(table: tuple[Rule, ...], where: str) -> tuple[Rule, ...]:
    ends = [rule.up_to for rule in table]
    require(all(low < high for low, high in pairwise(ends)), where, "must have its up_to in increasing order", ends)
    require(ends[-1] == 1.0, where, "must have 1 as its last up_to", ends)
    return table


#: The rules of a model, for all of its confidences.
Table = Annotated[tuple[Rule, ...], Filled, Checked(_whole_range)]


def check_rules(rules: Mapping[str, tuple[Rule, ...]], where: str, models: Sequence[str]) -> Mapping[str, Any]:
    """The rules of each model of a cascade, in its order; asks must go to a later model."""
    for position, model in enumerate(models):
        later = tuple(models[position + 1 :])
        what = f"must be a later model, one of {later}" if later else "must not be: the last model has to answer"
        for i, rule in enumerate(rules.get(model, ())):
            require(rule.model in (None, *later), f"{where}[{model!r}][{i}].model", what, rule.model)
    return keyed(rules, where, models)


def threshold_of(table: tuple[Rule, ...]) -> float | None:
    """The φ of a model whose rules ask one model up to φ and answer above; None for others."""
    asks = table[0].action == "ask"
    return table[0].up_to if asks and [rule.action for rule in table[1:]] in ([], ["answer"]) else None


@dataclass(frozen=True, slots=True)
class Agreement(Record):
    """What a model does by whether its answer is that of an earlier model.

    Where the two are equal, its answer is kept. Where they differ, another model is asked. Where one of them is not
    known, the model's rules by confidence hold.

    Args:
        earlier: the model whose answer is compared.
        model: the one to ask where the answers differ.
        compare: how answers are compared, as `rcjax.policy.answers.comparable` says: `"text"`, `"choice"` or `"key"`.

    Raises ValueError for an unknown comparison.

    Example:
        >>> agreement = Agreement("small", "large")
        >>> agreement.equal("1,000", "1000.0"), agreement.equal("Paris", "Lyon"), agreement.equal("Paris", None)
        (True, False, None)
    """

    earlier: str
    model: str
    compare: Comparison = "text"

    def equal(self, answer: str | None, earlier: str | None) -> bool | None:
        """Whether two answers are equal; None if one of them is not known."""
        text, earlier_text = (comparable(said, self.compare) for said in (answer, earlier))
        return None if text is None or earlier_text is None else text == earlier_text


def tell_need(policies: Iterable[Any]) -> tuple[str, ...]:
    """That policies need answers, in a line, where one of them compares some.

    Args:
        policies: each a `rcjax.Policy`.
    """
    pairs = dict.fromkeys((one.earlier, model) for policy in policies for model, one in policy.agreements.items())
    if not pairs:
        return ()
    which = ", ".join(f"{model} with {earlier}" for earlier, model in pairs)
    what = f"the policy compares answers ({which}): policy.step needs answer= and answers="
    return (f"{what}, which rcjax.Cascade and rcjax serve give by themselves",)


def check_agreements(agreements: Mapping[str, Agreement], where: str, models: Sequence[str]) -> None:
    """ValueError unless each of a cascade's agreements is with an earlier model, and asks a later one."""
    for model, agreement in agreements.items():
        require(model in models, where, f"must be of models of the policy, {tuple(models)}", model)
        before, later = tuple(models[: models.index(model)]), tuple(models[models.index(model) + 1 :])
        asked = (("earlier", agreement.earlier, before, "an earlier"), ("model", agreement.model, later, "a later"))
        for field, other, right, which in asked:
            require(other in right, f"{where}[{model!r}].{field}", f"must be {which} model, one of {right}", other)
