"""The weeks of a log: the rolling window that a check looks at, the looks of a year, and the week when a rise began."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from rcjax.logs.log import Log

#: Weeks in the window of a check.
WINDOW = 8

#: Looks per year at a log with times; a log without times is looked at once.
WEEKLY = 52

_WEEK = 7 * 86_400.0  # seconds

#: Looks per year at windows of eight weeks, and the separate looks that raise as many false alarms. By the normal law
#: 52 looks are 28 separate ones (`benchmarks.drift`); they count as 40, as promises are half a point too low. Daily
#: looks raise hardly more false alarms than weekly ones.
_LOOKS, _SEPARATE = (1, 4, 12, 26, 52, 365), (1, 4, 12, 25, 40, 60)


def separate_looks(looks: float) -> float:
    """Return the number of separate looks that raise as many false alarms as `looks` per year at a rolling window.

    >>> separate_looks(1), separate_looks(52)
    (1.0, 40.0)
    """
    return float(np.interp(looks, _LOOKS, _SEPARATE))


def weeks_before(times: np.ndarray) -> np.ndarray:
    """Return the whole weeks from each time (n,) to the last one, in seconds since 1970: (n,); 0 for NaN.

    >>> weeks_before(np.array([0.0, 5e5, 1.3e6, np.nan])).tolist()
    [2, 1, 0, 0]
    """
    end = np.nanmax(times) if np.isfinite(times).any() else 0.0
    return np.floor((end - np.where(np.isnan(times), end, times)) / _WEEK).astype(int)


class Weeks(NamedTuple):
    """The weeks of a log, counted back from its last query."""

    ago: np.ndarray
    """(n,) whole weeks before the last query; 0 for a log without times."""
    end: float | None
    """Time of the last query, in seconds since 1970; None for a log without times."""

    @classmethod
    def of(cls, log: Log) -> Weeks:
        """Return the weeks of a log's queries; a query without a time is in the last week."""
        times = np.full(log.n_queries, np.nan) if log.time is None else np.asarray(log.time, float)
        if np.isnan(times).all():
            return cls(np.zeros(log.n_queries, int), None)
        return cls(weeks_before(times), float(np.nanmax(times)))

    @property
    def in_window(self) -> np.ndarray:
        """(n,) bool: the queries of the last eight weeks."""
        return self.ago < WINDOW

    def of_rows(self, rows: np.ndarray) -> Weeks:
        """Return the weeks of the queries `rows`, (n,) bool."""
        return Weeks(self.ago[rows], self.end)

    def ago_in(self, weeks: np.ndarray) -> np.ndarray:
        """Return the queries of some weeks, counted back: (n,) bool."""
        return np.isin(self.ago, weeks)

    def windows(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield (weeks ago, queries in the window then, queries before it), (n,) bool each, from the first look on."""
        for ago in range(int(self.ago.max(initial=0)), -1, -1):
            age = self.ago - ago
            yield ago, (age >= 0) & (age < WINDOW), age >= WINDOW

    def date(self, ago: int) -> str | None:
        """Return the first day of the week that ended `ago` weeks ago; None without times.

        >>> Weeks(np.zeros(1, int), 1_767_571_200.0).date(0)
        '2025-12-29'
        """
        if self.end is None:
            return None
        return datetime.fromtimestamp(self.end - (ago + 1) * _WEEK, UTC).date().isoformat()

    def since(self, values: np.ndarray, before: float) -> int:
        """Estimate how many weeks ago values began to rise: the start with the largest standardised surplus.

        Args:
            values: (n,) figure of each query.
            before: mean of the figure before the rise.
        """

        def surplus(ago: int) -> float:
            later = values[self.ago <= ago]
            return float((later - before).sum() / math.sqrt(max(len(later), 1)))

        return max(range(min(int(self.ago.max(initial=0)), WINDOW - 1) + 1), key=surplus)


def last_weeks(log: Log) -> Log:
    """Take the queries of the last eight weeks of a log, in their order; all queries of a log without times.

    >>> import dataclasses, rcjax
    >>> log = dataclasses.replace(rcjax.sample_log(300, seed=0), time=tuple(i * 86_400.0 for i in range(300)))
    >>> last_weeks(log).n_queries
    56
    """
    log = in_order(log)
    recent = Weeks.of(log).in_window
    return log if recent.all() else log.take(recent)


def in_order(log: Log) -> Log:
    """Sort the queries of a log by time, as rotated parts of a log may come in any order."""
    return log if log.time is None else log.take(np.argsort(np.asarray(log.time, float), kind="stable"))
