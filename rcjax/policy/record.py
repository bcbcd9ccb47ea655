"""What a policy or a fitted model records of how it came about, checked where rcjax reads it. Standard library only.

A provenance may hold any JSON values, and people edit files by hand: what rcjax itself reads there must be as rcjax
writes it. ValueError names the place of what is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rcjax._base import json_checks as check
from rcjax.policy.targets import SecondsLimit

if TYPE_CHECKING:
    from rcjax.policy.policy import AnyPolicy, Policy

P = TypeVar("P", bound="AnyPolicy")

SEARCHES = ("selected", "minimised", "all", "full", "adaptive")


CHAINS = ("exact", "paper")


_METHODS, _CRITERIA = ("tau", "likelihood"), ("aic", "cv")


_TARGETS = ("budget", "max_error", "error_cost", "lam")


_TUNING = "provenance.tuning"


def tuning_record(policy: AnyPolicy) -> dict[str, Any]:
    """How a policy was tuned: the entries of its `provenance["tuning"]`, as far as they are there.

    `target`, `models`, `search` (a word, or the cascades), `chain`, `fit`, `bands`, `abstain_price`, `judged`,
    `prices`, `max_seconds` (a `SecondsLimit`); with `confidence`, that of its guarantee, None where there is none, and
    `second_cost` where costs count waiting.

    >>> from rcjax.policy.policy import Calibration, Policy, Rule
    >>> parts = {"small": Calibration("none", 0, 1, -9, 0)}, {"small": [Rule(1, "answer")]}, {"small": 1e-5}
    >>> tuning_record(Policy(("small",), *parts, provenance={"tuning": {"target": {"lam": 300}}}))
    {'target': {'lam': 300.0}, 'confidence': None}
    >>> tuning_record(Policy(("small",), *parts, provenance={"tuning": {"target": {"foo": 1}}}))
    Traceback (most recent call last):
    ...
    ValueError: provenance.tuning.target: this rcjax knows budget, ... only, but it is 'foo'
    """
    tuning = _tuning(policy.provenance, _TUNING)
    confidence = _confidence(policy.provenance)
    names = check.names(tuning["models"], f"{_TUNING}.models") if "models" in tuning else tuple(policy.models)
    checks = {
        "target": _target,
        "models": check.names,
        "search": partial(search_record, models=names),
        "chain": lambda value, where: check.choice(value, CHAINS, where),
        "fit": fit_record,
        "bands": check.flag,
        "abstain_price": partial(check.optional, check=check.amount),
        "judged": check.flag,
        "prices": partial(check.optional, check=prices_record),
        "max_seconds": _limit,
    }
    record = {name: read(tuning[name], f"{_TUNING}.{name}") for name, read in checks.items() if name in tuning}
    record["confidence"] = confidence
    price, _ = recorded_waiting(policy.provenance)
    return record | ({"second_cost": price} if price else {})


def with_record(policy: P, **entries: Any) -> P:
    """The same policy, each part of which has these entries, JSON values, in the record of its tuning besides."""

    def recording(part: Policy) -> Policy:
        tuning = {**part.provenance.get("tuning", {}), **entries}
        return dataclasses.replace(part, provenance={**part.provenance, "tuning": tuning})

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


def search_record(value: Any, where: str, models: Sequence[str]) -> str | tuple[tuple[str, ...], ...]:
    """A search as a frontier keeps it: a word, or a list of cascades of the models."""
    if isinstance(value, str):
        return check.choice(value, SEARCHES, where)
    return check.sequence(value, where, partial(check.names_among, allowed=models))


def fit_record(value: Any, where: str) -> dict[str, Any]:
    """Options of `rcjax.fit`: `copula`, a name or a list of names, and `method` or `criterion`."""
    checks = {
        "copula": _families,
        "method": lambda value, at: check.choice(value, _METHODS, at),
        "criterion": lambda value, at: check.choice(value, _CRITERIA, at),
    }
    options = check.items(value, where, check.as_it_is)
    for name in options:
        check.choice(name, tuple(checks), where)
    return {name: checks[name](value, f"{where}.{name}") for name, value in options.items()}


def prices_record(value: Any, where: str) -> Mapping[str, Mapping[str, float]]:
    """Money per million tokens: an input and an output price by model."""
    return check.items(value, where, partial(check.by_name, keys=("input", "output"), check=check.amount))


def _tuning(provenance: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    return check.items(provenance.get("tuning", {}), where, check.as_it_is)


def _confidence(provenance: Mapping[str, Any]) -> float | None:
    guarantee = check.items(provenance.get("guarantee", {}), "provenance.guarantee", check.as_it_is)
    if "confidence" not in guarantee:
        return None
    return _inner(guarantee["confidence"], "provenance.guarantee.confidence")


def _inner(value: Any, where: str) -> float:
    """A probability that is neither 0 nor 1."""
    probability = check.share(value, where)
    check.require(0 < probability < 1, where, "must lie between 0 and 1", value)
    return probability


def _target(value: Any, where: str) -> dict[str, float]:
    """None of the targets of `Frontier.policy`, or one."""
    entries = check.items(value, where, check.as_it_is)
    for name in entries:
        check.choice(name, _TARGETS, where)
    check.require(len(entries) <= 1, where, "must be one target", list(entries))
    kinds = {"error_cost": check.positive}
    return {name: kinds.get(name, check.amount)(value, f"{where}.{name}") for name, value in entries.items()}


def _limit(value: Any, where: str) -> SecondsLimit:
    try:
        return SecondsLimit.of(value)
    except ValueError:
        check.require(False, where, "must be a number of seconds, or such as 'p95=4'", value)
        raise


def _families(value: Any, where: str) -> str | list[str]:
    return value if isinstance(value, str) and value else list(check.sequence(value, where, check.name))
