"""What held-out queries say of a limit on the seconds that all but a share of the queries keep to: a binomial test."""

import dataclasses

import numpy as np

from rcjax.frontier.frontier import Frontier
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.policy.limits import SecondsLimit
from rcjax.replaying.packing import columns_of, pack_frontier
from rcjax.replaying.waiting import path_mixtures, seconds_columns
from rcjax.tuning.p_values import binomial_tail, bounded_mean_p_value, upper_limit

__all__ = ["Beyond", "count_beyond"]


@dataclasses.dataclass(frozen=True)
class Beyond:
    """How many of n held-out queries waited longer than a limit under one policy.

    >>> beyond = Beyond(SecondsLimit.of("p95=4"), 3, 200)
    >>> round(beyond.p_value, 4), round(beyond.bound(0.05), 4)
    (0.009, 0.0383)
    """

    limit: SecondsLimit
    count: int
    n: int
    """Those whose seconds are known along the whole path."""
    share: float | None = None
    """The share of them that waits longer, where lots decide which and the count is rounded; None: counted."""

    @property
    def p_value(self) -> float:
        """Of the null that a larger share of the queries waits longer than the limit allows; exact if counted."""
        assert self.limit.share is not None
        return self._tail(1 - self.limit.share)

    def bound(self, level: float) -> float:
        """Upper confidence limit of the share of queries that wait longer (Clopper & Pearson 1934)."""
        return upper_limit(self._tail, level)

    def _tail(self, share: float) -> float:
        if self.share is None:
            return binomial_tail(self.count, self.n, share)
        return bounded_mean_p_value(self.share, self.n, share) if self.n else 1.0


def count_beyond(frontier: Frontier, log: Log, limit: SecondsLimit) -> list[Beyond]:
    """What the policies (L,) of a frontier come to on a held-out log.

    Args:
        frontier: the frontier.
        log: the held-out log.
        limit: for a share of the queries.

    Raises LogError where the log tells no seconds, ValueError for a limit on the mean.
    """
    if limit.share is None:
        raise ValueError("max_seconds of a mean cannot be guaranteed: give a share of the queries, such as p95=4")
    packed = pack_frontier(frontier, log.logprob.dtype)
    logprob, _, _, codes = columns_of(log, frontier.models, packed.asked)
    told = seconds_columns(log, frontier.models, packed.asked)
    if told is None:
        raise LogError(f"{log.source}: no column seconds (or latency_ms): a limit on the seconds needs it")
    counts = []
    for paths, _ in path_mixtures(packed, logprob, told, codes):
        known = ~np.any([np.isnan(waits) for _, waits in paths], axis=0)
        longer, n = sum(weight * int((waits[known] > limit.seconds).sum()) for weight, waits in paths), int(known.sum())
        counts.append(Beyond(limit, round(longer), n, None if len(paths) == 1 else longer / max(n, 1)))
    return counts
