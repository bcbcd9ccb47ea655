"""The policy of a cascade: which model answers, and which one is asked next.

`rcjax tune` writes a policy and a service loads it, with nothing but the standard library:

    policy = load_policy("policy.json")
    model = policy.first
    while isinstance(decision := policy.step(model, logprob=ask(model, query)), Defer):
        model = decision.next_model

Reference: Zellinger & Thomson, "Rational Tuning of LLM Cascades", TMLR 2025, arXiv 2501.09345.
"""

from __future__ import annotations

import json
import math
import os
import reprlib
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

from rcjax._files import write_atomically

__all__ = ["Action", "Answer", "Calibration", "Defer", "Policy", "Rule", "Transform", "load_policy"]

Transform = Literal["choice", "generation", "none"]
Action = Literal["answer", "ask"]
T = TypeVar("T")
Check = Callable[[Any, str], T]  # takes a value and its place in the file, returns the value as it is stored

_FORMAT, _SCHEMA_VERSION = "rcjax-policy", 1
_HUGE = 1e100  # no sum of money or coefficient comes near it, and products of two or three still are finite
_DEEPEST = 50  # levels of nesting in `provenance`, well inside Python's recursion limit
_LOG_2 = math.log(2.0)
_short = reprlib.Repr()  # keeps messages to a line
_short.maxstring = _short.maxother = 80


@dataclass(frozen=True, slots=True)
class Calibration:
    """Raw log-probability → calibrated confidence, the estimated probability of being right.

    A logistic regression on a transformed probability (the paper's section on calibration):
    Φ = 1 / (1 + exp(−(intercept + slope · ξ))), where, with p = exp(logprob), ξ is

    - `"choice"`: log 1/(1−p);
    - `"generation"`: log 1/(1−p) − log 2 for p ≥ ½, and log p + log 2 for p < ½ (antisymmetric, monotone);
    - `"none"`: log p itself.

    `smallest` and `largest`, the extremes of the finite ξ of the training set, stand in for ξ = −∞ and +∞.
    Raises ValueError for an unknown transform, a number that is not finite, or smallest > largest.

    Example:
        >>> calibrate = Calibration("choice", intercept=-1.0, slope=0.5, smallest=0.0, largest=10.0)
        >>> print(f"{calibrate(-0.01):.4f} {calibrate(0.0):.4f}")
        0.7867 0.9820
    """

    transform: Transform
    intercept: float
    slope: float
    smallest: float
    largest: float

    def __post_init__(self) -> None:
        _choice(self.transform, get_args(Transform), "transform")
        for name in ("intercept", "slope", "smallest", "largest"):
            object.__setattr__(self, name, _number(getattr(self, name), name))
        _require(self.smallest <= self.largest, "smallest", "must be at most `largest`", self.smallest)

    def __call__(self, logprob: float) -> float:
        """Return the calibrated confidence in [0, 1] of a log-probability (NaN, above 0: ValueError)."""
        if not logprob <= 0:  # so written, NaN is refused too
            raise ValueError(f"logprob must be at most 0, not {logprob}; clip rounding: min(logprob, 0.0)")
        xi = _transformed(self.transform, float(logprob))
        if math.isinf(xi):
            xi = self.largest if xi > 0 else self.smallest
        return _logistic(self.intercept + self.slope * xi)


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do in one interval of calibrated confidence.

    The interval is closed on the right: from just above the `up_to` of the rule before (for the first rule,
    from 0) to this `up_to`, included. The action is to keep the `"answer"`, or to `"ask"` the model `model`.
    Raises ValueError for an `up_to` outside [0, 1], an unknown action, or a model that does not go with it.

    Example:
        >>> Rule(0.8, "ask", "large")
        Rule(up_to=0.8, action='ask', model='large')
    """

    up_to: float
    action: Action
    model: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "up_to", _number(self.up_to, "up_to", 0.0, 1.0))
        _choice(self.action, get_args(Action), "action")
        fits = self.action == "ask" or self.model is None
        _require(fits, "model", "is for the action 'ask' only", self.model)
        if self.action == "ask":
            _name(self.model, "model")


@dataclass(frozen=True, slots=True)
class Answer:
    """Keep the answer of `model`, whose calibrated confidence is `confidence`."""

    model: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Defer:
    """Ask `next_model`: the calibrated confidence of the model before, `confidence`, is too low."""

    next_model: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy to deploy: immutable, safe to share between threads, equal by value, picklable.

    A model answers or asks a later one by the first of its rules with Φ ≤ `up_to`: with one threshold φ each,
    model j answers where Φ_j > φ_j, as in the paper. What cannot be right raises ValueError with its place.

    Args:
        models: the models that can be asked. The first is asked first; asks only go forward, so a run ends.
        calibrations: raw to calibrated confidence, per model.
        rules: intervals of calibrated confidence per model, `up_to` increasing, the last one 1.
        cost: expected cost of a call per model, in money per query.
        prices: money per million tokens by kind of token (`"input"`, `"output"`), per model, where known.
        expected: what the tuning promised: `"error"`, `"cost"`, `"lam"`, `"error_cost"` (1/lam or None), …
        provenance: where the policy comes from (hash of the data, counts, versions, date, how it was tuned, some of
            the queries that it was tuned on); any JSON values.

    Example:
        >>> calibration = Calibration("choice", intercept=-1.0, slope=0.5, smallest=0.0, largest=10.0)
        >>> policy = Policy(
        ...     models=("small", "large"),
        ...     calibrations={"small": calibration, "large": calibration},
        ...     rules={"small": [Rule(0.7, "ask", "large"), Rule(1, "answer")], "large": [Rule(1, "answer")]},
        ...     cost={"small": 1e-5, "large": 2e-4},
        ... )
        >>> policy.step("small", logprob=-0.01)
        Answer(model='small', confidence=0.786...)
        >>> policy.step("small", confidence=0.6)
        Defer(next_model='large', confidence=0.367...)
    """

    models: tuple[str, ...]
    calibrations: Mapping[str, Calibration]
    rules: Mapping[str, tuple[Rule, ...]]
    cost: Mapping[str, float]
    prices: Mapping[str, Mapping[str, float]] | None = None
    expected: Mapping[str, float | None] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _bounds: Mapping[str, tuple[float, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)  # the class is frozen
        put("models", _sequence(self.models, "models", _name))
        _require(len(set(self.models)) == len(self.models), "models", "must not repeat a model", self.models)
        put("calibrations", _per_model(self, "calibrations", partial(_build, Calibration)))
        put("rules", _per_model(self, "rules", _table))
        for i, model in enumerate(self.models):
            _check_targets(self.rules[model], f"rules[{model!r}]", later=self.models[i + 1 :])
        put("cost", _per_model(self, "cost", _amount))
        put("prices", None if self.prices is None else _items(self.prices, "prices", _amounts))
        put("expected", _items(self.expected, "expected", lambda x, at: x if x is None else _number(x, at)))
        put("provenance", _items(self.provenance, "provenance", _frozen))
        put("_bounds", {model: tuple(rule.up_to for rule in table) for model, table in self.rules.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)  # a MappingProxyType cannot be pickled

    @property
    def first(self) -> str:
        """The model that every query goes to first."""
        return self.models[0]

    @property
    def thresholds(self) -> dict[str, float | None]:
        """The φ of each model that answers where Φ > φ and else defers (1 if it never answers).

        None for a model with other rules: it always answers, as the last one does, or has more intervals.
        """
        single = (["ask"], ["ask", "answer"])
        return {m: t[0].up_to if [r.action for r in t] in single else None for m, t in self.rules.items()}

    def calibrate(self, model: str, *, logprob: float | None = None, confidence: float | None = None) -> float:
        """Return the calibrated confidence Φ in [0, 1] of an answer of `model`.

        Give its raw confidence as in the log: either the natural `logprob` or the probability `confidence`.
        Raises ValueError for an unknown model, both or neither of the two, NaN, or a value out of range.
        """
        if model not in self.calibrations:
            raise ValueError(f"unknown model {model!r}; this policy has {', '.join(self.models)}")
        if logprob is not None and confidence is None:
            return self.calibrations[model](logprob)
        if logprob is not None or confidence is None:
            raise ValueError("give exactly one of logprob and confidence")
        if not 0 <= confidence <= 1:
            raise ValueError(f"confidence must be a probability in [0, 1], not {confidence}")
        return self.calibrations[model](math.log(confidence) if confidence > 0 else -math.inf)

    def step(self, model: str, *, logprob: float | None = None, confidence: float | None = None) -> Answer | Defer:
        """Decide after an answer of `model`: keep it, or ask another. Arguments and errors of `calibrate`."""
        phi = self.calibrate(model, logprob=logprob, confidence=confidence)
        # The first rule with Φ ≤ up_to; there is one, as Φ ≤ 1 and the last rule goes up to 1.
        rule = self.rules[model][bisect_left(self._bounds[model], phi)]
        return Answer(model, phi) if rule.model is None else Defer(rule.model, phi)

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a JSON object, the inverse of `from_json`."""
        return {"format": _FORMAT, "schema_version": _SCHEMA_VERSION} | {
            each.name: _thawed(getattr(self, each.name)) for each in fields(self) if each.init
        }

    @classmethod
    def from_json(cls, data: Any) -> Policy:
        """Build a policy from the object of `to_json`; unknown keys are ignored, problems a ValueError."""
        _require(isinstance(data, Mapping), "file", "must hold a JSON object", data)
        kind, version = data.get("format"), data.get("schema_version")
        _require(kind == _FORMAT, "format", f"must be {_FORMAT!r}, as in every policy", kind)
        _require(type(version) is int and version > 0, "schema_version", "must be a whole number", version)
        if version > _SCHEMA_VERSION:
            known = f"this rcjax reads up to {_SCHEMA_VERSION}: upgrade rcjax"
            raise ValueError(f"schema_version: this file has schema version {version}, {known}")
        return _build(cls, data, "")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to a JSON file at once: who reads it sees the old file or the new one, whole.

        Raises OSError where the file cannot be written; the file that was there is then untouched.
        """
        write_atomically(path, json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy from a file that `save` wrote.

        Raises ValueError (place, problem, what to do) where it is not valid, OSError where it cannot be read.
        """
        content = Path(path).read_bytes()
        try:
            return cls.from_json(_parsed(content))
        except ValueError as problem:
            raise ValueError(f"{os.fspath(path)}: {problem}") from problem


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Read a policy from a file; the same as `Policy.load(path)`."""
    return Policy.load(path)


def _transformed(transform: Transform, logprob: float) -> float:
    if transform == "none":
        return logprob
    if transform == "generation" and logprob < -_LOG_2:
        return logprob + _LOG_2
    wrong = -math.expm1(logprob)  # 1 − p, exact even where p has rounded to 1
    xi = -math.log(wrong) if wrong > 0 else math.inf
    return xi - _LOG_2 if transform == "generation" else xi


def _logistic(x: float) -> float:
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    odds = math.exp(x)  # only ever of a number below 0, which cannot overflow
    return odds / (1.0 + odds)


def _require(condition: bool, where: str, what: str, value: object) -> None:
    if not condition:
        problem = "it is missing or null" if value is None else f"it is {_short.repr(value)}"
        raise ValueError(f"{where}: {what}, but {problem}")


def _number(value: Any, where: str, low: float = -_HUGE, high: float = _HUGE) -> float:
    _require(issubclass(type(value), Real) and type(value) is not bool, where, "must be a number", value)
    exact = value if isinstance(value, int) else float(value)  # 10**400 has no float, 1e100 no float32
    _require(low <= exact <= high, where, f"must be between {low:g} and {high:g}", value)  # NaN is not
    return float(value)


def _name(value: Any, where: str) -> str:
    _require(isinstance(value, str) and value != "", where, "must be a text that is not empty", value)
    return value


def _choice(value: Any, known: tuple[str, ...], where: str) -> None:
    what = f"this rcjax knows {', '.join(known)} only (upgrade it for more)"
    _require(_name(value, where) in known, where, what, value)


def _sequence(value: Any, where: str, check: Check[T]) -> tuple[T, ...]:
    _require(isinstance(value, (list, tuple)) and len(value) > 0, where, "must be a list, not empty", value)
    return tuple(check(each, f"{where}[{i}]") for i, each in enumerate(value))


def _items(value: Any, where: str, check: Check[T]) -> Mapping[str, T]:
    _require(isinstance(value, Mapping), where, "must be an object", value)
    return MappingProxyType({_name(k, where): check(each, f"{where}[{k!r}]") for k, each in value.items()})


_amount = partial(_number, low=0.0)
_amounts = partial(_items, check=_amount)


def _per_model(policy: Policy, name: str, check: Check[T]) -> Mapping[str, T]:
    items = _items(getattr(policy, name), name, check)
    _require(set(items) == set(policy.models), name, f"must have as keys {policy.models}", list(items))
    return MappingProxyType({model: items[model] for model in policy.models})


def _table(value: Any, where: str) -> tuple[Rule, ...]:
    table = _sequence(value, where, partial(_build, Rule))
    ends = [rule.up_to for rule in table]
    _require(all(a < b for a, b in pairwise(ends)), where, "must have its up_to in increasing order", ends)
    _require(ends[-1] == 1.0, where, "must have 1 as its last up_to", ends)
    return table


def _check_targets(table: tuple[Rule, ...], where: str, later: tuple[str, ...]) -> None:
    what = f"must be a later model, one of {later}" if later else "must not be: the last model has to answer"
    for i, rule in enumerate(table):
        _require(rule.model in (None, *later), f"{where}[{i}].model", what, rule.model)


def _frozen(value: Any, where: str, depth: int = 0) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Real):
        number = _number(value, where)
        return int(value) if isinstance(value, Integral) else number
    _require(depth < _DEEPEST, f"{where[:40]}…", f"must not be nested more than {_DEEPEST} deep", value)
    deeper = partial(_frozen, depth=depth + 1)
    if isinstance(value, (list, tuple)):
        return tuple(deeper(each, f"{where}[{i}]") for i, each in enumerate(value))
    _require(isinstance(value, Mapping), where, "must be a JSON value", value)
    return _items(value, where, deeper)


def _thawed(value: Any) -> Any:
    if isinstance(value, (Calibration, Rule)):
        return {key: each for key, each in asdict(value).items() if each is not None}
    if isinstance(value, Mapping):
        return {key: _thawed(each) for key, each in value.items()}
    return [_thawed(each) for each in value] if isinstance(value, tuple) else value


def _build(kind: type[T], value: Any, where: str) -> T:
    """Return `value`, or build it from its JSON form; errors tell the place from the root of the file on."""
    if isinstance(value, kind):
        return value
    _require(isinstance(value, Mapping), where, "must be an object", value)
    try:
        return kind(**{each.name: value.get(each.name) for each in fields(kind) if each.init})  # type: ignore
    except ValueError as problem:
        raise ValueError(f"{where}.{problem}" if where else str(problem)) from None


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"not JSON ({problem}); if it was cut off, write it again") from problem


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = {}
    for key, value in pairs:
        if key in unique:
            raise ValueError(f"the key {key!r} is there twice in one object")
        unique[key] = value
    return unique
