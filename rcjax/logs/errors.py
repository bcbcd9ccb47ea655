"""Errors and warnings about logs, and helpers that quote names and texts of a log in messages of one line."""

from __future__ import annotations

import difflib
import itertools
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class LogError(ValueError):
    """An unusable log; the message names the problem, its place, and the remedy."""


class MissingPricesError(LogError):
    """A log with token counts, but without prices: read it again with prices."""


class UnlabelledError(LogError):
    """A log without a label that can be used."""


class MissingModelError(LogError):
    """A log without a model that was asked for."""


class IncompleteLogWarning(UserWarning):
    """A log in which some queries lack the answers of some models."""


class LeftOutWarning(UserWarning):
    """Data that is left out: rows of a call log, a model without labels, or lost costs from a mean cost."""


class UnlabelledWarning(UserWarning):
    """A log in which some answers have no label."""


class NoConfidenceWarning(UserWarning):
    """A log in which some or all answers have no confidence."""


class PricesWarning(UserWarning):
    """A note about prices: entries of a public list, cached input, estimates, or prices that may be per token."""


class OddLogWarning(UserWarning):
    """A log that looks wrong: a policy tuned on it is no better than the log."""


class OddBudgetWarning(UserWarning):
    """A budget above the cost of asking every model: any policy meets it, and another unit may be meant."""


#: Receiver of warnings about a log: class and text.
Warn = Callable[[type[Warning], str], None]


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line outside of rcjax that called it, through however many functions and decorators."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "rcjax":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


_MAX_NAMES, _MAX_CHARACTERS = 20, 60  # most names of a list, and most characters of a text, in a message


def shorten(text: Any) -> str:
    """Return a text on one line, truncated after 60 characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= _MAX_CHARACTERS else f"{line[: _MAX_CHARACTERS - 1]}…"


def join_names(names: Iterable[Any]) -> str:
    """Join names with commas; of more than 20, the first 20 and the number of the rest."""
    texts = [shorten(name) for name in names]
    omitted = len(texts) - _MAX_NAMES
    return ", ".join(texts[:_MAX_NAMES]) + (f" and {omitted:,} more" if omitted > 0 else "")


def suggest_name(word: str, names: Iterable[str]) -> str:
    """Ask, in brackets, whether a similar known word was meant; "" if none is similar."""
    similar = difflib.get_close_matches(str(word)[:_MAX_CHARACTERS], [str(name) for name in names], n=1, cutoff=0.55)
    return f" (did you mean {shorten(similar[0])!r} for {shorten(word)!r}?)" if similar else ""


def contrast_names(log: Sequence[Iterable[object]], table: Sequence[Iterable[object]]) -> str:
    """Contrast the first names in a log with the first names in a table, no row of which matches; with advice.

    >>> contrast_names([["7.0", "8.0"], ["small"]], [["7"], ["small"]])
    "the log has query '7.0' of model 'small', the table '7' of 'small': name queries and models alike in both"
    """
    query, model = (next(map(shorten, names), None) for names in log)
    entry = " of ".join(repr(shorten(name)) for names in table for name in itertools.islice(names, 1))
    return f"the log has query {query!r} of model {model!r}, the table {entry}: name queries and models alike in both"
