"""A guarantee for what is deployed: where on a frontier's ladder a limit on the error is kept, by held-out queries.

What a model predicts may be wrong, and the least of many errors counted on one log is too good to be true. Learn then
Test (Angelopoulos, Bates, Candès, Jordan & Lei 2021, "Learn then Test: Calibrating predictive algorithms to achieve
risk control", arXiv 2110.01052) needs neither the model to be right nor many queries: each position of the ladder has
the null hypothesis that its true error is above the limit, positions are tested from the dearest to the cheapest, an
order that was fixed before the held-out queries were seen, and the first that is not rejected ends the sequence. As
every null is tested at the full level and no test is reached past a true null that was kept, the probability that any
true null is rejected is at most 1 − confidence, whatever the positions have in common: the one that is chosen errs more
often with that probability only.

Each test is a bet on what the queries lost, one after the other, as described below. At a position a query loses the
mean of what it loses by the rungs on either side, which is what is expected over the lots that choose the rung. Where
judges count beside labels by hand, a query loses 1 − g + R/π · (g − y) by the model that answers (prediction-powered
inference: Angelopoulos, Bates, Fannjiang, Jordan & Zrnic 2023, Science 382): y its label, R whether it has one, π how
likely that was, g what the log that was tuned on predicts of it. Its expectation is the error's whatever g says.

Nothing may be guaranteed by queries that were tuned on: `overlap` tells of them by the digest of the log, and by names
with equal rows. A row is a query's log-probabilities, in single precision, in which policies carry theirs. Names recur
between splits of a benchmark, and rows where confidences are stated: three equal ones count, if chance gives far fewer.

The test of a mean against a limit is exact in finite samples, for losses whose upper ends are known. A gambler starts
with 1 and stakes λ_t on each loss X_t against its expectation's being m or more,

    K_t = K_{t−1} · (1 + λ_t (m − X_t)),    0 ≤ λ_t < 1/(u_t − m),    X_t ≤ u_t

If it is, K is a supermartingale without debts, and reaches 1/α with a probability of α at most, ever (Ville's
inequality): where it does, m is refuted at the level α (Waudby-Smith & Ramdas 2024, "Estimating means of bounded random
variables by betting", JRSS B 86(1)). Any stake will do that depends on what came before alone. This one aims at 1/α
with the losses to come: where r of them are left, of variance v, and log K is c short of log 1/α, it is √(2c/(rv))
(Voráček & Orabona 2025, "STaR-Bets: Sequential target-recalculating bets for tighter confidence intervals", arXiv
2505.22422). Of losses of 0 or 1 it refutes nearly as much as the binomial tail, of others far more.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import PurePath
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from rcjax._base.checks import takes
from rcjax._base.codec import Object, read
from rcjax._core.json_values import plain
from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import answers_by_name, read_reference
from rcjax.logs.log import Log
from rcjax.model.label_outcomes import LabelRegression, labelled_by_hand, with_outcomes
from rcjax.policy.ladder import with_provenance
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.spec import Spec, SpecFields, Target, with_spec
from rcjax.solving.frontier.frontier import MOST_RUNGS, Frontier
from rcjax.solving.frontier.hull import InfeasibleError, position_weights
from rcjax.solving.frontier.points import Outcomes
from rcjax.tuning.replaying.comparing import Replies, Today, default_today, models_of
from rcjax.tuning.replaying.walk import outcomes_on_log, require_answers

_MOST_STAKED = 0.9  # of what could be lost at once

_LOSSES_KNOWN = 4.0  # losses for which the variance that is supposed at first stands

_BLOCKS = 200  # at whose beginnings stakes are reckoned, of more losses than that

_GRID, _REFINED = 32, 4  # limits that are tried at once, so often one between two others


def refuted(losses: ArrayLike, limit: ArrayLike, level: float, most: ArrayLike = 1.0) -> np.ndarray:
    """(…) bool: whether n losses, one after the other, refute that their expectation is `limit` or more.

    Args:
        losses: (…, n) in an order that is not theirs: random, or that of a clock.
        limit: (…) the limits.
        level: the probability, at most, of a wrong refutation.
        most: (n,) the largest value that each could have, known before it is seen; or () of all.

    >>> losses = np.tile([0.0, 0.0, 0.0, 1.0], 75)
    >>> refuted(losses, [0.2, 0.25, 0.3, 0.35], 0.05).tolist()
    [False, False, True, True]
    """
    x, m = np.asarray(losses, float), np.maximum(np.asarray(limit, float)[..., None], 1e-12)
    n = x.shape[-1]
    if n == 0:
        return np.zeros(np.broadcast_shapes(x.shape[:-1], m.shape[:-1]), bool)
    room = np.maximum(np.broadcast_to(most, n) - m, 1e-12)
    missing = np.full(np.broadcast_shapes((*x.shape[:-1], 1), m.shape), -math.log(level))
    weight = _LOSSES_KNOWN / m
    squares = weight * m * room.mean(-1, keepdims=True)  # as if each were 0 or the most
    for block in np.array_split(np.arange(n), min(n, _BLOCKS)):
        variance = np.maximum(squares / (weight + block[0]), 1e-12)
        stake = np.minimum(np.sqrt(2 * missing / ((n - block[0]) * variance)), _MOST_STAKED / room[..., block])
        below = m - x[..., block]
        gained = np.cumsum(np.log1p(stake * below), axis=-1)
        there = (missing == 0) | (gained.max(-1, keepdims=True) >= missing)
        missing = np.where(there, 0.0, missing - gained[..., -1:])
        squares = squares + (below**2).sum(-1, keepdims=True)
    return missing[..., 0] == 0


def upper_limit(losses: ArrayLike, level: float, most: ArrayLike = 1.0, top: float = 1.0) -> float:
    """The largest limit up to `top` that losses do not refute: an upper confidence limit of their expectation.

    Args:
        losses, level, most: as of `refuted`.
        top: the largest limit that is tried.

    >>> round(upper_limit(np.tile([0.0, 0.0, 0.0, 1.0], 75), 0.05), 2)
    0.3
    """
    low, high = 0.0, top
    for _ in range(_REFINED):
        grid = np.linspace(low, high, _GRID + 1)
        kept = np.flatnonzero(~refuted(losses, grid[1:], level, most))
        place = int(kept[-1]) + 1 if len(kept) else 0  # 0 is never refuted
        if place == _GRID:
            return float(high)
        low, high = grid[place : place + 2]
    return float(high)


_STEPS = 4  # of the positions that are tested, from each rung to the next

_HELD_OUT = 0.5  # of the queries of a log, where a guarantee is wanted and no other log given

_FEWEST = 3  # shared queries that are told of


class OverlapWarning(UserWarning):
    """A log that is to judge a policy holds queries that the policy was tuned on."""


class Overlap(NamedTuple):
    """How much of a log was tuned on, as far as can be told; false where nothing was."""

    queries: int  # of the log, that were tuned on
    n: int  # all queries of the log
    whole: bool  # whether that is every one of them

    def __bool__(self) -> bool:
        return self.queries > 0

    def describe(self) -> str:
        """How many queries were tuned on, in words."""
        return f"at least {self.queries:,} of its {self.n:,} queries were tuned on"


def overlap(log: Log, tuned: Any) -> Overlap:
    """How many queries of a log are among those tuned on: of another log, or that a policy, frontier or model carries.

    On the models that both have, in whichever order. ValueError where what is carried is damaged.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> overlap(log.take(slice(100)), log).queries, overlap(*log.split(0.5, seed=0)).queries
    (100, 0)
    """
    n, of = log.n_queries, tuned.rungs[0] if isinstance(tuned, AnyPolicy) else getattr(tuned, "model", tuned)
    if isinstance(of, Log):
        digest, models, old = of.digest, of.models, of
    else:
        digest = of.provenance.get("digest")
        models = tuple(read(Object, of.provenance.get("answers") or {}, "provenance.answers"))
        kept = of.provenance.get("reference") if isinstance(tuned, AnyPolicy) else of.details.reference
        old = None if kept is None else read_reference(kept, log.task)
    if models and {*models} <= {*log.models} and log.select(models).digest == digest:
        return Overlap(n, n, whole=True)
    if old is None:
        return Overlap(0, n, whole=False)
    both = [name for name in old.models if name in log.models]
    rows, old_rows = answers_by_name(log, both), answers_by_name(old, both)
    often, common = Counter(old_rows.values()), rows.keys() & old_rows.keys()
    by_chance = sum(often[rows[name]] for name in common) / max(len(old_rows), 1)
    most = max(3 * by_chance, by_chance + 5 * math.sqrt(by_chance))  # three times, and five standard deviations
    equal = sum(rows[name] == old_rows[name] for name in common)
    queries = equal if equal > _FEWEST - 1 + most else 0
    return Overlap(queries, n, whole=0 < queries == n)


def require_unseen(log: Log, tuned: Any) -> None:
    """LogError where queries of a log that is to guarantee something were tuned on, as `overlap` tells."""
    if shared := overlap(log, tuned):
        what = "all of its queries were tuned on" if shared.whole else shared.describe()
        raise LogError(f"{log.source}: {what}: certify on queries that were held out")


def hold_out(log: Log, held_out: Log | None, spec: Spec) -> tuple[Log, Log]:
    """(the queries to tune on, those of the test of a guarantee).

    Args:
        log: the log.
        held_out: a log for the test; None: half of the queries of `log`, drawn at random.
        spec: whether judges' verdicts count for it. Where only labels by hand do, half of the queries that have them
            are held out: the others are of no use to the test.

    Raises LogError where the two logs share queries, or labels are too few.

    >>> import rcjax
    >>> tuned_on, tested = hold_out(rcjax.sample_log(100, seed=0), None, Spec(max_error=0.2, confidence=0.95))
    >>> tuned_on.n_queries, tested.n_queries
    (50, 50)
    """
    if held_out is not None:
        held_out = held_out.select(log.models)
        require_unseen(held_out, log)
        return log, held_out
    if log.hand is None:
        tested, rest = log.split(_HELD_OUT, seed=0)
        return rest, tested
    told = log.labelled.any(1) if spec.judged else (log.labelled | ~np.asarray(log.answered)).all(1)
    if told.sum() < 2:
        which = "labels" if spec.judged else "labels for all answers"
        raise LogError(f"{log.source}: fewer than two queries have {which}: nothing to test on")
    rng, parts = np.random.default_rng(0), (told, ~told) if spec.judged else (told,)
    drawn = (rng.permutation(np.flatnonzero(part))[: round(_HELD_OUT * part.sum())] for part in parts)
    chosen = np.concatenate([*drawn])  # half of the labels, however they were drawn
    return log.take(np.setdiff1d(np.arange(log.n_queries), chosen)), log.take(np.sort(chosen))


def outcomes_of_rungs(frontier: Frontier, log: Log, right: Any, charge: Any) -> Outcomes:
    """Return the outcomes (R, n) of the queries of a log by the rungs of a frontier's ladder, as `outcomes_on_log`."""
    rungs = frontier.rungs
    policies = frontier.policies.on_host().take(np.resize(rungs, MOST_RUNGS))  # one shape is compiled
    outcomes = outcomes_on_log(frontier.model.calibrators, policies, log, right, charge)
    return Outcomes(*(np.asarray(figure, float)[: len(rungs)] for figure in outcomes))


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """What became of n held-out queries, in an order that is random, by the R rungs of a frontier's ladder."""

    tested: Log
    """The log, before queries were left out that do not count."""
    outcomes: Outcomes
    """(R, n) wrong: 1 for an error, 0 for none; the score that is lost, or what judges say."""
    most: np.ndarray
    """(n,) the largest loss that each query could have had."""
    price: float
    """What a refusal counts, in errors."""
    rival: Replies | None = None
    """What became of them by today's, whose errors are taken off; None: nothing is."""

    @classmethod
    def of(cls, frontier: Frontier, log: Log, tuned_on: Log | None = None, today: Today | None = None) -> HeldOut:
        """What becomes of the queries of a log.

        Args:
            frontier: the frontier.
            log: the log, with the models of the frontier and of today's. Queries that lack a model which may be asked
                are left out.
            tuned_on: the log that was tuned on, where judges' verdicts count: its labels tell how far these are right.
            today: a model or a policy, whose errors are taken off; None: nothing is.

        Raises InfeasibleError where the frontier has no policy with finite figures; LogError where no query is left,
        and where answers are to be compared and the log has none.
        """
        rungs = frontier.rungs
        if not rungs.size:
            raise InfeasibleError("the frontier has no policy with a finite predicted error and cost")
        policies = frontier.policies.on_host().take(rungs)
        require_answers(policies, log)
        tested = labelled_by_hand(log) if tuned_on is None else log
        asked = np.asarray(policies.members).any(0) | (tuned_on is not None)
        names = [frontier.models[j] for j in np.flatnonzero(asked)]
        theirs = () if today is None else models_of(today)
        names += [name for name in theirs if name not in names]
        complete = np.flatnonzero(tested.select(names).complete)
        if not len(complete):
            raise LogError(f"{log.source}: no query was answered by all of {', '.join(names)}: nothing to test on")
        log = tested.take(np.random.default_rng(0).permutation(complete))
        right, most = np.asarray(log.correct, float), np.ones(len(complete))
        if tuned_on is not None:
            right, most = _corrected(log, tuned_on)
            has_chance = np.isfinite(most)  # behind the last label nothing is known of what is left
            right, most, log = right[has_chance], most[has_chance], log.take(has_chance)
        fitted, price = frontier.model, frontier.abstain_price or 0.0
        walked = log.select(frontier.models)
        columns = [log.models.index(name) for name in frontier.models]
        own = right[:, columns].astype(log.logprob.dtype)
        outcomes = outcomes_of_rungs(frontier, walked, own, fitted.cost)
        most = np.maximum(most, price)
        rival = None if today is None else Replies.of(today, with_outcomes(log, right))
        return cls(tested, outcomes, most if rival is None else 2 * most - 1, price, rival)

    def positions(self, frontier: Frontier) -> np.ndarray:
        """(m,) the positions to test in turn, from the dearest one down: beside a rival, from below its bill."""
        positions = np.arange(_STEPS * (len(frontier.rungs) - 1), -1, -1) / _STEPS
        if self.rival is None:
            return positions
        bills = np.interp(positions, np.arange(len(frontier.rungs)), np.asarray(frontier.cost, float)[frontier.rungs])
        return positions[bills < float(self.rival.spent.mean())]

    def losses(self, positions: ArrayLike) -> tuple[np.ndarray, float]:
        """((m, n) what queries lose at positions, refusals at their price; what is added to each)

        Beside a rival each is 1 more than the difference, so that none is below 0.
        """
        penalty = self.at(positions).penalty(self.price)
        return (penalty, 0.0) if self.rival is None else (1 + penalty - self.rival.wrong, 1.0)

    def at(self, positions: ArrayLike) -> Outcomes:
        """(m, n) what is expected of the queries at positions (m,) of the ladder."""
        weights = position_weights(np.asarray(positions, float), len(self.outcomes.wrong))
        return Outcomes(*(weights @ figure for figure in self.outcomes))

    def errs_below(self, positions: ArrayLike, limit: float, level: float) -> np.ndarray:
        """(m,) whether the mean loss at positions is shown to be below a limit."""
        losses, added = self.losses(positions)
        return refuted(losses, limit + added, level, self.most + added)

    def error_bound(self, position: float, level: float, top: float | None = None) -> float:
        """Upper confidence limit of the mean loss at a position; `top` is tried first."""
        losses, added = self.losses([position])
        top = max(1.0, self.price) if top is None else top
        return upper_limit(losses[0], level, self.most + added, top + added) - added


def _corrected(log: Log, tuned_on: Log) -> tuple[np.ndarray, np.ndarray]:
    """(outcomes (n, k) that the labels correct, (n,) the largest error of each query; infinite behind the last label).

    The labelled answers of a model are a random sample of all: π is the share of labels among the answers to come,
    which is known before each.
    """
    labelled, right = log.labelled, np.asarray(log.correct, float)
    guess = LabelRegression.of(tuned_on).predict(log)[0]
    ahead = labelled[::-1].cumsum(0)[::-1]  # labels that are left to come; where there are none the chance is 0
    chance = ahead / np.arange(log.n_queries, 0, -1)[:, None]
    weight = np.where(labelled, 1 / np.where(labelled, chance, 1.0), 0.0)
    with np.errstate(divide="ignore"):
        return guess + weight * (right - guess), (1 / chance).max(1)


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A policy, what is guaranteed of it, and what the guarantee rests on.

    The guarantee is `max_error` or `match`, with `confidence` over the draw of the held-out queries. The bound tells
    how much room there is: it is at `confidence` for this policy on its own, as if no other had been tested.
    """

    policy: AnyPolicy
    """The policy to deploy, a ladder at the position; its `provenance["guarantee"]` holds the figures below."""
    position: float
    """Its position, from 0, the cheapest rung of the frontier's ladder."""
    n: int
    """Number of held-out queries that count: those that every model that may be asked has answered."""
    errors: float
    """Number of them that the policy answered wrongly, rounded where lots decide which or judges count. Where answers
    have scores, the sum of what it lost, in full scores."""
    refusals: int
    """Number of them that the policy refused to answer; each counts as `abstain_price` errors."""
    error_bound: float
    """Upper confidence limit of the policy's error probability, or where it may refuse, of error +
    abstain_price·abstention; for a margin, of how much that is above today's."""
    confidence: float
    """Probability, at least, with which the guarantee holds."""
    max_error: float | None = None
    """The error probability that is guaranteed, refusals counted at their price; None for a margin."""
    match: float | None = None
    """The margin beside today's that is guaranteed; None for an error probability."""
    abstain_price: float | None = None
    """What a refusal counts, in errors; None where models may not refuse."""
    more: float | None = None
    """How much more than today's it lost on these queries, on average; None for an error probability."""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, the policy as its `to_json` has it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return plain(fields | {"policy": self.policy.to_json()})


@takes(frontier=Frontier, log=Log, tuned_on=(Log, None))
def certify(
    frontier: Frontier, log: Log, spec: Spec | None = None, *, tuned_on: Log | None = None, **fields: Unpack[SpecFields]
) -> Certificate:
    """Find the cheapest position on the ladder of a frontier at which held-out queries guarantee a limit.

    With a probability of at least `confidence` over the draw of that log, the policy keeps to the limit in service.
    Nothing is assumed of the model: a bad one makes a dear policy, or none, but not a false promise. Certifying
    several frontiers or limits on one log needs a share of 1 − confidence for each. A budget needs no guarantee: a
    service keeps it by following its bill.

    Args:
        frontier: the frontier to choose from. The rungs of its ladder, and three positions between each two of them,
            are tested, from the most expensive to the cheapest; the cheapest that passes is chosen.
        log: the held-out log, independent of the frontier: of queries drawn as those in service will be, none of which
            had a part in fitting, solving, or choosing among frontiers.
        spec: the limit, `max_error`: the true probability of error is at most this; or `match`: it is at most this
            above that of `today` on the same queries, where positions below the bill of today's are tested. Its
            `confidence`, 0.95 by default, is the probability of the guarantee.
        tuned_on: the log that the frontier was tuned on: a held-out log that shares queries with it is refused.
            Without it, the queries that the model carries, some hundreds, are compared.
        fields: those of `Spec`, in place of what `spec` says.

    Tests are by betting on what each query loses, from 0 to 1, or on its difference from today's, from −1 to 1
    (Waudby-Smith & Ramdas 2024): valid with any number of queries, for errors, scores, refusals at their price, and
    what is expected over lots.

    Where answers lack labels, only queries whose answers are all labelled by hand count. With `judged`, all queries do:
    judges and confidences say what to expect of an answer, the labels correct it, and the bet is on the corrected
    outcomes. It needs `tuned_on`, whose labels tell how far judges are right, and holds however wrong they are.

    Where models may refuse to answer, `max_error` is as in `Frontier.policy`: the true error +
    abstain_price·abstention is at most this, so that the error alone is too, and nobody keeps to it by refusing.

    Raises InfeasibleError where not even the first position passes, with what can be guaranteed instead;
    ValueError for a limit or a confidence out of range, and for `judged` without `tuned_on`; LogError for a log that is
    not held out, and as `replay` does.

    >>> import rcjax
    >>> train, held_out = rcjax.sample_log(900, seed=0).split(1 / 3, seed=0)
    >>> frontier = rcjax.solve_frontier(rcjax.fit(train))
    >>> certificate = rcjax.certify(frontier, held_out, max_error=0.25)
    >>> certificate.n, certificate.errors / certificate.n < certificate.error_bound <= 0.25
    (600, True)
    >>> certificate.policy.provenance["guarantee"]["confidence"]
    0.95
    """
    spec = dataclasses.replace(spec or Spec(), **fields)
    spec = spec if spec.confidence is not None else dataclasses.replace(spec, confidence=0.95)
    target, confidence = _limit_of(spec)
    level = 1 - confidence
    for tuned in (frontier, *([] if tuned_on is None else [tuned_on])):
        require_unseen(log, tuned)
    today = None if spec.match is None else default_today(log) if spec.today is None else spec.today
    others = [] if today is None else [name for name in models_of(today) if name not in frontier.models]
    log = log.select([*frontier.models, *others])
    judged = spec.judged and log.hand is not None
    held_out = HeldOut.of(frontier, log, _with_judges(log, tuned_on) if judged else None, today)
    positions = held_out.positions(frontier)
    if not positions.size:
        raise InfeasibleError("no policy of the frontier costs less than today's")
    shown = held_out.errs_below(positions, target.value, level)
    passed = len(shown) if shown.all() else int(shown.argmin())  # up to the first that is not shown to keep the limit
    if not passed:
        raise InfeasibleError(_infeasible(held_out, float(positions[0]), target, level, frontier.counted.noun))
    return _certificate(frontier, held_out, float(positions[passed - 1]), spec)


def _limit_of(spec: Spec) -> tuple[Target, float]:
    """Return (the limit to guarantee, the confidence); ValueError where one is out of range."""
    target, confidence = Target.of(**spec.target), float(spec.confidence or 0.0)
    if target.name not in ("max_error", "match"):
        raise ValueError(f"{target.name} cannot be guaranteed: give max_error or match")
    for name, value in ((target.name, target.value), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} is {value}; it must lie between 0 and 1")
    return target, confidence


def _certificate(frontier: Frontier, held_out: HeldOut, position: float, spec: Spec) -> Certificate:
    """What is guaranteed at a position that passed."""
    target, confidence = _limit_of(spec)
    kept = Spec(max_error=spec.max_error, match=spec.match, confidence=confidence, judged=spec.judged)
    policy = with_spec(frontier.ladder(position, target), kept)
    did = held_out.at([position])
    lost, (losses, added) = float(did.wrong.sum()), held_out.losses([position])
    figures = {
        "n": did.wrong.size,
        "errors": lost if held_out.tested.scores is not None else round(lost),
        "refusals": round(float(did.refused.sum())),
        "error_bound": held_out.error_bound(position, 1 - confidence, target.value),
        **target.to_json(),
        "confidence": confidence,
        "abstain_price": frontier.abstain_price,
        "more": None if held_out.rival is None else float(losses.mean()) - added,
    }
    tested = held_out.tested.select(frontier.models)
    guarantee = figures | {"source": PurePath(tested.source).name, "digest": tested.digest}
    return Certificate(with_provenance(policy, guarantee=guarantee), position, **figures)


def _with_judges(log: Log, tuned_on: Log | None) -> Log:
    """The log tuned on, which tells how far judges are right; ValueError where it does not."""
    if log.hand is None or tuned_on is None or tuned_on.hand is None or tuned_on.hand.judges != log.hand.judges:
        raise ValueError("judged needs tuned_on, a log with labels by hand of some answers, and the same judges")
    return tuned_on.select(log.models)


def _infeasible(held_out: HeldOut, position: float, target: Target, level: float, noun: str) -> str:
    """What the first of the sequence, which was fixed beforehand, did, and what that guarantees."""
    first, beside = held_out.at([position]), held_out.rival is not None

    def told(share: float, digits: str = ".3g") -> str:
        if not beside:
            return f"{100 * share:{digits}} % {noun}"
        return f"{abs(100 * share):{digits}} points {'less' if share < 0 else 'more'} {noun} than today's"

    losses, added = held_out.losses([position])
    rate, refused = float(losses.mean()) - added, round(float(first.refused.sum()))
    did = f"had {told(rate)}"
    did += f" and refused {refused:,}, each counted as {100 * held_out.price:.4g} %" if refused else ""
    bound = math.ceil(1e4 * held_out.error_bound(position, level)) / 1e4
    instead = f"at most {told(bound, '.2f')}"
    limit = f"at most {told(target.value, '.4g')}"
    return (
        f"no policy can be guaranteed to have {limit} with {100 * (1 - level):.4g} % confidence: of "
        f"{first.wrong.size:,} held-out queries the safest {did}, which guarantees {instead}"
    )
