"""Policies for a model that is not known exactly: thresholds of least expected loss over a posterior.

`solve_frontier` takes the fitted model for the truth. Here the loss error + λ·cost of a policy is averaged over draws
from a `Posterior` (Berger 1985, Statistical Decision Theory and Bayesian Analysis, section 4.4: the action of least
posterior expected loss is the Bayes rule). Thresholds are cuts of the reference model's calibrated confidence φ̂, since
that is what a service computes. Under a draw an answer of confidence φ̂ is right with a probability g(φ̂) of the draw's
own, so the objective of `cascade` has g_j(Q_j(u)) in place of Q_j(u), with Q_j the quantile function of φ̂ under the
draw's marginal: a grid's cells are thin enough to take g at their nodes.
"""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from rcjax._base.arguments import check_arguments
from rcjax._core.batching import part
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide, open_unit
from rcjax.bayes.posterior import Posterior
from rcjax.frontier.bands import Bands, check_level, frequencies
from rcjax.frontier.frontier import Frontier, make_frontier
from rcjax.frontier.outcomes import ErrorAndCost, ErrorCostAbstention, Outcomes
from rcjax.frontier.points import Points
from rcjax.frontier.policies import Policies
from rcjax.frontier.refusal import refusal_at
from rcjax.frontier.searches import Search
from rcjax.model.calibration import Calibrator
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.marginals import Marginal
from rcjax.model.pairs import pairs
from rcjax.model.provenance import Details
from rcjax.solving.at_lambda import lay_out, optimise, thresholds_at
from rcjax.solving.bellman import Cut
from rcjax.solving.objective import build_tables, evaluate
from rcjax.solving.paths import pair_places, plan_cascades
from rcjax.solving.solve import solve_frontier

if TYPE_CHECKING:
    from rcjax.frontier.refusal import Refusal
    from rcjax.solving.objective import Tables
    from rcjax.solving.paths import Plan

#: Draws whose laws propose policies, and policies that are evaluated at a time. On a log of 30 queries, 16 laws came
#: within 6e-5 of the loss that a local search over the thresholds found afterwards, on average over λ.
_LAWS, _BATCH = 16, 256


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


def solve_expected(
    posterior: Posterior,
    *,
    lam: Any,
    cascades: Search = "all",
    max_length: int | None = None,
    draws: int | None = 200,
    abstain_price: float | None = None,
    abstain_early: bool = True,
) -> Frontier:
    """The policies that minimise the posterior mean of error + λ·cost, for each λ, as a frontier.

    Candidates are the frontier of the reference model, and the optima, at every λ, for the laws of φ̂ of up to 16
    draws, with g averaged over all draws: given the law, the expected loss is linear in g, and the posterior holds the
    two independent. Each candidate is evaluated under every draw, and each λ takes the best of all of them in the
    mean, so that no policy is worse in the mean than that of `solve_frontier(posterior.reference)`, and cost never
    rises with λ. In the frontier, `error` and `cost` are posterior means, `model` is the reference and thresholds are
    on its scale, so that `Frontier.policy` deploys them.

    Args:
        posterior: the draws of the model's parameters.
        lam: (L,) the λ to solve for, in error probability per unit of money.
        cascades: as `solve_frontier` takes them, save "adaptive": such policies have no threshold to speak of.
        max_length: the most models in a cascade.
        draws: how many draws to use at most, evenly spaced; None: all of them.
        abstain_price, abstain_early: as in `solve_frontier`; a refusal counts as `abstain_price` errors.

    Raises ValueError where `solve_frontier` does, and for fewer than one draw; FloatingPointError where some draw's
    figures are not finite.

    >>> import rcjax
    >>> log = rcjax.sample_log(100, seed=0)
    >>> posterior = rcjax.sample_posterior(log.select(log.models[:2]), method="laplace", draws=50)
    >>> frontier = solve_expected(posterior, lam=[100.0, 1000.0], draws=10)
    >>> frontier.thresholds.shape, bool(frontier.cost[1] <= frontier.cost[0])
    ((2, 2), True)
    """
    check_arguments(solve_expected, locals())
    if cascades == "adaptive":
        raise ValueError("cascades='adaptive' does not exist here: use 'all', 'full' or a list of cascades")
    reference, drawn = posterior.reference, _thin(posterior.model, draws)
    options: dict[str, Any] = {"cascades": cascades, "max_length": max_length}
    plug_in = solve_frontier(reference, lam=lam, abstain_price=abstain_price, abstain_early=abstain_early, **options)
    plan = plan_cascades(reference, cascades, max_length)
    assert plan is not None  # as the policies are not adaptive
    places = pair_places(plan, len(reference.models))
    laws = _thin(drawn, _LAWS)
    price = plug_in.abstain_price
    refusal = refusal_at(price, abstain_early, plug_in.error.dtype)
    proposed = _propose(laws, drawn.calibrators, reference.calibrators, plug_in.lam, plan, places, refusal)
    own = _cascades(plug_in, refusing=refusal is not None)
    policies: Policies = jax.tree.map(lambda one, all: np.concatenate([one, _flat(all)]), own, proposed.policies)
    statuses = np.concatenate([np.asarray(plug_in.status), _flat(proposed.status)])
    expected = Outcomes(*(figure.mean(0) for figure in _figures(drawn, reference, policies)))
    # An optimum at one λ is a candidate at every other.
    lam = np.asarray(plug_in.lam)
    best = np.argmin(expected.penalty(price) + lam.astype(float)[:, None] * expected.cost, axis=1)
    chosen = Outcomes(*(figure[best].astype(lam.dtype) for figure in expected))
    points = Points(lam, statuses[best], chosen, policies.take(best))
    how: dict[str, Any] = {"abstain_price": price, "abstain_early": abstain_early}
    frontier = make_frontier(reference, points, search="expected", chain=plug_in.chain, **how)
    return dataclasses.replace(frontier, cascades=plug_in.search)


def posterior_figures(
    posterior: Posterior, frontier: Frontier, *, draws: int | None = None
) -> ErrorAndCost | ErrorCostAbstention:
    """(error, cost), each (D, L): what each of D draws predicts for the L policies of a frontier, to draw bands from.

    Of a frontier whose models may refuse to answer, (error, cost, abstention).

    The frontier is `solve_expected`'s, or any with one threshold per model that was solved from the posterior's
    reference model. At most `draws` draws are used, evenly spaced; None: all of them. Raises ValueError for adaptive
    policies, a frontier whose model is calibrated differently, and fewer than one draw; FloatingPointError where some
    draw's figures are not finite.

    >>> import rcjax
    >>> log = rcjax.sample_log(100, seed=0)
    >>> posterior = rcjax.sample_posterior(log.select(log.models[:2]), method="laplace", draws=50)
    >>> plug_in = rcjax.solve_frontier(posterior.reference, lam=[100.0, 1000.0])
    >>> error, cost = posterior_figures(posterior, plug_in, draws=10)
    >>> error.shape, bool((error.std(0) > 0).all())
    ((10, 2), True)
    """
    check_arguments(posterior_figures, locals())
    if frontier.thresholds is None:
        raise ValueError("adaptive policies have no thresholds to evaluate: solve for cascades='all'")
    if frontier.policies.shares is not None:
        raise ValueError("policies that pass on a share of some queries are not evaluated: solve for cascades='all'")
    ours, theirs = posterior.reference, frontier.model
    same = ours.models == theirs.models and ours.calibrators.transform == theirs.calibrators.transform
    if not same or not np.array_equal(ours.calibrators.coefficients, theirs.calibrators.coefficients):
        raise ValueError("the frontier's thresholds are on another scale: solve it from posterior.reference")
    refusing = frontier.refusals is not None
    figures = _figures(_thin(posterior.model, draws), ours, _cascades(frontier, refusing))
    return Outcomes(*map(jnp.asarray, figures)).figures(refusing)


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
    >>> posterior = rcjax.sample_posterior(log.select(log.models[:2]), method="laplace", draws=50)
    >>> frontier = rcjax.solve_expected(posterior, lam=[100.0, 1000.0], draws=10)
    >>> bands = credible_bands(posterior, frontier, draws=10)
    >>> bool(((bands.error[:, 0] < frontier.error) & (frontier.error < bands.error[:, 1])).all())
    True
    """
    check_arguments(credible_bands, locals())
    check_level(level)
    figures = posterior_figures(posterior, frontier, draws=draws)
    tails = jnp.array([(1 - level) / 2, (1 + level) / 2])
    error, cost, *abstention = (jnp.quantile(figure, tails, axis=0).T for figure in figures)
    cascades, frequency = frequencies(np.asarray(frontier.members)[None], frontier.models)
    return Bands(
        error=error,
        cost=cost,
        thresholds=jnp.full((*frontier.members.shape, 2), jnp.nan),
        optimism=jnp.zeros(len(error)),
        frequency=jnp.asarray(frequency),
        cascades=cascades,
        level=level,
        replicates=figures[0].shape[0],
        abstention=abstention[0] if abstention else None,
    )


def _thin(model: CascadeModel, draws: int | None) -> CascadeModel:
    """At most so many evenly spaced draws of a batch of models.

    Without names and history, which are static in a pytree, so that posteriors of one size share what is compiled.
    """
    count = model.cost.shape[0]
    if draws is not None and draws < 1:
        raise ValueError(f"draws is {draws}; it must be at least 1")
    kept = count if draws is None else min(draws, count)
    return part(dataclasses.replace(model, models=(), details=Details()), np.arange(kept) * count // kept)


def _cascades(frontier: Frontier, refusing: bool) -> Policies:
    """The policies of a frontier on the host, with their refusals or without."""
    own = frontier.policies.on_host()
    return own if refusing or own.refusals is None else Policies.of_cascades(own.thresholds, own.members)


def _flat(values: jax.Array) -> np.ndarray:
    """(S L, …) of (S, L, …), as numpy's."""
    on_host = np.asarray(values)
    return on_host.reshape(-1, *on_host.shape[2:])


def _quantile(calibrators: Calibrator, reference: Calibrator, quantile: jax.Array) -> jax.Array:
    """(k, G) g_j(Q_j) of one draw."""
    return jax.vmap(accuracy)(calibrators, reference, quantile)


def _with_quantile(tables: "Tables", quantile: jax.Array) -> "Tables":
    return dataclasses.replace(tables, grid=dataclasses.replace(tables.grid, quantile=quantile))


class _Proposed(NamedTuple):
    policies: Policies  # (S, L)
    status: jax.Array  # (S, L)


@partial(compiled, runs="long")
def _propose(
    laws: CascadeModel,
    calibrators: Calibrator,
    reference: Calibrator,
    lam: jax.Array,
    plan: "Plan",
    places: jax.Array,
    refusal: "Refusal | None",
) -> _Proposed:
    """(S, L) the best policies under each of S laws of φ̂, with their status.

    g is averaged over the calibrators (D, k) of all draws.
    """

    def single(law: CascadeModel) -> _Proposed:
        tables = lay_out(law.marginals, law.copulas, law.cost, (plan.left, plan.right, places))
        mean = jax.vmap(_quantile, (0, None, None))(calibrators, reference, tables.grid.quantile).mean(0)
        _, path, cut, status = optimise(_with_quantile(tables, mean), lam, plan, "exact", refusal)
        settled = thresholds_at(law.marginals, tables, path, Cut.at(cut.u, cut.refused), plan)
        return _Proposed(settled.policies, status)

    return lax.map(single, laws)


def _figures(drawn: CascadeModel, reference: CascadeModel, policies: Policies) -> Outcomes:
    """(D, N) what each draw expects of N policies on the host, padded to whole batches."""
    members = policies.members
    count, k = members.shape
    size = min(count, _BATCH)
    following = policies.actions[..., -2]  # what a model does below its threshold
    links = np.zeros((count, k * (k - 1) // 2), bool)
    for place, (i, j) in enumerate(pairs(k)):
        links[:, place] = members[:, i] & (following[:, i] == j)
    batches = jax.tree.map(
        lambda rows: np.pad(rows, [(0, -count % size)] + [(0, 0)] * (rows.ndim - 1), "edge").reshape(
            -1, size, *rows.shape[1:]
        ),
        (policies.thresholds, links, policies.first, policies.refusals),
    )
    figures = jax.device_get(_evaluate(drawn, reference.calibrators, *batches))
    if not all(np.isfinite(figure).all() for figure in figures):
        raise FloatingPointError("some draws of the posterior predict no finite error or cost")
    return Outcomes(*(np.asarray(figure, float).reshape(figure.shape[0], -1)[:, :count] for figure in figures))


@partial(compiled, runs="long")
def _evaluate(
    drawn: CascadeModel,
    reference: Calibrator,
    thresholds: jax.Array,
    links: jax.Array,
    first: jax.Array,
    refusals: jax.Array | None = None,
) -> Outcomes:
    """(D, B, N) what each of D draws expects of B batches of N policies."""
    left, right = np.array(pairs(thresholds.shape[-1]), int).reshape(-1, 2).T

    def under(draw: CascadeModel) -> Outcomes:
        tables = build_tables(draw.marginals, draw.copulas, draw.cost, left, right)
        tables = _with_quantile(tables, _quantile(draw.calibrators, reference, tables.grid.quantile))

        def single(thresholds: jax.Array, links: jax.Array, first: jax.Array, refusals: jax.Array | None) -> Outcomes:
            cdf = jax.vmap(Marginal.cdf)
            refused = None if refusals is None else cdf(draw.marginals, refusals)
            return evaluate(tables, cdf(draw.marginals, thresholds), links, first, refused=refused)

        return lax.map(lambda batch: jax.vmap(single)(*batch), (thresholds, links, first, refusals))

    return lax.map(under, drawn)
