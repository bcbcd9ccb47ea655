"""Is a policy tuned again on a log to replace the one in service? Is the log a fair sample, and the policy better?

A log from which hard queries are missing, or in which one question stands a thousand times, makes a bad policy look
good. So few of its calls may have failed, its labels must be drawn at random, the new policy must keep its promise on
the queries that the one in service carries, too. And it must be expected to be better on queries left out: of policies
that were swapped unless shown to be worse, three times as many were, for the same errors in the end, and now and then
for a point more (`benchmarks.year`). Only a promise that is broken is renewed by what is as good.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from rcjax._base.normal_law import Z95
from rcjax._base.wording import count, percent
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.logs.oddities import uneven, unsure
from rcjax.policy.counted import Counted
from rcjax.policy.policy import AnyPolicy
from rcjax.tuning.diagnostics.checks import KINDS, CheckResult, Verdict, adjusted
from rcjax.tuning.replaying.replay import walk_log
from rcjax.tuning.retune import RetuningGain, carried_log, held_out_gain, retune, why_untested
from rcjax.tuning.tune import Tuned

_CHANCE = 0.01  # of logs whose labels are drawn at random, so many are told biased by them, at most
_MATTERS = 0.02  # of error


def judge_answers(log: Log, models: Collection[str]) -> CheckResult:
    """The share of queries that some of these models, or the reference, failed to answer, of those that all were asked.

    Calls that nobody made are another thing (`Log.failed`): a log may hold the queries of several policies.

    >>> import rcjax
    >>> log = rcjax.sample_log(100, seed=0)
    >>> judge_answers(log, log.models).verdict
    'fine'
    """
    reference = "" if log.reference is None else log.reference.model
    lost = [one for one in log.failed if {*models} <= one.asked and {*models, reference} & one.failed]
    failed = sum(one.queries for one in lost)
    asked = failed + int(log.select([name for name in log.models if name in models]).complete.sum())
    kind, advice = KINDS["lacking answers"], ""
    verdict: Verdict = "bad" if failed > kind.limits.bad * asked else "fine"
    if verdict == "bad":
        by_model = {name: sum(one.queries for one in lost if name in one.failed) for name in (*models, reference)}
        most = max(by_model, key=lambda name: by_model[name])
        advice = (
            f"an answer is missing for {failed:,} of {count(asked, 'query')}, most often one of {most}"
            f"{', the reference' * (most == reference)}: what is left may be the easier part, and is no fair sample; "
            "look at why (the column error of a call log), and log more"
        )
    return kind.judged("", failed / max(asked, 1), advice, verdict=verdict)


def judge_labels(log: Log, models: Sequence[str]) -> Iterator[CheckResult]:
    """Are labels drawn at random? They are not where queries that the cheapest model is unsure of have more, or fewer.

    A check for each set of answers that are labelled in part, of the queries that all these models answered. Its figure
    is by how much the share of such queries among those labelled differs from that among all; its p-value is raw.

    Args:
        log: the log.
        models: the models whose labels count, the cheapest first.
    """
    log = log.select(models)
    log = log.take(log.complete) if log.complete.any() else log
    sure = np.asarray(log.logprob, float)[:, 0]
    doubted = unsure(sure)
    sets = {labelled.tobytes(): (name, labelled) for name, labelled in zip(models, log.labelled.T, strict=True)}
    for name, labelled in sets.values():
        if labelled.all() or not labelled.any() or not doubted.any():
            continue
        gap, p_value = uneven(sure, labelled)
        low, high = (percent(float(labelled[part].mean())) for part in (doubted, ~doubted))
        advice = (
            f"{low} of the answers of {name} have a label where {models[0]} is less sure, {high} where it is surer: "
            "labels that are not drawn at random tell little of the rest; draw others (rcjax label)"
        )
        yield KINDS["labels"].judged(name, gap, advice, p_value=p_value)


def judge_sample(log: Log, models: Sequence[str]) -> list[CheckResult]:
    """Is a log a fair sample of the queries: are answers missing, are labels drawn at random?

    Args:
        log: the log.
        models: the models whose answers count, the cheapest first.
    """
    return [judge_answers(log, models), *adjusted(judge_labels(log, models), alarm=_CHANCE)]


@dataclasses.dataclass(frozen=True)
class Replacement:
    """Whether a policy tuned again on a log is to take the place of the one in service."""

    gain: RetuningGain | None
    """What policies tuned again gain on queries left out; None where that was not tested."""
    against: tuple[str, ...]
    """What is wrong with the log or the new policy, in words; empty where it may take the other's place."""

    @property
    def acceptable(self) -> bool:
        """Whether nothing is wrong, and it is not shown to be worse: it may renew a promise that is broken."""
        return not self.against and (self.gain is None or not self.gain.worse)

    @property
    def accepted(self) -> bool:
        """Whether it takes the place of a policy that keeps its promise: a gain is expected, where that can be told."""
        return not self.against and (self.gain is None or self.gain.expected)

    def in_words(self, counted: Counted) -> tuple[str, ...]:
        """What it gains, or what speaks against it."""
        if self.against or self.gain is None:
            return self.against
        return (f"tuned again, it would {self.gain.describe(counted.noun)}, on queries left out",)

    def to_json(self) -> dict[str, Any]:
        """The figures of the gain, whether it is accepted, and what speaks against it."""
        gain = {} if self.gain is None else self.gain.to_json() | {"p_value": self.gain.p_value}
        return gain | {"accepted": self.accepted, "against": list(self.against)}


def judge_replacement(policy: AnyPolicy, log: Log, tuned: Tuned | None = None, seed: int = 0) -> Replacement:
    """Whether a policy tuned again on a log is to take the place of the one in service.

    Args:
        policy: the policy in service.
        log: the fresh log.
        tuned: what `retune` makes of both, where it is there already.
        seed: of the folds.
    """
    if tuned is None:
        try:
            tuned = retune(policy, log, bands=False)
        except ValueError as problem:  # infeasible, too few queries, or a policy made by hand
            return Replacement(None, (f"it cannot be tuned again: {problem}",))
    after = tuned.policy
    assert after is not None  # as there is a target
    try:
        gain = held_out_gain(policy, log, seed, tuned)
    except LogError as problem:
        return Replacement(None, (f"whether it gains was not tested: {problem}",))
    known = [name for name in log.models if name in {*policy.models, *after.models}]
    biased = [one.advice for one in judge_sample(log, known) if one.verdict == "bad"]
    untested = None if gain is not None else _untested(policy, log)
    against = (*biased, _broken(policy, after, log), untested)
    return Replacement(gain, tuple(filter(None, against)))


def _broken(before: AnyPolicy, after: AnyPolicy, log: Log) -> str | None:
    """That it does not keep its promise on the queries that the policy in service carries, where that one does better.

    By more than two points of error, and than chance explains with 95 % confidence.
    """
    if before.provenance.get("reference") is None or not before.calibrations:
        return None
    kept = carried_log(before)
    try:
        kept = kept.take(kept.select([*{*before.models, *after.models}]).complete)
        new, old = (walk_log(policy, kept).wrong for policy in (after, before))
    except LogError:  # it lacks a model, or what they compare
        return None
    expected = after.expected.get("error")
    bar = max(old.mean(), 0.0 if expected is None else expected)
    spread = max(new.std(), math.sqrt(max(bar * (1 - bar), 0.0))) / math.sqrt(len(new))
    if new.mean() - bar <= max(_MATTERS, Z95 * spread):
        return None
    noun, promised = log.counted.noun, after.expected.get("error")
    promise = f"{percent(promised)} {noun} is promised" if promised is not None else "less is promised"
    where = f"on the {count(len(new), 'query')} that the policy in service carries"
    return f"{where} it has {percent(new.mean())} {noun}, where {promise}, and that one has {percent(old.mean())}"


def _untested(before: AnyPolicy, log: Log) -> str | None:
    """That nobody can tell whether it gains, where another log could."""
    why, mendable = why_untested(before, log)
    return f"whether it gains on queries left out was not tested: {why}" if mendable else None
