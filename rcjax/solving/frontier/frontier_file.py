"""The file of a frontier: its points as records, its intervals, and its model."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
import numpy as np

from rcjax._base.codec import (
    Amount,
    Between,
    Names,
    Positive,
    Record,
    check_fields,
    check_header,
    load_json,
    not_empty,
    prefix_place,
    read_value,
    require,
    require_subset,
)
from rcjax.policy.decisions import Agreement, Table, require_agreements, require_rules
from rcjax.policy.spec import Spec
from rcjax.solving.frontier.frontier import FORMAT, Frontier, make_frontier
from rcjax.solving.frontier.points import (
    ABSTAIN,
    NEVER_ANSWER,
    Bands,
    LossTerms,
    Points,
    PointStatus,
    Policies,
    Seconds,
    policies_from_rules,
    rules_of_policy,
)

_INTERVALS = ("error_interval", "cost_interval", "abstention_interval")
_QUADRATURE_MARGIN = 1e-4  # distance by which quadrature may put a share of the queries outside [0, 1]

_Expected = Annotated[float, Between(-_QUADRATURE_MARGIN, 1 + _QUADRATURE_MARGIN)]


def _ordered(ends: tuple[float, float], where: str) -> tuple[float, float]:
    require(ends[0] <= ends[1], where, "must have its lower end first", ends)
    return ends


_Interval = Annotated[tuple[float, float], _ordered]


@dataclasses.dataclass(frozen=True)
class PointFile(Record):
    """A point of a frontier: its figures, and its policy as in the file of a policy."""

    lam: Annotated[Amount, lambda value, where: value if value == 0 else read_value(Positive, value, where)]
    cost: Amount
    error: _Expected
    status: Annotated[int, Between(0, max(PointStatus))]
    models: Names
    rules: Mapping[str, Table]
    abstention: _Expected | None = None
    agreements: Mapping[str, Agreement] = dataclasses.field(default_factory=dict)
    error_interval: _Interval | None = None
    cost_interval: _Interval | None = None
    abstention_interval: _Interval | None = None
    seconds: Amount | None = None
    seconds_p95: Amount | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        require_agreements(self.agreements, "agreements", self.models)
        require_rules(self.rules, "rules", self.models)


@dataclasses.dataclass(frozen=True)
class BandsFile(Record):
    """The level and the number of replicates of the intervals."""

    level: Annotated[float, Between(1e-9, 1 - 1e-9)]
    replicates: Annotated[int, Between(1, 10**15)]


@dataclasses.dataclass(frozen=True)
class FrontierFile(Record):
    """The file of a frontier, without its model."""

    models: Names
    frontier: Annotated[tuple[PointFile, ...], not_empty]
    bands: BandsFile | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        first = self.frontier[0]
        first_values = {name: getattr(first, name) for name in ("abstention", "abstention_interval")}
        first_values |= {"error_interval": self.bands, "cost_interval": self.bands}
        for row, point in enumerate(self.frontier):
            require_subset(point.models, f"frontier[{row}].models", self.models)
            for name, other in first_values.items():
                requirement = "must be there in all points or in none, and intervals where there are bands"
                value = getattr(point, name)
                require((value is None) == (other is None), f"frontier[{row}].{name}", requirement, value)


def load_frontier(path: str | os.PathLike[str]) -> Frontier:
    """Read a frontier that `Frontier.save` wrote.

    Raises ValueError (file, place, problem) if the file is not valid; OSError if it cannot be read.
    """
    return load_json(path, frontier_from_json)


def frontier_from_json(data: Any) -> Frontier:
    """Build a frontier from the object of `Frontier.to_json`, ignoring unknown keys; ValueError if it is invalid."""
    check_header(data, FORMAT)
    file: FrontierFile = read_value(FrontierFile, data, "")
    with prefix_place("model"):
        from rcjax.model.cascade_model import fitted_from_json  # a frontier by labels needs no copulas

        model = fitted_from_json(data.get("model"))
    require(file.models == model.models, "models", f"must be the model's, {list(model.models)}", file.models)
    points, spec = file.frontier, Spec.from_json(data, "")
    policies = policies_from_rules([model.models] * len(file.frontier), file.frontier)
    if spec.cascade != "adaptive":
        policies = _as_cascades(policies)
        for row, point in enumerate(points):
            is_same = rules_of_policy(model.models, policies, row, "text")["rules"] == point.rules
            requirement = "must abstain, ask the next model, then answer, where the search is not adaptive"
            require(is_same, f"frontier[{row}].rules", requirement, dict(point.rules))
    lam, status, *expected = _columns(points, "lam", "status", "error", "cost", "abstention")
    frontier = make_frontier(
        model,
        Points(lam, status.astype(int), LossTerms(*map(np.nan_to_num, expected)), policies),
        spec,
        next((agreement.compare for point in points for agreement in point.agreements.values()), None),
    )
    seconds = Seconds(*_columns(points, "seconds", "seconds_p95"))
    bands = None
    if file.bands is not None:
        error, cost, abstention = jax.device_put(_columns(points, *_INTERVALS))
        abstention = None if points[0].abstention_interval is None else abstention
        bands = Bands(error, cost, **vars(file.bands), abstention=abstention)
    known = not np.isnan(seconds.mean).all()
    return dataclasses.replace(frontier, seconds=seconds if known else None, bands=bands)


def _columns(points: Sequence[PointFile], *names: str) -> list[np.ndarray]:
    """Collect figures of the points as arrays (L, …); NaN for None."""
    return [np.array([getattr(point, name) for point in points], float) for name in names]


def _as_cascades(policies: Policies) -> Policies:
    """Convert policies whose models abstain, then ask the next model, then answer, to cascades."""
    itself = np.arange(policies.members.shape[-1])[:, None]
    used = (np.diff(policies.bounds, axis=-1, prepend=0.0) > 0) & policies.members[..., None]
    thresholds, abstain_thresholds = (
        np.where(used & chosen, policies.bounds, 0.0).max(-1)
        for chosen in (policies.actions != itself, policies.actions == ABSTAIN)
    )
    thresholds = np.where(policies.members, thresholds, NEVER_ANSWER)
    abstain_thresholds = abstain_thresholds if abstain_thresholds.any() else None
    return Policies.from_cascades(thresholds, policies.members, abstain_thresholds, agreements=policies.agreements)
