"""The public names: each is imported when it is first used."""

from rcjax.plots.drawings import (
    diagnosis_figures as diagnosis_figures,
    plot_accuracy_above as plot_accuracy_above,
    plot_error_cost as plot_error_cost,
    plot_frontier as plot_frontier,
    plot_marginal as plot_marginal,
    plot_ranks as plot_ranks,
    plot_reliability as plot_reliability,
    save_figure as save_figure,
)
