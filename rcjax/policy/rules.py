"""What a model does in each interval of calibrated confidence, and for which queries. Standard library only."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, get_args

from rcjax._base import json_checks as check
from rcjax._base.hashing import draw_lot
from rcjax.policy.agreement import Agreement

Action = Literal["answer", "ask", "abstain"]


_ACTIONS = get_args(Action)


# Whether rules that ask are for all: of a threshold between confidences, and on one, with queries below it or not.
_SINGLE = ([True], [True, False], [False])


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do in one interval of calibrated confidence.

    The interval is closed on the right: from just above the `up_to` of the rule before (for the first rule,
    from 0) to this `up_to`, included. The action is to keep the `"answer"`, to `"ask"` the model `model`, or to
    `"abstain"`: give no answer, and ask nobody else. With a `share`, above 0 and below 1, it is that for this share of
    the queries of the interval, and the others go by the next rule, whose `up_to` may be the same: a threshold on a
    confidence that many queries have.
    Raises ValueError for an `up_to` outside [0, 1], an unknown action, a model that does not go with it, or a share
    that is none.

    Example:
        >>> Rule(0.8, "ask", "large")
        Rule(up_to=0.8, action='ask', model='large')
        >>> Rule(0.8, "ask", "large", share=0.3)
        Rule(up_to=0.8, action='ask', model='large', share=0.3)
    """

    up_to: float
    action: Action
    model: str | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "up_to", check.number(self.up_to, "up_to", 0.0, 1.0))
        if self.share is not None:
            share = check.number(self.share, "share", 0.0, 1.0)
            check.require(0 < share < 1, "share", "must lie between 0 and 1; leave it out for all", share)
            object.__setattr__(self, "share", share)
        check.choice(self.action, _ACTIONS, "action")
        if self.action == "ask":
            check.name(self.model, "model")
        elif self.model is not None:
            check.require(False, "model", "is for the action 'ask' only", self.model)

    def __repr__(self) -> str:
        share = "" if self.share is None else f", share={self.share!r}"
        return f"Rule(up_to={self.up_to!r}, action={self.action!r}, model={self.model!r}{share})"


def rule_for(table: tuple[Rule, ...], index: int, model: str, query: int | str | None) -> Rule:
    """The rule that a query goes by: that of its interval, or, where this is for a share, the first that is for it.

    Args:
        table: the rules of a model, the last of which is for all.
        index: of the interval.
        model: its name, for the lot.
        query: the query's id, for the lot; None: drawn at random.

    >>> table = Rule(0.5, "ask", "large", share=0.5), Rule(1, "answer")
    >>> [rule_for(table, 0, "small", query).action for query in ("q1", "q2", "q0")]
    ['ask', 'ask', 'answer']
    """
    if table[index].share is None:
        return table[index]
    lot = random.random() if query is None else draw_lot(f"share:{model}", query)
    while (share := table[index].share) is not None and lot >= share:
        lot, index = (lot - share) / (1 - share), index + 1  # uniform again, for the next share
    return table[index]


def check_rules(value: Any, where: str, models: tuple[str, ...]) -> Mapping[str, tuple[Rule, ...]]:
    """The rules of each model of a cascade, from an object of theirs; asks must go to a later model."""
    rules = check.by_name(value, where, models, _table)
    for i, model in enumerate(models):
        _check_targets(rules[model], f"{where}[{model!r}]", later=models[i + 1 :])
    return rules


def _table(value: Any, where: str) -> tuple[Rule, ...]:
    table = check.sequence(value, where, partial(check.build, Rule))
    ends = [rule.up_to for rule in table]
    rising = all(a.up_to < b.up_to or (a.share is not None and a.up_to == b.up_to) for a, b in pairwise(table))
    check.require(rising, where, "must have its up_to in increasing order", ends)
    check.require(ends[-1] == 1.0, where, "must have 1 as its last up_to", ends)
    last = f"{where}[{len(table) - 1}].share"
    check.require(table[-1].share is None, last, "must not be: no rule is left for the others", table[-1].share)
    return table


def _check_targets(table: tuple[Rule, ...], where: str, later: tuple[str, ...]) -> None:
    right = {None, *later}
    what = f"must be a later model, one of {later}" if later else "must not be: the last model has to answer"
    for i, rule in enumerate(table):
        if rule.model not in right:
            check.require(False, f"{where}[{i}].model", what, rule.model)


def check_forks(rules: Mapping[str, tuple[Rule, ...]], agreements: Mapping[str, Agreement]) -> None:
    """Where answers are compared, no share of the queries may ask one model and the others of their interval another.

    So that which models were asked before one, and what there is to compare, is the same for all lots.
    """
    for model, table in rules.items() if agreements else ():
        asked: str | None = None
        for index, rule in enumerate(table):
            if asked is not None and rule.model is not None:
                what = f"must be {asked!r}, as in the rule before, which is for a share: the policy compares answers"
                check.require(rule.model == asked, f"rules[{model!r}][{index}].model", what, rule.model)
            asked = None if rule.share is None else rule.model or asked


def threshold_of(table: tuple[Rule, ...]) -> float | None:
    """The φ of a model whose rules ask one model up to φ, only a share of the last of them if any, and answer above."""
    asks = [rule for rule in table if rule.action == "ask"]
    single = len({rule.model for rule in asks}) == 1 and [rule.share is None for rule in asks] in _SINGLE
    return asks[-1].up_to if single and [rule.action for rule in table[len(asks) :]] in ([], ["answer"]) else None


def split_of(table: tuple[Rule, ...]) -> tuple[float, float] | None:
    """(above, share) of a model with a threshold that passes on a share of the queries between the two; else None.

    >>> split_of((Rule(0.4, "ask", "large"), Rule(0.6, "ask", "large", share=0.3), Rule(1, "answer")))
    (0.4, 0.3)
    """
    if threshold_of(table) is None:
        return None
    last = max(index for index, rule in enumerate(table) if rule.action == "ask")
    share = table[last].share
    return None if share is None else (table[last - 1].up_to if last else 0.0, share)
