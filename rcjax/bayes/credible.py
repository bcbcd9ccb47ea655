"""What the posterior says of a frontier: the error and cost of its policies under every draw, and bands from them.

Thresholds are cuts of the reference model's calibrated confidence φ̂, since that is what a service computes. Under a
draw of a `Posterior` an answer of confidence φ̂ is right with a probability g(φ̂) of the draw's own, so the objective of
`cascade` has g_j(Q_j(u)) in place of Q_j(u), with Q_j the quantile function of φ̂ under the draw's marginal: a grid's
cells are thin enough to take g at their nodes.
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

_BATCH = 256  # policies that are evaluated at a time


def accuracy(draw: Calibrator, reference: Calibrator, confidence: jax.Array) -> jax.Array:
    """g(φ̂): how often an answer is right, under a draw's calibrator, whose calibrated confidence by the reference is φ̂.

    Elementwise in the confidence, for one model: `vmap` it over models and draws.

    >>> from rcjax import demo_model
    >>> calibrator = part(demo_model().calibrators, 0)
    >>> round(float(accuracy(calibrator, calibrator, 0.7)), 4)
    0.7
    """
    features = divide(special.logit(open_unit(confidence)) - reference.coefficients[0], reference.unit)
    return special.expit(draw.coefficients[0] + draw.coefficients[1] * features)


@takes(posterior=Posterior, frontier=Frontier)
def posterior_figures(posterior: Posterior, frontier: Frontier, *, draws: int | None = None) -> Outcomes:
    """(D, L) what each of D draws predicts for the L policies of a frontier, to draw bands from.

    The frontier is any with one threshold per model that was solved from the posterior's reference model. At most
    `draws` draws are used, evenly spaced; None: all of them. Raises ValueError for adaptive policies, a frontier whose
    model is calibrated differently, and fewer than one draw; FloatingPointError where some draw's figures are not
    finite.

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
    ours, theirs = posterior.reference, frontier.model
    same = ours.models == theirs.models and ours.calibrators.transform == theirs.calibrators.transform
    if not same or not np.array_equal(ours.calibrators.coefficients, theirs.calibrators.coefficients):
        raise ValueError("the frontier's thresholds are on another scale: solve it from posterior.reference")
    policies = frontier.policies.on_host()
    left, right = np.triu_indices(len(ours.models), 1)
    following = policies.actions[..., -2]  # what a model does below its threshold
    links = policies.members[:, left] & (following[:, left] == right)
    rows = frontier.thresholds, links, policies.first, frontier.refusals
    figures = jax.device_get(_evaluate(_thin(posterior.model, draws), ours.calibrators, rows))
    if not all(np.isfinite(figure).all() for figure in figures):
        raise FloatingPointError("some draws of the posterior predict no finite error or cost")
    return Outcomes(*map(jnp.asarray, figures))


@takes(posterior=Posterior, frontier=Frontier)
def credible_bands(posterior: Posterior, frontier: Frontier, *, level: float = 0.9, draws: int | None = 200) -> Bands:
    """Credible intervals for the error and cost of the policies of a frontier, given a log.

    From the quantiles of `posterior_figures`. They rest on the model: on logs that it does not describe, `bootstrap` is
    to be trusted. Thresholds have no interval here, as the policies stay what they are.

    Args:
        posterior: the draws of the model's parameters.
        frontier: the frontier, of L points.
        level: the probability of each interval, in (0, 1).
        draws: how many draws to use at most, evenly spaced; None: all of them.

    Raises ValueError for a level outside (0, 1), and as `posterior_figures` does.

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
    """At most so many evenly spaced draws of a batch of models.

    Without names, which are static in a pytree, so that posteriors of one size share what is compiled.
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
    """(D, L) what D draws expect of L policies: of their thresholds, links, first models, and refusals or None."""
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
