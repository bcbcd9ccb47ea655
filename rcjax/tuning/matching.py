"""The least money within a margin of today's: where on a ladder a policy errs no more than so much beyond it.

What counts is the difference on the same queries. At each position of the ladder it is the error that is expected
there, corrected for optimism, less today's; and its standard error is that of the paired differences by the labels. The
position is the cheapest one where

    difference + z·standard error ≤ margin,        z = 1.645

z bounds the difference at one position with 95 %; as the cheapest of many positions is taken, the margin is kept with
some 90 % (`benchmarks.match`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rcjax._base.normal_law import Z95
from rcjax._base.wording import count, points
from rcjax.frontier.frontier import MOST_RUNGS, Frontier, make_frontier
from rcjax.frontier.hull import InfeasibleError, position_weights
from rcjax.frontier.points import Outcomes, Points, PointStatus
from rcjax.frontier.policies import Policies
from rcjax.logs.log import Log
from rcjax.policy.policy import AnyPolicy, Policy
from rcjax.policy.spec import Spec, Target
from rcjax.replaying.comparing import Replies, Today, comparable_log, errors_alone, paired_error
from rcjax.replaying.walk import outcomes_on_log
from rcjax.tuning.bootstrapping import bootstrap
from rcjax.tuning.certify import Deployed, guaranteed

_STEPS = 20  # positions tried from each rung to the next

_MOST_LABELS = 100_000  # more than anybody will give


class Margins(NamedTuple):
    """How positions on a ladder compare with today's; P positions, from the cheapest rung to the dearest."""

    position: np.ndarray  # (P,)
    cheaper: np.ndarray  # (P,) bool: the bill is below today's
    more: np.ndarray  # (P,) error that is expected, minus today's
    se: np.ndarray  # (P,) its standard error
    queries: int  # that tell differences: with labels, where these are needed

    def cheapest(self, margin: float) -> int | None:
        """Which is the cheapest position that keeps to a margin; None where none below today's bill does."""
        kept = np.flatnonzero(self.cheaper & (self.more + Z95 * self.se <= margin * (1 + 1e-9)))
        return int(kept[0]) if kept.size else None

    def describe(self, place: int) -> str:
        """Why a position keeps to the margin, in words.

        >>> one = np.ones(1)
        >>> Margins(0 * one, one > 0, -0.02 * one, 0.01 * one, 300).describe(0)
        "this one has 2.0 points less than today's, and 1.6 points of room for chance"
        """
        more = 100 * self.more[place]
        differs = f"{abs(more):.1f} points {'more' if more > 0 else 'less'} than today's"
        room = f"{100 * Z95 * self.se[place]:.1f} points of room for chance"
        cheaper = "cheaper policies are not sure enough to keep to the margin; " if place else ""
        return f"{cheaper}this one has {differs}, and {room}"

    def labels_needed(self, margin: float) -> int | None:
        """Labelled queries with which some position might keep to a margin; None where none is expected to.

        >>> one = np.ones(1)
        >>> Margins(0 * one, one > 0, 0.002 * one, 0.01 * one, 300).labels_needed(0.01)
        1269
        """
        room = margin - self.more
        hopeful = self.cheaper & (room > 0)
        if not hopeful.any():
            return None
        least = float((self.se[hopeful] / room[hopeful]).min())
        needed = math.ceil(self.queries * (Z95 * least) ** 2)
        return needed if needed <= _MOST_LABELS else None


def margins(frontier: Frontier, log: Log, today: Today) -> Margins:
    """Compare the ladder of a frontier with today's model or policy on the log tuned on.

    Args:
        frontier: of the default search on that log.
        log: the log.
        today: a model of the log, or a policy over its models.
    """
    rungs = frontier.rungs
    shared = comparable_log(log, [*frontier.models, today])
    walked = shared.select(frontier.models)
    policies = frontier.policies.on_host().take(np.resize(rungs, MOST_RUNGS))  # one shape is compiled
    outcomes = outcomes_on_log(frontier.model.calibrators, policies, walked, walked.correct, walked.query_cost)
    penalty = Outcomes(*(np.asarray(one, float)[: len(rungs)] for one in outcomes)).penalty(frontier.abstain_price)
    theirs, error = Replies.of(today, shared), None
    bill = float(theirs.spent.mean())
    if isinstance(today, str):  # as the screens have it: by all of its answers
        column = log.models.index(today)
        error, bill = float(errors_alone(log)[column]), float(np.asarray(log.cost)[column])
    position = np.arange(_STEPS * (len(rungs) - 1) + 1) / _STEPS
    weights = position_weights(position, len(rungs))
    expected, cost = (weights @ np.asarray(figure, float)[rungs] for figure in (frontier.penalty, frontier.cost))
    more = expected - (float(theirs.wrong.mean()) if error is None else error)
    se = np.concatenate([paired_error(part @ penalty - theirs.wrong) for part in np.array_split(weights, 8)])
    told = log.select([name for name in log.models if name in shared.models])
    queries = int((told.labelled.any(1) & told.complete).sum())
    return Margins(position, cost < bill * (1 - 1e-9), more, se, queries)


def match_today(frontier: Frontier, log: Log, held_out: Log | None, spec: Spec) -> Deployed:
    """Return the cheapest policy within a margin of today's; today's itself where none below its bill is.

    Args:
        frontier: of the default search on the log.
        log: the log tuned on.
        held_out: queries for the test of a guarantee, where `spec` has a confidence.
        spec: the margin `match`, `today`, and perhaps a `confidence`.
    """
    assert spec.today is not None
    today, margin = spec.today, Target.of(**spec.target).value
    if spec.confidence is not None:
        assert held_out is not None
        try:
            return guaranteed(frontier, log, held_out, spec)
        except InfeasibleError as problem:
            return Deployed(policy_of_today(frontier, log, today), notes=(f"today's stays: {problem}",))
    found = margins(frontier, log, today)
    if (place := found.cheapest(margin)) is not None:
        policy = frontier.ladder(float(found.position[place]), Target("match", margin))
        return Deployed(policy, notes=(found.describe(place),))
    needed, told = found.labels_needed(margin), "query" if log.hand is None else "labelled query"
    why = f"no cheaper policy is shown to keep to {points(margin)} on {count(found.queries, told)}"
    if needed is None:
        hope = "and none is expected to with more labels: allow more, or log cheaper models"
    else:
        hope = f"and some {float(f'{needed:.2g}'):,.0f} labelled ones might show one"
    return Deployed(policy_of_today(frontier, log, today), notes=(f"today's stays: {why}, {hope}",))


def policy_of_today(frontier: Frontier, log: Log, today: Today) -> AnyPolicy:
    """Today's as a policy with what is expected of it: the policy itself, or one that always asks the model."""
    return today if isinstance(today, AnyPolicy) else single_policy(frontier, log, today)


def single_policy(frontier: Frontier, log: Log, model: str, target: Target | None = None) -> Policy:
    """A policy that always asks one model of a frontier, with what is expected of it.

    Args:
        frontier: of the default search.
        log: the log tuned on.
        model: the model's name.
        target: what it was chosen for.
    """
    column, dtype = frontier.models.index(model), frontier.cost.dtype
    names = list(log.models)
    error, cost = (np.asarray(of, float)[names.index(model)] for of in (errors_alone(log), log.cost))
    place = int(np.abs(np.asarray(frontier.cost, float) - cost).argmin())
    lam = np.asarray(frontier.lam)[place : place + 1]
    members = np.eye(len(frontier.models), dtype=bool)[column : column + 1]
    policies = Policies.of_cascades(np.zeros((1, len(frontier.models)), dtype), members)
    outcomes = Outcomes(*(np.full(1, figure, dtype) for figure in (error, cost, 0.0)))
    points = Points(lam, np.full(1, PointStatus.CONVERGED), outcomes, policies)
    alone = make_frontier(frontier.model, points, frontier.spec)
    if frontier.bands is not None:
        alone = alone.with_bands(bootstrap(alone, log, refit=False))
    return alone.point(0, None if target is None else target.to_json())
