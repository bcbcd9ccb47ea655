"""One experiment: ways to choose policies are tuned without some queries, and answer these.

Each *arm* is a way to choose policies: single models, pairs, chains by the model, policies that compare answers, the
policy in service. The queries are dealt into folds; each fold in turn is left out of what arms are
fitted to and chosen by, for every price, budget and limit on the error, and then answered. Of the losses of each arm on
each query come gains of one over another, with their standard errors, and luck: the more policies are searched, the
luckier the best one looks on the queries of the search, and on those that were left out it is not.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from rcjax._core.batching import side_by_side
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.policies import Policies
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import corrected_log, expected_log, is_whole
from rcjax.replaying.walk import outcomes_on_log
from rcjax.tuning.choices import Targets
from rcjax.tuning.comparison import Gain, Gains


class Entry(NamedTuple):
    """What an arm has for T targets, tuned without the queries that it is to answer."""

    answer: Callable[[Log, Any, Any], Outcomes]
    """(T, n) what becomes of the queries of a log, as `answer_log` tells it."""
    promised: Any = np.nan
    """(T,) the penalty as the queries of the choice tell it."""
    expected: np.ndarray | None = None
    """(T, n) how likely each query is to be answered wrongly, where that is to count beside labels."""


class Contest(NamedTuple):
    """What is compared, and how."""

    arms: tuple[str, ...]
    """What others are held against comes first."""
    targets: Targets
    tune: Callable[[int], Sequence[Entry]]
    """What each arm enters, tuned without a fold, by its number."""
    charge: ArrayLike
    """(n, k) money of each answer, or (k,) of any."""
    price: float | None = None
    """Of a refusal, in errors; None: no model may refuse."""


class Losses(NamedTuple):
    """What became of m queries that were left out, under A arms' policies for T targets; F forms of outcomes."""

    arms: tuple[str, ...]
    targets: Targets
    penalty: np.ndarray
    """(F, A, T, m) errors, and refusals at their price."""
    charge: np.ndarray
    """(A, T, m) money."""
    expected: np.ndarray
    """(F, A, T, m) the penalty; of arms that say so, with errors as they are expected (`Entry.expected`)."""
    promised: np.ndarray
    """(A, T) the penalty as the queries of the choice told it."""
    folds: int
    """How many there were."""

    def luck(self, arm: str, chosen: Any) -> float:
        """By how much what an arm chose errs more on queries left out than on those of the choice, over some targets.

        Of a policy that nothing was chosen for that is 0, as each label is left out once. Luck falls with the number of
        labels; here a fold was left out of the choice, so by that share the choice by all is less lucky.
        """
        index = self.arms.index(arm)
        luck = (self.penalty[-1, index, chosen].mean(-1) - self.promised[index, chosen]).mean()
        return float(luck) * (1 - 1 / self.folds)

    def means(self, arms: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(error, cost), each (S, T), of some arms by what the labels say, refusals at their price."""
        indices = self._indices(arms)
        return self.penalty[-1, indices].mean(-1), self.charge[indices].mean(-1)

    def gains(self, arms: Sequence[str], rival: str, expected: bool = False) -> Gains:
        """What some arms (S,) gain on another in error + λ·cost at every price, over all queries.

        Args:
            arms: their names.
            rival: what they are held against.
            expected: by the errors that are expected, which is far less noisy: counted by the labels of 300 queries, a
                gain of 7 % has a standard error of 5 %, and two of three would be missed.
        """
        indices, (other,) = self._indices(arms), self._indices([rival])
        money = self.targets.lam[:, None] * self.charge[:, self.targets.prices]
        counted = self.penalty[:, :, self.targets.prices] + money
        loss = self.expected[:, :, self.targets.prices] + money if expected else counted
        at_prices, overall = gains_of(loss[:, [other]] - loss[:, indices], counted[:, other])
        return Gains(at_prices, overall, gains_of(counted[:, [other]] - counted[:, indices], counted[:, other])[1])

    def saved(self, arms: Sequence[str], rival: str) -> Gain:
        """(S, B) by how much less some arms err at every budget than another."""
        indices, other, budgets = self._indices(arms), self._indices([rival]), self.targets.within
        return Gain.of(self.penalty[:, other, budgets] - self.penalty[:, indices, budgets])

    def spared(self, arms: Sequence[str], rival: str) -> Gain:
        """(S, E) by how much less some arms cost at every limit on the error than another."""
        indices, other, limits = self._indices(arms), self._indices([rival]), self.targets.limits
        return Gain.of((self.charge[other, limits] - self.charge[indices, limits])[None])

    def _indices(self, arms: Sequence[str]) -> list[int]:
        return [self.arms.index(name) for name in arms]


def contest(log: Log, of: Contest, fold: np.ndarray) -> Losses:
    """The losses of all arms on all complete queries of a log, each left out once.

    Where answers lack labels, gains are reckoned by what is expected of these; errors, and the standard errors of
    gains, by what the labels correct (`rcjax.model.label_outcomes`).

    Args:
        log: the log that is answered.
        of: what is compared.
        fold: (n,) the fold of each query, numbered from 0.
    """
    folds, complete = int(fold.max()) + 1, log.complete
    forms = [log.correct] if is_whole(log) else [expected_log(log).correct, corrected_log(log).correct]

    def left_out(number: int) -> tuple[np.ndarray, ...]:
        return _answered(of.tune(number), log, of, forms, complete & (fold == number))

    *figures, promised = zip(*side_by_side(left_out, range(folds), n=log.n_queries), strict=True)
    # From the order of the folds back to that of the log.
    order = np.argsort(np.argsort(fold[complete], kind="stable"))
    penalty, charge, expected = (np.concatenate(some, axis=-1)[..., order] for some in figures)
    promised = np.average(promised, axis=0, weights=np.bincount(fold[complete], minlength=folds))
    return Losses(of.arms, of.targets, penalty, charge, expected, promised, folds)


def _answered(
    entries: Sequence[Entry], log: Log, of: Contest, forms: Sequence[jax.Array], out: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(penalty, charge, expected, promised) as `Losses` has them, of the queries `out` (n,), by forms (F,) (n, k)."""

    def answer(entry: Entry, right: jax.Array) -> Outcomes:
        return Outcomes(*(np.asarray(figure, float)[:, out] for figure in entry.answer(log, right, of.charge)))

    outcomes = [[answer(entry, right) for entry in entries] for right in forms]
    penalty = np.stack([[outcome.penalty(of.price) for outcome in row] for row in outcomes])
    expected = penalty.copy()
    for arm, entry in enumerate(entries):
        if entry.expected is not None:
            wrong = np.stack([row[arm].wrong for row in outcomes])
            expected[:, arm] += entry.expected[:, out] - wrong
    promised = [np.broadcast_to(entry.promised, penalty.shape[2:3]) for entry in entries]
    return penalty, np.stack([outcome.cost for outcome in outcomes[0]]), expected, np.stack(promised)


def gains_of(gain: np.ndarray, rival: np.ndarray) -> tuple[Gain, Gain]:
    """(gain, as a share of the loss of the rival over all prices), as `Gain.of` has them.

    Args:
        gain: (F, …, G, m) by how much the loss of a query is below that of the rival.
        rival: (F, G, m) the loss of the rival.
    """
    share = (gain / np.maximum(rival[0].mean(-1), np.finfo(float).tiny)[:, None]).mean(-2)
    return Gain.of(gain), Gain.of(share)


def answer_log(calibrators: Calibrator, policies: Policies, log: Log, right: Any, charge: Any) -> Outcomes:
    """(T, n) what becomes of the queries of a log under policies for calibrated confidences.

    Args:
        calibrators: (k,) of the models.
        policies: (T,)
        log: the log.
        right: (n, k) which answers are right, in one of the forms of outcomes.
        charge: (n, k) money of each answer, or (k,) of any.
    """
    return outcomes_on_log(calibrators, log.logprob, right, log.answered, charge, policies, log.answer)
