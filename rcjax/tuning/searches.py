"""Tuning by either search: by the labels, the default, or by the paper's model, imported when it is asked for."""

import dataclasses
import warnings
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np

from rcjax._base.checks import takes
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.points import Bands, refusal_at
from rcjax.frontier.policies import Policies
from rcjax.logs.errors import LogError, OddBudgetWarning, OddLogWarning
from rcjax.logs.log import Log
from rcjax.logs.oddities import doubts, odd_budget, oddities
from rcjax.model.calibrated import Fitted
from rcjax.model.calibration import Calibrator
from rcjax.policy.spec import Spec, SpecFields
from rcjax.tuning.bootstrapping import Again, draw_bands, drawn
from rcjax.tuning.certify import certify, hold_out
from rcjax.tuning.matching import match_today
from rcjax.tuning.segments import by_segments
from rcjax.tuning.select import BY_LABELS, Deployed, SearchedBy, SecondsFilter
from rcjax.tuning.tune import Tuned, tune_in_stages

_PANELS = 9  # of quadrature, for replicates of many cascades: 5e-6 of error is far below what replicates differ by


def searched_by(search: Any) -> SearchedBy:
    """The way to search that `Spec.search` or `Frontier.search` names."""
    return BY_LABELS if search == "selected" else SearchedBy(_fit, _solve, again_by_model)


def as_specified(spec: Spec) -> SearchedBy:
    """The way to search and to come by a policy that a spec names: with a guarantee or segments, as it asks."""
    way = searched_by(spec.search)
    if spec.confidence is not None:
        way = way._replace(hold_out=hold_out, deploy=_certified)
    if spec.match is not None:
        return way._replace(deploy=match_today)
    if spec.segment is not None:
        return way._replace(deploy=lambda frontier, log, _, spec: by_segments(frontier, log, spec))
    return way


def _certified(frontier: Frontier, log: Log, held_out: Log | None, spec: Spec) -> Deployed:
    assert held_out is not None  # as there is a confidence
    certificate = certify(frontier, held_out, spec, tuned_on=log if spec.judged else None)
    return Deployed(certificate.policy, certificate)


def _fit(log: Log, spec: Spec) -> Fitted:
    """The paper's model of a log."""
    from rcjax.model.fitting import fit
    from rcjax.solving.paths import candidate_paths

    candidate_paths(log.models, spec.search)  # a search that cannot be made is refused before the fit
    return fit(log, transform=spec.transform, **spec.fit)


def _solve(log: Log, model: Any, spec: Spec, limit: SecondsFilter | None) -> tuple[Frontier, None]:
    """The points of the frontier of a model that keep to a limit. Raises InfeasibleError where none does."""
    from rcjax.solving.frontiers import solve_frontier

    frontier = solve_frontier(model, cascades=spec.search, chain=spec.chain, abstain_price=spec.abstain_price)
    return (frontier if limit is None else limit.within(frontier)), None


def again_by_model(frontier: Any, log: Log, points: np.ndarray) -> Again:
    """How the model solves the λ of some points (G,) of a frontier again. What was answered has no part in it."""
    from rcjax.model.fitting import fit_near
    from rcjax.solving.frontiers import lay_out_problem, solve_at
    from rcjax.solving.paths import MANY_STEPS, plan_cascades

    lam, refusal = np.asarray(frontier.lam)[points], refusal_at(frontier.abstain_price, log.cost.dtype)
    plan = plan_cascades(frontier.model, frontier.search)  # None: of adaptive policies
    panels = _PANELS if plan is not None and len(plan.steps) > MANY_STEPS else None

    def again(log: Log, queries: np.ndarray) -> tuple[Calibrator, Policies]:
        (logprob, correct, answered), charge, _ = drawn(log, queries)
        cost = (charge * answered).sum(0) / np.maximum(answered.sum(0), 1)
        fitted = fit_near(frontier.model, logprob, correct, answered, jnp.asarray(cost, log.cost.dtype))
        problem = lay_out_problem(fitted, plan, frontier.chain, refusal, panels)
        return fitted.calibrators, solve_at(problem, lam).policies

    return again


_per_query = "budget={}e-6".format  # from an amount per million queries


@takes(log=Log, spec=(Spec, None), held_out=(Log, None))
def tune(log: Log, spec: Spec | None = None, *, held_out: Log | None = None, **fields: Unpack[SpecFields]) -> Tuned:
    """Find the best cascades for a log, at every trade-off of error and cost, and the policy for a target.

    Args:
        log: the log to learn from.
        spec: how to tune; None: by default.
        held_out: the log of the queries that a guarantee is tested on; by default half of those of `log`, drawn at
            random, or where answers lack labels, half of those labelled by hand.
        fields: those of `Spec`, in place of what `spec` says: `budget`, `max_error`, `match`, `error_cost` or `lam`,
            `today`, `cascade`, `confidence`, `intervals`, … Without a target there is a frontier, and no policy.

    Raises InfeasibleError where nothing meets the target: its `tuned` holds all but the policy, or is None where the
    budget is below the price of every model, which is told before anything is fitted. ValueError for options
    that do not go together; LogError as `fit` and `select_frontier` do. An `OddLogWarning` says what is odd about a log
    that can hardly be right, or whose policies are doubtful, and an `OddBudgetWarning` what is odd about a budget that
    any policy meets.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> tuned = rcjax.tune(log, max_error=0.3, intervals=False)
    >>> tuned.policy.expected["error"] <= 0.3, [model.model for model in tuned.alone]
    (True, ['llama3.2-1b', 'llama3.1-70b'])
    """
    for what in (*oddities(log), *doubts(log)):
        warnings.warn(f"{log.source}: {what}", OddLogWarning, stacklevel=2)
    spec = dataclasses.replace(spec or Spec(), **fields).check(held_out is not None)
    if spec.budget is not None and (what := odd_budget(spec.budget, log, _per_query)):
        warnings.warn(what, OddBudgetWarning, stacklevel=2)
    if spec.segment is not None and log.segment is None:
        advice = f"read them by rcjax.logs.with_segments(log, source, {spec.segment!r})"
        raise LogError(f"{log.source}: the log tells no segments: {advice}")
    return tune_in_stages(log, held_out, spec, by=as_specified(spec))


@takes(frontier=Frontier, log=Log)
def bootstrap(
    frontier: Frontier,
    log: Log,
    *,
    replicates: int = 200,
    level: float = 0.9,
    refit: bool | None = None,
    seed: int = 0,
) -> Bands:
    """Intervals around every point of a frontier, from the log that it was tuned on.

    For error and the bill: where the figures of the policy in service will lie, with a probability of about `level`, by
    expanded percentiles around the figures on the log and the luck of the search in them. Replicates tell that by how
    much worse their policies do on queries that they were not tuned on; for the error of policies of
    `select_frontier`, the mean is taken of this and of what cross-validation has told. Thresholds are on the scale of
    the frontier's model. Where models may refuse to answer, the share of queries without one has intervals as well.

    Args:
        frontier: the frontier, of L points.
        log: the log that it was tuned on.
        replicates: how often the log's queries are drawn again, with replacement; 20 or more.
        level: the probability that each interval is to have, in (0, 1).
        refit: whether all that led to the frontier (`Frontier.search`) is done again, on the first 50 draws, with
            copulas by Kendall's τ. With False policies stay as they are and only the queries vary, which is right for
            policies that were fixed before this log was seen, and all but right for a large one; None does so above
            5,000 queries.
        seed: of the draws.

    Raises ValueError for fewer than 20 replicates, a level outside (0, 1), or a frontier of `minimise` if it is to
    be solved again; LogError where no query was answered by all models of the frontier.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> frontier = rcjax.solve_frontier(rcjax.fit(log), lam=[300.0, 3000.0])
    >>> bands = rcjax.tuning.bootstrap(frontier, log, replicates=20)
    >>> bands.error.shape, bool((bands.error[:, 0] < bands.error[:, 1]).all())
    ((2, 2), True)
    """
    again = searched_by(frontier.search).again
    return draw_bands(frontier, log, again, replicates=replicates, level=level, refit=refit, seed=seed)
