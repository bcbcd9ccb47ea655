"""The policy of a cascade: the first model to ask, and the decision after each answer; the base class of policies.

`rcjax tune` writes a policy; a service loads it with the standard library alone:

    rung = load_policy("policy.json").choose(query_id)  # a `Policy`, the same for this query wherever it is asked
    model = rung.first_model
    while isinstance(decision := rung.step(model, logprob=ask(model, query)), Defer):
        model = decision.next_model

For a policy that compares answers (`rung.agreements`), `step` takes them as `answer=` and `answers=`.

Reference: Zellinger & Thomson, "Rational Tuning of LLM Cascades", TMLR 2025, arXiv 2501.09345.
"""

from __future__ import annotations

import json
import math
import os
import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from hashlib import sha256
from numbers import Real
from types import MappingProxyType, NoneType
from typing import Any, ClassVar, Literal, Self, get_args

from rcjax._base.codec import (
    HUGE,
    SCHEMA_VERSION,
    Amount,
    Names,
    Object,
    check_fields,
    check_header,
    load_json,
    number,
    read_value,
    require,
    require_instance,
    require_keys,
    to_json_value,
)
from rcjax._base.figures import choose_unit, percent
from rcjax._base.files import write_atomically
from rcjax.policy.decisions import (
    NO_CONFIDENCE,
    Agreement,
    Calibration,
    Table,
    describe_cascade,
    find_threshold,
    require_agreements,
    require_rules,
)

#: The name of a target of tuning, by which the provenance records it.
TargetName = Literal["budget", "max_error", "match", "error_cost", "lam"]

#: The default of arguments for which None means "not known".
_NOT_GIVEN: Any = type("_NotGiven", (), {"__repr__": lambda self: "<not given>"})()


class AbstractPolicy:
    """The base class of `Ladder`, with rungs from cheap to expensive, and of `Policy`, which is its own only rung."""

    __slots__ = ()

    FORMAT: ClassVar[str]
    rungs: tuple[Policy, ...]
    position: float  # from 0 to the number of rungs less 1
    models: tuple[str, ...]  # all models that may be asked
    calibrations: Mapping[str, Calibration]  # by model, the map from raw to calibrated confidence
    cost: Mapping[str, float]  # by model, the expected cost of a call, in dollars
    prices: Mapping[str, Mapping[str, float]] | None  # by model, dollars per million tokens by kind of token
    expected: Mapping[str, Any]  # by name, the figures that the tuning promised, or None
    provenance: Mapping[str, object]  # the record of how the policy came about; JSON values

    budget, follows, period = None, False, None  # fields of a `Ladder`: a policy of one rung cannot move

    @property
    def rung_costs(self) -> tuple[float, ...]:
        """Expected cost of each rung by its tuning, rising, in dollars per query."""
        return tuple(
            read_value(Amount, rung.expected.get("cost"), f"rungs[{index}].expected.cost")
            for index, rung in enumerate(self.rungs)
        )

    @property
    def adjacent_rungs(self) -> tuple[Any, ...]:
        """The two rungs on either side of the position, or the single rung at it."""
        low, share = divmod(self.position, 1)
        return self.rungs[int(low) : int(low) + (2 if share else 1)]

    @property
    def weights(self) -> tuple[float, ...]:
        """Share of the queries that each of the `adjacent_rungs` decides."""
        share = self.position % 1
        return (1 - share, share) if share else (1.0,)

    def choose(
        self, query: int | str | None = None, position: float | None = None, segment: str | None = None
    ) -> Policy:
        """Return the policy that decides about a query: call its `step` after each answer.

        It is the rung that `draw_rung` draws, or the part of that rung for the query's segment.

        Args:
            query: id of the query.
            position: current position of a service, from 0 to the last rung; by default the ladder's own.
            segment: segment of the query, if the policy has segments.
        """
        return self.rungs[self.draw_rung(query, position)].for_segment(segment)

    def step(
        self,
        model: str,
        *,
        logprob: float | None = _NOT_GIVEN,
        confidence: float | None = _NOT_GIVEN,
        answer: str | None = _NOT_GIVEN,
        answers: Mapping[str, str | None] | None = _NOT_GIVEN,
        query: int | str | None = None,
        segment: str | None = None,
    ) -> Decision:
        """Decide after an answer of `model`: keep it, ask another model, or abstain.

        Args:
            model: name of the model that answered.
            logprob, confidence: raw confidence as in the log, one of the two, as for `Policy.calibrate`.
            answer: the answer, in the form of the log; None if it is not known. A model with an entry in `agreements`
                needs it.
            answers: answers of the earlier models to this query, by model. A model with an entry in `agreements` needs
                them.
            query: id of the query, which a ladder between two rungs needs, to draw the rung. The first model to ask is
                `choose(query).first_model`.
            segment: segment of the query, if the policy has segments; without it, the cascade of all other queries
                decides.

        Returns `Answer`, `Defer` with the `next_model` to ask, or, if abstentions had a price when tuning, `Abstain`. A
        model with an entry in `agreements` decides by confidence if one of the two answers is not known.

        Raises ValueError as `Policy.calibrate` does, if a needed `answer` or `answers` is left out, and for a missing
        `query` between two rungs: each step would draw another rung.
        """
        if query is None and len(self.adjacent_rungs) > 1:
            raise ValueError(f"query is missing: at position {self.position:g} the rung is drawn by the query's id")
        policy = self.choose(query, segment=segment)
        phi = policy.calibrate(model, logprob=logprob, confidence=confidence)
        return policy._decide(model, phi, answer, answers)

    def draw_rung(self, query: int | str | None = None, position: float | None = None) -> int:
        """Return the index of the rung that decides about a query.

        It is the rung above the position if `hash_to_uniform("rung", query)`, a hash of the id, is below the position's
        fractional part, else the rung below: retries and other machines draw the same rung. Without an id, the rung is
        drawn at random. `rcjax serve` mixes a new secret into the id at each start, so replicas and restarts draw
        independently.

        Args:
            query: id of the query.
            position: current position of a service, from 0 to the last rung; by default the ladder's own.
        """
        place = self.position if position is None else number(position, "position", 0.0, len(self.rungs) - 1.0)
        low, share = divmod(place, 1)
        lot = 1.0 if not share else random.random() if query is None else hash_to_uniform("rung", query)
        return int(low) + (lot < share)

    @property
    def tuning(self) -> Mapping[str, Any]:
        """The options of the tuning that the provenance records, as in the object of `Spec.to_json`."""
        return read_value(Object, self.provenance.get("tuning", {}), "provenance.tuning")

    @property
    def segment_column(self) -> str | None:
        """Column of the log that holds the segments of queries; None for a policy without segments."""
        return self.tuning.get("segment")

    def __str__(self) -> str:
        """Return the target, the position, the expected figures and the rungs on either side of the position."""
        expected, last = self.expected, len(self.rungs) - 1
        facts = [f"{name}={self.tuning[name]}" for name in get_args(TargetName) if self.tuning.get(name) is not None]
        facts += [f"position {self.position:.4g} of 0 to {last}"] if last else []
        facts += [f"{percent(expected['error'])} error"] if expected.get("error") is not None else []
        facts += [f"no answer for {percent(share)}"] if (share := expected.get("abstention")) else []
        facts += [choose_unit([cost]).full(cost)] if (cost := expected.get("cost")) is not None else []
        lines = [f"{type(self).__name__}: {', '.join(facts)}"]
        for weight, rung in zip(self.weights, self.adjacent_rungs, strict=True):
            for segment, cascade in {"": rung, **rung.segments}.items():
                label = [f"segment {segment}"] * bool(segment) + [f"{percent(weight)} of the queries"] * (weight < 1)
                lines.append(f"  {': '.join([*filter(None, [', '.join(label)]), describe_cascade(cascade.to_json())])}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)  # a MappingProxyType cannot be pickled

    @property
    def file_header(self) -> dict[str, Any]:
        """First entries of a policy file: its format and the version of its schema."""
        return {"format": self.FORMAT, "schema_version": SCHEMA_VERSION}

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a JSON object, the inverse of `from_json`."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build a policy from the object of `to_json`; unknown keys are ignored, ValueError for problems."""
        check_header(data, cls.FORMAT)
        return read_value(cls, data, "")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to a JSON file atomically: a reader sees the old file or the new one, complete.

        Raises OSError if the file cannot be written; an existing file then stays as it is.
        """
        write_atomically(path, json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy from a file that `save` wrote.

        Raises ValueError (place, problem, advice) for an invalid file, OSError for an unreadable file.
        """
        return load_json(path, cls.from_json)


def models_with_thresholds(policy: AbstractPolicy) -> set[str]:
    """Return the names of the models whose confidences decide, at the position of a policy."""
    rungs = [rung for weight, rung in zip(policy.weights, policy.adjacent_rungs, strict=True) if weight > 0]
    parts = [part for rung in rungs for part in (rung, *rung.segments.values())]
    return {name for part in parts for name, rules in part.rules.items() if len(rules) > 1}


def hash_to_uniform(purpose: str, query: int | str) -> float:
    """Return a number in [0, 1), uniform over queries and always the same for one query and purpose.

    The number is the first eight bytes of the SHA-256 of `purpose:query` (UTF-8), as a big-endian integer, over 2^64,
    rounded down to 53 bits. Lots for different purposes are independent; 7 and "7" are one query.

    >>> f"{hash_to_uniform('rung', 'q1'):.6f}", hash_to_uniform("rung", 7) == hash_to_uniform("rung", "7")
    ('0.092301', True)
    """
    digest = sha256(f"{purpose}:{query}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53  # rounded down: never 1


#: The fields of a segment's policy, and the fields that all policies of a file share.
SEGMENT_FIELDS, SHARED_FIELDS = ("models", "rules", "agreements"), ("calibrations", "cost", "prices")
#: The fields that a file leaves out if they are empty.
_OPTIONAL = ("agreements", "segments")


@dataclass(frozen=True, slots=True)
class Answer:
    """The decision to keep the answer of `model`, with its calibrated confidence."""

    model: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Defer:
    """The decision to ask `next_model`: the calibrated `confidence` of the previous model is too low."""

    next_model: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Abstain:
    """The decision to give no answer: at the `confidence` of `model`, no larger model is worth its cost."""

    model: str
    confidence: float


Decision = Answer | Defer | Abstain

#: Upper limits of promised figures; the lower limit is 0.
_FIGURES = {"error": 1.0, "abstention": 1.0, "cost": HUGE, "lam": HUGE, "error_cost": HUGE}


@dataclass(frozen=True, slots=True)
class Policy(AbstractPolicy):
    """A policy to deploy: immutable, safe to share between threads, equal by value, picklable.

    The first rule of a model with Φ ≤ `up_to` says whether the model answers, asks a later model or abstains. With one
    threshold φ each, model j answers if Φ_j > φ_j, as in the paper. A model with an agreement answers if its answer
    equals that of an earlier model. Raises ValueError, with the place, for inconsistent fields.

    Args:
        models: names of the models, in the order of asking: a model asks later models only, so that a run ends.
        calibrations: map from raw to calibrated confidence, by model; empty for one model that always answers and
            has no labels.
        rules: intervals of calibrated confidence by model, `up_to` increasing, the last `up_to` 1.
        cost: expected cost of a call by model, in dollars per query.
        prices: dollars per million tokens by kind of token (`"input"`, `"output"`), by model, where known.
        expected: figures that the tuning promised: `"error"`, `"cost"`, `"lam"`, `"error_cost"` (1/lam or None), …
        provenance: origin of the policy (hash of the data, counts, versions, date, options of the tuning, some of the
            queries that it was tuned on); any JSON values.
        agreements: comparisons with the answer of an earlier model, by model.
        segments: policies for the queries of some segments, by name. Each has `models` (some of these), `rules` and
            `agreements`, and shares the other fields. This policy decides all other queries.

    Example:
        >>> from rcjax.policy import Rule
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

    FORMAT = "rcjax-policy"

    models: Names
    calibrations: Mapping[str, Calibration]
    rules: Mapping[str, Table]
    cost: Mapping[str, Amount]
    prices: Mapping[str, Mapping[str, Amount]] | None = None
    expected: Mapping[str, float | None] = field(default_factory=dict)
    provenance: Object = field(default_factory=dict, repr=False)
    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    segments: Mapping[str, Policy] = field(default_factory=dict)
    _bounds: Mapping[str, tuple[float, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)  # the class is frozen
        parts = read_value(Mapping[str, object], self.segments, "segments")
        put("segments", {})
        check_fields(self)
        is_pass_through = not self.calibrations and len(self.models) == 1
        put("calibrations", require_keys(self.calibrations, "calibrations", () if is_pass_through else self.models))
        put("rules", require_rules(self.rules, "rules", self.models))
        answers = all(rule.action == "answer" for rule in self.rules[self.models[0]])
        require(answers or not is_pass_through, "calibrations", f"must have as keys {self.models}", [])
        put("cost", require_keys(self.cost, "cost", self.models))
        for name, high in _FIGURES.items():
            if self.expected.get(name) is not None:
                number(self.expected[name], f"expected.{name}", 0.0, high)
        require_agreements(self.agreements, "agreements", self.models)
        segments = {name: self._build_segment(part, f"segments[{name!r}]") for name, part in parts.items()}
        put("segments", MappingProxyType(segments))
        put("_bounds", {model: tuple(rule.up_to for rule in table) for model, table in self.rules.items()})

    def _build_segment(self, value: Any, place: str) -> Policy:
        """Build a segment's policy from its models, rules and agreements; the other fields are this policy's."""
        part = {name: getattr(value, name) for name in SEGMENT_FIELDS} if isinstance(value, Policy) else value
        models = read_value(Names, read_value(Mapping[str, object], part, place).get("models"), f"{place}.models")
        unknown = [name for name in models if name not in self.models]
        require(not unknown, f"{place}.models", f"must be of {', '.join(self.models)}", unknown)
        shared = {name: getattr(self, name) or {} for name in SHARED_FIELDS}
        return build_policy(part, place, shared, expected=self.expected, provenance=self.provenance, segments={})

    def for_segment(self, segment: str | None) -> Policy:
        """Return the policy for queries of a segment; this policy for any other."""
        return self.segments.get(segment or "", self)

    @property
    def segment_policies(self) -> tuple[Policy, ...]:
        """This policy, and the policies of its segments."""
        return (self, *self.segments.values())

    @property
    def first_model(self) -> str:
        """The model that is asked first."""
        return self.models[0]

    @property
    def parallel_model(self) -> str | None:
        """The second model, if every answer of the first leads to it and the two are compared; else None.

        Both can be asked at once.
        """
        *before, last = self.rules[self.first_model]
        asks = last.model is not None and all(rule.up_to <= 0 for rule in before)
        agreement = self.agreements.get(last.model or "")
        return last.model if asks and agreement is not None and agreement.earlier == self.first_model else None

    @property
    def rungs(self) -> tuple[Policy, ...]:
        """The policy itself, its only rung."""
        return (self,)

    @property
    def position(self) -> float:
        """The position on its only rung: 0."""
        return 0.0

    @property
    def thresholds(self) -> dict[str, float | None]:
        """The φ of each model that answers if Φ > φ and otherwise defers (1 if it never answers).

        None for a model with other rules: one that always answers, such as the last, abstains, or has more intervals.
        """
        return {model: find_threshold(table) for model, table in self.rules.items()}

    def keeps_any_answer(self, model: str) -> bool:
        """Return whether an answer of `model` is kept whatever its confidence, as that of a single or last model is."""
        return model not in self.agreements and all(rule.action == "answer" for rule in self.rules[model])

    def calibrate(
        self, model: str, *, logprob: float | None = _NOT_GIVEN, confidence: float | None = _NOT_GIVEN
    ) -> float:
        """Return the calibrated confidence Φ in [0, 1] of an answer of `model`.

        Give the raw confidence as in the log: either the natural `logprob` or the probability `confidence`. None says
        that it could not be read, and ranks below all values; if one of the two is None, the other one counts.
        Raises ValueError for an unknown model, two numbers, neither argument, NaN, or a value out of range.
        """
        if not isinstance(model, str) or model not in self.models:
            raise ValueError(f"unknown model {model!r}; this policy has {', '.join(self.models)}")
        if model not in self.calibrations:
            raise ValueError(f"the confidence of {model} is not calibrated: tune a policy on a log with labels")
        given = [value for value in (logprob, confidence) if value is not _NOT_GIVEN]
        known = [value for value in given if value is not None]
        if not given or len(known) > 1:
            raise ValueError("give exactly one of logprob and confidence")
        if confidence is _NOT_GIVEN or confidence is None:
            return self.calibrations[model](NO_CONFIDENCE if logprob in (None, _NOT_GIVEN) else logprob)
        require_instance(confidence, Real, "confidence")
        if not 0 <= confidence <= 1:
            raise ValueError(f"confidence must be a probability in [0, 1], not {confidence}")
        return self.calibrations[model](math.log(confidence) if confidence > 0 else -math.inf)

    def _decide(self, model: str, phi: float, answer: Any, answers: Any) -> Decision:
        """Decide after an answer of `model` with the calibrated confidence `phi`, as `step` does."""
        if answer is not _NOT_GIVEN:
            require_instance(answer, (str, NoneType), "answer")
        agreement = self.agreements.get(model)
        if agreement is not None and (is_equal := _compare(model, agreement, answer, answers)) is not None:
            return Answer(model, phi) if is_equal else Defer(agreement.model, phi)
        rule = self.rules[model][bisect_left(self._bounds[model], phi)]
        if rule.action == "abstain":
            return Abstain(model, phi)
        return Answer(model, phi) if rule.model is None else Defer(rule.model, phi)

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a JSON object, the inverse of `from_json`."""
        return self.file_header | self.fields_to_json([entry.name for entry in fields(self) if entry.init])

    def fields_to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the named fields as JSON values; agreements and segments only if there are any."""
        values = {name: getattr(self, name) for name in names if name not in _OPTIONAL or getattr(self, name)}
        parts = {name: {key: getattr(part, key) for key in SEGMENT_FIELDS} for name, part in self.segments.items()}
        return to_json_value(values | ({"segments": parts} if parts else {}))


def build_policy(data: Any, place: str, shared: Mapping[str, Mapping[str, Any]], **rest: Any) -> Policy:
    """Build a policy from its own fields, and from fields that it shares with others, reduced to its models.

    Args:
        data: object with the policy's own fields.
        place: place of the object, for messages.
        shared: the fields `SHARED_FIELDS`, by name and model.
        rest: further fields.
    """
    data = read_value(Mapping[str, object], data, place)
    models = read_value(Names, data.get("models"), f"{place}.models")
    unknown = [model for model in models if model not in shared["cost"]]
    require(not unknown, f"{place}.models", f"must be of {', '.join(shared['cost'])}", unknown)
    parts: dict[str, Any] = {
        name: {model: by_model[model] for model in models if model in by_model} for name, by_model in shared.items()
    }
    return read_value(Policy, {**data, **parts, "prices": parts["prices"] or None, **rest}, place)


def _compare(model: str, agreement: Agreement, answer: Any, answers: Any) -> bool | None:
    """Return whether an answer equals that of the earlier model; None if one of them is not known."""
    if answer is _NOT_GIVEN or answers is _NOT_GIVEN:
        forms = {f"answer= (what {model} answered, or None)": answer, "answers= (by model)": answers}
        missing = " and ".join(form for form, value in forms.items() if value is _NOT_GIVEN)
        compared = f"the policy compares the answer of {model} with that of {agreement.earlier}"
        raise ValueError(f"{compared}: give step {missing}")
    if answer is None or not answers:
        return None
    earlier = answers.get(agreement.earlier)
    require_instance(earlier, (str, NoneType), f"answers[{agreement.earlier!r}]")
    return agreement.equal(answer, earlier)
