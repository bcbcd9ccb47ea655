"""How long queries may wait under a policy: on average, or all but one in twenty. Standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SecondsLimit:
    """At most so many seconds per query: on average, or with `tail` for 95 % of the queries.

    Raises ValueError for seconds that are not above 0.

    >>> print(SecondsLimit(2.0), SecondsLimit.of("p95=4"), sep="; ")
    at most 2 seconds on average; at most 4 seconds for 95 % of the queries
    """

    seconds: float
    tail: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"max_seconds is {self.seconds}; it must be a number above 0, such as 2, or p95=4")

    @classmethod
    def of(cls, value: Any) -> SecondsLimit:
        """A limit from a number, a text such as `2` or `p95=4`, or itself; ValueError for what is none."""
        if isinstance(value, cls):
            return value
        text = str(value).strip().lower()
        number = text.removeprefix("p95=")
        try:
            return cls(float(number), number != text)
        except ValueError:
            what = "give a number of seconds above 0, such as 2 (on average), or p95=4"
            raise ValueError(f"max_seconds {value!r:.40}: {what}") from None

    @property
    def text(self) -> str:
        """As the command line takes it, and provenance keeps it.

        >>> SecondsLimit(4.0, True).text, SecondsLimit(0.25).text
        ('p95=4', '0.25')
        """
        return f"{'p95=' * self.tail}{self.seconds:.12g}"

    def __str__(self) -> str:
        often = "for 95 % of the queries" if self.tail else "on average"
        return f"at most {self.seconds:.3g} second{'' if self.seconds == 1 else 's'} {often}"
