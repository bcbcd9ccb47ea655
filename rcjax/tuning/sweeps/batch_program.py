"""One problem of a sweep as pure functions of arrays: draw, fit, solve and judge. `engines` runs many at a time.

The large arrays, the tables of a model, exist only for the problems being solved; the points of the frontiers are kept.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import part
from rcjax._core.numerics import divide
from rcjax.copulas import Copula
from rcjax.model.calibrated import fit_calibrators
from rcjax.model.calibration import Calibrator, Transform, calibrate_all
from rcjax.model.fitting import copulas_of, fit_marginals, pair_taus, stated_confidences
from rcjax.model.marginals import Marginal
from rcjax.solving.at_lambda import adaptive_points, optimise, points_at
from rcjax.solving.frontier.points import Outcomes, Points as FrontierPoints, PointStatus
from rcjax.solving.frontier.policies import Policies
from rcjax.solving.objective import Tables, transition
from rcjax.solving.paths import CascadePlan
from rcjax.solving.quadrature import build_grid
from rcjax.tuning.pairs import Blending
from rcjax.tuning.replaying.walk import walk
from rcjax.tuning.scoring import score

Points = dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Data:
    """The logs of a batch, one for each of S samples, padded to n queries."""

    logprob: jax.Array  # (S, n, k)
    correct: jax.Array  # (S, n, k) bool
    answered: jax.Array  # (S, n, k) bool
    query_cost: jax.Array  # (S, n, k)
    held_out: jax.Array  # (S, n) bool: queries to judge by, unless a problem has drawn them
    rows: jax.Array  # (S, m) the queries that a sample is tuned on, padded with a query without answers
    size: jax.Array  # (S,) their number, without the padding
    key: jax.Array  # (S, 2) keys of the random numbers of the replicates
    lam: jax.Array  # (S, L)
    values: jax.Array | None = None  # (S, k, V) raw log-probabilities that models state, padded by NaN; None: no model


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Draws:
    """The samples and replicates that U problems are tuned on."""

    sample: jax.Array  # (U,) index of the sample in `Data`
    replicate: jax.Array  # (U,) number of the replicate; 0 is the sample itself

    def rows(self, data: Data) -> jax.Array:
        """Return the (m,) rows of a problem's log: those of its sample, or a bootstrap draw from them.

        The draw depends on the problem alone, not on the other problems of the batch, and is made anew at each use.
        """
        rows, size = data.rows[self.sample], data.size[self.sample]
        key = jax.random.wrap_key_data(data.key[self.sample], impl="threefry2x32")
        drawn = jax.random.randint(jax.random.fold_in(key, self.replicate), rows.shape, 0, size, np.int32)
        return jnp.where((self.replicate > 0) & (np.arange(len(rows)) < size), rows[drawn], rows)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fit:
    """The fit of a problem, which all its copulas and searches share."""

    calibrators: Calibrator  # leading axis k
    marginals: Marginal  # leading axis k
    copulas: tuple[Copula, ...]  # for each family, the copulas of all pairs (P,)
    cost: jax.Array  # (k,)
    complete: jax.Array  # () bool: every model has answers, and every pair has common queries


def fit_problem(
    data: Data,
    draws: Draws,
    *,
    transform: Transform,
    families: tuple[type[Copula], ...],
    near: Marginal | None = None,
) -> Fit:
    """Fit one problem.

    Args:
        data: the logs.
        draws: the problem's sample and replicate, without a leading axis.
        transform: transform of the raw confidence.
        families: families of copulas.
        near: starting point of the marginals, which saves time.
    """
    logs, rows = (data.logprob, data.correct, data.answered, data.query_cost), draws.rows(data)
    logprob, correct, answered, spent = (column[draws.sample, rows] for column in logs)
    values = None if data.values is None else data.values[draws.sample]
    calibrators, confidence = fit_calibrators(logprob, correct, answered, transform, values)
    marginals = fit_marginals(confidence, answered, near, stated_confidences(calibrators))
    count = answered.astype(spent.dtype)
    taus = pair_taus(confidence, answered)
    if values is None:  # no model states values, so that there are no ties
        copulas = tuple(jax.vmap(family.from_tau)(taus) for family in families)
    else:
        copulas = tuple(copulas_of(family, marginals, confidence, answered, taus) for family in families)
    cost = divide((spent * count).sum(0), count.sum(0))
    return Fit(calibrators, marginals, copulas, cost, (count.T @ count > 0).all())


def refit_problem(
    shared: tuple[Data, Fit], draws: Draws, *, transform: Transform, families: tuple[type[Copula], ...]
) -> Fit:
    """Fit a replicate, starting from the fit of its sample; replicate 0, the sample itself, has that fit.

    Args:
        shared: the logs, and the fits of all samples.
        draws: the problem's sample and replicate, without a leading axis.
        transform: transform of the raw confidence.
        families: families of copulas, as in `fit_problem`.
    """
    data, samples = shared
    sample = part(samples, draws.sample)
    fit = partial(fit_problem, data, draws, transform=transform, families=families, near=sample.marginals)
    return lax.cond(draws.replicate == 0, lambda: sample, fit)


def solve_problem(
    plans: tuple[CascadePlan | None, ...], problem: tuple[Fit, jax.Array], *, panels: int
) -> tuple[Points, ...]:
    """Solve one problem for each search; the points have leading axes (C, L), copulas and λ.

    The program does not depend on the number of queries: logs of all sizes share it, and it takes the longest to
    compile.

    Args:
        plans: plan of each search; None: adaptive policies.
        problem: a fit with its λ (L,).
        panels: number of panels of the quadrature.
    """
    fit, lam = problem

    def under(family: jax.Array) -> tuple[Points, ...]:
        tables = _tables(fit, family, panels)
        return tuple(_reported(_solve(fit, tables, lam, plan), fit) for plan in plans)

    return tuple(lax.map(under, np.arange(len(fit.copulas))))


def judge_problem(data: Data, problem: tuple[Fit, Draws, tuple[Points, ...]], *, labels: bool) -> tuple[Points, ...]:
    """Return the points of each search of one problem, with held-out error and cost; NaN without held-out queries.

    With `labels` there is one more search at the end: the best single models and pairs by the draw's labels (C = 1).
    """
    fit, draws, searches = problem
    rows = draws.rows(data)
    if labels:
        chosen = _by_labels(fit, data, draws.sample, rows)
        searches = (*searches, jax.tree.map(lambda leaf: leaf[None], _reported(chosen, fit)))
    return tuple(points | _judged(data, fit, draws.sample, rows, points) for points in searches)


def _tables(fit: Fit, family: jax.Array, panels: int) -> Tables:
    """Return the tables of all pairs under the copula family of this number."""
    left, right = np.triu_indices(fit.cost.shape[0], 1)
    grid = jax.vmap(partial(build_grid, panels=panels))(fit.marginals)

    def kernel(copulas: Copula) -> jax.Array:
        return jax.vmap(transition)(copulas, part(grid, left), part(grid, right))

    # The number is the same for all problems, so that only this family is evaluated.
    kernels = lax.switch(family, [partial(kernel, copulas) for copulas in fit.copulas])
    return Tables(fit.marginals, grid, jnp.asarray(left), jnp.asarray(right), kernels, fit.cost)


def _solve(fit: Fit, tables: Tables, lam: jax.Array, plan: CascadePlan | None) -> FrontierPoints:
    if plan is None:
        return adaptive_points(tables, lam)
    left, right, kernel = part((tables.left, tables.right, tables.kernel), plan.pairs)
    used = dataclasses.replace(tables, left=left, right=right, kernel=kernel)
    return points_at(used, optimise(used, lam, plan), plan)


def _by_labels(fit: Fit, data: Data, sample: jax.Array, rows: jax.Array) -> FrontierPoints:
    """Return the best single model or pair for each λ, with its error and cost by the labels of the rows."""
    lam, columns = data.lam[sample], (data.logprob, data.correct, data.answered)
    logprob, correct, answered = (column[sample, rows] for column in columns)
    best = score(fit.calibrators, (logprob, correct, answered), fit.cost, Blending()).best(lam)
    expected = Outcomes(best.error, best.cost, jnp.zeros_like(lam))
    return FrontierPoints(lam, jnp.zeros_like(best.first), expected, best.policies(comparing=False, xp=jnp))


def _reported(points: FrontierPoints, fit: Fit) -> Points:
    """Return the points in the form of results, with a status that marks failed points."""
    error, cost, _ = points.expected
    policies = points.policies
    finite = jnp.isfinite(error) & jnp.isfinite(cost)
    status = jnp.where(fit.complete, jnp.where(finite, points.status, PointStatus.NOT_FINITE), PointStatus.NO_DATA)
    arrays = {name: getattr(policies, name) for name in ("members", "first", "bounds", "actions")}
    return arrays | {"error": error, "cost": cost, "status": status}


def _judged(data: Data, fit: Fit, sample: jax.Array, rows: jax.Array, points: Points) -> Points:
    """Return held-out error and cost of the points, as `replay` computes them, and the number of held-out queries.

    The held-out queries are those of the sample's log that are not among the problem's rows.
    """
    logs = (data.logprob, data.correct, data.answered, data.query_cost)
    logprob, correct, answered, spent = part(logs, sample)
    drawn = jnp.zeros(logprob.shape[0], bool).at[rows].set(True)
    weight = (data.held_out[sample] & answered.all(1) & ~drawn).astype(spent.dtype)
    confidence = calibrate_all(fit.calibrators, logprob, answered).T
    share = divide(weight, weight.sum(), jnp.nan)

    def figures(policy: Policies) -> tuple[jax.Array, jax.Array]:
        where = walk(confidence, policy)
        charged = (where.asked.astype(spent.dtype) @ share) @ (share @ spent)
        return share @ where.wrong(correct.T).astype(spent.dtype), charged

    first, bounds, actions, members = (points[name] for name in ("first", "bounds", "actions", "members"))
    policies = Policies(first, bounds, actions, members)
    error, cost = jax.vmap(jax.vmap(figures))(policies)
    return {"held_out_error": error, "held_out_cost": cost, "held_out": weight.sum()}
