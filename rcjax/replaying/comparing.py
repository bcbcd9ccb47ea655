"""A policy beside today's model or policy and the best single model for its money, on the queries of a log.

Differences are paired: what counts is how much more a policy errs than its rival on the same queries, which is far less
noisy than two errors. The standard error of a mean difference supposes one query, at least, on which the two differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rcjax.frontier.hull import position_weights
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.label_outcomes import corrected_log, expected_right
from rcjax.policy.comparison import IN_SERVICE, Comparison, Rival, Role
from rcjax.policy.ladder import penalty
from rcjax.policy.policy import AnyPolicy
from rcjax.replaying.replay import walk_log, walk_rungs

_ROUNDING = 1e-9  # of an error or a bill

Today = str | AnyPolicy
"""What is in use today: a model by its name, or a policy."""


class Replies(NamedTuple):
    """What became of n queries under a model or a policy."""

    wrong: np.ndarray
    """(n,) errors, refusals at their price."""
    spent: np.ndarray
    """(n,) dollars."""

    @classmethod
    def of(cls, subject: Today, log: Log) -> Replies:
        """What a model or a policy makes of a log whose labels are corrected, of queries that all have answered.

        A ladder that follows its bill stands where it comes to the budget on these queries.
        """
        if isinstance(subject, str):
            column = log.models.index(subject)
            return cls(1 - np.asarray(log.correct, float)[:, column], np.asarray(log.query_cost, float)[:, column])
        price = subject.expected.get("abstain_price") or 0.0
        if subject.follows and subject.budget:
            rungs = walk_rungs(subject, log)
            weights = _at_bill(rungs.spent.mean(-1), subject.budget)
            return cls(weights @ (rungs.wrong + price * rungs.refused), weights @ rungs.spent)
        walked = walk_log(subject, log)
        return cls(walked.wrong + price * walked.refused, walked.spent)


def _at_bill(bills: np.ndarray, budget: float) -> np.ndarray:
    """(R,) the shares of the queries by R rungs with which their bills (R,) come to a budget, as nearly as they can.

    >>> _at_bill(np.array([1.0, 4.0, 2.0]), 3.0).tolist(), _at_bill(np.array([1.0, 4.0]), 9.0).tolist()
    ([0.0, 0.5, 0.5], [0.0, 1.0])
    """
    order = np.argsort(bills, kind="stable")
    place = np.interp(budget, bills[order], np.arange(len(bills), dtype=float))
    weights = np.empty(len(bills))
    weights[order] = position_weights(np.array([place]), len(bills))[0]
    return weights


def errors_alone(log: Log) -> np.ndarray:
    """(k,) how often each model of a log errs, by its labels."""
    answered = np.asarray(log.answered)
    return 1 - (expected_right(log) * answered).sum(0) / np.maximum(answered.sum(0), 1)


def paired_error(differences: np.ndarray) -> np.ndarray:
    """(…) standard error of a mean difference (…, n), as if one query at least differed by 1.

    >>> paired_error(np.zeros(100)).item(), round(paired_error(np.eye(1, 100)[0]).item(), 4)
    (0.01, 0.01)
    """
    n = differences.shape[-1]
    squares = ((differences - differences.mean(-1, keepdims=True)) ** 2).sum(-1)
    return np.sqrt(np.maximum(squares, 1.0)) / n


def models_of(subject: Today) -> tuple[str, ...]:
    """The models that a model or a policy may ask."""
    return (subject,) if isinstance(subject, str) else subject.models


def comparable_log(log: Log, subjects: Sequence[Today]) -> Log:
    """The queries that all models of some subjects have answered, with the labels that figures are told by.

    Raises LogError where the log lacks a model, or has no such query.
    """
    named = {name for subject in subjects for name in models_of(subject)}
    if absent := named.difference(log.models):
        known = ", ".join(log.models)
        raise LogError(f"{log.source}: no answers of {', '.join(sorted(absent))}; its models are {known}")
    log = log.select([name for name in log.models if name in named])
    if not log.complete.any():
        raise LogError(f"{log.source}: no query was answered by all of {', '.join(log.models)}: nothing to compare on")
    log = corrected_log(log)
    return log if log.complete.all() else log.take(log.complete)


def default_today(log: Log) -> str:
    """The model that policies are compared with where nobody says what is in use.

    The model that answers are held to, if there is one. Otherwise the one-standard-error rule (Breiman, Friedman,
    Olshen & Stone 1984, "Classification and Regression Trees", section 3.4.3): the cheapest model whose error is within
    one paired standard error of the least.

    >>> import rcjax
    >>> default_today(rcjax.sample_log(1000, seed=0))
    'llama3.1-405b'
    """
    if log.reference is not None and log.reference.counts == "differences":
        return log.reference.model
    errors = errors_alone(log)
    best = int(errors.argmin())
    if not log.complete.any():
        return log.models[best]
    whole = corrected_log(log).take(log.complete)
    right = np.asarray(whole.correct, float)
    error = paired_error((right[:, best, None] - right).T) * (1 + _ROUNDING)
    alike = (errors - errors[best] <= error) | (np.arange(len(errors)) == best)
    return log.models[int(np.where(alike, np.asarray(log.cost, float), np.inf).argmin())]


def single_for(log: Log, money: float) -> str:
    """The single model with the fewest errors that costs so much per query at most; the cheapest if none does."""
    cost = np.asarray(log.cost, float)
    affordable = cost <= max(money, float(cost.min())) * (1 + _ROUNDING)
    return log.models[int(np.where(affordable, errors_alone(log), np.inf).argmin())]


def compare_policy(
    policy: AnyPolicy, log: Log, today: Today | None = None, *, money: float | None = None, tuned: bool = False
) -> Comparison:
    """Compare a policy with today's model or policy, and with the best single model for its money, on a log.

    Args:
        policy: the policy.
        log: the log, with the answers of the policy's models and of today's.
        today: a model or a policy; None for `default_today`.
        money: dollars per query that the single model may cost; None for the bill of the policy.
        tuned: whether the policy was tuned on this log. Its error and bill are then those expected of it, which are
            corrected for optimism, and those of single models are by all of their labels.

    Raises LogError where the log lacks a model or a query that all of them have answered.

    >>> import rcjax
    >>> train, fresh = rcjax.sample_log(1000, seed=0).split(0.5, seed=0)
    >>> policy = rcjax.tune(train, budget=1e-4, intervals=False).policy
    >>> print(compare_policy(policy, fresh, "llama3.1-405b").today.title)
    llama3.1-405b alone, today's
    """
    today = default_today(log) if today is None else today
    single = single_for(log, (_expected(policy)[1] if tuned else _bill(policy, log)) if money is None else money)
    subjects: dict[Role, Today] = {"today": today}
    if single not in (today, _alone(policy)):
        subjects["single"] = single
    shared = comparable_log(log, [policy, *subjects.values()])
    own = Replies.of(policy, shared)
    error, cost = _expected(policy) if tuned else (float(own.wrong.mean()), float(own.spent.mean()))

    def rival(role: Role, subject: Today) -> Rival:
        theirs = Replies.of(subject, shared)
        name = subject if isinstance(subject, str) else IN_SERVICE
        err, bill = float(theirs.wrong.mean()), float(theirs.spent.mean())
        if tuned and isinstance(subject, str):
            column = log.models.index(subject)
            err, bill = float(errors_alone(log)[column]), float(np.asarray(log.cost)[column])
        same = subject in (policy, _alone(policy))
        se = 0.0 if same else float(paired_error(own.wrong - theirs.wrong))
        return Rival(name, role, err, bill, 0.0 if same else error - err, se)

    rivals = tuple(rival(role, subject) for role, subject in subjects.items())
    return Comparison(error, cost, shared.n_queries, not tuned, rivals, policy.expected.get("error_cost"))


def _expected(policy: AnyPolicy) -> tuple[float, float]:
    """(error with refusals at their price, bill), as a policy was tuned."""
    return float(penalty(policy.expected) or 0.0), float(policy.expected.get("cost") or 0.0)


def _bill(policy: AnyPolicy, log: Log) -> float:
    """Dollars per query of a policy on a log."""
    return float(Replies.of(policy, comparable_log(log, [policy])).spent.mean())


def _alone(policy: AnyPolicy) -> str | None:
    """The model that a policy always asks, and no other; None for a cascade."""
    names = {name for rung in policy.policies for name in rung.models}
    rules = [rule for rung in policy.policies for of_model in rung.rules.values() for rule in of_model]
    refuses = any(rule.action == "abstain" for rule in rules)
    return next(iter(names)) if len(names) == 1 and not refuses else None
