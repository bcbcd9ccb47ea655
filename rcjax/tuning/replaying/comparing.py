"""A policy beside today's model or policy and the best single model for its money, on the queries of a log.

Differences are paired: what counts is how much more a policy errs than its rival on the same queries, which is far less
noisy than two errors. The standard error of a mean difference supposes one query, at least, on which the two differ.

A query to which two policies give the same answer has a difference of 0, labelled or not: labels tell the two apart
where their answers differ (`Differing`). Of a weekly log 1 to 7 % of the
queries remain, and 50 labels of these decide more often than 100 of all queries. Labels that are
drawn so are no fair sample of all queries: levels, and a new tuning, need others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.normal_law import Z95
from rcjax._base.wording import choose_unit, count
from rcjax.logs.errors import LogError
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.model.label_outcomes import corrected_log, expected_right
from rcjax.policy.comparison import IN_SERVICE, Comparison, Rival, Role
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.ladder import penalty
from rcjax.policy.policy import AnyPolicy
from rcjax.solving.frontier.hull import position_weights
from rcjax.tuning.replaying.replay import walk_log, walk_rungs

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
    log = corrected_log(_log_of(log, subjects))
    return log if log.complete.all() else log.take(log.complete)


def _log_of(log: Log, subjects: Sequence[Today]) -> Log:
    """The log of the models of some subjects; LogError where it lacks one, or has no query that all have answered."""
    named = {name for subject in subjects for name in models_of(subject)}
    if absent := named.difference(log.models):
        known = ", ".join(log.models)
        raise LogError(f"{log.source}: no answers of {', '.join(sorted(absent))}; its models are {known}")
    log = log.select([name for name in log.models if name in named])
    if not log.complete.any():
        raise LogError(f"{log.source}: no query was answered by all of {', '.join(log.models)}: nothing to compare on")
    return log


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


_REFUSED = -1


class Answering(NamedTuple):
    """Who answers each of n queries, and what that costs."""

    model: np.ndarray
    """(n,) position of the model in the log; −1: the query is refused."""
    spent: np.ndarray
    """(n,) dollars."""

    @classmethod
    def of(cls, subject: Today, log: Log) -> Answering:
        """Of a model, or of a policy whose ladder sends each query by the rung of its lot, as a service does."""
        n, money = log.n_queries, np.asarray(log.query_cost, float)
        if isinstance(subject, str):
            place = log.models.index(subject)
            return cls(np.full(n, place), money[:, place])
        walked = walk_rungs(subject, replace(log, hand=None))  # who answers has nothing to do with labels
        rung = np.array([subject.rung_of(query) for query in log.queries])
        answers = walked.answers[rung, :, np.arange(n)]  # (n, k) of the policy's models
        places = np.array([log.models.index(name) for name in subject.models])
        model = np.where(answers.any(1), places[answers.argmax(1)], _REFUSED)
        return cls(model, walked.spent[rung, np.arange(n)])


class Differing(NamedTuple):
    """Where two subjects answer the n queries of a log differently."""

    log: Log
    """Queries that all models of both have answered."""
    first: Answering
    second: Answering
    where: np.ndarray
    """(n,) bool: their answers differ, or one of them refuses."""

    @classmethod
    def of(cls, first: Today, second: Today, log: Log) -> Differing:
        """On the queries that all models of both have answered.

        Raises LogError where the log lacks a model, or has no such query.

        >>> import rcjax
        >>> log = rcjax.sample_log(300, seed=0)
        >>> between = Differing.of("llama3.2-1b", "llama3.1-405b", log)
        >>> int(between.where.sum()), between.difference().labelled
        (300, 300)
        """
        log = _log_of(log, (first, second))
        log = log.take(log.complete)
        one, other = (Answering.of(subject, log) for subject in (first, second))
        rows, same = np.arange(log.n_queries), one.model == other.model
        if log.answer is not None:
            codes = np.asarray(log.answer)
            alike = codes[rows, one.model] == codes[rows, other.model]
            same |= alike & (codes[rows, one.model] != NO_ANSWER) & (one.model >= 0) & (other.model >= 0)
        return cls(log, one, other, ~same)

    def draw(self, number: int, seed: int = 0) -> list[tuple[int, int]]:
        """(query, model) of the answers to label, by position in `log`: both to each of so many queries, at random.

        Queries whose two answers are labelled are not drawn. Raises LogError where there is none left.
        """
        labelled = self.log.labelled
        cells = {
            query: [m for m in (self.first.model[query], self.second.model[query]) if m >= 0 and not labelled[query, m]]
            for query in np.flatnonzero(self.where).tolist()
        }
        left = [query for query, models in cells.items() if models]
        if not left:
            what = "labelled already" if self.where.any() else "to label: the answers are the same to every query"
            raise LogError(f"{self.log.source}: {'every difference is' if self.where.any() else 'nothing is'} {what}")
        drawn = np.random.default_rng(seed).permutation(left)[:number]
        return sorted((int(query), int(model)) for query in drawn for model in cells[query])

    def difference(self) -> Difference:
        """By how much the second errs and costs more, from the labels where they differ.

        Raises LogError where none of these is labelled.
        """
        log, n = self.log, self.log.n_queries
        wrong, rows = np.zeros((2, n)), np.arange(n)
        known = self.where.copy()
        for side, answering in enumerate((self.first, self.second)):
            answered = answering.model >= 0
            wrong[side] = np.where(answered, 1 - np.asarray(log.correct, float)[rows, answering.model], 0.0)
            known &= ~answered | log.labelled[rows, answering.model]
        share, m = float(self.where.mean()), int(known.sum())
        if self.where.any() and not m:
            raise LogError(f"{log.source}: none of the {count(int(self.where.sum()), 'query')} that differ is labelled")
        each = (wrong[1] - wrong[0])[known]
        mean = float(each.mean()) if m else 0.0
        # As if one of two queries more differed each way: few labels that are all alike tell no certainty.
        spread = (float((each**2).sum()) + 2) / (m + 2) - (float(each.sum()) / (m + 2)) ** 2
        money = self.second.spent - self.first.spent
        return Difference(
            queries=n,
            differing=int(self.where.sum()),
            labelled=m,
            more=share * mean,
            more_se=math.sqrt(share**2 * spread / max(m, 1) + share * (1 - share) * mean**2 / n) if share else 0.0,
            cost=float(money.mean()),
            cost_se=float(money.std() / math.sqrt(max(n - 1, 1))),
        )


class Difference(NamedTuple):
    """By how much a policy errs and costs more than another, on the same queries."""

    queries: int
    differing: int
    """Queries to which the two give different answers."""
    labelled: int
    """Of these, those whose answers are labelled."""
    more: float
    """Error of the second minus that of the first."""
    more_se: float
    """Standard error of `more`."""
    cost: float
    """Dollars per query that the second costs more."""
    cost_se: float

    def beside(self, lam: float) -> str:
        """How the second is, at a λ that weighs money: better, worse, or not shown to be either.

        >>> Difference(1000, 40, 40, -0.02, 0.005, 0.0, 0.0).beside(0.0)
        'better'
        """
        loss, se = self.more + lam * self.cost, math.hypot(self.more_se, lam * self.cost_se)
        return "better" if loss < -Z95 * se else "worse" if loss > Z95 * se else "alike"

    def describe(self, counted: Counted = ERRORS) -> str:
        """The figures, in words.

        >>> print(Difference(100, 40, 20, -0.012, 0.005, 1e-5, 1e-6).describe())
        answers 40 of 100 queries otherwise (20 labelled): 1.2 ± 0.5 points less error at $10.0 per million queries more
        """
        labelled = "all labelled" if self.labelled == self.differing else f"{self.labelled:,} labelled"
        points = f"{100 * abs(self.more):.1f} ± {100 * self.more_se:.1f} points {'more' if self.more > 0 else 'less'}"
        money = choose_unit([abs(self.cost)]).full(abs(self.cost))
        which = f"answers {self.differing:,} of {count(self.queries, 'query')} otherwise ({labelled})"
        return f"{which}: {points} {counted.noun} at {money} {'more' if self.cost > 0 else 'less'}"

    def to_json(self) -> dict[str, Any]:
        """The figures."""
        return self._asdict()
