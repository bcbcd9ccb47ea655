"""The points of a frontier as JSON values."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from rcjax._base import json_checks as check
from rcjax._base.codec import read
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.points import Points, PointStatus
from rcjax.frontier.policies import NEVER_ANSWER, NEVER_REFUSE, Agreements, Policies
from rcjax.frontier.rule_arrays import _action_from_json, _rule_to_json, agreement_to_json, agreements_of, rules
from rcjax.policy.rules import Agreement, Table, check_agreements, check_rules

_LOOSE = 1e-4


_FIGURES = {"lam": float, "cost": float, "error": float, "status": int}


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


def _point_to_json(names: tuple[str, ...], arrays: Mapping[str, Any], index: int) -> dict[str, Any]:
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
        columns = [arrays[name][index] for name in ("bounds", "actions")]
        tables = {names[j]: rules(names, j, *(column[j] for column in columns)) for j in members}
        data["rules"] = {name: [_rule_to_json(rule) for rule in table] for name, table in tables.items()}
    compared = agreements_of(names, arrays.get("agreements"), index, "text")
    if compared:
        data["agreements"] = {name: agreement_to_json(agreement) for name, agreement in compared.items()}
    return data


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
    if any(point["agreements"] for point in checked):
        policies = dataclasses.replace(policies, agreements=_agreements_from_json(names, checked))
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
        checks["rules"] = lambda value, at: check_rules(read(Mapping[str, Table], value, at), at, models)
    else:
        by_model = partial(check.by_name, keys=models, check=check.share)
        checks |= {"thresholds": by_model, **({"refusals": by_model} if "refusals" in data else {})}
    point: dict[str, Any] = {"models": models}
    point["agreements"] = read(Mapping[str, Agreement], data.get("agreements", {}), f"{where}.agreements")
    check_agreements(point["agreements"], f"{where}.agreements", models)
    point |= {name: read(data.get(name), f"{where}.{name}") for name, read in checks.items()}
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


def _by_model(names: tuple[str, ...], points: tuple[dict[str, Any], ...], kind: str, otherwise: float) -> np.ndarray:
    """(L, k) thresholds or refusals, from JSON values."""
    values = np.full((len(points), len(names)), otherwise)
    for row, point in enumerate(points):
        for name, value in point[kind].items():
            values[row, names.index(name)] = value
    return values


def _agreements_from_json(names: tuple[str, ...], points: tuple[dict[str, Any], ...]) -> Agreements:
    agreements = Agreements.none((len(points), len(names)))
    for row, point in enumerate(points):
        for name, one in point["agreements"].items():
            agreements.earlier[row, names.index(name)] = names.index(one.earlier)
            agreements.differ[row, names.index(name)] = names.index(one.model)
    return agreements


def _intervals_from_json(names: tuple[str, ...], points: tuple[dict[str, Any], ...]) -> tuple[np.ndarray, ...]:
    """(bounds, actions), (L, k, R) each."""
    width = max(len(table) for point in points for table in point["rules"].values())
    bounds = np.ones((len(points), len(names), width))
    actions = np.broadcast_to(np.arange(len(names))[:, None], bounds.shape).copy()
    for row, point in enumerate(points):
        for name, table in point["rules"].items():
            j = names.index(name)
            bounds[row, j, : len(table)] = [rule.up_to for rule in table]
            actions[row, j, : len(table)] = [_action_from_json(names, j, rule) for rule in table]
    return bounds, actions
