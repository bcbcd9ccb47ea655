"""What policies come to on the log that they were tuned on: bills, what is left of a budget, how long queries wait."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from rcjax._base.wording import percent
from rcjax.frontier.frontier import Frontier
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.policy.policy import AnyPolicy
from rcjax.replaying.replay import replay

_UNSPENT = 0.1  # of a budget: from which on it is said why


def by_bill(frontier: Frontier, log: Log) -> tuple[Frontier, list[str]]:
    """A frontier that a model tells at mean prices, at what its policies' paths cost on the log, and what to say of it.

    Queries that are passed on may be more than the model tells, and longer than others. A frontier by the labels is of
    bills as it is.
    """
    if frontier.search == "selected" or log.second_cost:
        return frontier, []
    try:
        spent = np.asarray(replay(frontier, log).spent, float)
    except LogError:  # no query was answered by all of its models
        return frontier, []
    predicted = np.asarray(frontier.cost, float)
    ratio = np.where(predicted > 0, spent / np.where(predicted > 0, predicted, 1.0), 1.0)
    if np.abs(ratio - 1).max() < 1e-9:
        return frontier, []
    bands = frontier.bands
    if bands is not None:
        bands = dataclasses.replace(bands, cost=jax.device_put(np.asarray(bands.cost) * ratio[:, None]))
    frontier = dataclasses.replace(frontier, cost=jax.device_put(spent.astype(frontier.cost.dtype)), bands=bands)
    return frontier, [f"costs of policies are bills of this log, {_range(ratio)} than the model tells at mean prices"]


def _range(ratio: np.ndarray) -> str:
    """By how much some sums are above or below others, in words.

    >>> _range(np.array([0.97, 1.2])), _range(np.array([1.001, 1.2])), _range(np.array([0.9, 1.0]))
    ('3 % lower to 20 % higher', 'up to 20 % higher', 'up to 10 % lower')
    """
    changes = {"lower": 1 - ratio.min(), "higher": ratio.max() - 1}
    words = [f"{percent(change, 0)} {way}" for way, change in changes.items() if change >= 5e-3] or ["1 % other"]
    return " to ".join(words) if len(words) > 1 else f"up to {words[0]}"


def tell_money(frontier: Frontier, policy: AnyPolicy, target: Mapping[str, float]) -> list[str]:
    """Why money is left of a budget."""
    budget, cost = target.get("budget"), float(policy.expected["cost"] or 0.0)
    if budget is None or cost >= (1 - _UNSPENT) * budget:
        return []
    return [f"{percent(1 - cost / budget, 0)} of the budget is left: more money buys no less {frontier.counted.noun}"]


def count_waiting(log: Log, second_cost: float) -> Log:
    """A log whose costs count waiting (`Log.with_waiting`), cheapest model first by these.

    A cascade asks its models in the order of the log, and a cheap but slow one may cost more in the end.
    Models that were not in the order of what they cost, as somebody chose another, stay in theirs.

    Args:
        log: the log.
        second_cost: what a second is worth, in money.
    """
    counted = log.with_waiting(second_cost)
    if counted is log or (np.diff(np.asarray(log.with_waiting().cost, float)) < 0).any():
        return counted
    order = np.argsort(np.asarray(counted.cost), kind="stable")
    return counted.select([log.models[column] for column in order])


def mean_seconds(log: Log, model: int) -> float | None:
    """Mean seconds of the answers of one model, by its position, of those that tell them; None if none does.

    >>> import rcjax
    >>> mean_seconds(rcjax.sample_log(20, seed=0), 0) is None
    True
    """
    if log.seconds is None:
        return None
    seconds = np.asarray(log.seconds, float)[:, model]
    timed = seconds[~np.isnan(seconds)]
    return float(timed.mean()) if timed.size else None


def with_seconds(frontier: Frontier, log: Log) -> Frontier:
    """The same frontier, with the seconds that the log lets expect; as it is where the log has none.

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
        return dataclasses.replace(frontier, seconds=replay(frontier, log).seconds)
    except LogError:  # no query was answered by all of its models
        return frontier
