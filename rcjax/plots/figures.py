"""Whole figures, arranged from the drawings, and their files."""

import io
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from rcjax._base.files import write_atomically
from rcjax._core.batching import fill_up, part
from rcjax._core.compilation import compiled
from rcjax.copulas import Copula, OneOf
from rcjax.diagnostics.diagnosis import Diagnosis
from rcjax.goodness_of_fit.copula_fit import Ties
from rcjax.logs.log import Log
from rcjax.model.calibrated import pairs
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import taus_of_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes

from rcjax.plots.drawings import (
    plot_accuracy_above,
    plot_error_cost,
    plot_marginal,
    plot_ranks,
    plot_reliability,
)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG, whole or not at all."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    write_atomically(path, content.getvalue())


def diagnosis_figures(diagnosis: Diagnosis, model: CascadeModel, log: Log) -> dict[str, Figure]:
    """All figures of a diagnosis of `model` on `log`, by name: reliability, accuracy_above, marginals, copulas,
    correlations, and where there is a promise frontier. The diagnosis must be of this very model and log.
    """
    log = log.select(model.models)
    log = log.take(log.complete)
    confidence = np.asarray(model.calibrate(log.logprob))
    names, marginals = model.models, jax.tree.map(np.asarray, model.marginals)
    success, columns = diagnosis.counted.success, min(len(names), 3)
    figures = {}
    figures["reliability"], reliability = _panels(-(-len(names) // columns), columns, 3.4, 3.2)
    figures["marginals"], marginal = _panels(-(-len(names) // columns), columns, 4.2, 3.2, right=0.7)
    for j, name in enumerate(names):
        labelled = np.isfinite(diagnosis.correct[:, j])
        answers = diagnosis.confidence[labelled, j], diagnosis.correct[labelled, j]
        plot_reliability(reliability(j), *answers, title=name, success=success)
        plot_marginal(marginal(j), part(marginals, j), confidence[:, j], title=name, legend=j == 0)
    figure, ax = _single()
    plot_accuracy_above(ax, diagnosis.confidence, diagnosis.correct, names, success=success)
    figures["accuracy_above"] = figure
    if diagnosis.promise is not None:
        figure, ax = _single()
        wrong, cost = 1 - np.nanmean(diagnosis.correct, axis=0), np.asarray(log.query_cost).mean(0)
        single = {name: (cost[j], wrong[j]) for j, name in enumerate(names)}
        plot_error_cost(ax, diagnosis.promise, single, diagnosis.counted.noun)
        figures["frontier"] = figure
    if len(names) > 1:
        figures["copulas"] = _copulas(model, confidence, names)
    return figures


def _single() -> "tuple[Figure, Axes]":
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    return figure, figure.add_subplot()


_LEFT, _BOTTOM, _TOP = 0.65, 0.55, 0.35  # inches about a panel


def _panels(
    rows: int, columns: int, width: float, height: float, right: float = 0.2
) -> tuple[Figure, Callable[[int], Any]]:
    """(a figure of so many panels, a function that adds the j-th); the size of a panel and its margin in inches.

    What stands around a panel is always of the same size: to measure it takes longer than to draw it.
    """
    across, up = width * columns, height * rows
    figure = Figure(figsize=(across, up))
    figure.subplots_adjust(_LEFT / across, _BOTTOM / up, 1 - right / across, 1 - _TOP / up)
    figure.subplots_adjust(
        wspace=(_LEFT + right) / (width - _LEFT - right), hspace=(_BOTTOM + _TOP) / (height - _BOTTOM - _TOP)
    )
    return figure, lambda j: figure.add_subplot(rows, columns, j + 1)


def _copulas(model: CascadeModel, confidence: np.ndarray, names: tuple[str, ...]) -> Figure:
    """Neighbouring models: ranks in the log, and as many drawn from the fitted copula, tied where the log is tied."""
    k = len(names)
    indices = {pair: p for p, pair in enumerate(pairs(k))}
    figure, panel = _panels(2, k - 1, 3.2, 3.3)
    observed = np.asarray(taus_of_log(*fill_up(confidence, np.ones(confidence.shape, bool))))
    for j in range(k - 1):
        labels, columns = names[j : j + 2], confidence[:, j : j + 2].T
        copula = _copula_of(model.copulas, indices[j, j + 1])
        tied, tau = _draw_alike(copula, columns, j)
        titles = f"log, τ = {observed[indices[j, j + 1]]:.2f}", f"{type(copula).__name__}, τ = {tau:.2f}"
        for row, (values, title) in enumerate(zip((columns, tied), titles, strict=True)):
            u, v = (_spread_ranks(column, seed) for seed, column in enumerate(np.asarray(values)))
            plot_ranks(panel(row * (k - 1) + j), u, v, names=labels, title=title)
    return figure


@partial(compiled, runs="once")
def _draw_alike(copula: Copula, columns: jax.Array, seed: int) -> tuple[jax.Array, jax.Array]:
    """Ranks (2, n) from a copula, tied where two models' confidences (2, n) are, and its τ."""
    present = jnp.ones(columns.shape[1], bool)
    drawn = copula.sample(jax.random.key(seed), columns.shape[1:])
    tied = jnp.stack([Ties.of(values, present).impose(u) for values, u in zip(columns, drawn, strict=True)])
    return tied, copula.tau()


def _copula_of(copulas: Copula, index: int) -> Copula:
    if isinstance(copulas, OneOf):
        copulas = copulas.members[int(np.asarray(copulas.index)[index])]
    return part(jax.tree.map(np.asarray, copulas), index)


def _spread_ranks(values: np.ndarray, seed: int) -> np.ndarray:
    """Ranks in (0, 1); those of ties are spread evenly, in random order, over what they share."""
    order = np.lexsort((np.random.default_rng(seed).random(len(values)), values))
    ranks = np.empty(len(values))
    ranks[order] = (np.arange(len(values)) + 0.5) / len(values)
    return ranks
