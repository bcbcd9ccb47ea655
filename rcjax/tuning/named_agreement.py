"""One cascade of three models that the user names, and the same three where the first two compare their answers.

A → B → C, at the thresholds that are best under the model, against: ask A; where it is unsure ask B too; keep B's
answer where it is A's, else ask C (`agreement_candidates`). Where models may refuse, so for two: refuse where A and B
differ. Such policies are used at the prices where they are shown to gain in cross-validation (`Rival.shown`), in
the place of the chain. All figures of the frontier are then what the log lets expect.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from rcjax._core.batching import replaced
from rcjax._core.threads import side_by_side
from rcjax.frontier.frontier import Frontier, make_frontier
from rcjax.frontier.hull import pareto
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.points import Points
from rcjax.frontier.policies import ABSTAIN, Policies
from rcjax.frontier.refusal import Refusal, refusal_at
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import fit_near
from rcjax.model.label_outcomes import expected_log
from rcjax.replaying.walk import outcomes_on_log
from rcjax.solving.lambda_grid import lam_range, lay_out_problem, log_lam, solve_at
from rcjax.solving.paths import plan_cascades
from rcjax.tuning.agreement_candidates import Agreeing, as_policies, judge_answers
from rcjax.tuning.agreement_odds import expected_on_log
from rcjax.tuning.comparison import Rival, over_neighbours
from rcjax.tuning.contest import gains_of
from rcjax.tuning.cross_validation import PRICES
from rcjax.tuning.judging import Judging
from rcjax.tuning.resampling import deal_folds, sample_queries

_FOLDS = 5

_AT_ONCE = 32  # λ whose policies walk the log at a time


@dataclasses.dataclass(frozen=True)
class NamedComparison:
    """What comparing answers gains on the named cascade, in cross-validation; G prices λ."""

    models: tuple[str, ...]
    """Of the cascade."""
    lam: np.ndarray  # (G,) increasing
    rival: Rival
    frontier: Frontier
    """What came of it."""

    @property
    def agreeing(self) -> np.ndarray:
        """(G,) bool: the prices where comparing answers earns its place."""
        return self.rival.shown & (self.rival.gain > self.rival.gain_se)

    def verdict(self, point: int) -> str:
        """Whether the policy at one position of the frontier compares answers, and why, in words."""
        agreements, cascade = self.frontier.policies.agreements, " → ".join(self.models)
        if agreements is None or not np.asarray(agreements.compares)[point].any():
            return f"the cascade {cascade} as named; going by whether answers agree is not shown to do better"
        own = log_lam(np.asarray(self.frontier.lam, float)[point])
        place = np.abs(log_lam(self.lam) - own).argmin()
        gain, spread = (100 * float(figure[place]) for figure in (self.rival.gain, self.rival.gain_se))
        does = f"asking {self.models[2]}" if len(self.models) > 2 else "refusing"
        sure = "does" if gain > 2 * spread else "seems to do"
        told = f"{gain:.2f} ± {spread:.2f} points of error + λ·cost"
        return (
            f"{does} where {' and '.join(self.models[:2])} differ {sure} better (by {told}) than the cascade {cascade}"
        )


def named_positions(search: Any, names: tuple[str, ...], refusing: bool) -> tuple[int, int, int] | None:
    """The models of the policies by agreement that a search of one cascade allows; None where it allows none.

    >>> named_positions((("a", "b", "c"),), ("a", "b", "c"), False), named_positions((("a", "c"),), ("a", "c"), True)
    ((0, 1, 2), (0, 1, -1))
    >>> named_positions("full", ("a", "b", "c"), False), named_positions((("a", "c"),), ("a", "c"), False)
    (None, None)
    """
    if isinstance(search, str) or len(search) != 1:
        return None
    places = sorted(names.index(name) for name in search[0])
    if len(places) == 2 and refusing:
        return places[0], places[1], ABSTAIN
    return (places[0], places[1], places[2]) if len(places) == 3 else None


def tune_named(
    calibrators: Calibrator,
    rows: tuple[Any, ...],
    cost: Any,
    lam: np.ndarray,
    refusal: Refusal | None,
    at: tuple[int, int, int],
) -> Policies:
    """(L,) the best policies by agreement of some models, for each λ.

    Args:
        calibrators: (k,) of all models.
        rows: (logprob, correct, present, answer), each (n, k): as of `judge_agreement`.
        cost: (k,) money per answer.
        lam: (L,) in errors per unit of money.
        refusal: with one, models may refuse.
        at: the models, by position; ABSTAIN for no third.
    """
    trial = _judged(calibrators, rows, cost, refusal, at)
    return as_policies(trial, _best(trial, lam), len(cost), refusal is not None)


def with_agreement(frontier: Frontier, log: Log, seed: int = 0) -> tuple[Frontier, NamedComparison | None]:
    """The frontier of one named cascade, with policies that compare answers where these are shown to gain.

    Args:
        frontier: of a search of one cascade (`solve_frontier`).
        log: that it was solved on.
        seed: of the folds.

    The frontier as it is, and None, where the log tells no answers, the search is another one, or too few queries
    have the answers of all models.
    """
    refusal = refusal_at(frontier.abstain_price, frontier.abstain_early, log.cost.dtype)
    at = named_positions(frontier.search, frontier.models, refusal is not None)
    log = expected_log(log.select(frontier.models))
    if at is None or log.answer is None or frontier.chain != "exact" or log.complete.sum() < 2 * _FOLDS:
        return frontier, None
    log = sample_queries(log, seed)
    names = tuple(frontier.models[place] for place in at if place != ABSTAIN)
    lam = lam_range(np.asarray(log.cost, float), PRICES)
    rival = _cross_validated(frontier, log, lam, refusal, at, seed)
    comparison = NamedComparison(names, lam, rival, frontier)
    if not comparison.agreeing.any():
        return frontier, comparison
    return _joined(comparison, log, refusal, at)


def _judged(
    calibrators: Calibrator, rows: tuple[Any, ...], cost: Any, refusal: Refusal | None, at: tuple[int, int, int]
) -> Agreeing:
    logprob, correct, present, answer = rows
    trial = judge_answers(calibrators, logprob, correct, present, cost, answer, Judging(refusal=refusal))
    own = (trial.first == at[0]) & (trial.second == at[1]) & (trial.third == at[2])
    return jax.tree.map(lambda leaf: np.asarray(leaf)[np.flatnonzero(own)], trial)


def _best(trial: Agreeing, lam: np.ndarray) -> np.ndarray:
    return (trial.error + np.asarray(lam)[:, None] * trial.cost).argmin(-1)


def _cross_validated(
    frontier: Frontier, log: Log, lam: np.ndarray, refusal: Refusal | None, at: tuple[int, int, int], seed: int
) -> Rival:
    """What policies by agreement gain on the cascade, on queries that neither was tuned on."""
    model, complete = frontier.model, np.asarray(log.complete)
    fold = deal_folds(complete, _FOLDS, seed)
    left_out = [fold == number for number in range(_FOLDS)]
    plan = plan_cascades(model, frontier.search)
    price = None if refusal is None else frontier.abstain_price

    def answered_by_others(out: np.ndarray) -> list[_Fates]:
        """What becomes of the queries left out: under the cascade, and under the best that may compare answers."""
        rows = log.logprob, log.correct, np.asarray(log.answered) & ~out[:, None]
        fitted = fit_near(model, *rows, log.cost)
        chain = solve_at(lay_out_problem(fitted, plan, "exact", refusal), lam).policies.on_host().comparing()
        others = tune_named(fitted.calibrators, (*rows, log.answer), log.cost, lam, refusal, at)
        cascade, agreeing = (_fates(fitted, rows, log, one, at, price) for one in (chain, others))
        train = complete & ~out
        better = agreeing.foretold(lam, train) < cascade.foretold(lam, train)
        return [cascade.of(out & complete), replaced(cascade, agreeing, better).of(out & complete)]

    parts = side_by_side(answered_by_others, left_out, n=log.n_queries)
    joined = [[np.concatenate(figure, -1) for figure in zip(*own, strict=True)] for own in zip(*parts, strict=True)]
    cascade, comparing = (_Fates(*figures) for figures in joined)
    money = [lam[:, None] * one.cost for one in (cascade, comparing)]
    loss = cascade.counted + money[0]
    expected = cascade.expected + money[0] - comparing.expected - money[1]
    gain, gain_se, *overall = gains_of(expected[None], loss[None])
    counted = gains_of((loss - comparing.counted - money[1])[None], loss[None])[2:]
    figures = map(float, (*overall, *counted))
    return Rival(comparing.counted.mean(-1), comparing.cost.mean(-1), gain, gain_se, *figures)


class _Fates(NamedTuple):
    """What becomes of n queries under L policies; a refusal counts at its price."""

    counted: np.ndarray  # (L, n) errors by the labels
    expected: np.ndarray  # (L, n) errors as they are expected (`agreement_odds`)
    cost: np.ndarray  # (L, n)
    refused: np.ndarray  # (L, n)

    def of(self, queries: np.ndarray) -> "_Fates":
        """Those of some queries (n,) bool."""
        return _Fates(*(figure[:, queries] for figure in self))

    def foretold(self, lam: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """(L,) expected error + λ·cost, over some queries (n,) bool."""
        return (self.expected[:, queries] + lam[:, None] * self.cost[:, queries]).mean(-1)


def _fates(
    model: CascadeModel, rows: tuple[Any, ...], log: Log, policies: Policies, at: tuple[int, int, int], price: Any
) -> _Fates:
    """What becomes of the queries of a log.

    Args:
        model: whose calibrators tell confidences.
        rows: (logprob, correct, present), each (n, k): what may be learnt from.
        log: the log.
        policies: L policies of the models `at`.
        at: the models, by position; ABSTAIN for no third.
        price: of a refusal; None where there are none.
    """
    data = model.calibrators, log.logprob, log.correct, log.answered, log.cost
    fates = Outcomes(*(np.asarray(figure, float) for figure in outcomes_on_log(*data, policies, log.answer)))
    penalty = fates.penalty(price)
    (expected,) = expected_on_log(model.calibrators, rows, log, [policies], at)
    return _Fates(penalty, penalty - fates.wrong + expected, fates.cost, fates.refused)


def _joined(
    comparison: NamedComparison, log: Log, refusal: Refusal | None, at: tuple[int, int, int]
) -> tuple[Frontier, NamedComparison]:
    """The cascade's points, and in place of those where comparing answers earns its place, the best that do."""
    frontier, rival, prices = comparison.frontier, comparison.rival, comparison.lam
    model, price = frontier.model, None if refusal is None else frontier.abstain_price
    lam = np.asarray(frontier.lam, float)
    nearest = np.abs(log_lam(prices) - log_lam(lam)[:, None]).argmin(1)
    rows, whole = (log.logprob, log.correct, log.answered), np.asarray(log.complete)
    trial = _judged(model.calibrators, (*rows, log.answer), log.cost, refusal, at)
    best = _best(trial, lam)
    own = frontier.policies.on_host().comparing()
    others = as_policies(trial, best, len(model.models), frontier.abstain_price is not None)
    others = others if own.shares is None else others.splitting()
    foretold, means = [], []
    for start in range(0, len(lam), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        both = [_fates(model, rows, log, one.take(some), at, price) for one in (own, others)]
        foretold.append([one.foretold(lam[some], whole) for one in both])
        chain = both[0].of(whole)
        means.append([figure.mean(-1) for figure in (chain.counted, chain.cost, chain.refused)])
    cascade, agreeing = np.concatenate(foretold, axis=1)
    better = comparison.agreeing[nearest] & (agreeing < cascade)
    if not better.any():
        return frontier, comparison
    least = (trial.error + prices[:, None] * trial.cost).min(-1)
    luck = np.interp(
        log_lam(lam), log_lam(prices), np.maximum(over_neighbours(rival.error + prices * rival.cost - least), 0.0)
    )
    penalty, cost, refused = np.concatenate(means, axis=1)
    penalty = np.where(better, np.minimum(trial.error[best] + luck, 1.0), penalty)
    cost, refused = np.where(better, trial.cost[best], cost), np.where(better, trial.abstention[best], refused)
    error = np.maximum(penalty - (price or 0.0) * refused, 0.0)
    # By rising λ the cost falls; what another beats in both has no place.
    places = pareto(cost, penalty)[::-1]
    dtype = model.cost.dtype
    figures = (np.asarray(figure[places], dtype) for figure in (error, cost, refused))
    status = np.asarray(frontier.status)[places]
    policies = replaced(own, others, better).take(places)
    points = Points(np.sort(lam[places]).astype(dtype), status, Outcomes(*figures), policies)
    how = {"abstain_price": frontier.abstain_price, "abstain_early": frontier.abstain_early, "compare": log.compare}
    joined = make_frontier(model, points, search=frontier.search, chain=frontier.chain, **how)
    return joined, dataclasses.replace(comparison, frontier=joined)
