"""Policies for the segments of a log under one budget: from the log to what is deployed, and what that gains.

`tune_segments` is what `rcjax tune --by` does.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from rcjax.copulas import Copula
from rcjax.frontier.frontier import Frontier, InfeasibleError
from rcjax.frontier.policy_provenance import describe_tuning
from rcjax.logs.errors import LogError
from rcjax.logs.listing import listed
from rcjax.logs.log import Log
from rcjax.logs.query_segments import UNTOLD
from rcjax.policy.policy import Policy
from rcjax.policy.segmented import SegmentedPolicy
from rcjax.policy.spec import Spec
from rcjax.policy.targets import Target
from rcjax.tuning.overlap import hold_out
from rcjax.tuning.segment_budget import Allocation, allocate
from rcjax.tuning.segment_frontiers import Traffic, own_traffic, queries_of, shared_traffic
from rcjax.tuning.segment_promise import SegmentsCertificate, certify_segments
from rcjax.tuning.segment_trials import Trials, segment_names, try_segments
from rcjax.tuning.tune import Tuned, search_in_stages
from rcjax.tuning.tuned_segments import SegmentFigures, TunedSegments

__all__ = ["tune_segments", "tune_segments_in_stages"]


_SUM = 1e-6  # by which given shares may miss 1


def tune_segments(
    log: Log,
    *,
    budget: float | None = None,
    max_error: float | None = None,
    error_cost: float | None = None,
    lam: float | None = None,
    shares: Mapping[str, float] | None = None,
    confidence: float | None = None,
    held_out: Log | None = None,
    copula: str | type[Copula] = "gumbel",
    intervals: bool = True,
) -> TunedSegments:
    """A policy for each segment of a log, at the one λ that meets a target over the whole traffic.

    One λ for all is what spends a budget best (`rcjax.tuning.segment_budget`). Policies of a segment are judged by its
    own labels and everyone's, with weights by cross-validation. A segment has a policy of its own only where that gains
    in cross-validation; the others share one, which is tuned on them where they are half of the log, else on everyone.

    Args:
        log: the log to learn from, read with `by=`.
        budget, max_error, error_cost, lam: exactly one target, of the whole traffic, as `Frontier.policy` takes it.
        shares: of the traffic, by segment, with sum 1; by default those of the log's queries.
        confidence: guarantee the `max_error` or `budget` of the whole traffic with this probability, by a test on
            queries that the tuning does not see, and limit the error of each segment.
        held_out: the log of these queries, read with `by=`; by default half of those of `log`, drawn at random.
        copula: how the confidences of two models depend on each other, as `fit` takes it.
        intervals: draw intervals around the frontier of one policy for all.

    Raises InfeasibleError where nothing meets the target; ValueError for options that do not go together; LogError for
    a log without segments, shares that are not of its segments, and as `tune` does.

    >>> import dataclasses, rcjax
    >>> log = rcjax.sample_log(400, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> log = dataclasses.replace(log, by="language", segment=("de", "en") * 200)  # as read_log(…, by="language") does
    >>> tuned = rcjax.tune_segments(log, budget=150e-6, intervals=False)
    >>> tuned.policy.own, tuned.policy.segment("de").models
    ((), ('llama3.2-1b', 'llama3.1-70b'))
    """
    target = Target.of(budget=budget, max_error=max_error, error_cost=error_cost, lam=lam)
    how: dict[str, Any] = {"confidence": confidence, "fit": {"copula": copula}, "intervals": intervals}
    spec = Spec((target,), segments=True, shares=shares, **how).check(held_out is not None)
    return tune_segments_in_stages(log, held_out, spec)


def tune_segments_in_stages(
    log: Log, held_out: Log | None, spec: Spec, stage: Callable[[str], AbstractContextManager[Any]] = nullcontext
) -> TunedSegments:
    """`tune_segments` as a spec says, telling what it is at.

    Args:
        log: the log to learn from.
        held_out: queries for the test of a guarantee; None where they are to be split off.
        spec: how to tune, for a target of the whole traffic.
        stage: entered for each part of the work, with what it is in words.
    """
    require_segments(log)
    shares = None if spec.shares is None else _checked(spec.shares, log)
    if held_out is not None:
        require_segments(held_out)
    log, held_out = hold_out(log, held_out, spec.confidence)
    if len(spec.targets) != 1:
        raise ValueError(f"policies of segments are for one target, not {len(spec.targets)}")
    (target,) = spec.targets
    plain = Spec(spec.targets, fit=spec.fit, transform=spec.transform, intervals=spec.intervals)
    whole = search_in_stages(log, None, plain, stage)
    with stage("trying policies of segments"):
        trials = try_segments(log, whole.model, _head_start(whole))
        mix = shares or _shares_of(log)
        work = _Work(whole, trials, _traffics(whole, trials, mix, plain), mix, spec)
    if spec.confidence is None or held_out is None:
        return _told(work, allocate([traffic.menu for traffic in work.traffics], target))
    with stage("testing the guarantee"):
        allocation, certificate = certify_segments(work.traffics, held_out, target, spec.confidence, shares)
    return dataclasses.replace(_told(work, allocation, certificate), held_out=held_out)


class _Work(NamedTuple):
    """What there is to choose policies from."""

    whole: Tuned
    trials: Trials
    traffics: tuple[Traffic, ...]
    mix: Mapping[str, float]  # shares of the traffic, of queries that were told no segment too
    spec: Spec


def require_segments(log: Log) -> None:
    """Refuse a log that was read without segments, or has but one. Raises LogError."""
    if log.segment is None:
        raise LogError(f"{log.source}: it tells no segments: read it with by=, the column that does (--by COLUMN)")
    if len(segment_names(log)) < 2:
        only = ", ".join(segment_names(log)) or "none"
        raise LogError(f"{log.source}: its column {log.by} tells only one segment, {only}: tune without by")


def _checked(shares: Mapping[str, float], log: Log) -> dict[str, float]:
    """Shares of the traffic by segment, which sum to 1; LogError for others."""
    names, where = segment_names(log), f"{log.source}: shares"
    unknown, missing = [name for name in shares if name not in names], [name for name in names if name not in shares]
    if unknown or missing:
        what = f"name {listed(unknown)}" if unknown else f"lack {listed(missing)}"
        raise LogError(f"{where} {what}: give one of each segment of the log: {listed(names)}")
    values = {name: float(share) for name, share in shares.items()}
    total = math.fsum(values.values())
    if not all(math.isfinite(share) and share > 0 for share in values.values()) or abs(total - 1) > _SUM:
        raise LogError(f"{where} sum to {total:.6g}: they must be above 0 and sum to 1 (100 %)")
    return {name: share / total for name, share in values.items()}


def _shares_of(log: Log, rows: Any = slice(None)) -> dict[str, float]:
    """The shares of segments among queries of a log, those without one among them."""
    names = np.array(log.segment, object)[rows].tolist()
    return {name: names.count(name) / len(names) for name in dict.fromkeys(names)}


def _head_start(whole: Tuned) -> float:
    """What longer chains or comparing answers gain on pairs, with which segments are tried, as a share of the loss."""
    if whole.selection is None:
        return 0.0
    comparison, gains = whole.selection.comparison, [0.0]
    if comparison.agreeing.any() and comparison.agreement is not None:
        gains.append(comparison.agreement.overall.mean)
    gains += [
        float(comparison.overall[comparison.lengths == length][0]) for length in {*comparison.chosen} if length > 2
    ]
    return max(gains)


def _traffics(whole: Tuned, trials: Trials, mix: Mapping[str, float], spec: Spec) -> tuple[Traffic, ...]:
    """The kinds of traffic: the segments with policies of their own, and last the others, if there are any."""
    log, model = whole.log, whole.model
    separate = tuple(own_traffic(log, model, trials, name, mix[name]) for name in trials.earned)
    rest = {name: share for name, share in mix.items() if name not in trials.earned}
    if not rest:
        return separate
    rows = queries_of(log, *rest)
    complete = log.complete
    frontier, tuned_on = whole.frontier, _shares_of(log, complete)
    if separate and 2 * complete[rows].sum() >= complete.sum():
        frontier = search_in_stages(log.take(rows), None, dataclasses.replace(spec, intervals=False)).frontier
        tuned_on = _shares_of(log, rows[complete[rows]])
    return (*separate, shared_traffic(frontier, log, rest, tuned_on))


def _told(work: _Work, allocation: Allocation, certificate: SegmentsCertificate | None = None) -> TunedSegments:
    """The policies for an allocation, and what there is to say of them."""
    log, mix = work.whole.log, work.mix
    common, policies = _policies(work, allocation)
    menus = [(traffic.menu, position) for traffic, position in zip(work.traffics, allocation.positions, strict=True)]
    figures = _figures(log, work.trials, policies, mix)
    expected = {
        "error": float(sum(menu.share * menu.error[position] for menu, position in menus)),
        "cost": float(sum(menu.share * menu.cost[position] for menu, position in menus)),
        "lam": allocation.lam,
        "error_cost": 1 / allocation.lam if allocation.lam > 0 else None,
    }
    policy = SegmentedPolicy(
        common=common,
        segments={name: policies[name] for name in segment_names(log)},
        shares={name: mix[name] for name in segment_names(log)},
        by=str(log.by),
        expected=expected,
        provenance=_provenance(work.whole, figures, work.spec, certificate),
    )
    gain = _gain(work.trials, mix)
    one = _one_policy(work.whole, mix)
    return TunedSegments(work.whole, work.trials, policy, one, figures, *gain, certificate, traffics=work.traffics)


def _policies(work: _Work, allocation: Allocation) -> tuple[Policy, dict[str, Policy]]:
    """(the common policy, that of each segment by name) for an allocation."""
    log, target = work.whole.log, work.whole.target
    policies: dict[str, Policy] = {}
    common: Policy | None = None
    for traffic, position in zip(work.traffics, allocation.positions, strict=True):
        if traffic.shared:
            common = traffic.frontier.point(position, target)
        for name in traffic.names:
            if name != UNTOLD:
                policies[name] = traffic.frontier_of(name, log).point(position, target)
    if common is None:  # every segment has its own: queries of others get what is best for all at this λ
        common = work.whole.frontier.policy(lam=allocation.lam)
    return common, policies


def _figures(
    log: Log, trials: Trials, policies: Mapping[str, Policy], mix: Mapping[str, float]
) -> tuple[SegmentFigures, ...]:
    counts = {name: len(queries_of(log, name)) for name in segment_names(log)}
    return tuple(
        SegmentFigures(
            name=name,
            queries=queries,
            share=mix[name],
            own=name in trials.earned,
            weight=trials.segments[name].weight,
            gain=float(trials.segments[name].gain.mean),
            gain_se=float(trials.segments[name].gain.se),
            error=float(policies[name].expected["error"] or 0.0),
            cost=float(policies[name].expected["cost"] or 0.0),
        )
        for name, queries in counts.items()
    )


def _provenance(
    whole: Tuned,
    figures: Sequence[SegmentFigures],
    spec: Spec,
    certificate: SegmentsCertificate | None,
) -> dict[str, Any]:
    """Where the policies come from, and what it takes to tune them again; the queries are with the common policy."""
    record = describe_tuning(whole.frontier, whole.target)
    record.pop("reference", None)
    shares = None if spec.shares is None else {name: float(share) for name, share in spec.shares.items()}
    record["tuning"] = {**record["tuning"], "bands": spec.intervals, "shares": shares}
    names = "queries", "own", "weight", "gain", "gain_se"
    record["segments"] = {one.name: {name: getattr(one, name) for name in names} for one in figures}
    return record if certificate is None else record | {"guarantee": certificate.to_json()}


def _gain(trials: Trials, mix: Mapping[str, float]) -> tuple[float, float]:
    """(gain on one policy for all, its standard error) over the whole traffic, as shares of its loss."""
    tried = {name: one for name, one in trials.segments.items() if one.weight is not None}
    earned = trials.earned
    if not earned:
        return 0.0, 0.0
    loss = sum(mix[name] * one.loss for name, one in tried.items()) / sum(mix[name] for name in tried)
    parts = {name: float(np.mean(mix[name] * tried[name].loss / loss)) for name in earned}
    gain = sum(parts[name] * tried[name].gain.mean for name in earned)
    return float(gain), math.sqrt(sum((parts[name] * tried[name].gain.se) ** 2 for name in earned))


def _one_policy(whole: Tuned, mix: Mapping[str, float]) -> Policy | None:
    """One policy for all at the target, with what is expected of it in this traffic."""
    frontier: Frontier = whole.frontier
    traffic = shared_traffic(frontier, whole.log, mix, _shares_of(whole.log, whole.log.complete))
    try:
        (position,) = allocate([traffic.menu], Target.of(**whole.target)).positions
    except InfeasibleError:
        return None
    policy = frontier.point(position, whole.target)
    expected = {"error": float(traffic.menu.error[position]), "cost": float(traffic.menu.cost[position])}
    return dataclasses.replace(policy, expected={**policy.expected, **expected})
