"""Replays of policies: their errors, bills and waiting times on the recorded answers of a log.

A policy walks through the answers of a log, and its errors are counted, without a model of the queries. The figures are
unbiased on a log that was not tuned on. In a stream, a ladder moves by its bill after each query.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._base.codec import takes
from rcjax._base.figures import interval_half_width, percent
from rcjax._core.batching import MANY, Array
from rcjax._core.compilation import compiled
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibration import calibrate_rows
from rcjax.model.goodness_of_fit.reliability import wilson_interval
from rcjax.model.label_outcomes import corrected_log, is_fully_labelled
from rcjax.policy.bills import Bill
from rcjax.policy.error_kind import ERRORS, JUDGED_SAME, ErrorKind, choose_error_kind
from rcjax.policy.ladder import figure_at
from rcjax.policy.policy import AbstractPolicy, Policy
from rcjax.solving.frontier.frontier import Frontier
from rcjax.solving.frontier.points import Policies, Seconds, summarise_seconds
from rcjax.tuning.replaying.walk import (
    Columns,
    calibrated_confidence,
    money_of_answers,
    policy_arrays,
    restrict_to_reached,
    take_columns,
    waiting_time,
    walk,
)


def error_interval(replayed: Replay, log: Log, level: float = 0.9) -> np.ndarray:
    """Return Wilson's interval for the true error of a replay on a log: (…, 2).

    The sample size is the number of queries replayed. With scores, or if answers lack labels, it is the number of
    labelled queries whose mean error would have the same standard error.

    >>> import rcjax
    >>> train, test = rcjax.sample_log(600, seed=0).split(0.5, seed=0)
    >>> replayed = rcjax.replay(rcjax.tune(train, error_cost=0.001, intervals=False).policy, test)
    >>> low, high = error_interval(replayed, test)
    >>> bool(0 < low < replayed.error < high < 1)
    True
    """
    error = np.clip(np.asarray(replayed.error, float), 0.0, 1.0)
    is_counted = log.scores is None and is_fully_labelled(log)
    n = replayed.n_queries if is_counted else _effective_queries(error, replayed, log, level)
    return wilson_interval(error, n, level)


def _effective_queries(error: np.ndarray, replayed: Replay, log: Log, level: float) -> np.ndarray:
    """Return the number of labelled queries whose mean error would have the standard error of the replay: (…).

    A few labels may show no error, and then the variance is 0. So z²/2 right and z²/2 wrong answers are added to the
    labels, as in Wilson's interval, and the variance is raised accordingly.
    """
    n, variance = replayed.n_queries, np.asarray(replayed.error_se, float) ** 2
    if is_fully_labelled(log):
        return np.divide(error * (1 - error), variance, out=np.full(error.shape, float(n)), where=variance > 0)
    labels = _effective_labels(replayed, log)
    square = interval_half_width(level) ** 2
    centre = (labels * error + square / 2) / (labels + square)
    more = np.maximum(centre * (1 - centre) - error * (1 - error), 0.0) / labels
    return np.minimum(centre * (1 - centre) / (variance + more), n)


def _effective_labels(replayed: Replay, log: Log) -> np.ndarray:
    """Return the number of labels that would be as informative if all answers were equally likely to be labelled: (…).

    The number is n / Σ sⱼ/πⱼ: model j gives a share sⱼ of the answers, which are labelled with a probability of πⱼ.
    """
    columns = [log.models.index(name) for name in replayed.models]
    of_model = np.maximum(log.labelled[:, columns].sum(0), 1)
    answered = np.asarray(log.answered)[:, columns].sum(0)
    chance = np.minimum(of_model / np.maximum(answered, 1), 1.0)
    share = np.asarray(replayed.share, float)
    part = (share / chance).sum(-1) / np.maximum(share.sum(-1), 1e-9)
    return replayed.n_queries / np.maximum(part, 1.0)


class ReferenceDifference(NamedTuple):
    """The share of a policy's answers that differ from a reference model's, and the share that labels say are wrong."""

    reference: str
    """Name of the reference model."""
    differs: tuple[float, float]
    """Share of answers that differ from the reference's, and its standard error."""
    errs: tuple[float, float] | None
    """Share of wrong answers, and its standard error; None without labels."""
    errs_interval: tuple[float, float] | None = None
    """90 % interval for the true share of wrong answers; None without labels."""
    error_kind: ErrorKind = ERRORS
    """Kind of error that the labels count."""

    def describe(self) -> str:
        """Describe the figures in words.

        >>> ReferenceDifference("large", (0.03, 0.01), (0.112, 0.019)).describe()
        'differs from large in 3.0 ± 1.0 % of the queries, errs on 11.2 ± 1.9 %'
        """
        differs = f"differs from {self.reference} in {_percent(self.differs)} of the queries"
        if self.errs is None:
            unknown = f"how often it errs cannot be known without labels: {self.reference} may be wrong itself"
            return f"{differs}; {unknown}, and an answer that differs may be right (rcjax label draws some to label)"
        return f"{differs}, {self.error_kind.predicate(_percent(self.errs))}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: each share with its standard error, and the ends of the interval."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self._asdict().items()
            if name != "error_kind"
        }


def compare_with_reference_model(policy: Any, log: Log) -> ReferenceDifference | None:
    """Compare a policy with the reference of a log; None for a log that was read without one.

    Raises `LogError` as `replay` does.
    """
    if log.reference is None:
        return None
    by_answers, by_labels = _differences(log), log.labelled_log if log.reference.counts == "differences" else log
    replayed = replay(policy, by_answers)
    name, differs = log.reference.model, (float(replayed.error), float(replayed.error_se))
    if by_labels is None:
        return ReferenceDifference(name, differs, None)
    replayed = replay(policy, by_labels)
    errs = float(replayed.error), float(replayed.error_se)
    low, high = error_interval(replayed, by_labels).tolist()
    return ReferenceDifference(name, differs, errs, (low, high), choose_error_kind(None, by_labels.scores))


def _differences(log: Log) -> Log:
    """Replace the labels of a log by whether each answer is the same as the reference's."""
    if log.hand_labels is None or JUDGED_SAME not in log.hand_labels.judges:
        return log
    same = np.asarray(log.hand_labels.judged)[..., log.hand_labels.judges.index(JUDGED_SAME)]
    judged = np.isfinite(same)
    hand = None
    if not judged[np.asarray(log.answered)].all():
        hand = dataclasses.replace(log.hand_labels, labelled=judged, judged=np.zeros((*judged.shape, 0)), judges=())
    return dataclasses.replace(log, correct=same == 1, hand_labels=hand, scores=None)


def _percent(figure: tuple[float, float]) -> str:
    share, se = figure
    return percent(share) if math.isnan(se) else f"{100 * share:.1f} ± {100 * se:.1f} %"


_POINTS_MULTIPLE = 64  # the number of points of a frontier is rounded up to a multiple, so that few programs compile
_MIN_CASCADES = 8  # the cascades of a policy are padded to this many: two rungs and a whole ladder share a program
_BATCH_ELEMENTS = 2**22  # queries × policies at a time: some 100 MB of intermediate arrays


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("error", "cost", "error_se", "cost_se", "share", "spent", "spent_se", "abstention", "seconds"),
    meta_fields=("n_queries", "models"),
)
@dataclasses.dataclass(frozen=True, eq=False)
class Replay:
    """Figures of a replay on a log: scalars for a policy, a leading axis L for a `Frontier`."""

    error: jax.Array
    """(…) share of the queries that were answered wrongly; an abstention is no error."""
    cost: jax.Array
    """(…) not the bill, which is `spent`: money per query as in the paper, each answer at its model's mean cost."""
    error_se: jax.Array
    """(…) standard error of `error`: √(sample variance / n); NaN for a single query."""
    cost_se: jax.Array
    """(…) standard error of `cost`."""
    share: jax.Array
    """(…, k) share of the queries that each model answered; with `abstention`, sums to 1 over the models."""
    spent: jax.Array
    """(…) money per query as billed: each answer at its own cost; above `cost` if long queries are deferred."""
    spent_se: jax.Array
    """(…) standard error of `spent`."""
    abstention: jax.Array
    """(…) share of the queries without an answer; 0 for policies that do not abstain."""
    n_queries: int
    """Number of queries replayed: every model that may be asked has answered them."""
    models: tuple[str, ...]
    """Names of the k models, in the order of the policy or frontier."""
    seconds: Seconds | None = None
    """Seconds until queries were answered: the sum along the path, in which the slower of two models that are asked at
    the same time counts; None if the log has no seconds."""

    @property
    def error_answered(self) -> np.ndarray:
        """(…) share of wrong answers among the answered queries; 0 without any."""
        answered = 1 - np.asarray(self.abstention)
        return np.divide(self.error, answered, out=np.zeros_like(answered), where=answered > 0)

    def promised_cost(self, is_by_labels: bool) -> jax.Array:
        """Return the cost that a search promises: of the bills, or by the paper's model at mean prices."""
        return self.spent if is_by_labels else self.cost


@takes(policy_or_frontier=(AbstractPolicy, Frontier), log=Log)
def replay(policy_or_frontier: AbstractPolicy | Frontier, log: Log) -> Replay:
    """Replay a policy, a ladder, or every policy of a frontier on the queries of a log, in jitted calls.

    The policy or the frontier's model calibrates the raw confidences. Model j then answers or defers by the first
    interval with Φ_j ≤ bound: with one threshold φ, it answers if Φ_j > φ. The labels of the log say which answers are
    right, and its answers which are equal. An abstention is neither right nor wrong, and its calls are paid for.

    `cost` charges each answer the model's mean cost on the queries replayed, as the paper does. `spent` charges each
    answer its own cost, which is more if deferred queries are longer than others, without the `signal_cost` of models
    whose answers are kept in any case.

    Only queries that all models that may be asked have answered are replayed, the same for all policies of a frontier.
    A ladder between two rungs has their weighted mean: the expected figures, without the noise of the lots.

    If answers lack labels (`Log.hand_labels`), errors are computed from corrected outcomes
    (`rcjax.model.label_outcomes`), by a regression on the queries and models of this log. The errors are unbiased for
    any judge, and their standard errors account for the number of labels.

    `Replay.seconds` leaves out queries with an answer on their path whose seconds are not known. Arrays have the log's
    float type. In float32, a confidence within rounding of a threshold may fall on its other side: replay in float64 if
    many confidences tie with a threshold.

    Raises `LogError` if the log lacks a model that may be asked, if no query has the answers of all such models, or if
    policies compare answers and the log has none.

    >>> import rcjax
    >>> train, test = rcjax.sample_log(600, seed=0).split(0.5, seed=0)
    >>> replayed = replay(rcjax.tune(train, error_cost=0.001, intervals=False).policy, test)
    >>> replayed.n_queries, replayed.error.shape, bool(0 < replayed.error < 1)
    (300, (), True)
    """
    if not isinstance(policy_or_frontier, AbstractPolicy):
        return _replay_frontier(policy_or_frontier, log)
    policy = policy_or_frontier
    rungs, counts = _replay_cascades(policy, log, policy.adjacent_rungs)
    figures = _compiled_figures(rungs.mean(policy.weights), counts)
    seconds = None
    if rungs.waits is not None:
        weights = np.asarray(policy.weights, rungs.waits.dtype)[:, None] * counts
        seconds = jax.tree.map(np.asarray, _seconds_of(rungs.waits, weights))
    return Replay(**figures, n_queries=int(counts.sum()), models=policy.models, seconds=seconds)


class QueryReplay(NamedTuple):
    """The outcome of each of n queries under a policy of k models, or under each of R rungs with a leading axis R.

    Outcomes are probabilities if the policy stands between two rungs. Columns are numpy arrays, or jax arrays within
    compiled functions.
    """

    wrong: Any  # (n,) wrong answer, or score lost
    abstained: Any  # (n,) abstention
    cost_at_means: Any  # (n,) money, each answer at its model's mean cost on these queries
    spent: Any  # (n,) money, each answer at its own cost
    answered_by: Any  # (k, n) the model that answered
    asked: Any  # (k, n) the models that were asked
    waits: Any = None  # (n,) seconds, NaN if they are not known; None: the log has no seconds
    query_cost: Any = None  # (k, n) money of each answer, 0 for a model that no query can reach

    def mean(self, weights: Sequence[float]) -> QueryReplay:
        """Return the expected outcomes if queries go by R rungs with probabilities `weights` (R,)."""
        shares = np.asarray(weights, self.wrong.dtype)
        return QueryReplay(*(np.tensordot(shares, column, 1) for column in self[:6]), query_cost=self.query_cost)

    def promised_cost(self, is_by_labels: bool) -> np.ndarray:
        """Return values whose mean is the cost of the kind that a search promises: (n,).

        A search by labels promises bills, a search by the model costs at mean prices. The latter values are the
        influence function of that cost, own calls plus the effect on the means, so that their variance is right.
        """
        if is_by_labels:
            return self.spent
        assert self.query_cost is not None  # the replay of a log has it
        mean, share = self.query_cost.mean(1), self.asked.mean(1)
        return self.cost_at_means + share @ (self.query_cost - mean[:, None])

    def head(self, n: int) -> QueryReplay:
        """Take the first n queries, in float64."""

        def cut(column: Any) -> Any:
            return None if column is None else np.asarray(column, float)[..., :n]

        return QueryReplay(*map(cut, self))


def replay_queries(policy: AbstractPolicy, log: Log) -> QueryReplay:
    """Answer the queries of a log by a policy, as `replay` does, and return the outcome of each query; numpy arrays."""
    rungs, counts = _replay_cascades(policy, log, policy.adjacent_rungs)
    return rungs.mean(policy.weights).head(counts.sum())


def replay_rungs(policy: AbstractPolicy, log: Log) -> QueryReplay:
    """Answer the queries of a log by every rung of a ladder, at any position: (R, …)."""
    rungs, counts = _replay_cascades(policy, log, policy.rungs)
    return rungs.head(counts.sum())


def _replay_frontier(frontier: Frontier, log: Log) -> Replay:
    model, models = frontier.model, frontier.models
    policies = restrict_to_reached(frontier.policies, log.logprob.dtype)
    columns = take_columns(log, models, policies, np.asarray(policies.members).any(0))
    phi = np.asarray(calibrate_rows(model.calibrators, columns.logprob.T)).T
    points = len(policies.members)
    padded = np.minimum(np.arange(points + -points % _POINTS_MULTIPLE), points - 1)
    batch = max(1, min(_POINTS_MULTIPLE, _BATCH_ELEMENTS // columns.logprob.shape[1]))
    replayed = _replay_points(phi, policies.take(padded), columns, batch=batch)
    figures, seconds = jax.device_put(jax.tree.map(lambda figure: np.asarray(figure)[:points], replayed))
    seconds = jax.tree.map(np.asarray, seconds)
    return Replay(**figures, n_queries=int(columns.counts.sum()), models=models, seconds=seconds)


def _replay_cascades(policy: AbstractPolicy, log: Log, rungs: Sequence[Policy]) -> tuple[QueryReplay, np.ndarray]:
    """Return (outcomes of the queries under some rungs of a policy, (n,) bool: the queries that count)."""
    cascades = [cascade for rung in rungs for cascade in rung.segment_policies]
    policies, places = policy_arrays(policy.models, cascades, log.logprob.dtype)
    reached = _reached(policy, policies, places)
    number = len(cascades)
    columns = take_columns(log, policy.models, policies, reached)
    phi = calibrated_confidence([policy.calibrations[name] for name in policy.models], columns.logprob)
    least = _MIN_CASCADES if len(columns.counts) < MANY else 1
    padded = np.minimum(np.arange(max(least, 1 << (number - 1).bit_length())), number - 1)  # a power of two
    paths = _replay_paths(phi, policies.take(padded), places[padded], columns)
    chosen = np.zeros((len(rungs), len(columns.counts)), int)  # cascade of each rung for each query
    if number > len(rungs):
        part = log.select(np.array(policy.models)[reached])
        chosen[:, : columns.counts.sum()] = _cascade_numbers(policy, rungs, part)
    else:
        chosen += np.arange(number)[:, None]
    queries = np.arange(chosen.shape[1])
    walked = jax.tree.map(lambda path: np.moveaxis(np.asarray(path)[chosen, ..., queries], 1, -1), paths)
    return walked._replace(query_cost=columns.query_cost), columns.counts


def _reached(policy: AbstractPolicy, policies: Policies, places: np.ndarray) -> np.ndarray:
    """Return the models that some query can reach, by any rung if the policy follows its bill: (k,) bool."""
    if policy.follows:
        every = [cascade for rung in policy.rungs for cascade in rung.segment_policies]
        policies, places = policy_arrays(policy.models, every, float)
    return np.isin(np.arange(len(policy.models)), places[policies.members])


def _cascade_numbers(policy: AbstractPolicy, rungs: Sequence[Policy], log: Log) -> np.ndarray:
    """Return the number of the cascade by which each of R rungs answers each complete query: (R, n).

    A rung answers by the cascade of the query's segment, if it has one. Raises LogError for a log without segments.
    """
    if log.segment is None:
        named = f"with_segments(log, source, {policy.segment_column!r})"
        raise LogError(f"{log.source}: the policy goes by segments of queries, and the log has none: {named}")
    segment = np.asarray(log.segment, object)[log.complete]
    numbers = count()
    rows = [(next(numbers), {name: next(numbers) for name in rung.segments}) for rung in rungs]
    return np.array([[by_segment.get(name, default) for name in segment] for default, by_segment in rows])


def _walk_policy(phi: jax.Array, policy: Policies, columns: Columns) -> QueryReplay:
    """Return the outcome of each query under one policy, by calibrated confidences (k, n)."""
    route = walk(phi, policy, columns.codes)
    query_cost, seconds = columns.query_cost, columns.seconds
    mean_cost = query_cost.sum(axis=1, keepdims=True) / columns.counts.sum()
    cost_at_means = route.paid(mean_cost)
    spent = route.paid(money_of_answers(policy, query_cost, columns.signal_cost))
    waits = None if seconds is None else waiting_time(route, policy, seconds)
    wrong, abstained = route.wrong(columns.correct).astype(phi.dtype), route.abstained.astype(phi.dtype)
    return QueryReplay(wrong, abstained, cost_at_means, spent, route.answered_by, route.asked, waits)


def _figures(paths: QueryReplay, counts: Array) -> dict[str, jax.Array]:
    """Compute the figures of `Replay` by name, without the seconds, over the queries that count."""
    error, error_se = _mean_and_se(paths.wrong, counts)
    cost, cost_se = _mean_and_se(paths.cost_at_means, counts)
    spent, spent_se = _mean_and_se(paths.spent, counts)
    n = counts.sum().astype(paths.wrong.dtype)
    share, abstention = (jnp.where(counts, outcome, 0).sum(-1) / n for outcome in (paths.answered_by, paths.abstained))
    means = {"error": error, "cost": cost, "spent": spent, "share": share, "abstention": abstention}
    return means | {"error_se": error_se, "cost_se": cost_se, "spent_se": spent_se}


def _mean_and_se(values: jax.Array, counts: Array) -> tuple[jax.Array, jax.Array]:
    n = counts.sum().astype(values.dtype)
    guess = jnp.where(counts, values, 0).sum() / n
    residual = jnp.where(counts, values - guess, 0)
    correction = residual.sum() / n  # a second pass restores the digits that a float32 sum of small numbers loses
    variance = jnp.where(counts, (residual - correction) ** 2, 0).sum() / (n - 1)
    return guess + correction, jnp.sqrt(variance / n)


_compiled_figures = compiled(_figures)
_seconds_of = compiled(summarise_seconds)


@compiled
def _replay_paths(phi: jax.Array, policies: Policies, places: jax.Array, columns: Columns) -> QueryReplay:
    def walk_cascade(policy: Policies, place: jax.Array) -> QueryReplay:
        walked, back = _walk_policy(phi[place], policy, columns.of_models(place)), jnp.argsort(place)
        return walked._replace(answered_by=walked.answered_by[back], asked=walked.asked[back])

    return lax.map(lambda pair: walk_cascade(*pair), (policies, places))


@partial(compiled, static_argnames="batch")
def _replay_points(
    phi: jax.Array, policies: Policies, columns: Columns, *, batch: int
) -> tuple[dict[str, jax.Array], Any]:
    def replay_point(policy: Policies) -> tuple[dict[str, jax.Array], Any]:
        paths = _walk_policy(phi, policy, columns)
        seconds = None if paths.waits is None else summarise_seconds(paths.waits[None], columns.counts[None])
        return _figures(paths, columns.counts), seconds

    return lax.map(replay_point, policies, batch_size=batch)


class Stream(NamedTuple):
    """The expected outcomes of n successive queries, under a ladder that follows its bill."""

    position: np.ndarray  # (n,) position on the ladder at each query
    wrong: np.ndarray  # (n,) probability of a wrong answer
    abstained: np.ndarray  # (n,) probability of an abstention
    spent: np.ndarray  # (n,) money

    def to_json(self) -> dict[str, float]:
        """Return the means `error`, `bill`, `abstention` and `position`, and the position's `low`, `high`, `last`."""
        position = self.position
        means = {"error": self.wrong, "bill": self.spent, "abstention": self.abstained, "position": position}
        ends = {"low": position.min(), "high": position.max(), "last": position[-1]}
        return {name: float(np.mean(value)) for name, value in (means | ends).items()}


class LadderReplay(NamedTuple):
    """The replay of n queries under each of R rungs of a ladder, from which streams are computed."""

    rung_costs: tuple[float, ...]  # (R,) expected money per query, as tuned
    wrong: np.ndarray  # (R, n) wrong answer, or score lost
    abstained: np.ndarray  # (R, n) abstention
    spent: np.ndarray  # (R, n) money

    @classmethod
    def of(cls, policy: AbstractPolicy, log: Log) -> LadderReplay:
        """Replay every rung on the queries that all models of a ladder answered. Raises LogError as `replay` does."""
        log = corrected_log(log).select(policy.models)
        walked = replay_rungs(policy, log if log.complete.all() else log.take(log.complete))
        return cls(policy.rung_costs, walked.wrong, walked.abstained, walked.spent)

    def stream(self, bill: Bill, changes: np.ndarray | None = None) -> Stream:
        """Answer the queries in their order, and move the ladder by its bill after each query.

        Args:
            bill: the bill at the start.
            changes: (n,) factor on the cost of each query; None: the costs of the log.

        >>> wrong, spent = np.array([[1, 1], [0, 0]]), np.array([[1.0, 1.0], [4.0, 4.0]])
        >>> rungs = LadderReplay((1.0, 3.0), wrong, np.zeros((2, 2)), spent)
        >>> rungs.stream(Bill.open(2.0, window=10)).position.round(3).tolist()
        [0.5, 0.474]
        """
        costs = self.rung_costs
        rows = np.empty((self.wrong.shape[1], 4))
        outcomes = np.stack(self[1:]).transpose(2, 0, 1).tolist()  # (n, 3, R); lists are faster than arrays here
        for query, by_rung in enumerate(outcomes):
            position = bill.position(costs, time=0.0)  # a budget per query knows no time
            wrong, abstained, spent = (figure_at(figures, position) for figures in by_rung)
            spent *= 1.0 if changes is None else changes[query]
            rows[query] = position, wrong, abstained, spent
            bill = bill.after_query(spent, figure_at(costs, position), time=0.0)
        return Stream(*rows.T)


def replay_stream(policy: AbstractPolicy, log: Log) -> Stream | None:
    """Replay the queries of a log in their order under a policy that follows its bill; None for other policies.

    Raises LogError as `replay` does.

    >>> import rcjax
    >>> train, fresh = rcjax.sample_log(600, seed=0).split(0.5, seed=0)
    >>> ladder = rcjax.tune(train, budget=2e-4, intervals=False).policy
    >>> bool(1.9e-4 < replay_stream(ladder, fresh).to_json()["bill"] < 2.1e-4)
    True
    """
    if policy.budget is None or not policy.follows:
        return None
    return LadderReplay.of(policy, log).stream(Bill.open(policy.budget))
