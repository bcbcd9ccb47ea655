"""λ → the best cascade and its thresholds: the whole error–cost frontier in one vectorised call."""

from typing import TYPE_CHECKING, Any

import numpy as np

from rcjax.frontier.frontier import Frontier, make_frontier
from rcjax.frontier.prices import check_lam
from rcjax.frontier.refusal import check_abstain_price, refusal_at
from rcjax.frontier.searches import Chain, Search, cascade_names
from rcjax.model.cascade_model import CascadeModel
from rcjax.solving.lambda_grid import lay_out_problem, select, solve_at, solve_on_grid
from rcjax.solving.paths import plan_cascades

if TYPE_CHECKING:
    from rcjax.solving.paths import CascadePlan


def solve_frontier(
    model: CascadeModel,
    *,
    lam: Any = None,
    cascades: Search = "all",
    chain: Chain = "exact",
    max_length: int | None = None,
    abstain_price: float | None = None,
) -> Frontier:
    """The policies that minimise error + λ·cost under the model, for all λ at once.

    Dynamic programming gives the optimum on quadrature nodes, searched from two starts where answering does not gain
    steadily on deferring as confidence grows; Newton steps on the exact gradient settle it. Of all solutions found,
    each λ keeps the best for it, so that cost never rises with λ.

    Args:
        model: the fitted model, of k models.
        lam: (L,) the λ to solve for, in error probability per unit of money, at least 0. By default a geometric grid
            from where cost hardly counts to where the cheapest model is best, with infill between neighbours whose
            thresholds differ most in probability mass (eq. 9 of the paper).
        cascades: "all" subcascades of at most `max_length` models (single models included), the "full" one, a list of
            cascades (tuples of model names in the model's order), or "adaptive" policies, which may skip ahead
            depending on how unsure a model is.
        chain: "paper" solves under the paper's factorisation (not for adaptive policies).
        max_length: the most models in a cascade; None: all.
        abstain_price: the last model of a cascade, and any model of an adaptive policy, may also refuse to answer, at
            this price in errors: 0.3 where three refusals are as bad as 0.9 errors, in money `abstain_cost /
            error_cost`. What is minimised is error + abstain_price·abstention + λ·cost, where an error is a wrong
            answer that was given. At a price of 1 or more nobody refuses, and an infinite one is the same as None. Not
            for `chain="paper"`.

    Raises ValueError for unknown or misordered models, an empty or negative `lam`, a negative price, or a combination
    that does not exist.

    >>> import rcjax
    >>> model = rcjax.fit(rcjax.sample_log(300, seed=0))
    >>> frontier = solve_frontier(model, lam=[1.0, 100.0, 10_000.0])
    >>> bool((frontier.cost[1:] <= frontier.cost[:-1]).all()), frontier.thresholds.shape
    (True, (3, 5))
    >>> refusing = solve_frontier(model, lam=[1.0, 100.0, 10_000.0], abstain_price=0.3)
    >>> bool((refusing.penalty + refusing.lam * refusing.cost < frontier.error + frontier.lam * frontier.cost).all())
    True
    """
    plan = plan_cascades(model, cascades, max_length)
    if chain not in ("exact", "paper") or (chain == "paper" and plan is None):
        raise ValueError(f"chain={chain!r} with cascades={cascades!r} does not exist: use chain='exact'")
    grid = None if lam is None else check_lam(lam)
    abstain_price = check_abstain_price(abstain_price)
    if abstain_price is not None and chain == "paper":
        raise ValueError("abstain_price goes with chain='exact'")
    refusal = refusal_at(abstain_price, model.cost.dtype)
    problem, search = lay_out_problem(model, plan, chain, refusal), _named(cascades, max_length, plan, model.models)
    points = solve_on_grid(problem) if grid is None else select(solve_at(problem, grid), refusal)
    return make_frontier(model, points, search=search, chain=chain, abstain_price=abstain_price)


def _named(
    cascades: Search, max_length: int | None, plan: "CascadePlan | None", names: tuple[str, ...]
) -> tuple[tuple[str, ...], ...] | str:
    """The search as it is kept: a word, or the names of all cascades."""
    if plan is None or (isinstance(cascades, str) and max_length is None):
        return str(cascades)
    return cascade_names(np.unique(np.asarray(plan.members[:-1]), axis=0), names)
