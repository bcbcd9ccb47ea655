"""The points of a frontier as JSON values."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from rcjax._base.codec import (
    Amount,
    Between,
    Checked,
    Filled,
    Names,
    Positive,
    Record,
    Share,
    among,
    check_fields,
    keyed,
    read,
    written,
)
from rcjax._base.json_checks import require
from rcjax.frontier.points import PointStatus
from rcjax.frontier.rule_arrays import agreements_of, rules
from rcjax.frontier.searches import Chain
from rcjax.policy.answers import Comparison
from rcjax.policy.rules import Agreement, Table, check_agreements, check_rules
from rcjax.policy.spec import read_search

_LOOSE = 1e-4  # by which sums over nodes may put a share of the queries outside [0, 1]


_Expected = Annotated[float, Between(-_LOOSE, 1 + _LOOSE)]


def _invertible(value: float, where: str) -> float:
    return value if value == 0 else read(Positive, value, where)


def _ordered(ends: tuple[float, float], where: str) -> tuple[float, float]:
    require(ends[0] <= ends[1], where, "must have its lower end first", ends)
    return ends


_Interval = Annotated[tuple[float, float], Checked(_ordered)]


@dataclasses.dataclass(frozen=True)
class PointFile(Record):
    """A point of a frontier: its figures, and its policy by thresholds or by rules."""

    lam: Annotated[Amount, Checked(_invertible)]
    cost: Amount
    error: _Expected
    status: Annotated[int, Between(0, max(PointStatus))]
    models: Names
    abstention: _Expected | None = None
    thresholds: Mapping[str, Share] | None = None
    refusals: Mapping[str, Share] | None = None
    rules: Mapping[str, Table] | None = None
    agreements: Mapping[str, Agreement] = dataclasses.field(default_factory=dict)
    error_interval: _Interval | None = None
    cost_interval: _Interval | None = None
    abstention_interval: _Interval | None = None
    seconds: Amount | None = None
    seconds_p95: Amount | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_agreements(self.agreements, "agreements", self.models)
        if self.rules is not None:
            check_rules(self.rules, "rules", self.models)
            return
        thresholds = keyed(read(Mapping[str, Share], self.thresholds, "thresholds"), "thresholds", self.models)
        for name, refused in keyed(self.refusals or thresholds, "refusals", self.models).items():
            require(refused <= thresholds[name], f"refusals[{name!r}]", "must be at most the threshold", refused)


def _certain(level: float, where: str) -> float:
    require(0 < level < 1, where, "must lie between 0 and 1", level)
    return level


@dataclasses.dataclass(frozen=True)
class BandsFile(Record):
    """How the intervals of the points were made."""

    level: Annotated[Share, Checked(_certain)]
    replicates: Annotated[int, Between(1, 10**15)]


@dataclasses.dataclass(frozen=True)
class FrontierFile(Record):
    """The file of a frontier, but for its model."""

    models: Names
    search: Annotated[Any, Checked(read_search)]
    chain: Chain
    frontier: Annotated[tuple[PointFile, ...], Filled]
    abstain_price: Amount | None = None
    compare: Comparison | None = None
    bands: BandsFile | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        first = self.frontier[0]
        alike = {name: getattr(first, name) for name in ("rules", "refusals", "abstention", "abstention_interval")}
        alike |= {"error_interval": self.bands, "cost_interval": self.bands}
        for row, point in enumerate(self.frontier):
            among(point.models, f"frontier[{row}].models", self.models)
            for name, other in alike.items():
                what = "must be there in all points or in none, and intervals where there are bands"
                value = getattr(point, name)
                require((value is None) == (other is None), f"frontier[{row}].{name}", what, value)


_FIGURES = {"lam": float, "cost": float, "error": float, "status": int}


def points_to_json(names: tuple[str, ...], arrays: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The points as JSON values, from the arrays of a frontier over the named models; `points_from_json` undoes it.

    >>> policies = Policies.of_cascades(np.array([[0.7, 0.0]]), np.array([[True, True]]))
    >>> arrays = {"lam": [9.0], "cost": [0.1], "error": [0.2], "status": [0]} | vars(policies)
    >>> points = points_to_json(("small", "large"), arrays)
    >>> points
    [{'lam': 9.0, 'cost': 0.1, 'error': 0.2, 'status': 0, 'models': ['small', 'large'],
      'thresholds': {'small': 0.7, 'large': 0.0}}]
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
        data["rules"] = written(tables)
    compared = agreements_of(names, arrays.get("agreements"), index, "text")
    if compared:  # how answers are compared is told for all points
        data["agreements"] = {name: {"earlier": one.earlier, "model": one.model} for name, one in compared.items()}
    return data
