"""The policy for a target, chosen from a frontier: for a plain target, a guarantee, a margin or segments.

A margin limits the difference in error between the policy and today's on the same queries. At each position of the
ladder, the difference is the expected error, corrected for optimism, minus today's error. The labels give the standard
error of the paired difference. The policy stands at the cheapest position where

    max(difference, 0) + z·standard error ≤ margin,        z = 1.28,

or where the policy errs significantly less than today's (one-sided, 5 %). The margin is then kept in nine of ten logs
for which the tuning finds a cheaper policy (`benchmarks.match`; `upper_after_choice` says why).

With segments, each segment has its own frontier. At each rung of the ladder one segment moves to its next corner: the
move that saves most errors for its money. So a position on the ladder stands for one λ in all segments (the greedy
solution of the separable convex problem; Fox 1966, "Discrete optimization via marginal analysis").
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.figures import count, format_points, interval_half_width
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.policy.comparison import upper_after_choice
from rcjax.policy.decisions import Rule
from rcjax.policy.error_kind import ErrorKind, penalised
from rcjax.policy.ladder import Ladder, map_rungs, merge, penalty, position_at
from rcjax.policy.policy import AbstractPolicy, Policy
from rcjax.policy.spec import Spec, Target
from rcjax.solving.frontier.frontier import (
    MAX_RUNGS,
    Frontier,
    InfeasibleError,
    best_point,
    make_frontier,
    make_ladder,
    position_within,
    tuning_provenance,
)
from rcjax.solving.frontier.points import (
    LossTerms,
    Points,
    PointStatus,
    Policies,
    lower_hull,
    position_weights,
    thin_hull,
)
from rcjax.tuning.bootstrapping import bootstrap
from rcjax.tuning.certify import CHEAPER, Certificate, certify, loss_terms_of_rungs, overlap
from rcjax.tuning.replaying.comparing import (
    ModelOrPolicy,
    QueryLosses,
    paired_error,
    single_model_figures,
    take_shared_queries,
)
from rcjax.tuning.replaying.replay import Replay, error_interval, replay
from rcjax.tuning.search import make_search

_TRIED_PER_RUNG = 20  # positions tried from each rung to the next

_RISE = 1e-9  # least rise of the cost from one rung to the next, as a share of the cost of the dearest rung

_MAX_LABELS = 10_000  # notes do not ask for more labels: few will give so many

#: Beginning of the note on why today's stays.
STAYS = "today's stays"

_MORE_LABELS = 4  # multiple of the labels for which a note says what they might show: half the standard errors


class TargetPolicy(NamedTuple):
    """The policy chosen for a target, its guarantee, and notes in words."""

    policy: AbstractPolicy
    certificate: Certificate | None = None
    notes: tuple[str, ...] = ()


def _certify_policy(frontier: Frontier, log: Log, held_out: Log | None, spec: Spec) -> TargetPolicy:
    assert held_out is not None
    tuned_on = log if spec.judged or spec.match is not None else None  # to compare the two logs takes long
    certificate = certify(frontier, held_out, spec, tuned_on=tuned_on)
    return TargetPolicy(certificate.policy, certificate)


def policy_for_target(frontier: Frontier, log: Log, held_out: Log | None, spec: Spec) -> TargetPolicy:
    """Return the policy of a frontier for the target of a spec.

    Args:
        frontier: the frontier.
        log: the log tuned on.
        held_out: queries for the test of a guarantee; None if `spec` has no confidence.
        spec: the target, and the other demands on the policy.
    """
    if spec.match is not None:
        return match_today(frontier, log, held_out, spec)
    if spec.confidence is not None:
        return _certify_policy(frontier, log, held_out, spec)
    if spec.segment is not None:
        return choose_by_segment(frontier, log, spec)
    assert spec.target is not None
    return TargetPolicy(frontier.policy_for(spec.target))


class TodayDifferences(NamedTuple):
    """The differences of P positions on a ladder from today's policy, from the cheapest rung to the dearest."""

    position: np.ndarray  # (P,) position on the ladder
    cost: np.ndarray  # (P,) expected cost
    is_cheaper: np.ndarray  # (P,) bool: the bill is below today's
    error_difference: np.ndarray  # (P,) expected error minus today's error
    se: np.ndarray  # (P,) standard error of the difference
    queries: int  # number of complete queries with a label

    def cheapest(self, margin: float, labels: float = 1.0) -> int | None:
        """Return the index of the cheapest position that keeps to a margin below today's bill; None without one.

        `labels` is a multiple of the labels, which makes the standard errors smaller.
        """
        pairs = zip(self.error_difference.tolist(), (self.se / math.sqrt(labels)).tolist(), strict=True)
        bound = np.array([upper_after_choice(*pair) for pair in pairs])
        kept = np.flatnonzero(self.is_cheaper & (bound <= margin * (1 + 1e-9)))
        return int(kept[0]) if kept.size else None

    def labels_needed(self, margin: float) -> float | None:
        """Estimate how many labelled queries might show that a position keeps to a margin; inf for more than 10,000.

        The result is None if no position is expected to keep to it.

        >>> one = np.ones(1)
        >>> TodayDifferences(0 * one, one, one > 0, 0.002 * one, 0.01 * one, 300).labels_needed(0.01)
        770
        """
        if self.cheapest(margin, math.inf) is None:
            return None
        numbers = range(self.queries, _MAX_LABELS + 1)
        place = bisect_left(numbers, True, key=lambda labels: self.cheapest(margin, labels / self.queries) is not None)
        return numbers[place] if place < len(numbers) else math.inf


def compare_positions(frontier: Frontier, log: Log, today: ModelOrPolicy) -> TodayDifferences:
    """Compare the ladder of a frontier, of the default search, with today's model or policy on the log tuned on."""
    rungs = frontier.rung_indices
    shared = take_shared_queries(log, [*frontier.models, today])
    walked = shared.select(frontier.models)
    terms = loss_terms_of_rungs(frontier, walked, walked.correct)
    loss = terms.penalty(frontier.abstain_price)
    todays = QueryLosses.of(today, shared)
    # A single model has the figures that the screens show.
    error, bill = single_model_figures(log, today) if isinstance(today, str) else todays.means
    position = np.arange(_TRIED_PER_RUNG * (len(rungs) - 1) + 1) / _TRIED_PER_RUNG
    weights = position_weights(position, len(rungs))
    expected, cost = (weights @ np.asarray(figure, float)[rungs] for figure in (frontier.penalty, frontier.cost))
    se = np.concatenate([paired_error(part @ loss - todays.penalty) for part in np.array_split(weights, 8)])
    compared = log.select([name for name in log.models if name in shared.models])
    queries = int((compared.labelled.any(1) & compared.complete).sum())
    return TodayDifferences(position, cost, cost < bill * (1 - CHEAPER), expected - error, se, queries)


def match_today(frontier: Frontier, log: Log, held_out: Log | None, spec: Spec) -> TargetPolicy:
    """Return the cheapest policy within a margin of today's, or today's itself if no cheaper policy is within it.

    Args:
        frontier: the frontier, of the default search on the log.
        log: the log tuned on.
        held_out: queries for the test of a guarantee; None if `spec` has no confidence.
        spec: the margin `match`, `today`, and perhaps a `confidence`.
    """
    margin = spec.match
    assert spec.today is not None
    assert margin is not None
    if spec.confidence is not None:
        try:
            return _certify_policy(frontier, log, held_out, spec)
        except InfeasibleError as problem:
            return _keep_today(frontier, log, spec, str(problem))
    differences = compare_positions(frontier, log, spec.today)
    if (place := differences.cheapest(margin)) is not None:
        policy = frontier.ladder(float(differences.position[place]), Target("match", margin))
        notes = _note_added_margins(spec.today, log) + _note_cheaper(differences, place, log, spec)
        return TargetPolicy(policy, notes=notes)
    if not differences.is_cheaper.any():
        return _keep_today(frontier, log, spec, "no policy costs less: log cheaper models")
    needed = differences.labels_needed(margin)
    noun = "query" if log.hand_labels is None else "labelled query"
    why = f"no cheaper policy is shown to keep to {format_points(margin)} on {count(differences.queries, noun)}"
    if needed is None or needed > _MAX_LABELS:
        hope = "none is expected to with more labels"
        if needed is not None:
            hope = "more labels will hardly show one"
        return _keep_today(frontier, log, spec, f"{why}, and {hope}: allow more, or log cheaper models")
    shown = differences.cheapest(margin, 1.001 * needed / differences.queries)
    money = spec.money(np.asarray(log.cost, float).tolist())
    which = "one does" if shown is None else f"one for {money.full(float(differences.cost[shown]))} does"
    might = f"about {float(f'{needed - differences.queries:.2g}'):,.0f} more might show that {which}"
    return _keep_today(frontier, log, spec, f"{why}; {might}", until=" until more is labelled")


def _note_added_margins(today: ModelOrPolicy, log: Log) -> tuple[str, ...]:
    """Return a note on today's policy, if a margin beside a model of the log was its own target; none otherwise."""
    tuning = today.tuning if isinstance(today, AbstractPolicy) else {}
    margin, model = tuning.get("match"), tuning.get("today")
    if margin is None or model not in log.models:
        return ()
    more = f"at most {format_points(margin)} more {log.error_kind.noun} than {model}"
    advice = f"margins add up: to compare with {model}, give it as today's (--today)"
    return (f"today's policy was itself tuned to {more}, and {advice}",)


def note_known_today(today: ModelOrPolicy | None, log: Log) -> list[str]:
    """Return a note on today's policy if it was tuned on queries of the log, on which its figures are counted."""
    if not isinstance(today, AbstractPolicy) or not (known := overlap(log, today)):
        return []
    queries = f"the {count(known.queries, 'query')}" if known.covers_log else count(known.queries, "query")
    return [f"today's figures are counted on {queries} that it was tuned on, and tend to look better than they are"]


def _note_cheaper(differences: TodayDifferences, place: int, log: Log, spec: Spec) -> tuple[str, ...]:
    """Return a note on the policies below the chosen place, and on what more labels might show; none at place 0."""
    margin, labels = spec.match or 0.0, _MORE_LABELS * differences.queries
    if not place:
        return ()
    note = f"no cheaper policy is shown to keep to {format_points(margin)}"
    shown = differences.cheapest(margin, _MORE_LABELS)
    if shown is not None and shown < place and labels <= _MAX_LABELS:
        cost = spec.money(np.asarray(log.cost, float).tolist()).full(float(differences.cost[shown]))
        note += f"; with {float(f'{labels:.2g}'):,.0f} labelled queries, one for {cost} might be"
    return (note,)


def _keep_today(frontier: Frontier, log: Log, spec: Spec, why: str, until: str = "") -> TargetPolicy:
    """Return today's model or policy as the policy for a margin, and a note that says why.

    The policy in service gets the provenance of this tuning, and its figures on this log. Raises InfeasibleError if
    today's does not keep to the limit on the seconds.
    """
    if isinstance(spec.today, AbstractPolicy):
        provenance = tuning_provenance(frontier, spec.target)
        policy = map_rungs(lambda rung: dataclasses.replace(rung, provenance=provenance), spec.today)
        policy = _with_figures(policy, log, None if frontier.bands is None else frontier.bands.level)
    else:
        assert spec.today is not None
        policy = single_policy(frontier, log, spec.today, spec.target)
    if spec.max_seconds is not None and (seconds := replay(policy, log).seconds) is not None:
        takes = float(seconds.p95 if spec.max_seconds.tail else seconds.mean)
        if takes > spec.max_seconds.seconds:
            raise InfeasibleError(f"{why}; today's would stay, and takes {takes:.3g} seconds")
    return TargetPolicy(policy, notes=(f"{STAYS}{until}: {why}",))


def _with_figures(policy: AbstractPolicy, log: Log, level: float | None) -> AbstractPolicy:
    """Return a policy with its figures on a log; a ladder that follows its bill moves to the position of its budget.

    Intervals have the probability `level`; None: there are none.
    """
    shared = take_shared_queries(log.comparable, [policy])
    figures = [_figures_on(shared, rung, replay(rung, shared), level) for rung in policy.rungs]
    # The costs of a ladder must rise, but a dearer rung may happen to cost less on this log.
    cost = np.array([expected["cost"] for expected in figures])
    rising = np.maximum.accumulate(cost)
    rising += _RISE * (rising[-1] or 1.0) * np.arange(len(rising))
    for expected, raised in zip(figures, (rising - cost).tolist(), strict=True):
        expected |= {name: expected[name] + raised for name in ("cost", "cost_low", "cost_high") if name in expected}
    rungs = tuple(
        dataclasses.replace(rung, expected=expected) for rung, expected in zip(policy.rungs, figures, strict=True)
    )
    if not isinstance(policy, Ladder):
        return rungs[0]
    position = policy.position
    if policy.budget is not None and policy.follows:
        position = position_at(rising.tolist(), policy.budget)
    return dataclasses.replace(policy, rungs=rungs, position=position)


def _figures_on(log: Log, rung: Policy, replayed: Replay, level: float | None) -> dict[str, Any]:
    """Return the expected figures of a rung by its replay on a log; intervals have the probability `level`."""
    kept = {name: rung.expected[name] for name in ("lam", "error_cost", "abstain_price") if name in rung.expected}
    expected: dict[str, Any] = {"error": float(np.clip(replayed.error, 0.0, 1.0)), "cost": float(replayed.spent)}
    if "abstain_price" in kept:
        expected["abstention"] = float(np.clip(replayed.abstention, 0.0, 1.0))
    if level is not None:
        low, high = error_interval(replayed, log, level).tolist()
        half = interval_half_width(level) * float(np.nan_to_num(replayed.spent_se))
        ends = {"error_low": low, "error_high": high}
        ends |= {"cost_low": max(expected["cost"] - half, 0.0), "cost_high": expected["cost"] + half}
        expected |= ends | {"level": level}
    if replayed.seconds is not None:
        expected |= replayed.seconds.to_json()
    return expected | kept


def single_policy(frontier: Frontier, log: Log, model: str, target: Target | None) -> Policy:
    """Return a policy that always asks one model of a frontier, with its expected figures.

    A single model has no λ of its own, so λ is that of the frontier's point with the nearest cost.

    Args:
        frontier: the frontier, of the default search.
        log: the log tuned on.
        model: name of the model.
        target: target that the model was chosen for; None: no target.
    """
    column = frontier.models.index(model)
    dtype = frontier.cost.dtype
    error, cost = single_model_figures(log, model)
    place = int(np.abs(np.asarray(frontier.cost, float) - cost).argmin())
    lam = np.asarray(frontier.lam)[place : place + 1]
    members = np.eye(len(frontier.models), dtype=bool)[column : column + 1]
    policies = Policies.from_cascades(np.zeros((1, len(frontier.models)), dtype), members)
    expected = LossTerms(*(np.full(1, figure, dtype) for figure in (error, cost, 0.0)))
    points = Points(lam, np.full(1, PointStatus.CONVERGED), expected, policies)
    alone = make_frontier(frontier.model, points, frontier.spec)
    if frontier.bands is not None:
        alone = dataclasses.replace(alone, bands=bootstrap(alone, log, refit=False))
    if log.seconds is not None:
        alone = dataclasses.replace(alone, seconds=replay(alone, log.comparable).seconds)
    return alone.policy_at(0, target)


#: Least number of queries of a segment with its own cascades; smaller segments use the cascades for all queries.
MIN_SEGMENT_QUERIES = 60


class _SegmentCorners(NamedTuple):
    """The H corners of one segment's frontier, from the cheapest to the dearest."""

    name: str | None  # name of the segment; None: all segments that are too small
    share: float  # share of the queries
    figures: np.ndarray  # (H, 3) error, money and abstention per query of the segment
    penalty: np.ndarray  # (H,) errors, and abstentions at their price
    policies: tuple[Policy, ...]  # H policies

    @classmethod
    def of(cls, frontier: Frontier, name: str | None, share: float, shift: Any = 0.0) -> _SegmentCorners:
        """Take the corners of a frontier.

        Args:
            frontier: the frontier of the segment's queries, or of all queries.
            name, share: as the fields.
            shift: (L, 3) error, money and abstention on the segment, minus those on the log of the frontier.
        """
        abstention = frontier.abstention if frontier.abstention is not None else np.zeros(len(frontier.cost))
        figures = np.maximum(np.stack([frontier.error, frontier.cost, abstention], axis=1, dtype=float) + shift, 0.0)
        loss = penalised(figures[:, 0], figures[:, 2], frontier.abstain_price)
        corners = lower_hull(figures[:, 1], loss)
        return cls(name, share, figures[corners], loss[corners], tuple(frontier.policy_at(int(i)) for i in corners))


def choose_by_segment(frontier: Frontier, log: Log, spec: Spec) -> TargetPolicy:
    """Return the policy for a spec's target with cascades for each segment, and a note that names these segments.

    Segments with fewer than 60 queries use the frontier of all queries, of the default search.

    Raises LogError if no segment has enough queries; InfeasibleError as `Frontier.policy` does.
    """
    segment = np.asarray(log.segment, object)
    counts = Counter(segment[log.complete].tolist())
    named = sorted(name for name, queries in counts.items() if name and queries >= MIN_SEGMENT_QUERIES)
    if not named:
        largest = max((queries for name, queries in counts.items() if name), default=0)
        most = f"with the answers of all models, the largest has {largest}"
        problem = f"no segment of {spec.segment} has {MIN_SEGMENT_QUERIES} queries {most}"
        raise LogError(f"{log.source}: {problem}: tune without segments, or by a column with fewer")
    rest, n = ~np.isin(segment, named), counts.total()
    other = n - sum(counts[name] for name in named)
    parts = [_SegmentCorners.of(frontier, None, other / n, _shift_on(frontier, log, log.take(rest)) if other else 0.0)]
    for name in named:
        frontier_of_segment = make_search(spec).find(log.take(segment == name), frontier.model).frontier
        parts.append(_SegmentCorners.of(frontier_of_segment, name, counts[name] / n))
    level = None if frontier.bands is None else frontier.bands.level
    rungs = tuple(_with_spread(rung, log.comparable, level) for rung in _merge_corners(parts, frontier))
    words = f"{count(len(named), 'segment')} of {spec.segment} with cascades of their own: {', '.join(named)}"
    words += f"; the other {count(other, 'query')} go by the cascades for all" if other else ""
    assert spec.target is not None
    return TargetPolicy(_at_target(rungs, spec.target, log.error_kind), notes=(words,))


def _with_spread(rung: Policy, log: Log, level: float | None) -> Policy:
    """Add the seconds of a rung on a log, and intervals by the sampling error alone, moved to its expected figures."""
    figures, expected = _figures_on(log, rung, replay(rung, log), level), rung.expected
    for name, most in (("error", 1.0), ("cost", math.inf)):
        for end in (f"{name}_low", f"{name}_high") if level is not None else ():
            figures[end] = min(max(figures[end] + expected[name] - figures[name], 0.0), most)
    return dataclasses.replace(rung, expected={**figures, **expected})


def _at_target(rungs: tuple[Policy, ...], target: Target, error_kind: ErrorKind) -> AbstractPolicy:
    """Return the ladder of the rungs at the position that meets a limit, or the best rung for a λ.

    Raises InfeasibleError if no rung meets the limit.
    """
    cost = [float(rung.expected["cost"] or 0.0) for rung in rungs]
    error = [float(penalty(rung.expected) or 0.0) for rung in rungs]
    best = best_point(target, np.array(cost), np.array(error), rungs[0].expected.get("abstain_price"), error_kind)
    return make_ladder(rungs, position_within(target, cost, error), target) if target.is_limit else rungs[best]


def _shift_on(frontier: Frontier, log: Log, part: Log) -> np.ndarray:
    """Return the change of error, money and abstention from a log to a part of it, under L policies: (L, 3)."""
    on_part, on_log = replay(frontier, part.comparable), replay(frontier, log.comparable)
    names = ("error", "spent", "abstention")
    return np.stack([getattr(on_part, name) - getattr(on_log, name) for name in names], axis=1, dtype=float)


def _merge_corners(parts: list[_SegmentCorners], frontier: Frontier) -> tuple[Policy, ...]:
    """Merge the corners of all segments into rungs, `MAX_RUNGS` at most."""
    slopes = [np.diff(part.penalty) / np.diff(part.figures[:, 1]) for part in parts]  # they rise within each part
    steps = np.repeat(np.arange(len(parts)), [len(rising) for rising in slopes])
    order = steps[np.argsort(np.concatenate(slopes), kind="stable")]  # the part that moves from each rung to the next
    taken = np.concatenate([np.zeros((1, len(parts)), int), np.cumsum(np.eye(len(parts), dtype=int)[order], axis=0)])
    figures = np.sum([part.share * part.figures[taken[:, place]] for place, part in enumerate(parts)], axis=0)
    error, cost = penalised(figures[:, 0], figures[:, 2], frontier.abstain_price), figures[:, 1]
    kept = lower_hull(cost, error)
    kept = kept[thin_hull(cost[kept], error[kept], MAX_RUNGS)]
    saved = -np.diff(error[kept]) / np.diff(cost[kept])
    # λ of each rung is the slope to the next rung; the last rung repeats the slope before it.
    lam = np.append(saved, saved[-1:] if saved.size else np.nan)
    return tuple(
        _make_rung(parts, taken[row], figures[row], slope, frontier.abstain_price)
        for row, slope in zip(kept, lam.tolist(), strict=True)
    )


def _make_rung(
    parts: list[_SegmentCorners], corners: np.ndarray, figures: np.ndarray, lam: float, abstain_price: float | None
) -> Policy:
    """Make one policy of one corner of each part."""
    other, *segments = policies = [part.policies[corner] for part, corner in zip(parts, corners, strict=True)]
    models = tuple(dict.fromkeys(name for policy in policies for name in policy.models))
    shared = ("calibrations", "cost", "prices")
    merged = {name: merge(getattr(policy, name) or {} for policy in policies) for name in shared}
    error, cost, abstention = figures.clip([0.0, 0.0, 0.0], [1.0, np.inf, 1.0]).tolist()  # corrected figures may be out
    expected = {"error": error, "cost": cost, **({"lam": lam, "error_cost": 1 / lam} if lam > 0 else {"lam": None})}
    expected |= {} if abstain_price is None else {"abstention": abstention, "abstain_price": abstain_price}
    return dataclasses.replace(
        other,
        models=models,
        rules={name: other.rules.get(name, (Rule(1, "answer"),)) for name in models},
        **merged | {"prices": merged["prices"] or None},
        expected=expected,
        segments={part.name: policy for part, policy in zip(parts[1:], segments, strict=True)},
    )
