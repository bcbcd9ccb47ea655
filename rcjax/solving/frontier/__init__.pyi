"""The public names: each is imported when it is first used."""

from rcjax.solving.frontier.frontier import (
    Frontier as Frontier,
    InfeasibleError as InfeasibleError,
    load_frontier as load_frontier,
)
from rcjax.solving.frontier.points import Bands as Bands, Seconds as Seconds
