"""The figures of a report's checks, as SVG inside a page: text stays text, colours are the page's, by day and night."""

import html
import io
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from rcjax.diagnostics import Diagnosis
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.plots import diagnosis_figures
from rcjax.plots.drawings import BLUE, GREEN, GREY, ORANGE, PURPLE

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


_PIXELS = 84  # of an inch of figures with several panels, on a wide screen

#: Inches of a figure with one panel, and the pixels of one: a phone is as wide, with text as large as in the page.
_ONE, _ONE_PIXELS = (4.6, 3.6), 120


_CAPTIONS = {
    "reliability": "{success} against calibrated confidence, held out: on the diagonal, it is as the confidence says.",
    "marginals": "Calibrated confidences of each model, and the distribution fitted to them.",
    "copulas": "How the confidences of neighbouring models go together: above in the log, below in the fitted model. "
    "They should look alike.",
    "correlations": "Rank correlations of the confidences.",
    "frontier": "{noun} and cost of the policies as promised when they were tuned, and as seen on queries that the "
    "tuning left out.",
}


_FOLDED = ("marginals", "copulas", "correlations")  # what statisticians look at


def draw_checks(diagnosis: Diagnosis, model: CascadeModel, log: Log) -> list[dict[str, Any]]:
    """The figures of a diagnosis of a model on a log, as the template takes them."""
    with style():
        drawn = diagnosis_figures(diagnosis, model, log)
    words = {"noun": diagnosis.counted.noun.capitalize(), "success": diagnosis.counted.success.capitalize()}
    captions = {name: caption.format(**words) for name, caption in _CAPTIONS.items()}
    single = {name for name, figure in drawn.items() if len(figure.axes) == 1}
    for name in single:
        drawn[name].set_size_inches(*_ONE)
    return [
        {
            "name": name,
            "caption": caption,
            "folded": name in _FOLDED,
            "svg": Markup(to_svg(drawn[name], name, caption)),
            "width": f"{drawn[name].get_size_inches()[0] * (_ONE_PIXELS if name in single else _PIXELS):.0f}",
            "single": name in single,
        }
        for name, caption in captions.items()
        if name in drawn
    ]
