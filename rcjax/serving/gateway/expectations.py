"""What a policy leads its operator to expect, from the queries that its file carries. Standard library only.

`rcjax.logs.kept_sample` puts up to 400 queries of the training log into a policy: raw log-probabilities in single
precision, costs in half precision. Here they walk through the policy, as `rcjax.replay` has them walk where JAX is at
hand: who answers, what it costs, and how confident the models are on the queries that reach them.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rcjax._base import json_checks as check
from rcjax.policy.policy import Abstain, AnyPolicy, Defer, Policy

__all__ = ["Expectation", "Reach", "expect"]


_PLACE = "provenance.reference"


_WIDTHS = {"f": 4, "e": 2, "h": 2, "B": 1}  # bytes of floats, of short whole numbers and of bytes, as `struct` has them


@dataclass(frozen=True, slots=True)
class Reach:
    """The queries that reach a model under a policy, from the lowest raw confidence to the highest."""

    logprobs: tuple[float, ...]
    """Raw log-probabilities, ascending."""
    confidences: tuple[float, ...]
    """Calibrated, of the same queries; their weighted mean where the policies of a mixture calibrate otherwise."""
    weights: tuple[float, ...]
    """How likely each query is to reach the model: 1, or less under a mixture, or where a share is passed on."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is to be expected of the queries of a service, if they are like those that the policy was tuned on."""

    queries: int
    """How many queries this is learnt from; 0 where the policy carries none that can be used."""
    answered: Mapping[str, float] | None
    """Share of the queries that each model answers; None where `queries` is 0."""
    abstained: float | None
    """Share of the queries that get no answer; None where `queries` is 0."""
    cost: float | None
    """Money per query as billed; what the tuning promised where `queries` is 0, None where it promised nothing."""
    reach: Mapping[str, Reach]
    """The queries that reach each model; empty where `queries` is 0."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """A model's answers to the queries that a policy carries."""

    logprobs: tuple[float, ...]  # NaN where it gave none
    costs: tuple[float, ...]  # money
    codes: tuple[int, ...]  # equal for equal answers to a query, −1 for none


@dataclass(frozen=True, slots=True)
class _Step:
    """What may come of a model that is asked about a query by one policy."""

    row: int
    model: str
    confidence: float
    outcome: str  # "answered", "deferred" or "abstained"


def expect(policy: AnyPolicy) -> Expectation:
    """Let the queries that a policy carries walk through it, those that all models which it may ask have answered.

    Under a mixture every policy takes every query, and what counts is the weighted mean; where a share of the queries
    is passed on, each is with this probability. A policy without queries (made by hand, or by an older rcjax), or with
    none that all these models answered, promises a cost at most.

    Raises ValueError, with the place, where the queries are damaged.

    >>> from rcjax.policy.policy import Calibration, Rule
    >>> plain = Calibration("none", intercept=0.0, slope=1.0, smallest=-9.0, largest=0.0)
    >>> parts = {"calibrations": {"small": plain}, "rules": {"small": [Rule(1, "answer")]}, "cost": {"small": 1e-5}}
    >>> answers = {"logprob": "AACAvwAAAMA=", "correct": "gA==", "cost": "ADwAPA==", "mean_cost": 1e-5}  # -1 and -2
    >>> reference = {"queries": 2, "models": {"small": answers}}
    >>> expected = expect(Policy(("small",), **parts, provenance={"reference": reference}))
    >>> expected.queries, dict(expected.answered), expected.cost, expected.reach["small"].logprobs
    (2, {'small': 1.0}, 1e-05, (-2.0, -1.0))
    """
    reference = policy.provenance.get("reference")
    columns = {} if reference is None else _read(reference)
    needed = {model for part in policy.policies for model in _reachable(part)}
    rows = _complete(columns, needed) if needed <= columns.keys() else []
    if not rows:
        money = policy.expected.get("money")  # where the cost counts what waiting is worth
        return Expectation(0, None, None, policy.expected.get("cost") if money is None else money, {})
    return _weighed(policy, columns, rows)


def _weighed(policy: AnyPolicy, columns: Mapping[str, _Answers], rows: list[int]) -> Expectation:
    steps = [
        (weight * odds, step)
        for weight, part in zip(policy.weights, policy.policies, strict=True)
        for row in rows
        for odds, step in _walk(part, columns, row)
    ]
    size = len(rows)
    answers = {
        model: math.fsum(weight for weight, step in steps if step.model == model and step.outcome == "answered") / size
        for model in policy.models
    }
    return Expectation(
        queries=size,
        answered=answers,
        abstained=math.fsum(weight for weight, step in steps if step.outcome == "abstained") / size,
        cost=math.fsum(weight * columns[step.model].costs[step.row] for weight, step in steps) / size,
        reach={model: _reach(model, columns, steps) for model in policy.models},
    )


def _reach(model: str, columns: Mapping[str, _Answers], steps: list[tuple[float, _Step]]) -> Reach:
    weights: dict[int, float] = {}
    sums: dict[int, float] = {}
    for weight, step in steps:
        if step.model == model and weight > 0:
            weights[step.row] = weights.get(step.row, 0.0) + weight
            sums[step.row] = sums.get(step.row, 0.0) + weight * step.confidence
    rows = sorted(weights, key=lambda row: columns[model].logprobs[row])
    return Reach(
        tuple(columns[model].logprobs[row] for row in rows),
        tuple(sums[row] / weights[row] for row in rows),
        tuple(weights[row] for row in rows),
    )


def _walk(policy: Policy, columns: Mapping[str, _Answers], row: int) -> list[tuple[float, _Step]]:
    """(probability, step) of a query, over its lots where the policy has shares."""
    steps: list[tuple[float, _Step]] = []
    to_ask: list[tuple[float, str, dict[str, str | None]]] = [(1.0, policy.first, {})]
    while to_ask:
        reaching, model, answers = to_ask.pop()
        code = columns[model].codes[row]
        answer = None if code < 0 else str(code)
        decisions = policy.decisions(model, logprob=columns[model].logprobs[row], answer=answer, answers=answers)
        for odds, decision in decisions:
            deferred = isinstance(decision, Defer)
            outcome = "deferred" if deferred else "abstained" if isinstance(decision, Abstain) else "answered"
            steps.append((reaching * odds, _Step(row, model, decision.confidence, outcome)))
            if deferred:
                to_ask.append((reaching * odds, decision.next_model, answers | {model: answer}))
    return steps


def _reachable(policy: Policy) -> set[str]:
    """The models that some query could reach: an adaptive policy may leave out one of its own."""
    reached = {policy.first}
    for model in policy.models:  # asks only go forward
        if model in reached:
            reached |= {rule.model for rule in policy.rules[model] if rule.model is not None}
            agreement = policy.agreements.get(model)
            reached |= {agreement.model} if agreement is not None and agreement.model is not None else set()
    return reached


def _complete(columns: Mapping[str, _Answers], models: set[str]) -> list[int]:
    """The queries that all these models have answered."""
    answered = [columns[model].logprobs for model in models]
    return [row for row in range(len(answered[0])) if not any(math.isnan(logprobs[row]) for logprobs in answered)]


def _read(data: Any) -> Mapping[str, _Answers]:
    """By model what `describe_reference` kept, as strictly as `read_reference` takes it."""
    try:
        entries = check.items(data, _PLACE, check.as_it_is)
        size = check.whole(entries.get("queries"), f"{_PLACE}.queries", 1)
        columns = check.items(entries.get("models"), f"{_PLACE}.models", partial(_column, size=size))
        check.require(len(columns) > 0, f"{_PLACE}.models", "must not be empty", {})
    except ValueError as problem:
        raise ValueError(f"the queries that the policy was tuned on are damaged: {problem}") from None
    return columns


def _column(value: Any, where: str, size: int) -> _Answers:
    data = check.items(value, where, check.as_it_is)
    logprobs = _unpacked(data.get("logprob"), f"{where}.logprob", "f", size)
    if data.get("score") is None:  # neither is needed here, but damage is damage
        _unpacked(data.get("correct"), f"{where}.correct", "B", -(-size // 8))
    else:
        _unpacked(data["score"], f"{where}.score", "f", size)
    relative = _unpacked(data.get("cost"), f"{where}.cost", "e", size)
    unit = check.amount(data.get("mean_cost"), f"{where}.mean_cost")
    check.require(not any(x > 0 for x in logprobs), f"{where}.logprob", "must hold nothing above 0", data["logprob"])
    sound = all(0 <= x < math.inf for x in relative)
    check.require(sound, f"{where}.cost", "must hold nothing below 0 or infinite", data["cost"])
    codes = (-1,) * size
    if data.get("answer") is not None:
        codes = tuple(map(int, _unpacked(data["answer"], f"{where}.answer", "h", size)))
    return _Answers(logprobs, tuple(x * unit for x in relative), codes)


def _unpacked(value: Any, where: str, kind: str, size: int) -> tuple[float, ...]:
    """So many little-endian numbers of a kind of `struct`, from base64."""
    try:
        content = base64.b64decode(check.name(value, where), validate=True)
    except ValueError:
        content = b""
    check.require(len(content) == size * _WIDTHS[kind], where, f"must be {size} numbers in base64", value)
    return struct.unpack(f"<{size}{kind}", content)
