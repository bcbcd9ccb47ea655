"""The public names: each is imported when it is first used."""

from rcjax.frontier.bands import Bands as Bands
from rcjax.frontier.choosing import InfeasibleError as InfeasibleError
from rcjax.frontier.frontier import Frontier as Frontier
from rcjax.frontier.frontier_files import load_frontier as load_frontier
from rcjax.frontier.waiting_times import Seconds as Seconds
