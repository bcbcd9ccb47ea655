"""One problem of a sweep as pure functions of arrays: drawn, fitted, solved and judged. `engines` has many at a time.

What is large, the tables of a model, exists for the problems that are solved at a time only; what is kept are the
points of the frontiers.
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
from rcjax.frontier.points import Outcomes, Points as FrontierPoints, PointStatus
from rcjax.frontier.policies import Policies
from rcjax.model.calibrated import fit_calibrators
from rcjax.model.calibration import Calibrator, Transform, calibrate_all
from rcjax.model.fitting import copulas_of, fit_marginals, pair_taus, stated_confidences
from rcjax.model.marginals import Marginal
from rcjax.replaying.walk import walk
from rcjax.solving.at_lambda import adaptive_points, optimise, points_at
from rcjax.solving.objective import Tables, transition
from rcjax.solving.paths import CascadePlan
from rcjax.solving.quadrature import build_grid
from rcjax.tuning.judging import judge
from rcjax.tuning.pairs import Judging

Points = dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Data:
    """The logs of a batch, one for each of S samples, filled up to n queries."""

    logprob: jax.Array  # (S, n, k)
    correct: jax.Array  # (S, n, k) bool
    answered: jax.Array  # (S, n, k) bool
    query_cost: jax.Array  # (S, n, k)
    held_out: jax.Array  # (S, n) bool: to judge by, where a problem has not drawn the query
    rows: jax.Array  # (S, m) the queries that a sample is tuned on, filled up with one that nobody answered
    size: jax.Array  # (S,) how many those are
    key: jax.Array  # (S, 2) of the random numbers of its replicates
    lam: jax.Array  # (S, L)
    values: jax.Array | None = None  # (S, k, V) raw log-probabilities that models state, NaN behind; None: none does


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Draws:
    """What each of U problems is tuned on."""

    sample: jax.Array  # (U,) its place in `Data`
    replicate: jax.Array  # (U,) its number; 0 is the sample itself

    def rows(self, data: Data) -> jax.Array:
        """(m,) the rows of a problem's log: its sample's, or as many drawn from these with replacement.

        Drawn where they are used, by random numbers that depend on the problem alone, whatever it is solved with.
        """
        rows, size = data.rows[self.sample], data.size[self.sample]
        key = jax.random.wrap_key_data(data.key[self.sample], impl="threefry2x32")
        drawn = jax.random.randint(jax.random.fold_in(key, self.replicate), rows.shape, 0, size, np.int32)
        return jnp.where((self.replicate > 0) & (np.arange(len(rows)) < size), rows[drawn], rows)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fit:
    """What every copula and search of a problem shares."""

    calibrators: Calibrator  # leading axis k
    marginals: Marginal  # leading axis k
    copulas: tuple[Copula, ...]  # (P,) of all pairs, by each family
    cost: jax.Array  # (k,)
    complete: jax.Array  # () bool: there is something of every model and of every pair


def fit_problem(
    data: Data,
    draws: Draws,
    *,
    transform: Transform,
    families: tuple[type[Copula], ...],
    near: Marginal | None = None,
) -> Fit:
    """The fit of one problem.

    Args:
        data: the logs.
        draws: what it is tuned on, without a leading axis.
        transform: that of the raw confidence.
        families: of the copulas.
        near: marginals that its own are sought around, which is quicker.
    """
    logs, rows = (data.logprob, data.correct, data.answered, data.query_cost), draws.rows(data)
    logprob, correct, answered, spent = (column[draws.sample, rows] for column in logs)
    values = None if data.values is None else data.values[draws.sample]
    calibrators, confidence = fit_calibrators(logprob, correct, answered, transform, values)
    marginals = fit_marginals(confidence, answered, near, stated_confidences(calibrators))
    count = answered.astype(spent.dtype)
    taus = pair_taus(confidence, answered)
    if values is None:  # as no model states any, nothing ties
        copulas = tuple(jax.vmap(family.from_tau)(taus) for family in families)
    else:
        copulas = tuple(copulas_of(family, marginals, confidence, answered, taus) for family in families)
    cost = divide((spent * count).sum(0), count.sum(0))
    return Fit(calibrators, marginals, copulas, cost, (count.T @ count > 0).all())


def refit_problem(
    shared: tuple[Data, Fit], draws: Draws, *, transform: Transform, families: tuple[type[Copula], ...]
) -> Fit:
    """The fit of a replicate, near that of its sample; of replicate 0, which is the sample, that one.

    Args:
        shared: the logs, and the fits of all samples.
        draws: what it is tuned on, without a leading axis.
        transform: that of the raw confidence.
        families: of copulas, as in `fit_problem`.
    """
    data, samples = shared
    sample = part(samples, draws.sample)
    fit = partial(fit_problem, data, draws, transform=transform, families=families, near=sample.marginals)
    return lax.cond(draws.replicate == 0, lambda: sample, fit)


def solve_problem(
    plans: tuple[CascadePlan | None, ...], problem: tuple[Fit, jax.Array], *, panels: int
) -> tuple[Points, ...]:
    """The points of one problem for each search, with leading axes (C, L), of copulas and λ.

    How many queries there are makes no difference here, so that logs of all sizes share this program, the one that
    takes longest to compile.

    Args:
        plans: of each search; None: adaptive policies.
        problem: a fit with its λ (L,).
        panels: of quadrature.
    """
    fit, lam = problem

    def under(family: jax.Array) -> tuple[Points, ...]:
        tables = _tables(fit, family, panels)
        return tuple(_reported(_solve(fit, tables, lam, plan), fit) for plan in plans)

    return tuple(lax.map(under, np.arange(len(fit.copulas))))


def judge_problem(data: Data, problem: tuple[Fit, Draws, tuple[Points, ...]], *, labels: bool) -> tuple[Points, ...]:
    """The points of each search of one problem, and how they do on queries held out; NaN where there are none.

    With `labels` there is one search more, last: the best single models and pairs by the labels of the draw (C = 1).
    """
    fit, draws, searches = problem
    rows = draws.rows(data)
    if labels:
        chosen = _by_labels(fit, data, draws.sample, rows)
        searches = (*searches, jax.tree.map(lambda leaf: leaf[None], _reported(chosen, fit)))
    return tuple(points | _judged(data, fit, draws.sample, rows, points) for points in searches)


def _tables(fit: Fit, family: jax.Array, panels: int) -> Tables:
    """The tables of all pairs, under the copula family of this number."""
    left, right = np.triu_indices(fit.cost.shape[0], 1)
    grid = jax.vmap(partial(build_grid, panels=panels))(fit.marginals)

    def kernel(copulas: Copula) -> jax.Array:
        return jax.vmap(transition)(copulas, part(grid, left), part(grid, right))

    # One number for all problems: of the families, only that one is evaluated.
    kernels = lax.switch(family, [partial(kernel, copulas) for copulas in fit.copulas])
    return Tables(fit.marginals, grid, jnp.asarray(left), jnp.asarray(right), kernels, fit.cost)


def _solve(fit: Fit, tables: Tables, lam: jax.Array, plan: CascadePlan | None) -> FrontierPoints:
    if plan is None:
        return adaptive_points(tables, lam)
    left, right, kernel = part((tables.left, tables.right, tables.kernel), plan.pairs)
    used = dataclasses.replace(tables, left=left, right=right, kernel=kernel)
    return points_at(used, optimise(used, lam, plan), plan)


def _by_labels(fit: Fit, data: Data, sample: jax.Array, rows: jax.Array) -> FrontierPoints:
    """The best single model or pair for each λ, with its error and cost as the labels of the rows have it."""
    lam, columns = data.lam[sample], (data.logprob, data.correct, data.answered)
    logprob, correct, answered = (column[sample, rows] for column in columns)
    best = judge(fit.calibrators, (logprob, correct, answered), fit.cost, Judging()).best(lam)
    expected = Outcomes(best.error, best.cost, jnp.zeros_like(lam))
    return FrontierPoints(lam, jnp.zeros_like(best.first), expected, best.policies(comparing=False, xp=jnp))


def _reported(points: FrontierPoints, fit: Fit) -> Points:
    """The points as results have them, each with a status that says whether it can be trusted."""
    error, cost, _ = points.expected
    policies = points.policies
    finite = jnp.isfinite(error) & jnp.isfinite(cost)
    status = jnp.where(fit.complete, jnp.where(finite, points.status, PointStatus.NOT_FINITE), PointStatus.NO_DATA)
    arrays = {name: getattr(policies, name) for name in ("members", "first", "bounds", "actions")}
    return arrays | {"error": error, "cost": cost, "status": status}


def _judged(data: Data, fit: Fit, sample: jax.Array, rows: jax.Array, points: Points) -> Points:
    """Error and cost of the points on the queries held out, as `replay` has them, and how many those are.

    Held out are the queries of the sample's log that are not among the rows which the problem is tuned on.
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
