"""The policy of a cascade: the first model to ask, and the decision after each answer.

`rcjax tune` writes a policy; a service loads it with the standard library alone:

    policy = load_policy("policy.json")
    model = policy.first
    while isinstance(decision := policy.step(model, logprob=ask(model, query)), Defer):
        model = decision.next_model

For a policy that compares answers (`policy.agreements`), `step` takes them as `answer=` and `answers=`.

Reference: Zellinger & Thomson, "Rational Tuning of LLM Cascades", TMLR 2025, arXiv 2501.09345.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from numbers import Real
from types import MappingProxyType, NoneType
from typing import Any

from rcjax._base.checks import instance, require
from rcjax._base.codec import (
    HUGE,
    Amount,
    Names,
    check_fields,
    keyed,
    number,
    read,
    written,
)
from rcjax.policy.any_policy import AnyPolicy
from rcjax.policy.decisions import (
    NO_CONFIDENCE,
    Agreement,
    Calibration,
    Table,
    check_agreements,
    check_rules,
    threshold_of,
)

#: The fields of a segment's policy, and the fields that all policies of a file share.
OF_SEGMENT, SHARED = ("models", "rules", "agreements"), ("calibrations", "cost", "prices")
#: The fields that a file leaves out if they are empty.
_OPTIONAL = ("agreements", "segments")


#: The default of arguments for which None means "not known".
_NOT_GIVEN: Any = type("_NotGiven", (), {"__repr__": lambda self: "<not given>"})()


@dataclass(frozen=True, slots=True)
class Answer:
    """Keep the answer of `model`, whose calibrated confidence is `confidence`."""

    model: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Defer:
    """Ask `next_model`: the calibrated confidence of the previous model, `confidence`, is too low."""

    next_model: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Abstain:
    """Give no answer: at the calibrated confidence `confidence` of `model`, no larger model is worth its cost."""

    model: str
    confidence: float


Decision = Answer | Defer | Abstain


#: Upper limits of promised figures; the lower limit is 0.
_FIGURES = {"error": 1.0, "abstention": 1.0, "cost": HUGE, "lam": HUGE, "error_cost": HUGE}


@dataclass(frozen=True, slots=True)
class Policy(AnyPolicy):
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
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)
    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    segments: Mapping[str, Policy] = field(default_factory=dict)
    _bounds: Mapping[str, tuple[float, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)  # the class is frozen
        parts = read(Mapping[str, object], self.segments, "segments")
        put("segments", {})
        check_fields(self)
        passes = not self.calibrations and len(self.models) == 1
        put("calibrations", keyed(self.calibrations, "calibrations", () if passes else self.models))
        put("rules", check_rules(self.rules, "rules", self.models))
        answers = all(rule.action == "answer" for rule in self.rules[self.models[0]])
        require(answers or not passes, "calibrations", f"must have as keys {self.models}", [])
        put("cost", keyed(self.cost, "cost", self.models))
        for name, high in _FIGURES.items():
            if self.expected.get(name) is not None:
                number(self.expected[name], f"expected.{name}", 0.0, high)
        check_agreements(self.agreements, "agreements", self.models)
        segments = {name: self._part(part, f"segments[{name!r}]") for name, part in parts.items()}
        put("segments", MappingProxyType(segments))
        put("_bounds", {model: tuple(rule.up_to for rule in table) for model, table in self.rules.items()})

    def _part(self, value: Any, where: str) -> Policy:
        """Build a segment's policy from its models, rules and agreements; the other fields are this policy's."""
        part = {name: getattr(value, name) for name in OF_SEGMENT} if isinstance(value, Policy) else value
        models = read(Names, read(Mapping[str, object], part, where).get("models"), f"{where}.models")
        unknown = [name for name in models if name not in self.models]
        require(not unknown, f"{where}.models", f"must be of {', '.join(self.models)}", unknown)
        shared = {name: getattr(self, name) or {} for name in SHARED}
        return policy_of(part, where, shared, expected=self.expected, provenance=self.provenance, segments={})

    def of_segment(self, segment: str | None) -> Policy:
        """Return the policy for queries of a segment; this policy for any other."""
        return self.segments.get(segment or "", self)

    @property
    def cascades(self) -> tuple[Policy, ...]:
        """This policy, and those of its segments."""
        return (self, *self.segments.values())

    @property
    def first(self) -> str:
        """The model that is asked first."""
        return self.models[0]

    @property
    def parallel_model(self) -> str | None:
        """The model that can be asked at the same time as the first; None if there is none.

        It is asked whatever the first model answers, and its answer is compared with the first one's.
        """
        *before, last = self.rules[self.first]
        asks = last.model is not None and all(rule.up_to <= 0 for rule in before)
        agreement = self.agreements.get(last.model or "")
        return last.model if asks and agreement is not None and agreement.earlier == self.first else None

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
        return {model: threshold_of(table) for model, table in self.rules.items()}

    def calibrate(
        self, model: str, *, logprob: float | None = _NOT_GIVEN, confidence: float | None = _NOT_GIVEN
    ) -> float:
        """Return the calibrated confidence Φ in [0, 1] of an answer of `model`.

        Give the raw confidence as in the log: either the natural `logprob` or the probability `confidence`. None says
        that it could not be read, and ranks below all values.
        Raises ValueError for an unknown model, both or neither of the two, NaN, or a value out of range.
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
        instance(confidence, Real, "confidence")
        if not 0 <= confidence <= 1:
            raise ValueError(f"confidence must be a probability in [0, 1], not {confidence}")
        return self.calibrations[model](math.log(confidence) if confidence > 0 else -math.inf)

    def step(
        self,
        model: str,
        *,
        logprob: float | None = _NOT_GIVEN,
        confidence: float | None = _NOT_GIVEN,
        answer: str | None = _NOT_GIVEN,
        answers: Mapping[str, str | None] | None = _NOT_GIVEN,
        query: int | str | None = None,
    ) -> Decision:
        """Decide after an answer of `model`: keep it, ask another, or abstain.

        Args:
            model: name of the model that answered.
            logprob, confidence: raw confidence, one of the two, as for `calibrate`, with its errors.
            answer: the answer; None if it is not known. Models with an entry in `agreements` need it.
            answers: answers of earlier models to this query, by model. Models with an entry in `agreements` need them.
            query: id of the query. A ladder draws the rung by it; a policy of one rung ignores it.

        Only policies that were tuned with a price of abstaining ever return an `Abstain`. If answers are compared and
        one is not known, the model's rules by confidence decide. Raises ValueError if answers are compared, and
        `answer` or `answers` is left out.
        """
        phi = self.calibrate(model, logprob=logprob, confidence=confidence)
        if answer is not _NOT_GIVEN or model in self.agreements:
            compared = self._compared(model, phi, answer, answers)
            if compared is not None:
                return compared
        rule = self.rules[model][bisect_left(self._bounds[model], phi)]
        if rule.action == "abstain":
            return Abstain(model, phi)
        return Answer(model, phi) if rule.model is None else Defer(rule.model, phi)

    def _compared(self, model: str, phi: float, answer: Any, answers: Any) -> Decision | None:
        """Decide by comparing the answer with that of an earlier model; None if confidence decides."""
        agreement = self.agreements.get(model)
        if answer is not _NOT_GIVEN:
            instance(answer, (str, NoneType), "answer")
        if agreement is not None and (answer is _NOT_GIVEN or answers is _NOT_GIVEN):
            raise ValueError(_lacking(model, agreement, {"answer": answer, "answers": answers}))
        if agreement is None or answer is None or not answers:
            return None
        earlier = answers.get(agreement.earlier)
        instance(earlier, (str, NoneType), f"answers[{agreement.earlier!r}]")
        equal = agreement.equal(answer, earlier)
        if equal is None:
            return None
        return Answer(model, phi) if equal else Defer(agreement.model, phi)

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a JSON object, the inverse of `from_json`."""
        return self.head | self.own_to_json([one.name for one in fields(self) if one.init])

    def own_to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the named fields as JSON values; agreements and segments only if there are any."""
        values = {name: written(getattr(self, name)) for name in names if name not in _OPTIONAL or getattr(self, name)}
        parts = {name: {key: written(getattr(part, key)) for key in OF_SEGMENT} for name, part in self.segments.items()}
        return values | ({"segments": parts} if parts else {})


def policy_of(own: Any, where: str, shared: Mapping[str, Mapping[str, Any]], **rest: Any) -> Policy:
    """Build a policy from its own fields, and from fields that it shares with others, reduced to its models.

    Args:
        own: object with the policy's own fields.
        where: place of the object, for messages.
        shared: the fields `SHARED`, by name and model.
        rest: further fields.
    """
    own = read(Mapping[str, object], own, where)
    models = read(Names, own.get("models"), f"{where}.models")
    unknown = [model for model in models if model not in shared["cost"]]
    require(not unknown, f"{where}.models", f"must be of {', '.join(shared['cost'])}", unknown)
    parts: dict[str, Any] = {
        name: {model: by_model[model] for model in models if model in by_model} for name, by_model in shared.items()
    }
    return read(Policy, {**own, **parts, "prices": parts["prices"] or None, **rest}, where)


def _lacking(model: str, agreement: Agreement, arguments: Mapping[str, Any]) -> str:
    """Return the message for a step that compares answers, and was not given them."""
    forms = {"answer": f"answer= (what {model} answered, or None)", "answers": "answers= (by model)"}
    missing = " and ".join(forms[name] for name, value in arguments.items() if value is _NOT_GIVEN)
    return f"the policy compares the answer of {model} with that of {agreement.earlier}: give step {missing}"
