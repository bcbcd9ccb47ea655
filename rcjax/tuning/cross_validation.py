"""What cascades of each length do on queries that they were not tuned on: cross-validation.

Single models and pairs are tuned on the labels (`label_candidates`), longer chains by the Markov-copula model. The more
policies are searched, the luckier the best one looks on the queries of the search; on those of a fold that was left
out, luck does not help.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rcjax._base.variants import base_model, rivals
from rcjax._core.threads import at_once, side_by_side
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.policies import Policies
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import fit_near
from rcjax.model.label_outcomes import corrected_log, expected_log, expected_without, is_whole
from rcjax.model.pairs import barred_pairs
from rcjax.replaying.walk import outcomes_on_log
from rcjax.solving.bellman import Refusal
from rcjax.solving.lambda_grid import lam_range, lay_out_problem, solve_at
from rcjax.solving.paths import Plan, make_plan, only, paths_of_length
from rcjax.tuning.agreement_candidates import comparable_models, tune_by_agreement
from rcjax.tuning.agreement_odds import expected_on_log
from rcjax.tuning.comparison import Comparison, Rival, VotesGain
from rcjax.tuning.label_candidates import tune_by_labels

PRICES = 40


_MOST_PATHS = 1_000


_MOST_COMPARED = 50_000  # queries that policies are compared on: more show no smaller gains worth having


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


def deal_folds(complete: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """(n,) the fold of each query, at random: the folds are of one size, and hold as many complete queries each.

    complete (n,) bool: the queries that every model answered. Dealt without regard to it, a fold of a log with gaps
    may hold none that cascades could be judged on.

    >>> complete = np.arange(12) < 4
    >>> fold = deal_folds(complete, 4, seed=0)
    >>> np.bincount(fold[complete]).tolist(), np.bincount(fold).tolist()
    ([1, 1, 1, 1], [3, 3, 3, 3])
    """
    shuffled = np.random.default_rng(seed).permutation(len(complete))
    dealt = np.lexsort((shuffled, ~np.asarray(complete)))  # the complete ones first
    fold = np.empty(len(complete), int)
    fold[dealt] = np.arange(len(complete)) % folds
    return fold


def without(log: Log, rows: np.ndarray) -> Log:
    """The log as if nobody had answered some of its queries, rows (n,) bool; costs are averaged over the others.

    Its arrays keep their shapes, so that nothing is compiled anew. A model without any answer left keeps its cost.
    """
    logprob, correct, answered, query_cost = (
        np.asarray(column) for column in (log.logprob, log.correct, log.answered, log.query_cost)
    )
    kept = answered & ~rows[:, None]
    money, count = np.where(kept, query_cost, 0).astype(query_cost.dtype), kept.sum(0)
    cost = np.where(count > 0, money.sum(0) / np.maximum(count, 1), log.cost).astype(query_cost.dtype)
    right = np.where(kept, correct, False).astype(correct.dtype)
    columns = {"logprob": np.where(kept, logprob, np.nan).astype(logprob.dtype), "correct": right}
    return dataclasses.replace(log, **jax.device_put(columns | {"answered": kept, "query_cost": money, "cost": cost}))


def sample_queries(log: Log, seed: int) -> Log:
    """At most 50,000 of the queries of a log, at random: the log itself where it has no more."""
    if log.n_queries <= _MOST_COMPARED:
        return log
    chosen = np.random.default_rng(seed).choice(log.n_queries, _MOST_COMPARED, replace=False)
    return log.take(np.sort(chosen))


def require_queries(log: Log, folds: int) -> None:
    """Refuse less than two folds, and a log with fewer queries than folds."""
    if folds < 2:
        raise ValueError(f"folds is {folds}: give at least 2")
    if log.n_queries < folds:
        needs = f"to choose cascades in {folds} folds takes {folds} at the least, and some hundred to be worth it"
        raise LogError(f"{log.source}: too few queries, {log.n_queries}: {needs}: log more")


def cross_validate(
    log: Log,
    model: CascadeModel,
    longer: Longer,
    folds: int,
    seed: int,
    refusal: Refusal | None = None,
) -> Comparison:
    """Compare the lengths of cascades on a log, on a grid of λ.

    The queries are dealt into folds at random (`deal_folds`). Each fold in turn is left out of the fit (calibrators,
    marginals, copulas) and of the choice of policies, and then answered. Queries that lack an answer help to fit, but
    are not compared on.

    Where answers lack labels, policies are chosen, and gains reckoned, by what is expected of these; errors, and the
    standard errors of gains, by what the labels correct (`rcjax.model.label_outcomes`).

    Args:
        log: the log, of the models of `model`.
        model: the model fitted to it.
        longer: how longer cascades are searched.
        folds: how many.
        seed: of the deal.
        refusal: with one, models may refuse to answer.
    """
    k = len(model.models)
    lam = lam_range(np.asarray(log.cost, float), PRICES)
    fold = deal_folds(log.complete, folds, seed)
    search = _Search(model, longer, lam, refusal)
    logs, forms = _outcome_forms(log, fold, folds)
    parts = side_by_side(lambda k: _tuned_without(fold == k, logs[k], search, forms), range(folds), n=log.n_queries)
    # From the order of the folds back to that of the log.
    order = np.argsort(np.argsort(fold, kind="stable"))[log.complete]
    fates = _Fates(*(np.concatenate(some, axis=-1)[..., order] for some in zip(*parts, strict=True)))
    lengths = np.array([1, 2, *longer.lengths][: max(k, 1)])
    loss, expected = (wrong + lam[:, None] * fates.charge for wrong in (fates.penalty, fates.expected))
    pair, count = min(1, k - 1), len(lengths)
    votes, rival = None, None
    if barred_pairs(log.models) is not None:  # the last are of one sample each
        counted = gains_of(loss[:, -1] - loss[:, pair], loss[:, -1])[2:]
        voting = tuple(dict.fromkeys(base_model(log.models[place]) for taken in rivals(log.models) for place in taken))
        votes = VotesGain(voting, *gains_of(expected[:, -1] - expected[:, pair], loss[:, -1]), *map(float, counted))
    if _compares(log, refusal):
        counted = gains_of(loss[:, pair] - loss[:, count], loss[:, pair])[2:]
        gains = gains_of(expected[:, pair] - expected[:, count], loss[:, pair])
        figures = fates.penalty[-1, count].mean(-1), fates.charge[count].mean(-1)
        rival = Rival(*figures, *gains, *map(float, counted))
    figures = fates.penalty[-1, :count].mean(-1), fates.charge[:count].mean(-1)
    gains = gains_of(loss[:, [pair]] - loss[:, :count], loss[:, pair])
    return Comparison(lengths, lam, *figures, *gains, agreement=rival, votes=votes)


def _outcome_forms(log: Log, fold: np.ndarray, folds: int) -> tuple[list[Log], list[jax.Array]]:
    """(the log as it is tuned on without each fold, forms (F,) of the outcomes (n, k) that queries left out have).

    Where answers lack labels, those of a fold play no part in what is expected of the others. Those left out count as
    they are expected to be, by all labels, and as the labels correct that.
    """
    if is_whole(log):
        return [log] * folds, [log.correct]
    expected, told = expected_log(log), corrected_log(log).correct
    known = jax.device_put(expected_without(log, fold, folds).astype(expected.correct.dtype))
    return [dataclasses.replace(expected, correct=right) for right in known], [expected.correct, told]


def gains_of(gain: np.ndarray, pair: np.ndarray) -> tuple[Any, ...]:
    """(gain, its standard error, as a share of the loss of the pair over all prices, that standard error).

    The first axis is of the forms of outcomes: gains are of the first, their standard errors of the last, which are the
    same where all answers are labelled.

    Args:
        gain: (F, …, G, n) by how much the loss of a query is below that of the pair.
        pair: (F, G, n) the loss of the pair.
    """
    overall = (gain / np.maximum(pair[0].mean(-1), np.finfo(float).tiny)[:, None]).mean(-2)
    (mean, _), (_, spread) = _mean_and_se(gain[0]), _mean_and_se(gain[-1])
    (share, _), (_, share_spread) = _mean_and_se(overall[0]), _mean_and_se(overall[-1])
    return mean, spread, share, share_spread


def _mean_and_se(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return values.mean(-1), values.std(-1, ddof=1) / np.sqrt(values.shape[-1])


class _Search(NamedTuple):
    """What is searched for."""

    model: CascadeModel  # fitted to the whole log
    longer: Longer
    lam: np.ndarray  # (G,)
    refusal: Refusal | None


class _Fates(NamedTuple):
    """What became of m queries under the policies of each length, and of each rival; F forms of outcomes."""

    penalty: np.ndarray  # (F, S, G, m) errors, and refusals at their price
    charge: np.ndarray  # (S, G, m) money
    expected: np.ndarray  # (F, S, G, m) the penalty; of pairs and their rivals with errors as they are expected


def _tuned_without(out: np.ndarray, log: Log, search: _Search, forms: Sequence[jax.Array]) -> _Fates:
    """Of policies of all lengths on the m queries `out` (n,), tuned without them, by forms (F,) of outcomes (n, k).

    After the lengths come those that may compare answers and those of one sample of each model, where there are any.
    """
    model, longer, lam, refusal = search
    train = np.asarray(log.answered) & ~out[:, None]
    rows = log.logprob, log.correct, train
    fitted = fit_near(model, *rows, log.cost)
    barred, one_sample = barred_pairs(log.models), barred_pairs(log.models, votes=False)
    by_model, by_labels, others = at_once(  # as they compile, the first time
        lambda: _longest(fitted, longer, lam, refusal),
        lambda: tune_by_labels(fitted.calibrators, *rows, log.cost, lam, refusal, barred),
        lambda: _comparing(fitted, log, train, lam, refusal),
    )
    if one_sample is not None:
        others += tune_by_labels(fitted.calibrators, *rows, log.cost, lam, refusal, one_sample)[-1:]
    policies = [*by_labels, *by_model, *others]
    price = None if refusal is None else 1 - float(refusal.worth)
    walked = [[_fate(fitted, log, right, own, out) for own in policies] for right in forms]
    penalty = np.stack([[fate.penalty(price) for fate in fates] for fates in walked])
    charge = np.stack([fate.cost for fate in walked[0]])
    softened = penalty.copy()
    if others:
        places = [len(by_labels) - 1, *range(len(policies) - len(others), len(policies))]
        compared = [policies[place].comparing() for place in places]
        wrong = np.stack([[fates[place].wrong for place in places] for fates in walked])
        softened[:, places] += expected_on_log(fitted.calibrators, rows, log, compared)[:, :, out] - wrong
    return _Fates(penalty, charge, softened)


def _compares(log: Log, refusal: Refusal | None) -> bool:
    """Whether there are policies that may compare answers."""
    return log.answer is not None and comparable_models(len(log.models), refusal)


def _fate(model: CascadeModel, log: Log, right: jax.Array, policies: Policies, out: np.ndarray) -> Outcomes:
    """(G, m) what becomes of the queries `out` (n,) under policies (G,), by who is `right` (n, k), or how likely."""
    data = model.calibrators, log.logprob, right, log.answered, log.cost
    walked = outcomes_on_log(*data, policies, log.answer)
    return Outcomes(*(np.asarray(figure, float)[:, out] for figure in walked))


def _comparing(
    model: CascadeModel, log: Log, train: np.ndarray, lam: np.ndarray, refusal: Refusal | None
) -> list[Policies]:
    """(G,) the best policies that may compare answers; nothing where there are none to compare."""
    if log.answer is None or not _compares(log, refusal):
        return []
    rows = log.logprob, log.correct, train, log.answer
    return [tune_by_agreement(model.calibrators, rows, log.cost, lam, refusal, barred_pairs(log.models))]


def _longest(model: CascadeModel, longer: Longer, lam: np.ndarray, refusal: Refusal | None) -> list[Policies]:
    """(G,) the best longer cascades of each length."""
    if not longer.lengths:
        return []
    problem = lay_out_problem(model, longer.plan, "exact", refusal)
    return [solve_at(problem._replace(plan=only(longer.plan, rows)), lam).policies for rows in longer.rows]
