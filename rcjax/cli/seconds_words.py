"""Seconds in words: of a policy, in a table, and seen beside those expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rcjax._base.wording import count, figure

_NAMES = {"seconds": "mean", "seconds_p50": "median", "seconds_p95": "95 %", "seconds_p99": "99 %"}


def brief_seconds(value: float | None) -> str:
    """Seconds in a table: two digits, or three where there are so many.

    >>> brief_seconds(0.8342), brief_seconds(12.34), brief_seconds(None)
    ('0.83', '12.3', '–')
    """
    return "–" if value is None else figure(value, 2 if value < 9.95 else 3)


def tell_seconds(figures: Mapping[str, Any]) -> str:
    """The seconds of a query that a policy lets expect; the tail only where it is known, as it is not of a mixture.

    >>> tell_seconds({"seconds": 0.8342, "seconds_p50": 0.5, "seconds_p95": 2.0, "seconds_p99": None})
    '0.834 on average, 0.50 or less for half of the queries, 2.0 for 95 %'
    """
    words = [f"{figure(figures['seconds'])} on average"]
    shares = {"seconds_p50": " or less for half of the queries", "seconds_p95": " for 95 %", "seconds_p99": " for 99 %"}
    words += [
        f"{brief_seconds(figures[name])}{share}" for name, share in shares.items() if figures.get(name) is not None
    ]
    return ", ".join(words)


def expected_seconds(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The seconds that a policy promises, as a replay tells them: from `Policy.expected`, where they are there.

    >>> expected_seconds({"error": 0.1, "seconds": 0.8, "seconds_low": 0.7, "seconds_high": 0.9})
    {'seconds': 0.8, 'seconds_interval': [0.7, 0.9]}
    """
    figures: dict[str, Any] = {name: expected[name] for name in (*_NAMES, "money") if expected.get(name) is not None}
    ends = {name: [expected.get(f"{name}_{end}") for end in ("low", "high")] for name in _NAMES if name in figures}
    return figures | {f"{name}_interval": pair for name, pair in ends.items() if pair != [None, None]}


def tell_unknown(figures: Mapping[str, Any]) -> str | None:
    """How many queries the seconds leave out, in a sentence; None where there are none.

    >>> tell_unknown({"seconds_unknown": 2})
    'the seconds leave out 2 queries, on whose path some are not known'
    """
    unknown = figures.get("seconds_unknown")
    most = max(unknown) if isinstance(unknown, list) else unknown
    return f"the seconds leave out {count(most, 'query')}, on whose path some are not known" if most else None


def seconds_rows(predicted: Mapping[str, Any], replayed: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, predicted, observed) for each figure of a policy's seconds, intervals in brackets."""
    for number, (name, words) in enumerate(_NAMES.items()):
        if name in replayed:
            cells = (
                _with_interval(figures.get(name), figures.get(f"{name}_interval")) for figures in (predicted, replayed)
            )
            yield (f"seconds, {words}" if number == 0 else f"  {words}", *cells)  # type: ignore[misc]


def _with_interval(value: float | None, ends: list[float | None] | None) -> str:
    if value is None or ends is None:
        return brief_seconds(value)
    low, high = ends
    return f"{brief_seconds(value)} ({brief_seconds(low)}–{'…' if high is None else brief_seconds(high)})"
