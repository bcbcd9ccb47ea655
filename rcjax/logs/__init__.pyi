"""The public names: each is imported when it is first used."""

from rcjax.logs.cells import HandLabels as HandLabels
from rcjax.logs.errors import LogError as LogError, MissingPricesError as MissingPricesError
from rcjax.logs.log import (
    IncompleteLogWarning as IncompleteLogWarning,
    LeftOutWarning as LeftOutWarning,
    Log as Log,
    NoConfidenceWarning as NoConfidenceWarning,
    PricesWarning as PricesWarning,
    UnlabelledWarning as UnlabelledWarning,
)
from rcjax.logs.oddities import OddLogWarning as OddLogWarning
from rcjax.logs.prices import read_prices as read_prices
from rcjax.logs.reading import read_log as read_log
from rcjax.logs.segments import with_segments as with_segments
