"""Policies of segments, tuned again on a fresh log: for the same target, by the same column."""

import dataclasses
from typing import Any

from rcjax.frontier.frontier import Frontier
from rcjax.logs.errors import LogError
from rcjax.logs.listing import listed
from rcjax.logs.log import Log
from rcjax.logs.segments import UNTOLD
from rcjax.policy.mixture import Mixture
from rcjax.policy.policy import Policy
from rcjax.policy.record import recorded_asked, recorded_shares
from rcjax.policy.segmented import SegmentedPolicy
from rcjax.tuning.segment_trials import segment_names
from rcjax.tuning.tune_segments import tune_segments_in_stages

__all__ = ["retune_segments"]


def retune_segments(
    policy: SegmentedPolicy, log: Log, before: Any, bands: bool | None = None
) -> tuple[SegmentedPolicy, Frontier, tuple[str, ...]]:
    """(policies, the frontier of one for all, remarks): `rcjax.retune` of policies of segments, on a log with theirs.

    Shares that were given are taken again where they are of the same segments; else those of the fresh log count.
    Queries of the log that were told no segment count with those that share a policy.

    Args:
        policy: the policies in service.
        log: the fresh log.
        before: how they were tuned, a `rcjax.tuning.retune.Recorded`.
        bands: whether to draw intervals; None: as before.

    Raises LogError and InfeasibleError as `tune_segments` does.
    """
    if log.segment is None:
        raise LogError(f"{log.source}: the policy has segments by {policy.by}: read the log with by={policy.by!r}")
    tuning = before.within(log.models)
    absent = [name for name in before.models if name not in tuning.models]
    if len(tuning.models) < 2:
        raise LogError(f"{log.source}: it lacks {listed(absent)}: there are no two models left to tune")
    remarks = [f"the log lacks {listed(absent)}: tuned without"] if absent else []
    shares, here = recorded_shares(policy), segment_names(log)
    if shares is not None and set(shares) != set(here):
        remarks.append("the segments are others than before: their shares are those of the log")
        shares = None
    gone = [name for name in policy.segments if name not in here and name != UNTOLD]
    if gone:
        remarks.append(f"the log has no query of {listed(gone)}: the common policy takes them from now on")
    intervals = tuning.spec.intervals if bands is None else bands
    spec = dataclasses.replace(tuning.spec, segments=True, shares=shares, intervals=intervals)
    chosen = with_asked(dataclasses.replace(log.select(tuning.models), by=policy.by), policy)
    tuned = tune_segments_in_stages(chosen, None, spec)
    return (tuned.policy, tuned.whole.frontier, (*tuned.remarks, *remarks))


def with_asked(log: Log, policy: Policy | Mixture | SegmentedPolicy) -> Log:
    """The log, which for models that it does not tell it of takes from the policy how they were asked."""
    recorded = {model: how for model, how in recorded_asked(policy).items() if model in log.models}
    return dataclasses.replace(log, asked={**recorded, **(log.asked or {})} or None)
