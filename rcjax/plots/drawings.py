"""Drawings into an Axes: how often confidences are right; error and cost."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import patheffects
from matplotlib.ticker import PercentFormatter

from rcjax.frontier.frontier import Frontier
from rcjax.plots import charts
from rcjax.policy.counted import ERRORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: The colours of Okabe & Ito (2008), which the colour-blind tell apart.
BLUE, ORANGE, GREEN, PURPLE, BLACK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#8A8A8A"

#: How marks look in matplotlib, by their style.
_LOOKS: dict[str, dict[str, Any]] = {
    "perfect": {"color": GREY, "linestyle": "--", "linewidth": 1},
    "bin": {"color": BLUE, "linewidth": 1, "clip_on": False},
    "band": {"color": BLUE, "alpha": 0.15, "linewidth": 0},
    "curve": {"color": BLUE, "linewidth": 1.6},
    "seen": {"color": ORANGE, "linestyle": ":", "linewidth": 1},
    "corner": {"color": BLUE, "s": 26, "linewidths": 0.6, "zorder": 3},
    "single": {"color": BLACK, "s": 26, "marker": "D", "zorder": 4},
}


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
    _draw(ax, charts.reliability_panel(confidence, correct, title, success))
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")


def plot_error_cost(
    ax: "Axes", frontier: Mapping[str, Any], single: charts.Singles | None = None, noun: str = ERRORS.noun
) -> None:
    """The error–cost frontier promised (line) and seen on held-out queries (points), with the 90 % band between.

    The band is for the difference of the two, drawn about the promise: points outside it are not chance. Costs per
    million queries, or per thousand where they are large.

    Args:
        ax: to draw into.
        frontier: `Diagnosis.promise`.
        single: (cost, error) seen of each model on its own.
        noun: what is counted.
    """
    _draw_error_cost(ax, charts.promise_panel(frontier, single or {}, noun))


def plot_frontier(ax: "Axes", frontier: Frontier, single: charts.Singles | None = None) -> None:
    """A frontier as it was estimated, with the intervals for the error where it has bands.

    Of a frontier of `select_frontier`, dots mark its points, the corners of its hull; between two of them stands a
    ladder. `single` gives (cost, error) of each model on its own. Costs per million queries, or per thousand where they
    are large.
    """
    _draw_error_cost(ax, charts.frontier_panel(frontier, single or {}))


def _draw(ax: "Axes", panel: charts.Panel) -> None:
    """The marks of a panel, and what its axes are."""
    beads = partial(ax.plot, marker="o", markersize=4)
    ways: dict[str, Any] = {"line": ax.plot, "beads": beads, "area": ax.fill_between, "bars": ax.vlines}
    for mark in panel.marks:
        ways.get(mark.shape, ax.scatter)(mark.x, *mark.y, label=mark.label, **_LOOKS[mark.style])
    ax.set(xlabel=panel.x.label, ylabel=panel.y.label, title=panel.title)


def _draw_error_cost(ax: "Axes", panel: charts.Panel) -> None:
    """A panel of error and cost, with the names of the single models, a grid and a legend."""
    _draw(ax, panel)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, symbol=" %"))
    # By the size of the Axes before the layout is settled.
    width, height = ax.get_figure().get_size_inches() * 72 * 0.82  # type: ignore[union-attr]
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    points = {
        name: (width * (cost - left) / (right - left), height * (error - bottom) / (top - bottom))
        for name, (cost, error) in panel.spots.items()
    }
    white = [patheffects.withStroke(linewidth=2, foreground="white")]
    for name, (x, y, anchor) in charts.place_names(points, width, height).items():
        align = {"ha": "left" if anchor == "start" else "right", "va": "center"}
        note = {"textcoords": "offset points", "fontsize": charts.NAME, "path_effects": white, **align}
        ax.annotate(name, panel.spots[name], xytext=(x, y), **note)
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.legend(frameon=False, fontsize=8)
