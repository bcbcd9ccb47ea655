"""The figures of a policy as facts that people read: what each is called, in which unit, in which order.

Expected, replayed or followed, a policy's figures are one mapping by these names, and each table takes its rows from
here: a new figure needs a line in `_FACTS`. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from rcjax._base.wording import Money, figure, percent
from rcjax.policy.counted import ERRORS

Unit = Literal["share", "money", "seconds", "rung"]

#: By its name among a policy's figures: how people call it, and its unit.
_FACTS: Mapping[str, tuple[str, Unit]] = {
    "error": ("{noun}", "share"),
    "abstention": ("without answer", "share"),
    "error_answered": ("{noun} among the answered", "share"),
    "cost": ("$ per {money}", "money"),
    "position": ("rung, on average", "rung"),
    "calibration_error": ("calibration error", "share"),
    "seconds": ("seconds, mean", "seconds"),
    "seconds_p95": ("seconds, 95 %", "seconds"),
}


class Fact(NamedTuple):
    """One figure of a policy."""

    label: str
    value: float
    unit: Unit
    interval: tuple[float, float] | None = None
    """The ends of the interval for it, or None."""
    why: str = ""
    """What there is to know of it, in words."""

    def show(self, money: Money) -> str:
        """The value and its interval in words, without the unit of money.

        >>> Fact("error", 0.291, "share", (0.243, 0.335)).show(Money(1e6, "million"))
        '29.1 % (24.3–33.5)'
        """
        one = {"share": percent, "money": money.show, "seconds": brief_seconds, "rung": "{:.1f}".format}[self.unit]
        ends = "–".join(one(end).removesuffix(" %") for end in self.interval or ())
        return f"{one(self.value)} ({ends})" if ends else one(self.value)


def facts(figures: Mapping[str, Any], money: Money, noun: str = ERRORS.noun) -> Iterator[Fact]:
    """What is known of a policy, in the order in which people read it.

    Args:
        figures: by name; ends of intervals as `error_interval`, or as `error_low` and `error_high`.
        money: the unit of money.
        noun: what is counted.

    >>> [fact.label for fact in facts({"cost": 1e-4, "error": 0.2}, Money(1e6, "million"))]
    ['error', '$ per million']
    """
    for name, (label, unit) in _FACTS.items():
        if figures.get(name) is None:
            continue
        low, high = figures.get(f"{name}_interval") or (figures.get(f"{name}_low"), figures.get(f"{name}_high"))
        interval = None if low is None or high is None else (low, high)
        why = ""
        if name == "abstention" and figures.get("abstain_price") is not None:
            why = f"each counts as {100 * figures['abstain_price']:.3g} % {noun}"
        label = label.format(noun=noun, money=money.name)
        yield Fact(label, figures[name], unit, interval, why)


def brief_seconds(value: float | None) -> str:
    """Seconds in a table: two digits, or three where there are so many.

    >>> brief_seconds(0.8342), brief_seconds(12.34), brief_seconds(None)
    ('0.83', '12.3', '–')
    """
    return "–" if value is None else figure(value, 2 if value < 9.95 else 3)
