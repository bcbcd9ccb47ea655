"""Which queries of a log move a policy most, by one derivative in place of as many fits as there are queries.

The fitted model is a function of how much each query counts (`rcjax.model.weighted`), and the best thresholds are one
of the model (`rcjax.solving.solution`). The derivative of both together says what leaving a query out would change, to
first order; its sum of squares is the variance of what is predicted, by the infinitesimal jackknife (Jaeckel 1972;
Giordano et al. 2019, "A Swiss Army infinitesimal jackknife").
"""

import dataclasses
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._base.arguments import check_arguments
from rcjax._core.compilation import compiled
from rcjax._core.size_classes import fill_up
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import fit
from rcjax.model.ties import pairs_by_likelihood
from rcjax.model.weighted import WeightedRows, reweigh, rows_of
from rcjax.policy.policy import Policy
from rcjax.solving.solution import solve

__all__ = ["Influence", "influence"]


@dataclasses.dataclass(frozen=True)
class Influence:
    """What would change if a query were not in the log; n queries, m models of a cascade, numpy's arrays."""

    queries: tuple[str, ...]
    """(n,) their names."""
    models: tuple[str, ...]
    """(m,) of the cascade, in the order asked."""
    lam: float
    """At which thresholds are best, in errors per unit of money."""
    error: np.ndarray
    """(n,) the change of the predicted error, thresholds moving along."""
    cost: np.ndarray
    """(n,) the change of the predicted money per query."""
    thresholds: np.ndarray
    """(n, m − 1) the changes of the thresholds."""

    @property
    def error_se(self) -> float:
        """Standard error of the predicted error, by the infinitesimal jackknife."""
        return float(np.sqrt((self.error**2).sum()))

    @property
    def cost_se(self) -> float:
        """Standard error of the predicted money per query, likewise."""
        return float(np.sqrt((self.cost**2).sum()))

    @property
    def threshold_se(self) -> np.ndarray:
        """(m − 1,) standard errors of the thresholds, likewise."""
        return np.sqrt((self.thresholds**2).sum(0))

    def top(self, count: int = 10, by: Literal["thresholds", "error", "cost"] = "thresholds") -> tuple[int, ...]:
        """Positions of the queries that move the thresholds, the error or the cost most; the first most.

        Several thresholds count in units of their standard errors. Raises ValueError for another `by`.
        """
        check_arguments(Influence.top, locals())
        if by not in ("thresholds", "error", "cost"):
            raise ValueError(f"by is {by!r}; it is 'thresholds', 'error' or 'cost'")
        unit = np.where(self.threshold_se > 0, self.threshold_se, 1.0)
        moved = np.abs(self.thresholds / unit).max(1) if by == "thresholds" else np.abs(getattr(self, by))
        return tuple(int(row) for row in np.argsort(-moved, kind="stable")[:count])


def influence(policy: Policy, log: Log) -> Influence:
    """Which queries of a log move a policy most: what leaving each out would change, to first order.

    Of the best thresholds of the policy's models at the λ that it is for, under the model fitted to the log; where a
    policy was judged by the labels, these are the thresholds beside which its own lie.

    Args:
        policy: a cascade of two models or more with a threshold each, that knows its λ (`expected["lam"]`).
        log: the queries that it was tuned on, or like ones.

    Raises ValueError for other policies; LogError where a model has no answers, or has so few different confidences
    that copulas are fitted by likelihood, of which there is no such derivative.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> policy = rcjax.solve_frontier(rcjax.fit(log), lam=[300.0], cascades="full").point(0)
    >>> moved = influence(policy, log)
    >>> moved.models, len(moved.top(3)), 0.01 < moved.error_se < 0.05
    (('llama3.2-1b', 'llama3.1-70b'), 3, True)
    """
    check_arguments(influence, locals())
    lam = policy.expected.get("lam")
    if lam is None or len(policy.models) < 2:
        raise ValueError("policy must be a cascade of two models or more that knows its λ: expected['lam']")
    log = log.select(policy.models)
    model = fit(log)
    if np.asarray(pairs_by_likelihood(model.marginals)).any():
        raise LogError(
            f"{log.source}: its confidences have so few values that copulas are fitted by likelihood, and what one "
            "query changes there is not known: draw intervals instead (bootstrap)"
        )
    # Models of other names compile nothing.
    unnamed = dataclasses.replace(model, models=tuple(map(str, range(len(model.models)))))
    jacobian = _jacobian(unnamed, WeightedRows(*fill_up(*rows_of(log))), jnp.asarray(lam, model.cost.dtype))
    # Leaving a query out takes one off what it counts.
    change = -np.asarray(jacobian, float)[:, : log.n_queries].T
    if not np.isfinite(change).all():
        raise LogError(f"{log.source}: what one query changes is no finite number: too few queries to fit")
    return Influence(tuple(map(str, log.queries)), model.models, float(lam), change[:, 0], change[:, 1], change[:, 2:])


@partial(compiled, runs="once")
def _jacobian(model: CascadeModel, rows: WeightedRows, lam: jax.Array) -> jax.Array:
    """(2 + m − 1, n) derivatives of the error, the cost and the thresholds by how much each query counts."""

    def figures(weights: jax.Array) -> Any:
        solution = solve(reweigh(model, rows, weights), lam, "full")
        return jnp.concatenate([solution.error[None], solution.cost[None], solution.thresholds[:-1]])

    return jax.jacrev(figures)(jnp.ones(len(rows.cost), rows.cost.dtype))
