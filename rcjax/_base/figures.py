"""Figures: intervals and tails by the normal law; money, shares and thresholds in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

Z_ONE_SIDED_90 = 1.2816
"""Standard errors of a one-sided 90 % limit."""

Z_ONE_SIDED_95 = 1.645
"""Standard errors of a one-sided 95 % bound, and of either side of a 90 % interval."""


def interval_half_width(level: float) -> float:
    """Return the standard errors on either side of an interval of a level in (0, 1).

    >>> round(interval_half_width(0.95), 2)
    1.96
    """
    return NormalDist().inv_cdf((1 + level) / 2)


@dataclass(frozen=True)
class Money:
    """A unit for money per query: per million or thousand queries, or per period.

    `name` is "million", "thousand", "day", "week" or "month"; `scale` is its number of queries.

    >>> Money(1e6, "million").full(8.4e-5), Money(2e8, "month").full(4.2e-5), Money(2e8, "month").label
    ('$84.0 per million queries', '$8,400 a month', '$ a month')
    """

    scale: float
    name: str

    @property
    def is_period(self) -> bool:
        """Whether amounts are for a period."""
        return self.name not in ("million", "thousand")

    @property
    def per(self) -> str:
        """Denominator of an amount, in words."""
        return f"a {self.name}" if self.is_period else f"per {self.name} queries"

    @property
    def label(self) -> str:
        """Head of a column of amounts."""
        return f"$ {self.per.removesuffix(' queries')}"

    def show(self, amount: float) -> str:
        """Return an amount per query as a number in this unit, without the unit."""
        return format_number(amount * self.scale)

    def measured(self, amount: float, error: float) -> str:
        """Return an amount per query and its standard error in this unit, to the same digit.

        >>> Money(1e6, "million").measured(1.0312e-4, 2.79e-6), Money(1e6, "million").measured(2e-6, 9e-7)
        ('$103 ± 3', '$2.00 ± 0.90')
        """
        larger = self.show(max(amount, error))
        digits = 0 if "e" in larger else len(larger.partition(".")[2])
        return f"${amount * self.scale:,.{digits}f} ± {error * self.scale:,.{digits}f}"

    def full(self, amount: float) -> str:
        """Return an amount per query with its unit."""
        return f"${self.show(amount)} {self.per}"

    def saving(self, before: float, after: float, error: float) -> str:
        """Return the difference of two amounts per query as both are printed, and its standard error if it shows.

        >>> Money(3e6, "month").saving(5.441e-4, 3.021e-4, 6.2e-6), Money(2e6, "month").saving(4e-5, 2e-5, 0.0)
        ('$726 ± 19', '$40.0')
        """
        amounts = [self.show(amount) for amount in (before, after)]
        if any("e" in amount for amount in amounts):
            return f"${self.show(before - after)}"
        digits = min(len(amount.partition(".")[2]) for amount in amounts)
        larger, smaller = (float(amount.replace(",", "")) for amount in amounts)
        spread = f"{error * self.scale:,.{digits}f}"
        return f"${larger - smaller:,.{digits}f}" + f" ± {spread}" * (float(spread.replace(",", "")) > 0)

    def number(self, share: float) -> str:
        """Return the number of queries of a period that are a share, to two digits; empty without a period.

        >>> Money(2e6, "month").number(0.0032), Money(1e6, "million").number(0.0032)
        ('6,400', '')
        """
        return f"{float(f'{share * self.scale:.2g}'):,.15g}" if self.is_period else ""


def capitalised(text: str) -> str:
    """Return a sentence with its first letter capitalised.

    >>> capitalised("use gpt-4o")
    'Use gpt-4o'
    """
    return text[:1].upper() + text[1:]


def choose_unit(amounts: Sequence[float]) -> Money:
    """Return the unit that suits sums of money per query of this size."""
    return Money(1e6, "million") if max(amounts, default=0.0) < 0.1 else Money(1e3, "thousand")


def example_budget(costs: Sequence[float | None]) -> str:
    """Return an example of a budget for a log, between the costs per query of its cheapest and its dearest model.

    >>> example_budget([2e-5, 8e-4]), example_budget([0.0, 3e-4]), example_budget([None, 0.0])
    ('130/M', '150/M', '150/M')
    >>> example_budget([1.04e-4, 1.04e-4])
    '110/M'
    """
    positive = [cost for cost in costs if cost]
    if not positive:
        return "150/M"
    middle = math.sqrt(min(positive) * max(positive)) if len(positive) > 1 else positive[0] / 2
    amount = float(f"{1e6 * middle:.2g}")
    if amount < 1e6 * min(costs := [cost or 0.0 for cost in costs]):  # rounded below what any policy costs
        amount = float(f"{1.05 * 1e6 * min(costs):.2g}")
    return f"{amount:.15g}/M"


def count(number: int, noun: str) -> str:
    """Return a number with a noun, in the singular or plural.

    >>> count(1, "model"), count(2000, "query")
    ('1 model', '2,000 queries')
    """
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def in_points(share: float) -> float:
    """Return a share in percentage points, so that shares which are equal but for rounding are printed alike: 5 is up.

    >>> {f"{in_points(share):.1f}" for share in (0.19649999999999998, 0.19650000000000004)}
    {'19.7'}
    """
    return round(100 * share, 9) * (1 + 1e-12)


def format_points(share: float) -> str:
    """Return a difference of shares as a number of percentage points.

    >>> format_points(0.01), format_points(0.005)
    ('1 point', '0.5 points')
    """
    number = f"{100 * share:.4g}"
    return f"{number} point{'' if number == '1' else 's'}"


def describe_points(difference: float, se: float | None = None, digits: str = ".1f") -> str:
    """Describe a difference of shares in percentage points, and its standard error.

    Args:
        difference, se: the difference and its standard error; None for no standard error.
        digits: format of the numbers.

    >>> describe_points(-0.005, 0.009), describe_points(0.012)
    ('0.5 ± 0.9 points less', '1.2 points more')
    """
    spread = "" if se is None else f" ± {in_points(se):{digits}}"
    return f"{in_points(abs(difference)):{digits}}{spread} points {'less' if difference < 0 else 'more'}"


def describe_missing_confidences(answers: Iterable[tuple[str, float | None]]) -> str | None:
    """Count each model's answers without a confidence, and the right answers among them; None without any.

    Args:
        answers: (model, label) of each answer without a confidence; None or NaN for an answer without a label.

    >>> describe_missing_confidences([("small", 1), ("small", 0), ("small", None)])
    'no confidence in 3 answers of small (right: 1 of 2): they count as the least sure, and are passed on'
    """
    labels: dict[str, list[float | None]] = {}
    for model, label in answers:
        labels.setdefault(model, []).append(label)
    models = []
    for model, of_model in labels.items():
        known = [label for label in of_model if label is not None and not math.isnan(label)]
        right = f"right: {sum(known):g} of {len(known):,}" if known else "none labelled"
        models.append(f"{count(len(of_model), 'answer')} of {model} ({right})")
    return f"no confidence in {', '.join(models)}: they count as the least sure, and are passed on" if models else None


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as a percentage.

    >>> percent(0.123), percent(-1e-17)
    ('12.3 %', '0.0 %')
    """
    return "–" if share is None or math.isnan(share) else f"{in_points(share):z.{digits}f} %"


def distinct_percentages(*shares: float) -> tuple[str, ...]:
    """Return shares as percentages, with the fewest decimals that distinguish the shares, at least one.

    >>> distinct_percentages(0.25, 0.2), distinct_percentages(0.10999, 0.1103)
    (('25.0 %', '20.0 %'), ('11.00 %', '11.03 %'))
    """
    for digits in range(1, 6):
        words = tuple(percent(share, digits) for share in shares)
        if len({*words}) == len({*shares}):
            break
    return words


def format_number(value: float, digits: int = 3) -> str:
    """Return a number with `digits` significant digits; with an exponent only below 1e-9 and from 1e15 on."""
    if not math.isfinite(value) or value == 0:
        return "0" if value == 0 else "–"
    if not 1e-9 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}"
    power = int(f"{value:.{digits - 1}e}".partition("e")[2])  # exponent of the rounded value: 9.999 is 10.0
    return f"{value:,.{max(0, digits - 1 - power)}f}"


def format_figure(value: float | None, unit: str) -> str:
    """Format the figure of a diagnostic check: a share, a difference of shares in points, or a number.

    >>> format_figure(0.031, "share"), format_figure(0.0312, "number"), format_figure(285, "number")
    ('3.1 %', '0.031', '285')
    >>> format_figure(-0.009, "points")
    '-0.9 points'
    """
    if value is None or math.isnan(value):
        return "–"
    if unit == "points":
        return f"{in_points(value):z.1f} points"
    return percent(value) if unit == "share" else format_number(value, 2) if value < 1 else f"{value:,.0f}"


def format_threshold(value: float, digits: int = 2) -> str:
    """Return a threshold with `digits` decimals; a threshold strictly between 0 and 1 stays so.

    >>> format_threshold(0.9413), format_threshold(0.9999), format_threshold(3e-5), format_threshold(1.0)
    ('0.94', '0.99', '0.01', '1')
    """
    least = 10.0**-digits
    return f"{min(max(value, least), 1 - least):.{digits}f}" if 0 < value < 1 else f"{value:.0f}"


def format_interval(ends: Sequence[float]) -> str:
    """Return an interval of shares as percentages without the unit."""
    return "–".join(f"{100 * end:.1f}" for end in ends)
