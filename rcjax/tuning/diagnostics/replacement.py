"""Decide whether a retuned policy replaces the policy in service: the log is a fair sample, and the policy better.

A log without the hard queries makes a bad policy look good. So few calls of the log may have failed, and its labels
must be drawn at random. The new policy must keep its promise on the queries that the policy in service carries. It must
gain half a point of error on all known queries, fresh and carried, each policy at its own bill there, and lose no more
than a standard error in cross-validation. Without drift these rules replace .6 policies a year (`benchmarks.year`). The
sign of the cross-validated gain alone replaced eleven, without a benefit: that gain is of policies tuned on four fifths
of the queries, at the price λ.

If the policy in service has broken its promise, it is enough that the new policy is no worse on all known queries, or
comes nearer to the limit of its target (`--max-error`, `--match`, `--budget`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from rcjax._base.figures import Z95, count, percent
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.logs.oddities import uneven, unsure
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.spec import Target, recorded_tuning
from rcjax.tuning.diagnostics.checks import KINDS, CheckResult, CheckVerdict, adjusted
from rcjax.tuning.diagnostics.decision import LEAST_IMPROVEMENT, Replacement
from rcjax.tuning.replaying.comparing import ErrorsAndCosts, comparable_log, matched_today, name_today
from rcjax.tuning.replaying.replay import walk_log
from rcjax.tuning.retune import (
    FEWEST_QUERIES,
    carried_log,
    comparable_tuning,
    held_out_gain,
    retune,
    why_untested,
)
from rcjax.tuning.tune import Tuned

_CHANCE = 0.01  # level of the tests of labels: the share of false alarms where labels are drawn at random


_MATTERS = 0.02  # least excess of error that breaks a promise


def judge_answers(log: Log, models: Collection[str]) -> CheckResult:
    """Check the share of queries that a model, or the reference, failed to answer, among those that all were asked.

    Calls that were not made do not count (`Log.failed`), as a log may hold the queries of several policies.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> judge_answers(log, log.models).verdict
    'fine'
    """
    reference = "" if log.reference is None else log.reference.model
    lost = [one for one in log.failed if {*models} <= one.asked and {*models, reference} & one.failed]
    failed = sum(one.queries for one in lost)
    asked = failed + int(log.select([name for name in log.models if name in models]).complete.sum())
    kind, advice = KINDS["lacking answers"], ""
    verdict: CheckVerdict = "bad" if failed > kind.limits.bad * asked else "fine"
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
    """Check whether labels are drawn at random, and not more or less often where the cheapest model is unsure.

    There is a check for each set of partly labelled answers, on the queries that all models answered. Its figure is the
    difference between the shares of unsure queries among those labelled and among all. The p-value is raw.

    Args:
        log: the log.
        models: names of the models whose labels count, the cheapest first.
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
    """Check whether a log is a fair sample of the queries: few answers are missing, and labels are drawn at random.

    Args:
        log: the log.
        models: names of the models whose answers count, the cheapest first.
    """
    return [judge_answers(log, models), *adjusted(judge_labels(log, models), alarm=_CHANCE)]


def judge_replacement(policy: AnyPolicy, log: Log, tuned: Tuned | None = None, seed: int = 0) -> Replacement:
    """Judge whether a policy tuned again on a log replaces the policy in service.

    Args:
        policy: the policy in service.
        log: the fresh log.
        tuned: the result of `retune` on both; None: it is made here.
        seed: seed of the folds.
    """
    if tuned is None:
        try:
            tuned = retune(policy, log, bands=False)
        except ValueError as problem:  # infeasible, too few queries, or a policy made by hand
            return Replacement(None, (f"it cannot be tuned again: {problem}",))
    after = tuned.policy
    assert after is not None  # as there is a target
    if policy.period is not None:  # both spread the same money over the same queries a day
        after = dataclasses.replace(after, budget=policy.budget)  # type: ignore[type-var]
    lam, _ = comparable_tuning(policy, log)
    gain, improvement, untested, limit = None, None, None, ""
    try:
        if lam is None or tuned.log.n_queries < FEWEST_QUERIES:
            untested = _untested(policy, log)
        elif (improvement := _improvement(policy, after, tuned.log, lam)) <= LEAST_IMPROVEMENT:
            limit = _exceeded(policy, after, tuned.log)
        else:
            gain = held_out_gain(policy, log, seed, tuned)
            untested = _untested(policy, log) if gain is None else None
    except LogError as problem:
        return Replacement(None, (f"whether it gains was not tested: {problem}",))
    known = [name for name in log.models if name in {*policy.models, *after.models}]
    biased = [one.advice for one in judge_sample(log, known) if one.verdict == "bad"]
    return Replacement(improvement, tuple(filter(None, (*biased, _broken(policy, after, log), untested))), gain, limit)


def _improvement(before: AnyPolicy, after: AnyPolicy, log: Log, lam: float) -> float:
    """Return the mean loss of one policy minus that of another on a log, in errors per query: error + λ·cost."""
    log = comparable_log(log, (before, after))
    old, new = (ErrorsAndCosts.of(policy, log) for policy in (before, after))
    return float((old.wrong - new.wrong + lam * (old.spent - new.spent)).mean())


def _exceeded(before: AnyPolicy, after: AnyPolicy, log: Log) -> str:
    """Return the limit of a policy's target that it exceeds on a log, the other by less, in words; empty if none.

    The limit of a margin is today's error on the same queries plus the margin.
    """
    target = Target.of(**recorded_tuning(before).spec.target)
    today = matched_today(before, log)
    if target.name not in ("max_error", "match", "budget") or (target.name == "match" and today is None):
        return ""
    log = comparable_log(log, (before, after) if today is None else (before, after, today))
    old, new = (ErrorsAndCosts.of(policy, log) for policy in (before, after))
    had, has = (float((one.spent if target.name == "budget" else one.wrong).mean()) for one in (old, new))
    limit = target.value
    if target.name == "budget" and before.budget:
        limit = before.budget  # at the traffic of the log
    elif target.name == "match" and today is not None:
        limit += float(ErrorsAndCosts.of(today, log).wrong.mean())
    if had <= max(limit * (1 + 1e-9), has):
        return ""
    return target.describe(log.counted, "today's" if today is None else name_today(today))


def _broken(before: AnyPolicy, after: AnyPolicy, log: Log) -> str | None:
    """Say in words if the new policy breaks its promise on the queries that the policy in service carries; else None.

    It does if its error there exceeds both its promise and the other policy's error by two points, and significantly
    so (one-sided, 5 %).
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
    noun = log.counted.noun
    promised = after.expected.get("error")
    promise = f"{percent(promised)} {noun} is promised" if promised is not None else "less is promised"
    where = f"on the {count(len(new), 'query')} that the policy in service carries"
    return f"{where} it has {percent(new.mean())} {noun}, where {promise}, and that one has {percent(old.mean())}"


def _untested(before: AnyPolicy, log: Log) -> str | None:
    """Say in words why the gain was not tested, if another log could change that; else None."""
    why, mendable = why_untested(before, log)
    return f"whether it gains on queries left out was not tested: {why}" if mendable else None
