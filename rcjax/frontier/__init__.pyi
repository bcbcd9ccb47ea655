"""The public names: each is imported when it is first used."""

from rcjax.frontier.files import load_frontier as load_frontier
from rcjax.frontier.frontier import Frontier as Frontier
from rcjax.frontier.hull import InfeasibleError as InfeasibleError
from rcjax.frontier.points import Bands as Bands, Seconds as Seconds
