"""Policies of segments on logged queries: each query by the policy of its segment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.policy.policy import AnyPolicy, Policy

__all__ = ["UNKNOWN", "replay_segments", "replay_whole", "split_segments"]


#: What queries of no known segment stand under; no segment has this name.
UNKNOWN = ""


Replaying = Callable[[Policy, Log], Any]
"""What one policy did on a log."""


_MEANS = ("error", "cost", "spent", "abstention")


def split_segments(policy: AnyPolicy, log: Log) -> dict[str, Log]:
    """The queries of a log by segment that the policy knows, and under "" those of no known one; none is empty.

    Raises LogError for a log that was read without segments.
    """
    if log.segment is None:
        how = f"read it with by={policy.by!r}"
        raise LogError(f"{log.source}: the policy has segments by {policy.by}, and the log tells none: {how}")
    names = np.array([name if policy.knows(name) else UNKNOWN for name in log.segment], object)
    return {name: log.take(names == name) for name in (*policy.segments, UNKNOWN) if (names == name).any()}


def replay_segments(policy: AnyPolicy, log: Log, replay: Replaying) -> dict[str, Any]:
    """By segment, as `split_segments` has them, what `replay` tells; where some query has the answers that it takes.

    Args:
        policy: the policies.
        log: a log with segments.
        replay: `rcjax.replay`.

    Raises LogError where there is no such query at all, and as `replay` does.
    """
    replays, problem = {}, None
    for name, part in split_segments(policy, log).items():
        answering = policy.part(segment=name)
        try:
            replays[name] = replay(answering, part)
        except LogError as error:
            if set(answering.models) <= set(log.models) and not part.select(answering.models).complete.any():
                problem = error
                continue
            raise
    if not replays:
        assert problem is not None
        raise problem
    return replays


def replay_whole(policy: AnyPolicy, log: Log, replay: Replaying) -> Any:
    """A `Replay` of all queries of a log, each under the policy of its segment, by the mix of the log.

    Args:
        policy: the policies.
        log: a log with segments.
        replay: `rcjax.replay`.

    Standard errors are those of the segments' means together: how many queries each segment has counts as known.
    """
    replays = replay_segments(policy, log, replay)
    n = sum(one.n for one in replays.values())
    weights = {name: one.n / n for name, one in replays.items()}
    dtype = log.logprob.dtype
    figures: dict[str, float] = {
        what: sum(w * float(getattr(replays[name], what)) for name, w in weights.items()) for what in _MEANS
    }
    for what in ("error", "cost", "spent"):
        spreads = ((w * np.nan_to_num(float(getattr(replays[name], f"{what}_se")))) ** 2 for name, w in weights.items())
        figures[f"{what}_se"] = float(np.sqrt(sum(spreads))) if n > 1 else float("nan")
    share = np.zeros(len(policy.models))
    for name, weight in weights.items():
        for model, answered in zip(replays[name].models, np.asarray(replays[name].share, float), strict=True):
            share[policy.models.index(model)] += weight * answered
    columns = jax.device_put({name: np.asarray(value, dtype) for name, value in {**figures, "share": share}.items()})
    return dataclasses.replace(next(iter(replays.values())), **columns, n=n, models=policy.models)
