"""May a policy that was tuned again take the place of the one in service? What a fresh log shows, and what it hides.

A log from which hard queries are missing, or in which one question stands a thousand times, makes a bad policy look
good. So it must lack few answers, the new policy must keep its promise on the queries that the one in service carries,
too, and what is not shown to be better is not taken up.
"""

from __future__ import annotations

import math

import numpy as np

from rcjax._base.wording import count, percent
from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import read_reference
from rcjax.logs.log import Log
from rcjax.policy.policy import AnyPolicy
from rcjax.replaying.curves import error_interval
from rcjax.replaying.replay import replay, walk_log
from rcjax.tuning.retune import RetuningGain, recorded_tuning, why_untested

#: Of the queries, from which on those that lack an answer may be of another kind than the others.
MOST_LACKING = 0.05
_Z = 1.645  # one-sided, 5 %
_MATTERS = 0.02  # of error


def share_lacking(log: Log, models: tuple[str, ...]) -> float:
    """The share of the queries that lack the reference, or the answer of some of these models."""
    return _lacking(log, models) / (log.n_queries + log.unreferenced)


def tell_lacking(log: Log, models: tuple[str, ...]) -> str | None:
    """That more than 5 % of the queries lack an answer, and what that means; None where fewer do.

    >>> import rcjax
    >>> log = rcjax.sample_log(100, seed=0)
    >>> tell_lacking(log, log.models) is None
    True
    """
    if share_lacking(log, models) <= MOST_LACKING:
        return None
    answers = np.asarray(log.select(models).answered).sum(0)
    rarest = models[int(answers.argmin())]
    who = rarest if log.reference is None or not log.unreferenced else f"{log.reference.model}, the reference"
    whole = count(log.n_queries + log.unreferenced, "query")
    return (
        f"{_lacking(log, models):,} of {whole} lack an answer, most often that of {who}: what is left may be the "
        "easier part, and is no fair sample; look at why its calls failed (the column error), and log more"
    )


def _lacking(log: Log, models: tuple[str, ...]) -> int:
    return log.unreferenced + int((~log.select(models).complete).sum())


def why_not(before: AnyPolicy, after: AnyPolicy, log: Log, gain: RetuningGain | None) -> list[str]:
    """Why a policy tuned again on a log is not to take the place of the one in service, in words; empty where it may.

    Args:
        before: the policy in service.
        after: the new one.
        log: the fresh log.
        gain: what policies tuned again gain on queries left out (`held_out_gain`).
    """
    known = tuple(name for name in dict.fromkeys([*before.models, *after.models]) if name in log.models)
    return [why for why in (tell_lacking(log, known), _broken(before, after, log), _unshown(before, log, gain)) if why]


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


def _unshown(before: AnyPolicy, log: Log, gain: RetuningGain | None) -> str | None:
    """That it is not shown to be better, where the policy in service keeps to its limit, or that it is worse."""
    if gain is None:
        why, mendable = why_untested(before, log)
        return f"whether it gains on queries left out was not tested: {why}" if mendable else None
    if gain.better or (not gain.worse and breaks_limit(before, log)):
        return None
    share, spread = (100 * figure / (gain.loss or 1.0) for figure in (gain.gain.mean, gain.gain.se))
    what = f"{'lower' if share >= 0 else 'raise'} {log.counted.noun} + λ·cost by {abs(share):.1f} ± {spread:.1f} %"
    return f"it is not shown to be better: on queries left out policies tuned again {what}"


def breaks_limit(policy: AnyPolicy, log: Log) -> bool:
    """Whether a policy is shown, with 95 % confidence, to break the limit on error or money that it was tuned for.

    A ladder that follows its bill keeps to its budget.
    """
    spec = recorded_tuning(policy).spec
    if spec.budget is not None and not policy.follows:
        replayed = replay(policy, log)
        return float(replayed.spent) - _Z * float(np.nan_to_num(replayed.spent_se)) > spec.budget
    return spec.max_error is not None and float(error_interval(replay(policy, log), log)[0]) > spec.max_error
