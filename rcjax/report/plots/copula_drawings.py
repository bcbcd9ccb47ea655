"""Figures of dependence: contours of a copula, and the ranks of all pairs of models."""

from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from rcjax._base.codec import takes
from rcjax._core.batching import part
from rcjax._core.numerics import kendall_tau
from rcjax.copulas import Copula, OneOf
from rcjax.model.calibrated import pairs
from rcjax.model.cascade_model import CascadeModel
from rcjax.report.plots.drawings import BLUE, GREY, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Densities of the contours: of ranks, where 1 is independence, and of normal scores.
_LEVELS = {"uniform": (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0), "normal": (0.01, 0.025, 0.05, 0.1, 0.15, 0.2)}

_NODES, _REACH = 81, 3.0  # grid lines per axis; largest normal score drawn

_TEXT = 8  # points


@takes(copula=Copula)
def plot_contours(
    ax: "Axes", copula: Copula, *, margins: Literal["uniform", "normal"] = "normal", title: str = ""
) -> None:
    """Draw contours of a copula's density, on normal scores (independence shows circles) or on ranks.

    Args:
        ax: Axes to draw into.
        copula: one copula, without leading axes.
        margins: "normal" for the density of (Φ⁻¹(U), Φ⁻¹(V)), "uniform" for the density of (U, V).
        title: title of the Axes.

    Raises ValueError for other margins.

    >>> from matplotlib.figure import Figure
    >>> from rcjax.copulas import Gumbel
    >>> ax = Figure().add_subplot()
    >>> plot_contours(ax, Gumbel(2.0), title="Gumbel, θ = 2")
    >>> [float(end) for end in ax.get_xlim()]
    [-3.0, 3.0]
    """
    if margins not in _LEVELS:
        raise ValueError(f"margins is {margins!r}; it must be 'uniform' or 'normal'")
    _draw_contours(ax, *_density(copula, margins), margins)
    ax.set(title=title, aspect="equal")


def _density(copula: Copula, margins: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (coordinates (G,), density (…, G, G)) of copulas with leading axes (…), rows indexed by v."""
    if margins == "uniform":
        x = (jnp.arange(_NODES) + 0.5) / _NODES
        u, scale = x, jnp.zeros_like(x)
    else:
        x = jnp.linspace(-_REACH, _REACH, _NODES)
        u, scale = jax.scipy.stats.norm.cdf(x), jax.scipy.stats.norm.logpdf(x)
    leading = jnp.shape(jax.tree.leaves(copula)[0]) if jax.tree.leaves(copula) else ()
    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(*leading, 1, 1), copula)
    return np.asarray(x), np.asarray(jnp.exp(wide.log_density(u, u[:, None]) + scale + scale[:, None]))


def _draw_contours(ax: "Axes", x: np.ndarray, density: np.ndarray, margins: str, step: int = 1) -> None:
    """Draw every `step`-th contour."""
    ax.contour(x, x, density, levels=_LEVELS[margins][::step], colors=BLUE, linewidths=0.9)
    ends = (0.0, 1.0) if margins == "uniform" else (-_REACH, _REACH)
    ax.set(xlim=ends, ylim=ends)


@takes(model=CascadeModel)
def plot_pairs(figure: "Figure", model: CascadeModel, confidence: ArrayLike) -> None:
    """Draw all pairs of models: ranks of the queries, fitted densities, and Kendall's τ of both.

    Panels below the diagonal show the ranks with contours of the fitted copula's density. Panels on the diagonal show a
    histogram of F(φ), which is flat if the marginal fits. Panels above it give the family, its parameters, and
    Kendall's τ of the copula and of the queries. Tied confidences are ranked in random order.

    Args:
        figure: empty figure, about 1.6 inches per model.
        model: fitted model, of k models.
        confidence: (n, k) calibrated confidence, as `model.calibrate(log)` gives it; NaN if a model did not answer.

    Raises ValueError for another shape.

    >>> import rcjax
    >>> from matplotlib.figure import Figure
    >>> log, model, figure = rcjax.sample_log(60), rcjax.demo_model(), Figure(figsize=(8, 8))
    >>> plot_pairs(figure, model, model.calibrate(log))
    >>> len(figure.axes)
    25
    """
    values, k = np.asarray(confidence, float), len(model.models)
    if values.ndim != 2 or values.shape[1] != k:
        raise ValueError(f"confidence has shape {values.shape}; it must be (n, {k}), a column for each model")
    axes = figure.subplots(k, k, squeeze=False, gridspec_kw={"hspace": 0.08, "wspace": 0.08})
    random = np.random.default_rng(0)
    x, densities = _density(model.copulas, "uniform")
    tau = np.asarray(model.copulas.tau())
    for number, (i, j) in enumerate(pairs(k)):
        both = values[~np.isnan(values[:, [i, j]]).any(1)][:, [i, j]]
        ranks = [_ranks(column, random) for column in both.T]
        axes[j, i].scatter(*ranks, s=3, color=GREY, linewidths=0, rasterized=True)
        _draw_contours(axes[j, i], x, densities[number], "uniform", step=2)
        observed = (
            float(kendall_tau(jnp.asarray(both[:, 0]), jnp.asarray(both[:, 1]), jnp.ones(len(both), bool)))
            if len(both) > 1
            else np.nan
        )
        text = f"{_describe(part(model.copulas, number))}\nτ {float(tau[number]):.2f}, seen {observed:.2f}"
        axes[i, j].text(0.5, 0.5, text, ha="center", va="center", fontsize=_TEXT, transform=axes[i, j].transAxes)
    for j, name in enumerate(model.models):
        _draw_marginal(axes[j, j], _randomised_rank(part(model.marginals, j), values[:, j], random), name)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[], box_aspect=1)


def _ranks(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Ranks in (0, 1), ties in random order; (n,)."""
    order = np.lexsort((random.random(len(values)), values))
    ranks = np.empty(len(values))
    ranks[order] = (np.arange(len(values)) + 0.5) / len(values)
    return ranks


def _randomised_rank(marginal: Any, values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """F(φ) of the m confidences present, with a random rank within a point mass: uniform under the marginal; (m,)."""
    present = jnp.asarray(values[~np.isnan(values)])
    start, end = (np.asarray(rank) for rank in marginal.mass_ranks())
    through = np.asarray(marginal.cdf(present))
    mass = np.isclose(through[:, None], end, rtol=0, atol=1e-6) & (end > start) & _at_mass(marginal, present)
    width = (mass * (end - start)).max(1)
    return np.clip(through - width * random.random(len(through)), 0.0, 1.0)


def _at_mass(marginal: Any, confidence: jax.Array) -> np.ndarray:
    """Whether a confidence is in each point mass; values beyond an end count as the end; (n, 2 + A) bool."""
    ends = [confidence <= marginal.lowest, confidence >= marginal.highest]
    inner = [] if marginal.atoms is None else list(jnp.moveaxis(marginal.at_atom(confidence), -1, 0))
    return np.stack([np.asarray(at) for at in (ends[0], *inner, ends[1])], axis=1)


def _draw_marginal(ax: "Axes", ranks: np.ndarray, name: str) -> None:
    """Draw a histogram of ranks in ten bins, the level of a perfect fit, and the model's name."""
    heights, *_ = ax.hist(ranks, bins=10, range=(0, 1), density=True, color=GREY, rwidth=0.9)
    ax.axhline(1.0, color=ORANGE, linewidth=1)
    ax.set(xlim=(0, 1), ylim=(0, 1.3 * max(1.0, np.max(heights, initial=0.0))))
    ax.text(0.5, 0.96, name, ha="center", va="top", fontsize=_TEXT, transform=ax.transAxes)


def _describe(copula: Copula) -> str:
    """Family and parameters of one copula, as text."""
    if isinstance(copula, OneOf):
        copula = copula.members[int(copula.index)]
    values = ", ".join(f"{name} {float(getattr(copula, name)):.3g}" for name in (*copula.free, *copula.grids))
    return f"{type(copula).__name__}\n{values}" if values else type(copula).__name__
