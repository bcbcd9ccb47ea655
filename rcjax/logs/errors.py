"""What is raised where a log cannot be used."""

from __future__ import annotations

__all__ = ["LogError", "MissingPricesError", "NoRowsError"]


class LogError(ValueError):
    """A log that cannot be used: says what is wrong, where and what to do."""


class MissingPricesError(LogError):
    """A log counts tokens, but nobody said what a token costs: read it again with prices."""


class NoRowsError(LogError):
    """A log without a row, or with lines that are cut off alone: `cut` is their number."""

    def __init__(self, message: str, cut: int = 0) -> None:
        super().__init__(message)
        self.cut = cut
