"""What a policy or a fitted model records of how it came about, checked where rcjax reads it. Standard library only.

A provenance may hold any JSON values, and people edit files by hand: what rcjax itself reads there must be as rcjax
writes it. ValueError names the place of what is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from rcjax._base.codec import Amount, Names, Object, Record, keyed, read, written
from rcjax._base.tokens import PRICES
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.spec import Spec, read_search

_TUNING = "provenance.tuning"


def _of_tokens(prices: Mapping[str, float], where: str) -> Mapping[str, float]:
    return keyed(prices, where, [name for name in PRICES if name in (*PRICES[:2], *prices)])


#: Money per million tokens by model: prices of input and output, and perhaps of what a cache gives and takes.
Prices = Mapping[str, Annotated[Mapping[str, Amount], _of_tokens]]


@dataclasses.dataclass(frozen=True)
class _Asked(Record):
    """What rcjax itself reads of how a model was asked."""

    signal: str
    options: Object = dataclasses.field(default_factory=dict)
    prices: Annotated[Mapping[str, Amount], _of_tokens] | None = None
    requests: Names | None = None


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How a policy was tuned."""

    spec: Spec
    """Its target is that recorded, or the policy's own λ where none is known, and none if that is not known."""
    models: tuple[str, ...]
    """All models that there were to choose from."""
    prices: Mapping[str, Mapping[str, float]] | None
    """Of tokens, as `read_log` takes them; None if none were recorded."""

    def within(self, names: tuple[str, ...]) -> Tuning:
        """The same for a log that holds some of the models only."""
        models, cascade = tuple(name for name in self.models if name in names), self.spec.cascade
        if isinstance(cascade, tuple):
            cascade = tuple(path for path in cascade if set(path) <= set(models))
        today = self.spec.today
        if today is not None and not {*(today.models if isinstance(today, AnyPolicy) else (today,))} <= {*names}:
            today = None
        spec = dataclasses.replace(self.spec, cascade=cascade, today=today)
        return dataclasses.replace(self, models=models, spec=spec)

    @property
    def searches(self) -> bool:
        """Whether there are two models, and cascades of them, to search among."""
        return len(self.models) > 1 and self.spec.cascade != ()


def recorded_tuning(policy: AnyPolicy) -> Tuning:
    """How a policy or ladder was tuned; for one made by hand, among its own models as `rcjax tune` does by default.

    >>> from rcjax.policy import Calibration, Policy, Rule
    >>> parts = {"small": Calibration("none", 0, 1, -9, 0)}, {"small": [Rule(1, "answer")]}, {"small": 1e-5}
    >>> recorded_tuning(Policy(("small",), *parts, provenance={"tuning": {"lam": 300}})).spec.target
    {'lam': 300.0}
    >>> recorded_tuning(Policy(("small",), *parts, provenance={"tuning": {"lam": "x"}}))
    Traceback (most recent call last):
    ...
    ValueError: provenance.tuning.lam: must be a number, but it is 'x'
    """
    record = read(Object, policy.provenance.get("tuning", {}), _TUNING)
    models = read(Names, record["models"], f"{_TUNING}.models") if "models" in record else tuple(policy.models)
    spec = Spec.from_json(record, _TUNING)
    if isinstance(spec.cascade, tuple):
        read_search(spec.cascade, f"{_TUNING}.cascade", models)
    lam = None if spec.target else policy.expected.get("lam")
    known: dict[str, Any] = {} if lam is None else {"lam": lam}
    known |= next(({"transform": one.transform} for one in policy.calibrations.values()), {})
    known |= {"follows": policy.follows or policy.budget is None, "period": policy.period}
    return Tuning(dataclasses.replace(spec, **known), models, recorded_prices(policy) or policy.prices)


def recorded_prices(policy: AnyPolicy) -> dict[str, Mapping[str, float]]:
    """Money per million tokens of all models that a policy was chosen from; by model."""
    record = read(Object, policy.provenance.get("tuning", {}), _TUNING)
    return dict(read(Prices | None, record.get("prices"), f"{_TUNING}.prices") or {})


def recorded_asked(policy: AnyPolicy) -> dict[str, dict[str, Any]]:
    """How each model was asked for the log that a policy was tuned on: `signal` with its entries, `options`, `prices`,
    and the forms of the `requests`.

    Empty where the log did not tell. Raises ValueError for what rcjax does not write.
    """
    records = policy.provenance.get("asked", {})
    read(Mapping[str, _Asked], records, "provenance.asked")
    return written(records)


def recorded_count(provenance: Mapping[str, Any], name: str, default: int) -> int:
    """A number of queries that a provenance tells, or the default where it tells none."""
    return read(int, provenance[name], f"provenance.{name}") if name in provenance else default
