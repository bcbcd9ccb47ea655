"""How long queries may wait under a policy: on average, or all but a few of them. Standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class SecondsLimit:
    """At most so many seconds per query: on average (`share` None), or for a share of the queries.

    Raises ValueError for another share than 0.5, 0.95 and 0.99, and for seconds that are not above 0.

    >>> print(SecondsLimit(2.0), SecondsLimit.of("p95=4"), SecondsLimit.of(2), sep="; ")
    at most 2 seconds on average; at most 4 seconds for 95 % of the queries; at most 2 seconds on average
    """

    seconds: float
    share: float | None = None

    def __post_init__(self) -> None:
        if self.share is not None and self.share not in _QUANTILES.values():
            raise ValueError(f"max_seconds: {self.share} is no share that a limit may have: give p50, p95 or p99")
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"max_seconds is {self.seconds}; it must be a number above 0, such as 2, or p95=4")

    @classmethod
    def of(cls, value: Any) -> SecondsLimit:
        """A limit from a number, a text such as `2` or `p95=4`, or itself; ValueError for what is none."""
        if isinstance(value, cls):
            return value
        share, text = None, str(value).strip().lower()
        if "=" in text:
            name, _, text = (part.strip() for part in text.partition("="))
            if name not in _QUANTILES:
                raise ValueError(f"max_seconds {value!r:.40}: give 2 (on average), or p50=…, p95=4 or p99=…")
            share = _QUANTILES[name]
        try:
            seconds = float(text.removesuffix("s"))
        except ValueError:
            raise ValueError(f"max_seconds {value!r:.40}: give a number of seconds, such as 2, or p95=4") from None
        return cls(seconds, share)

    @property
    def text(self) -> str:
        """As the command line takes it, and provenance keeps it.

        >>> SecondsLimit(4.0, 0.95).text, SecondsLimit(0.25).text
        ('p95=4', '0.25')
        """
        return f"{self.seconds:.12g}" if self.share is None else f"p{100 * self.share:.0f}={self.seconds:.12g}"

    def say(self, seconds: float) -> str:
        """A limit of so many seconds, in words.

        >>> SecondsLimit(4.0, 0.95).say(0.123456), SecondsLimit(4.0).say(1)
        ('at most 0.123 seconds for 95 % of the queries', 'at most 1 second on average')
        """
        often = "on average" if self.share is None else f"for {100 * self.share:.0f} % of the queries"
        return f"at most {seconds:.3g} second{'' if seconds == 1 else 's'} {often}"

    def __str__(self) -> str:
        return self.say(self.seconds)
