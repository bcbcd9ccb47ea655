"""A guarantee for the policies of segments: of the whole traffic, and of each segment by itself.

The whole is tested as `rcjax.tuning.certify` tests a frontier: allocations in an order that was fixed beforehand, from
the safest on, each at the full level, until one is not shown to keep the target. Of each segment there is an upper
limit of its error (Clopper & Pearson 1934) at a level that is shared between all segments and all allocations that were
to be tested (Bonferroni), so that all limits hold together, whichever allocation was chosen.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.wording import percent
from rcjax.frontier.frontier import InfeasibleError
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.label_outcomes import labelled_by_hand
from rcjax.policy.targets import Target
from rcjax.tuning.contest import answer_log
from rcjax.tuning.p_values import bounded_mean_p_value, last_shown, mean_p_value, upper_limit
from rcjax.tuning.segment_budget import Allocation, best_sums
from rcjax.tuning.segment_frontiers import Traffic, queries_of

__all__ = ["SegmentLimit", "SegmentsCertificate", "certify_segments"]


_FEWEST = 30  # held-out queries of a segment, for anything to be promised of it


_MOST_TESTS = 25  # allocations: more are hardly finer, and each makes the limits of segments wider


@dataclasses.dataclass(frozen=True)
class SegmentLimit:
    """What is promised of one segment."""

    n: int
    """Its held-out queries, which all models that may be asked there have answered."""
    errors: int
    """How many of them were answered wrongly."""
    error_bound: float | None
    """Its error is at most this, in all segments together with the confidence of the guarantee; None where there are
    fewer than 30 queries."""


@dataclasses.dataclass(frozen=True)
class SegmentsCertificate:
    """What is guaranteed of the policies of segments, and what the guarantee rests on."""

    target: Mapping[str, float]
    """The `max_error` or the `budget` that the whole traffic keeps to."""
    confidence: float
    """Probability, at least, with which that holds; and again, with which all limits of segments do."""
    n: int
    """Held-out queries."""
    error: float
    """Their share that was answered wrongly, by the shares of the traffic."""
    cost: float
    """Their mean cost, in money per query, each answer at its model's mean cost in the segment."""
    p_value: float
    """Probability of evidence as good as this, at most, if the policies did not keep to the target."""
    segments: Mapping[str, SegmentLimit]

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return dataclasses.asdict(self)

    def describe(self) -> tuple[str, ...]:
        """What is promised, in words: a line on the whole, and one on the segments."""
        sure = f"{100 * self.confidence:.4g} % confidence"
        tested = f"of {self.n:,} queries held out for the test {percent(self.error)} were answered wrongly"
        whole = f"guaranteed with {sure}: the target is kept over the whole traffic; {tested}"
        bounds = [
            f"{name} {percent(math.ceil(1e3 * limit.error_bound) / 1e3)}"
            for name, limit in self.segments.items()
            if limit.error_bound is not None
        ]
        few = [f"{name} ({limit.n:,})" for name, limit in self.segments.items() if limit.error_bound is None]
        limits = f"of each segment, all together with {sure}, the error is at most: {', '.join(bounds)}"
        none = f"too few held-out queries to promise anything of {', '.join(few)}"
        return whole, *([limits] if bounds else []), *([none] if few else [])


class _Trialled(NamedTuple):
    """n held-out queries under T allocations."""

    wrong: np.ndarray  # (T, n)
    cost: np.ndarray  # (T, n)
    segment: np.ndarray  # (n,)
    weight: np.ndarray  # (n,) of mean 1, by the shares of the traffic
    low: float  # what a query can cost at least
    high: float  # and at most


def certify_segments(
    traffics: Sequence[Traffic],
    held_out: Log,
    target: Target,
    confidence: float,
    shares: Mapping[str, float] | None = None,
) -> tuple[Allocation, SegmentsCertificate]:
    """The best allocation that held-out queries guarantee to keep to an error or a budget.

    Raises InfeasibleError where none does; LogError where a segment has a share and no held-out query.

    Args:
        traffics: the kinds of traffic.
        held_out: queries that had no part in the tuning.
        target: `max_error` or `budget`.
        confidence: of the guarantee.
        shares: of the traffic by segment; None where it is as the held-out queries are.
    """
    steps = best_sums([traffic.menu for traffic in traffics])
    rows = np.unique(np.linspace(0, len(steps.positions) - 1, _MOST_TESTS).round().astype(int))
    trialled = _try(traffics, labelled_by_hand(held_out), steps.positions[rows], shares)
    budgeted, level = target.name == "budget", 1 - confidence
    p_values = [_p_value(trialled, row, target) for row in range(len(rows))]
    order = range(len(rows)) if budgeted else range(len(rows) - 1, -1, -1)
    chosen = last_shown(order, p_values.__getitem__, level)
    if chosen is None:
        raise InfeasibleError(_unpromised(trialled, order[0], target, confidence))
    names = [name for traffic in traffics for name in traffic.names if name]
    test = partial(_limit, trialled, chosen, level / (len(names) * len(rows)))
    certificate = SegmentsCertificate(
        target=target.to_json(),
        confidence=confidence,
        n=len(trialled.segment),
        error=float((trialled.wrong[chosen] * trialled.weight).mean()),
        cost=float((trialled.cost[chosen] * trialled.weight).mean()),
        p_value=p_values[chosen],
        segments={name: test(name) for name in names},
    )
    return Allocation(tuple(map(int, steps.positions[rows[chosen]])), float(steps.lam[rows[chosen]])), certificate


def _try(traffics: Sequence[Traffic], log: Log, choices: np.ndarray, shares: Mapping[str, float] | None) -> _Trialled:
    """The held-out queries under allocations, positions (T, M) on the menus."""
    wrong, cost, segment = [], [], []
    separate = [name for traffic in traffics if not traffic.shared for name in traffic.names]
    for column, traffic in zip(choices.T, traffics, strict=True):
        model, policies = traffic.frontier.model, traffic.frontier.policies.on_host().take(column)
        part = log.select(model.models)
        rows = queries_of(part, *traffic.names)
        if traffic.shared:
            rows = np.setdiff1d(np.arange(part.n_queries), queries_of(part, *separate))
        rows = rows[part.complete[rows]]
        if len(rows):
            part = part.take(rows)
            outcomes = answer_log(model.calibrators, policies, part, part.correct, model.cost)
            wrong.append(np.asarray(outcomes.wrong, float))
            cost.append(np.asarray(outcomes.cost, float))
            segment.extend(part.segment or ())
    if not segment:
        raise LogError(f"{log.source}: no held-out query has the answers of all models: nothing to test on")
    names, weight = np.array(segment, object), np.ones(len(segment))
    for name, share in (shares or {}).items():
        inside = names == name
        if share and not inside.any():
            raise LogError(f"{log.source}: no held-out query of segment {name}, which has a share: hold some out")
        weight[inside] = share * len(names) / max(inside.sum(), 1)
    costs = [np.asarray(traffic.frontier.model.cost, float) for traffic in traffics]
    low, high = min(prices.min() for prices in costs), max(prices.sum() for prices in costs)
    return _Trialled(np.hstack(wrong), np.hstack(cost), names, weight, float(low), float(high))


def _p_value(trialled: _Trialled, row: int, target: Target) -> float:
    """Of the hypothesis that an allocation does not keep to the target."""
    n, most = len(trialled.weight), float(trialled.weight.max())
    if target.name == "max_error":
        mean = float((trialled.wrong[row] * trialled.weight).mean()) / most
        return mean_p_value(mean, n, target.value / most, counted=most == 1.0 and _counted(trialled.wrong[row]))
    width = (trialled.high - trialled.low) * most
    share = ((trialled.cost[row] - trialled.low) * trialled.weight).mean() / width
    return bounded_mean_p_value(float(share), n, (target.value - trialled.low) / width)


def _limit(trialled: _Trialled, row: int, level: float, name: str) -> SegmentLimit:
    inside = trialled.segment == name
    n, wrong = int(inside.sum()), trialled.wrong[row, inside]
    errors, counted = round(wrong.sum()), _counted(wrong)

    bound = upper_limit(lambda probability: mean_p_value(wrong.mean(), n, probability, counted), level) if n else 1.0
    return SegmentLimit(n, errors, bound if n >= _FEWEST else None)


def _counted(wrong: np.ndarray) -> bool:
    """Whether every query is answered rightly or wrongly, none by its lot."""
    return bool(((wrong == 0) | (wrong == 1)).all())


def _unpromised(trialled: _Trialled, row: int, target: Target, confidence: float) -> str:
    n = len(trialled.segment)
    error = float((trialled.wrong[row] * trialled.weight).mean())
    cost = float((trialled.cost[row] * trialled.weight).mean())
    did = f"erred on {percent(error)}" if target.name == "max_error" else f"cost {cost:.6g} per query"
    which = "the safest" if target.name == "max_error" else "the cheapest"
    return (
        f"no policies of the segments can be guaranteed {target} with {100 * confidence:.4g} % confidence: on {n:,} "
        f"held-out queries {which} {did}: hold out more queries, or aim lower"
    )
