"""Rungs with a cascade for each segment of the queries: at one price of an error everywhere, and on one bill.

Each segment has a frontier of its own. From rung to rung the next step of one of them is taken, that by which money
saves most errors; so a position on the ladder stands for one price of an error in all segments (the greedy solution of
the separable convex problem; Fox 1966, "Discrete optimization via marginal analysis").
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.wording import count
from rcjax.frontier.frontier import MOST_RUNGS, Frontier, position_for
from rcjax.frontier.hull import lower_hull, thinned
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.policy.decisions import Rule
from rcjax.policy.ladder import Ladder, merge, penalty
from rcjax.policy.policy import AnyPolicy, Policy
from rcjax.policy.spec import Spec, Target
from rcjax.replaying.replay import replay
from rcjax.tuning.certify import Deployed
from rcjax.tuning.search import search_of

#: Queries from which on a segment has cascades of its own; with fewer it goes by those of all.
FEWEST = 60


class _Part(NamedTuple):
    """The corners of one segment's frontier, from cheap to expensive."""

    name: str | None  # None: the queries of all other segments
    share: float  # of the queries
    figures: np.ndarray  # (H, 3) error, money and refusals per query of the segment
    penalty: np.ndarray  # (H,) errors, and refusals at their price
    points: tuple[Policy, ...]

    @classmethod
    def of(cls, frontier: Frontier, name: str | None, share: float, beyond: Any = 0.0) -> _Part:
        """The corners of a frontier.

        Args:
            frontier: of the segment's queries, or of all.
            name, share: as in the record.
            beyond: by how much error, money and refusals (L, 3) are higher on these queries than the frontier says.
        """
        refused = frontier.abstention if frontier.abstention is not None else np.zeros(len(frontier.cost))
        figures = np.maximum(np.stack([frontier.error, frontier.cost, refused], axis=1, dtype=float) + beyond, 0.0)
        loss = figures[:, 0] + (frontier.abstain_price or 0.0) * figures[:, 2]
        corners = lower_hull(figures[:, 1], loss)
        return cls(name, share, figures[corners], loss[corners], tuple(frontier.point(int(i)) for i in corners))


def by_segments(frontier: Frontier, log: Log, spec: Spec) -> Deployed:
    """The policy for a spec's target with cascades for each segment of a log; a note says how many have them.

    Args:
        frontier: by all queries, of the default search; segments with fewer than 60 queries go by its policies.
        log: tuned on; `Log.segment` tells the segments.
        spec: its target, and how to search.

    Raises LogError where no segment has enough queries, and InfeasibleError as `Frontier.policy`.
    """
    inside = np.asarray(log.segment, object)
    counts = Counter(inside[log.complete].tolist())
    named = sorted(name for name, queries in counts.items() if name and queries >= FEWEST)
    if not named:
        most = f"with the answers of all models, the largest has {max(counts.values())}"
        what = f"no segment of {spec.segment} has {FEWEST} queries {most}"
        raise LogError(f"{log.source}: {what}: tune without segments, or by a column with fewer")
    rest, n = ~np.isin(inside, named), counts.total()
    other = n - sum(counts[name] for name in named)
    parts = [_Part.of(frontier, None, other / n, _moved(frontier, log, log.take(rest)) if other else 0.0)]
    for name in named:
        own, _ = search_of(spec).find(log.take(inside == name), frontier.model)
        parts.append(_Part.of(own, name, counts[name] / n))
    rungs = _together(parts, frontier)
    words = f"{count(len(named), 'segment')} of {spec.segment} with cascades of their own: {', '.join(named)}"
    words += f"; the other {count(other, 'query')} go by the cascades for all" if other else ""
    return Deployed(_standing(rungs, Target.of(**spec.target)), notes=(words,))


def _standing(rungs: tuple[Policy, ...], target: Target) -> AnyPolicy:
    """The rungs as a ladder where they meet a limit, or of them the best for a price."""
    cost, error = ([float(figure(rung.expected)) for rung in rungs] for figure in (itemgetter("cost"), penalty))  # type: ignore[arg-type]
    if target.is_limit and len(rungs) > 1:
        budget = target.value if target.name == "budget" else None
        return Ladder(rungs, position_for(target, cost, error), budget)
    lam = 1 / target.value if target.name == "error_cost" else 0.0 if target.is_limit else target.value
    return rungs[int(np.argmin(np.array(error) + lam * np.array(cost)))]


def _moved(frontier: Frontier, log: Log, part: Log) -> np.ndarray:
    """(L, 3) by how much the policies for all err, cost and refuse more on a part of the log than on the whole."""
    here, whole = replay(frontier, part), replay(frontier, log)
    names = ("error", "spent", "abstention")
    return np.stack([getattr(here, name) - getattr(whole, name) for name in names], axis=1, dtype=float)


def _together(parts: list[_Part], frontier: Frontier) -> tuple[Policy, ...]:
    """The rungs of all segments together, at most as many as a ladder has."""
    slopes = [np.diff(part.penalty) / np.diff(part.figures[:, 1]) for part in parts]  # of one part they rise
    steps = np.concatenate([np.full(len(of), place) for place, of in enumerate(slopes)]).astype(int)
    order = steps[np.argsort(np.concatenate(slopes), kind="stable")]
    taken = np.concatenate([np.zeros((1, len(parts)), int), np.cumsum(np.eye(len(parts), dtype=int)[order], axis=0)])
    figures = np.sum([part.share * part.figures[taken[:, place]] for place, part in enumerate(parts)], axis=0)
    error, cost = figures[:, 0] + (frontier.abstain_price or 0.0) * figures[:, 2], figures[:, 1]
    kept = lower_hull(cost, error)
    kept = kept[thinned(cost[kept], error[kept], MOST_RUNGS)]
    lam = -np.diff(error[kept]) / np.diff(cost[kept])
    lam = np.append(lam, lam[-1:] if lam.size else np.nan)  # (R,) from each rung on; from the last, to it
    return tuple(
        _rung(parts, taken[row], figures[row], price, frontier.abstain_price)
        for row, price in zip(kept, lam.tolist(), strict=True)
    )


def _rung(parts: list[_Part], corners: np.ndarray, figures: np.ndarray, lam: float, price: float | None) -> Policy:
    """One corner of each part, as one policy."""
    whole, *own = points = [part.points[corner] for part, corner in zip(parts, corners, strict=True)]
    models = tuple(dict.fromkeys(name for point in points for name in point.models))
    shared = ("calibrations", "cost", "prices")
    merged = {name: merge(getattr(point, name) or {} for point in points) for name in shared}
    error, cost, refused = figures.clip([0.0, 0.0, 0.0], [1.0, np.inf, 1.0]).tolist()  # corrections may leave them
    expected = {"error": error, "cost": cost, **({"lam": lam, "error_cost": 1 / lam} if lam > 0 else {"lam": None})}
    expected |= {} if price is None else {"abstention": refused, "abstain_price": price}
    return dataclasses.replace(
        whole,
        models=models,
        rules={name: whole.rules.get(name, (Rule(1, "answer"),)) for name in models},
        **merged | {"prices": merged["prices"] or None},
        expected=expected,
        segments={part.name: point for part, point in zip(parts[1:], own, strict=True)},
    )
