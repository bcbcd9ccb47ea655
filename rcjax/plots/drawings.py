"""Drawings into an Axes: confidences, their ranks and how often they are right; error and cost."""

import io
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import patheffects
from matplotlib.figure import Figure

from rcjax._base.files import write_atomically
from rcjax._base.wording import Money, choose_unit
from rcjax._core.batching import fill_up, part
from rcjax._core.compilation import compiled
from rcjax.copulas import Copula, OneOf
from rcjax.diagnostics.diagnosis import Diagnosis
from rcjax.frontier.frontier import Frontier
from rcjax.goodness_of_fit.copula_fit import Ties
from rcjax.goodness_of_fit.reliability import accuracy_above, reliability_curve
from rcjax.logs.log import Log
from rcjax.model.calibrated import pairs
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import taus_of_log
from rcjax.model.marginals import Marginal
from rcjax.policy.counted import ERRORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: The colours of Okabe & Ito (2008), which the colour-blind tell apart.
BLUE, ORANGE, GREEN, PURPLE, BLACK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#8A8A8A"

_NAME = 8  # points, the size of a name in a figure

_CORNER: dict[str, Any] = {"s": 26, "linewidths": 0.6, "zorder": 3, "label": "best at some price"}

_BINS = 25

_MOST_POINTS = 2000

_FEW_VALUES = 32  # of a model, that are marked one by one


def plot_marginal(
    ax: "Axes", marginal: Marginal, confidence: np.ndarray, *, title: str = "", legend: bool = True
) -> None:
    """Histogram of one model's calibrated confidences with its fitted density.

    Bars are shares of all queries per unit of confidence; point masses are hatched bars of their own, their heights on
    the right-hand axis as shares: those at either end on the outside, those that a model states between at their place.

    Args:
        ax: where to draw.
        marginal: the fitted marginal of the model.
        confidence: (n,) its calibrated confidences.
        title: over the figure.
        legend: whether to draw one.
    """
    confidence = np.asarray(confidence)
    low, high = float(marginal.lowest), float(marginal.highest)
    width = max(high - low, 1e-3)
    bar = width / _BINS
    _draw_smooth(ax, marginal, confidence, (low, width))
    ends = ((low - 2.2 * bar, marginal.mass_lowest, low), (low + width + 0.7 * bar, marginal.mass_highest, high))
    if low == high:  # everything is in one mass, that at the top
        ends = ends[1:]
    between = ((value - 0.75 * bar, mass, value) for value, mass in _atoms(marginal))
    masses = ax.twinx()
    for left, fitted, value in (*ends, *between):
        observed = np.mean(np.abs(confidence - value) <= marginal.snap)
        style = {"width": 1.5 * bar, "align": "edge", "hatch": "////", "facecolor": "white"}
        masses.bar(left, observed, edgecolor=ORANGE, linewidth=1, **style)
        masses.plot([left, left + 1.5 * bar], [float(fitted)] * 2, color=BLACK, linewidth=2)
    masses.set_ylim(0, 1)
    masses.set_ylabel("point mass", color=ORANGE)
    masses.tick_params(axis="y", colors=ORANGE)
    if legend:
        ax.legend(frameon=False, fontsize=8, loc="upper center")
    ax.set_xlim(low - 3 * bar, low + width + 3 * bar)
    ax.set_xlabel("calibrated confidence")
    ax.set_title(title)


def _draw_smooth(ax: "Axes", marginal: Marginal, confidence: np.ndarray, scale: tuple[float, float]) -> None:
    """Bars and density of what lies in no point mass; scale: the lowest confidence, and how far to the highest."""
    low, width = scale
    smooth = (confidence > low) & (confidence < float(marginal.highest))
    if marginal.atoms is not None:
        smooth &= ~np.asarray(marginal.at_atom(jnp.asarray(confidence))).any(-1)
    edges = np.linspace(low, low + width, _BINS + 1)
    bar = width / _BINS
    counts = np.histogram(confidence[smooth], edges)[0] / (len(confidence) * bar)
    ax.bar(
        edges[:-1], counts, bar, align="edge", color=BLUE, alpha=0.35, linewidth=0, label="log (hatched: point masses)"
    )
    grid = np.linspace(low, low + width, 402)[1:-1]
    density = np.asarray(_density(marginal, grid))
    ax.plot(grid, density, color=BLACK, linewidth=1.5, label="fitted")
    if not smooth.any() and not density.any():  # nothing but point masses: no density to measure
        ax.set_ylim(0, 1)
        ax.set_yticks([])
        return
    # A component may be steep without bound at an end: the bars say how high to look.
    ax.set_ylim(0, 1.25 * max(counts.max(initial=0.0), np.quantile(density, 0.97), 1e-9))
    ax.set_ylabel("density")


def _atoms(marginal: Marginal) -> list[tuple[float, float]]:
    """(value, mass) of the atoms between the ends."""
    if marginal.atoms is None:
        return []
    rows = zip(np.asarray(marginal.atoms.value), np.asarray(marginal.atoms.mass), strict=True)
    return [(float(value), float(mass)) for value, mass in rows if mass > 0]


def plot_ranks(ax: "Axes", u: np.ndarray, v: np.ndarray, *, names: Sequence[str] = ("u", "v"), title: str = "") -> None:
    """Scatter of two models' ranks: their copula, whatever the margins.

    Draw the log's ranks in one Axes and `model.copulas.sample`'s in another: a copula that fits looks alike.

    Args:
        ax: where to draw.
        u, v: (n,) the ranks of the two models, in (0, 1).
        names: of the two models.
        title: over the figure.
    """
    u, v = (np.asarray(values)[:_MOST_POINTS] for values in (u, v))
    ax.scatter(u, v, s=9, color=BLUE, alpha=0.5, linewidth=0, rasterized=True)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel=names[0], ylabel=names[1], title=title, aspect="equal")
    ax.set_xticks([0, 0.5, 1])
    ax.set_yticks([0, 0.5, 1])


def plot_reliability(
    ax: "Axes", confidence: np.ndarray, correct: np.ndarray, *, title: str = "", success: str = ERRORS.success
) -> None:
    """Accuracy against confidence in ten bins of equal size, with 90 % intervals; the diagonal is perfection.

    Args:
        ax: where to draw.
        confidence: (n,) calibrated, best of queries that the calibration has not seen.
        correct: (n,) whether the answer is right.
        title: over the figure.
        success: what the share of right answers is called.
    """
    curve = reliability_curve(np.asarray(confidence), np.asarray(correct))
    ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="perfect")
    reach = np.stack([curve["accuracy"] - curve["low"], curve["high"] - curve["accuracy"]])
    style = {"fmt": "o-", "color": BLUE, "markersize": 4, "linewidth": 1, "elinewidth": 1}
    ax.errorbar(
        curve["confidence"],
        curve["accuracy"],
        np.maximum(reach, 0.0),
        label="log, 90 % interval",
        **style,
        clip_on=False,
    )
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="calibrated confidence", ylabel=success, title=title, aspect="equal")


def plot_accuracy_above(
    ax: "Axes",
    confidence: np.ndarray,
    correct: np.ndarray,
    models: Sequence[str],
    *,
    fewest: int = 20,
    success: str = ERRORS.success,
) -> None:
    """Accuracy of the most confident answers against the share answered, a line for each model (appendix E).

    A line that does not rise to the left is a model whose confidence does not tell right from wrong.

    Args:
        ax: where to draw.
        confidence: (n, k) calibrated.
        correct: (n, k) whether the answer is right; NaN if that is not known.
        models: the names of the k columns.
        fewest: shares of fewer queries are not shown.
        success: what the share of right answers is called.
    """
    colours = (BLUE, ORANGE, GREEN, PURPLE, BLACK)
    lines = ("-", "--", "-.", ":")
    for j, name in enumerate(models):
        labelled = np.isfinite(np.asarray(correct)[:, j])
        curve = accuracy_above(np.asarray(confidence)[labelled, j], np.asarray(correct)[labelled, j])
        enough = curve["share"] * labelled.sum() >= fewest
        style = {"color": colours[j % len(colours)], "linestyle": lines[j % len(lines)], "linewidth": 1.6}
        if enough.sum() <= _FEW_VALUES:  # thresholds lie between a few values only: nothing is reached between them
            style |= {"marker": "o", "markersize": 4, "alpha": 0.8}
        ax.plot(curve["share"][enough], curve["accuracy"][enough], label=name, **style)
    ax.set(xlim=(1, 0), xlabel="share of queries answered, most confident first", ylabel=success)
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.legend(frameon=False, fontsize=8)


@partial(compiled, runs="once")
def _density(marginal: Marginal, confidence: jax.Array) -> jax.Array:
    return jax.vmap(marginal.density)(confidence)


def plot_error_cost(
    ax: "Axes",
    frontier: Mapping[str, Any],
    single: Mapping[str, tuple[float, float]] | None = None,
    noun: str = ERRORS.noun,
) -> None:
    """The error–cost frontier promised (line) and seen on held-out queries (points), with the 90 % band between.

    The band is for the difference of the two, drawn about the promise: points outside it are not chance. Costs per
    million queries, or per thousand where they are large.

    Args:
        ax: to draw into.
        frontier: `Diagnosis.promise` or `Diagnosis.frontier`.
        single: (cost, error) seen of each model on its own.
        noun: what is counted.
    """
    order, money = np.argsort(frontier["predicted_cost"]), _unit(frontier["predicted_cost"], single)
    cost, error = (money.scale * frontier["predicted_cost"][order], frontier["predicted_error"][order])
    band = frontier["error_band"][order]
    ax.fill_between(cost, error - band, error + band, color=BLUE, alpha=0.15, linewidth=0, label="90 % band")
    ax.plot(cost, error, color=BLUE, linewidth=1.6, label="promised")
    held_out = np.argsort(frontier["cost"])
    style = {"color": ORANGE, "marker": "o", "markersize": 4, "linestyle": ":", "linewidth": 1}
    ax.plot(money.scale * frontier["cost"][held_out], frontier["error"][held_out], label="seen, held out", **style)
    _finish_error_cost(ax, single or {}, money, noun)


def plot_frontier(ax: "Axes", frontier: Frontier, single: Mapping[str, tuple[float, float]] | None = None) -> None:
    """A frontier as it was estimated, with the intervals for the error where it has bands.

    Of a frontier of `select_frontier`, dots mark its points, the corners of its hull; between two of them stands a
    ladder. `single` gives (cost, error) of each model on its own. Costs per million queries, or per thousand where they
    are large.
    """
    order, money = np.lexsort((-np.asarray(frontier.error), np.asarray(frontier.cost))), _unit(frontier.cost, single)
    cost = money.scale * np.asarray(frontier.cost, float)[order]
    if frontier.bands is not None:
        low, high = np.asarray(frontier.bands.error, float)[order].T
        label = f"{100 * frontier.bands.level:g} % interval"
        ax.fill_between(cost, low, high, color=BLUE, alpha=0.15, linewidth=0, label=label)
    error = np.asarray(frontier.error)[order]
    ax.plot(cost, error, color=BLUE, linewidth=1.6, label="estimated from the log")
    if frontier.search == "selected":
        ax.scatter(cost, error, color=BLUE, **_CORNER)
    _finish_error_cost(ax, single or {}, money, frontier.counted.noun)


def _unit(cost: Any, single: Mapping[str, tuple[float, float]] | None) -> Money:
    """The unit for costs that suits the single models, or else the frontier."""
    return choose_unit([price for price, _ in single.values()] if single else np.asarray(cost, float).tolist())


def _finish_error_cost(ax: "Axes", single: Mapping[str, tuple[float, float]], money: Money, noun: str) -> None:
    """Single models as diamonds with their names, and the axes of error and cost."""
    white = [patheffects.withStroke(linewidth=2, foreground="white")]
    for price, wrong in single.values():
        ax.scatter(money.scale * price, wrong, marker="D", s=26, color=BLACK, zorder=4)
    ax.set(xlabel=f"cost, dollars per {money.name} queries", ylabel=noun)
    ax.set_ylim(bottom=0)
    spots = {name: (money.scale * price, wrong) for name, (price, wrong) in single.items()}
    for name, (x, y, align) in _place_names(ax, spots).items():
        note = {"textcoords": "offset points", "fontsize": _NAME, "path_effects": white, "ha": align, "va": "center"}
        ax.annotate(name, spots[name], xytext=(x, y), **note)
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.legend(frameon=False, fontsize=8)


def _place_names(ax: "Axes", spots: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float, str]]:
    """Where the name of each spot goes: offsets (x, y) in points from it, and "left" or "right" for its alignment.

    Beside the spot, towards the middle of the picture, at the first height where it covers no other name. By the size
    of the Axes before the layout is settled, and a letter's usual width.
    """
    width, height = ax.get_figure().get_size_inches() * 72 * 0.82  # type: ignore[union-attr]
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    taken: list[tuple[float, float, float]] = []  # from, to, and at which height
    offsets = {}
    for name, (cost, error) in spots.items():
        x, y = width * (cost - left) / (right - left), height * (error - bottom) / (top - bottom)
        side, long = (1 if x < width / 2 else -1), 0.56 * _NAME * len(name)
        start = x + 7 if side > 0 else x - 7 - long
        near = [level for low, high, level in taken if start < high and low < start + long]
        rises = [rise for rise in (5, -6, 15, -16, 25, -26, 35) if _NAME < y + rise < height - _NAME]
        free = [rise for rise in rises if all(abs(y + rise - level) > 1.2 * _NAME for level in near)]
        rise = (free or rises or [5])[0]
        taken.append((start, start + long, y + rise))
        offsets[name] = (7 * side, rise, "left" if side > 0 else "right")
    return offsets


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG, whole or not at all."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    write_atomically(path, content.getvalue())


def diagnosis_figures(diagnosis: Diagnosis, model: CascadeModel, log: Log) -> dict[str, Figure]:
    """All figures of a diagnosis of `model` on `log`, by name: reliability, accuracy_above, marginals, copulas,
    correlations, and where there is a promise frontier. The diagnosis must be of this very model and log.
    """
    log = log.select(model.models)
    log = log.take(log.complete)
    confidence = np.asarray(model.calibrate(log.logprob))
    names, marginals = model.models, jax.tree.map(np.asarray, model.marginals)
    success, columns = diagnosis.counted.success, min(len(names), 3)
    figures = {}
    figures["reliability"], reliability = _panels(-(-len(names) // columns), columns, 3.4, 3.2)
    figures["marginals"], marginal = _panels(-(-len(names) // columns), columns, 4.2, 3.2, right=0.7)
    for j, name in enumerate(names):
        labelled = np.isfinite(diagnosis.correct[:, j])
        answers = diagnosis.confidence[labelled, j], diagnosis.correct[labelled, j]
        plot_reliability(reliability(j), *answers, title=name, success=success)
        plot_marginal(marginal(j), part(marginals, j), confidence[:, j], title=name, legend=j == 0)
    figure, ax = _single()
    plot_accuracy_above(ax, diagnosis.confidence, diagnosis.correct, names, success=success)
    figures["accuracy_above"] = figure
    if diagnosis.promise is not None:
        figure, ax = _single()
        wrong, cost = 1 - np.nanmean(diagnosis.correct, axis=0), np.asarray(log.query_cost).mean(0)
        single = {name: (cost[j], wrong[j]) for j, name in enumerate(names)}
        plot_error_cost(ax, diagnosis.promise, single, diagnosis.counted.noun)
        figures["frontier"] = figure
    if len(names) > 1:
        figures["copulas"] = _copulas(model, confidence, names)
    return figures


def _single() -> "tuple[Figure, Axes]":
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    return figure, figure.add_subplot()


_LEFT, _BOTTOM, _TOP = 0.65, 0.55, 0.35  # inches about a panel


def _panels(
    rows: int, columns: int, width: float, height: float, right: float = 0.2
) -> tuple[Figure, Callable[[int], Any]]:
    """(a figure of so many panels, a function that adds the j-th); the size of a panel and its margin in inches.

    What stands around a panel is always of the same size: to measure it takes longer than to draw it.
    """
    across, up = width * columns, height * rows
    figure = Figure(figsize=(across, up))
    figure.subplots_adjust(_LEFT / across, _BOTTOM / up, 1 - right / across, 1 - _TOP / up)
    figure.subplots_adjust(
        wspace=(_LEFT + right) / (width - _LEFT - right), hspace=(_BOTTOM + _TOP) / (height - _BOTTOM - _TOP)
    )
    return figure, lambda j: figure.add_subplot(rows, columns, j + 1)


def _copulas(model: CascadeModel, confidence: np.ndarray, names: tuple[str, ...]) -> Figure:
    """Neighbouring models: ranks in the log, and as many drawn from the fitted copula, tied where the log is tied."""
    k = len(names)
    indices = {pair: p for p, pair in enumerate(pairs(k))}
    figure, panel = _panels(2, k - 1, 3.2, 3.3)
    observed = np.asarray(taus_of_log(*fill_up(confidence, np.ones(confidence.shape, bool))))
    for j in range(k - 1):
        labels, columns = names[j : j + 2], confidence[:, j : j + 2].T
        copula = _copula_of(model.copulas, indices[j, j + 1])
        tied, tau = _draw_alike(copula, columns, j)
        titles = f"log, τ = {observed[indices[j, j + 1]]:.2f}", f"{type(copula).__name__}, τ = {tau:.2f}"
        for row, (values, title) in enumerate(zip((columns, tied), titles, strict=True)):
            u, v = (_spread_ranks(column, seed) for seed, column in enumerate(np.asarray(values)))
            plot_ranks(panel(row * (k - 1) + j), u, v, names=labels, title=title)
    return figure


@partial(compiled, runs="once")
def _draw_alike(copula: Copula, columns: jax.Array, seed: int) -> tuple[jax.Array, jax.Array]:
    """Ranks (2, n) from a copula, tied where two models' confidences (2, n) are, and its τ."""
    present = jnp.ones(columns.shape[1], bool)
    drawn = copula.sample(jax.random.key(seed), columns.shape[1:])
    tied = jnp.stack([Ties.of(values, present).impose(u) for values, u in zip(columns, drawn, strict=True)])
    return tied, copula.tau()


def _copula_of(copulas: Copula, index: int) -> Copula:
    if isinstance(copulas, OneOf):
        copulas = copulas.members[int(np.asarray(copulas.index)[index])]
    return part(jax.tree.map(np.asarray, copulas), index)


def _spread_ranks(values: np.ndarray, seed: int) -> np.ndarray:
    """Ranks in (0, 1); those of ties are spread evenly, in random order, over what they share."""
    order = np.lexsort((np.random.default_rng(seed).random(len(values)), values))
    ranks = np.empty(len(values))
    ranks[order] = (np.arange(len(values)) + 0.5) / len(values)
    return ranks
