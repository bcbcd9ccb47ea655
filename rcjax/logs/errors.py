"""What is raised where a log cannot be used, what is warned of, and texts and names of a log in a message: in one line,
not too many of them, and what was meant by a misspelt one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class LogError(ValueError):
    """A log that cannot be used: says what is wrong, where and what to do."""


class MissingPricesError(LogError):
    """A log counts tokens, but nobody said what a token costs: read it again with prices."""


class IncompleteLogWarning(UserWarning):
    """Some queries of a log lack the answers of some models."""


class LeftOutWarning(UserWarning):
    """Some rows of a call log are left out, or models without a label, or rows without cost from a mean cost."""


class UnlabelledWarning(UserWarning):
    """Some answers of a log have no label."""


class NoConfidenceWarning(UserWarning):
    """A log has no confidence for its answers, or for some of them."""


class PricesWarning(UserWarning):
    """How tokens are priced: by which entries of a public list, and which share of the input came from a cache."""


class OddLogWarning(UserWarning):
    """A log can hardly be right: what is tuned on it is worth no more than it is."""


class OddBudgetWarning(UserWarning):
    """A budget is above what asking every model costs: any policy meets it, and another unit may be meant."""


#: Takes what is to be said of a log that is read: the kind of warning, and its words.
Say = Callable[[type[Warning], str], None]

_ENOUGH, _LONG = 20, 60  # names in a list, and characters of a text, that a message repeats


def brief(text: Any) -> str:
    """A text in one line, cut where it is long."""
    line = " ".join(str(text).split())
    return line if len(line) <= _LONG else f"{line[: _LONG - 1]}…"


def listed(names: Iterable[Any]) -> str:
    """Names with commas between them; of many, the first ones and how many more there are."""
    every = [brief(name) for name in names]
    more = len(every) - _ENOUGH
    return ", ".join(every[:_ENOUGH]) + (f" and {more:,} more" if more > 0 else "")


def near(word: str, names: Iterable[str]) -> str:
    """A question in brackets whether a known word was meant, where there is one like it."""
    close = difflib.get_close_matches(str(word)[:_LONG], [str(name) for name in names], n=1, cutoff=0.55)
    return f" (did you mean {brief(close[0])!r} for {brief(word)!r}?)" if close else ""


def unlike(log: Sequence[Iterable[object]], table: Sequence[Iterable[object]]) -> str:
    """What a log and a table beside it that are about nothing together call their queries and models, and what to do.

    >>> unlike([["7.0", "8.0"], ["small"]], [["7"], ["small"]])
    "the log has query '7.0' of model 'small', the table '7' of 'small': name queries and models alike in both"
    """
    (query, model), (other, author) = ([next(map(brief, names), None) for names in side] for side in (log, table))
    there = repr(other) if author is None else f"{other!r} of {author!r}"
    return f"the log has query {query!r} of model {model!r}, the table {there}: name queries and models alike in both"
