"""Charts of error and cost and of reliability: what is drawn, and where it stands in an SVG. Needs no matplotlib.

`drawings` puts a panel into matplotlib's Axes, the report into its page. An SVG's units are points, with y downwards.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.wording import choose_unit
from rcjax.frontier.frontier import Frontier
from rcjax.goodness_of_fit.reliability import reliability_curve

#: Sizes of letters, in points: of labels, and of names within a chart.
LETTER, NAME = 10, 8

#: (cost, error) of single models, by name.
Singles = Mapping[str, tuple[float, float]]

_STEPS, _FEWER = 7, 5  # between the ticks of an axis, at most; where sums of money are too long to stand side by side


@dataclasses.dataclass(frozen=True)
class Axis:
    """One direction of a panel: the value `low` stands at `start`, the value `high` at `end`."""

    low: float
    high: float
    label: str
    percent: bool = False
    """Whether its values are shares, told in per cent."""
    start: float = 0.0
    end: float = 1.0

    @classmethod
    def around(cls, values: Sequence[Any], label: str, low: float | None = None, percent: bool = False) -> "Axis":
        """With a twentieth of it to spare on both sides of the values, or above only where `low` is given.

        >>> Axis.around([[0.0, 10.0]], "cost").high, Axis.around([1.0], "cost").low
        (10.5, 0.95)
        """
        every = np.concatenate([np.ravel(each) for each in values])
        bottom, top = float(every.min()) if low is None else low, float(every.max())
        spare = (top - bottom or abs(top) or 1.0) / 20
        return cls(bottom - spare if low is None else low, top + spare, label, percent)

    def at(self, values: Any) -> np.ndarray:
        """Where values stand."""
        return self.start + (self.end - self.start) * (np.asarray(values, float) - self.low) / (self.high - self.low)

    @cached_property
    def ticks(self) -> list[tuple[float, str]]:
        """Where round values stand, and how they are written.

        >>> Axis(0.0, 0.62, "error", percent=True, end=620.0).ticks[:3]
        [(0.0, '0 %'), (100.0, '10 %'), (200.0, '20 %')]
        """
        scale, unit = (100, " %") if self.percent else (1, "")
        low, high = scale * self.low, scale * self.high
        least = (high - low) / (_FEWER if not self.percent and high >= 10_000 else _STEPS)
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * times for times in (1, 2, 2.5, 5, 10) if power * times >= least * (1 - 1e-9))
        decimals = next(digits for digits in range(300) if math.isclose(round(step, digits), step, rel_tol=1e-6))
        values = step * np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        places = self.at(values / scale).round(2).tolist()
        return [(at, f"{value:,.{decimals}f}{unit}") for at, value in zip(places, values.tolist(), strict=True)]


class Mark(NamedTuple):
    """Something that is drawn at n points."""

    shape: str
    """`line`, `beads` (a line with dots), `dots`, `diamonds`; `area`, `bars`: from a low y to a high one."""
    style: str
    """What it is, by which it has its colours."""
    x: np.ndarray
    y: tuple[np.ndarray, ...]
    """(n,) each: one, or a low and a high one."""
    label: str | None = None
    """In the legend."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """What is drawn between two axes."""

    x: Axis
    y: Axis
    marks: Sequence[Mark]
    spots: Singles = dataclasses.field(default_factory=dict)
    """What has a name, as the axes have it."""
    title: str = ""
    square: bool = False

    def in_box(self, left: float, top: float, width: float, height: float) -> "Panel":
        """The panel as it lies in a box of an SVG, with room for what is written beside it."""
        start = left + LETTER * (2.7 + 0.6 * max(len(text) for _, text in self.y.ticks))
        ceiling = top + LETTER * (2.0 if self.title else 0.7)
        wide, high = left + width - 0.8 * LETTER - start, top + height - 3.5 * LETTER - ceiling
        if self.square:
            wide = high = min(wide, high)
        x = dataclasses.replace(self.x, start=round(start, 2), end=round(start + wide, 2))
        y = dataclasses.replace(self.y, start=round(ceiling + high, 2), end=round(ceiling, 2))
        return dataclasses.replace(self, x=x, y=y)

    def positions(self, x: Any, y: Any) -> list[list[float]]:
        """(n, 2) where points (n,) stand in the SVG, to a hundredth of its unit."""
        return np.column_stack([self.x.at(x), self.y.at(y)]).round(2).tolist()

    def paths(self, mark: Mark) -> list[list[list[float]]]:
        """The points of each line of a mark: of an area, the way around it."""
        low, *high = (self.positions(mark.x, y) for y in mark.y)
        if mark.shape == "area":
            return [low + high[0][::-1]]
        return [list(pair) for pair in zip(low, *high, strict=True)] if mark.shape == "bars" else [low]

    @property
    def names(self) -> list[tuple[str, float, float, str]]:
        """The names of the spots, where each begins, or ends: "start" or "end"."""
        places = dict(zip(self.spots, self.positions(*np.reshape(list(self.spots.values()), (-1, 2)).T), strict=True))
        above = {name: (at - self.x.start, self.y.start - down) for name, (at, down) in places.items()}
        offsets = place_names(above, self.x.end - self.x.start, self.y.start - self.y.end)
        return [
            (name, places[name][0] + dx, places[name][1] - dy, anchor) for name, (dx, dy, anchor) in offsets.items()
        ]


class Chart(NamedTuple):
    """One SVG."""

    width: float
    height: float
    panels: Sequence[Panel]


def reliability_panel(confidence: np.ndarray, correct: np.ndarray, title: str, success: str) -> Panel:
    """Accuracy against confidence in ten bins of equal size, with 90 % intervals; the diagonal is perfection."""
    curve, diagonal = reliability_curve(np.asarray(confidence), np.asarray(correct)), np.array([0.0, 1.0])
    at, share = curve["confidence"], curve["accuracy"]
    marks = [
        Mark("line", "perfect", diagonal, (diagonal,), "perfect"),
        Mark("bars", "bin", at, (np.minimum(curve["low"], share), np.maximum(curve["high"], share))),
        Mark("beads", "bin", at, (share,), "log, 90 % interval"),
    ]
    return Panel(Axis(0.0, 1.0, "calibrated confidence"), Axis(0.0, 1.0, success), marks, title=title, square=True)


def promise_panel(figures: Mapping[str, Any], single: Singles, noun: str) -> Panel:
    """The error–cost curve promised (line) and seen on held-out queries (points), with the 90 % band between.

    Args:
        figures: `Diagnosis.promise`.
        single: (cost, error) seen of each model on its own.
        noun: what is counted.
    """
    order, held_out = np.argsort(figures["predicted_cost"]), np.argsort(figures["cost"])
    cost, error, band = (figures[name][order] for name in ("predicted_cost", "predicted_error", "error_band"))
    curves = [
        Mark("area", "band", cost, (np.maximum(error - band, 0.0), error + band), "90 % band"),
        Mark("line", "curve", cost, (error,), "promised"),
        Mark("beads", "seen", figures["cost"][held_out], (figures["error"][held_out],), "seen, held out"),
    ]
    return _error_cost(curves, single, noun)


def frontier_panel(frontier: Frontier, single: Singles) -> Panel:
    """A frontier as it was estimated, with its intervals; of one of `select_frontier`, its points are dots."""
    order = np.lexsort((-np.asarray(frontier.error), np.asarray(frontier.cost)))
    cost, error = (np.asarray(figure, float)[order] for figure in (frontier.cost, frontier.error))
    curves = [Mark("line", "curve", cost, (error,), "estimated from the log")]
    if frontier.search == "selected":
        curves.append(Mark("dots", "corner", cost, (error,), "best at some price"))
    if frontier.bands is not None:
        low, high = np.asarray(frontier.bands.error, float)[order].T
        curves.insert(0, Mark("area", "band", cost, (low, high), f"{100 * frontier.bands.level:g} % interval"))
    return _error_cost(curves, single, frontier.counted.noun)


def _error_cost(curves: Sequence[Mark], single: Singles, noun: str) -> Panel:
    """Curves, and single models as diamonds with their names; costs in the unit that suits these."""
    known = {name: spot for name, spot in single.items() if np.isfinite(spot).all()}
    cost, error = np.reshape(list(known.values()), (-1, 2)).T
    money = choose_unit((cost if known else curves[0].x).tolist())
    marks = [*curves, *([Mark("diamonds", "single", cost, (error,))] if known else [])]
    marks = [mark._replace(x=money.scale * mark.x) for mark in marks]
    x = Axis.around([mark.x for mark in marks], f"cost, dollars per {money.name} queries")
    y = Axis.around([y for mark in marks for y in mark.y], noun, low=0.0, percent=True)
    return Panel(x, y, marks, {name: (money.scale * price, wrong) for name, (price, wrong) in known.items()})


def place_names(
    spots: Mapping[str, tuple[float, float]], width: float, height: float
) -> dict[str, tuple[float, float, str]]:
    """Where the name of each spot goes: offsets (x, y) from it, and "start" or "end", which of its ends is there.

    Beside the spot, towards the middle of the picture, at the first height where it covers no other name, by a letter's
    usual width. In points, with y upwards.

    Args:
        spots: (x, y) of each, from the lower left corner.
        width, height: of the picture.

    >>> place_names({"small": (10.0, 50.0), "large": (20.0, 52.0)}, 100.0, 100.0)
    {'small': (7, 5, 'start'), 'large': (7, 15, 'start')}
    """
    taken: list[tuple[float, float, float]] = []  # from, to, and at which height
    offsets = {}
    for name, (x, y) in spots.items():
        side, long = (1 if x < width / 2 else -1), 0.56 * NAME * len(name)
        start = x + 7 if side > 0 else x - 7 - long
        near = [level for low, high, level in taken if start < high and low < start + long]
        rises = [rise for rise in (5, -6, 15, -16, 25, -26, 35) if NAME < y + rise < height - NAME]
        free = [rise for rise in rises if all(abs(y + rise - level) > 1.2 * NAME for level in near)]
        rise = (free or rises or [5])[0]
        taken.append((start, start + long, y + rise))
        offsets[name] = (7 * side, rise, "start" if side > 0 else "end")
    return offsets
