"""What cascades of each length do on queries that they were not tuned on: cross-validation.

Single models and pairs are tuned on the labels (`empirical`), longer chains by the Markov-copula model. The more
policies are searched, the luckier the best one looks on the queries of the search; on those of a fold that was left
out, luck does not help.
"""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from rcjax._threads import side_by_side
from rcjax._walk import outcomes_on_log
from rcjax.empirical import tune_by_labels
from rcjax.joint import CascadeModel, fit_near
from rcjax.logs import Log, LogError
from rcjax.plan import Plan, make_plan, only
from rcjax.prices import lay_out_problem, log_prices, price_range, solve_at
from rcjax.programme import Refusal

PRICES = 40
_MOST_PATHS = 1_000


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Cross-validated figures of the best policies with so many models; S lengths, G prices λ, numpy's arrays.

    Length 1 is the best single model, 2 the best pair (or single model) by `empirical`; from 3 on, the best cascade
    of exactly so many models under the Markov-copula model. A policy that is best for one λ may be another for the
    next.
    """

    lengths: np.ndarray  # (S,)
    lam: np.ndarray  # (G,) increasing
    error: np.ndarray  # (S, G) on queries that the policies were not tuned on; a refusal counts at its price
    cost: np.ndarray  # (S, G)
    gain: np.ndarray  # (S, G) by how much error + λ·cost is below that of the pair
    gain_se: np.ndarray  # (S, G) its standard error, over queries
    overall: np.ndarray  # (S,) the gain as a share of the pair's error + λ·cost, averaged over the prices
    overall_se: np.ndarray  # (S,)

    @property
    def chosen(self) -> np.ndarray:
        """(G,) the length that earns its place at each price: 2, or a longer one.

        That must gain more than one standard error over all prices together, and at the price itself: of forty prices,
        one or another always looks better by luck.
        """
        short = np.full(len(self.lam), min(2, self.lengths[-1]))
        earned = (self.lengths > 2) & (self.overall > self.overall_se)
        if not earned.any():
            return short
        best = np.argmax(np.where(earned, self.overall, -np.inf))
        return np.where(self.gain[best] > self.gain_se[best], self.lengths[best], short)

    def nearest(self, lam: Any) -> np.ndarray:
        """(…) the place of the price nearest to each λ, on the logarithmic scale."""
        return np.abs(log_prices(self.lam) - log_prices(lam)[..., None]).argmin(-1)


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


def require_queries(log: Log, folds: int) -> None:
    """Refuse less than two folds, and a log with fewer queries than folds."""
    if folds < 2:
        raise ValueError(f"folds is {folds}: give at least 2")
    if log.n_queries < folds:
        needs = f"to choose cascades in {folds} folds takes {folds} at the least, and some hundred to be worth it"
        raise LogError(f"{log.source}: too few queries, {log.n_queries}: {needs}: log more")


def cross_validate(
    log: Log, model: CascadeModel, longer: Longer, folds: int, seed: int, refusal: Refusal | None = None
) -> Comparison:
    """Compare the lengths on a log, whose models are those of `model`, on a grid of prices.

    The queries are dealt into `folds` at random. Each fold in turn is left out of the fit (calibrators, marginals,
    copulas) and of the choice of policies, and then answered. Queries that lack an answer help to fit, but are not
    compared on. With a `refusal`, models may refuse to answer.
    """
    k = len(model.models)
    lam = price_range(np.asarray(log.cost, float), PRICES)
    fold = np.random.default_rng(seed).permutation(log.n_queries) % folds
    left_out = [fold == number for number in range(folds)]
    found = side_by_side(lambda out: _tuned_without(out, log, model, longer, lam, refusal), left_out, n=log.n_queries)
    # From the order of the folds back to that of the log.
    order = np.argsort(np.argsort(fold, kind="stable"))[log.complete]
    wrong, charge = (np.concatenate(each, axis=-1)[..., order] for each in zip(*found, strict=True))
    loss = wrong + lam[:, None] * charge
    lengths = np.array([1, 2, *longer.lengths][: max(k, 1)])
    pair = loss[min(1, k - 1)]
    gain = pair - loss
    overall = (gain / np.maximum(pair.mean(-1), np.finfo(float).tiny)[:, None]).mean(1)
    figures = (*_mean_and_se(gain), *_mean_and_se(overall))
    return Comparison(lengths, lam, wrong.mean(-1), charge.mean(-1), *figures)


def _mean_and_se(values):
    return values.mean(-1), values.std(-1, ddof=1) / np.sqrt(values.shape[-1])


def _tuned_without(out, log, model, longer, lam, refusal):
    """(wrong, charge), each (S, G, m), of policies of all lengths on the m queries `out` (n,), tuned without them."""
    train = np.asarray(log.answered) & ~out[:, None]
    rows = log.logprob, log.correct, train
    fitted = fit_near(model, *rows, log.cost)
    short = tune_by_labels(fitted.calibrators, *rows, log.cost, lam, refusal)
    policies = [tuple(each[row] for each in short) for row in range(len(short[0]))]
    policies += _longest(fitted, longer, lam, refusal)
    data = fitted.calibrators, log.logprob, log.correct, log.answered, log.cost
    figures = [[np.asarray(each, float)[:, out] for each in outcomes_on_log(*data, *policy)] for policy in policies]
    wrong, charge, *refused = (np.stack(each) for each in zip(*figures, strict=True))
    if refusal is not None:
        wrong += (1 - float(refusal.worth)) * refused[0]
    return wrong, charge


def _longest(model, longer, lam, refusal):
    """(thresholds, members), each (G, k), of the best longer cascades of each length; with refusals where there are."""
    names = "thresholds", "members", *(() if refusal is None else ("refusals",))
    if not longer.lengths:
        return []
    problem = lay_out_problem(model, longer.plan, "exact", refusal)
    each = [solve_at(problem._replace(plan=only(longer.plan, rows)), lam) for rows in longer.rows]
    return [tuple(found[name] for name in names) for found in each]
