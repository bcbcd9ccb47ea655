"""Read the provenance of a policy or of a fitted model, and check the entries. Standard library only.

A provenance may hold any JSON values, and people edit files by hand. The entries that rcjax reads must be as rcjax
writes them; ValueError names the place of a damaged entry.
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


def _check_prices(prices: Mapping[str, float], where: str) -> Mapping[str, float]:
    return keyed(prices, where, [name for name in PRICES if name in (*PRICES[:2], *prices)])


#: Dollars per million tokens by model: prices of input and output, and optionally of cache reads and writes.
Prices = Mapping[str, Annotated[Mapping[str, Amount], _check_prices]]


@dataclasses.dataclass(frozen=True)
class _AskingRecord(Record):
    """The record of how a model was asked, as far as rcjax reads it."""

    signal: str
    options: Object = dataclasses.field(default_factory=dict)
    prices: Annotated[Mapping[str, Amount], _check_prices] | None = None
    requests: Names | None = None


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The record of how a policy was tuned."""

    spec: Spec
    """Recorded options. Without a recorded target, the target is the policy's λ, if it is known."""
    models: tuple[str, ...]
    """Names of all models that the tuning could choose from."""
    prices: Mapping[str, Mapping[str, float]] | None
    """Prices of tokens, as `read_log` takes them; None if none were recorded."""

    def within(self, names: tuple[str, ...]) -> Tuning:
        """Return the record for a log that holds only the named models; entries with other models are left out."""
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
        """Whether a search has a choice: at least two models, and cascades of them."""
        return len(self.models) > 1 and self.spec.cascade != ()


def recorded_tuning(policy: AnyPolicy) -> Tuning:
    """Read how a policy or ladder was tuned.

    A policy made by hand counts as tuned by the defaults of `rcjax tune`, among its own models.

    >>> from rcjax.policy import Calibration, Policy, Rule
    >>> parts = {"small": Calibration("none", 0, 1, -9, 0)}, {"small": [Rule(1, "answer")]}, {"small": 1e-5}
    >>> recorded_tuning(Policy(("small",), *parts, provenance={"tuning": {"lam": 300}})).spec.target
    {'lam': 300.0}
    >>> recorded_tuning(Policy(("small",), *parts, provenance={"tuning": {"lam": "x"}}))
    Traceback (most recent call last):
    ...
    ValueError: provenance.tuning.lam: must be a number, but it is 'x'
    """
    record = policy.tuning
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
    """Read the prices of all models that a policy was chosen from, by model, in dollars per million tokens."""
    record = policy.tuning
    return dict(read(Prices | None, record.get("prices"), f"{_TUNING}.prices") or {})


def recorded_asked(policy: AnyPolicy) -> dict[str, dict[str, Any]]:
    """Read how each model was asked for the log that a policy was tuned on.

    Returns, by model, `signal` with its entries, `options`, `prices`, and the forms of the `requests`; nothing if the
    log did not record them. Raises ValueError for entries that rcjax does not write.
    """
    records = policy.provenance.get("asked", {})
    read(Mapping[str, _AskingRecord], records, "provenance.asked")
    return written(records)


def recorded_count(provenance: Mapping[str, Any], name: str, default: int) -> int:
    """Read a number of queries from a provenance; the default if the entry is missing."""
    return read(int, provenance[name], f"provenance.{name}") if name in provenance else default
