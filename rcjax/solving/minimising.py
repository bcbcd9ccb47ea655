"""Policies that minimise a user's objective, by gradient; it need not add up along a cascade.

Objectives that add up, as error and cost do, have Bellman's optimum (`rcjax.solving.bellman`). A capped cost, a
quantile of the seconds or fairness between models does not add up. Such an objective is a function of a cascade's
outcome, which is differentiable in its cuts.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._base.checks import takes, what_it_is, whole
from rcjax._base.extras import required
from rcjax._core.batching import in_pieces, join, part
from rcjax.model.cascade_model import CascadeModel
from rcjax.policy.spec import Spec
from rcjax.solving.at_lambda import Optima
from rcjax.solving.bellman import Cut
from rcjax.solving.frontier.frontier import Frontier, make_frontier
from rcjax.solving.frontier.points import PointStatus, check_lam, lam_range
from rcjax.solving.frontier.policies import CascadeSet
from rcjax.solving.frontiers import evaluate_optima, lay_out_problem
from rcjax.solving.objective import Outcome
from rcjax.solving.outcome_search import (
    TOGETHER,
    Candidate,
    Objective,
    OutcomeProblem,
    Start,
    improve,
    propose,
    tolerance,
    weigh,
)
from rcjax.solving.paths import candidate_paths, make_plan

_PRICES = 64  # λ of additive objectives

_LEAST_SCALE = 0.01  # least scale as a share of the least value, so that slopes exceed rounding errors

#: Slope that rounding may leave, in roots of a rounding error of the objective. A descent ends when no step gains more
#: than a rounding error, which leaves a slope of √(2·curvature·rounding). The curvature is largest, in the hundreds,
#: where panels of the quadrature meet.
_ROUNDED = 200

_FEW = 16  # padded number of starts, if not `TOGETHER`: each number needs a program


@takes(model=CascadeModel)
def minimise(
    objective: Callable[..., Any],
    model: CascadeModel,
    cascades: CascadeSet = "all",
    *,
    lam: Any,
    starts: int = 4,
) -> Frontier:
    """Minimise a user's objective for each λ by gradient, and return the policies as a frontier.

    The objective is a pure JAX function of a cascade's expected outcome (`Outcome`): the shares asked, answered and
    answered wrongly by each model, hence error, cost, and the probability and cost of each path. It need not add up
    along a cascade; if it does, as error + λ·cost, `solve_frontier` is exact and far faster.

    *Descent.* Thresholds are ranks u = F(φ). L-BFGS descends from several starts for every λ and cascade, in one
    compiled program. Candidate starts are Bellman's optima of error + μ·cost at 64 μ, from μ at which cost hardly
    counts to μ at which only the cheapest model pays. The range of μ has `starts` stretches, and the candidate of each
    stretch with the least objective is a start. The result of each λ is tried at all others; the best descends again.

    *Kinks and jumps.* Write a quantile as `smooth_quantile(…, outcome.smoothing)`. The solver reduces this width from
    1e-2 to 1e-5 in seven steps, and compares all results at width 0, which is exact. At other kinks the slope does not
    vanish: the status is `NOT_CONVERGED`, though the policy may be optimal.

    *Point masses*, of models that state few values or at the ends of a range, are passed whole or not at all. A descent
    crosses them as if ties were broken at random, and its result moves to the nearer end. Each threshold is then tried
    at both ends of every mass, and the others descend within smooth pieces. Without smooth pieces this is a search over
    steps, good but not proven optimal.

    Args:
        objective: `objective(outcome, lam)` returns one real number for traced arrays. Functions are cached by
            identity: the same function does not compile again.
        model: fitted model.
        cascades: "all", "full", or a list of cascades, as in `solve_frontier`.
        lam: (L,) the λ, at least 0, passed to the objective one by one; the objective defines their meaning.
        starts: descents for every λ and cascade.

    The frontier's `status` says for each λ whether the slope vanished. `frontier.point(i)` is the policy of the i-th
    λ, and `frontier.policy(budget=…)` picks one by error and cost. Needs `pip install 'rcjax[objectives]'`.

    Raises ValueError for an objective that does not return one real number, for λ that are negative, not finite or
    missing, for unknown models, and for cascades without a threshold to choose.

    >>> import rcjax
    >>> model = rcjax.demo_model()
    >>> pair = ("llama3.2-1b", "llama3.1-70b")
    >>> def squared(outcome, lam):  # dear queries are worse than their money
    ...     return outcome.error + lam * (outcome.taken * outcome.path_cost**2).sum()
    >>> frontier = minimise(squared, model, [pair], lam=[1e5, 1e6])
    >>> frontier.thresholds.shape, frontier.status.tolist(), bool(frontier.cost[1] < frontier.cost[0])
    ((2, 5), [0, 0], True)
    >>> frontier.point(1).models
    ('llama3.2-1b', 'llama3.1-70b')
    """
    prices = check_lam(lam)
    paths = candidate_paths(model.models, cascades)
    if paths is None:
        raise ValueError("cascades='adaptive' does not exist here: use 'all', 'full' or a list of cascades")
    if max(map(len, paths)) < 2:
        alone = model.models[paths[0][0]]
        raise ValueError(f"cascades: {alone} alone has no threshold to choose: name a cascade of two models or more")
    required("optax", extra="objectives")
    plan, starts = make_plan(paths, len(model.models)), min(whole(starts, "starts", 1), _PRICES)
    additive = lam_range(np.asarray(model.cost, float)[np.asarray(plan.members)[-1]], _PRICES)
    layout = lay_out_problem(model, plan, None)
    problem, proposed = propose(layout.tables, plan, additive.astype(prices.dtype), len(paths))
    _check_objective(objective, proposed.outcome)
    chosen, status = _search(objective, problem, proposed, prices.astype(model.cost.dtype), starts)
    cut = Cut.at(jnp.where(plan.defers[chosen.path], chosen.ranks, 0.0))
    points = evaluate_optima(layout, Optima(prices, chosen.path, jax.device_get(cut), status))
    return make_frontier(model, points, Spec(cascade="minimised"))


def _check_objective(objective: Objective, outcomes: Outcome) -> None:
    """Raise ValueError if the objective does not return one real number."""
    outcome = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), outcomes)
    value = jax.eval_shape(objective, outcome, jax.ShapeDtypeStruct((), outcomes.asked.dtype))
    if not isinstance(value, jax.ShapeDtypeStruct) or value.shape or not np.issubdtype(value.dtype, np.floating):
        raise ValueError(
            f"objective must return one real number that has a slope, not {what_it_is(value)}: take a sum or a mean"
        )


def _search(
    objective: Objective, problem: OutcomeProblem, proposed: Candidate, lam: np.ndarray, starts: int
) -> tuple[Candidate, np.ndarray]:
    """Descend for every λ, and return (the best candidates (L,), their statuses (L,)).

    Args:
        objective: function to minimise.
        problem: tables and plan.
        proposed: (C,) initial candidates.
        lam: (L,) the λ.
        starts: descents for each λ and cascade.
    """
    value = np.asarray(weigh(objective, proposed.outcome, lam), float)
    scale = _scale(value).astype(lam.dtype)
    proposed = jax.device_get(proposed)
    rows = _starting_rows(value, starts)  # (L, N, S)
    price = np.repeat(np.arange(len(lam)), rows[0].size)
    rows = rows.reshape(-1)
    start = Start(proposed.ranks[rows], proposed.path[rows], lam[price], scale[price])
    together = len(rows) if jax.default_backend() != "cpu" else _FEW if len(rows) <= _FEW else TOGETHER

    def descend(start: Start, settling: bool) -> tuple[Candidate, np.ndarray]:
        return in_pieces(lambda batch: improve(objective, problem, batch, np.asarray(settling)), start, together)

    reached, _ = descend(start, settling=False)
    candidates = join([proposed, reached])
    # The result of a descent at one λ is a candidate at every other.
    best = part(candidates, np.asarray(weigh(objective, candidates.outcome, lam)).argmin(1))
    settled, slope = descend(Start(best.ranks, best.path, lam, scale), settling=True)
    before, after = (np.diagonal(np.asarray(weigh(objective, batch.outcome, lam), float)) for batch in (best, settled))
    better = after < before
    chosen = part(
        jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), best, settled), (np.arange(len(lam)), better * 1)
    )
    reached_value = np.where(better, after, before)
    return chosen, _status(problem, chosen, reached_value, slope, slope_tolerance(reached_value, scale))


def _scale(value: np.ndarray) -> np.ndarray:
    """Median excess of the finite candidates (L, C) over the best, bounded away from 0; (L,)."""
    number = np.where(np.isfinite(value), value, np.nan)
    finite = np.isfinite(value).any(1)
    least, middle = (np.ones(len(value)) for _ in range(2))
    least[finite], middle[finite] = np.nanmin(number[finite], axis=1), np.nanmedian(number[finite], axis=1)
    size = np.maximum(middle - least, _LEAST_SCALE * np.abs(least))
    return np.where(finite & (size > 0), size, 1.0)


def _starting_rows(value: np.ndarray, starts: int) -> np.ndarray:
    """Number of the best candidate, of those (L, N·P), in each of S stretches of their prices; (L, N, S)."""
    by_price = value.reshape(len(value), -1, _PRICES)
    stretches = np.array_split(np.arange(_PRICES), starts)
    best = [stretch[0] + by_price[:, :, stretch].argmin(-1) for stretch in stretches]
    return np.stack(best, axis=-1) + _PRICES * np.arange(by_price.shape[1])[:, None]


def slope_tolerance(value: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Largest slopes that count as converged, with an allowance for rounding that processors may do differently; (L,).

    Args:
        value: (L,) objective at the ends of the descents.
        scale: (L,) divisor of losses and slopes, in the precision of the descents.
    """
    roundings = np.abs(value) / scale * _ROUNDED * np.finfo(scale.dtype).eps ** 0.5
    return tolerance(scale.dtype) * np.maximum(1.0, roundings)


def _status(
    problem: OutcomeProblem, chosen: Candidate, value: np.ndarray, slope: np.ndarray, largest: np.ndarray
) -> np.ndarray:
    """Status of each λ, from the objective, its slope, and the largest slope that counts as converged; (L,)."""
    cut = chosen.ranks
    low, high = jax.device_get(problem.steps.smooth_range)
    at_bound = (np.asarray(problem.plan.defers)[chosen.path] & ((cut <= low) | (cut >= high))).any(1)
    status = np.where(at_bound, PointStatus.AT_BOUND, PointStatus.CONVERGED)
    arrived = slope <= largest  # False for NaN
    status = np.where(arrived, status, PointStatus.NOT_CONVERGED)
    return np.where(np.isfinite(value), status, PointStatus.NOT_FINITE)
