"""What costs may count besides money: amounts that answers take, which add up along a cascade as money does.

One more is an entry of `TERMS`, a field of `Log` and of `Spec`, and an argument of `Log.with_waiting`, `tune` and
`make_report` with its option of the commands. Standard library only.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple


class Term(NamedTuple):
    """An amount that every answer takes, and a unit of which may have a price."""

    what: str  # is paid for
    unit: str  # in the singular
    price: str  # of a unit, in money: the option, the field of `Spec`, the name in records
    column: str  # the field of `Log`, and the name in the sample that a policy carries
    columns: Mapping[str, tuple[str, float]]  # that tell it: the unit there, and how many of it are one of ours
    of_votes: Literal["max", "sum"]  # of several answers that vote
    scale: str  # the name, in the sample that a policy carries, of the largest amount, of which the others are parts


TERMS = (
    Term(
        what="waiting",
        unit="second",
        price="second_cost",
        column="seconds",
        columns={"seconds": ("seconds", 1.0), "latency_ms": ("milliseconds", 1000.0)},
        of_votes="max",  # as all are asked for at once
        scale="longest",
    ),
)

PRICES = tuple(term.price for term in TERMS)
COUNTED = " or ".join(term.what for term in TERMS)  # in words


def say_prices(prices: Mapping[str, float], link: str = "for each {unit} of {what}") -> str:
    """Prices by their options, in words.

    >>> say_prices({"second_cost": 0.0005})
    '$0.0005 for each second of waiting'
    """
    priced = [term for term in TERMS if term.price in prices]
    return " and ".join(f"${prices[term.price]:.4g} {link.format(**term._asdict())}" for term in priced)
