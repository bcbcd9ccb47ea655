"""Confidences drawn: their distribution, their ranks, how often they are right."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.compilation import compiled
from rcjax.goodness_of_fit.reliability import accuracy_above, reliability_curve
from rcjax.model.marginals import Marginal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

from rcjax.plots.tradeoffs import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE
from rcjax.policy.counted import ERRORS

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


def plot_rank_correlations(
    ax: "Axes", tau: np.ndarray, models: Sequence[str], *, title: str = "", rows_named: bool = True
) -> None:
    """Heatmap of Kendall's τ between models, with the figures; "?" where it is NaN.

    Args:
        ax: where to draw.
        tau: (k, k) Kendall's τ, in the order of `models`.
        models: their names.
        title: over the figure.
        rows_named: whether the rows bear the names too.
    """
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
