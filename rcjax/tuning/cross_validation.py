"""The arms of the contest that chooses cascades: single models, pairs, longer chains, agreement.

Single models and pairs are chosen by the labels (`label_candidates`), and so are policies that compare answers
(`agreement_candidates`); longer chains are solved by the Markov-copula model.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.label_outcomes import expected_right
from rcjax.solving.at_lambda import Solutions
from rcjax.solving.lambda_grid import lam_range, lay_out_problem, solve_at
from rcjax.solving.paths import Plan, make_plan, only
from rcjax.tuning.choices import Choice, Targets, choose, within
from rcjax.tuning.comparison import AtBudgets, AtErrors, Comparison, Gain, Luck, Rival
from rcjax.tuning.contest import Arm, Contest, Judged, Losses, compares, contest
from rcjax.tuning.judging import Judging
from rcjax.tuning.resampling import deal_folds

PRICES, BUDGETS, ERRORS = 40, 24, 12


_MOST_PATHS = 1_000


@dataclasses.dataclass(frozen=True)
class Longer:
    """The cascades of three models and more that compete, by length."""

    lengths: tuple[int, ...]
    plan: Plan  # of these and all shorter cascades
    rows: np.ndarray  # (lengths, N) numbers of the plan's paths of each length, again and again


def longer_cascades(k: int, max_length: int | None) -> Longer:
    """All cascades of 3 to `max_length` of k models; by default as long as there are not more than 1,000."""
    lengths: list[int] = []
    total = 0
    for length in range(3, min(max_length or k, k) + 1):
        total += math.comb(k, length)
        if max_length is None and total > _MOST_PATHS:
            break
        lengths.append(length)
    # With the shorter ones this is the plan of all cascades, whose programmes others need as well.
    paths = [path for length in (1, 2, *lengths) for path in itertools.combinations(range(k), length)]
    plan = make_plan(paths, k)
    size = plan.ends.shape[0]
    rows = [np.resize([n for n, path in enumerate(paths) if len(path) == length], size) for length in lengths]
    return Longer(tuple(lengths), plan, np.array(rows, int).reshape(-1, size))


def targets_of(log: Log) -> Targets:
    """Prices at which policies differ; budgets from the cheapest model's bill to beyond the dearest's; errors between
    those of the single models, by their labels."""
    low, high = (float(end) for end in (np.min(log.cost), np.max(log.cost)))
    low = max(low, 1e-6 * high, np.finfo(float).tiny)
    error = errors_alone(log)
    budgets, errors = np.geomspace(low, 1.2 * max(high, low), BUDGETS), np.linspace(error.min(), error.max(), ERRORS)
    return Targets(lam_range(np.asarray(log.cost, float), PRICES), budgets, errors)


def errors_alone(log: Log) -> np.ndarray:
    """(k,) how often each model of a log errs, by its labels."""
    answered = np.asarray(log.answered)
    return 1 - (expected_right(log) * answered).sum(0) / np.maximum(answered.sum(0), 1)


def cross_validate(
    log: Log, model: CascadeModel, longer: Longer, judging: Judging, folds: int = 5, seed: int = 0
) -> Comparison:
    """Compare the lengths of cascades on a log, and their rivals, on a grid of each kind of target.

    Args:
        log: the log, of the models of `model`.
        model: the model fitted to it.
        longer: how longer cascades are searched.
        judging: how policies are judged by the labels.
        folds: how many.
        seed: of the deal.
    """
    targets = targets_of(log)
    lengths = [1, 2, *longer.lengths][: max(len(model.models), 1)]
    arms: dict[str, Arm] = {"1": _single_models, "2": _pairs}
    price = None if judging.refusal is None else 1 - float(judging.refusal)
    arms = {str(length): arms.get(str(length), _Chains(place, price)) for place, length in enumerate(lengths, -2)}
    if compares(log, judging):
        arms["answers"] = _comparing

    def chains(fitted: CascadeModel) -> list[Solutions]:
        if not longer.lengths:
            return []
        problem = lay_out_problem(fitted, longer.plan, "exact", judging.refusal)
        return [solve_at(problem._replace(plan=only(longer.plan, rows)), targets.lam) for rows in longer.rows]

    of = Contest(model, arms, chains, targets, judging)
    losses = contest(log, of, deal_folds(log.complete, folds, seed))
    return _compared(losses, lengths, errors_alone(log))


def _compared(losses: Losses, lengths: Sequence[int], alone: np.ndarray) -> Comparison:
    """What a contest has shown; `alone` (k,): how often each model errs."""
    own, prices = [str(length) for length in lengths], losses.targets.prices
    error, cost = losses.means(own)
    pair = own[:2][-1]
    gain = losses.gain(own, pair)
    rival = None
    if "answers" in losses.arms:
        errors, costs = (figure[0, prices] for figure in losses.means(["answers"]))
        rival = Rival(errors, costs, *_of_one(losses.gain(["answers"], pair, expected=True)))
    chosen = [*own[:2], *(["answers"] if rival else [])]
    return Comparison(
        np.array(lengths),
        losses.targets.lam,
        error[:, prices],
        cost[:, prices],
        *gain[:4],
        agreement=rival,
        at_budgets=_at_budgets(losses, chosen),
        at_errors=_at_errors(losses, chosen, alone),
        luck=_luck(losses, chosen),
    )


def _of_one(gain: Gain) -> list[Any]:
    """The figures of the first arm alone."""
    return [*(figure[0] for figure in gain[:2]), *(float(figure[0]) for figure in gain[2:])]


def _at_budgets(losses: Losses, arms: Sequence[str]) -> AtBudgets:
    error, cost = (figure[:, losses.targets.within] for figure in losses.means(arms))
    return AtBudgets(losses.targets.budgets, error, cost, *losses.saved(arms, arms[0]))


def _at_errors(losses: Losses, arms: Sequence[str], alone: np.ndarray) -> AtErrors:
    cost = losses.means(arms)[1][:, losses.targets.limits]
    return AtErrors(losses.targets.errors, cost, *losses.spared(arms, arms[0]), alone)


def _luck(losses: Losses, arms: Sequence[str]) -> Luck:
    targets = losses.targets
    kinds = targets.prices, targets.within, targets.limits
    return Luck(*(np.array([losses.luck(arm, kind) for arm in arms]) for kind in kinds))


def _single_models(judged: Judged, targets: Targets) -> Choice:
    k, trial = len(judged.models), judged.pairs
    alone = np.arange(trial.error.shape[-1]) < k
    return choose(dataclasses.replace(trial, error=np.where(alone, trial.error, np.inf)), None, targets, k)


def _pairs(judged: Judged, targets: Targets) -> Choice:
    return choose(judged.pairs, None, targets, len(judged.models))


@dataclasses.dataclass(frozen=True)
class _Chains:
    """The longer cascades of one length, by its place among these."""

    place: int
    price: float | None  # of a refusal, in errors

    def __call__(self, judged: Judged, targets: Targets) -> Choice:
        solved = judged.chains[self.place]
        cost = np.asarray(solved.expected.cost, float)
        error = np.asarray(solved.expected.penalty(self.price), float)
        limited = within(targets.budgets, cost, error), within(targets.errors, error, cost)
        places = np.concatenate([np.arange(len(cost)), *limited])
        return Choice(solved.policies.take(places), error[places], cost[places])


def _comparing(judged: Judged, targets: Targets) -> Choice:
    return choose(judged.pairs, judged.answers, targets, len(judged.models))
