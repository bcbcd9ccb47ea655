"""The search by the fitted model, the paper's: `rcjax tune --cascade`. What was answered has no part in it."""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from rcjax.frontier.frontier import Frontier
from rcjax.frontier.policies import Policies
from rcjax.frontier.refusal import refusal_at
from rcjax.frontier.searches import Chain
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted
from rcjax.model.calibration import Calibrator
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import fit, fit_near
from rcjax.policy.spec import Spec
from rcjax.solving.frontiers import lay_out_problem, solve_at, solve_frontier
from rcjax.solving.paths import MANY_STEPS, CascadePlan, plan_cascades
from rcjax.tuning.replicates import Again, Draw
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


class _ByModel(NamedTuple):
    """How the model solves cascades for G prices."""

    model: CascadeModel
    plan: CascadePlan | None  # of the cascades; None: of adaptive policies
    chain: Chain
    refusal: jax.Array | None
    lam: np.ndarray  # (G,)

    def again(self, draw: Draw) -> tuple[Calibrator, Policies]:
        """(calibrators (k,), policies (G,)) by the model fitted to a draw."""
        answered = draw.labels[2]
        cost = (draw.charge * answered).sum(0) / np.maximum(answered.sum(0), 1)
        fitted = fit_near(self.model, *draw.labels, jnp.asarray(cost, draw.log.cost.dtype))
        panels = _PANELS if self.plan is not None and len(self.plan.steps) > MANY_STEPS else None
        problem = lay_out_problem(fitted, self.plan, self.chain, self.refusal, panels)
        return fitted.calibrators, solve_at(problem, self.lam).policies


def again_by_model(frontier: Frontier, log: Log, points: np.ndarray) -> Again:
    """How the model solves the λ of some points (G,) of a frontier again."""
    lam, refusal = np.asarray(frontier.lam)[points], refusal_at(frontier.abstain_price, log.cost.dtype)
    model, search = cast(CascadeModel, frontier.model), cast(Any, frontier.search)
    return _ByModel(model, plan_cascades(model, search), frontier.chain, refusal, lam).again


BY_MODEL = SearchedBy(_fit, _find, again_by_model)
