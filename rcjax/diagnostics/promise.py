"""Does the promise hold: the error and cost that a search says its policies will have, against queries left out.

A policy comes with figures (`Frontier.error`, `Frontier.cost`), and how they were arrived at depends on the search:
those of the default search are estimates by the labels, corrected for luck; those of a search by the model are the
model's predictions. Here a search is held to its own figures. Fresh queries are answered by the frontier itself. In the
log that it was tuned on, each of five folds is left out in turn, the whole search is done again on the other four, with
its correction for luck, and the fold is answered by the policies that come of it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rcjax._core.batching import part, side_by_side
from rcjax.copulas import OneOf
from rcjax.frontier.frontier import Frontier
from rcjax.logs.log import Log
from rcjax.model.calibrated import Details, Fitted, calibrated_like
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.label_outcomes import expected_log
from rcjax.replaying.replay import replay
from rcjax.tuning.judging import FOLDS, deal_folds
from rcjax.tuning.search import search_of


class LeftOut(NamedTuple):
    """A model, and queries that it was not fitted to."""

    model: Fitted
    log: Log
    rest: Log | None = None
    """What it was fitted to, where that is of the same log."""


def held_out(model: Fitted, log: Log, *, folds: bool, seed: int = 0) -> list[LeftOut]:
    """Models and logs that they were not fitted to, which together hold every query of a log once.

    Args:
        model: the fitted model.
        log: the log to judge it by.
        folds: False for the model itself and the whole log; True for five models, each fitted as the model was to four
            fifths of the queries, and the fifth that each has not seen.
        seed: of the folds.
    """
    if not folds:
        return [LeftOut(model, log)]
    fold = deal_folds(log.complete, FOLDS, seed)

    def without_fold(number: int) -> LeftOut:
        rest = without(log, fold == number)
        return LeftOut(_fitted_near(model, rest), log.take(fold == number), rest)

    return side_by_side(without_fold, range(FOLDS), n=log.n_queries)


def without(log: Log, rows: np.ndarray) -> Log:
    """The log as if nobody had answered some of its queries, rows (n,) bool; costs are averaged over the others.

    Its arrays keep their shapes, so that nothing is compiled anew. A model without any answer left keeps its cost.
    """
    logprob, correct, answered, query_cost = (
        np.asarray(column) for column in (log.logprob, log.correct, log.answered, log.query_cost)
    )
    remaining = answered & ~rows[:, None]
    money, count = np.where(remaining, query_cost, 0).astype(query_cost.dtype), remaining.sum(0)
    cost = np.where(count > 0, money.sum(0) / np.maximum(count, 1), log.cost).astype(query_cost.dtype)
    columns = {
        "logprob": np.where(remaining, logprob, np.nan).astype(logprob.dtype),
        "correct": np.where(remaining, correct, False).astype(correct.dtype),
        "answered": remaining,
        "query_cost": money,
        "cost": cost,
    }
    return dataclasses.replace(log, **jax.device_put(columns))


def _fitted_near(model: Fitted, log: Log) -> Fitted:
    """The model of another log, calibrated only where this one is no more.

    Its mixtures are sought around those of the model, where its copulas come from Kendall's τ.
    """
    if not isinstance(model, CascadeModel):
        return calibrated_like(model, log)
    from rcjax.model.fitting import fit_near, refit

    if isinstance(model.copulas, OneOf) or (model.details.fit or {}).get("method", "tau") != "tau":
        return refit(model, log)
    outcomes = expected_log(log)
    fitted = fit_near(model, log.logprob, outcomes.correct, log.answered, log.cost)
    return dataclasses.replace(fitted, details=Details.of_log(log, fit=model.details.fit))


def is_training_log(model: CascadeModel, log: Log) -> bool:
    """Whether the model was fitted to this log, by the hash of its content."""
    return model.provenance.get("digest") == log.digest


def try_promise(frontier: Frontier, held: Sequence[LeftOut], trained_on: int, seed: int = 0) -> dict[str, Any]:
    """The figures of a frontier against queries that its tuning did not see, at sixteen λ.

    A single held-out log is answered by the frontier as it is; folds by what the same search finds without each.
    As `compare_frontier`, with `search`, that of the frontier.

    Args:
        frontier: what was promised.
        held: of `held_out`.
        trained_on: how many queries the frontier was tuned on.
        seed: of the folds of the search.
    """
    lam = lambdas(frontier.model)

    def judged_by(fold: LeftOut) -> tuple[Frontier, Log]:
        if fold.rest is None:
            return at_prices(frontier, lam), fold.log
        # Folds of their own: those dealt by the same seed would be the ones that are left out already.
        return search_of(frontier.spec).find(fold.rest, fold.model, lam=lam, seed=seed + 1)[0], fold.log

    judged = list(map(judged_by, held))
    # In folds, both come from the same queries: a log that is easy by chance is so for what is promised, too.
    return {"search": frontier.search, **compare_frontier(judged, trained_on if len(held) == 1 else None)}


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


def compare_frontier(judged: Sequence[tuple[Frontier, Log]], trained_on: int | None) -> dict[str, Any]:
    """Frontiers of one length, as predicted and as replayed, each on the log beside it: means over the pairs.

    Arrays (L,): `lam`, `predicted_error`, `predicted_cost`, `error`, `cost`, and the half-widths of 90 % bands,
    `error_band` and `cost_band`, on the difference of predicted and seen. They count the sampling of the queries
    judged, and of the `trained_on` others that the prediction was learnt from, taken to be as variable (None if
    there are no others); not the search for the best policy, whose optimism is part of what is to be seen. A refusal
    counts as an error at its price. What is seen of a cost is the bill where that was promised, as by
    `select_frontier`, and else at the models' mean costs.
    """
    rows, errors = [], []
    for frontier, log in judged:
        replayed, price = replay(frontier, log), frontier.abstain_price or 0.0
        seen = {
            "error": np.asarray(replayed.error) + price * np.asarray(replayed.abstention),
            "cost": replayed.spent if frontier.search == "selected" else replayed.cost,
        }
        promised = {"predicted_error": frontier.penalty, "predicted_cost": frontier.cost}
        rows.append({"lam": frontier.lam} | promised | seen)
        # `cost_se` takes the mean costs of the models for known, which depend on how long these queries are.
        errors.append({"error_band": replayed.error_se, "cost_band": replayed.spent_se})
    n = sum(int(log.complete.sum()) for _, log in judged)
    widen = 1.645 * np.sqrt(1 + (n / trained_on if trained_on else 0.0)) / len(judged)  # of a mean of independent parts
    means = {name: np.mean([row[name] for row in rows], axis=0) for name in rows[0]}
    bands = {name: widen * np.sqrt(sum(np.nan_to_num(row[name]) ** 2 for row in errors)) for name in errors[0]}
    return means | bands


def lambdas(model: Fitted) -> np.ndarray:
    """The sixteen λ (16,) at which promises are tried: an answer of the dearest model is worth 0.001 to 1 errors."""
    return np.geomspace(1e-3, 1.0, 16) / (float(np.asarray(model.cost).max()) or 1.0)
