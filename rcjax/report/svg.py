"""Figures of matplotlib as SVG inside a page: text stays text, and colours are the page's, by day and by night."""

import html
import io
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from rcjax.plots.colours import BLUE, GREEN, GREY, ORANGE, PURPLE

#: Colours of `rcjax.plots` by the variable of the page's style that stands for them.
VARIABLES: Mapping[str, str] = {
    "#000000": "--ink",
    "#ffffff": "--paper",
    "#dddddd": "--line",
    "#cccccc": "--line",
    GREY: "--muted",
    BLUE: "--blue",
    ORANGE: "--orange",
    GREEN: "--green",
    PURPLE: "--purple",
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}


def style() -> AbstractContextManager[None]:
    """The context to make figures in: `with style(): …`."""
    return mpl.rc_context(_STYLE)


def to_svg(figure: Figure, name: str, description: str) -> str:
    """An `<svg>` element that a screen reader reads as its description; `name` keeps its ids apart from others'."""
    content = io.StringIO()
    with style():
        # Not by `savefig`, which goes through everything twice.
        FigureCanvasSVG(figure).print_svg(content, metadata={"Date": None, "Creator": None})
    text = content.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    for colour, variable in VARIABLES.items():
        text = re.sub(re.escape(colour) + r"\b", f"var({variable})", text, flags=re.IGNORECASE)
    # The page sizes it, and its fonts: only families are replaced, so that no label grows.
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # which would hold for all of the page
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1)


def positions(figure: Figure, ax: Axes, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(n, 2) where points lie in the units of a figure's SVG, from its upper left.

    Args:
        figure: the figure.
        ax: the axes that the points are drawn in.
        x, y: (n,) the points, as the axes have them.
    """
    figure.draw_without_rendering()
    pixels = ax.transData.transform(np.column_stack([x, y]))
    height = figure.get_size_inches()[1] * 72
    scaled = pixels * 72 / figure.dpi
    return np.column_stack([scaled[:, 0], height - scaled[:, 1]])
