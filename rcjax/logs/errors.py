"""What is raised where a log cannot be used."""

from __future__ import annotations


class LogError(ValueError):
    """A log that cannot be used: says what is wrong, where and what to do."""


class MissingPricesError(LogError):
    """A log counts tokens, but nobody said what a token costs: read it again with prices."""
