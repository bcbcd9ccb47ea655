"""Weeks: a rolling window of a log, what came before it, and how many separate looks a year of looks comes to.

A check that looks every week at a hundred labelled queries sees little, and a year of such looks sees too much. So a
check takes the last eight weeks together, and what came earlier, and was found fine then, joins what was tuned on; the
two never overlap. Looks at windows that overlap tell mostly the same, so 52 of them count as forty.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from rcjax.logs.log import Log

#: Weeks that a check takes together.
WINDOW = 8

#: Looks a year of a log that tells times; a log without times is looked at once.
WEEKLY = 52

_WEEK = 7 * 86_400.0  # seconds

#: Looks a year at windows of eight weeks, evenly spread, and as many separate ones raise as many false alarms. By the
#: normal law 52 looks are 28 separate ones (`benchmarks.drift`); promises are half a point too low: they count as 40.
#: Daily looks see hardly more than weekly ones.
_LOOKS, _SEPARATE = (1, 4, 12, 26, 52, 365), (1, 4, 12, 25, 40, 60)


def separate_looks(looks: float) -> float:
    """How many separate looks a year of looks at a rolling window comes to.

    >>> separate_looks(1), separate_looks(52)
    (1.0, 40.0)
    """
    return float(np.interp(looks, _LOOKS, _SEPARATE))


def weeks_before(times: np.ndarray) -> np.ndarray:
    """(n,) whole weeks before the last of some times (n,), seconds since 1970; 0 where a time is not known.

    >>> weeks_before(np.array([0.0, 5e5, 1.3e6, np.nan])).tolist()
    [2, 1, 0, 0]
    """
    end = np.nanmax(times) if np.isfinite(times).any() else 0.0
    return np.floor((end - np.where(np.isnan(times), end, times)) / _WEEK).astype(int)


class Weeks(NamedTuple):
    """The weeks of a log, counted back from its last query."""

    ago: np.ndarray
    """(n,) whole weeks before the last one; of a log without times 0."""
    end: float | None
    """The time of the last query, in seconds since 1970; None of a log without times."""

    @classmethod
    def of(cls, log: Log) -> Weeks:
        """The weeks of a log's queries; one whose time is not known came in the last week."""
        times = np.full(log.n_queries, np.nan) if log.time is None else np.asarray(log.time, float)
        if np.isnan(times).all():
            return cls(np.zeros(log.n_queries, int), None)
        return cls(weeks_before(times), float(np.nanmax(times)))

    @property
    def in_window(self) -> np.ndarray:
        """(n,) bool: the queries of the last eight weeks."""
        return self.ago < WINDOW

    def of_rows(self, rows: np.ndarray) -> Weeks:
        """Those of some queries, (n,) bool."""
        return Weeks(self.ago[rows], self.end)

    def ago_in(self, weeks: np.ndarray) -> np.ndarray:
        """(n,) bool: the queries that came in some weeks, counted back."""
        return np.isin(self.ago, weeks)

    def windows(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(weeks ago, (n,) whether a query was in the window then, whether before it), from the first look to now."""
        for ago in range(int(self.ago.max(initial=0)), -1, -1):
            age = self.ago - ago
            yield ago, (age >= 0) & (age < WINDOW), age >= WINDOW

    def date(self, ago: int) -> str | None:
        """The day on which the week began that ended so many weeks ago; None without times.

        >>> Weeks(np.zeros(1, int), 1_767_571_200.0).date(0)
        '2025-12-29'
        """
        if self.end is None:
            return None
        return datetime.fromtimestamp(self.end - (ago + 1) * _WEEK, UTC).date().isoformat()

    def since(self, values: np.ndarray, before: float) -> int:
        """The week from which on values are highest, compared with their mean before: so many weeks ago it began.

        Args:
            values: (n,) of all queries.
            before: the mean that they had.
        """

        def surplus(ago: int) -> float:
            later = values[self.ago <= ago]
            return float((later - before).sum() / math.sqrt(max(len(later), 1)))

        return max(range(min(int(self.ago.max(initial=0)), WINDOW - 1) + 1), key=surplus)


def last_weeks(log: Log) -> Log:
    """The queries of the last eight weeks of a log; all of one without times.

    >>> import dataclasses, rcjax
    >>> log = dataclasses.replace(rcjax.sample_log(100, seed=0), time=tuple(i * 86_400.0 for i in range(100)))
    >>> last_weeks(log).n_queries
    56
    """
    weeks = Weeks.of(log)
    return log if weeks.in_window.all() else log.take(weeks.in_window)
