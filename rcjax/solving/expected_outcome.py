"""Expected outcomes of cascades at given thresholds under a fitted model."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.checks import takes
from rcjax._core.batching import in_pieces, part
from rcjax._core.compilation import compiled, in_full, is_traced
from rcjax._core.exporting import exportable
from rcjax._core.meshes import automatic
from rcjax.copulas import Copula
from rcjax.model.calibrated import pairs
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.marginals import Marginal
from rcjax.solving.frontier.frontier import Frontier
from rcjax.solving.frontier.policies import ALWAYS_ANSWER
from rcjax.solving.frontiers import lay_out_problem
from rcjax.solving.objective import Outcome, Tables, build_tables, evaluate, outcome_of_cuts
from rcjax.solving.paths import check_cascade

#: Rows of thresholds evaluated at a time. Rows are padded to one of both, so that two programs serve any number; with
#: `_MANY` the integrands still fit into a CPU's caches.
_FEW, _MANY = 16, 384


@exportable
class ErrorAndCost(NamedTuple):
    """Error and cost of policies that answer every query."""

    error: Any
    """Probability of a wrong answer."""
    cost: Any
    """Money per query."""


@takes(model=CascadeModel)
def error_and_cost(model: CascadeModel, thresholds: ArrayLike, cascade: Sequence[str] | None = None) -> ErrorAndCost:
    """Predict (error probability, expected cost per query) of a cascade at given thresholds under a model.

    Model j answers a query if Φ_j > φ_j; the last model always answers. The function is pure and jittable.
    It is differentiable in every array of the model and in thresholds within (φ_min, φ_max); outside, nothing changes
    with them. Money is that of `model.cost`.

    Args:
        model: fitted model of k models.
        thresholds: calibrated confidence, with leading axes (…), in one of three forms. (…, m): one for each of the
            cascade's m models in the order asked, of which the last is ignored; (…, m − 1): one for each but the last;
            (…, k): one for each model of `model.models`, as a row of `Frontier.thresholds`.
        cascade: names of the cascade's models, in the order asked; None: all.

    Raises ValueError for unknown models, another order than the model's, or a wrong number of thresholds.

    >>> import rcjax
    >>> model = rcjax.fit(rcjax.sample_log(300, seed=0))
    >>> error, cost = error_and_cost(model, jnp.array([0.6]), ("llama3.2-1b", "llama3.1-70b"))
    >>> bool(0 < error < 1), bool(model.cost[0] < cost)
    (True, True)
    """
    return jax.device_put(_by_thresholds(model, thresholds, cascade))


def _by_thresholds(model: CascadeModel, thresholds: ArrayLike, cascade: Sequence[str] | None) -> ErrorAndCost:
    """`error_and_cost`, with NumPy arrays as results unless traced."""
    members = check_cascade(model.models, model.models if cascade is None else cascade)
    k, m = len(model.models), len(members)
    positions = np.array(members)
    columns = {m - 1: np.arange(m - 1), m: np.arange(m - 1), k: np.array(members[:-1], int)}
    *shape, count = np.shape(thresholds) or (-1,)
    if count not in columns:
        raise ValueError(
            f"thresholds has shape {np.shape(thresholds)}; its last axis must be the {m} models of the cascade, all "
            f"but the last ({m - 1}), or all {k} models"
        )
    neighbours = np.array([pairs(k).index(pair) for pair in itertools.pairwise(members)], int)
    arrays = model.marginals, model.copulas, model.cost
    traced = is_traced(jax.tree.leaves((arrays, thresholds)))
    xp: Any = jnp if traced else np
    rows = xp.asarray(thresholds, dtype=model.cost.dtype)[..., columns[count]].reshape(math.prod(shape), m - 1)
    marginals, copulas, cost = arrays if traced else jax.tree.map(np.asarray, arrays)
    fitted = part(marginals, positions), part(copulas, neighbours), cost[positions]
    if traced:
        expected = automatic(_expected, *fitted, rows, like=rows, trailing=1)
    else:
        size = _FEW if len(rows) <= _FEW else _MANY
        expected = in_pieces(lambda piece: _expected(*fitted, piece), rows, size)
    return jax.tree.map(lambda leaf: leaf.reshape(shape), expected)


@jax.jit
@in_full
def _expected(marginals: Marginal, copulas: Copula, cost: jax.Array, rows: jax.Array) -> ErrorAndCost:
    """Evaluate a cascade of m models at n rows of thresholds; (n,).

    Args:
        marginals: (m,) marginals of the models.
        copulas: (m − 1,) copulas of neighbours.
        cost: (m,) money per answer.
        rows: (n, m − 1) thresholds of all models but the last.
    """
    m = cost.shape[0]
    tables = build_tables(marginals, copulas, cost, np.arange(m - 1), np.arange(1, m))

    def single(thresholds: jax.Array) -> ErrorAndCost:
        u, _, above = jax.vmap(Marginal.profile)(marginals, jnp.append(thresholds, ALWAYS_ANSWER))
        links, first = jnp.ones(m - 1, bool), jnp.zeros((), int)
        expected = evaluate(tables, u, links, first, above=above)
        return ErrorAndCost(expected.wrong, expected.cost)

    return jax.vmap(single)(rows)


@takes(frontier=Frontier)
def outcomes(frontier: Frontier) -> Outcome:
    """Compute the outcomes of a frontier's cascades, path by path, under its model; arrays (L, …).

    An objective of `minimise` can thus be evaluated for any cascades, such as those of `solve_frontier`.

    Args:
        frontier: frontier of L cascades.

    Raises ValueError for adaptive policies, and for policies that compare answers.

    >>> import rcjax
    >>> frontier = rcjax.solve_frontier(rcjax.demo_model(), lam=[100.0, 1000.0])
    >>> outcome = outcomes(frontier)
    >>> outcome.error.shape, bool(abs(outcome.cost - frontier.cost).max() < 1e-9)
    ((2,), True)
    """
    model, policies, thresholds = frontier.model, frontier.policies, frontier.thresholds
    if thresholds is None or policies.agreements is not None or not isinstance(model, CascadeModel):
        raise ValueError(
            "frontier must hold cascades of a fitted model with one threshold per model that do not compare answers"
        )
    tables = lay_out_problem(model, None, None).tables
    return _of_rows(tables, (thresholds, policies.members, frontier.refusals))


@compiled
def _of_rows(tables: Tables, policies: tuple[jax.Array, jax.Array, jax.Array | None]) -> Outcome:
    """Outcomes of cascades given by (thresholds, members, refusals or None), each (L, k); (L, …)."""
    left, right = tables.left, tables.right

    def single(policy: tuple[jax.Array, jax.Array, jax.Array | None]) -> Outcome:
        thresholds, members, refusals = policy
        asked_so_far = jnp.cumsum(members)
        links = members[left] & members[right] & (asked_so_far[right] == asked_so_far[left] + 1)
        u, _, above = jax.vmap(Marginal.profile)(tables.marginals, jnp.where(members, thresholds, ALWAYS_ANSWER))
        refused = None if refusals is None else jax.vmap(Marginal.cdf)(tables.marginals, refusals)
        return outcome_of_cuts(tables, u, links, jnp.argmax(members), above=above, refused=refused)

    return jax.vmap(single)(policies)
