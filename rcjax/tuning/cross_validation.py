"""The arms of the contest that chooses cascades: single models, pairs, longer chains, agreement, one sample of each.

Single models and pairs are chosen by the labels (`label_candidates`), and so are policies that compare answers
(`agreement_candidates`); longer chains are solved by the Markov-copula model.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rcjax._base.variants import base_model, rivals
from rcjax.frontier.policies import either
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.pairs import barred_pairs
from rcjax.solving.at_lambda import Solutions
from rcjax.solving.lambda_grid import lam_range, lay_out_problem, solve_at
from rcjax.solving.paths import Plan, make_plan, only, paths_of_length
from rcjax.tuning.agreement_candidates import Agreeing, as_policies
from rcjax.tuning.comparison import AtBudgets, Comparison, Gain, Rival, VotesGain
from rcjax.tuning.contest import Arm, Choice, Contest, Judged, Losses, Targets, compares, contest
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_candidates import Candidates
from rcjax.tuning.label_choices import RESERVE, as_cascades, best_candidates, merged, within_budgets, without_barred
from rcjax.tuning.resampling import deal_folds

PRICES, BUDGETS = 40, 24


_MOST_PATHS = 1_000


@dataclasses.dataclass(frozen=True)
class Longer:
    """The cascades of three models and more that compete, by length."""

    lengths: tuple[int, ...]
    plan: Plan  # of these and all shorter cascades
    rows: np.ndarray  # (lengths, N) numbers of the plan's paths of each length, again and again


def longer_cascades(k: int, max_length: int | None, taken: Sequence[tuple[int, int]] = ()) -> Longer:
    """All cascades of 3 to `max_length` of k models; by default as long as there are not more than 1,000.

    None of them holds both of a pair that is `taken`, which are variants of one model.
    """
    lengths: list[int] = []
    total = 0
    for length in range(3, min(max_length or k, k) + 1):
        size = sum(1 for _ in paths_of_length(k, length, taken)) if taken else math.comb(k, length)
        total += size
        if not size or (max_length is None and total > _MOST_PATHS):
            break
        lengths.append(length)
    # With the shorter ones this is the plan of all cascades, whose programmes others need as well.
    paths = [path for length in (1, 2, *lengths) for path in paths_of_length(k, length, taken)]
    plan = make_plan(paths, k)
    size = plan.ends.shape[0]
    rows = [np.resize([n for n, path in enumerate(paths) if len(path) == length], size) for length in lengths]
    return Longer(tuple(lengths), plan, np.array(rows, int).reshape(-1, size))


def targets_of(log: Log) -> Targets:
    """Prices at which policies differ, and budgets from the cheapest model's bill to beyond that of the dearest."""
    low, high = (float(end) for end in (np.min(log.cost), np.max(log.cost)))
    low = max(low, 1e-6 * high, np.finfo(float).tiny)
    return Targets(lam_range(np.asarray(log.cost, float), PRICES), np.geomspace(low, 1.2 * max(high, low), BUDGETS))


def cross_validate(
    log: Log, model: CascadeModel, longer: Longer, judging: Judging, folds: int = 5, seed: int = 0
) -> Comparison:
    """Compare the lengths of cascades on a log, and their rivals, on a grid of λ and one of budgets.

    Args:
        log: the log, of the models of `model`.
        model: the model fitted to it.
        longer: how longer cascades are searched.
        judging: how policies are judged by the labels.
        folds: how many.
        seed: of the deal.
    """
    targets, barred = targets_of(log), barred_pairs(log.models, votes=False)
    lengths = [1, 2, *longer.lengths][: max(len(model.models), 1)]
    arms: dict[str, Arm] = {"1": _single_models, "2": _pairs}
    price = None if judging.refusal is None else 1 - float(judging.refusal.worth)
    arms = {str(length): arms.get(str(length), _Chains(place, price)) for place, length in enumerate(lengths, -2)}
    if compares(log, judging):
        arms["answers"] = _comparing
    if barred is not None:
        arms["one sample"] = _OneSample(barred)

    def chains(fitted: CascadeModel) -> list[Solutions]:
        if not longer.lengths:
            return []
        problem = lay_out_problem(fitted, longer.plan, "exact", judging.refusal)
        return [solve_at(problem._replace(plan=only(longer.plan, rows)), targets.lam) for rows in longer.rows]

    of = Contest(model, arms, chains, targets, judging)
    losses = contest(log, of, deal_folds(log.complete, folds, seed))
    return _compared(losses, lengths, log)


def _compared(losses: Losses, lengths: Sequence[int], log: Log) -> Comparison:
    """What a contest has shown."""
    own, prices = [str(length) for length in lengths], slice(len(losses.targets.lam))
    error, cost = losses.means(own)
    pair = own[:2][-1]
    gain = losses.gain(own, pair)
    votes, rival = None, None
    if "one sample" in losses.arms:
        names = [base_model(log.models[place]) for taken in rivals(log.models) for place in taken]
        figures = _of_one(losses.gain([pair], "one sample", expected=True))
        votes = VotesGain(tuple(dict.fromkeys(names)), *figures)
    if "answers" in losses.arms:
        errors, costs = (figure[0, prices] for figure in losses.means(["answers"]))
        rival = Rival(errors, costs, *_of_one(losses.gain(["answers"], pair, expected=True)))
    return Comparison(
        np.array(lengths),
        losses.targets.lam,
        error[:, prices],
        cost[:, prices],
        *gain[:4],
        agreement=rival,
        votes=votes,
        at_budgets=_at_budgets(losses, [*own[:2], *(["answers"] if rival else [])]),
        luck=np.array([losses.luck(arm, prices=True) for arm in (own[0], pair, "answers") if arm in losses.arms]),
    )


def _of_one(gain: Gain) -> list[Any]:
    """The figures of the first arm alone."""
    return [*(figure[0] for figure in gain[:2]), *(float(figure[0]) for figure in gain[2:])]


def _at_budgets(losses: Losses, arms: Sequence[str]) -> AtBudgets:
    budgets = slice(len(losses.targets.lam), None)
    error, cost = (figure[:, budgets] for figure in losses.means(arms))
    luck = np.array([losses.luck(arm, prices=False) for arm in arms])
    return AtBudgets(losses.targets.budgets, error, cost, *losses.saved(arms, arms[0]), luck)


def _single_models(judged: Judged, targets: Targets) -> Choice:
    k, trial = len(judged.models), judged.pairs
    alone = np.arange(trial.error.shape[-1]) < k
    return choose(dataclasses.replace(trial, error=np.where(alone, trial.error, np.inf)), targets, k)


def _pairs(judged: Judged, targets: Targets) -> Choice:
    return choose(judged.pairs, targets, len(judged.models))


@dataclasses.dataclass(frozen=True)
class _OneSample:
    """Single models and pairs, of one sample of each model."""

    barred: np.ndarray  # (k, k)

    def __call__(self, judged: Judged, targets: Targets) -> Choice:
        return choose(without_barred(judged.pairs, self.barred), targets, len(judged.models))


@dataclasses.dataclass(frozen=True)
class _Chains:
    """The longer cascades of one length, by its place among these."""

    place: int
    price: float | None  # of a refusal, in errors

    def __call__(self, judged: Judged, targets: Targets) -> Choice:
        solved = judged.chains[self.place]
        cost = np.asarray(solved.expected.cost, float)
        within = np.where(cost <= targets.budgets[:, None], cost, -np.inf)
        dearest = np.where(np.isfinite(within).any(1), within.argmax(1), cost.argmin())
        places = np.concatenate([np.arange(len(cost)), dearest])
        error = np.asarray(solved.expected.penalty(self.price), float)
        return Choice(solved.policies.take(places), error[places], cost[places])


def _comparing(judged: Judged, targets: Targets) -> Choice:
    """The best of single models, pairs, and policies that compare answers."""
    k, answers, lam = len(judged.models), judged.answers, targets.lam
    assert answers is not None
    pairs = choose(judged.pairs, targets, k)
    by_price = (answers.error + lam[:, None] * answers.cost).argmin(1)
    places = np.concatenate([by_price, within(answers, targets.budgets)])
    own = as_policies(answers, places, k, judged.pairs.refused is not None)
    error, cost = answers.error[places], answers.cost[places]
    price = np.concatenate([lam, np.zeros(len(targets.budgets))])  # within a budget money counts for nothing
    needed = cost + RESERVE * answers.cost_se[places]
    fits = np.concatenate([np.ones(len(lam), bool), needed[len(lam) :] <= targets.budgets])
    better = fits & (error + price * cost < pairs.error + price * pairs.cost)
    figures = (np.where(better, mine, other) for mine, other in ((error, pairs.error), (cost, pairs.cost)))
    return Choice(either(own, pairs.policies, better), *figures)


def within(answers: Agreeing, budgets: np.ndarray) -> np.ndarray:
    """(B,) as `within_budgets`, the places of policies that compare answers."""
    needed = answers.cost + RESERVE * answers.cost_se
    return np.where(needed <= budgets[:, None], answers.error, np.inf).argmin(1)


def all_of(trial: Candidates) -> Candidates:
    """The candidates in one row, (C,), where each λ has its own."""
    return merged(trial) if trial.refused is not None else trial


def choose(trial: Candidates, targets: Targets, k: int) -> Choice:
    """(T,) the best single models and pairs for each price and each budget, of numpy's arrays."""
    by_price, whole = best_candidates(trial, targets.lam), all_of(trial)
    if trial.refused is not None:  # each λ has candidates of its own
        by_price = by_price + np.arange(len(targets.lam)) * trial.error.shape[-1]
    places = np.concatenate([by_price, within_budgets(whole, targets.budgets)])
    return Choice(
        as_cascades(whole, places, k, np).simplest(), np.asarray(whole.error)[places], np.asarray(whole.cost)[places]
    )
