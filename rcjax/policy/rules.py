"""What a model does in each interval of calibrated confidence, by its rules; and a rule by agreement:
its answer is kept where an earlier model gave the same. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, get_args

from rcjax._base import json_checks as check
from rcjax.policy.answers import COMPARISONS, Comparison, comparable

Action = Literal["answer", "ask", "abstain"]


_ACTIONS = get_args(Action)


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

    up_to: float
    action: Action
    model: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "up_to", check.number(self.up_to, "up_to", 0.0, 1.0))
        check.choice(self.action, _ACTIONS, "action")
        if self.action == "ask":
            check.name(self.model, "model")
        elif self.model is not None:
            check.require(False, "model", "is for the action 'ask' only", self.model)


def check_rules(value: Any, where: str, models: tuple[str, ...]) -> Mapping[str, tuple[Rule, ...]]:
    """The rules of each model of a cascade, from an object of theirs; asks must go to a later model."""
    rules = check.by_name(value, where, models, _table)
    for i, model in enumerate(models):
        _check_targets(rules[model], f"{where}[{model!r}]", later=models[i + 1 :])
    return rules


def _table(value: Any, where: str) -> tuple[Rule, ...]:
    table = check.sequence(value, where, partial(check.build, Rule))
    ends = [rule.up_to for rule in table]
    rising = all(low < high for low, high in pairwise(ends))
    check.require(rising, where, "must have its up_to in increasing order", ends)
    check.require(ends[-1] == 1.0, where, "must have 1 as its last up_to", ends)
    return table


def _check_targets(table: tuple[Rule, ...], where: str, later: tuple[str, ...]) -> None:
    right = {None, *later}
    what = f"must be a later model, one of {later}" if later else "must not be: the last model has to answer"
    for i, rule in enumerate(table):
        if rule.model not in right:
            check.require(False, f"{where}[{i}].model", what, rule.model)


def threshold_of(table: tuple[Rule, ...]) -> float | None:
    """The φ of a model whose rules ask one model up to φ and answer above; None for others."""
    asks = table[0].action == "ask"
    return table[0].up_to if asks and [rule.action for rule in table[1:]] in ([], ["answer"]) else None


@dataclass(frozen=True, slots=True)
class Agreement:
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

    def __post_init__(self) -> None:
        check.name(self.earlier, "earlier")
        check.name(self.model, "model")
        if self.compare is None:
            object.__setattr__(self, "compare", "text")
        check.choice(self.compare, COMPARISONS, "compare")

    def equal(self, answer: str | None, earlier: str | None) -> bool | None:
        """Whether two answers are equal; None where one of them is not known."""
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


def check_agreements(value: Any, where: str, models: tuple[str, ...]) -> Mapping[str, Agreement]:
    """The agreements of a cascade, from an object of theirs: with an earlier model each, and asking a later one."""
    agreements = check.items({} if value is None else value, where, partial(check.build, Agreement))
    for model, agreement in agreements.items():
        path = f"{where}[{model!r}]"
        check.require(model in models, where, f"must be of models of the policy, {models}", model)
        before, later = models[: models.index(model)], models[models.index(model) + 1 :]
        earlier = f"must be an earlier model, one of {before}"
        check.require(agreement.earlier in before, f"{path}.earlier", earlier, agreement.earlier)
        asked = f"must be a later model, one of {later}"
        check.require(agreement.model in later, f"{path}.model", asked, agreement.model)
    return agreements
