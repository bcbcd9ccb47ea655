"""May a policy tuned again on a log replace the one in service? Is the log a fair sample, and is the policy not worse?

A log from which hard queries are missing, or in which one question stands a thousand times, makes a bad policy look
good. So few of its calls may have failed, its labels must be drawn at random, the new policy must keep its promise on
the queries that the one in service carries, too, and what is shown to be worse is not taken up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from rcjax._base.wording import count, percent
from rcjax.diagnostics.policy_verdicts import KINDS, judge_all
from rcjax.diagnostics.verdicts import Check, Verdict
from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import read_reference
from rcjax.logs.log import Log
from rcjax.logs.oddities import uneven, unsure
from rcjax.policy.policy import AnyPolicy
from rcjax.replaying.replay import walk_log
from rcjax.tuning.retune import RetuningGain, why_untested

_Z = 1.645  # one-sided, 5 %
_CHANCE = 0.01  # of logs whose labels are drawn at random, so many are told biased by them, at most
_MATTERS = 0.02  # of error


def judge_answers(log: Log, models: Collection[str]) -> Check:
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


def judge_labels(log: Log, models: Sequence[str]) -> Iterator[Check]:
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


def why_not(before: AnyPolicy, after: AnyPolicy, log: Log, gain: RetuningGain | None) -> list[str]:
    """Why a policy tuned again on a log is not to take the place of the one in service, in words; empty if it may.

    Args:
        before: the policy in service.
        after: the new one.
        log: the fresh log.
        gain: what policies tuned again gain on queries left out (`held_out_gain`).
    """
    known = [name for name in log.models if name in {*before.models, *after.models}]
    biased = [judge_answers(log, known), *judge_all(judge_labels(log, known), _CHANCE)]
    whys = [*(one.advice for one in biased if one.verdict == "bad"), _broken(before, after, log)]
    return [why for why in (*whys, _worse(before, log, gain)) if why]


def _broken(before: AnyPolicy, after: AnyPolicy, log: Log) -> str | None:
    """That it does not keep its promise on the queries that the policy in service carries, where that one does better.

    By more than two points of error, and than chance explains with 95 % confidence.
    """
    carried = before.provenance.get("reference")
    if carried is None:
        return None
    try:
        kept = read_reference(carried, log.task)
        kept = kept.take(kept.select([*{*before.models, *after.models}]).complete)
        new, old = (walk_log(policy, kept).wrong for policy in (after, before))
    except LogError:  # it lacks a model, or what they compare
        return None
    expected = after.expected.get("error_high") or after.expected.get("error")
    bar = max(old.mean(), 0.0 if expected is None else expected)
    spread = max(new.std(), math.sqrt(max(bar * (1 - bar), 0.0))) / math.sqrt(len(new))
    if new.mean() - bar <= max(_MATTERS, _Z * spread):
        return None
    noun, promised = log.counted.noun, after.expected.get("error")
    promise = f"{percent(promised)} {noun} is promised" if promised is not None else "less is promised"
    where = f"on the {count(len(new), 'query')} that the policy in service carries"
    return f"{where} it has {percent(new.mean())} {noun}, where {promise}, and that one has {percent(old.mean())}"


def _worse(before: AnyPolicy, log: Log, gain: RetuningGain | None) -> str | None:
    """That it is shown to be worse, or that nobody can tell."""
    if gain is None:
        why, mendable = why_untested(before, log)
        return f"whether it gains on queries left out was not tested: {why}" if mendable else None
    if worth_it(gain):
        return None
    return f"it is shown to be worse: on queries left out policies tuned again {gain.describe(log.counted.noun)}"


def worth_it(gain: RetuningGain) -> bool:
    """Whether a policy tuned again is to take the place of one in service, by what it gains: unless it is worse."""
    return not gain.worse
