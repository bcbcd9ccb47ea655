"""Are the policies of segments still right, and which segment has drifted?"""

import dataclasses
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from rcjax._base.wording import percent
from rcjax.diagnostics.policy_check import PolicyCheck, check_policy
from rcjax.diagnostics.verdicts import Verdict
from rcjax.logs.errors import LogError
from rcjax.logs.listing import listed
from rcjax.logs.log import Log
from rcjax.policy.segmented import SegmentedPolicy
from rcjax.replaying.by_segment import UNKNOWN, split_segments
from rcjax.tuning.overlap import overlap_with_tuned

__all__ = ["SegmentsCheck", "check_segments"]


_FEWEST = 30  # queries of a segment that all models which may be asked have answered


_MOVED = 0.05  # of the traffic, from which a change of the mix is worth a word


@dataclasses.dataclass(frozen=True)
class SegmentsCheck:
    """What a fresh log says of the policies of segments."""

    source: str
    """The fresh log."""
    by: str
    """The column that tells the segments."""
    alarm: float
    """How likely there is any alarm, in any segment, at most, where nothing has changed."""
    segments: Mapping[str, PolicyCheck]
    """Of each segment with queries enough; each at its part of the `alarm`."""
    untested: Mapping[str, int]
    """Known segments with too few queries, and how many they have."""
    unknown: int
    """Queries of no known segment: the common policy takes them."""
    shares: Mapping[str, float]
    """The share of each known segment in the fresh log."""
    remarks: tuple[str, ...]
    """What is worth knowing besides."""

    @property
    def drifted_segments(self) -> tuple[str, ...]:
        """The segments in which something has drifted."""
        return tuple(name for name, check in self.segments.items() if check.drifted)

    @property
    def drifted(self) -> bool:
        """Whether any has."""
        return bool(self.drifted_segments)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all segments."""
        verdicts = {check.verdict for check in self.segments.values()}
        return "bad" if "bad" in verdicts else "doubtful" if "doubtful" in verdicts else "fine"

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        summary = {"drifted": self.drifted, "verdict": self.verdict, "drifted_segments": list(self.drifted_segments)}
        parts = {name: check.to_json() for name, check in self.segments.items()}
        return summary | fields | {"segments": parts, "remarks": list(self.remarks)}


def check_segments(policy: SegmentedPolicy, log: Log, *, alarm: float = 0.05, seed: int = 0) -> SegmentsCheck:
    """Are the policies of segments still right on a fresh log, which was read with their column, `by=policy.by`?

    Each segment is checked by itself, as `check_policy` does, against the queries of it that its policy carries, at an
    equal part of the `alarm`. Segments with fewer than 30 queries are not tested. What tuning again would gain is not
    asked.

    Args:
        policy: the policies in service.
        log: the fresh log.
        alarm: the probability of any alarm where nothing has changed, in (0, 1).
        seed: of the permutations.

    Raises LogError where the log tells no segments, is the one tuned on, or no segment has queries enough; ValueError
    as `check_policy` does.
    """
    parts = split_segments(policy, log)
    if overlap_with_tuned(log, policy).whole:
        raise LogError(f"{log.source}: the policy was tuned on this very log: check it on fresh queries")
    sizes = {name: _complete(policy, name, parts.get(name)) for name in policy.segments}
    tested = [name for name, size in sizes.items() if size >= _FEWEST]
    if not tested:
        raise LogError(f"{log.source}: no segment has {_FEWEST} queries with all answers: log more")
    checks = {
        name: check_policy(policy.segment(name), parts[name], alarm=alarm / len(tested), retuning=False, seed=seed)
        for name in tested
    }
    shares = {name: (parts[name].n_queries if name in parts else 0) / log.n_queries for name in policy.segments}
    untested = {name: size for name, size in sizes.items() if size < _FEWEST}
    unknown = parts[UNKNOWN].n_queries if UNKNOWN in parts else 0
    remarks = tuple(_remarks(policy, shares, untested, unknown))
    return SegmentsCheck(PurePath(log.source).name, policy.by, alarm, checks, untested, unknown, shares, remarks)


def _complete(policy: SegmentedPolicy, name: str, part: Log | None) -> int:
    """The queries of a segment that all models which may be asked have answered."""
    return 0 if part is None else int(part.select(policy.segment(name).models).complete.sum())


def _remarks(
    policy: SegmentedPolicy, shares: Mapping[str, float], untested: Mapping[str, int], unknown: int
) -> list[str]:
    remarks = []
    if untested:
        few = listed([f"{name} ({size:,})" for name, size in untested.items()])
        remarks.append(f"too few queries to test, below {_FEWEST}: {few}")
    if unknown:
        taken = "the common policy takes them; they are not tested"
        remarks.append(f"{unknown:,} queries are of no known segment: {taken}")
    moved = [name for name, share in shares.items() if abs(share - policy.shares[name]) > _MOVED]
    if moved:
        was = ", ".join(f"{name} {percent(policy.shares[name])} to {percent(shares[name])}" for name in moved)
        remarks.append(f"the mix has changed, and with it what is spent ({was}): rcjax retune spends the budget anew")
    return remarks
