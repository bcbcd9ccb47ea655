"""The search by the fitted model, the paper's: `rcjax tune --cascade`. What was answered has no part in it."""

from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from rcjax.frontier.frontier import Frontier
from rcjax.frontier.policies import Policies
from rcjax.frontier.prices import refusal_at
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted
from rcjax.model.calibration import Calibrator
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import fit, fit_near
from rcjax.policy.spec import Spec
from rcjax.solving.frontiers import lay_out_problem, solve_at, solve_frontier
from rcjax.solving.paths import MANY_STEPS, plan_cascades
from rcjax.tuning.replicates import Again, drawn
from rcjax.tuning.seconds_limit import SecondsFilter
from rcjax.tuning.select import SearchedBy

_PANELS = 9  # of quadrature, for replicates of many cascades: 5e-6 of error is far below what replicates differ by


def _fit(log: Log, spec: Spec) -> CascadeModel:
    return fit(log, transform=spec.transform, **spec.fit)


def _find(log: Log, model: Fitted, spec: Spec, limit: SecondsFilter | None) -> tuple[Frontier, None]:
    """The points of the frontier of a model that keep to a limit. Raises InfeasibleError where none does."""
    how: dict[str, Any] = {"cascades": spec.search, "chain": spec.chain, "abstain_price": spec.abstain_price}
    frontier = solve_frontier(cast(CascadeModel, model), **how)
    return (frontier if limit is None else limit.within(frontier)), None


def again_by_model(frontier: Frontier, log: Log, points: np.ndarray) -> Again:
    """How the model solves the λ of some points (G,) of a frontier again."""
    lam, refusal = np.asarray(frontier.lam)[points], refusal_at(frontier.abstain_price, log.cost.dtype)
    model = cast(CascadeModel, frontier.model)
    plan = plan_cascades(model, cast(Any, frontier.search))  # None: of adaptive policies
    panels = _PANELS if plan is not None and len(plan.steps) > MANY_STEPS else None

    def again(log: Log, queries: np.ndarray) -> tuple[Calibrator, Policies]:
        (logprob, correct, answered), charge, _ = drawn(log, queries)
        cost = (charge * answered).sum(0) / np.maximum(answered.sum(0), 1)
        fitted = fit_near(model, logprob, correct, answered, jnp.asarray(cost, log.cost.dtype))
        problem = lay_out_problem(fitted, plan, frontier.chain, refusal, panels)
        return fitted.calibrators, solve_at(problem, lam).policies

    return again


BY_MODEL = SearchedBy(_fit, _find, again_by_model)
