"""Points of a frontier in their three forms: arrays, rules of a policy, JSON values; and the hull of points."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from rcjax import _checks as check
from rcjax._frontier_points import Points
from rcjax._outcomes import Outcomes
from rcjax._point_status import PointStatus
from rcjax._policies import ABSTAIN, NEVER_ANSWER, NEVER_REFUSE, Policies
from rcjax.policy import Rule, check_rules

_LOOSE = 1e-4
_FIGURES = {"lam": float, "cost": float, "error": float, "status": int}


def cascade_names(members: Any, models: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The names of the models of each of C cascades, from their members (C, k).

    >>> cascade_names(np.array([[True, False], [True, True]]), ("small", "large"))
    (('small',), ('small', 'large'))
    """
    return tuple(tuple(models[j] for j in np.flatnonzero(row)) for row in np.asarray(members))


def pareto(cost: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Places of the points that no other beats in both, by rising cost and falling error; of equal ones, the first.

    What is not finite has no say.

    >>> pareto(np.array([3.0, 1.0, 2.5, 9.0]), np.array([0.1, 0.5, 0.4, 0.3])).tolist()
    [1, 2, 0]
    """
    order = np.lexsort((error, cost))
    order = order[np.isfinite(cost + error)[order]]
    least = np.minimum.accumulate(np.append(np.inf, error[order]))[:-1]
    return order[error[order] < least]


def lower_hull(cost: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Places of the corners of the lower convex hull, by rising cost and falling error; what is not finite has no say.

    Each corner is best at some price of cost against error (the monotone chain of Andrew 1979).

    >>> lower_hull(np.array([3.0, 1.0, 2.0, 9.0]), np.array([0.1, 0.5, 0.2, 0.3])).tolist()
    [1, 2, 0]
    """
    corners: list[int] = []
    for place in pareto(cost, error).tolist():
        while len(corners) > 1 and _above(corners[-1], corners[-2], place, cost, error):
            corners.pop()
        corners.append(place)
    return np.array(corners, int)


def meet(values: np.ndarray, target: float) -> tuple[list[int], list[float]]:
    """Places in values, which rise, and the weights with which they average to a target of at least the first.

    Two neighbours, or one place where a value is the target (to 1e-9 of it) or none is above it.

    >>> meet(np.array([1.0, 2.0, 6.0]), 3.0), meet(np.array([1.0, 2.0, 6.0]), 2.0), meet(np.array([1.0]), 9.0)
    (([1, 2], [0.75, 0.25]), ([1], [1.0]), ([0], [1.0]))
    """
    above = int(np.searchsorted(values, target * (1 + 1e-9), side="right"))
    if above == len(values) or values[above - 1] >= target * (1 - 1e-9):
        return [above - 1], [1.0]
    share = float((target - values[above - 1]) / (values[above] - values[above - 1]))
    return [above - 1, above], [1 - share, share]


def _above(middle, left, right, x, y):
    """Whether a point lies on or above the line between its neighbours."""
    return (x[middle] - x[left]) * (y[right] - y[left]) <= (x[right] - x[left]) * (y[middle] - y[left])


def rules(names: tuple[str, ...], j: int, bounds: np.ndarray, actions: np.ndarray) -> tuple[Rule, ...]:
    """Intervals (R,) of model j as rules, neighbours with the same action merged, empty ones left out.

    >>> rules(("small", "large"), 0, np.array([0.4, 0.4, 0.7, 1.0]), np.array([1, 0, 1, 0]))
    (Rule(up_to=0.7, action='ask', model='large'), Rule(up_to=1.0, action='answer', model=None))
    """
    found: list[Rule] = []
    start = 0.0
    for end, action in zip(np.asarray(bounds, float), np.asarray(actions), strict=True):
        if end <= start:
            continue
        here = _rule(names, j, float(end), int(action))
        if found and (found[-1].action, found[-1].model) == (here.action, here.model):
            found.pop()
        found.append(here)
        start = end
    return tuple(found)


def _rule(names, j, end, action):
    if action == ABSTAIN:
        return Rule(end, "abstain")
    return Rule(end, "answer") if action == j else Rule(end, "ask", names[action])


def points_to_json(names: tuple[str, ...], arrays: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The points as JSON values, from the arrays of a frontier over the named models; `points_from_json` undoes it.

    >>> policies = Policies.of_cascades(np.array([[0.7, 0.0]]), np.array([[True, True]]))
    >>> arrays = {"lam": [9.0], "cost": [0.1], "error": [0.2], "status": [0]} | vars(policies)
    >>> points = points_to_json(("small", "large"), arrays)
    >>> points
    [{'lam': 9.0, 'cost': 0.1, 'error': 0.2, 'status': 0, 'models': ['small', 'large'],
      'thresholds': {'small': 0.7, 'large': 0.0}}]
    >>> bool((points_from_json(("small", "large"), points).policies.bounds == policies.bounds).all())
    True
    """
    return [_point_to_json(names, arrays, index) for index in range(len(arrays["lam"]))]


def _point_to_json(names, arrays, index):
    members = np.flatnonzero(arrays["members"][index]).tolist()
    data: dict[str, Any] = {name: kind(arrays[name][index]) for name, kind in _FIGURES.items()}
    if arrays.get("abstention") is not None:
        data["abstention"] = float(arrays["abstention"][index])
    data["models"] = [names[j] for j in members]
    if arrays["thresholds"] is not None:
        for name in ("thresholds", "refusals"):
            if arrays.get(name) is not None:
                data[name] = {names[j]: float(arrays[name][index, j]) for j in members}
    else:
        found = {names[j]: rules(names, j, arrays["bounds"][index, j], arrays["actions"][index, j]) for j in members}
        data["rules"] = {name: [_rule_to_json(rule) for rule in each] for name, each in found.items()}
    return data


def _rule_to_json(rule):
    asked = {} if rule.model is None else {"model": rule.model}
    return {"up_to": rule.up_to, "action": rule.action, **asked}


def points_from_json(names: tuple[str, ...], points: Any) -> Points:
    """The arrays of a frontier over the named models, from its points as JSON values: the inverse of `points_to_json`.

    Either all points have thresholds or all have rules. ValueError names the place of what cannot be right.
    """
    checked = check.sequence(points, "frontier", partial(_point, names=names))
    for name in ("rules", "refusals", "abstention"):
        for row, point in enumerate(checked):
            alike = (name in point) == (name in checked[0])
            check.require(alike, f"frontier[{row}].{name}", "must be there in all points or in none", point.get(name))
    members = np.array([[name in point["models"] for name in names] for point in checked])
    if "rules" in checked[0]:
        bounds, actions = _intervals_from_json(names, checked)
        policies = Policies(members.argmax(1), bounds, actions, members)
    else:
        thresholds = _by_model(names, checked, "thresholds", NEVER_ANSWER)
        refusals = _by_model(names, checked, "refusals", NEVER_REFUSE) if "refusals" in checked[0] else None
        policies = Policies.of_cascades(thresholds, members, refusals)
    figures = {name: np.array([point[name] for point in checked]) for name in _FIGURES}
    refused = np.array([point.get("abstention", 0.0) for point in checked])
    expected = Outcomes(figures["error"], figures["cost"], refused)
    return Points(figures["lam"], figures["status"], expected, policies)


def _point(value: Any, where: str, names: tuple[str, ...]) -> dict[str, Any]:
    """A point of a frontier as JSON values, checked, with `Rule`s in place of theirs."""
    data = check.items(value, where, check.as_it_is)
    models = check.names_among(data.get("models"), f"{where}.models", names)
    checks: dict[str, Any] = {"lam": _price, "cost": check.amount, "error": _expected, "status": _status}
    if "abstention" in data:
        checks["abstention"] = _expected
    if "rules" in data:
        checks["rules"] = partial(check_rules, models=models)
    else:
        by_model = partial(check.by_name, known=models, check=check.share)
        checks |= {"thresholds": by_model, **({"refusals": by_model} if "refusals" in data else {})}
    point: dict[str, Any] = {"models": models}
    point |= {name: each(data.get(name), f"{where}.{name}") for name, each in checks.items()}
    for name, refused in point.get("refusals", {}).items():
        at = f"{where}.refusals[{name!r}]"
        check.require(refused <= point["thresholds"][name], at, "must be at most the threshold", refused)
    return point


def _price(value: Any, where: str) -> float:
    """λ: 0, or a number that has an inverse."""
    return 0.0 if type(value) in (int, float) and value == 0 else check.positive(value, where)


def _expected(value: Any, where: str) -> float:
    """A share of the queries, which sums over nodes may put outside [0, 1] by a little."""
    return check.number(value, where, -_LOOSE, 1 + _LOOSE)


def _status(value: Any, where: str) -> int:
    return check.whole(value, where, high=max(PointStatus))


def _by_model(names, points, kind, otherwise):
    """(L, k) thresholds or refusals, from JSON values."""
    values = np.full((len(points), len(names)), otherwise)
    for row, point in enumerate(points):
        for name, value in point[kind].items():
            values[row, names.index(name)] = value
    return values


def _intervals_from_json(names, points):
    width = max(len(each) for point in points for each in point["rules"].values())
    bounds = np.ones((len(points), len(names), width))
    actions = np.broadcast_to(np.arange(len(names))[:, None], bounds.shape).copy()
    for row, point in enumerate(points):
        for name, each in point["rules"].items():
            j = names.index(name)
            bounds[row, j, : len(each)] = [rule.up_to for rule in each]
            actions[row, j, : len(each)] = [_action_from_json(names, j, rule) for rule in each]
    return bounds, actions


def _action_from_json(names, j, rule):
    if rule.action == "abstain":
        return ABSTAIN
    return j if rule.action == "answer" else names.index(rule.model)
