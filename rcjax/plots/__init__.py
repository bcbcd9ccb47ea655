"""Figures of a log, a fitted model and a diagnosis: each function draws into the matplotlib Axes it is given.

Needs matplotlib (`pip install 'rcjax[plots]'`). Colours are those of Okabe & Ito (2008), which the colour-blind tell
apart; what matters differs in shape or line too. `diagnosis_figures` arranges all of them for `rcjax diagnose --plots`.
"""

from rcjax.plots.confidence_plots import (
    plot_accuracy_above,
    plot_marginal,
    plot_rank_correlations,
    plot_ranks,
    plot_reliability,
)
from rcjax.plots.figures import correlation_figure, diagnosis_figures, frontier_figure, save_figure
from rcjax.plots.tradeoffs import plot_error_cost, plot_frontier

__all__ = [
    "correlation_figure",
    "diagnosis_figures",
    "frontier_figure",
    "plot_accuracy_above",
    "plot_error_cost",
    "plot_frontier",
    "plot_marginal",
    "plot_rank_correlations",
    "plot_ranks",
    "plot_reliability",
    "save_figure",
]
