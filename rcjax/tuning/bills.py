"""What a policy is billed, and what there is to say of the money of a budget."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from rcjax._base.wording import choose_unit, percent
from rcjax.frontier.frontier import Frontier
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.policy.mixture import Mixture
from rcjax.policy.policy import Policy
from rcjax.replaying.replay import replay

__all__ = ["by_bill", "tell_money"]


_UNSPENT = 0.1  # of a budget: from which on it is said why


_MIXED = 0.01, 0.03  # errors, and a share of the cost, that a mixture must save for a word


def by_bill(frontier: Frontier, log: Log) -> tuple[Frontier, list[str]]:
    """A frontier that a model tells at mean prices, at what its policies' paths cost on the log, and what to say of it.

    Queries that are passed on may be more than the model tells, and longer than others. A frontier by the labels is of
    bills as it is.
    """
    if frontier.search == "selected" or log.waiting is not None:
        return frontier, []
    try:
        spent = np.asarray(replay(frontier, log).spent, float)
    except LogError:  # no query was answered by all of its models
        return frontier, []
    told = np.asarray(frontier.cost, float)
    ratio = np.where(told > 0, spent / np.where(told > 0, told, 1.0), 1.0)
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


def tell_money(frontier: Frontier, policy: Policy | Mixture, target: Mapping[str, float]) -> list[str]:
    """Why money is left of a budget, and what a mixture would bring."""
    if not {*target} & {"budget", "max_error"} or isinstance(policy, Mixture):
        return []
    error, cost = (float(policy.expected[name] or 0.0) for name in ("error", "cost"))
    told = []
    budget = target.get("budget")
    if budget is not None and cost < (1 - _UNSPENT) * budget:
        told.append(f"{percent(1 - cost / budget, 0)} of the budget is left: {_why_left(frontier, budget)}")
    if frontier.abstain_price is not None:
        return told
    mixed = frontier.mixture(**target).expected
    fewer, cheaper = error - float(mixed["error"] or 0.0), 1 - float(mixed["cost"] or 0.0) / max(cost, 1e-300)
    if budget is not None and fewer > _MIXED[0]:
        told.append(f"a mixture of two policies would err on {percent(error - fewer)}: --mix (mix=True)")
    if budget is None and cheaper > _MIXED[1]:
        told.append(f"a mixture of two policies would cost {percent(cheaper, 0)} less: --mix (mix=True)")
    return told


def _why_left(frontier: Frontier, budget: float) -> str:
    penalty, cost = np.asarray(frontier.penalty, float), np.asarray(frontier.cost, float)
    dearer = cost[penalty < penalty[frontier.choose(budget=budget)]]
    if not dearer.size:
        return "more money buys no fewer errors"
    least = float(dearer.min())
    kept = ", and some is kept in hand, as bills vary" if least <= budget else ""
    return f"the next better policy costs {choose_unit([least]).full(least)}{kept}"
