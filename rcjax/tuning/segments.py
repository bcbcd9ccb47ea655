"""Rungs with a cascade for each segment of the queries: at one price of an error everywhere, and on one bill.

Each segment has a frontier of its own. From rung to rung the next step of one of them is taken, that by which money
saves most errors; so a position on the ladder stands for one price of an error in all segments (the greedy solution of
the separable convex problem; Fox 1966, "Discrete optimization via marginal analysis").
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.wording import count
from rcjax.frontier.frontier import MOST_RUNGS, Frontier, position_for
from rcjax.frontier.hull import lower_hull, thinned
from rcjax.frontier.outcomes import Outcomes
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.policy.ladder import Ladder, penalty
from rcjax.policy.policy import AnyPolicy, Policy
from rcjax.policy.rules import Rule
from rcjax.policy.spec import Spec
from rcjax.policy.targets import Target
from rcjax.replaying.following import Rungs
from rcjax.replaying.replay import replay
from rcjax.tuning.intervals import for_money
from rcjax.tuning.select import select_frontier

#: Queries from which on a segment has cascades of its own; with fewer it goes by those of all.
FEWEST = 60
_DRAWS = 200


class _Part(NamedTuple):
    """The corners of one segment's frontier, from cheap to expensive."""

    name: str | None  # None: the queries of all other segments
    share: float  # of the queries
    figures: np.ndarray  # (H, 3) error, money and refusals per query of the segment
    points: tuple[Policy, ...]


def by_segments(frontier: Frontier, log: Log, spec: Spec) -> tuple[AnyPolicy, str]:
    """The policy for a spec's target with cascades for each segment of a log, and how many have them, in words.

    Args:
        frontier: by all queries, of the default search; segments with fewer than 60 queries go by its policies.
        log: tuned on; `Log.segment` tells the segments.
        spec: its target, and how to search.

    Raises LogError where no segment has enough queries, and InfeasibleError as `Frontier.policy`.
    """
    assert log.segment is not None
    counts = Counter(np.asarray(log.segment, object)[log.complete].tolist())
    named = sorted(name for name, queries in counts.items() if name and queries >= FEWEST)
    if not named:
        most = max(counts.values())
        what = (
            f"no segment of {spec.segment} has {FEWEST} queries with the answers of all models, the largest has {most}"
        )
        raise LogError(f"{log.source}: {what}: tune without segments, or by a column with fewer")
    inside, n = np.asarray(log.segment, object), sum(counts.values())
    parts = [_own(frontier, log.take(inside == name), name, counts[name] / n, spec) for name in named]
    rungs = _together([_other(frontier, log, ~np.isin(inside, named)), *parts], frontier)
    rungs = _with_intervals(rungs, log, frontier) if spec.intervals else rungs
    words = f"{count(len(named), 'segment')} of {spec.segment} with cascades of their own: {', '.join(named)}"
    if other := n - sum(counts[name] for name in named):
        words += f"; the other {count(other, 'query')} go by the cascades for all"
    return _standing(rungs, Target.of(**spec.target)), words


def _standing(rungs: tuple[Policy, ...], target: Target) -> AnyPolicy:
    """The rungs as a ladder where they meet a limit, or of them the best for a price."""
    figures = np.array([(rung.expected["cost"], penalty(rung.expected)) for rung in rungs], float)
    cost, error = figures.T.tolist()
    if target.is_limit and len(rungs) > 1:
        budget = target.value if target.name == "budget" else None
        return Ladder(rungs, position_for(target, cost, error), budget)
    lam = 1 / target.value if target.name == "error_cost" else 0.0 if target.is_limit else target.value
    return rungs[int(np.argmin(np.array(error) + lam * np.array(cost)))]


def _own(frontier: Frontier, log: Log, name: str, share: float, spec: Spec) -> _Part:
    how: dict[str, Any] = {"abstain_price": spec.abstain_price, "target": spec.aim}
    own = select_frontier(log, model=frontier.model, **how).frontier
    return _part(own, name, share, np.stack([own.error, own.cost, _refusals(own)], axis=1))


def _other(frontier: Frontier, log: Log, rest: np.ndarray) -> _Part:
    """The policies for all, with what becomes of the queries of small segments: as replayed, beside the whole log's."""
    figures = np.stack([frontier.error, frontier.cost, _refusals(frontier)], axis=1)
    if not (share := float((rest & log.complete).sum() / log.complete.sum())):
        return _part(frontier, None, 0.0, figures)
    here, whole = replay(frontier, log.take(rest)), replay(frontier, log)
    pairs = [(getattr(here, name), getattr(whole, name)) for name in ("error", "spent", "abstention")]
    moved = figures + np.stack([np.asarray(one, float) - np.asarray(other, float) for one, other in pairs], axis=1)
    return _part(frontier, None, share, np.maximum(moved, 0.0))


def _part(frontier: Frontier, name: str | None, share: float, figures: np.ndarray) -> _Part:
    figures = np.asarray(figures, float)
    corners = lower_hull(figures[:, 1], figures[:, 0] + (frontier.abstain_price or 0.0) * figures[:, 2])
    return _Part(name, share, figures[corners], tuple(frontier.point(int(index)) for index in corners))


def _refusals(frontier: Frontier) -> np.ndarray:
    return np.zeros(len(frontier.cost)) if frontier.abstention is None else np.asarray(frontier.abstention)


def _together(parts: list[_Part], frontier: Frontier) -> tuple[Policy, ...]:
    """The rungs of all segments together, at most as many as a ladder has."""
    price = frontier.abstain_price or 0.0
    steps = []
    for place, part in enumerate(parts):
        penalty, cost = part.figures[:, 0] + price * part.figures[:, 2], part.figures[:, 1]
        slopes = -np.diff(penalty) / np.diff(cost)
        steps += [(-slope, place) for slope in slopes]  # those of one part fall, as its corners are a hull's
    order = [place for _, place in sorted(steps, key=lambda step: step[0])]
    taken = np.cumsum(np.eye(len(parts), dtype=int)[[*order]], axis=0) if order else np.zeros((0, len(parts)), int)
    taken = np.concatenate([np.zeros((1, len(parts)), int), taken])  # (R, S) the corner of each part
    figures = np.sum([part.share * part.figures[taken[:, place]] for place, part in enumerate(parts)], axis=0)
    error, cost = figures[:, 0] + price * figures[:, 2], figures[:, 1]
    kept = lower_hull(cost, error)
    kept = kept[thinned(cost[kept], error[kept], MOST_RUNGS)]
    slopes = np.append(np.diff(error[kept]) / np.diff(cost[kept]), np.nan)
    return tuple(
        _rung(parts, taken[row], figures[row], -slopes[max(0, min(at, len(kept) - 2))], frontier)
        for at, row in enumerate(kept)
    )


def _rung(parts: list[_Part], corners: np.ndarray, figures: np.ndarray, lam: float, frontier: Frontier) -> Policy:
    whole, *own = (part.points[corner] for part, corner in zip(parts, corners, strict=True))
    points = [whole, *own]
    models = tuple(dict.fromkeys(name for point in points for name in point.models))
    merged = {name: {} for name in ("calibrations", "cost", "prices")}
    for name, into in merged.items():
        for point in points:
            into |= getattr(point, name) or {}
    expected = {"error": figures[0], "cost": figures[1], "lam": lam if lam > 0 else None}
    expected |= {"error_cost": 1 / lam} if lam > 0 else {}
    if frontier.abstain_price is not None:
        expected |= {"abstention": figures[2], "abstain_price": frontier.abstain_price}
    return dataclasses.replace(
        whole,
        models=models,
        rules={name: whole.rules.get(name, (Rule(1, "answer"),)) for name in models},
        **{name: values or None if name == "prices" else values for name, values in merged.items()},
        expected={name: None if value is None else float(value) for name, value in expected.items()},
        segments={part.name: point for part, point in zip(parts[1:], own, strict=True)},
    )


def _with_intervals(rungs: tuple[Policy, ...], log: Log, frontier: Frontier) -> tuple[Policy, ...]:
    """The rungs with an interval of the error: other queries are drawn, on which each stands for the same money.

    What is not drawn again is which policies these are.
    """
    level = 0.9 if frontier.bands is None else frontier.bands.level
    walked = Rungs.of(Ladder(rungs, 0.0), log)
    n = walked.wrong.shape[1]
    share = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), _DRAWS).T / n
    wrong, spent = ((share.T @ of.T)[..., None] for of in (walked.wrong, walked.spent))  # (B, R, 1)
    errors = for_money(Outcomes(wrong, spent, 0 * spent), walked.spent.mean(1)).wrong[..., 0]
    low, high = np.quantile(errors - walked.wrong.mean(1), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return tuple(
        dataclasses.replace(rung, expected={**rung.expected, **_ends(rung.expected["error"], *ends), "level": level})
        for rung, *ends in zip(rungs, low, high, strict=True)
    )


def _ends(error: Any, low: float, high: float) -> Mapping[str, float]:
    return {"error_low": float(np.clip(error + low, 0, 1)), "error_high": float(np.clip(error + high, 0, 1))}
