"""The public names: each is imported when it is first used."""

from rcjax.report.plots.drawings import (
    plot_contours as plot_contours,
    plot_error_cost as plot_error_cost,
    plot_frontier as plot_frontier,
    plot_pairs as plot_pairs,
    plot_reliability as plot_reliability,
)
