"""Two policies, or a model and a policy, where they give different answers: there alone labels tell them apart.

A query to which both give the same answer has a difference of 0, labelled or not. Of a weekly log 1 to 7 % of the
queries remain, and 50 labels of these decide more often than 100 of all queries. Labels that are
drawn so are no fair sample of all queries: levels, and a new tuning, need others.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.wording import choose_unit, count
from rcjax.logs.errors import LogError
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.policy.counted import ERRORS, Counted
from rcjax.replaying.comparing import Today, models_of
from rcjax.replaying.replay import walk_rungs

_Z = 1.645  # one-sided, 5 %
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
        named = {*models_of(first), *models_of(second)}
        if absent := named.difference(log.models):
            raise LogError(
                f"{log.source}: no answers of {', '.join(sorted(absent))}; its models: {', '.join(log.models)}"
            )
        log = log.select([name for name in log.models if name in named])
        if not log.complete.any():
            raise LogError(f"{log.source}: no query was answered by all of {', '.join(log.models)}: nothing to compare")
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
        return "better" if loss < -_Z * se else "worse" if loss > _Z * se else "alike"

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
