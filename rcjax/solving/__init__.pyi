"""The public names: each is imported when it is first used."""

from rcjax.solving.frontier.points import area_under_curve as area_under_curve
from rcjax.solving.minimising import minimise as minimise
from rcjax.solving.optimum import Solution as Solution, solve as solve
from rcjax.solving.quadrature import Outcome as Outcome, smoothed_quantile as smoothed_quantile
from rcjax.solving.tradeoff import (
    error_and_cost as error_and_cost,
    outcomes as outcomes,
    solve_frontier as solve_frontier,
)
