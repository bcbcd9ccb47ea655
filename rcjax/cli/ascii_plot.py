"""The frontier drawn in characters, for the terminal."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from string import ascii_uppercase
from typing import Any

from rcjax._base.wording import Money

_CURVE, _CHOSEN = "·", "◆"


_WIDTH, _HEIGHT = 64, 10  # characters, without the frame: it fits a terminal of 80


_DECIMALS = 4  # of errors in per cent, far below what a log can tell


_NARROWEST = 0.01  # points of error on an axis


_SAME = 1e-4  # costs that differ by this share are one


def sketch(
    points: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    money: Money,
    chosen: Mapping[str, Any] | None = None,
    noun: str = "error",
    *,
    colour: bool = False,
) -> str:
    """Draw the error, in per cent, against the cost: the frontier, each model alone as a letter, the point chosen.

    `points` and `chosen` hold `cost` and `error`, `rows` `model`, `cost` and `accuracy` of each model. Series differ
    by their characters; `colour` adds to that only. Models far from the frontier are
    named, not drawn. `noun` is what is counted.
    """
    from uniplot import plot_to_string  # where something is drawn only: it takes a moment to import

    curve = sorted((point["cost"], point["error"]) for point in points)
    letters = dict(zip(ascii_uppercase, rows, strict=False))
    beyond = {letter for letter, row in letters.items() if not _is_near(row["cost"], 1 - row["accuracy"], curve)}
    series = [curve, *([(row["cost"], 1 - row["accuracy"])] for letter, row in letters.items() if letter not in beyond)]
    marks = [_CURVE, *(letter for letter in letters if letter not in beyond)]
    if chosen:
        series.append([(chosen["cost"], chosen["error"])])
        marks.append(_CHOSEN)
    xs = [[float(f"{money.scale * cost:.6g}") for cost, _ in curve] for curve in series]
    ys = [[round(100 * error, _DECIMALS) for _, error in curve] for curve in series]
    drawing = plot_to_string(
        xs=xs,
        ys=ys,
        **_window("x", xs, 0.0),
        **_window("y", ys, _NARROWEST),
        lines=[True] + [False] * (len(series) - 1),
        width=_WIDTH,
        height=_HEIGHT,
        y_unit=" %",
        x_gridlines=[],
        y_gridlines=[],
        color=["blue", *["red"] * (len(letters) - len(beyond)), "green"][: len(series)] if colour else False,
        character_set="ascii",
        force_ascii_characters=marks,
    )
    text = drawing if isinstance(drawing, str) else "\n".join(drawing)
    legend = _legend(letters, beyond, money, bool(chosen), noun)
    return "\n".join([*(line.rstrip() for line in text.splitlines()), *legend])


def _window(axis: str, values: Sequence[Sequence[float]], narrowest: float) -> dict[str, float]:
    """The ends of an axis where all values are nearly one: else its labels would be of what rounding leaves."""
    numbers = list(itertools.chain.from_iterable(values))
    low, high = min(numbers), max(numbers)
    if high - low > max(narrowest, _SAME * high):
        return {}
    margin = max(narrowest, 0.1 * high) or 1.0
    return {f"{axis}_min": max(low - margin, 0.0), f"{axis}_max": high + margin}


def _is_near(cost: float, error: float, curve: Sequence[tuple[float, float]]) -> bool:
    """Whether a point would leave the frontier at least half of the drawing, both ways."""
    costs, errors = zip(*curve, strict=True)
    most = max(costs) + (max(costs) - min(costs)), max(errors) + (max(errors) - min(errors))
    return cost <= most[0] and error <= most[1]


def _legend(
    letters: Mapping[str, Mapping[str, Any]], beyond: Set[str], money: Money, chosen: bool, noun: str
) -> list[str]:
    """What the characters stand for, in lines as wide as the drawing."""
    pieces = [f"{_CURVE} the frontier", *([f"{_CHOSEN} your target"] if chosen else [])]
    pieces += [f"{letter} {row['model']}{' (far off)' * (letter in beyond)}" for letter, row in letters.items()]
    lines = [f" {noun} against $ per {money.name} queries:"]
    for piece in pieces:
        if len(lines[-1]) + len(piece) + 2 > _WIDTH:
            lines.append("")
        lines[-1] += f"  {piece}"
    return lines
