"""Credible bands of a frontier: the error and cost of its policies under every draw of a posterior.

Thresholds are cuts of the reference model's calibrated confidence φ̂, which is what a service computes. Under a draw of
a `Posterior`, an answer of confidence φ̂ is right with the draw's probability g(φ̂). The objective therefore has
g_j(Q_j(u)) in place of Q_j(u), where Q_j is the quantile function of φ̂ under the draw's marginal. The cells of a grid
are thin enough to evaluate g at their nodes.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from rcjax._base.checks import takes
from rcjax._core.batching import part
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide, open_unit
from rcjax.bayes.posterior import Posterior
from rcjax.model.calibration import Calibrator
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.marginals import Marginal
from rcjax.solving.frontier.frontier import Frontier
from rcjax.solving.frontier.points import Bands, Outcomes, check_level
from rcjax.solving.objective import build_tables, evaluate

_BATCH = 256  # policies evaluated at a time


def accuracy(draw: Calibrator, reference: Calibrator, confidence: jax.Array) -> jax.Array:
    """g(φ̂): probability under a draw's calibrator that an answer of reference confidence φ̂ is right.

    It is elementwise in the confidence, for one model; `vmap` it over models and draws.

    >>> from rcjax import demo_model
    >>> calibrator = part(demo_model().calibrators, 0)
    >>> round(float(accuracy(calibrator, calibrator, 0.7)), 4)
    0.7
    """
    features = divide(special.logit(open_unit(confidence)) - reference.coefficients[0], reference.unit)
    return special.expit(draw.coefficients[0] + draw.coefficients[1] * features)


@takes(posterior=Posterior, frontier=Frontier)
def posterior_figures(posterior: Posterior, frontier: Frontier, *, draws: int | None = None) -> Outcomes:
    """Predict the outcomes of a frontier's L policies under each of D draws; (D, L).

    The frontier must be solved from the posterior's reference model, with one threshold per model. At most `draws`
    draws are used, evenly spaced; None: all.

    Raises ValueError for adaptive policies, a frontier whose model is calibrated differently, and fewer than one draw;
    FloatingPointError if outcomes are not finite.

    >>> import rcjax
    >>> log = rcjax.sample_log(100, seed=0)
    >>> posterior = rcjax.bayes.sample_posterior(log.select(log.models[:2]), method="laplace", draws=50)
    >>> plug_in = rcjax.solve_frontier(posterior.reference, lam=[100.0, 1000.0])
    >>> figures = posterior_figures(posterior, plug_in, draws=10)
    >>> figures.wrong.shape, bool((figures.wrong.std(0) > 0).all())
    ((10, 2), True)
    """
    if frontier.thresholds is None:
        raise ValueError("adaptive policies have no thresholds to evaluate: solve for cascades='all'")
    reference, model = posterior.reference, frontier.model
    same = reference.models == model.models and reference.calibrators.transform == model.calibrators.transform
    if not same or not np.array_equal(reference.calibrators.coefficients, model.calibrators.coefficients):
        raise ValueError("the frontier's thresholds are on another scale: solve it from posterior.reference")
    policies = frontier.policies.on_host()
    left, right = np.triu_indices(len(reference.models), 1)
    following = policies.actions[..., -2]  # a model's action below its threshold
    links = policies.members[:, left] & (following[:, left] == right)
    rows = frontier.thresholds, links, policies.first, frontier.refusals
    figures = jax.device_get(_evaluate(_thin(posterior.model, draws), reference.calibrators, rows))
    if not all(np.isfinite(figure).all() for figure in figures):
        raise FloatingPointError("some draws of the posterior predict no finite error or cost")
    return Outcomes(*map(jnp.asarray, figures))


@takes(posterior=Posterior, frontier=Frontier)
def credible_bands(posterior: Posterior, frontier: Frontier, *, level: float = 0.9, draws: int | None = 200) -> Bands:
    """Compute credible intervals for the error and cost of a frontier's policies, given a log.

    They are quantiles of `posterior_figures`, and valid only if the model describes the log; otherwise use `bootstrap`.
    The policies are fixed, so that thresholds have no interval.

    Args:
        posterior: draws of the model's parameters.
        frontier: frontier of L points.
        level: probability of each interval, in (0, 1).
        draws: greatest number of draws used, evenly spaced; None: all.

    Raises ValueError for a level outside (0, 1), and the errors of `posterior_figures`.

    >>> import rcjax
    >>> log = rcjax.sample_log(100, seed=0)
    >>> posterior = rcjax.bayes.sample_posterior(log.select(log.models[:2]), method="laplace", draws=50)
    >>> frontier = rcjax.solve_frontier(posterior.reference, lam=[100.0, 1000.0])
    >>> bands = credible_bands(posterior, frontier, draws=10)
    >>> bool(((bands.error[:, 0] < frontier.error) & (frontier.error < bands.error[:, 1])).all())
    True
    """
    check_level(level)
    figures = posterior_figures(posterior, frontier, draws=draws)
    tails = jnp.array([(1 - level) / 2, (1 + level) / 2])
    error, cost, refused = (jnp.quantile(figure, tails, axis=0).T for figure in figures)
    return Bands(error, cost, level, len(figures.wrong), None if frontier.abstention is None else refused)


def _thin(model: CascadeModel, draws: int | None) -> CascadeModel:
    """Select at most `draws` evenly spaced draws of a batch of models.

    Names are dropped: they are static in a pytree, and posteriors of one size can share a program without them.
    """
    count = model.cost.shape[0]
    if draws is not None and draws < 1:
        raise ValueError(f"draws is {draws}; it must be at least 1")
    number = count if draws is None else min(draws, count)
    return part(dataclasses.replace(model, models=()), np.arange(number) * count // number)


@partial(compiled, runs="long")
def _evaluate(
    drawn: CascadeModel, reference: Calibrator, policies: tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]
) -> Outcomes:
    """Evaluate L policies (thresholds, links, first models, refusals or None) under D draws; (D, L)."""
    thresholds = policies[0]
    left, right = np.triu_indices(thresholds.shape[-1], 1)

    def under(draw: CascadeModel) -> Outcomes:
        tables = build_tables(draw.marginals, draw.copulas, draw.cost, left, right)
        quantile = jax.vmap(accuracy)(draw.calibrators, reference, tables.grid.quantile)
        tables = dataclasses.replace(tables, grid=dataclasses.replace(tables.grid, quantile=quantile))

        def single(policy: tuple[jax.Array, ...]) -> Outcomes:
            thresholds, links, first, refusals = policy
            cdf = jax.vmap(Marginal.cdf)
            refused = None if refusals is None else cdf(draw.marginals, refusals)
            return evaluate(tables, cdf(draw.marginals, thresholds), links, first, refused=refused)

        return lax.map(single, policies, batch_size=min(len(thresholds), _BATCH))

    return lax.map(under, drawn)
