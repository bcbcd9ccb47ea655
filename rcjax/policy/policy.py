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

import json
import math
import os
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from importlib import resources
from numbers import Real
from types import NoneType
from typing import Any

from rcjax._base import json_checks as check
from rcjax._base.arguments import instance
from rcjax._base.files import write_atomically
from rcjax.policy.agreement import Agreement, check_agreements
from rcjax.policy.calibration import Calibration, Transform
from rcjax.policy.rules import Action, Rule, check_forks, check_rules, odds_of, rule_for, threshold_of

__all__ = [
    "Abstain",
    "Action",
    "Agreement",
    "Answer",
    "Calibration",
    "Decision",
    "Defer",
    "Policy",
    "Rule",
    "Transform",
]


_FORMAT, _SCHEMA_VERSION = "rcjax-policy", 4


class _NotGiven:
    """The value of an argument that is left out, where None says that something is not known."""

    def __repr__(self) -> str:
        return "<not given>"


_NOT_GIVEN: Any = _NotGiven()


# Schema versions that older versions of rcjax read: of a policy that always answers, that may abstain, and that
# compares answers or has models that state values; no rule of these is for a share of the queries.
_WITHOUT_ABSTENTION, _WITH_ABSTENTION, _WITHOUT_SHARES = 1, 2, 3


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


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy to deploy: immutable, safe to share between threads, equal by value, picklable.

    A model answers, asks a later one or abstains by the first of its rules with Φ ≤ `up_to`: with one threshold φ
    each, model j answers where Φ_j > φ_j, as in the paper. A model with an agreement answers where it says what an
    earlier model said. A rule for a share of the queries is for those whose lot, a hash of model and query, is below
    it. What cannot be right raises ValueError with its place.

    Args:
        models: the models that can be asked. The first is asked first; asks only go forward, so a run ends.
        calibrations: raw to calibrated confidence, per model.
        rules: intervals of calibrated confidence per model, `up_to` increasing, the last one 1.
        cost: expected cost of a call per model, in money per query.
        prices: money per million tokens by kind of token (`"input"`, `"output"`), per model, where known.
        expected: what the tuning promised: `"error"`, `"cost"`, `"lam"`, `"error_cost"` (1/lam or None), …
        provenance: where the policy comes from (hash of the data, counts, versions, date, how it was tuned, some of
            the queries that it was tuned on); any JSON values.
        agreements: what a model does by whether its answer is that of an earlier one, for models that do so.

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
    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    _bounds: Mapping[str, tuple[float, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)  # the class is frozen
        put("models", check.names(self.models, "models"))
        per_model = partial(check.by_name, keys=self.models)
        put("calibrations", per_model(self.calibrations, "calibrations", check=partial(check.build, Calibration)))
        put("rules", check_rules(self.rules, "rules", self.models))
        put("cost", per_model(self.cost, "cost", check=check.amount))
        put("prices", None if self.prices is None else check.items(self.prices, "prices", check.amounts))
        put("expected", check.items(self.expected, "expected", lambda x, at: x if x is None else check.number(x, at)))
        put("provenance", check.items(self.provenance, "provenance", check.frozen))
        put("agreements", check_agreements(self.agreements, "agreements", self.models))
        check_forks(self.rules, self.agreements)
        put("_bounds", {model: tuple(rule.up_to for rule in table) for model, table in self.rules.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)  # a MappingProxyType cannot be pickled

    @property
    def first(self) -> str:
        """The model that every query goes to first."""
        return self.models[0]

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policy itself, as a `Mixture` has several."""
        return (self,)

    @property
    def weights(self) -> tuple[float, ...]:
        """The probability of each of the `policies`: 1."""
        return (1.0,)

    @property
    def transform(self) -> Transform:
        """How raw confidences are transformed: that of the first model."""
        return self.calibrations[self.first].transform

    def choose(self, query: int | str | None = None) -> Policy:
        """The policy that answers a query, as a `Mixture` chooses one: this one."""
        return self

    @property
    def thresholds(self) -> dict[str, float | None]:
        """The φ of each model that answers where Φ > φ and else defers (1 if it never answers).

        Where a share of the queries just up to φ is answered too, φ is the upper end of these. None for a model with
        other rules: it always answers, as the last one does, abstains, or has more intervals.
        """
        return {model: threshold_of(table) for model, table in self.rules.items()}

    def calibrate(self, model: str, *, logprob: float | None = None, confidence: float | None = None) -> float:
        """Return the calibrated confidence Φ in [0, 1] of an answer of `model`.

        Give its raw confidence as in the log: either the natural `logprob` or the probability `confidence`.
        Raises ValueError for an unknown model, both or neither of the two, NaN, or a value out of range.
        """
        if not isinstance(model, str) or model not in self.calibrations:
            raise ValueError(f"unknown model {model!r}; this policy has {', '.join(self.models)}")
        if logprob is not None and confidence is None:
            return self.calibrations[model](logprob)
        if logprob is not None or confidence is None:
            raise ValueError("give exactly one of logprob and confidence")
        instance(confidence, Real, "confidence")
        if not 0 <= confidence <= 1:
            raise ValueError(f"confidence must be a probability in [0, 1], not {confidence}")
        return self.calibrations[model](math.log(confidence) if confidence > 0 else -math.inf)

    def step(
        self,
        model: str,
        *,
        logprob: float | None = None,
        confidence: float | None = None,
        answer: str | None = _NOT_GIVEN,
        answers: Mapping[str, str | None] | None = _NOT_GIVEN,
        query: int | str | None = None,
    ) -> Decision:
        """Decide after an answer of `model`: keep it, ask another, or abstain.

        Args:
            model: that was asked.
            logprob, confidence: one of them, as for `calibrate`, whose errors these are too.
            answer: what it answered, None where that is not known. Models with an entry in `agreements` need it.
            answers: what the models before it answered to this query, by model; likewise.
            query: the query's id. Where a rule is for a share of the queries, retries and other machines then decide
                alike, by a hash of model and id; without it a lot is drawn at random.

        Only policies that were tuned with a price of abstaining ever return an `Abstain`. Where answers are to be
        compared and one is not known, the rule is that of the model's confidence. Raises ValueError where they are to
        be compared, and `answer` or `answers` is left out.
        """
        phi = self.calibrate(model, logprob=logprob, confidence=confidence)
        if query is not None:
            instance(query, (int, str, NoneType), "query")
        if answer is not _NOT_GIVEN or model in self.agreements:
            compared = self._compared(model, phi, answer, answers)
            if compared is not None:
                return compared
        table, place = self.rules[model], bisect_left(self._bounds[model], phi)
        rule = table[place] if table[place].share is None else rule_for(table, place, model, query)
        return _decision(rule, model, phi)

    def decisions(
        self,
        model: str,
        *,
        logprob: float | None = None,
        confidence: float | None = None,
        answer: str | None = _NOT_GIVEN,
        answers: Mapping[str, str | None] | None = _NOT_GIVEN,
    ) -> tuple[tuple[float, Decision], ...]:
        """(probability, decision) of all that `step` may decide, over a query's lots: one, but where there are shares.

        Args:
            model, logprob, confidence, answer, answers: as of `step`, whose errors these are too.
        """
        phi = self.calibrate(model, logprob=logprob, confidence=confidence)
        compared = self._compared(model, phi, answer, answers)
        if compared is not None:
            return ((1.0, compared),)
        odds = odds_of(self.rules[model], bisect_left(self._bounds[model], phi))
        return tuple((probability, _decision(rule, model, phi)) for probability, rule in odds)

    def _compared(self, model: str, phi: float, answer: Any, answers: Any) -> Decision | None:
        """What is decided by whether the answer is that of an earlier model; None where confidence decides."""
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
        otherwise = Abstain(model, phi) if agreement.model is None else Defer(agreement.model, phi)
        return Answer(model, phi) if equal else otherwise

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a JSON object, the inverse of `from_json`."""
        values = {field.name: _thawed(getattr(self, field.name)) for field in fields(self) if field.init}
        if not self.agreements:
            del values["agreements"]
        return {"format": _FORMAT, "schema_version": self._schema_version()} | values

    def _schema_version(self) -> int:
        """The first schema version that has all that the policy does: older versions of rcjax refuse what is newer."""
        rules = [rule for table in self.rules.values() for rule in table]
        if any(rule.share is not None for rule in rules):
            return _SCHEMA_VERSION
        if self.agreements or any(calibration.stated for calibration in self.calibrations.values()):
            return _WITHOUT_SHARES
        abstains = any(rule.action == "abstain" for rule in rules)
        return _WITH_ABSTENTION if abstains else _WITHOUT_ABSTENTION

    @classmethod
    def from_json(cls, data: Any) -> Policy:
        """Build a policy from the object of `to_json`; unknown keys are ignored, problems a ValueError."""
        check.header(data, _FORMAT, _SCHEMA_VERSION)
        return check.build(cls, data, "")

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
        return check.load(path, cls.from_json)

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of a policy file, for readers and writers in other languages.

        It is `rcjax/policy/policy.schema.json`. It accepts every policy that `load` reads. What relates one part of
        a file to another it cannot say: that `calibrations`, `rules` and `cost` have the models as keys, that the
        `up_to` of a model increase, that asks go to later models, that the last rule has no `share` and `smallest` is
        at most `largest`; `load` checks it all.
        """
        return json.loads(resources.files("rcjax.policy").joinpath("policy.schema.json").read_text("utf-8"))


def _decision(rule: Rule, model: str, phi: float) -> Decision:
    """What a rule makes of an answer of a model with a calibrated confidence."""
    if rule.action == "abstain":
        return Abstain(model, phi)
    return Answer(model, phi) if rule.model is None else Defer(rule.model, phi)


def _lacking(model: str, agreement: Agreement, arguments: Mapping[str, Any]) -> str:
    """What a step lacks that compares answers, in words."""
    forms = {"answer": f"answer= (what {model} answered, or None)", "answers": "answers= (by model)"}
    missing = " and ".join(forms[name] for name, value in arguments.items() if value is _NOT_GIVEN)
    return f"the policy compares the answer of {model} with that of {agreement.earlier}: give step {missing}"


def _thawed(value: Any) -> Any:
    if isinstance(value, (Agreement, Calibration, Rule)):
        return {key: _thawed(item) for key, item in asdict(value).items() if item is not None}
    if isinstance(value, Mapping):
        return {key: _thawed(item) for key, item in value.items()}
    return [_thawed(item) for item in value] if isinstance(value, tuple) else value
