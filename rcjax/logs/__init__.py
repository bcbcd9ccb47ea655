"""Logs of answers: reading and checking them, prices, labels that come later, and the sample that a policy carries.

Takes files and dataframes with one row per query and model; gives a `Log`, matrices of queries by models. Names are
imported when they are first used: collecting and importing answers needs no JAX."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rcjax.logs.errors import LogError, MissingPricesError
    from rcjax.logs.log import (
        IncompleteLogWarning,
        LeftOutWarning,
        Log,
        NoConfidenceWarning,
        PartsWarning,
        PricesWarning,
        UnlabelledWarning,
    )
    from rcjax.logs.prices import read_prices
    from rcjax.logs.reading import read_answers, read_log

__all__ = [
    "IncompleteLogWarning",
    "LeftOutWarning",
    "Log",
    "LogError",
    "MissingPricesError",
    "NoConfidenceWarning",
    "PartsWarning",
    "PricesWarning",
    "UnlabelledWarning",
    "read_answers",
    "read_log",
    "read_prices",
]

_HOMES = {
    "errors": ("LogError", "MissingPricesError"),
    "log": (
        "IncompleteLogWarning",
        "LeftOutWarning",
        "Log",
        "NoConfidenceWarning",
        "PartsWarning",
        "PricesWarning",
        "UnlabelledWarning",
    ),
    "prices": ("read_prices",),
    "reading": ("read_answers", "read_log"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(f"rcjax.logs.{home}"), name)
            globals()[name] = value
            return value
    # Submodules are attributes too, as they would be had they been imported here.
    try:
        return importlib.import_module(f"rcjax.logs.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"rcjax.logs.{name}":
            raise
        raise AttributeError(f"module 'rcjax.logs' has no attribute {name!r}") from None
