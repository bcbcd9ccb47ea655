"""The public names: each is imported when it is first used."""

from rcjax.logs.errors import (
    IncompleteLogWarning as IncompleteLogWarning,
    LeftOutWarning as LeftOutWarning,
    LogError as LogError,
    MissingPricesError as MissingPricesError,
    NoConfidenceWarning as NoConfidenceWarning,
    OddBudgetWarning as OddBudgetWarning,
    OddLogWarning as OddLogWarning,
    PricesWarning as PricesWarning,
    UnlabelledWarning as UnlabelledWarning,
)
from rcjax.logs.gathering import ReadOptions as ReadOptions
from rcjax.logs.log import HandLabels as HandLabels, Log as Log
from rcjax.logs.prices import read_prices as read_prices
from rcjax.logs.reading import read_log as read_log, with_segments as with_segments
