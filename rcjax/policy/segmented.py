"""A policy for each segment of the traffic, such as a language, under one budget. Standard library only.

`rcjax tune --by` and `rcjax.tune_segments` make one, and a service loads it with nothing but the standard library:

    policies = load_policy("policy.json")
    decision = policies.segment("de").step(model, logprob=logprob)  # segments that it does not know: policies.common
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rcjax._base import json_checks as check
from rcjax.policy.policy import AnyPolicy, Decision, Policy, part_from

__all__ = ["SegmentedPolicy"]


@dataclass(frozen=True, slots=True)
class SegmentedPolicy(AnyPolicy):
    """A policy for each segment, and a common one: immutable, safe to share between threads, equal by value, picklable.

    Every known segment has a policy, with what is expected of it there. Where the segment did not earn one of its own
    it does what the common policy does.

    Args:
        common: the policy of queries of no known segment.
        segments: the policy of each segment, by name.
        shares: the share of the traffic that each segment has, above 0, with sum at most 1 (to 1e-9).
        by: the column of a log that tells the segment.
        expected: what the tuning promised of the whole traffic: `"error"`, `"cost"`, `"lam"`, `"error_cost"`, …
        provenance: where the policies come from; any JSON values.

    What cannot be right raises ValueError with its place.

    Example:
        >>> from rcjax.policy import Calibration, Rule
        >>> plain = Calibration("none", intercept=0.0, slope=1.0, smallest=-9.0, largest=0.0)
        >>> small, large = (
        ...     Policy((name,), {name: plain}, {name: [Rule(1, "answer")]}, {name: cost})
        ...     for name, cost in (("small", 1e-5), ("large", 2e-4))
        ... )
        >>> policies = SegmentedPolicy(large, {"de": large, "en": small}, {"de": 0.2, "en": 0.8}, by="language")
        >>> policies.segment("en").first, policies.segment("fr").first, policies.own, policies.models
        ('small', 'large', ('en',), ('small', 'large'))
    """

    FORMAT = "rcjax-segments"
    _keys = "by", "shares", "expected", "common", "segments", "provenance"

    common: Policy
    segments: Mapping[str, Policy] = field()  # `field()`, as what `AnyPolicy` has is no default
    shares: Mapping[str, float] = field()
    by: str = field()
    expected: Mapping[str, float | None] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)  # the class is frozen
        put("common", part_from(self.common, "common"))
        put("segments", check.items(self.segments, "segments", part_from))
        check.require(len(self.segments) > 0, "segments", "must not be empty", {})
        for name in self.segments:
            check.name(name, "segments")
        put("shares", check.by_name(self.shares, "shares", tuple(self.segments), check.positive))
        total = math.fsum(self.shares.values())
        check.require(total <= 1 + 1e-9, "shares", "must sum to 1 or less", total)
        put("by", check.name(self.by, "by"))
        put("expected", check.items(self.expected, "expected", lambda x, at: x if x is None else check.number(x, at)))
        put("provenance", check.items(self.provenance, "provenance", check.frozen))

    def segment(self, name: str | None) -> Policy:
        """The policy of a segment; the common one for None, and for a segment that is not known."""
        return self.part(segment=name)

    @property
    def sharing(self) -> tuple[str, ...]:
        """The known segments that share the common policy."""
        separate = {*self.own}
        return tuple(name for name in self.segments if name not in separate)

    @property
    def first(self) -> str:
        """The model that queries of no known segment go to first."""
        return self.common.first

    def step(self, model: str, **answer: Any) -> Decision:
        """Decide after an answer of `model` to a query of no known segment: `Policy.step` of the common policy."""
        return self.common.step(model, **answer)

    def _with_parts(self, change: Callable[[Policy], Policy]) -> SegmentedPolicy:
        """The same, each policy of which is what a function makes of it."""
        segments = {name: change(policy) for name, policy in self.segments.items()}
        return replace(self, common=change(self.common), segments=segments)

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The common policy, then those of the segments."""
        return (self.common, *self.segments.values())

    @property
    def weights(self) -> tuple[float, ...]:
        """The share of the traffic that each of the `policies` has."""
        shares = tuple(self.shares[name] for name in self.segments)
        return (max(0.0, 1 - math.fsum(shares)), *shares)
