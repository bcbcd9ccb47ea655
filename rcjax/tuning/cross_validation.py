"""The arms of the contest that chooses cascades: single models, pairs, longer chains, agreement.

Single models and pairs are chosen by the labels (`label_candidates`), and so are policies that compare answers
(`agreement_candidates`); longer chains are solved by the Markov-copula model.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from rcjax._core.threads import at_once
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import fit_near
from rcjax.model.label_outcomes import expected_log, expected_right, expected_without, is_whole
from rcjax.solving.at_lambda import Solutions
from rcjax.solving.lambda_grid import lam_range, lay_out_problem, solve_at
from rcjax.solving.paths import CascadePlan, make_plan, only
from rcjax.tuning.agreement_candidates import comparable_models
from rcjax.tuning.agreement_odds import expected_on_log
from rcjax.tuning.choices import ArmChoice, Targets, choose, judge_all, within
from rcjax.tuning.comparison import AtBudgets, AtErrors, Comparison, Luck
from rcjax.tuning.contest import Contest, Entry, Losses, answer_log, contest
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_weights import charges
from rcjax.tuning.resampling import deal_folds

PRICES, BUDGETS, ERRORS = 40, 24, 12


_MOST_PATHS = 1_000


@dataclasses.dataclass(frozen=True)
class Longer:
    """The cascades of three models and more that compete, by length."""

    lengths: tuple[int, ...]
    plan: CascadePlan  # of these and all shorter cascades
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
    cost = np.asarray(log.cost, float)
    low, high = float(cost.min()), float(cost.max())
    low = max(low, 1e-6 * high, np.finfo(float).tiny)
    error = errors_alone(log)
    budgets, errors = np.geomspace(low, 1.2 * max(high, low), BUDGETS), np.linspace(error.min(), error.max(), ERRORS)
    return Targets(lam_range(cost, PRICES), budgets, errors)


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
    lengths = [1, 2, *longer.lengths][: max(len(model.models), 1)]
    comparing = log.answer is not None and comparable_models(len(log.models), judging.refusal)
    arms = (*map(str, lengths), *(["answers"] if comparing else []))
    fold, field = deal_folds(log.complete, folds, seed), _Field(model, longer, targets_of(log), judging, charges(log))
    logs = _labels_without(log, fold, folds)

    def tune(number: int) -> list[Entry]:
        return _tuned_without(logs[number], fold == number, field, arms)

    losses = contest(log, Contest(arms, field.targets, tune, field.charge, field.price), fold)
    return _compared(losses, lengths, errors_alone(log))


class _Field(NamedTuple):
    """What is chosen from, and for what."""

    model: CascadeModel  # fitted to the whole log
    longer: Longer
    targets: Targets
    judging: Judging
    charge: np.ndarray  # (n, k) money

    @property
    def price(self) -> float | None:
        """Of a refusal, in errors."""
        return None if self.judging.refusal is None else 1 - float(self.judging.refusal)


def _labels_without(log: Log, fold: np.ndarray, folds: int) -> list[Log]:
    """The log as it is tuned on without each fold.

    Where answers lack labels, those of a fold play no part in what is expected of the others.
    """
    if is_whole(log):
        return [log] * folds
    expected = expected_log(log)
    outcomes = jax.device_put(expected_without(log, fold, folds).astype(expected.correct.dtype))
    return [dataclasses.replace(expected, correct=right) for right in outcomes]


def _tuned_without(log: Log, out: np.ndarray, field: _Field, arms: Sequence[str]) -> list[Entry]:
    """What each arm has, fitted to and chosen by all queries of a log but those `out` (n,)."""
    rows = log.logprob, log.correct, np.asarray(log.answered) & ~out[:, None]
    fitted = fit_near(field.model, *rows, log.cost)
    by_name = _choices(fitted, (*rows, log.answer if "answers" in arms else None), field)
    choices = [by_name[arm] for arm in arms]
    policies = [choice.policies for choice in choices]
    expected: list[np.ndarray | None] = [None] * len(arms)
    if "answers" in arms:
        # What rivals gain is told by what is expected: of all policies of two models at most, and by agreement.
        few = [arm for arm, one in enumerate(policies) if one.members.sum(1).max() <= 2 or one.agreements is not None]
        compared = [policies[arm].comparing() for arm in few]
        for arm, wrong in zip(few, expected_on_log(fitted.calibrators, rows, log, compared), strict=True):
            expected[arm] = wrong
    answers = (partial(answer_log, fitted.calibrators, one) for one in policies)
    return [Entry(*figures) for figures in zip(answers, (choice.error for choice in choices), expected, strict=True)]


def _choices(fitted: CascadeModel, rows: Any, field: _Field) -> dict[str, ArmChoice]:
    """What each arm chooses, by its name, under a model and by the labels of `rows`, as `judge_all` takes them."""
    # Chains at the same time, as they compile, the first time.
    chains, (pairs, answers) = at_once(
        lambda: _solve_chains(fitted, field),
        lambda: judge_all(fitted.calibrators, rows, field.charge, field.targets.lam, field.judging),
    )
    targets, k = field.targets, len(fitted.models)
    alone = np.arange(pairs.error.shape[-1]) < k
    models = dataclasses.replace(pairs, error=np.where(alone, pairs.error, np.inf))
    choices = {"1": choose(models, None, targets, k), "2": choose(pairs, None, targets, k)}
    choices |= {str(length): chosen for length, chosen in zip(field.longer.lengths, chains, strict=True)}
    return choices if answers is None else choices | {"answers": choose(pairs, answers, targets, k)}


def _solve_chains(fitted: CascadeModel, field: _Field) -> list[ArmChoice]:
    """Of the longer cascades of each length, the best under the model."""
    if not field.longer.lengths:
        return []
    problem = lay_out_problem(fitted, field.longer.plan, "exact", field.judging.refusal)
    plans = (only(field.longer.plan, rows) for rows in field.longer.rows)
    solved = [solve_at(problem._replace(plan=plan), field.targets.lam) for plan in plans]
    return [_chosen(chains, field) for chains in solved]


def _chosen(solved: Solutions, field: _Field) -> ArmChoice:
    cost = np.asarray(solved.expected.cost, float)
    error = np.asarray(solved.expected.penalty(field.price), float)
    limited = within(field.targets.budgets, cost, error), within(field.targets.errors, error, cost)
    rows = np.concatenate([np.arange(len(cost)), *limited])
    return ArmChoice(solved.policies.take(rows), error[rows], cost[rows])


def _compared(losses: Losses, lengths: Sequence[int], alone: np.ndarray) -> Comparison:
    """What a contest has shown; `alone` (k,): how often each model errs."""
    arms, prices = [str(length) for length in lengths], losses.targets.prices
    error, cost = losses.means(arms)
    pair = arms[:2][-1]
    gains, agreement = losses.gains(arms, pair), None
    if "answers" in losses.arms:
        agreement = losses.gains(["answers"], pair, expected=True).of_arm(0)
    rivals = [*arms[:2], *(["answers"] if agreement else [])]
    return Comparison(
        np.array(lengths),
        losses.targets.lam,
        error[:, prices],
        cost[:, prices],
        *gains.at_prices,
        *gains.overall,
        agreement=agreement,
        at_budgets=AtBudgets(losses.targets.budgets, losses.saved(rivals, rivals[0])),
        at_errors=_at_errors(losses, rivals, alone),
        luck=_luck(losses, rivals),
    )


def _at_errors(losses: Losses, arms: Sequence[str], alone: np.ndarray) -> AtErrors:
    cost = losses.means(arms)[1][:, losses.targets.limits]
    return AtErrors(losses.targets.errors, cost, losses.spared(arms, arms[0]), alone)


def _luck(losses: Losses, arms: Sequence[str]) -> Luck:
    targets = losses.targets
    kinds = targets.prices, targets.within, targets.limits
    return Luck(*(np.array([losses.luck(arm, kind) for arm in arms]) for kind in kinds))
