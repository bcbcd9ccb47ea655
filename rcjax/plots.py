"""Figures of a log, a fitted model and a diagnosis: each function draws into the matplotlib Axes it is given.

Needs matplotlib (`pip install 'rcjax[plots]'`). Colours are those of Okabe & Ito (2008), which the colour-blind tell
apart; what matters differs in shape or line too. `diagnosis_figures` arranges all of them for `rcjax diagnose --plots`.
"""

import io
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import patheffects
from matplotlib.figure import Figure

from rcjax._base.files import write_atomically
from rcjax._base.wording import Money, choose_unit
from rcjax._core.batching import part
from rcjax._core.compilation import compiled
from rcjax.copulas import Copula, OneOf
from rcjax.diagnostics.calibration import accuracy_above, reliability_curve
from rcjax.diagnostics.copulas import Ties
from rcjax.diagnostics.diagnosis import Diagnosis
from rcjax.frontier.frontier import Frontier
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting_steps import taus_of_log
from rcjax.model.marginals import Marginal
from rcjax.model.pairs import pairs
from rcjax.tuning.learning_curve import LearningCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "correlation_figure",
    "diagnosis_figures",
    "frontier_figure",
    "plot_accuracy_above",
    "plot_error_cost",
    "plot_frontier",
    "plot_learning_curve",
    "plot_marginal",
    "plot_rank_correlations",
    "plot_ranks",
    "plot_reliability",
    "save_figure",
]


BLUE, ORANGE, GREEN, PURPLE, BLACK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#8A8A8A"


_BINS = 25


_NAME = 8  # points, the size of a name in a figure


_MOST_POINTS = 2000


_ROUND_SIZES = [digit * 10**power for power in range(1, 8) for digit in (1, 2, 5)]


def plot_marginal(
    ax: "Axes", marginal: Marginal, confidence: np.ndarray, *, title: str = "", legend: bool = True
) -> None:
    """Histogram of one model's calibrated confidences (n,) with its fitted density.

    Bars are shares of all queries per unit of confidence; the point masses at either end are hatched bars of their
    own, drawn on the outside, their heights on the right-hand axis as shares.
    """
    confidence = np.asarray(confidence)
    low, high = float(marginal.lowest), float(marginal.highest)
    width = max(high - low, 1e-3)
    inner = confidence[(confidence > low) & (confidence < high)]
    edges = np.linspace(low, low + width, _BINS + 1)
    bar = width / _BINS
    counts = np.histogram(inner, edges)[0] / (len(confidence) * bar)
    ax.bar(
        edges[:-1], counts, bar, align="edge", color=BLUE, alpha=0.35, linewidth=0, label="log (hatched: point masses)"
    )
    grid = np.linspace(low, low + width, 402)[1:-1]
    density = np.asarray(_density(marginal, grid))
    # A component may be steep without bound at an end: the bars say how high to look.
    top = 1.25 * max(counts.max(initial=0.0), np.quantile(density, 0.97), 1e-9)
    ax.plot(grid, density, color=BLACK, linewidth=1.5, label="fitted")
    ax.set_ylim(0, top)
    masses = ax.twinx()
    ends = ((low - 2.2 * bar, marginal.mass_lowest, low), (low + width + 0.7 * bar, marginal.mass_highest, high))
    for place, fitted, value in ends:
        observed = np.mean(confidence == value) if low < high or place > low else 0.0
        style = {"width": 1.5 * bar, "align": "edge", "hatch": "////", "facecolor": "white"}
        masses.bar(place, observed, edgecolor=ORANGE, linewidth=1, **style)
        masses.plot([place, place + 1.5 * bar], [float(fitted)] * 2, color=BLACK, linewidth=2)
    masses.set_ylim(0, 1)
    masses.set_ylabel("point mass", color=ORANGE)
    masses.tick_params(axis="y", colors=ORANGE)
    if legend:
        ax.legend(frameon=False, fontsize=8, loc="upper center")
    ax.set_xlim(low - 3 * bar, low + width + 3 * bar)
    ax.set_xlabel("calibrated confidence")
    ax.set_ylabel("density")
    ax.set_title(title)


def plot_ranks(ax: "Axes", u: np.ndarray, v: np.ndarray, *, names: Sequence[str] = ("u", "v"), title: str = "") -> None:
    """Scatter of two models' ranks in (0, 1), (n,) each: their copula, whatever the margins.

    Draw the log's ranks in one Axes and `model.copulas.sample`'s in another: a copula that fits looks alike.
    """
    u, v = (np.asarray(values)[:_MOST_POINTS] for values in (u, v))
    ax.scatter(u, v, s=9, color=BLUE, alpha=0.5, linewidth=0, rasterized=True)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel=names[0], ylabel=names[1], title=title, aspect="equal")
    ax.set_xticks([0, 0.5, 1])
    ax.set_yticks([0, 0.5, 1])


def plot_rank_correlations(
    ax: "Axes", tau: np.ndarray, models: Sequence[str], *, title: str = "", rows_named: bool = True
) -> None:
    """Heatmap of Kendall's τ (k, k) between models, in the order of `models`, with the figures; "?" where it is NaN."""
    tau = np.asarray(tau)
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


def plot_reliability(ax: "Axes", confidence: np.ndarray, correct: np.ndarray, *, title: str = "") -> None:
    """Accuracy against confidence in ten bins of equal size, with 95 % intervals; the diagonal is perfection.

    confidence, correct (n,), best of queries that the calibration has not seen.
    """
    curve = reliability_curve(np.asarray(confidence), np.asarray(correct))
    ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="perfect")
    reach = np.stack([curve["accuracy"] - curve["low"], curve["high"] - curve["accuracy"]])
    style = {"fmt": "o-", "color": BLUE, "markersize": 4, "linewidth": 1, "elinewidth": 1}
    ax.errorbar(
        curve["confidence"],
        curve["accuracy"],
        np.maximum(reach, 0.0),
        label="log, 95 % interval",
        **style,
        clip_on=False,
    )
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="calibrated confidence", ylabel="share right", title=title, aspect="equal")


def plot_accuracy_above(
    ax: "Axes", confidence: np.ndarray, correct: np.ndarray, models: Sequence[str], *, fewest: int = 20
) -> None:
    """Accuracy of the most confident answers against the share answered, a line for each model (appendix E).

    confidence, correct (n, k), columns in the order of `models`. Shares of fewer than `fewest` queries are not shown. A
    line that does not rise to the left is a model whose confidence does not tell right from wrong.
    """
    colours = (BLUE, ORANGE, GREEN, PURPLE, BLACK)
    lines = ("-", "--", "-.", ":")
    for j, name in enumerate(models):
        curve = accuracy_above(np.asarray(confidence)[:, j], np.asarray(correct)[:, j])
        enough = curve["share"] * len(confidence) >= fewest
        style = {"color": colours[j % len(colours)], "linestyle": lines[j % len(lines)], "linewidth": 1.6}
        ax.plot(curve["share"][enough], curve["accuracy"][enough], label=name, **style)
    ax.set(xlim=(1, 0), xlabel="share of queries answered, most confident first", ylabel="share right")
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.legend(frameon=False, fontsize=8)


def plot_error_cost(
    ax: "Axes", frontier: Mapping[str, Any], single: Mapping[str, tuple[float, float]] | None = None
) -> None:
    """The error–cost frontier promised (line) and seen on held-out queries (points), with the 95 % band between.

    `frontier` is `Diagnosis.promise` or `Diagnosis.frontier`; `single` gives (cost, error) seen of each model on its
    own. The band is for the difference of the two, drawn about the promise: points outside it are not chance. Costs
    per million queries, or per thousand where they are large.
    """
    order, money = np.argsort(frontier["predicted_cost"]), _unit(frontier["predicted_cost"], single)
    cost, error = (money.scale * frontier["predicted_cost"][order], frontier["predicted_error"][order])
    band = frontier["error_band"][order]
    ax.fill_between(cost, error - band, error + band, color=BLUE, alpha=0.15, linewidth=0, label="95 % band")
    ax.plot(cost, error, color=BLUE, linewidth=1.6, label="promised")
    held_out = np.argsort(frontier["cost"])
    style = {"color": ORANGE, "marker": "o", "markersize": 4, "linestyle": ":", "linewidth": 1}
    ax.plot(money.scale * frontier["cost"][held_out], frontier["error"][held_out], label="seen, held out", **style)
    _finish_error_cost(ax, single or {}, money)


def plot_frontier(ax: "Axes", frontier: Frontier, single: Mapping[str, tuple[float, float]] | None = None) -> None:
    """A frontier as it was estimated, with the intervals for the error where it has bands.

    `single` gives (cost, error) of each model on its own. Costs per million queries, or per thousand where they are
    large.
    """
    order, money = np.lexsort((-np.asarray(frontier.error), np.asarray(frontier.cost))), _unit(frontier.cost, single)
    cost = money.scale * np.asarray(frontier.cost, float)[order]
    if frontier.bands is not None:
        low, high = np.asarray(frontier.bands.error, float)[order].T
        label = f"{100 * frontier.bands.level:g} % interval"
        ax.fill_between(cost, low, high, color=BLUE, alpha=0.15, linewidth=0, label=label)
    ax.plot(cost, np.asarray(frontier.error)[order], color=BLUE, linewidth=1.6, label="estimated from the log")
    _finish_error_cost(ax, single or {}, money)


def _unit(cost: Any, single: Mapping[str, tuple[float, float]] | None) -> Money:
    """The unit for costs that suits the single models, or else the frontier."""
    return choose_unit([price for price, _ in single.values()] if single else np.asarray(cost, float).tolist())


def _finish_error_cost(ax, single, money):
    """Single models as diamonds with their names, and the axes of error and cost."""
    white = [patheffects.withStroke(linewidth=2, foreground="white")]
    for price, wrong in single.values():
        ax.scatter(money.scale * price, wrong, marker="D", s=26, color=BLACK, zorder=4)
    ax.set(xlabel=f"cost, dollars per {money.name} queries", ylabel="error")
    ax.set_ylim(bottom=0)
    spots = {name: (money.scale * price, wrong) for name, (price, wrong) in single.items()}
    for name, (x, y, align) in _place_names(ax, spots).items():
        note = {"textcoords": "offset points", "fontsize": _NAME, "path_effects": white, "ha": align, "va": "center"}
        ax.annotate(name, spots[name], xytext=(x, y), **note)
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.legend(frameon=False, fontsize=8)


def _place_names(ax: "Axes", spots: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float, str]]:
    """Where the name of each spot goes: offsets (x, y) in points from it, and "left" or "right" for its alignment.

    Of some places around the spot, the first whose text neither leaves the picture nor covers another name or spot; or
    that which covers least. By the size of the Axes before the layout is settled, and a letter's usual width.
    """
    if not spots:
        return {}
    width, height = ax.get_figure().get_size_inches() * 72 * 0.82  # type: ignore[union-attr]
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    scale = np.array([width / (right - left), height / (top - bottom)])
    marks = {name: (np.array(spot) - (left, bottom)) * scale for name, spot in spots.items()}
    taken = [np.array([*(mark - 4), *(mark + 4)]) for mark in marks.values()]
    for line in ax.get_lines():  # which a name may cross, if need be: what it covers is little
        x, y = np.asarray(line.get_xydata(), float).T
        for share in np.linspace(0, len(x) - 1, 80):
            point = (
                np.array([np.interp(share, np.arange(len(x)), values) for values in (x, y)]) - (left, bottom)
            ) * scale
            taken.append(np.array([*(point - 1), *(point + 1)]))
    offsets = [(side * 7, rise) for rise in (5, -6, 15, -16, 25, -26, 35) for side in (1, -1)]
    offsets_of = {}
    for name, mark in sorted(marks.items(), key=lambda item: item[1][0]):
        boxes, long = [], 0.56 * _NAME * len(name)
        for x, y in offsets:
            start = mark[0] + (x if x > 0 else x - long)
            boxes.append(np.array([start, mark[1] + y - _NAME * 0.6, start + long, mark[1] + y + _NAME * 0.6]))
        picture = np.array([0.0, 0.0, width, height])
        cover = [
            sum(_shared(box, other) for other in taken) + 4 * (_area(box) - _shared(box, picture)) for box in boxes
        ]
        best = int(np.argmin(np.round(cover, 3)))
        taken.append(boxes[best])
        offsets_of[name] = (*offsets[best], "left" if offsets[best][0] > 0 else "right")
    return {name: offsets_of[name] for name in spots}


def _area(box: np.ndarray) -> float:
    return float(np.prod(np.maximum(box[2:] - box[:2], 0.0)))


def _shared(box: np.ndarray, other: np.ndarray) -> float:
    """The area that two boxes (left, bottom, right, top) share."""
    return _area(np.concatenate([np.maximum(box[:2], other[:2]), np.minimum(box[2:], other[2:])]))


def frontier_figure(frontier: Frontier, single: Mapping[str, tuple[float, float]] | None = None) -> Figure:
    """`plot_frontier` as a figure of its own."""
    figure, ax = _single()
    plot_frontier(ax, frontier, single)
    return figure


def plot_learning_curve(ax: "Axes", curve: LearningCurve, *, level: float = 0.9) -> None:
    """The area under the error–cost curve by number of labels, in per cent of what it is with the labels of the log.

    Points: what was seen on held-out queries. Line: the power law through them, up to twice the labels of the log,
    which the vertical line marks. Band: the interval of `level` for the change from there.
    """
    sizes = np.geomspace(curve.queries[0], 2 * curve.labels, 100)
    expected, low, high = curve.relative_area(sizes, level)
    ax.fill_between(sizes, low, high, color=BLUE, alpha=0.15, linewidth=0, label=f"{100 * level:g} % interval")
    ax.plot(sizes, expected, color=BLUE, linewidth=1.6, label="power law")
    now = curve.predict(curve.labels) or 1.0
    style = {"color": ORANGE, "marker": "o", "markersize": 4, "linestyle": "none"}
    ax.plot(curve.queries, 100 * curve.area / now, label="seen, held out", **style)
    ax.axvline(curve.labels, color=GREY, linestyle="--", linewidth=1, label=f"this log, {curve.labels} labels")
    ax.set_xscale("log")
    ticks = [size for size in _ROUND_SIZES if sizes[0] <= size <= sizes[-1]]
    ax.set_xticks(ticks, [f"{size:,}" for size in ticks])
    ax.minorticks_off()
    ax.set(xlabel="labelled queries", ylabel="area under the error–cost curve, % of now")
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.legend(frameon=False, fontsize=8)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG, whole or not at all."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    write_atomically(path, content.getvalue())


def diagnosis_figures(diagnosis: Diagnosis, model: CascadeModel, log: Log) -> dict[str, Figure]:
    """All figures of a diagnosis of `model` on `log`, by name: reliability, accuracy_above, marginals, copulas,
    correlations and frontier. The diagnosis must be of this very model and log.
    """
    log = log.select(model.models)
    log = log.take(log.complete)
    confidence = np.asarray(model.calibrate(log.logprob))
    names, marginals = model.models, jax.tree.map(np.asarray, model.marginals)
    figures = {
        "reliability": _grid(
            len(names),
            lambda ax, j: plot_reliability(ax, diagnosis.confidence[:, j], diagnosis.correct[:, j], title=names[j]),
        ),
        "marginals": _grid(
            len(names),
            lambda ax, j: plot_marginal(ax, part(marginals, j), confidence[:, j], title=names[j], legend=j == 0),
            width=4.2,
            right=0.7,
        ),
    }
    figure, ax = _single()
    plot_accuracy_above(ax, diagnosis.confidence, diagnosis.correct, names)
    figures["accuracy_above"] = figure
    figure, ax = _single()
    wrong, cost = 1 - diagnosis.correct.mean(0), np.asarray(log.query_cost).mean(0)
    plot_error_cost(
        ax, diagnosis.promise or diagnosis.frontier, {name: (cost[j], wrong[j]) for j, name in enumerate(names)}
    )
    figures["frontier"] = figure
    if len(names) > 1:
        figures["correlations"] = correlation_figure(diagnosis.correlations, names)
        figures["copulas"] = _copulas(model, confidence, names)
    return figures


def correlation_figure(correlations: np.ndarray, models: Sequence[str]) -> Figure:
    """Three heatmaps of `diagnostics.markov.rank_correlations` (3, k, k), whose models are those named, in their order:
    all queries, both right, both wrong.
    """
    k = len(models)
    figure = Figure(figsize=(4 + 2.0 * (k - 1), 2.2 + 0.5 * (k - 1)), layout="constrained")
    axes = figure.subplots(1, 3)
    for place, what in enumerate(("all queries", "both right", "both wrong")):
        plot_rank_correlations(axes[place], correlations[place], models, title=what, rows_named=place == 0)
    figure.suptitle("Kendall's τ of the confidences; ? under 50 queries", fontsize=10)
    return figure


def _single():
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    return figure, figure.add_subplot()


def _grid(count, draw, width=3.4, height=3.2, **margins):
    columns = min(count, 3)
    figure, place = _panels(-(-count // columns), columns, width, height, **margins)
    for j in range(count):
        draw(place(j), j)
    return figure


def _panels(rows, columns, width, height, left=0.65, right=0.2, bottom=0.55, top=0.35):
    """(a figure of so many panels, a function that adds the j-th); sizes and the margins of a panel in inches.

    What stands around a panel is always of the same size: to measure it takes longer than to draw it.
    """
    figure = Figure(figsize=(width * columns, height * rows))
    figure.subplots_adjust(
        left=left / (width * columns),
        right=1 - right / (width * columns),
        bottom=bottom / (height * rows),
        top=1 - top / (height * rows),
        wspace=(left + right) / (width - left - right),
        hspace=(bottom + top) / (height - bottom - top),
    )
    return figure, lambda j: figure.add_subplot(rows, columns, j + 1)


def _copulas(model, confidence, names):
    """Neighbouring models: ranks in the log, and as many drawn from the fitted copula, tied where the log is tied."""
    k = len(names)
    places = {pair: p for p, pair in enumerate(pairs(k))}
    figure, place = _panels(2, k - 1, 3.2, 3.3)
    observed = np.asarray(taus_of_log(confidence, np.ones(confidence.shape, bool)))
    for j in range(k - 1):
        labels, columns = names[j : j + 2], confidence[:, j : j + 2].T
        copula = _copula_of(model.copulas, places[j, j + 1])
        tied, tau = _draw_alike(copula, columns, jax.random.key(j))
        titles = f"log, τ = {observed[places[j, j + 1]]:.2f}", f"{type(copula).__name__}, τ = {tau:.2f}"
        for row, (values, title) in enumerate(zip((columns, tied), titles, strict=True)):
            u, v = (_spread_ranks(column, seed) for seed, column in enumerate(np.asarray(values)))
            plot_ranks(place(row * (k - 1) + j), u, v, names=labels, title=title)
    return figure


@partial(compiled, runs="once")
def _draw_alike(copula, columns, key):
    """Ranks (2, n) from a copula, tied where two models' confidences (2, n) are, and its τ."""
    present = jnp.ones(columns.shape[1], bool)
    drawn = copula.sample(key, columns.shape[1:])
    tied = jnp.stack([Ties.of(values, present).impose(u) for values, u in zip(columns, drawn, strict=True)])
    return tied, copula.tau()


@partial(compiled, runs="once")
def _density(marginal, confidence):
    return jax.vmap(marginal.density)(confidence)


def _copula_of(copulas: Copula, place: int) -> Copula:
    if isinstance(copulas, OneOf):
        copulas = copulas.members[int(np.asarray(copulas.index)[place])]
    return part(jax.tree.map(np.asarray, copulas), place)


def _spread_ranks(values, seed):
    """Ranks in (0, 1); those of ties are spread evenly, in random order, over what they share."""
    order = np.lexsort((np.random.default_rng(seed).random(len(values)), values))
    ranks = np.empty(len(values))
    ranks[order] = (np.arange(len(values)) + 0.5) / len(values)
    return ranks
