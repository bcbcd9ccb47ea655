"""Comparisons of a policy with today's model or policy, and with the best single model for its money, on a log.

Differences are paired by query: the difference of two errors on the same queries is far less noisy than the errors. The
standard error of a difference is at least the standard error that a single differing query would give.

If two policies give the same answer to a query, their difference is 0, labelled or not. So only labels of differing
answers tell the two policies apart (`Disagreements`). The answers to 1 to 7 % of the queries of a weekly log differ.
Fifty labels of differing answers decide more often than a hundred labels of all answers. But differing answers are no
fair sample: error rates and a new tuning need other labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.figures import Z_ONE_SIDED_95, choose_unit, count, describe_points, percent
from rcjax.logs.errors import LogError
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.model.label_outcomes import corrected_log, expected_log, is_fully_labelled
from rcjax.policy.comparison import IN_SERVICE, Comparison, Rival, Role
from rcjax.policy.error_kind import ERRORS, ErrorKind, penalised
from rcjax.policy.ladder import Ladder, penalty
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import Spec, recorded_tuning
from rcjax.solving.frontier.points import shares_at_bill
from rcjax.tuning.replaying.replay import replay_queries, replay_rungs, replay_stream
from rcjax.tuning.replaying.walk import require_complete

_DOUBLE_TOLERANCE = 1e-9  # in double precision, relative
ModelOrPolicy = str | AbstractPolicy
"""A single model, by name, or a policy: today's, for example."""


class QueryLosses(NamedTuple):
    """Errors and costs of n queries under a model or a policy."""

    penalty: np.ndarray
    """(n,) errors, and abstentions at their price."""
    spent: np.ndarray
    """(n,) dollars."""

    @classmethod
    def of(cls, subject: ModelOrPolicy, log: Log) -> QueryLosses:
        """Replay a model or a policy on a log with corrected labels and complete queries.

        A ladder that follows its bill stands at the position at which the bill of these queries is the budget.
        """
        if isinstance(subject, str):
            column = log.models.index(subject)
            return cls(1 - np.asarray(log.correct, float)[:, column], np.asarray(log.answer_cost, float)[:, column])
        price = _abstain_price(subject)
        if subject.follows and subject.budget:
            rungs = replay_rungs(subject, log)
            weights = shares_at_bill(rungs.spent.mean(-1), np.array([subject.budget]))[0]
            return cls(weights @ penalised(rungs.wrong, rungs.abstained, price), weights @ rungs.spent)
        return cls.as_tuned(subject, log)

    @classmethod
    def as_tuned(cls, policy: AbstractPolicy, log: Log) -> QueryLosses:
        """Replay a policy on a log, at the position as tuned."""
        walked = replay_queries(policy, log)
        return cls(penalised(walked.wrong, walked.abstained, _abstain_price(policy)), walked.spent)

    @classmethod
    def in_service(cls, subject: ModelOrPolicy, log: Log) -> QueryLosses:
        """Replay as `of` does, but move a ladder that follows its bill after each query, in the order of the log."""
        if isinstance(subject, str) or (stream := replay_stream(subject, log)) is None:
            return cls.of(subject, log)
        return cls(penalised(stream.wrong, stream.abstained, _abstain_price(subject)), stream.spent)

    @property
    def means(self) -> tuple[float, float]:
        """Mean error and mean cost."""
        return float(self.penalty.mean()), float(self.spent.mean())

    def describe_change(self, new: QueryLosses, todays: np.ndarray | None, spec: Spec, noun: str) -> str:
        """Describe money and error of a new policy in place of the policy of these losses.

        Args:
            new: losses of the new policy on the same queries.
            todays: (n,) today's errors, from which errors are counted in points; None: from 0, in shares.
            spec: options of the tuning, for the unit of money.
            noun: noun of the errors, with today's model if they are counted from its errors.
        """
        (before, spent), (after, spends) = self.means, new.means
        unit, todays_error = spec.money([spent, spends]), None if todays is None else float(todays.mean())
        if todays_error is None:
            before, after = percent(before), percent(after)
        else:
            before, after = (describe_points(error - todays_error) for error in (before, after))
        spent, spends = (f"${unit.show(cost)}" for cost in (spent, spends))
        return f"{_format_change(spends, spent, f' {unit.per}')}, at {_format_change(after, before, f' {noun}')}"


def single_model_errors(log: Log) -> np.ndarray:
    """Return the error of each single model of a log, by the labels of its comparable queries: (k,)."""
    judged = expected_log(log).comparable
    answered, right = np.asarray(judged.answered), np.asarray(judged.correct, float)
    return 1 - (right * answered).sum(0) / np.maximum(answered.sum(0), 1)


def single_model_figures(log: Log, model: str) -> tuple[float, float]:
    """Return (error, dollars per query) of a single model on the comparable queries of a log."""
    column = log.models.index(model)
    return float(single_model_errors(log)[column]), float(log.comparable.single_cost[column])


def paired_error(differences: np.ndarray) -> np.ndarray:
    """Return the standard error of the mean of differences (…, n), as if one query at least differed by 1: (…).

    >>> paired_error(np.zeros(100)).item(), round(paired_error(np.eye(1, 100)[0]).item(), 4)
    (0.01, 0.01)
    """
    n = differences.shape[-1]
    squares = ((differences - differences.mean(-1, keepdims=True)) ** 2).sum(-1)
    return np.sqrt(np.maximum(squares, 1.0)) / n


def list_models(subject: ModelOrPolicy) -> tuple[str, ...]:
    """Return the names of the models that a policy may ask, or the name of the single model."""
    return (subject,) if isinstance(subject, str) else subject.models


def name_today(today: ModelOrPolicy) -> str:
    """Name today's model or policy, in words."""
    return f"{today} alone" if isinstance(today, str) else IN_SERVICE


def matched_today(policy: AbstractPolicy, log: Log) -> ModelOrPolicy | None:
    """Return today's model or policy that a margin was tuned for; None without a margin, or without its answers."""
    spec = recorded_tuning(policy).spec
    if spec.match is None or spec.today is None or not {*list_models(spec.today)} <= {*log.models}:
        return None
    return spec.today


def take_shared_queries(log: Log, subjects: Sequence[ModelOrPolicy]) -> Log:
    """Take the queries that all models of some subjects have answered, with corrected labels.

    Raises LogError if the log lacks a model, or no query has the answers of all models.
    """
    log = _select_models(corrected_log(log), subjects)  # corrected by all models: one error for a policy everywhere
    return log if log.complete.all() else log.take(log.complete)


def _select_models(log: Log, subjects: Sequence[ModelOrPolicy]) -> Log:
    """Select the models of some subjects. Raises LogError as `take_shared_queries` does."""
    named = {name for subject in subjects for name in list_models(subject)}
    if absent := named.difference(log.models):
        known = ", ".join(log.models)
        raise LogError(f"{log.source}: no answers of {', '.join(sorted(absent))}; its models are {known}")
    log = log.select([name for name in log.models if name in named])
    require_complete(log, "a comparison")
    return log


def default_today(log: Log) -> str:
    """Return the default for today's model: the reference of the log, or a model by the one-standard-error rule.

    The rule chooses the cheapest model whose error is within one paired standard error of the least error (Breiman,
    Friedman, Olshen & Stone 1984, "Classification and Regression Trees", section 3.4.3); of equally cheap ones, the
    model with the fewest errors. If few queries are complete, it is the model with the fewest errors.

    >>> import rcjax
    >>> default_today(rcjax.sample_log(600, seed=0))
    'llama3.1-70b'
    """
    reference = log.reference
    if reference is not None and reference.counts == "differences" and reference.model in log.models:
        return reference.model
    errors = single_model_errors(log)
    best = int(errors.argmin())
    if not log.has_enough_complete:
        return log.models[best]
    right = np.asarray(corrected_log(log).take(log.complete).correct, float)
    error = paired_error((right[:, best, None] - right).T) * (1 + _DOUBLE_TOLERANCE)
    alike = (errors - errors[best] <= error) | (np.arange(len(errors)) == best)
    cost = np.where(alike, np.asarray(log.comparable.single_cost, float), np.inf)
    return log.models[int(np.where(cost <= cost.min() * (1 + _DOUBLE_TOLERANCE), errors, np.inf).argmin())]


def best_single_for(log: Log, money: float) -> str:
    """Return the single model with the fewest errors for `money` per query; the cheapest if none is affordable."""
    cost = np.asarray(log.comparable.single_cost, float)
    affordable = cost <= max(money, float(cost.min())) * (1 + _DOUBLE_TOLERANCE)
    return log.models[int(np.where(affordable, single_model_errors(log), np.inf).argmin())]


def _format_change(new: str, old: str, unit: str) -> str:
    """Return a new figure in place of an old one, in words.

    >>> _format_change("$174", "$71.0", " per million queries"), _format_change("$174", "$174", " a month")
    ('$174 instead of $71.0 per million queries', '$174 a month as before')
    >>> [_format_change("0.4 points more", old, " error") for old in ("0.1 points more", "0.3 points less")]
    ['0.4 instead of 0.1 points more error', '0.4 points more instead of 0.3 points less error']
    """
    if new == old:
        return f"{new}{unit} as before"
    for shared in (" points more", " points less"):
        if new.endswith(shared) and old.endswith(shared):
            new = new.removesuffix(shared)
    return f"{new} instead of {old}{unit}"


def compare_policy(
    policy: AbstractPolicy,
    log: Log,
    today: ModelOrPolicy | None = None,
    *,
    money: float | None = None,
    tuned: bool = False,
) -> Comparison:
    """Compare a policy with today's model or policy, and with the best single model for its money, on a log.

    A ladder that follows its bill answers the queries as a service would, in the order of the log.

    Args:
        policy: the policy.
        log: the log, with the answers of the policy's models and of today's.
        today: a model or a policy; None: `default_today`.
        money: dollars per query that the single model may cost; None: the bill of the policy.
        tuned: the policy was tuned on this log: its error and bill are those that the tuning expects.

    Raises LogError if the log lacks a model, or has no query that all models have answered.

    >>> import rcjax
    >>> train, fresh = rcjax.sample_log(600, seed=0).split(0.5, seed=0)
    >>> policy = rcjax.tune(train, budget=1e-4, intervals=False).policy
    >>> print(compare_policy(policy, fresh, "llama3.1-405b").today.title)
    llama3.1-405b alone, today's
    """
    today = default_today(log) if today is None else today
    if money is None:
        complete = take_shared_queries(log.comparable, [policy])
        money = (_expected(policy) if tuned else QueryLosses.in_service(policy, complete).means)[1]
    single = best_single_for(log, money)
    subjects: dict[Role, ModelOrPolicy] = {"today": today}
    if single not in (today, _only_model(policy)):
        subjects["single"] = single
    compared = [policy, *subjects.values()]
    shared, part = take_shared_queries(log.comparable, compared), _select_models(log.comparable, compared)
    labelled = None if is_fully_labelled(part) else int((part.labelled.any(1) & part.complete).sum())
    losses_of = QueryLosses.of if tuned else QueryLosses.in_service
    losses = losses_of(policy, shared)
    error, cost = _expected(policy) if tuned else losses.means

    def rival(role: Role, subject: ModelOrPolicy) -> Rival:
        name = subject if isinstance(subject, str) else IN_SERVICE
        if decides_alike(policy, subject):
            return Rival(name, role, error, cost, 0.0, 0.0)
        rival_losses = losses_of(subject, shared)
        rival_error, bill = single_model_figures(log, name) if tuned and name == subject else rival_losses.means
        se = float(paired_error(losses.penalty - rival_losses.penalty))
        saving_se = float(np.std(rival_losses.spent - losses.spent)) / math.sqrt(shared.n_queries)
        return Rival(name, role, rival_error, bill, error - rival_error, se, saving_se)

    rivals = tuple(rival(role, subject) for role, subject in subjects.items())
    price, replayed = _abstain_price(policy) or None, losses.means[0] if tuned else None
    figures = error, cost, shared.n_queries, not tuned, rivals
    return Comparison(*figures, abstain_price=price, replayed_error=replayed, labelled=labelled)


def _expected(policy: AbstractPolicy) -> tuple[float, float]:
    """Return (errors and abstentions at their price, dollars per query), as the tuning expects."""
    return float(penalty(policy.expected) or 0.0), float(policy.expected.get("cost") or 0.0)


def decides_alike(policy: AbstractPolicy, subject: ModelOrPolicy) -> bool:
    """Return whether a model or a policy makes the same decisions as a policy; their figures may differ."""
    if isinstance(subject, str):
        return subject == _only_model(policy)
    return _without_figures(subject) == _without_figures(policy)


def _without_figures(policy: AbstractPolicy) -> AbstractPolicy:
    """Return the policy without figures and provenance: policies with the same decisions are then equal."""
    rungs = tuple(replace(rung, expected={"cost": float(i)}, provenance={}) for i, rung in enumerate(policy.rungs))
    if not isinstance(policy, Ladder):
        return rungs[0]
    follows_budget = policy.budget is not None and policy.follows  # the budget then determines the position
    return replace(policy, rungs=rungs, position=0.0 if follows_budget else policy.position)


def _only_model(policy: AbstractPolicy) -> str | None:
    """Return the only model of a policy that always answers by it; None for other policies."""
    names = {name for rung in policy.adjacent_rungs for name in rung.models}
    rules = [rule for rung in policy.adjacent_rungs for of_model in rung.rules.values() for rule in of_model]
    abstains = any(rule.action == "abstain" for rule in rules)
    return next(iter(names)) if len(names) == 1 and not abstains else None


def _abstain_price(subject: ModelOrPolicy) -> float:
    """Return the price of an abstention of a policy, in errors; 0 for a model, and for a policy tuned without one."""
    return 0.0 if isinstance(subject, str) else subject.expected.get("abstain_price") or 0.0


_ABSTAINED = -1  # in place of the position of a model


def _answering_models(subject: ModelOrPolicy, log: Log) -> tuple[np.ndarray, np.ndarray]:
    """Return ((n,) position of the answering model in the log, −1 for an abstention; (n,) dollars).

    As in service, the hash of a query decides by which rung of a ladder it goes.
    """
    n = log.n_queries
    if isinstance(subject, str):
        place = log.models.index(subject)
        return np.full(n, place), np.asarray(log.answer_cost, float)[:, place]
    walked = replay_rungs(subject, replace(log, hand_labels=None))  # labels do not affect which model answers
    rung = np.array([subject.draw_rung(query) for query in log.queries])
    answered_by = walked.answered_by[rung, :, np.arange(n)]  # (n, k) of the policy's models
    places = np.array([log.models.index(name) for name in subject.models])
    return np.where(answered_by.any(1), places[answered_by.argmax(1)], _ABSTAINED), walked.spent[rung, np.arange(n)]


class Disagreements(NamedTuple):
    """The queries of a log that two models or policies answer differently."""

    log: Log
    """The n queries that all models of both have answered."""
    models: np.ndarray
    """(2, n) position of the answering model in the log, of the first and of the second; −1 for an abstention."""
    spent: np.ndarray
    """(2, n) dollars."""
    differ: np.ndarray
    """(n,) bool: the two answers differ, or one of the two abstains."""
    abstain_prices: tuple[float, float]
    """Price of an abstention, in errors, of the first and of the second."""

    @classmethod
    def of(cls, first: ModelOrPolicy, second: ModelOrPolicy, log: Log) -> Disagreements:
        """Compare the answers to the queries that all models of both have answered.

        Raises LogError as `take_shared_queries` does.

        >>> import rcjax
        >>> log = rcjax.sample_log(300, seed=0)
        >>> between = Disagreements.of("llama3.2-1b", "llama3.1-405b", log)
        >>> int(between.differ.sum()), between.difference().labelled
        (300, 300)
        """
        log = _select_models(log, (first, second))
        log = log.take(log.complete)
        replayed = (_answering_models(subject, log) for subject in (first, second))
        models, spent = map(np.stack, zip(*replayed, strict=True))
        same = models[0] == models[1]
        if log.answer is not None:
            left, right = np.asarray(log.answer)[np.arange(log.n_queries), models]
            same |= (left == right) & (left != NO_ANSWER) & (models >= 0).all(0)
        return cls(log, models, spent, ~same, (_abstain_price(first), _abstain_price(second)))

    def draw(self, number: int, seed: int = 0) -> list[tuple[int, int]]:
        """Draw queries whose answers differ; return the answers to label as (query, model) positions, in random order.

        Queries with labels of both answers are not drawn. Raises LogError if no other query is left.
        """
        labelled = self.log.labelled
        cells = {
            query: [m for m in self.models[:, query].tolist() if m >= 0 and not labelled[query, m]]
            for query in np.flatnonzero(self.differ).tolist()
        }
        unlabelled = [query for query, models in cells.items() if models]
        if not unlabelled:
            problem = "nothing is to label: the answers are the same to every query"
            if self.differ.any():
                problem = "every difference is labelled already"
            raise LogError(f"{self.log.source}: {problem}")
        drawn = np.random.default_rng(seed).permutation(unlabelled)[:number]
        return [(int(query), int(model)) for query in drawn for model in cells[query]]

    def difference(self) -> Difference:
        """Estimate the differences in error and cost, second minus first, from the labels of differing answers.

        An abstention counts at the price that its policy was tuned with. Raises LogError if answers differ, and no
        query has labels of both.
        """
        log, n, answered = self.log, self.log.n_queries, self.models >= 0
        rows = np.arange(n)
        prices = np.array(self.abstain_prices)[:, None]
        wrong = np.where(answered, 1 - np.asarray(log.correct, float)[rows, self.models], prices)
        known = self.differ & (~answered | log.labelled[rows, self.models]).all(0)
        differing, share, m = int(self.differ.sum()), float(self.differ.mean()), int(known.sum())
        if differing and not m:
            raise LogError(f"{log.source}: none of the {count(differing, 'query')} that differ is labelled")
        differences = (wrong[1] - wrong[0])[known]
        mean = float(differences.mean()) if m else 0.0
        # Two queries with the differences 1 and −1 are added, so that a few equal labels do not look certain.
        spread = (float((differences**2).sum()) + 2) / (m + 2) - (float(differences.sum()) / (m + 2)) ** 2
        cost = self.spent[1] - self.spent[0]
        return Difference(
            queries=n,
            differing=differing,
            labelled=m,
            error_difference=share * mean,
            error_se=math.sqrt(share**2 * spread / max(m, 1) + share * (1 - share) * mean**2 / n) if share else 0.0,
            cost_difference=float(cost.mean()),
            cost_se=float(cost.std() / math.sqrt(max(n - 1, 1))),
        )


class Difference(NamedTuple):
    """The differences in error and cost of a second policy minus a first, on the same queries."""

    queries: int
    """Number of queries."""
    differing: int
    """Number of queries with different answers."""
    labelled: int
    """Number of queries with different answers whose answers are labelled."""
    error_difference: float
    """Error of the second minus error of the first."""
    error_se: float
    """Standard error of `error_difference`."""
    cost_difference: float
    """Cost of the second minus cost of the first, in dollars per query."""
    cost_se: float
    """Standard error of `cost_difference`."""

    def verdict_at(self, lam: float) -> str:
        """Return whether the second is "better" or "worse" in error + λ·cost (two-sided, 10 %), or else "alike".

        >>> Difference(1000, 40, 40, -0.02, 0.005, 0.0, 0.0).verdict_at(0.0)
        'better'
        """
        loss, se = self.error_difference + lam * self.cost_difference, math.hypot(self.error_se, lam * self.cost_se)
        return "better" if loss < -Z_ONE_SIDED_95 * se else "worse" if loss > Z_ONE_SIDED_95 * se else "alike"

    def describe(self, error_kind: ErrorKind = ERRORS) -> str:
        """Describe the figures in words.

        >>> print(Difference(100, 40, 20, -0.012, 0.005, 1e-5, 1e-6).describe())
        answers 40 of 100 queries otherwise (20 labelled): 1.2 ± 0.5 points less error at $10.0 per million queries more
        """
        labelled = "all labelled" if self.labelled == self.differing else f"{self.labelled:,} labelled"
        points = describe_points(self.error_difference, self.error_se)
        money = choose_unit([abs(self.cost_difference)]).full(abs(self.cost_difference))
        which = f"answers {self.differing:,} of {count(self.queries, 'query')} otherwise ({labelled})"
        return f"{which}: {points} {error_kind.noun} at {money} {'more' if self.cost_difference > 0 else 'less'}"

    def describe_exchange(self, lam: float, error_kind: ErrorKind = ERRORS) -> str:
        """Return what an avoided error costs, and what it is worth at λ; "" if no error is exchanged for money.

        >>> print(Difference(100, 40, 20, -0.012, 0.005, 1e-5, 1e-6).describe_exchange(2000.0))
        each error avoided costs $0.000833 here; by the target of the policy in service it is worth $0.0005
        """
        if not lam or self.error_difference * self.cost_difference >= 0:
            return ""
        avoided = error_kind.unit.removeprefix("one ").removeprefix("a ")
        costs = f"each {avoided} avoided costs ${-self.cost_difference / self.error_difference:.3g} here"
        return f"{costs}; by the target of the policy in service it is worth ${1 / lam:.3g}"

    def to_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return self._asdict()
