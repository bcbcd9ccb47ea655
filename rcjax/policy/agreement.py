"""A rule by agreement: a model's answer is kept where an earlier model gave the same. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rcjax._base import json_checks as check
from rcjax.policy.answers import COMPARISONS, Comparison, comparable


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
