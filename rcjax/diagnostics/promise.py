"""Does the promise hold: the error and cost that a search says its policies will have, against queries left out.

A policy comes with figures (`Frontier.error`, `Frontier.cost`), and how they were arrived at depends on the search:
those of the default search are estimates by the labels, corrected for luck; those of a search by the model are the
model's predictions. Here a search is held to its own figures. Fresh queries are answered by the frontier itself. In the
log that it was tuned on, each of five folds is left out in turn, the whole search is done again on the other four, with
its correction for luck, and the fold is answered by the policies that come of it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rcjax._core.batching import part
from rcjax.diagnostics.prediction import HeldOut, compare_frontier, lambdas
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.searches import gone_search
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.solving.frontiers import solve_frontier
from rcjax.tuning.select import select_frontier


def try_promise(frontier: Frontier, held: Sequence[HeldOut], trained_on: int, seed: int = 0) -> dict[str, Any]:
    """The figures of a frontier against queries that its tuning did not see, at sixteen λ.

    A single held-out log is answered by the frontier as it is; folds by what the same search finds without each
    (`search_again`). As `compare_frontier`, with `search`, that of the frontier.

    Args:
        frontier: what was promised.
        held: of `held_out`.
        trained_on: how many queries the frontier was tuned on.
        seed: of the folds of the search.
    """
    lam = lambdas(frontier.model)
    judged = [
        (
            at_prices(frontier, lam) if fold.rest is None else search_again(frontier, fold.model, fold.rest, lam, seed),
            fold.log,
        )
        for fold in held
    ]
    # In folds, both come from the same queries: a log that is easy by chance is so for what is promised, too.
    return {"search": frontier.search, **compare_frontier(judged, trained_on if len(held) == 1 else None)}


def search_again(frontier: Frontier, model: CascadeModel, log: Log, lam: np.ndarray, seed: int = 0) -> Frontier:
    """What the search behind a frontier finds on another log.

    Args:
        frontier: whose search it is.
        model: the model fitted to the log.
        log: the other log.
        lam: (L,) in errors per unit of money.
        seed: of the folds of the search.

    Raises ValueError for `minimise`, whose objective a frontier does not hold, and for a search that is gone.
    """
    if frontier.search == "minimised":
        raise ValueError("to search again rcjax.solving.minimise needs its objective: give held-out queries instead")
    if gone := gone_search(frontier):
        raise ValueError(f"{gone}: tune again, or give held-out queries instead")
    price = frontier.abstain_price
    if frontier.search == "selected":
        # Folds of their own: those dealt by the same seed would be the ones that are left out already.
        selection = select_frontier(log, model=model, lam=lam, seed=seed + 1, abstain_price=price)
        return selection.frontier
    search: Any = frontier.search
    return solve_frontier(model, lam=lam, cascades=search, chain=frontier.chain, abstain_price=price)


def at_prices(frontier: Frontier, lam: np.ndarray) -> Frontier:
    """The points of a frontier that are best by its own figures for the λ (L,), without intervals.

    >>> import rcjax
    >>> frontier = rcjax.solve_frontier(rcjax.demo_model(), lam=[1.0, 10.0, 100.0])
    >>> at_prices(frontier, np.array([10.0, 100.0])).cost.tolist() == frontier.cost[1:].tolist()
    True
    """
    error, cost = (np.asarray(values, float) for values in (frontier.penalty, frontier.cost))
    best = (error + np.asarray(lam)[:, None] * cost).argmin(1)
    named = {name: getattr(frontier, name) for name in ("error", "cost", "status", "abstention", "policies")}
    points = part(jax.tree.map(np.asarray, named), best)
    points["lam"] = np.asarray(lam, np.asarray(frontier.lam).dtype)
    return dataclasses.replace(frontier, bands=None, seconds=None, **jax.device_put(points))
