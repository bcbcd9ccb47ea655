"""Walks of queries through policies: the models that are asked, and the model that answers, if any.

The policies, their calibrations and the answers of the log are arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import Array, pad_to_size_class
from rcjax._core.compilation import compiled
from rcjax.logs.errors import LogError
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.model.calibration import Calibrator, calibrate_all, calibrate_rows
from rcjax.model.label_outcomes import corrected_log
from rcjax.policy.decisions import Calibration
from rcjax.policy.policy import Policy
from rcjax.solving.frontier.points import ABSTAIN, NEVER_ANSWER, NO_MODEL, LossTerms, Policies, policies_from_rules

_FEW_BOUNDS = 16  # most bounds for which a comparison with every bound is faster than a binary search


class Route(NamedTuple):
    """The paths of n queries under one policy of k models."""

    answered_by: jax.Array
    """(k, n) bool: the model that answers; no model if the policy abstains."""
    asked: jax.Array
    """(k, n) bool: the models that are asked."""

    @property
    def abstained(self) -> jax.Array:
        """(n,) bool: the queries that get no answer."""
        return ~self.answered_by.any(0)

    def wrong(self, correct: Array) -> jax.Array:
        """Return which queries are answered wrongly, or the scores lost if `correct` (k, n) has scores: (n,).

        >>> route = Route(jnp.array([[True, True, False], [False, False, False]]), jnp.ones((2, 3), bool))
        >>> route.wrong(jnp.array([[True, False, False], [True, True, True]])).tolist()  # the third has no answer
        [False, True, False]
        """
        if correct.dtype != bool:
            return jnp.where(self.answered_by, 1 - correct, 0).sum(0)  # one model answers at most
        return self.answered_by.any(0) & ~(self.answered_by & correct).any(0)

    def paid(self, money: Array) -> jax.Array:
        """Sum `money` over the models asked: (n,); `money` is (k, n), or (k, 1) if it is the same for every query."""
        # Model by model, as XLA takes ten times as long on CPUs for a sum over the first axis followed by a mean.
        bills = (jnp.where(asked, bill, 0) for asked, bill in zip(self.asked, money, strict=True))
        return sum(bills, jnp.zeros((), money.dtype))


def money_of_answers(policy: Policies, query_cost: Array, signal_cost: Array | None) -> Array:
    """Return the cost of each answer under one policy (k, n); an answer that is always kept costs no `signal_cost`."""
    if signal_cost is None:
        return query_cost
    bounds = jnp.asarray(policy.bounds)
    is_empty = jnp.diff(bounds, axis=1, prepend=0.0) <= 0
    keeps = (is_empty | (jnp.asarray(policy.actions) == jnp.arange(len(bounds))[:, None])).all(1)
    if policy.agreements is not None:
        keeps &= ~jnp.asarray(policy.agreements.compares)
    return query_cost - jnp.where(keeps[:, None], signal_cost, 0.0)


def waiting_time(route: Route, policy: Policies, seconds: Array) -> jax.Array:
    """Return the seconds until each query is answered under one policy: (n,).

    The seconds of the models asked add up, with one exception: a service asks two models at the same time if both are
    always asked and their answers compared (`rcjax.policy.Policy.parallel_model`). Of these two the slower one counts.
    `seconds` are (k, n), with NaN for unknown seconds.
    """
    total = route.paid(seconds)
    if policy.agreements is None:
        return total
    first, bounds = policy.first, jnp.asarray(policy.bounds)[policy.first]
    last = jnp.argmax(bounds >= NEVER_ANSWER)  # the interval that ends at 1
    is_only = jnp.where(last > 0, bounds[last - 1] <= 0, True)
    second = jnp.asarray(policy.actions)[first, last]
    is_parallel = is_only & (second > first) & (jnp.asarray(policy.agreements.earlier)[second] == first)
    return total - jnp.where(is_parallel, jnp.minimum(seconds[first], seconds[second]), 0)


def walk(confidence: Array, policy: Policies, answer: Array | None = None) -> Route:
    """Route n queries through one policy by their calibrated confidence (k, n); `vmap` maps it over policies.

    Policies that compare answers need `answer` (k, n), codes as in `Log.answer`; without codes, confidences decide.

    >>> import numpy as np
    >>> policy = Policies.from_cascades(np.array([0.5, 0.0]), np.array([True, True]))
    >>> [route.tolist() for route in walk(jnp.array([[0.4, 0.6], [0.9, 0.9]]), policy)]
    [[[False, True], [True, False]], [[True, True], [True, False]]]

    With agreements, the answer of the second model is kept where it equals the answer of the first:

    >>> from rcjax.solving.frontier.points import Agreements
    >>> agreements = Agreements(np.array([-1, 0, -1]), np.array([-1, 2, -1]))
    >>> policy = Policies.from_cascades(np.array([1.0, 0.5, 0.0]), np.ones(3, bool), agreements=agreements)
    >>> walk(jnp.zeros((3, 2)), policy, jnp.array([[0, 0], [0, 1], [2, 1]])).answered_by.tolist()
    [[False, False], [True, False], [False, True]]
    """
    k, n = confidence.shape
    actions = jnp.asarray(policy.actions)
    columns = []
    answers_so_far = None
    if policy.agreements is not None and answer is not None:
        places = policy.agreements.earlier, policy.agreements.differ
        columns = [answer, *(jnp.asarray(place).astype(actions.dtype) for place in places)]
        answers_so_far = jnp.full((k, n), NO_ANSWER, answer.dtype)

    def visit(carry: tuple[jax.Array, Any], model: tuple[jax.Array, ...]) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        (current_model, answers_so_far), (j, ends, action, column, *compared) = carry, model
        is_here = current_model == j
        next_model = _action_at(ends, action, column)
        if compared:
            code, earlier, differ = compared
            other = jnp.where(earlier == NO_MODEL, NO_ANSWER, answers_so_far[earlier])
            comparable = (code != NO_ANSWER) & (other != NO_ANSWER)
            next_model = jnp.where(comparable, jnp.where(code == other, j, differ), next_model)
            answers_so_far = answers_so_far.at[j].set(jnp.where(is_here, code, NO_ANSWER))
        moved = jnp.where(is_here, next_model, current_model)
        return (moved, answers_so_far), (is_here & (next_model == j), is_here)

    # One pass is enough, as models ask later models only. The current model of a query without an answer is ABSTAIN.
    models = jnp.arange(k, dtype=actions.dtype), jnp.asarray(policy.bounds), actions, jnp.asarray(confidence), *columns
    start = jnp.full(n, policy.first, actions.dtype), answers_so_far
    return Route(*lax.scan(visit, start, models)[1])


def _action_at(ends: jax.Array, action: jax.Array, confidence: jax.Array) -> jax.Array:
    """Return the action of the first interval whose end (R,) is not below each confidence (n,)."""
    if len(ends) > _FEW_BOUNDS:
        return action[jnp.searchsorted(ends, confidence, side="left")]
    target = jnp.broadcast_to(action[0], confidence.shape)
    for end, following in zip(ends[:-1], action[1:], strict=True):  # faster than a look-up for each query
        target = jnp.where(confidence <= end, target, following)
    return target


def loss_terms(
    confidence: jax.Array,
    correct: jax.Array,
    cost: jax.Array,
    policies: Policies,
    answer: jax.Array | None = None,
    signal_cost: jax.Array | None = None,
) -> LossTerms:
    """Return the terms of the losses of n queries under each of L policies: (L, n). An abstention is not wrong.

    Args:
        confidence: (n, k) calibrated confidence.
        correct: (n, k) whether the answer is right, or its score.
        cost: (n, k) cost of each answer.
        policies: L policies over k models.
        answer: (n, k) codes of answers, for policies that compare answers.
        signal_cost: (n, k) part of the cost of each answer for `money_of_answers`; None: there is none.
    """
    codes, signals = (None if column is None else column.T for column in (answer, signal_cost))

    def terms_of(policy: Policies) -> LossTerms:
        route = walk(confidence.T, policy, codes)
        paid = route.paid(money_of_answers(policy, cost.T, signals))
        shares = route.wrong(correct.T), paid, route.abstained
        return LossTerms(*(share.astype(cost.dtype) for share in shares))

    return jax.vmap(terms_of)(policies)


def loss_terms_on_log(calibrators: Calibrator, policies: Policies, log: Log, right: Any, cost: Any) -> LossTerms:
    """Return `loss_terms` of the queries of a log, by a compiled function; numpy arrays.

    Missing answers have a stand-in confidence, so that every query has losses.

    Args:
        calibrators: (k,) calibrators of the models.
        policies: L policies over k models.
        log: the log.
        right: (n, k) whether the answer is right, or its score.
        cost: (n, k) cost of each answer.
    """
    rows = pad_to_size_class(log.logprob, right, log.answered, cost)
    signal_cost = None if log.signal_cost is None else pad_to_size_class(log.signal_cost)[0]
    shares = _loss_terms_padded(calibrators, rows, policies, _padded_answers(policies, log), signal_cost)
    return LossTerms(*(np.asarray(share)[:, : log.n_queries] for share in shares))


@partial(compiled, runs="long")
def _loss_terms_padded(
    calibrators: Calibrator, rows: tuple[jax.Array, ...], policies: Policies, answer: Any, signal_cost: Any
) -> LossTerms:
    logprob, correct, answered, cost = rows
    confidence = calibrate_all(calibrators, logprob, answered)
    return loss_terms(confidence, correct, cost, policies, answer, signal_cost)


def waiting_times_on_log(calibrators: Calibrator, policies: Policies, log: Log) -> np.ndarray:
    """Return the seconds until each query of a log is answered under each of L policies: (L, n).

    NaN where an answer on the path of a query has no known seconds.
    """
    rows = pad_to_size_class(log.logprob, log.answered, log.seconds)
    seconds = _waiting_times_padded(calibrators, rows, policies, _padded_answers(policies, log))
    return np.asarray(seconds, float)[:, : log.n_queries]


@partial(compiled, runs="long")
def _waiting_times_padded(
    calibrators: Calibrator, rows: tuple[jax.Array, ...], policies: Policies, answer: Any
) -> jax.Array:
    logprob, answered, seconds = rows
    confidence, codes = calibrate_all(calibrators, logprob, answered).T, None if answer is None else answer.T
    return jax.vmap(lambda policy: waiting_time(walk(confidence, policy, codes), policy, seconds.T))(policies)


def _padded_answers(policies: Policies, log: Log) -> Any:
    """Return the codes of the answers of a log, padded; None if the policies do not compare answers."""
    return None if log.answer is None or policies.agreements is None else pad_to_size_class(log.answer)[0]


def require_answers(policies: Policies, log: Log) -> None:
    """Raise LogError if policies compare answers and the log has no answers."""
    if policies.agreements is not None and np.asarray(policies.agreements.compares).any() and log.answer is None:
        advice = "add a column answer, or give a table of answers (answers=, on the command line --answers FILE)"
        raise LogError(f"{log.source}: the policy compares models' answers, and the log has none: {advice}")


def policy_arrays(models: tuple[str, ...], cascades: Sequence[Policy], dtype: Any) -> tuple[Policies, np.ndarray]:
    """Convert C cascades to arrays, each with the k models in an order of its own; ValueError if one is not calibrated.

    The result is (policies (C,), positions (C, k) in `models` of each cascade's models).
    """
    if not all(cascade.calibrations for cascade in cascades):
        raise ValueError("the policy is not calibrated: tune one on a log with labels")
    orders = [tuple(dict.fromkeys([*cascade.models, *models])) for cascade in cascades]
    places = np.array([[models.index(name) for name in order] for order in orders])
    return restrict_to_reached(policies_from_rules(orders, cascades), dtype), places


def restrict_to_reached(policies: Policies, dtype: Any) -> Policies:
    """Restrict the members of policies (L,) to the models that some query can reach; numpy arrays."""
    policies = policies.on_host()
    actions, bounds = np.asarray(policies.actions, np.int32), np.asarray(policies.bounds, dtype)
    agreements = policies.agreements
    reached = np.arange(bounds.shape[1]) == policies.first[:, None]  # (L, k)
    is_interval = np.diff(bounds, axis=-1, prepend=-1.0) > 0  # padding repeats an end
    for j in range(bounds.shape[1]):
        rows, intervals = np.nonzero(is_interval[:, j] & reached[:, j, None] & (actions[:, j] != ABSTAIN))
        reached[rows, actions[rows, j, intervals]] = True
        if agreements is not None:
            rows = np.flatnonzero(reached[:, j] & agreements.compares[:, j])
            reached[rows, agreements.differ[rows, j]] = True
    return Policies(bounds, actions, reached, agreements)


class Columns(NamedTuple):
    """The columns (k, n) of a log that a walk needs, padded to the size class; jax arrays within compiled functions."""

    logprob: Any
    correct: Any
    query_cost: Any
    signal_cost: Any  # None: the log has none
    seconds: Any  # None: the log has no seconds
    codes: Any  # codes of answers; None: answers are not compared
    counts: Any  # (n,) bool: the queries that count, without the padding

    def of_models(self, places: Any) -> Columns:
        """Return the columns of the models at some positions."""
        columns = (column if column is None else column[places] for column in self[:-1])
        return Columns._make((*columns, self.counts))


def require_complete(log: Log, operation: str) -> None:
    """Raise LogError if no query has the answers of all models of a log; the message names the operation."""
    if not log.complete.any():
        problem = f"no query was answered by all of {', '.join(log.models)}"
        raise LogError(f"{log.source}: {problem}: {operation} needs one")


def take_columns(log: Log, models: tuple[str, ...], policies: Policies, asked: Any) -> Columns:
    """Take the columns that policies need, for the queries that all models asked have answered.

    Args:
        log: the log.
        models: names of the k models of the policies.
        policies: the policies to walk.
        asked: (k,) bool: the models that some query can reach.

    Raises LogError if the log lacks a model, if no query has the answers of all models asked, or if the policies
    compare answers and the log has none.
    """
    require_answers(policies, log)
    part = corrected_log(log).select([name for name, is_asked in zip(models, asked, strict=True) if is_asked])
    rows = part.complete
    require_complete(part, "a replay")

    def column(values: Any, default: float = 0) -> np.ndarray:
        by_model = np.full((len(models), int(rows.sum())), default, np.asarray(values).dtype)
        by_model[asked] = np.asarray(values)[rows].T
        return pad_to_size_class(by_model, axis=1)[0]

    signals, seconds = (None if values is None else column(values) for values in (part.signal_cost, part.seconds))
    compared = part.answer is not None and policies.agreements is not None
    codes = column(part.answer, NO_ANSWER) if compared else None
    counts = pad_to_size_class(np.ones(int(rows.sum()), bool))
    matrices = column(part.logprob), column(part.correct), column(part.query_cost)
    return Columns(*matrices, signals, seconds, codes, *counts)


def calibrated_confidence(calibrations: Sequence[Calibration], logprob: np.ndarray) -> np.ndarray:
    """Calibrate raw log-probabilities (k, n) by the calibrations of a policy, whose transforms may differ: (k, n).

    >>> calibrated_confidence([Calibration("none", 0.0, 1.0, -9.0, 0.0)], np.zeros((1, 2))).tolist()
    [[0.5, 0.5]]
    """
    phi = np.empty_like(logprob)
    for transform in sorted({calibration.transform for calibration in calibrations}):
        rows = [j for j, calibration in enumerate(calibrations) if calibration.transform == transform]
        chosen = [calibrations[j] for j in rows]
        phi[rows] = np.asarray(calibrate_rows(Calibrator.from_calibrations(chosen, logprob.dtype), logprob[rows].T)).T
    return phi
