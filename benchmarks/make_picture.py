"""The picture of the README: the trade-off of the demo's log with its policy, for light and dark pages.

    python -m benchmarks.make_picture

Writes rcjax/docs/tradeoff-light.svg and rcjax/docs/tradeoff-dark.svg. The log, the margin and the policy are those of
`rcjax demo`, the curve and its intervals what `rcjax.tune` returns. Needs the `bench` dependencies. One version of
matplotlib gives the same bytes each time.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import jax
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import rcjax
from rcjax._base.figures import Money, choose_unit
from rcjax._base.files import write_atomically
from rcjax.cli.replays import FRESH
from rcjax.policy.spec import MARGIN
from rcjax.report.page import style, to_svg
from rcjax.report.plots import BLACK, ORANGE, plot_frontier

DOCS = Path(rcjax.__file__).parent / "docs"
SIZE = 7.2, 3.6  # inches
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

#: Colours of the report's variables on the pages of the README's readers.
THEMES = {
    "light": {
        "ink": "#1f2328",
        "paper": "#ffffff",
        "line": "#d1d9e0",
        "muted": "#59636e",
        "blue": "#0072b2",
        "orange": "#b84a00",
    },
    "dark": {
        "ink": "#f0f6fc",
        "paper": "#0d1117",
        "line": "#3d444d",
        "muted": "#9198a1",
        "blue": "#6cb6f0",
        "orange": "#ff9b57",
    },
}


def tuned() -> rcjax.Tuned:
    """The demo's log, tuned to be as good as its largest model."""
    log = rcjax.sample_log(1000 + FRESH).take(slice(1000))
    return rcjax.tune(log, match=MARGIN, today=log.models[-1])


def draw(result: rcjax.Tuned) -> Figure:
    """The trade-off, with a star for the policy and a line that says what it saves."""
    single = {model.model: (model.cost, 1 - model.accuracy) for model in result.single_models}
    figure = Figure(figsize=SIZE, layout="constrained")
    ax = figure.add_subplot()
    plot_frontier(ax, result.frontier, single)
    for text in ax.texts:
        text.set_path_effects([])  # outlines would be drawn letter by letter
    ax.set_ylim(0, 1.1 * max(error for _, error in single.values()))
    point_out(ax, result, choose_unit([cost for cost, _ in single.values()]))
    return figure


def point_out(ax: Axes, result: rcjax.Tuned, money: Money) -> None:
    """Mark the policy, and say what it costs beside the dearest model."""
    policy = result.policy
    assert policy is not None
    cost, error = float(policy.expected["cost"] or 0), float(policy.expected["error"] or 0)
    best = result.single_models[-1]
    spot = money.scale * cost, error
    ax.scatter(*spot, marker="*", s=190, color=ORANGE, zorder=5)
    text = (
        f"rcjax demo --match 1%: {100 * error:.1f} % wrong for ${money.show(cost)};\n"
        f"{best.model} alone: {100 * (1 - best.accuracy):.1f} % for ${money.show(best.cost)}"
    )
    line = {"arrowstyle": "-", "color": ORANGE, "linewidth": 0.8, "shrinkB": 8}
    place: dict[str, Any] = {"xytext": (0.3, 0.62), "textcoords": "axes fraction", "linespacing": 1.5}
    place["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 2}
    ax.annotate(text, spot, color=BLACK, arrowprops=line, parse_math=False, **place)


def render(result: rcjax.Tuned, theme: str) -> str:
    """The SVG file for a theme of `THEMES`."""
    with style(), mpl.rc_context({"svg.hashsalt": "rcjax"}):
        text = to_svg(draw(result), "tradeoff", "Error against cost of the best cascades, with each model alone")
    for name, colour in THEMES[theme].items():
        text = text.replace(f"var(--{name})", colour)
    width, height = (72 * side for side in SIZE)
    root = f'<svg width="{width:g}" height="{height:g}" font-family="{FONTS}" fill="{THEMES[theme]["ink"]}"'
    return re.sub(r"(\d+\.\d{2})\d+", r"\1", text.replace("<svg", root, 1))


def main() -> None:
    """Write both files."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    jax.config.update("jax_enable_x64", True)
    result = tuned()
    for theme in THEMES:
        write_atomically(DOCS / f"tradeoff-{theme}.svg", render(result, theme))


if __name__ == "__main__":
    main()
