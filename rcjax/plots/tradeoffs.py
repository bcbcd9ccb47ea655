"""Error and cost drawn: frontiers, and what was promised and seen."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import patheffects

from rcjax._base.wording import Money, choose_unit
from rcjax.frontier.frontier import Frontier
from rcjax.policy.counted import ERRORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: The colours of Okabe & Ito (2008), which the colour-blind tell apart.
BLUE, ORANGE, GREEN, PURPLE, BLACK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#8A8A8A"

_NAME = 8  # points, the size of a name in a figure

_CORNER: dict[str, Any] = {"s": 26, "linewidths": 0.6, "zorder": 3, "label": "best at some price"}


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
