"""A ladder: cascades from cheap to expensive, and a position among them.

`Frontier.policy` makes a ladder of the corners of a frontier's lower hull. Position 3.4 says that rung 3 decides 60 %
of the queries and rung 4 decides 40 %, so that a budget, or a limit on the error, is met exactly. In service the
position follows the bill (`rcjax.policy.bills`). A service needs the standard library only:

    policy = load_policy("policy.json").choose(query_id)  # a Policy, the same for this query wherever it is asked
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any

from rcjax._base.codec import (
    Amount,
    Names,
    Object,
    Positive,
    Record,
    check_fields,
    check_header,
    choice,
    load_json,
    not_empty,
    number,
    read_value,
    require,
    to_json_value,
)
from rcjax._base.figures import Money
from rcjax.policy.decisions import Calibration
from rcjax.policy.error_kind import penalised
from rcjax.policy.policy import SHARED_FIELDS, AbstractPolicy, Policy, build_policy

_MAX_BYTES, _MAX_RUNGS = 10_000_000, 1_000  # limits of a file: about a hundred times a tuned one
_MEANS = (
    *("error", "cost", "abstention", "error_low", "error_high", "cost_low", "cost_high"),
    *("money", "seconds", "seconds_low", "seconds_high"),  # no quantiles: they do not add up
)
#: Days of a period, on average.
DAYS_PER_PERIOD = {"day": 1.0, "week": 7.0, "month": 365.25 / 12}
#: The interval of the bill, which a ladder that follows its bill does not have.
_BILL_INTERVAL = ("cost_low", "cost_high")
_POSITION_FIELDS = ("position", "budget", "follows", "period")
#: The fields that the rungs of a file share, and the fields of each rung.
_COMMON_FIELDS, _RUNG_FIELDS = (*SHARED_FIELDS, "provenance"), ("models", "rules", "expected", "agreements")


def split_per_period(text: str) -> tuple[str, str] | None:
    """Split an amount for a period of the calendar, such as 500/month; None for any other text.

    >>> split_per_period("$500 / Month"), split_per_period("500/year")
    (('500', 'month'), None)
    """
    amount, _, every = map(str.strip, text.lower().partition("/"))
    return (amount.removeprefix("$"), every) if every in DAYS_PER_PERIOD else None


@dataclass(frozen=True, slots=True)
class Period(Record):
    """A budget for each day, week (from Monday on) or month of the calendar, in UTC.

    Args:
        money: dollars per period.
        every: length of the period: "day", "week" or "month".

    >>> Period(500.0, "month").bounds(1_800_000_000.0)
    (1798761600.0, 1801440000.0)
    """

    money: Positive
    every: Annotated[str, partial(choice, allowed=tuple(DAYS_PER_PERIOD))]

    def bounds(self, time: float) -> tuple[float, float]:
        """Return (start, end) of the period that contains a time, all in seconds since 1970."""
        start = datetime.fromtimestamp(time, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self.every == "month":
            start = start.replace(day=1)
            end = (start + timedelta(days=31)).replace(day=1)
        else:
            start -= timedelta(days=start.weekday() if self.every == "week" else 0)
            end = start + timedelta(days=DAYS_PER_PERIOD[self.every])
        return start.timestamp(), end.timestamp()

    @property
    def days(self) -> float:
        """Mean length of the period, in days."""
        return DAYS_PER_PERIOD[self.every]

    def __str__(self) -> str:
        return f"${self.money:,.10g} a {self.every}"


@dataclass(frozen=True, slots=True)
class Queries(Record):
    """The number of queries in a day, a week or a month.

    Args:
        number: number of queries per period.
        every: length of the period: "day", "week" or "month".

    >>> Queries(7000.0, "week").per_day, str(Queries(2e6, "month"))
    (1000.0, '2,000,000 queries a month')
    """

    number: Positive
    every: Annotated[str, partial(choice, allowed=tuple(DAYS_PER_PERIOD))]

    @property
    def per_day(self) -> float:
        """Mean number of queries per day."""
        return self.number / DAYS_PER_PERIOD[self.every]

    @property
    def money(self) -> Money:
        """Unit of money for this number of queries."""
        return Money(self.number, self.every)

    def __str__(self) -> str:
        return f"{self.number:,.10g} queries a {self.every}"


@dataclass(frozen=True, slots=True)
class Ladder(AbstractPolicy):
    """Policies from cheap to expensive, and a position between two of them: immutable, equal by value, picklable.

    Args:
        rungs: policies whose `expected["cost"]` rises; all of one frontier, with one calibration of each model.
        position: number from 0 to the number of rungs less 1. Its fractional part is the share of the queries that the
            rung above decides; the rung below decides the others. The rung above decides a query if
            `hash_to_uniform("rung", query)` is below that share.
        budget: dollars per query that the ladder was tuned for; None if it was tuned for a limit on the error.
        follows: whether a service moves along the ladder to keep to the budget; otherwise it keeps the position.
        period: budget for a day, a week or a month, which a service keeps to in place of `budget`; the tuning derived
            `budget` from it.

    Raises ValueError, with the place, for inconsistent fields.

    Example:
        >>> from rcjax.policy import Calibration, Rule
        >>> plain = Calibration("none", intercept=0.0, slope=1.0, smallest=-9.0, largest=0.0)
        >>> small, large = (
        ...     Policy((name,), {name: plain}, {name: [Rule(1, "answer")]}, {name: cost}, expected=expected)
        ...     for name, cost, expected in (
        ...         ("small", 1e-5, {"error": 0.3, "cost": 1e-5}),
        ...         ("large", 2e-4, {"error": 0.1, "cost": 2e-4}),
        ...     )
        ... )
        >>> ladder = Ladder((small, large), 0.25)
        >>> ladder.choose("q1").models, ladder.choose("q4").models
        (('large',), ('small',))
        >>> ladder.step("large", logprob=-0.1, query="q1")
        Answer(model='large', confidence=0.4750208125...)
        >>> f"{ladder.expected['error']:.2f}"
        '0.25'
    """

    FORMAT = "rcjax-ladder"

    rungs: Annotated[tuple[Policy, ...], not_empty]
    position: Amount
    budget: Positive | None = None
    follows: bool = True
    period: Period | None = None
    provenance: Object = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)  # the class is frozen
        check_fields(self)
        number(self.position, "position", 0.0, len(self.rungs) - 1.0)
        put("follows", self.follows and self.budget is not None)
        require(self.period is None or self.budget is not None, "budget", "is needed beside a period", None)
        put("provenance", self.rungs[0].provenance)
        shared = {name: getattr(self, name) or {} for name in SHARED_FIELDS}
        for index, rung in enumerate(self.rungs):
            require(bool(rung.calibrations), f"rungs[{index}].calibrations", f"must have as keys {rung.models}", [])
            alike = all(
                (getattr(rung, name) or {}).get(model) == shared[name].get(model)
                for name in SHARED_FIELDS
                for model in rung.models
            )
            requirement = "must have the calibrations, costs, prices and provenance of the others"
            require(alike and rung.provenance == self.provenance, f"rungs[{index}]", requirement, rung.models)
        costs = self.rung_costs if len(self.rungs) > 1 else ()
        for index, (low, high) in enumerate(pairwise(costs)):
            require(low < high, f"rungs[{index + 1}].expected.cost", f"must be above {low!r}", high)

    @property
    def models(self) -> tuple[str, ...]:
        """All models that may be asked, by expected cost of a call."""
        cost = self.cost
        return tuple(sorted(cost, key=cost.__getitem__))

    @property
    def cost(self) -> Mapping[str, float]:
        """Expected cost of a call by model, in dollars per query."""
        return merge(rung.cost for rung in self.rungs)

    @property
    def prices(self) -> Mapping[str, Mapping[str, float]] | None:
        """Dollars per million tokens by kind of token, by model, where known."""
        return merge(rung.prices or {} for rung in self.rungs) or None

    @property
    def calibrations(self) -> Mapping[str, Calibration]:
        """Map from raw to calibrated confidence, by model."""
        return merge(rung.calibrations for rung in self.rungs)

    @property
    def expected(self) -> Mapping[str, float | None]:
        """Figures that the tuning promised: the means over the rungs on either side, weighted by the position.

        A ladder that follows its bill has no interval of the cost. `"lam"` is the number of errors, and abstentions
        times their price, saved per dollar from the lower to the upper rung; `"error_cost"` is 1/lam. A figure is None
        if a rung lacks it.
        """
        excluded = _BILL_INTERVAL if self.follows else ()
        low, *higher = (
            {name: figure for name, figure in policy.expected.items() if name not in excluded}
            for policy in self.adjacent_rungs
        )
        if not higher:
            return MappingProxyType(low)
        high, share = higher[0], self.position % 1
        means: dict[str, float | None] = {}
        for name in _MEANS:
            if name in low or name in high:
                below, above = low.get(name), high.get(name)
                means[name] = None if below is None or above is None else (1 - share) * below + share * above
        alike = {name: low[name] for name in ("level", "abstain_price") if name in low and low[name] == high.get(name)}
        return MappingProxyType(means | alike | _slope(low, high))

    def to_json(self) -> dict[str, Any]:
        """Return the ladder as a JSON object, the inverse of `from_json`; fields that the rungs share stand once."""
        own = {name: getattr(self, name) for name in ("models", *_POSITION_FIELDS, "expected")}
        rungs = {"rungs": [rung.fields_to_json(_RUNG_FIELDS) for rung in self.rungs]}
        shared = {name: getattr(self, name) for name in _COMMON_FIELDS}
        return self.file_header | to_json_value(own | rungs | shared)

    @classmethod
    def from_json(cls, data: Any) -> Ladder:
        """Build a ladder from the object of `to_json`; unknown keys are ignored, ValueError for problems."""
        check_header(data, cls.FORMAT)
        shared = {name: read_value(Mapping[str, object], data.get(name) or {}, name) for name in SHARED_FIELDS}
        provenance = read_value(Object, data.get("provenance"), "provenance")
        rungs = read_value(Annotated[tuple[object, ...], not_empty], data.get("rungs"), "rungs")
        built = tuple(build_policy(rung, f"rungs[{i}]", shared, provenance=provenance) for i, rung in enumerate(rungs))
        ladder = read_value(cls, {**data, "rungs": built}, "")
        if "models" in data and read_value(Names, data["models"], "models") != ladder.models:
            raise ValueError(f"models: must be those of the rungs: {', '.join(ladder.models)}")
        return ladder


def with_following(policy: AbstractPolicy, *, follows: bool, period: Period | None) -> AbstractPolicy:
    """Return the policy with `follows` and `period` replaced; a policy without a budget is returned as it is."""
    return replace(policy, follows=follows, period=period) if isinstance(policy, Ladder) and policy.budget else policy


def position_at(figures: Sequence[float], value: float) -> float:
    """Return the position at which a strictly rising figure of the rungs has a value; beyond the ends, the end.

    >>> [position_at([1.0, 2.0, 4.0], value) for value in (0.5, 1.0, 3.0, 4.0, 9.0)]
    [0.0, 0.0, 1.5, 2.0, 2.0]
    """
    above = bisect_left(figures, value)
    if above == 0 or above == len(figures):
        return float(min(above, len(figures) - 1))
    low, high = figures[above - 1], figures[above]
    return above - 1 + (value - low) / (high - low)


def figure_at(figures: Sequence[float], position: float) -> float:
    """Interpolate a figure of the rungs at a position: the inverse of `position_at`.

    >>> figure_at([1.0, 2.0, 4.0], 1.5)
    3.0
    """
    low, share = int(position), position % 1
    return (1 - share) * figures[low] + share * figures[low + 1] if share else figures[low]


def map_rungs(change: Callable[[Policy], Policy], policy: AbstractPolicy) -> AbstractPolicy:
    """Return the policy with each rung changed."""
    rungs = tuple(map(change, policy.rungs))
    return replace(policy, rungs=rungs) if isinstance(policy, Ladder) else rungs[0]


def with_provenance(policy: AbstractPolicy, **entries: Any) -> AbstractPolicy:
    """Return the policy with further entries, JSON values, in the provenance of each rung."""
    return map_rungs(lambda rung: replace(rung, provenance={**rung.provenance, **entries}), policy)


def merge(mappings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge mappings; for a key of several, the first one's value counts."""
    return dict(ChainMap(*map(dict, mappings)))


def _slope(low: Mapping[str, float | None], high: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the errors saved per dollar between two rungs, and the cost per error; empty if no error is saved."""
    ends = penalty(low), penalty(high), high.get("cost"), low.get("cost")
    more_errors, fewer_errors, more_money, less_money = (math.nan if end is None else end for end in ends)
    if not more_errors > fewer_errors or math.isnan(more_money - less_money):
        return {}
    lam = (more_errors - fewer_errors) / (more_money - less_money)
    return {"lam": lam, "error_cost": 1 / lam}


def penalty(expected: Mapping[str, float | None]) -> float | None:
    """Return the error plus abstentions at their price, per query."""
    error, price, abstention = (expected.get(name) for name in ("error", "abstain_price", "abstention"))
    return error if error is None or abstention is None else penalised(error, abstention, price)


#: The classes by the "format" of their files.
KINDS: dict[Any, type[AbstractPolicy]] = {kind.FORMAT: kind for kind in (Policy, Ladder)}


def load_policy(path: str | os.PathLike[str]) -> AbstractPolicy:
    """Read a policy or a ladder of policies from a file, by the "format" in the file.

    Raises ValueError for a file that is not valid or larger than 10 MB, OSError for one that cannot be read.
    """
    if os.path.getsize(path) > _MAX_BYTES:
        raise ValueError(f"{os.fspath(path)}: larger than {_MAX_BYTES / 1e6:g} MB: a policy has some 30 kB")
    return load_json(path, policy_from_json)


def policy_from_json(data: Any) -> AbstractPolicy:
    """Build a policy or a ladder from the object of its `to_json`, by its "format"; ValueError for problems."""
    form = data.get("format") if isinstance(data, Mapping) else None
    rungs = data.get("rungs") if isinstance(data, Mapping) else None
    require(not isinstance(rungs, list) or len(rungs) <= _MAX_RUNGS, "rungs", f"must be at most {_MAX_RUNGS:,}", "more")
    return KINDS.get(form if isinstance(form, str) else "", Policy).from_json(data)
