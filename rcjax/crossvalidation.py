"""What cascades of each length do on queries that they were not tuned on: cross-validation.

Single models and pairs are tuned on the labels (`empirical`), longer chains by the Markov-copula model. The more
policies are searched, the luckier the best one looks on the queries of the search; on those of a fold that was left
out, luck does not help.
"""

import dataclasses
import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._compile import compiled
from rcjax._points import cascade_names
from rcjax._walk import outcomes
from rcjax.calibration import calibrate_all
from rcjax.empirical import by_labels
from rcjax.joint import CascadeModel, fit_arrays
from rcjax.logs import Log
from rcjax.plan import Plan, make_plan, only, pair_places
from rcjax.prices import log_prices, price_range
from rcjax.programme import Refusal
from rcjax.solution import lay_out, optimise, thresholds_at

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
    plan: Plan
    rows: np.ndarray  # (lengths, M) numbers of the plan's paths of each length; short rows repeat one
    places: np.ndarray  # (P,) of the plan's pairs among all pairs

    def named(self, models: tuple[str, ...]) -> list[tuple[tuple[str, ...], ...]]:
        """The cascades of each length by their models' names."""
        members = np.asarray(self.plan.members)
        return [cascade_names(members[np.unique(row)], models) for row in self.rows]


def longer_cascades(k: int, max_length: int | None) -> Longer:
    """All cascades of 3 to `max_length` of k models; by default as long as there are not more than 1,000."""
    lengths: list[int] = []
    total = 0
    for length in range(3, min(max_length or k, k) + 1):
        total += math.comb(k, length)
        if max_length is None and total > _MOST_PATHS:
            break
        lengths.append(length)
    paths = [path for length in lengths for path in itertools.combinations(range(k), length)]
    plan = make_plan(paths or [tuple(range(min(k, 2)))], k)
    numbers = [[n for n, path in enumerate(paths) if len(path) == length] for length in lengths]
    widest = max(map(len, numbers), default=1)
    rows = np.array([row + row[:1] * (widest - len(row)) for row in numbers], int).reshape(-1, widest)
    return Longer(tuple(lengths), plan, rows, pair_places(plan, k))


def cross_validate(
    log: Log, model: CascadeModel, longer: Longer, folds: int, seed: int, refusal: Refusal | None = None
) -> Comparison:
    """Compare the lengths on a log, whose models are those of `model`, on a grid of prices.

    The queries are dealt into `folds` at random. Each fold in turn is left out of the fit (calibrators, marginals,
    copulas) and of the choice of policies, and then answered. Queries that lack an answer help to fit, but are not
    compared on. With a `refusal`, models may refuse to answer.
    """
    k, cost = len(model.models), log.cost
    lam = price_range(np.asarray(cost, float), PRICES)
    prices = jnp.asarray(lam, cost.dtype)
    fold = np.random.default_rng(seed).permutation(log.n_queries) % folds
    data = log.logprob, log.correct, log.answered, cost
    near, transform = (model.marginals, model.copulas), model.calibrators.transform
    # Three programmes, all folds at once in each: the second does not depend on the size of the log, so that it need
    # not be compiled for each.
    fits, confidence, short = _tune(*data, prices, fold, np.arange(folds), near, refusal, transform=transform)
    long = _longest(*fits, cost, prices, longer.plan, longer.rows, longer.places, refusal)
    wrong, charge, *refused = _answer(log.correct, cost, confidence, fold, short, long)
    if refusal is not None:
        wrong = wrong + (1 - refusal.worth) * refused[0]
    wrong, charge = (np.asarray(each, float)[..., log.complete] for each in (wrong, charge))
    loss = wrong + lam[:, None] * charge
    lengths = np.array([1, 2, *longer.lengths][: max(k, 1)])
    pair = loss[min(1, k - 1)]
    gain = pair - loss
    overall = (gain / np.maximum(pair.mean(-1), np.finfo(float).tiny)[:, None]).mean(1)
    figures = (*_mean_and_se(gain), *_mean_and_se(overall))
    return Comparison(lengths, lam, wrong.mean(-1), charge.mean(-1), *figures)


def _mean_and_se(values):
    return values.mean(-1), values.std(-1, ddof=1) / np.sqrt(values.shape[-1])


@partial(compiled, static_argnames="transform", runs="once")
def _tune(logprob, correct, answered, cost, lam, fold, folds, near, refusal, transform):
    """Without each fold in turn: the fit, all calibrated confidences (F, n, k), the policies `by_labels`."""

    def without(number):
        train = answered & (fold != number)[:, None]
        calibrators, *fits = fit_arrays(logprob, correct, train, transform, near[1], near=near[0])
        confidence = calibrate_all(calibrators, logprob, answered)
        return fits, confidence, by_labels(logprob, confidence, correct, train, cost, lam, transform, refusal)

    return lax.map(without, folds)


@partial(compiled, runs="once")
def _longest(marginals, copulas, cost, lam, plan, rows, places, refusal):
    """(thresholds, members), each (F, lengths, L, k), of the best longer cascades of each length under each fit.

    And their refusals, where models may refuse.
    """
    names = "thresholds", "members", *(() if refusal is None else ("refusals",))

    def under(fit):
        marginals, copulas = fit
        tables = dataclasses.replace(lay_out(marginals, copulas, cost, plan.left, plan.right, places), copulas=None)

        def best(rows):
            those = only(plan, rows)
            path, cut, _ = optimise(tables, lam, those, "exact", refusal)
            points, _ = thresholds_at(marginals, tables, path, cut, those)
            return tuple(points[name] for name in names)

        return lax.map(best, rows)

    return lax.map(under, (marginals, copulas))


@partial(compiled, runs="once")
def _answer(correct, cost, confidence, fold, *policies):
    """(wrong, charge), and refused where models may refuse, each (S, L, n): what became of every query.

    Under the policies tuned without its fold.
    """
    policies = jax.tree.map(lambda *each: jnp.concatenate(each, axis=1), *policies)

    def leave_out(totals, one):
        number, confidence, policies = one
        found = jax.vmap(partial(outcomes, confidence, correct, cost))(*policies)
        return tuple(jnp.where(fold == number, new, old) for new, old in zip(found, totals, strict=True)), None

    nothing = jnp.zeros((*policies[0].shape[1:3], correct.shape[0]), cost.dtype)
    numbers = np.arange(confidence.shape[0])
    return lax.scan(leave_out, (nothing,) * len(policies), (numbers, confidence, policies))[0]
