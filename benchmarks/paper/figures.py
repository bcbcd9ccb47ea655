"""The figures of the paper, each a matplotlib figure."""

import itertools

import numpy as np
from matplotlib.figure import Figure

from benchmarks.methods import best_single_or_pair, change, grid_search, rational_tuning
from benchmarks.paper.inputs import Source
from benchmarks.paper.statistics import accuracy_above, rank_correlations
from rcjax.report.plots import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE

_MIN_QUERIES = 20  # queries of a share that is shown


def curves(source: Source) -> Figure:
    """Figure 5: error against cost on the test split, every model in turn and free choice."""
    model, train, test = source.model, source.train, source.test
    drawn = {
        "grid search, every model in turn": (grid_search(model, train, test, model.models), ORANGE, "--"),
        "rational tuning, every model in turn": (rational_tuning(model, test, "full"), BLUE, "-"),
        "best single or pair, by the labels": (best_single_or_pair(model, train, test), GREY, ":"),
        "rational tuning, all subcascades": (rational_tuning(model, test), GREEN, "-."),
    }
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    ax = figure.add_subplot()
    for name, (curve, colour, line) in drawn.items():
        order = np.argsort(curve.cost)
        ax.plot(1e6 * curve.cost[order], curve.error[order], line, color=colour, linewidth=1.6, label=name)
    single = 1 - np.asarray(test.correct).mean(0)
    ax.scatter(1e6 * np.asarray(test.cost), single, color=BLACK, marker="D", s=24, label="single models", zorder=3)
    ax.set(xlabel="cost, dollars per million queries", ylabel="error", title=f"{source.benchmark}, {source.family}")
    ax.set_ylim(bottom=0)
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.legend(frameon=False, fontsize=8)
    return figure


def correlations(source: Source) -> Figure:
    """Appendix F: Kendall's τ of the confidences of models in turn: of all queries, both right, both wrong."""
    test = source.test.take(source.test.complete)
    tau = np.asarray(rank_correlations(source.model.calibrate(test.logprob), test.correct, test.answered))
    k = len(test.models)
    figure = Figure(figsize=(4 + 2.0 * (k - 1), 2.2 + 0.5 * (k - 1)), layout="constrained")
    axes = figure.subplots(1, 3)
    for number, what in enumerate(("all queries", "both good", "neither good")):
        _heatmap(axes[number], tau[number], test.models, title=what, rows_named=number == 0)
    figure.suptitle("Kendall's τ of the confidences; ? under 50 queries", fontsize=10)
    return figure


def _heatmap(ax, tau: np.ndarray, models: tuple[str, ...], *, title: str, rows_named: bool) -> None:
    """Kendall's τ (k, k) between models, with the figures; "?" where it is NaN."""
    k = len(tau)
    shown = np.ma.masked_invalid(np.where(np.tri(k, k, -1, dtype=bool), tau, np.nan))[1:, :-1]
    ax.imshow(shown, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    for i in range(k - 1):
        for j in range(i + 1):
            value = tau[i + 1, j]
            text = "?" if np.isnan(value) else f"{value:.2f}"
            dark = not np.isnan(value) and abs(value) > 0.6
            ax.text(j, i, text, ha="center", va="center", fontsize=9, color="white" if dark else "black")
    ax.set_xticks(range(k - 1), models[:-1], rotation=35, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(k - 1), models[1:] if rows_named else [""] * (k - 1))
    ax.set_frame_on(False)
    ax.tick_params(length=0)
    ax.set_title(title)


def confident(source: Source) -> Figure:
    """Appendix E: accuracy of the most confident answers against the share answered, a line for each model."""
    test = source.test.take(source.test.complete)
    confidence, correct = np.asarray(source.model.calibrate(test.logprob)), np.asarray(test.correct)
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    ax = figure.add_subplot()
    for j, name in enumerate(test.models):
        curve = accuracy_above(confidence[:, j], correct[:, j])
        enough = curve["share"] * len(correct) >= _MIN_QUERIES
        ax.plot(curve["share"][enough], curve["accuracy"][enough], linewidth=1.6, label=name)
    ax.set(xlim=(1, 0), xlabel="share of queries answered, most confident first", ylabel="accuracy")
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.legend(frameon=False, fontsize=8)
    return figure


def low_sample(rows: list[dict]) -> Figure:
    """Figure 6: change of area with thirty labels, a point for each seed, the mean a bar."""
    groups = list(dict.fromkeys((row["benchmark"], row["family"]) for row in rows))
    columns = [name for name in rows[0] if name.endswith("%")]
    figure = Figure(figsize=(4.2 * len(columns), 3.8), layout="constrained")
    for place, column in enumerate(columns):
        ax = figure.add_subplot(1, len(columns), place + 1)
        for x, group in enumerate(groups):
            own = [row[column] for row in rows if (row["benchmark"], row["family"]) == group]
            values = np.array([value for value in own if value is not None])
            spread = x + np.linspace(-0.2, 0.2, len(values))
            ax.scatter(spread, values, s=14, color=BLUE, alpha=0.6, linewidth=0)
            ax.plot([x - 0.3, x + 0.3], [values.mean()] * 2, color=BLACK, linewidth=2)
        ax.axhline(0, color=GREY, linewidth=1, linestyle="--")
        ax.set_xticks(range(len(groups)), [f"{b}\n{f}" for b, f in groups], fontsize=8)
        ax.set_ylabel("change of area, %")
        ax.set_title(column.removesuffix(", %"), fontsize=9, wrap=True)
    return figure


def sensitivity(misfits: list[dict], areas: list[dict]) -> Figure:
    """Figure 7: change of area of rational tuning against grid search, by misfit; a point for each cascade."""
    by_cascade = {(row["benchmark"], row["family"], row["cascade"]): row for row in areas}
    columns = [name for name in misfits[0] if name not in ("benchmark", "family", "cascade")]
    groups = list(dict.fromkeys((row["benchmark"], row["family"]) for row in misfits))
    styles = [
        (BLUE, "o"),
        (ORANGE, "s"),
        (GREEN, "^"),
        (PURPLE, "D"),
        (BLACK, "v"),
    ]
    figure = Figure(figsize=(4.6 * len(columns), 3.8), layout="constrained")
    for place, column in enumerate(columns):
        ax = figure.add_subplot(1, len(columns), place + 1)
        for (colour, marker), group in zip(itertools.cycle(styles), groups, strict=False):
            rows = [row for row in misfits if (row["benchmark"], row["family"]) == group]
            found = [by_cascade[(*group, row["cascade"])] for row in rows]
            changes = [change(row["rational tuning"], row["grid search"]) for row in found]
            known = [(row[column], value) for row, value in zip(rows, changes, strict=True) if value is not None]
            style = {"color": colour, "marker": marker, "s": 18, "alpha": 0.7, "linewidth": 0}
            ax.scatter(*zip(*known, strict=True), label=" ".join(group), **style)
        ax.axhline(0, color=GREY, linewidth=1, linestyle="--")
        ax.set(xlabel=column, ylabel="change of area against grid search, %")
        ax.locator_params(axis="x", nbins=6)
    ax.legend(frameon=False, fontsize=8)
    return figure
