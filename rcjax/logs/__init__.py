"""Logs of answers: reading and checking them, prices, labels that come later, and the sample that a policy carries.

Takes files and dataframes with one row per query and model; gives a `Log`, matrices of queries by models."""

from rcjax.logs.errors import LogError, MissingPricesError
from rcjax.logs.log import IncompleteLogWarning, LeftOutWarning, Log
from rcjax.logs.prices import read_prices
from rcjax.logs.reading import read_answers, read_log

__all__ = [
    "IncompleteLogWarning",
    "LeftOutWarning",
    "Log",
    "LogError",
    "MissingPricesError",
    "read_answers",
    "read_log",
    "read_prices",
]
