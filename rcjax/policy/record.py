"""What a policy or a fitted model records of how it came about, checked where rcjax reads it. Standard library only.

A provenance may hold any JSON values, and people edit files by hand: what rcjax itself reads there must be as rcjax
writes it. ValueError names the place of what is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rcjax._base import json_checks as check
from rcjax._base.tokens import PRICES
from rcjax.policy.spec import Spec, read_search

if TYPE_CHECKING:
    from rcjax.policy.policy import AnyPolicy, Policy

P = TypeVar("P", bound="AnyPolicy")

_TUNING = "provenance.tuning"


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How a policy was tuned."""

    spec: Spec
    """Its target is that recorded, or the policy's own λ where none is known, and none where that is not known."""
    models: tuple[str, ...]
    """All models that there were to choose from."""
    prices: Mapping[str, Mapping[str, float]] | None
    """Of tokens, as `read_log` takes them; None where none were recorded."""

    def within(self, names: tuple[str, ...]) -> Tuning:
        """The same for a log that holds some of the models only."""
        models, cascade = tuple(name for name in self.models if name in names), self.spec.cascade
        if isinstance(cascade, tuple):
            cascade = tuple(path for path in cascade if set(path) <= set(models))
        return dataclasses.replace(self, models=models, spec=dataclasses.replace(self.spec, cascade=cascade))

    @property
    def searches(self) -> bool:
        """Whether there are two models, and cascades of them, to search among."""
        return len(self.models) > 1 and self.spec.cascade != ()


def recorded_tuning(policy: AnyPolicy) -> Tuning:
    """How a policy or ladder was tuned; for one made by hand, among its own models as `rcjax tune` does by default.

    >>> from rcjax.policy.policy import Calibration, Policy, Rule
    >>> parts = {"small": Calibration("none", 0, 1, -9, 0)}, {"small": [Rule(1, "answer")]}, {"small": 1e-5}
    >>> recorded_tuning(Policy(("small",), *parts, provenance={"tuning": {"lam": 300}})).spec.target
    {'lam': 300.0}
    >>> recorded_tuning(Policy(("small",), *parts, provenance={"tuning": {"lam": "x"}}))
    Traceback (most recent call last):
    ...
    ValueError: provenance.tuning.lam: must be a number, but it is 'x'
    """
    record = _tuning(policy.provenance, _TUNING)
    models = check.names(record["models"], f"{_TUNING}.models") if "models" in record else tuple(policy.models)
    spec = Spec.from_json(record, _TUNING)
    if isinstance(spec.cascade, tuple):
        read_search(spec.cascade, f"{_TUNING}.cascade", models)
    lam = None if spec.target else policy.expected.get("lam")
    known: dict[str, Any] = {} if lam is None else {"lam": lam}
    known |= next(({"transform": one.transform} for one in policy.calibrations.values()), {})
    known |= {"follows": policy.follows or policy.budget is None, "period": policy.period}
    known["second_cost"], _ = recorded_waiting(policy.provenance)
    return Tuning(dataclasses.replace(spec, **known), models, recorded_prices(policy) or policy.prices)


def with_spec(policy: P, spec: Spec) -> P:
    """The same policy, each part of which records how it was tuned, beside what its frontier knew of it."""
    return with_provenance(policy, tuning={**spec.to_json(), **policy.provenance.get("tuning", {})})


def with_provenance(policy: P, **entries: Any) -> P:
    """The same policy, each part of which has these entries, JSON values, in its provenance besides."""

    def recording(part: Policy) -> Policy:
        return dataclasses.replace(part, provenance={**part.provenance, **entries})

    return policy._with_parts(recording)


def recorded_waiting(provenance: Mapping[str, Any]) -> tuple[float, Mapping[str, float]]:
    """(what costs of a policy or model count for a second of waiting, what a call costs without by model).

    0 and nothing where costs are money alone. Raises ValueError for what rcjax does not write.

    >>> recorded_waiting({}), recorded_waiting({"waiting": {"second_cost": 0.001, "money": {"small": 1e-5}}})[0]
    ((0.0, {}), 0.001)
    """
    where = "provenance.waiting"
    waiting = check.items(provenance.get("waiting", {}), where, check.as_it_is)
    if not waiting:
        return 0.0, {}
    price = check.amount(waiting.get("second_cost"), f"{where}.second_cost")
    return price, check.items(waiting.get("money"), f"{where}.money", check.amount)


def recorded_prices(policy: AnyPolicy) -> dict[str, Mapping[str, float]]:
    """Money per million tokens of all models that a policy was chosen from; by model."""
    listed = _tuning(policy.provenance, _TUNING).get("prices")
    return dict(check.optional(listed, f"{_TUNING}.prices", prices_record) or {})


def recorded_asked(policy: AnyPolicy) -> dict[str, dict[str, Any]]:
    """How each model was asked for the log that a policy was tuned on: `signal` with its entries, `options`, `prices`.

    Empty where the log did not tell. Raises ValueError for what rcjax does not write.
    """
    records = check.items(policy.provenance.get("asked", {}), "provenance.asked", check.as_it_is)
    asked: dict[str, dict[str, Any]] = {}
    for model, entry in records.items():
        where = f"provenance.asked[{model!r}]"
        record = check.thawed(check.items(entry, where, check.as_it_is))
        check.name(record.get("signal"), f"{where}.signal")
        check.items(record.get("options", {}), f"{where}.options", check.as_it_is)
        if record.get("prices") is not None:
            prices_record({model: record["prices"]}, f"{where}.prices")
        asked[model] = record
    return asked


def recorded_count(provenance: Mapping[str, Any], name: str, default: int) -> int:
    """A number of queries that a provenance tells, or the default where it tells none."""
    return check.whole(provenance[name], f"provenance.{name}") if name in provenance else default


def prices_record(value: Any, where: str) -> Mapping[str, Mapping[str, float]]:
    """Money per million tokens by model: prices of input and output, and perhaps of what a cache gives and takes."""
    return check.items(value, where, _price)


def _price(value: Any, where: str) -> Mapping[str, float]:
    entries = check.amounts(value, where)
    return check.by_name(
        entries, where, keys=[name for name in PRICES if name in (*PRICES[:2], *entries)], check=check.amount
    )


def _tuning(provenance: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    return check.items(provenance.get("tuning", {}), where, check.as_it_is)
