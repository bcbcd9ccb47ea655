"""What is raised where a log cannot be used, what is warned of, and texts and names of a log in a message: in one line,
not too many of them, and what was meant by a misspelt one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
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


def spelt_otherwise(names: Iterable[object], others: Iterable[object]) -> tuple[str, str] | None:
    """The first of the names that is among the others apart from its spelling, and how it is spelt there.

    >>> spelt_otherwise(["7.0", "8.0"], ["8", "9"]), spelt_otherwise(["Q1"], ["q01"])
    (('8.0', '8'), None)
    """
    spellings = {_meaning(str(other)): str(other) for other in others}
    for name in map(str, names):
        other = spellings.get(_meaning(name), name)
        if other != name:
            return name, other
    return None


def unlike(
    queries: Iterable[str], other_queries: Iterable[str], models: Iterable[str], other_models: Iterable[str], there: str
) -> str:
    """Why a log and a table beside it are about no query and model together, and what to do, in words.

    Args:
        queries: those of the log, as it names them.
        other_queries: those of the table.
        models: those of the log.
        other_models: those of the table; none if it names none.
        there: what the table is called.

    >>> unlike(["7.0"], ["7"], ["small"], ["small"], "labels")
    "names are written differently, '7.0' in the log and '7' in the labels: write them alike"
    """
    models, other_models = dict.fromkeys(models), dict.fromkeys(other_models)
    pair = spelt_otherwise(queries, other_queries) or spelt_otherwise(models, other_models)
    if pair is not None:
        here, other = map(brief, pair)
        return f"names are written differently, {here!r} in the log and {other!r} in the {there}: write them alike"
    if other_models and not {*models} & {*other_models}:
        return f"they are about the models {listed(other_models)}, not {listed(models)}"
    return "do both name queries and models alike?"


def _meaning(name: str) -> str:
    number = re.fullmatch(r"([+-]?)0*([0-9]+)(\.0*)?", name)
    return name.casefold() if number is None else number[1].strip("+") + number[2]
