"""A policy for each segment of the traffic, such as a language, under one budget. Standard library only.

`rcjax tune --by` and `rcjax.tune_segments` make one, and a service loads it with nothing but the standard library:

    policies = load_policy("policy.json")
    decision = policies.segment("de").step(model, logprob=logprob)  # segments that it does not know: policies.common
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import Any

from rcjax._base import json_checks as check
from rcjax._base.arguments import check_arguments
from rcjax._base.files import write_atomically
from rcjax.policy.mixture import Mixture
from rcjax.policy.policy import Decision, Policy
from rcjax.policy.several import SeveralPolicies

__all__ = ["SegmentedPolicy", "policy_for"]


_FORMAT, _SCHEMA_VERSION = "rcjax-segments", 1


@dataclass(frozen=True, slots=True)
class SegmentedPolicy(SeveralPolicies):
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

    common: Policy
    segments: Mapping[str, Policy]
    shares: Mapping[str, float]
    by: str
    expected: Mapping[str, float | None] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)  # the class is frozen
        put("common", _policy(self.common, "common"))
        put("segments", check.items(self.segments, "segments", _policy))
        check.require(len(self.segments) > 0, "segments", "must not be empty", {})
        for name in self.segments:
            check.name(name, "segments")
        put("shares", check.by_name(self.shares, "shares", tuple(self.segments), check.positive))
        total = math.fsum(self.shares.values())
        check.require(total <= 1 + 1e-9, "shares", "must sum to 1 or less", total)
        put("by", check.name(self.by, "by"))
        put("expected", check.items(self.expected, "expected", lambda x, at: x if x is None else check.number(x, at)))
        put("provenance", check.items(self.provenance, "provenance", check.frozen))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)  # a MappingProxyType cannot be pickled

    def segment(self, name: str | None) -> Policy:
        """The policy of a segment; the common one for None, and for a segment that is not known."""
        check_arguments(SegmentedPolicy.segment, locals())
        return self.common if name is None else self.segments.get(name, self.common)

    def knows(self, name: str | None) -> bool:
        """Whether a segment is known."""
        return name in self.segments

    @property
    def own(self) -> tuple[str, ...]:
        """The segments that have a policy of their own: one that does not do what the common one does."""
        return tuple(name for name, policy in self.segments.items() if not _does_as(policy, self.common))

    @property
    def sharing(self) -> tuple[str, ...]:
        """The known segments that share the common policy."""
        own = {*self.own}
        return tuple(name for name in self.segments if name not in own)

    @property
    def first(self) -> str:
        """The model that queries of no known segment go to first."""
        return self.common.first

    def step(self, model: str, **answer: Any) -> Decision:
        """Decide after an answer of `model` to a query of no known segment: `Policy.step` of the common policy."""
        return self.common.step(model, **answer)

    def choose(self, query: int | str | None = None) -> Policy:
        """The policy of a query of no known segment, as a `Mixture` chooses one: the common one."""
        return self.common

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The common policy, then those of the segments."""
        return (self.common, *self.segments.values())

    @property
    def weights(self) -> tuple[float, ...]:
        """The share of the traffic that each of the `policies` has."""
        shares = tuple(self.shares[name] for name in self.segments)
        return (max(0.0, 1 - math.fsum(shares)), *shares)

    def to_json(self) -> dict[str, Any]:
        """Return the policies as a JSON object, the inverse of `from_json`."""
        return {
            "format": _FORMAT,
            "schema_version": _SCHEMA_VERSION,
            "by": self.by,
            "shares": dict(self.shares),
            "expected": dict(self.expected),
            "common": self.common.to_json(),
            "segments": {name: policy.to_json() for name, policy in self.segments.items()},
            "provenance": check.thawed(self.provenance),
        }

    @classmethod
    def from_json(cls, data: Any) -> SegmentedPolicy:
        """Build it from the object of `to_json`; unknown keys are ignored, problems a ValueError."""
        check.header(data, _FORMAT, _SCHEMA_VERSION)
        return check.build(cls, data, "")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a JSON file at once, as `Policy.save` does; OSError where it cannot be written."""
        write_atomically(path, json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SegmentedPolicy:
        """Read it from a file that `save` wrote; errors as those of `Policy.load`."""
        return check.load(path, cls.from_json)

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of the file, that of its policies included.

        It is `rcjax/policy/segments.schema.json` with `Policy.json_schema()` in its `$defs`. That the shares are of the
        segments, and sum to 1 or less, it cannot say.
        """
        schema = json.loads(resources.files("rcjax.policy").joinpath("segments.schema.json").read_text("utf-8"))
        return schema | {"$defs": {"policy": Policy.json_schema()}}


def policy_for(
    policy: Policy | Mixture | SegmentedPolicy, query: int | str | None, segment: str | None = None
) -> Policy:
    """The policy that answers a query of a segment, whichever kind there is of them."""
    return policy.segment(segment) if isinstance(policy, SegmentedPolicy) else policy.choose(query)


def _does_as(policy: Policy, other: Policy) -> bool:
    """Whether a policy decides as another, whatever is expected of it."""
    same = (policy.models, policy.calibrations, policy.rules, policy.agreements)
    return same == (other.models, other.calibrations, other.rules, other.agreements)


def _policy(value: Any, where: str) -> Policy:
    if isinstance(value, Policy):
        return value
    with check.inside(where):
        return Policy.from_json(value)
