"""The policy of a cascade: which model answers, and which one is asked next.

`rcjax tune` writes a policy and a service loads it, with nothing but the standard library:

    policy = load_policy("policy.json")
    model = policy.first
    while isinstance(decision := policy.step(model, logprob=ask(model, query)), Defer):
        model = decision.next_model

A policy that compares answers (`policy.agreements`) needs them besides, as `answer=` and `answers=` of `step`.

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

#: What the policy of a segment has of its own, and what all policies of a file share.
OF_SEGMENT, SHARED = ("models", "rules", "agreements"), ("calibrations", "cost", "prices")
#: What a file has only where there is some.
_PERHAPS = ("agreements", "segments")


#: The value of an argument that is left out, where None says that something is not known.
_NOT_GIVEN: Any = type("_NotGiven", (), {"__repr__": lambda self: "<not given>"})()


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
class Abstain:
    """Give no answer: with the calibrated confidence `confidence` of `model`, no larger model is worth its money."""

    model: str
    confidence: float


Decision = Answer | Defer | Abstain


#: What the figures of a promise are at most; at least they are 0.
_FIGURES = {"error": 1.0, "abstention": 1.0, "cost": HUGE, "lam": HUGE, "error_cost": HUGE}


@dataclass(frozen=True, slots=True)
class Policy(AnyPolicy):
    """A policy to deploy: immutable, safe to share between threads, equal by value, picklable.

    A model answers, asks a later one or abstains by the first of its rules with Φ ≤ `up_to`: with one threshold φ
    each, model j answers where Φ_j > φ_j, as in the paper. A model with an agreement answers where it says what an
    earlier model said. What cannot be right raises ValueError with its place.

    Args:
        models: the models that can be asked. The first is asked first; asks only go forward, so a run ends.
        calibrations: raw to calibrated confidence, per model; none for one model that always answers, as long as
            nobody knows how often it is right.
        rules: intervals of calibrated confidence per model, `up_to` increasing, the last one 1.
        cost: expected cost of a call per model, in money per query.
        prices: money per million tokens by kind of token (`"input"`, `"output"`), per model, where known.
        expected: what the tuning promised: `"error"`, `"cost"`, `"lam"`, `"error_cost"` (1/lam or None), …
        provenance: where the policy comes from (hash of the data, counts, versions, date, how it was tuned, some of
            the queries that it was tuned on); any JSON values.
        agreements: what a model does by whether its answer is that of an earlier one, for models that do so.
        segments: policies for the queries of some segments, by name, over some of these models: each its `models`,
            `rules` and `agreements`, the rest being this one's. All other queries go by this one.

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
        own = {name: self._part(part, f"segments[{name!r}]") for name, part in parts.items()}
        put("segments", MappingProxyType(own))
        put("_bounds", {model: tuple(rule.up_to for rule in table) for model, table in self.rules.items()})

    def _part(self, value: Any, where: str) -> Policy:
        """A segment's policy: of its own are its models, rules and agreements."""
        own = {name: getattr(value, name) for name in OF_SEGMENT} if isinstance(value, Policy) else value
        models = read(Names, read(Mapping[str, object], own, where).get("models"), f"{where}.models")
        unknown = [name for name in models if name not in self.models]
        require(not unknown, f"{where}.models", f"must be of {', '.join(self.models)}", unknown)
        shared = {name: getattr(self, name) or {} for name in SHARED}
        return policy_of(own, where, shared, expected=self.expected, provenance=self.provenance, segments={})

    def of_segment(self, segment: str | None) -> Policy:
        """The policy for queries of a segment: this one where it has none for it."""
        return self.segments.get(segment or "", self)

    @property
    def cascades(self) -> tuple[Policy, ...]:
        """This policy, and those of its segments."""
        return (self, *self.segments.values())

    @property
    def first(self) -> str:
        """The model that every query goes to first."""
        return self.models[0]

    @property
    def together(self) -> str | None:
        """The model that is asked at the same time as the first: it is asked whatever the first one answers.

        Its answer is compared with that one's. None if there is no such model.
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
        """Where it stands on its only rung: 0."""
        return 0.0

    @property
    def thresholds(self) -> dict[str, float | None]:
        """The φ of each model that answers where Φ > φ and else defers (1 if it never answers).

        None for a model with other rules: it always answers, as the last one does, abstains, or has more intervals.
        """
        return {model: threshold_of(table) for model, table in self.rules.items()}

    def calibrate(
        self, model: str, *, logprob: float | None = _NOT_GIVEN, confidence: float | None = _NOT_GIVEN
    ) -> float:
        """Return the calibrated confidence Φ in [0, 1] of an answer of `model`.

        Give its raw confidence as in the log: either the natural `logprob` or the probability `confidence`; None if
        it could not be read, which is below all others.
        Raises ValueError for an unknown model, both or neither of the two, NaN, or a value out of range.
        """
        if not isinstance(model, str) or model not in self.models:
            raise ValueError(f"unknown model {model!r}; this policy has {', '.join(self.models)}")
        if model not in self.calibrations:
            raise ValueError(f"the confidence of {model} is not calibrated: tune a policy on a log with labels")
        told = [one for one in (logprob, confidence) if one is not _NOT_GIVEN]
        known = [one for one in told if one is not None]
        if not told or len(known) > 1:
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
            model: that was asked.
            logprob, confidence: one of them, as for `calibrate`, whose errors these are too.
            answer: what it answered, None if that is not known. Models with an entry in `agreements` need it.
            answers: what the models before it answered to this query, by model; likewise.
            query: its id, which a ladder draws the rung by; a policy without rungs decides alike for all queries.

        Only policies that were tuned with a price of abstaining ever return an `Abstain`. Where answers are to be
        compared and one is not known, the rule is that of the model's confidence. Raises ValueError where they are to
        be compared, and `answer` or `answers` is left out.
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
        """What is decided by whether the answer is that of an earlier model; None if confidence decides."""
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
        """Return it as a JSON object, the inverse of `from_json`."""
        return self.head | self.own_to_json([one.name for one in fields(self) if one.init])

    def own_to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Some of its fields as JSON values, and of agreements and segments those that there are."""
        values = {name: written(getattr(self, name)) for name in names if name not in _PERHAPS or getattr(self, name)}
        parts = {name: {key: written(getattr(part, key)) for key in OF_SEGMENT} for name, part in self.segments.items()}
        return values | ({"segments": parts} if parts else {})


def policy_of(own: Any, where: str, shared: Mapping[str, Mapping[str, Any]], **rest: Any) -> Policy:
    """A policy from what it has of its own and, as far as its models go, from what it shares with others.

    Args:
        own: an object with fields of its own.
        where: its place, for messages.
        shared: the fields `SHARED`, by model.
        rest: other fields.
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
    """What a step lacks that compares answers, in words."""
    forms = {"answer": f"answer= (what {model} answered, or None)", "answers": "answers= (by model)"}
    missing = " and ".join(forms[name] for name, value in arguments.items() if value is _NOT_GIVEN)
    return f"the policy compares the answer of {model} with that of {agreement.earlier}: give step {missing}"
