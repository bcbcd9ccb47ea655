"""Certificates: the cheapest position on a frontier's ladder at which held-out queries guarantee a limit.

A model's predictions may be wrong, and the least of many errors counted on one log is optimistic. Learn then Test needs
neither a correct model nor many queries (Angelopoulos, Bates, Candès, Jordan & Lei 2021, "Learn then Test: Calibrating
predictive algorithms to achieve risk control", arXiv 2110.01052). The null hypothesis at each position of the ladder is
that its true error is above the limit. Positions are tested from the dearest to the cheapest; for a margin (`match`),
only positions below today's bill on the queries tuned on. So the order of the tests is fixed before the held-out
queries are seen. If only the held-out log has today's answers, it gives the bill, and the order depends on it. Each
test has the full level, and the first null that is not rejected ends the sequence. So the probability that any true
null is rejected is at most 1 − confidence, however the positions depend on each other. Single models off the ladder are
not tested. With a tenth of the level for them and the rest for the ladder, 24.3 % of limits were guaranteed in place of
25.2 %, at 1.4 % more money (four logs, 250 queries tuned on, 150 and 300 held out).

Each test is a bet on the losses of the queries. The loss of a query at a position is interpolated between the rungs on
both sides: it is the expectation over the lots that choose the rung. With judges beside labels by hand, the loss of an
answer is 1 − g + R/π · (g − y) (prediction-powered inference: Angelopoulos, Bates, Fannjiang, Jordan & Zrnic 2023,
Science 382). Here y is the label, and g its prediction by the log tuned on; R is 1 if there is a label and else 0, and
π is the probability of a label. The expectation of the loss is the error for any g.

The test of a mean against a limit is exact in finite samples, for losses with known upper ends. A gambler starts with a
capital of 1, and stakes λ_t on each loss X_t against the hypothesis that its expectation is m or more:

    K_t = K_{t−1} · (1 + λ_t (m − X_t)),    0 ≤ λ_t < 1/(u_t − m),    X_t ≤ u_t.

Under the hypothesis K is a non-negative supermartingale, and ever reaches 1/α with a probability of at most α (Ville's
inequality). If K reaches 1/α, m is refuted at the level α (Waudby-Smith & Ramdas 2024, "Estimating means of bounded
random variables by betting", JRSS B 86(1)). A stake may depend on the losses before it. These stakes aim at 1/α: with r
losses to come, of variance v, and log K short of log 1/α by c, the stake is √(2c/(rv)) (Voráček & Orabona 2025,
"STaR-Bets: Sequential target-recalculating bets for tighter confidence intervals", arXiv 2505.22422). For losses of 0
or 1 the test has nearly the power of the binomial tail; for other losses it has far more.

Queries that were tuned on cannot guarantee anything. `overlap` finds them by the digest of the log, or by names with
equal rows. A row has a query's log-probabilities in single precision, as policies carry them. Names recur between
splits of a benchmark, and rows recur if confidences are stated. So three equal rows count if chance gives far fewer.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import PurePath
from typing import Any, NamedTuple, Unpack

import jax
import numpy as np
from numpy.typing import ArrayLike

from rcjax._base.codec import Object, read_value, takes
from rcjax._base.figures import describe_points, percent
from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import answers_by_name, hash_names, read_kept_sample
from rcjax.logs.log import Log
from rcjax.model.label_outcomes import LabelRegression, fully_labelled_queries, take_hand_labelled, with_outcomes
from rcjax.policy.ladder import with_provenance
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import Spec, SpecFields, Target, recorded_count, with_spec
from rcjax.solving.frontier.frontier import MAX_RUNGS, Frontier, InfeasibleError
from rcjax.solving.frontier.points import LossTerms, position_weights
from rcjax.tuning.replaying.comparing import (
    ModelOrPolicy,
    QueryLosses,
    default_today,
    list_models,
    single_model_figures,
    take_shared_queries,
)
from rcjax.tuning.replaying.walk import loss_terms_on_log, require_answers, require_complete

_MAX_STAKE = 0.9  # as a share of the stake that could lose the whole capital at once
_PRIOR_LOSSES = 4.0  # weight of the prior variance, in losses
_MAX_BLOCKS = 200  # most blocks of losses, with one stake each
_GRID, _REFINEMENTS = 32, 4  # limits tried at once; refinements of the grid


def refutes_mean(losses: ArrayLike, limit: ArrayLike, level: float, upper_end: ArrayLike = 1.0) -> np.ndarray:
    """Test by betting whether n losses refute that their expectation is `limit` or more: (…) bool.

    Args:
        losses: (…, n) losses in an order that does not depend on their values: at random, or by time.
        limit: (…) limits.
        level: greatest probability of a wrong refutation.
        upper_end: (n,) upper end of each loss, known before the loss is seen; or () of all losses.

    >>> losses = np.tile([0.0, 0.0, 0.0, 1.0], 75)
    >>> refutes_mean(losses, [0.2, 0.25, 0.3, 0.35], 0.05).tolist()
    [False, False, True, True]
    """
    x, m = np.asarray(losses, float), np.maximum(np.asarray(limit, float)[..., None], 1e-12)
    n = x.shape[-1]
    if n == 0:
        return np.zeros(np.broadcast_shapes(x.shape[:-1], m.shape[:-1]), bool)
    room = np.maximum(np.broadcast_to(upper_end, n) - m, 1e-12)
    log_shortfall = np.full(np.broadcast_shapes((*x.shape[:-1], 1), m.shape), -math.log(level))  # log 1/α − log K
    weight = _PRIOR_LOSSES / m
    squares = weight * m * room.mean(-1, keepdims=True)  # as if each loss were 0 or its upper end
    for block in np.array_split(np.arange(n), min(n, _MAX_BLOCKS)):
        variance = np.maximum(squares / (weight + block[0]), 1e-12)
        stake = np.minimum(np.sqrt(2 * log_shortfall / ((n - block[0]) * variance)), _MAX_STAKE / room[..., block])
        below = m - x[..., block]
        gained = np.cumsum(np.log1p(stake * below), axis=-1)
        is_reached = (log_shortfall == 0) | (gained.max(-1, keepdims=True) >= log_shortfall)
        log_shortfall = np.where(is_reached, 0.0, log_shortfall - gained[..., -1:])
        squares = squares + (below**2).sum(-1, keepdims=True)
    return log_shortfall[..., 0] == 0


def upper_limit(losses: ArrayLike, level: float, upper_end: ArrayLike = 1.0, top: float = 1.0) -> float:
    """Return an upper confidence limit of the expectation of losses: the largest limit that they do not refute.

    Args:
        losses, level, upper_end: as for `refutes_mean`.
        top: the largest limit that is tried.

    >>> round(upper_limit(np.tile([0.0, 0.0, 0.0, 1.0], 75), 0.05), 2)
    0.3
    """
    low, high = 0.0, top
    for _ in range(_REFINEMENTS):
        grid = np.linspace(low, high, _GRID + 1)
        not_refuted = np.flatnonzero(~refutes_mean(losses, grid[1:], level, upper_end))
        place = int(not_refuted[-1]) + 1 if len(not_refuted) else 0  # the limit 0 is never refuted
        if place == _GRID:
            return float(high)
        low, high = grid[place : place + 2]
    return float(high)


_TESTED_PER_RUNG = 4  # tested positions per rung of the ladder
CHEAPER = 1e-6  # share by which a bill must be below today's, more than the rounding of float32
_HELD_OUT = 0.5  # share of the queries that is held out for a guarantee, if there is no second log
_MIN_SHARED_QUERIES = 3  # shared queries that count as an overlap


class OverlapWarning(UserWarning):
    """The warning that a log for a check holds queries that the policy was tuned on."""


class Overlap(NamedTuple):
    """The number of queries of a log that are known to have been tuned on; false if there are none."""

    queries: int  # number of queries that were tuned on
    n: int  # number of all queries
    covers_log: bool  # every query that all models answered was tuned on
    hashes: frozenset[int] = frozenset()  # of the names of these queries; empty if all, or too few to tell

    def __bool__(self) -> bool:
        return self.queries > 0

    def describe(self) -> str:
        """Return the number of queries that were tuned on, in words."""
        return f"at least {self.queries:,} of its {self.n:,} queries were tuned on"

    def describe_left_out(self, tuned_on: int = 0) -> str:
        """Return the number of queries that are left out, in words; `tuned_on` is the number of all that were."""
        unknown = f"; as {tuned_on:,} were tuned on, others may be among the rest" * (tuned_on > self.queries)
        return f"{self.queries:,} of {self.n:,} queries were tuned on: left out{unknown}"

    def leave_out(self, log: Log) -> Log:
        """Take the queries of the log that are not known to have been tuned on; all if every query was."""
        if self.covers_log or not self:
            return log
        return log.take([name not in self.hashes for name in hash_names(log.queries).tolist()])


def overlap(log: Log, tuned: Any) -> Overlap:
    """Count the queries of a log that were tuned on. Raises ValueError if the carried queries are damaged.

    Args:
        log: the log, whose models may have any order.
        tuned: the log tuned on, or a policy, frontier or model that carries queries of that log.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> overlap(log.take(slice(100)), log).queries, overlap(*log.split(0.5, seed=0)).queries
    (100, 0)
    """
    n = log.n_queries
    source = tuned.rungs[0] if isinstance(tuned, AbstractPolicy) else getattr(tuned, "model", tuned)
    if isinstance(source, Log):
        digest, models, old = source.digest, source.models, source
    else:
        digest = source.provenance.get("digest")
        models = tuple(read_value(Object, source.provenance.get("answers") or {}, "provenance.answers"))
        is_policy = isinstance(source, AbstractPolicy)
        sample = source.provenance.get("kept_sample") if is_policy else source.record.kept_sample
        old = None if sample is None else read_kept_sample(sample, log.task)
    if models and {*models} <= {*log.models} and log.select(models).digest == digest:
        return Overlap(n, n, covers_log=True)
    if old is None:
        return Overlap(0, n, covers_log=False)
    both = [name for name in old.models if name in log.models]
    rows, old_rows = answers_by_name(log, both), answers_by_name(old, both)
    occurrences = Counter(old_rows.values())
    common = rows.keys() & old_rows.keys()
    by_chance = sum(occurrences[rows[name]] for name in common) / max(len(old_rows), 1)
    most = max(3 * by_chance, by_chance + 5 * math.sqrt(by_chance))  # three times, and five standard deviations
    equal = frozenset(name for name in common if rows[name] == old_rows[name])
    if len(equal) <= _MIN_SHARED_QUERIES - 1 + most:
        return Overlap(0, n, covers_log=False)
    asked = [name for name in both if not isinstance(tuned, AbstractPolicy) or name in tuned.models]
    # A query with a gap is not known again.
    usable = hash_names(log.queries)[log.select(asked or both).complete].tolist()
    return Overlap(len(equal), n, equal.issuperset(usable or rows), equal)


def require_unseen(log: Log, tuned: Any) -> None:
    """Raise LogError if queries of a log for a guarantee were tuned on."""
    if shared := overlap(log, tuned):
        problem = "all of its queries were tuned on" if shared.covers_log else shared.describe()
        raise LogError(f"{log.source}: {problem}: certify on queries that were held out")


def hold_out(log: Log, held_out: Log | None, spec: Spec) -> tuple[Log, Log]:
    """Split a log into (queries to tune on, queries for the test of a guarantee).

    The second part is `held_out` or, without it, half of the queries of `log`, drawn at random. If judges' verdicts do
    not count (`Spec.judged`), it is half of the fully labelled queries, as the test cannot use the others.

    Raises LogError if the two logs share queries, or labels are too few; ValueError if the limit is out of range.

    >>> import rcjax
    >>> tuned_on, tested = hold_out(rcjax.sample_log(300, seed=0), None, Spec(max_error=0.2, confidence=0.95))
    >>> tuned_on.n_queries, tested.n_queries
    (150, 150)
    """
    _read_guarantee(spec)
    if held_out is not None:
        held_out = held_out.select(log.models)
        require_unseen(held_out, log)
        return log, held_out
    if log.hand_labels is None:
        tested, rest = log.split(_HELD_OUT, seed=0)
        return rest, tested
    known = log.labelled.any(1) if spec.judged else fully_labelled_queries(log)
    if known.sum() < 2:
        which = "labels" if spec.judged else "labels for all answers"
        raise LogError(f"{log.source}: fewer than two queries have {which}: nothing to test on")
    rng = np.random.default_rng(0)
    parts = (known, ~known) if spec.judged else (known,)
    halves = (rng.permutation(np.flatnonzero(part))[: round(_HELD_OUT * part.sum())] for part in parts)
    tested = np.concatenate([*halves])
    return log.take(np.setdiff1d(np.arange(log.n_queries), tested)), log.take(np.sort(tested))


def loss_terms_of_rungs(frontier: Frontier, log: Log, right: Any) -> LossTerms:
    """Return the terms of the losses of the queries of a log under the R rungs of a frontier's ladder: (R, n).

    `right` (n, k) says whether an answer is right, or has its score.
    """
    rungs = frontier.rung_indices
    policies = frontier.policies.on_host().take(np.resize(rungs, MAX_RUNGS))  # one shape is compiled
    terms = loss_terms_on_log(frontier.model.calibrators, policies, log, right, log.query_cost)
    return jax.tree.map(lambda figure: np.asarray(figure, float)[: len(rungs)], terms)


@dataclasses.dataclass(frozen=True)
class LadderTest:
    """The test of a frontier's ladder: the losses of n held-out queries, in random order, under its R rungs."""

    tested: Log
    """The held-out log, including queries that do not count."""
    terms: LossTerms
    """(R, n) terms of the losses; `wrong` is 0 or 1, the score lost, or with judges an outcome corrected by labels."""
    most: np.ndarray
    """(n,) upper end of the loss of each query."""
    abstain_price: float
    """Price of an abstention, in errors."""
    rival: QueryLosses | None = None
    """Losses of today's policy, which are subtracted; None for a limit on the error itself."""

    @classmethod
    def of(
        cls, frontier: Frontier, log: Log, tuned_on: Log | None = None, today: ModelOrPolicy | None = None
    ) -> LadderTest:
        """Replay the rungs of a frontier on a log.

        Args:
            frontier: the frontier.
            log: the log, with the models of the frontier and of today's. Queries without the answer of a model that
                may be asked are dropped.
            tuned_on: the log tuned on, if judges' verdicts count: its labels tell how accurate the judges are.
            today: a model or a policy, whose losses are subtracted; None: no losses are subtracted.

        Raises InfeasibleError if the frontier has no policy with finite figures; LogError if no query is left, or if
        answers are to be compared and the log has none.
        """
        rungs = frontier.rung_indices
        if not rungs.size:
            raise InfeasibleError("the frontier has no policy with a finite predicted error and cost")
        policies = frontier.policies.on_host().take(rungs)
        require_answers(policies, log)
        tested = take_hand_labelled(log) if tuned_on is None else log
        asked = np.asarray(policies.members).any(0) | (tuned_on is not None)
        names = [frontier.models[j] for j in np.flatnonzero(asked)]
        rival_models = () if today is None else list_models(today)
        names += [name for name in rival_models if name not in names]
        part = tested.select(names)
        require_complete(part, "the test of a guarantee")
        complete = np.flatnonzero(part.complete)
        log = tested.take(np.random.default_rng(0).permutation(complete))
        right, most = np.asarray(log.correct, float), np.ones(len(complete))
        if tuned_on is not None:
            if lacking := [log.models[j] for j in np.flatnonzero(~log.labelled.any(0))]:
                raise LogError(f"{log.source}: no held-out answer of {lacking[0]} is labelled: label some of them")
            right, most = _correct_outcomes(log, tuned_on)
            is_bounded = np.isfinite(most)  # after the last label corrected outcomes have no upper end
            right, most, log = right[is_bounded], most[is_bounded], log.take(is_bounded)
        abstain_price = frontier.abstain_price or 0.0
        walked = log.select(frontier.models)
        columns = [log.models.index(name) for name in frontier.models]
        frontier_right = right[:, columns].astype(log.logprob.dtype)
        terms = loss_terms_of_rungs(frontier, walked, frontier_right)
        most = np.maximum(most, abstain_price)
        rival = None if today is None else QueryLosses.of(today, with_outcomes(log, right))
        return cls(tested, terms, most if rival is None else 2 * most - 1, abstain_price, rival)

    def losses(self, positions: ArrayLike) -> tuple[np.ndarray, float]:
        """Return ((m, n) losses of the queries at positions (m,), abstentions at their price; constant in each loss).

        A difference from today's losses is raised by the constant 1, from [−1, 1] to [0, 2], as `refutes_mean` takes
        positive limits.
        """
        penalty = self.at(positions).penalty(self.abstain_price)
        return (penalty, 0.0) if self.rival is None else (1 + penalty - self.rival.penalty, 1.0)

    def at(self, positions: ArrayLike) -> LossTerms:
        """Return the expected terms of the losses of the queries at positions (m,) of the ladder: (m, n)."""
        weights = position_weights(np.asarray(positions, float), len(self.terms.wrong))
        return jax.tree.map(lambda figure: weights @ figure, self.terms)

    def is_below(self, positions: ArrayLike, limit: float, level: float) -> np.ndarray:
        """Test whether the expected loss at each position is below a limit: (m,) bool."""
        losses, added = self.losses(positions)
        return refutes_mean(losses, limit + added, level, self.most + added)

    def error_bound(self, position: float, level: float, top: float | None = None) -> float:
        """Return an upper confidence limit of the expected loss at a position, `top` at most."""
        losses, added = self.losses([position])
        top = max(1.0, self.abstain_price) if top is None else top
        return upper_limit(losses[0], level, self.most + added, top + added) - added


def _positions_below(frontier: Frontier, bill: float) -> np.ndarray:
    """Return the positions (m,) of a ladder below a bill, the dearest first: the order of the tests."""
    rungs = frontier.rung_indices
    positions = np.arange(_TESTED_PER_RUNG * (len(rungs) - 1), -1, -1) / _TESTED_PER_RUNG
    bills = position_weights(positions, len(rungs)) @ np.asarray(frontier.cost, float)[rungs]
    return positions[bills < bill * (1 - CHEAPER)]


def _correct_outcomes(log: Log, tuned_on: Log) -> tuple[np.ndarray, np.ndarray]:
    """Return (corrected outcomes (n, k), upper end of the loss of each query (n,), infinite after the last label).

    The labelled answers of a model are a random sample of its answers. So the probability π of a label is the share of
    labels among the answers from this query on, which is known before the query.
    """
    labelled, right = log.labelled, np.asarray(log.correct, float)
    guess = LabelRegression.fit(tuned_on).predict(log)[0]
    chance = labelled[::-1].cumsum(0)[::-1] / np.arange(log.n_queries, 0, -1)[:, None]
    weight = np.where(labelled, 1 / np.where(labelled, chance, 1.0), 0.0)
    with np.errstate(divide="ignore"):
        return guess + weight * (right - guess), (1 / chance).max(1)


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A policy with its guarantee, and the figures of the test.

    The guarantee is `max_error` or `match`, with `confidence` over the draw of the held-out queries. `error_bound` has
    the same confidence for this policy alone, as if no other position had been tested.
    """

    policy: AbstractPolicy
    """The policy to deploy, a ladder at the position; its `provenance["guarantee"]` holds the figures below."""
    position: float
    """Position of the policy on the frontier's ladder; 0 is the cheapest rung."""
    n_queries: int
    """Number of held-out queries that count: every model that may be asked has answered them."""
    errors: float
    """Number of wrong answers of the policy on these queries, rounded if lots or judges decide; with scores, the sum of
    the scores lost."""
    abstentions: int
    """Number of these queries on which the policy abstained; each counts as `abstain_price` errors."""
    error_bound: float
    """Upper confidence limit of the policy's error + abstain_price·abstention; for a margin, of its difference from
    today's."""
    confidence: float
    """Least probability with which the guarantee holds."""
    max_error: float | None = None
    """Guaranteed error probability, abstentions at their price; None for a margin."""
    match: float | None = None
    """Guaranteed margin above today's error; None for an error probability."""
    abstain_price: float | None = None
    """Price of an abstention, in errors; None: models do not abstain."""
    error_difference: float | None = None
    """Mean loss minus today's mean loss on these queries; None for an error probability."""

    def describe(self, noun: str) -> str:
        """Describe the guarantee and its held-out queries in words; `noun` names the kind of error."""
        abstained = f" and abstained on {self.abstentions:,}" if self.abstentions else ""
        figures = f"{percent(self.errors / self.n_queries)} {noun}"
        if self.error_difference is not None:
            figures += f", {describe_points(self.error_difference)} than today's"
        figures += abstained + self._gap_to_expected()
        test = f"on {self.n_queries:,} queries held out for the test it had {figures}"
        return f"guaranteed with {100 * self.confidence:.4g} % confidence: the target is kept; {test}"

    def _gap_to_expected(self) -> str:
        """Say whether chance explains a difference of a point or more from the error that the tuning expects."""
        observed, expected = self.errors / self.n_queries, self.policy.expected.get("error")
        if expected is None or self.abstentions or abs(observed - expected) < 0.01:
            return ""
        tuned_on = max(recorded_count(self.policy.provenance, "complete_queries", self.n_queries), 1)
        se = math.sqrt(expected * (1 - expected) * (1 / self.n_queries + 1 / tuned_on))
        is_chance = abs(observed - expected) <= 1.96 * se
        verdict = "chance explains the difference" if is_chance else "more than chance explains"
        return f", where {percent(expected)} was expected: {verdict}"


@takes(frontier=Frontier, log=Log, tuned_on=(Log, None))
def certify(
    frontier: Frontier, log: Log, spec: Spec | None = None, *, tuned_on: Log | None = None, **fields: Unpack[SpecFields]
) -> Certificate:
    """Find the cheapest position on the ladder of a frontier at which held-out queries guarantee a limit.

    With a probability of at least `confidence` over the draw of the held-out log, the policy keeps to the limit in
    service. The model need not be correct: a bad model gives an expensive policy or none, but no false guarantee.
    Several certificates on one log must share 1 − confidence. A budget needs no guarantee: a service follows its bill.

    Args:
        frontier: the frontier to choose from. The rungs of its ladder, and three positions between each two, are
            tested from the most expensive to the cheapest; the cheapest that passes is chosen.
        log: the held-out log. Its queries are drawn as queries in service will be, and had no part in fitting,
            solving, or choosing among frontiers.
        spec: the limit, and `confidence` (by default 0.95). `max_error` limits the true error probability. `match`
            limits its difference from that of `today` on the same queries; positions below today's bill on the queries
            tuned on are tested.
        tuned_on: the log that the frontier was tuned on, which gives the default of `today`. It must share no queries
            with the held-out log. None: the queries that the model carries, some hundreds.
        fields: fields of `Spec`, which override `spec`; a target replaces the target of `spec`.

    Tests bet on the loss of each query, from 0 to 1, or on its difference from today's, from −1 to 1 (Waudby-Smith &
    Ramdas 2024). The tests are valid with any number of queries, for errors, scores, abstentions at their price, and
    expectations over lots.

    If answers lack labels, only queries whose answers are all labelled by hand count. With `judged`, all queries
    count: judges and confidences predict the outcome of an answer, and labels correct the prediction. `judged` needs
    `tuned_on`, whose labels tell how accurate the judges are. The guarantee holds however wrong the judges are.

    If models may abstain, `max_error` limits the true error + abstain_price·abstention, as in
    `Frontier.policy`.

    Raises InfeasibleError if the first position does not pass, with the limit that can be guaranteed instead;
    ValueError for a limit or a confidence out of range, or for `judged` without `tuned_on`; LogError for a log that is
    not held out, and as `replay` does.

    >>> import rcjax
    >>> train, held_out = rcjax.sample_log(600, seed=0).split(0.5, seed=0)
    >>> frontier = rcjax.tune(train, intervals=False).frontier
    >>> certificate = rcjax.certify(frontier, held_out, max_error=0.3)
    >>> certificate.n_queries, certificate.errors / certificate.n_queries < certificate.error_bound <= 0.3
    (300, True)
    >>> certificate.policy.provenance["guarantee"]["confidence"]
    0.95
    """
    spec = Spec.merge(spec, fields)
    spec = spec if spec.confidence is not None else dataclasses.replace(spec, confidence=0.95)
    target, confidence = _read_guarantee(spec)
    level = 1 - confidence
    for tuned in (frontier, *([] if tuned_on is None else [tuned_on])):
        require_unseen(log, tuned)
    today, bill = (None, math.inf) if spec.match is None else _today_and_bill(frontier, log, spec.today, tuned_on)
    others = [] if today is None else [name for name in list_models(today) if name not in frontier.models]
    log = log.select([*frontier.models, *others])
    counts_judges = spec.judged and log.hand_labels is not None
    test = LadderTest.of(frontier, log, _with_judges(log, tuned_on) if counts_judges else None, today)
    positions = _positions_below(frontier, bill)
    if not positions.size:
        raise InfeasibleError("no policy of the frontier costs less than today's")
    is_rejected = test.is_below(positions, target.value, level)
    passed = len(is_rejected) if is_rejected.all() else int(is_rejected.argmin())  # the first null that is kept ends it
    if not passed:
        raise InfeasibleError(_explain_failure(test, float(positions[0]), target, level, frontier.error_kind.noun))
    return _make_certificate(frontier, test, float(positions[passed - 1]), spec)


def _today_and_bill(
    frontier: Frontier, log: Log, today: ModelOrPolicy | None, tuned_on: Log | None
) -> tuple[ModelOrPolicy, float]:
    """Return (today's model or policy, its bill), by the queries tuned on.

    Without `tuned_on` these are the queries that the model carries. If the model carries none, or if they lack the
    answers of `today`, the held-out queries of `log` take their place.
    """
    sample = frontier.model.record.kept_sample
    queries = tuned_on or (log if sample is None else read_kept_sample(sample, log.task))
    today = default_today(queries) if today is None else today
    if isinstance(today, str) and today in frontier.models:  # the mean over all queries tuned on, not over a sample
        if tuned_on is not None:
            return today, single_model_figures(tuned_on.select(frontier.models), today)[1]
        bill = float(np.asarray(frontier.model.cost, float)[frontier.models.index(today)])
        if queries.signal_cost is not None and bill > 0:
            place = queries.models.index(today)
            bill *= float(queries.single_cost[place] / np.asarray(queries.cost, float)[place])
        return today, bill
    queries = queries if {*list_models(today)} <= {*queries.models} else log
    return today, QueryLosses.of(today, take_shared_queries(queries, [today])).means[1]


def _read_guarantee(spec: Spec) -> tuple[Target, float]:
    """Return (the limit to guarantee, the confidence). Raises ValueError if one is out of range."""
    target, confidence = spec.target, float(spec.confidence or 0.0)
    if target is None or target.name not in ("max_error", "match"):
        given = "no target" if target is None else target.name
        raise ValueError(f"{given} cannot be guaranteed: give max_error or match")
    for name, value in ((target.name, target.value), ("confidence", confidence)):
        if not 0 < value < 1 and (name, value) != ("match", 0.0):
            raise ValueError(f"{name} is {value}; it must lie between 0 and 1")
    return target, confidence


def _make_certificate(frontier: Frontier, test: LadderTest, position: float, spec: Spec) -> Certificate:
    target, confidence = _read_guarantee(spec)
    record = Spec(max_error=spec.max_error, match=spec.match, confidence=confidence, judged=spec.judged)
    policy = with_spec(frontier.ladder(position, target), record)
    terms = test.at([position])
    lost = float(terms.wrong.sum())
    losses, added = test.losses([position])
    figures = {
        "n_queries": terms.wrong.size,
        "errors": lost if test.tested.scores is not None else round(lost),
        "abstentions": round(float(terms.abstained.sum())),
        "error_bound": test.error_bound(position, 1 - confidence, target.value),
        **target.to_json(),
        "confidence": confidence,
        "abstain_price": frontier.abstain_price,
        "error_difference": None if test.rival is None else float(losses.mean()) - added,
    }
    tested = test.tested.select(frontier.models)
    guarantee = figures | {"source": PurePath(tested.source).name, "digest": tested.digest}
    return Certificate(with_provenance(policy, guarantee=guarantee), position, **figures)


def _with_judges(log: Log, tuned_on: Log | None) -> Log:
    """Return the log tuned on, with the models of `log`. Raises ValueError if it does not have the same judges."""
    assert log.hand_labels is not None
    hand_labels = None if tuned_on is None else tuned_on.hand_labels
    if tuned_on is None or hand_labels is None or hand_labels.judges != log.hand_labels.judges:
        raise ValueError("judged needs tuned_on, a log with labels by hand of some answers, and the same judges")
    return tuned_on.select(log.models)


def _explain_failure(test: LadderTest, position: float, target: Target, level: float, noun: str) -> str:
    """Explain that the first position failed, with its figures and the limit that can be guaranteed."""
    first = test.at([position])
    has_rival = test.rival is not None

    def phrase(share: float, digits: str = ".3g") -> str:
        if not has_rival:
            return f"{100 * share:{digits}} % {noun}"
        return f"{describe_points(share, digits=digits)} {noun} than today's"

    losses, added = test.losses([position])
    rate = float(losses.mean()) - added
    abstained = round(float(first.abstained.sum()))
    figures = f"had {phrase(rate)}"
    figures += f" and abstained on {abstained:,}, each counted as {100 * test.abstain_price:.4g} %" if abstained else ""
    bound = math.ceil(1e4 * test.error_bound(position, level)) / 1e4
    instead = f"at most {phrase(bound, '.2f')}"
    limit = f"at most {phrase(target.value, '.4g')}"
    return (
        f"no policy can be guaranteed to have {limit} with {100 * (1 - level):.4g} % confidence: of "
        f"{first.wrong.size:,} held-out queries the safest {figures}, which guarantees {instead}"
    )
