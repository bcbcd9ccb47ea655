"""Figures of calibration (a reliability diagram) and of frontiers (error against cost), each drawn into an Axes.

Needs matplotlib (`pip install 'rcjax[plots]'`). The colours of Okabe & Ito (2008) are safe for the colour-blind, and
series differ in marker or line too.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import patheffects
from matplotlib.ticker import PercentFormatter

from rcjax._base.codec import takes
from rcjax._base.figures import Money, choose_unit
from rcjax.model.goodness_of_fit.reliability import reliability_curve
from rcjax.policy.error_kind import ERRORS
from rcjax.solving.frontier.frontier import Frontier
from rcjax.tuning.diagnostics.diagnosis import Promise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_error_cost", "plot_frontier", "plot_reliability"]

#: The colours of Okabe & Ito (2008), safe for the colour-blind.
BLUE, ORANGE, GREEN, PURPLE, BLACK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#8A8A8A"

_EM = 10 / 72  # inches, matplotlib's default size of labels
_NAME = 8  # font size of names and texts, in points
_CORNER: dict[str, Any] = {"s": 26, "linewidths": 0.6, "zorder": 3, "label": "best at some price"}


def plot_reliability(
    ax: "Axes", confidence: np.ndarray, correct: np.ndarray, *, title: str = "", success: str = ERRORS.success
) -> None:
    """Draw accuracy against confidence in ten bins of equal size, with 90 % intervals; the diagonal is perfection.

    Args:
        ax: Axes to draw into.
        confidence: (n,) calibrated confidence, preferably of held-out queries.
        correct: (n,) whether the answer is right.
        title: title of the Axes.
        success: name of the share of right answers.
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


def plot_error_cost(
    ax: "Axes",
    promise: Promise,
    single: Mapping[str, tuple[float, float]] | None = None,
    noun: str = ERRORS.noun,
    money: Money | None = None,
) -> None:
    """Draw a frontier as expected (line) and as observed on held-out queries (points), with a 90 % band.

    The band is that of the difference, drawn about the promise: points outside it are significant.

    Args:
        ax: Axes to draw into.
        promise: promised and observed figures, such as `Diagnosis.promise`.
        single: observed (cost, error) of each model on its own.
        noun: label of the error axis.
        money: unit of the costs; None: dollars per million queries, or per thousand if they are large.
    """
    order = np.argsort(promise.predicted_cost)
    money = money or _unit(promise.predicted_cost, single)
    cost, error = (money.scale * promise.predicted_cost[order], promise.predicted_error[order])
    band = promise.error_band[order]
    ax.fill_between(cost, error - band, error + band, color=BLUE, alpha=0.15, linewidth=0, label="90 % band")
    ax.plot(cost, error, color=BLUE, linewidth=1.6, label="expected")
    held_out = np.argsort(promise.cost)
    style = {"color": ORANGE, "marker": "o", "markersize": 4, "linestyle": ":", "linewidth": 1}
    ax.plot(money.scale * promise.cost[held_out], promise.error[held_out], label="seen, held out", **style)
    _finish_error_cost(ax, single or {}, money, noun)


@takes(frontier=Frontier)
def plot_frontier(
    ax: "Axes",
    frontier: Frontier,
    single: Mapping[str, tuple[float, float]] | None = None,
    money: Money | None = None,
) -> None:
    """Draw a frontier as estimated, with intervals for the error if it has bands.

    Dots mark the corners of the hull of a frontier of `select_frontier`; ladders lie between two of them.

    Args:
        ax, frontier: Axes to draw into, and the frontier.
        single: (cost, error) of each model on its own.
        money: unit of the costs; None: dollars per million queries, or per thousand if they are large.
    """
    order = np.lexsort((-np.asarray(frontier.error), np.asarray(frontier.cost)))
    money = money or _unit(frontier.cost, single)
    cost = money.scale * np.asarray(frontier.cost, float)[order]
    if frontier.bands is not None:
        low, high = np.asarray(frontier.bands.error, float)[order].T
        label = f"{100 * frontier.bands.level:g} % interval"
        ax.fill_between(cost, low, high, color=BLUE, alpha=0.15, linewidth=0, label=label)
    error = np.asarray(frontier.error)[order]
    ax.plot(cost, error, color=BLUE, linewidth=1.6, label="estimated from the log")
    if frontier.is_by_labels:
        ax.scatter(cost, error, color=BLUE, **_CORNER)
    _finish_error_cost(ax, single or {}, money, frontier.error_kind.noun)


def _unit(cost: Any, single: Mapping[str, tuple[float, float]] | None) -> Money:
    """Choose the unit of costs that suits the single models or, without these, the frontier."""
    return choose_unit([price for price, _ in single.values()] if single else np.asarray(cost, float).tolist())


def _finish_error_cost(ax: "Axes", single: Mapping[str, tuple[float, float]], money: Money, noun: str) -> None:
    """Draw single models as named diamonds, and label the axes."""
    white = [patheffects.withStroke(linewidth=2, foreground="white")]
    for price, wrong in single.values():
        ax.scatter(money.scale * price, wrong, marker="D", s=26, color=BLACK, zorder=4)
    ax.set(xlabel=f"cost, dollars {money.per}", ylabel=noun)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, symbol=" %"))
    spots = {name: (money.scale * price, wrong) for name, (price, wrong) in single.items()}
    for name, (x, y, align) in _place_names(ax, spots).items():
        note = {"textcoords": "offset points", "fontsize": _NAME, "path_effects": white, "ha": align, "va": "center"}
        ax.annotate(name, spots[name], xytext=(x, y), **note)
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.legend(frameon=False, fontsize=8)


def _place_names(ax: "Axes", spots: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float, str]]:
    """Place the name of each spot: offsets (x, y) from the spot in points, and alignment "left" or "right".

    A name goes beside its spot. In the right half it goes above or below it, since the curve and the page's marker
    leave room there. Its height is the first at which it covers no other name. Widths are estimated from the number of
    letters, and the size of the Axes is taken before its layout.
    """
    width, height = ax.get_figure().get_size_inches() * 72 * 0.82  # type: ignore[union-attr]
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    placed: list[tuple[float, float, float]] = []  # (left, right, height) of placed names
    offsets = {}
    for name, (cost, error) in spots.items():
        x, y = width * (cost - left) / (right - left), height * (error - bottom) / (top - bottom)
        side, long = (1 if x < width / 2 else -1), 0.56 * _NAME * len(name)
        shift, heights = (7, (5, -6, 15, -16, 25, -26, 35)) if side > 0 else (5, (15, -16, 25, -26, 35))
        start = x + shift if side > 0 else x + shift - long
        near = [level for low, high, level in placed if start < high and low < start + long]
        rises = [rise for rise in heights if _NAME < y + rise < height - _NAME]
        free = [rise for rise in rises if all(abs(y + rise - level) > 1.2 * _NAME for level in near)]
        rise = (free or rises or heights)[0]
        placed.append((start, start + long, y + rise))
        offsets[name] = (shift, rise, "left" if side > 0 else "right")
    return offsets


def lay_out(figure: "Figure", ax: "Axes", box: tuple[float, float, float, float]) -> None:
    """Place an Axes with its labels in a box of its figure: (left, bottom, width, height) in inches.

    Widths are estimated from the number of letters, since matplotlib's layouts draw everything twice to measure them.
    """
    widest, longest = (
        0.6 * max(map(len, axis.get_major_formatter().format_ticks(list(axis.get_majorticklocs()))))
        for axis in (ax.xaxis, ax.yaxis)
    )  # widths of tick labels, in em
    left_em, right_em, below_em, above_em = 1.2 + longest, max(widest / 2, 0.4), 2.2, 2.0 if ax.get_title() else 0.7
    start, floor, width, height = box
    wide, high = width - _EM * (left_em + 1.5 + right_em), height - _EM * (below_em + 1.3 + above_em)
    if ax.get_aspect() == 1:
        wide = high = min(wide, high)
    across, up = figure.get_size_inches()
    left, bottom = start + _EM * (left_em + 1.5), floor + height - _EM * above_em - high
    ax.set_position((left / across, bottom / up, wide / across, high / up))
    ax.yaxis.set_label_coords(-_EM * left_em / wide, 0.5)
    ax.xaxis.set_label_coords(0.5, -_EM * below_em / high)
