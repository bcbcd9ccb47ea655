"""The public names: each is imported when it is first used."""

from rcjax.solving.frontier.frontier import Frontier as Frontier, load_frontier as load_frontier
from rcjax.solving.frontier.hull import InfeasibleError as InfeasibleError
from rcjax.solving.frontier.points import Bands as Bands, Seconds as Seconds
