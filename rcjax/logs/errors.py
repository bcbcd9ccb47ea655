"""Errors and warnings about logs, and helpers that quote names and texts of a log in a one-line message."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class LogError(ValueError):
    """The error for a log that cannot be used; its message has the problem, its place and an advice."""


class MissingPricesError(LogError):
    """The error for a log that counts tokens and has no prices."""


class IncompleteLogWarning(UserWarning):
    """The warning that some queries of a log lack the answers of some models."""


class LeftOutWarning(UserWarning):
    """The warning that rows of a log, a model without labels, or rows without a cost are left out."""


class UnlabelledWarning(UserWarning):
    """The warning that some answers of a log have no label."""


class NoConfidenceWarning(UserWarning):
    """The warning that answers of a log have no confidence."""


class PricesWarning(UserWarning):
    """A note about prices: entries of a public list, cached input, estimates, or prices that may be per token."""


class OddLogWarning(UserWarning):
    """The warning that a log looks wrong: a policy tuned on it is no better than the log."""


class OddBudgetWarning(UserWarning):
    """The warning that a budget exceeds the cost of asking every model: another unit may be meant."""


#: Receives a warning about a log: its class and its text.
Warn = Callable[[type[Warning], str], None]

_ENOUGH, _LONG = 20, 60  # most names of a list, and most characters of a text, in a message


def brief(text: Any) -> str:
    """Return a text in one line, cut after 60 characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= _LONG else f"{line[: _LONG - 1]}…"


def listed(names: Iterable[Any]) -> str:
    """Join names with commas; of more than 20, the first 20 and the number of the rest."""
    every = [brief(name) for name in names]
    more = len(every) - _ENOUGH
    return ", ".join(every[:_ENOUGH]) + (f" and {more:,} more" if more > 0 else "")


def near(word: str, names: Iterable[str]) -> str:
    """Ask, in brackets, whether a similar known word was meant; "" if none is similar."""
    close = difflib.get_close_matches(str(word)[:_LONG], [str(name) for name in names], n=1, cutoff=0.55)
    return f" (did you mean {brief(close[0])!r} for {brief(word)!r}?)" if close else ""


def unlike(log: Sequence[Iterable[object]], table: Sequence[Iterable[object]]) -> str:
    """Contrast the first names of a log with the first names of a table that matches none of its rows, and advise.

    >>> unlike([["7.0", "8.0"], ["small"]], [["7"], ["small"]])
    "the log has query '7.0' of model 'small', the table '7' of 'small': name queries and models alike in both"
    """
    (query, model), (other, author) = ([next(map(brief, names), None) for names in side] for side in (log, table))
    example = repr(other) if author is None else f"{other!r} of {author!r}"
    return f"the log has query {query!r} of model {model!r}, the table {example}: name queries and models alike in both"
