"""How long queries wait under the policies of a frontier, by the queries of the log that it was tuned on."""

import dataclasses
from typing import Any

import jax
import numpy as np

from rcjax.frontier.frontier import Frontier
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.replaying.replay import replay

__all__ = ["count_waiting", "mean_seconds", "with_seconds"]


def count_waiting(log: Log, second_cost: float) -> Log:
    """A log whose costs count what a second of waiting is worth (`Log.with_waiting`), cheapest model first by these.

    A cascade asks its models in the order of the log, and one that is cheap, but slow, may come to be the dearer one.
    Models that were not in the order of what they cost, as somebody chose another, stay in theirs.

    Args:
        log: the log.
        second_cost: money per second.
    """
    counted = log.with_waiting(second_cost)
    if counted is log or not _rises(log.with_waiting(0.0).cost):
        return counted
    order = np.argsort(np.asarray(counted.cost), kind="stable")
    return counted.select([log.models[place] for place in order])


def _rises(cost: Any) -> bool:
    return bool((np.diff(np.asarray(cost, float)) >= 0).all())


def mean_seconds(log: Log, model: int) -> float | None:
    """Mean seconds of the answers of one model, by its position, of those that tell them; None where none does.

    >>> import rcjax
    >>> mean_seconds(rcjax.sample_log(20, seed=0), 0) is None
    True
    """
    if log.seconds is None:
        return None
    known = np.asarray(log.seconds, float)[:, model]
    known = known[~np.isnan(known)]
    return float(known.mean()) if known.size else None


def with_seconds(frontier: Frontier, log: Log) -> Frontier:
    """The same frontier, with the seconds that the log lets expect; as it is where the log tells none.

    Args:
        frontier: the frontier.
        log: the log that it was tuned on, with the costs that it was tuned with.

    >>> import rcjax
    >>> log = rcjax.sample_log(200, seed=0)
    >>> with_seconds(rcjax.solve_frontier(rcjax.fit(log), lam=[1000.0]), log).seconds is None
    True
    """
    if log.seconds is None:
        return frontier
    try:
        replayed = replay(frontier, log)
    except LogError:  # no query was answered by all of its models
        return frontier
    seconds = replayed.seconds
    assert seconds is not None
    if log.waiting is not None:  # by the share of money in the bill that was seen, as costs are those of the estimate
        bare = replay(frontier, dataclasses.replace(log, query_cost=jax.device_put(np.asarray(log.waiting.money))))
        spent = np.asarray(replayed.spent, float)
        money = np.asarray(frontier.cost, float) * np.asarray(bare.spent, float) / np.where(spent > 0, spent, 1.0)
        seconds = dataclasses.replace(seconds, money=money)
    return dataclasses.replace(frontier, seconds=seconds)
