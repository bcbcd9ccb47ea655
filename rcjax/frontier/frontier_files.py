"""Frontiers read from their files."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from rcjax._base import json_checks as check
from rcjax._base.codec import read
from rcjax.frontier.bands import Bands
from rcjax.frontier.frontier import FORMAT, Frontier, make_frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.point_files import FrontierFile, PointFile
from rcjax.frontier.points import Points
from rcjax.frontier.policies import ABSTAIN, NEVER_ANSWER, NEVER_REFUSE, Agreements, Policies
from rcjax.frontier.waiting_times import Seconds
from rcjax.model.cascade_model import fitted_from_json
from rcjax.policy.rules import Rule


def load_frontier(path: str | os.PathLike[str]) -> Frontier:
    """Read a frontier that `Frontier.save` wrote.

    Raises ValueError (file, place, problem) where it is not valid, OSError where it cannot be read.
    """
    return check.load(path, frontier_from_json)


def frontier_from_json(data: Any) -> Frontier:
    """A frontier from the object of `Frontier.to_json`; unknown keys are ignored, problems a ValueError."""
    check.header(data, FORMAT)
    file: FrontierFile = read(FrontierFile, data, "")
    with check.inside("model"):
        model = fitted_from_json(data.get("model"))
    check.require(file.models == model.models, "models", f"must be the model's, {list(model.models)}", file.models)
    frontier = make_frontier(
        model,
        _points(model.models, file.frontier),
        search=file.search,
        chain=file.chain,
        abstain_price=file.abstain_price,
        compare=file.compare,
    )
    bands = None if file.bands is None else _bands(file)
    return dataclasses.replace(frontier, seconds=_seconds(file.frontier), bands=bands)


def _bands(file: FrontierFile) -> Bands:
    head, points = vars(file.bands), file.frontier
    error, cost = (
        jnp.asarray([getattr(point, name) for point in points]) for name in ("error_interval", "cost_interval")
    )
    refused = [point.abstention_interval for point in points if point.abstention_interval is not None]
    return Bands(error, cost, **head, abstention=jnp.asarray(refused) if refused else None)


def _seconds(points: Sequence[PointFile]) -> Seconds | None:
    known = np.array([[point.seconds, point.seconds_p95] for point in points], float)  # None is NaN
    return None if np.isnan(known).all() else Seconds(*known.T)


def _points(models: tuple[str, ...], points: Sequence[PointFile]) -> Points:
    """The arrays of a frontier over the named models: the inverse of `points_to_json`."""
    members = np.array([[name in point.models for name in models] for point in points])
    if points[0].rules is not None:
        bounds, actions = _intervals_of(models, [point.rules or {} for point in points])
        policies = Policies(members.argmax(1), bounds, actions, members)
    else:
        thresholds = _by_model(models, [point.thresholds or {} for point in points], NEVER_ANSWER)
        refusals = [point.refusals for point in points if point.refusals is not None]
        refused = _by_model(models, refusals, NEVER_REFUSE) if refusals else None
        policies = Policies.of_cascades(thresholds, members, refused)
    if any(point.agreements for point in points):
        policies = dataclasses.replace(policies, agreements=_agreements_of(models, points))
    lam, status, *expected = (
        np.array([getattr(point, name) or 0 for point in points])
        for name in ("lam", "status", "error", "cost", "abstention")
    )
    return Points(lam, status, Outcomes(*expected), policies)


def _by_model(names: tuple[str, ...], columns: Sequence[Mapping[str, float]], otherwise: float) -> np.ndarray:
    """(L, k) thresholds or refusals."""
    return np.array([[column.get(name, otherwise) for name in names] for column in columns])


def _agreements_of(names: tuple[str, ...], points: Sequence[PointFile]) -> Agreements:
    agreements = Agreements.none((len(points), len(names)))
    for row, point in enumerate(points):
        for name, one in point.agreements.items():
            agreements.earlier[row, names.index(name)] = names.index(one.earlier)
            agreements.differ[row, names.index(name)] = names.index(one.model)
    return agreements


def _intervals_of(names: tuple[str, ...], rules: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, ...]:
    """(bounds, actions), (L, k, R) each."""
    width = max(len(table) for tables in rules for table in tables.values())
    bounds = np.ones((len(rules), len(names), width))
    actions = np.broadcast_to(np.arange(len(names))[:, None], bounds.shape).copy()
    for row, tables in enumerate(rules):
        for name, table in tables.items():
            j = names.index(name)
            bounds[row, j, : len(table)] = [rule.up_to for rule in table]
            actions[row, j, : len(table)] = [_action(names, j, rule) for rule in table]
    return bounds, actions


def _action(names: tuple[str, ...], j: int, rule: Rule) -> int:
    if rule.action == "abstain":
        return ABSTAIN
    return j if rule.action == "answer" else names.index(rule.model)
