"""One budget over several kinds of traffic: at the optimum all have the same λ (Everett 1963).

H. Everett, "Generalized Lagrange Multiplier Method for Solving Problems of Optimum Allocation of Resources", Operations
Research 11(3): what minimises error + λ·cost in each kind of traffic by itself, at one λ for all, minimises the whole
error at the cost that this comes to. So a budget is spent step by step, each step the one that saves the most errors
per money, wherever it is; and where the next step is too dear for what is left, by what comes nearest to it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rcjax.frontier.frontier import InfeasibleError
from rcjax.frontier.hull import lower_hull, pareto
from rcjax.policy.targets import Target
from rcjax.tuning.tune import too_dear

__all__ = ["Allocation", "Menu", "allocate", "best_sums", "spending_steps"]


_MOST_SUMS = 2_000


_ROUNDING = 1e-9  # of a limit, by which sums may lie above it


class Menu(NamedTuple):
    """The policies that one kind of traffic can have, L of them."""

    share: float
    """Of all the traffic."""
    judged_error: np.ndarray
    """(L,) by which they are chosen."""
    judged_cost: np.ndarray
    """(L,) by which they are chosen."""
    error: np.ndarray
    """(L,) what is to be expected in this traffic."""
    cost: np.ndarray
    """(L,) what is to be expected in this traffic, in money per query."""
    reserve: np.ndarray | None = None
    """(L,) what a budget keeps in hand for each (`Frontier.reserve`); None: nothing."""


class Allocation(NamedTuple):
    """A policy for each kind of traffic."""

    positions: tuple[int, ...]
    """On each menu."""
    lam: float
    """At which they are the best, in errors per unit of money."""


class AllocationSteps(NamedTuple):
    """Allocations of rising cost, T of them, each of which differs from the one before in one policy."""

    positions: np.ndarray  # (T, M)
    lam: np.ndarray  # (T,) falling

    def total(self, menus: Sequence[Menu], name: str) -> np.ndarray:
        """(T,) the error or cost of the whole traffic, per query."""
        return sum((menu.share * getattr(menu, name)[column] for menu, column in _columns(menus, self)), np.zeros(1))

    def reserve(self, menus: Sequence[Menu]) -> np.ndarray:
        """(T,) what a budget keeps in hand for the whole traffic."""
        reserves = ((menu.share, menu.reserve, column) for menu, column in _columns(menus, self))
        return sum((share * reserve[column] for share, reserve, column in reserves if reserve is not None), np.zeros(1))


def _columns(menus: Sequence[Menu], steps: AllocationSteps) -> zip:
    return zip(menus, steps.positions.T, strict=True)


def spending_steps(menus: Sequence[Menu]) -> AllocationSteps:
    """From the cheapest policies everywhere to those of least error, each step that which saves most errors per money.

    >>> menus = [Menu(0.5, *[np.array([0.5, 0.1]), np.array([1.0, 2.0])] * 2)]
    >>> menus += [Menu(0.5, *[np.array([0.5, 0.2, 0.1]), np.array([1.0, 1.5, 3.5])] * 2)]
    >>> steps = spending_steps(menus)
    >>> steps.positions.tolist(), steps.total(menus, "error").round(9).tolist()
    ([[0, 0], [0, 1], [1, 1], [1, 2]], [0.5, 0.35, 0.15, 0.1])
    """
    hulls = [lower_hull(menu.judged_cost, menu.judged_error) for menu in menus]
    slopes = [
        -np.diff(menu.judged_error[hull]) / np.diff(menu.judged_cost[hull])
        for menu, hull in zip(menus, hulls, strict=True)
    ]
    owner = np.repeat(np.arange(len(menus)), [len(falls) for falls in slopes])
    every = np.concatenate(slopes)
    order = np.argsort(-every, kind="stable")
    corner = np.zeros((len(order) + 1, len(menus)), int)
    for step, one in enumerate(order, 1):
        corner[step] = corner[step - 1]
        corner[step, owner[one]] += 1
    positions = np.stack([hull[column] for hull, column in zip(hulls, corner.T, strict=True)], axis=1)
    return AllocationSteps(positions, _between(every[order]))


def _between(slopes: np.ndarray) -> np.ndarray:
    """(T + 1,) λ before, between and after slopes (T,), which fall."""
    if not slopes.size:
        return np.ones(1)
    around = np.concatenate([[4 * slopes[0]], slopes, [slopes[-1] / 4]])
    return np.sqrt(around[:-1] * around[1:])


def best_sums(menus: Sequence[Menu]) -> AllocationSteps:
    """Allocations that no other beats in both error and cost of the whole traffic, by rising cost.

    At one λ for all lie the corners of their convex hull. Where a step is dear, as when a whole segment goes from one
    model to another, what lies between the corners spends a budget better than they do. Menu after menu, sums that
    others beat are dropped; of the rest, thousands, those spread evenly stay.
    """
    total, history = np.zeros((2, 1)), []  # cost and error
    for menu in menus:
        sums = total[:, :, None] + menu.share * np.stack([menu.cost, menu.error])[:, None, :]
        sums = sums.reshape(2, -1)
        best = pareto(*sums)
        best = best[np.unique(np.linspace(0, len(best) - 1, _MOST_SUMS).round().astype(int))]
        history.append((best // len(menu.cost), best % len(menu.cost)))
        total = sums[:, best]
    row, columns = np.arange(total.shape[1]), []
    for before, position in reversed(history):
        columns.append(position[row])
        row = before[row]
    steps = spending_steps(menus)
    after = np.searchsorted(steps.total(menus, "cost"), total[0] * (1 + _ROUNDING), side="right") - 1
    return AllocationSteps(np.stack(columns[::-1], axis=1), steps.lam[np.maximum(after, 0)])


def allocate(menus: Sequence[Menu], target: Target) -> Allocation:
    """The policies that meet a target over the whole traffic.

    Raises InfeasibleError where none meets it, with what can be reached.

    Args:
        menus: of each kind of traffic; the shares sum to 1.
        target: as `Frontier.policy` takes it.
    """
    value = target.value
    if not target.is_limit:
        lam = 1 / value if target.name == "error_cost" else value
        positions = (int(np.argmin(menu.judged_error + lam * menu.judged_cost)) for menu in menus)
        return Allocation(tuple(positions), lam)
    sums, budgeted = best_sums(menus), target.name == "budget"
    total = sums.total(menus, "cost" if budgeted else "error")
    reached = np.flatnonzero(total <= value * (1 + _ROUNDING))
    if not reached.size:
        raise InfeasibleError(_out_of_reach(target, float(total.min())))
    if budgeted:
        affordable = np.flatnonzero(total + sums.reserve(menus) <= value * (1 + _ROUNDING))
        reached = affordable if affordable.size else reached[:1]
    row = int(reached[-1] if budgeted else reached[0])
    return Allocation(tuple(map(int, sums.positions[row])), float(sums.lam[row]))


def _out_of_reach(target: Target, best: float) -> str:
    if target.name == "budget":
        return too_dear(target.value, best)
    return f"no policies of the segments err on {target.value:.3%} or less; the best err on {best:.3%}"
