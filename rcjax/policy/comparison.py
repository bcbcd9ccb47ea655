"""A policy beside what it is to replace: today's model or policy, and the best single model for the same money.

This is the one comparison that people decide by. `rcjax.tune` makes it for a policy, whose provenance keeps it;
`rcjax.replaying.comparing` makes it on a fresh log. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rcjax._base.codec import Amount, Between, Record, read
from rcjax._base.wording import Money, figure, percent
from rcjax.policy.any_policy import AnyPolicy
from rcjax.policy.counted import ERRORS, Counted

#: Where a policy records its comparison, in its provenance.
COMPARISON = "comparison"
#: The name of a rival that is a policy.
IN_SERVICE = "the policy in service"

#: Of the queries, below which a rung is not worth a word: it is rounded to 0.0 %.
LEAST_SHARE = 5e-4

_EQUAL = 1e-3  # of a bill, up to which two bills are one

Role = Literal["today", "single"]
_ROLES: Mapping[str, str] = {"today": "today's", "single": "best for the money"}


@dataclass(frozen=True, slots=True)
class Rival(Record):
    """What a policy is compared with, on the same queries.

    Args:
        name: a model that answers everything, or "the policy in service".
        role: `today`: in use today; `single`: the single model with the fewest errors for the policy's money.
        error: share of the queries answered wrongly; refusals count at their price.
        cost: dollars per query.
        more: error of the policy minus `error`.
        se: standard error of `more`, paired by query; 0 where the policy is the rival.

    >>> rival = Rival("large", "today", error=0.12, cost=2e-4, more=0.003, se=0.006)
    >>> rival.title, rival.points("error"), rival.beside
    ("large alone, today's", '0.3 ± 0.6 points more error', '0.3 ± 0.6 less')
    """

    name: str
    role: Role
    error: Annotated[float, Between()]
    cost: Amount
    more: Annotated[float, Between()]
    se: Amount

    @property
    def subject(self) -> str:
        """The rival in a sentence."""
        return self.name if self.name == IN_SERVICE else f"{self.name} alone"

    @property
    def title(self) -> str:
        """The rival with its role."""
        return f"{self.subject}, {_ROLES[self.role]}"

    def points(self, noun: str) -> str:
        """The error of the policy beside the rival's."""
        return f"{_points(self.more, self.se)} points {'more' if self.more > 0 else 'less'} {noun}"

    def own_points(self, noun: str) -> str:
        """The error of the rival beside the policy's."""
        return f"{_points(self.more, self.se)} points {'less' if self.more > 0 else 'more'} {noun}"

    @property
    def beside(self) -> str:
        """The error of the rival beside the policy's, in percentage points."""
        return f"{_points(self.more, self.se)} {'less' if self.more > 0 else 'more'}"


@dataclass(frozen=True, slots=True)
class Comparison(Record):
    """A policy beside its rivals, on the same queries.

    Args:
        error: share of the queries that the policy answers wrongly; refusals count at their price.
        cost: dollars per query of the policy.
        queries: number of queries.
        fresh: whether the policy was tuned on other queries. Otherwise `error` is corrected for optimism, by queries
            left out of the tuning.
        rivals: today's model or policy first.
        error_cost: dollars that one further avoided error costs at the policy's place; None where none can be avoided.
    """

    error: Annotated[float, Between()]
    cost: Amount
    queries: int
    fresh: bool
    rivals: tuple[Rival, ...]
    error_cost: Amount | None = None

    @property
    def today(self) -> Rival | None:
        """What is in use today, if the log has it."""
        return next((rival for rival in self.rivals if rival.role == "today"), None)

    @property
    def single(self) -> Rival | None:
        """The best single model for the money; None where it is today's, or the policy itself."""
        return next((rival for rival in self.rivals if rival.role == "single"), None)

    @property
    def keeps_today(self) -> bool:
        """Whether the policy is what is in use today."""
        return self.today is not None and self.today.se == 0

    def breaks(self, margin: float) -> bool:
        """Whether today's errs less by more than a margin, and chance does not explain it: 2.5 %, one-sided.

        >>> today = Rival("large", "today", error=0.12, cost=2e-4, more=0.04, se=0.01)
        >>> Comparison(0.16, 5e-5, 300, True, (today,)).breaks(0.01)
        True
        """
        return self.today is not None and self.today.more - 1.96 * self.today.se > margin

    @property
    def dominated(self) -> bool:
        """Whether today's costs no more and errs no more, on queries that the policy was not tuned on."""
        today = self.today
        if today is None or self.keeps_today or not self.fresh:
            return False
        return today.cost <= self.cost and today.more >= 0

    def headline(self, money: Money, counted: Counted = ERRORS) -> str:
        """What the policy changes, beside today's, in a sentence without a subject.

        >>> today = Rival("large", "today", error=0.12, cost=2e-4, more=0.003, se=0.006)
        >>> Comparison(0.123, 5e-5, 300, False, (today,)).headline(Money(1e8, "month"))
        "saves $15,000 of $20,000 a month (75 %), at 0.3 ± 0.6 points more error than large alone, today's"
        """
        today = self.today
        if today is None:
            return f"{counted.does(percent(self.error))} at {money.full(self.cost)}"
        if self.keeps_today:
            return f"costs {money.full(self.cost)} as before"
        at = f"{today.points(counted.noun)} than {today.title}"
        saved, scale = today.cost - self.cost, max(today.cost, self.cost)
        if abs(saved) <= _EQUAL * scale:
            return f"costs the same, {money.full(self.cost)}, at {at}"
        amounts = f"${money.show(abs(saved))}", f"${money.show(today.cost)} {money.per}"
        share = f"({percent(abs(saved) / today.cost, 0)})" if today.cost > 0 else ""
        if saved > 0:
            return f"saves {amounts[0]} of {amounts[1]} {share}, at {at}"
        return f"costs {amounts[0]} more than {amounts[1]} {share}".rstrip() + f", at {at}"

    def rows(self, money: Money) -> list[tuple[str, str, str, str]]:
        """A table of the policy and its rivals: who, money, error, and points of it beside the policy's."""
        own = ("this policy", money.show(self.cost), percent(self.error), "")
        rivals = ((one.title, money.show(one.cost), percent(one.error), one.beside) for one in self.rivals)
        return [own, *rivals]

    def last_error(self, counted: Counted = ERRORS) -> str | None:
        """What the last avoided error costs, in a sentence; None where that is not known.

        >>> Comparison(0.1, 1e-4, 300, True, (), error_cost=0.0112).last_error()
        'each further error avoided costs $0.0112 here'
        """
        if not self.error_cost:
            return None
        avoided = counted.one.removeprefix("one ").removeprefix("a ")
        return f"each further {avoided} avoided costs ${figure(self.error_cost)} here"


def _points(more: float, se: float) -> str:
    """A difference of errors and its standard error, in percentage points without a sign."""
    return f"{abs(100 * more):.1f} ± {100 * se:.1f}"


def describe_rungs(policy: AnyPolicy) -> str:
    """Name the models of a policy in the order in which they are asked, for a ladder with the shares of its rungs."""

    def named(rung: Any) -> str:
        for name, agreement in rung.agreements.items():
            return f"{agreement.earlier} and {name}, and {agreement.model} where they differ"
        return " → ".join(rung.models) + " alone" * (len(rung.models) == 1)

    shares: dict[str, float] = {}
    for weight, rung in zip(policy.weights, policy.policies, strict=True):
        if weight >= LEAST_SHARE:
            shares[named(rung)] = shares.get(named(rung), 0.0) + weight
    if len(shares) == 1:
        return next(iter(shares))
    (first, share), (second, _) = shares.items()
    digits = 0 if 0.005 <= share < 0.995 else 1
    return f"{first} for {percent(share, digits)} of the queries and {second} for the others"


def what_to_do(
    policy: AnyPolicy,
    comparison: Comparison,
    money: Money,
    counted: Counted = ERRORS,
    margin: float | None = None,
) -> str:
    """Say what to do with a policy, and what that changes beside today's, in a sentence.

    It is not to be used where fresh queries show that today's is as good for no more money, or that it breaks a margin.

    Args:
        policy: the policy.
        comparison: the policy beside today's.
        money: the unit in which money is told.
        counted: what is counted.
        margin: of error beside today's, that it was tuned for; None for another target.
    """
    broken = comparison.fresh and margin is not None and comparison.breaks(margin)
    verb = "keep" if comparison.keeps_today else "do not use" if comparison.dominated or broken else "use"
    where = f"on {comparison.queries:,} fresh queries it" if comparison.fresh else "it"
    return f"{verb} {describe_rungs(policy)}: {where} {comparison.headline(money, counted)}"


def recorded_comparison(provenance: Mapping[str, Any]) -> Comparison | None:
    """The comparison that a policy was tuned with; None where it records none. ValueError for a damaged one."""
    return read(Comparison | None, provenance.get(COMPARISON), f"provenance.{COMPARISON}")
