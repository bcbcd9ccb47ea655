"""A policy that is served, and what its requests have come to since it was taken up, beside what it leads to expect.

The counts must start again when another policy is taken up, and never mix those of two policies, while several workers
change over one after the other: they are kept in four slots, which a policy's hash chooses, so that workers agree on
the slot without a word. A worker empties its part of a slot when it puts another policy there; the parts of all workers
are added up.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rcjax.policy.policy import AnyPolicy
from rcjax.serving.gateway.drift import bins_of
from rcjax.serving.gateway.expectations import expect
from rcjax.serving.gateway.figure_families import Children, label

if TYPE_CHECKING:
    from rcjax.serving.cascade import Result

__all__ = ["Served", "Since", "slot_of"]


_SLOTS = 4  # few, as their counts stay; enough that a worker which is late rarely shares one with the policy before


_REQUESTS, _COST, _SECONDS, _ANSWERED, _ABSTAINED = "requests", "cost", "seconds", "answered", "abstained"


Key = tuple[str, str, str, str]  # the labels policy, slot, what and model of a count


@dataclass(frozen=True, slots=True)
class Since:
    """What the requests through a policy have come to since it was taken up, of all workers."""

    requests: float
    """How many ended, those that no model answered included."""
    cost: float
    """Money for them."""
    seconds: float
    """How long their calls took, those of a request one after the other."""
    answered: Mapping[str, float]
    """How many each model answered."""
    abstained: float
    """How many got no answer as the policy abstained."""
    logprobs: Mapping[str, list[float]]
    """Per model, how many raw confidences fell into each interval of its `Bins`; for models that have some."""


class Served:
    """A policy that is served under a name: what it leads to expect, and where its requests are counted.

    Args:
        name: what clients ask for.
        policy: the policy or mixture.
        digest: the hash of its file.
        counts: where to count, by `Key`.

    Raises ValueError where the queries that the policy carries are damaged.
    """

    def __init__(self, name: str, policy: AnyPolicy, digest: str, counts: Children) -> None:
        self.name, self.digest, self.slot = label(name), digest, slot_of(digest)
        self.models = tuple(policy.models)
        self._policy = policy
        self.expected = expect(policy)
        bins = {model: bins_of(reach) for model, reach in self.expected.reach.items()}
        self.bins = {model: intervals for model, intervals in bins.items() if intervals is not None}
        self.expected_seconds = policy.expected.get("seconds"), policy.expected.get("seconds_p95")
        self._requests, self._cost, self._seconds, self._abstained = (
            counts[self._key(what)] for what in (_REQUESTS, _COST, _SECONDS, _ABSTAINED)
        )
        self._answered = {model: counts[self._key(_ANSWERED, model)] for model in self.models}
        self._logprobs = {
            model: [counts[self._key(str(index), model)] for index in range(len(intervals.shares))]
            for model, intervals in self.bins.items()
        }

    def compared(self, result: Result) -> Iterator[tuple[str, bool]]:
        """(model, whether its answer was that of the earlier model) for those of a request that compared answers."""
        policy, answers = self._policy.choose(result.query), {}
        for call in result.calls:
            agreement = policy.agreements.get(call.model)
            if agreement is not None and call.logprob is not None:
                equal = agreement.equal(call.answer, answers.get(agreement.earlier))
                if equal is not None:
                    yield call.model, equal
            answers[call.model] = call.answer

    def count(self, result: Result) -> None:
        """Count a request that ended."""
        self._requests.inc()
        self._cost.inc(result.cost)
        self._seconds.inc(result.seconds)
        if result.status == "abstained":
            self._abstained.inc()
        elif result.model in self._answered:
            self._answered[result.model].inc()
        for call in result.calls:
            if call.logprob is not None and call.model in self.bins:
                self._logprobs[call.model][self.bins[call.model].index(call.logprob)].inc()

    def clear(self) -> None:
        """Start again, in this worker."""
        counts = [child for children in self._logprobs.values() for child in children]
        for child in (self._requests, self._cost, self._seconds, self._abstained, *self._answered.values(), *counts):
            child.set(0)

    def since(self, sums: Mapping[Key, float]) -> Since:
        """Read the counts of this policy from those of everything."""
        return Since(
            requests=sums.get(self._key(_REQUESTS), 0.0),
            cost=sums.get(self._key(_COST), 0.0),
            seconds=sums.get(self._key(_SECONDS), 0.0),
            answered={model: sums.get(self._key(_ANSWERED, model), 0.0) for model in self.models},
            abstained=sums.get(self._key(_ABSTAINED), 0.0),
            logprobs={
                model: [sums.get(self._key(str(index), model), 0.0) for index in range(len(intervals.shares))]
                for model, intervals in self.bins.items()
            },
        )

    def _key(self, what: str, model: str = "") -> Key:
        return self.name, self.slot, what, label(model)


def slot_of(digest: str) -> str:
    """The slot of a policy by its hash.

    >>> slot_of("abc") == slot_of("abc"), slot_of("abc") in "0123"
    (True, True)
    """
    return str(zlib.crc32(label(digest).encode()) % _SLOTS)
