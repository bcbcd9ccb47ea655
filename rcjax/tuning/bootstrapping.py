"""How sure we are of a frontier: the bootstrap, from the queries of the log to the policies, end to end.

The queries are drawn again with replacement; calibrators, marginals and copulas are fitted again, cascades and
thresholds chosen again; and the policies of each replicate answer the queries of their own draw, those of the log, and
those that were not drawn (Efron & Tibshirani 1993, "An Introduction to the Bootstrap", chapter 17). That tells how far
the figures on the log are from those in service: by the luck of the sample, and by the luck of the search. It does not
rest on the model being right.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import part
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax._core.size_classes import fill_up, size_class
from rcjax.frontier.bands import Bands, check_level, frequencies
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.policies import Policies
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibration import calibrate_all
from rcjax.model.label_outcomes import corrected_log
from rcjax.replaying.packing import require_answers
from rcjax.replaying.replay import replay
from rcjax.replaying.walk import walk
from rcjax.tuning.choices import RUNGS
from rcjax.tuning.intervals import (
    for_money,
    mean_of_known,
    quantiles,
    sample_noise,
    search_luck,
    threshold_intervals,
)
from rcjax.tuning.replicates import Again, Replicates, tune_again

_ROUND = 16


_BLOCK = 2**14  # queries that are drawn again at a time where policies stay as they are


_PRICES = 48  # λ at which replicates are solved; between them, what they show is interpolated


_MOST_QUERIES = 5_000  # up to here everything is fitted again by default


def draw_bands(
    frontier: Frontier,
    log: Log,
    again: Callable[[Frontier, Log, np.ndarray | None], Again],
    *,
    replicates: int = 200,
    level: float = 0.9,
    refit: bool | None = None,
    seed: int = 0,
) -> Bands:
    """Intervals around every point of a frontier, from the log that it was tuned on: `rcjax.tuning.bootstrap`.

    Args:
        frontier, log, replicates, level, refit, seed: as `bootstrap` takes them.
        again: how some of its points are tuned again, or by the labels, where no points are given, the ladder.
    """
    if replicates < 20:
        raise ValueError(f"replicates is {replicates}; take at least 20, or 200 for intervals that are stable")
    check_level(level)
    refit = log.n_queries <= _MOST_QUERIES if refit is None else refit
    if refit and frontier.search == "minimised":
        raise ValueError("policies of an objective of your own are not solved again: use refit=False")
    log = log.select(frontier.models)
    corrected = corrected_log(log)
    if not log.complete.any():
        raise LogError(f"{log.source}: no query was answered by all of {', '.join(log.models)}: nothing to draw again")
    points = _spread(frontier)
    fixed = _as_they_are(frontier, points, replicates)
    require_answers(frontier.policies, log)
    if not refit:
        figures = _recount(part(fixed, 0), corrected, replicates, seed)
        twice = Outcomes(*(np.stack([figure, figure]) for figure in figures))
        return _bands(frontier, log, _Replayed(points, fixed, twice, again=False), level)
    draws = np.random.default_rng(seed).integers(0, log.n_queries, (replicates, log.n_queries))
    weights = np.stack([np.bincount(draw, minlength=log.n_queries) for draw in draws]) * log.complete
    tuned = tune_again(again(frontier, log, None if frontier.search == "selected" else points), log, draws)
    # One after the other, as both are of one shape: one programme.
    weights, tuned = weights.astype(log.cost.dtype), jax.tree.map(np.asarray, tuned)
    rows, (weights,) = fill_up(*_rows(corrected)), fill_up(weights, axis=1)
    codes = None if frontier.policies.agreements is None else fill_up(np.asarray(log.answer))[0]
    both = [_judge(rows, weights, _comparable(policies), codes) for policies in (fixed, tuned)]
    outcomes = jax.tree.map(lambda *figures: np.stack(figures), *both)
    return _bands(frontier, log, _Replayed(points, tuned, outcomes, again=True), level)


class _Replayed(NamedTuple):
    """What came of all replicates."""

    points: np.ndarray  # (G,) positions of the frontier's points
    tuned: Replicates
    outcomes: Outcomes  # (2, B, G, 3) of the frontier's policies and of each replicate's: as `_judge`
    again: bool  # whether replicates were tuned again


def _comparable(tuned: Replicates) -> Replicates:
    """Without what walking does not need: so the frontier's policies and those tuned again are of one shape."""
    return tuned._replace(policies=dataclasses.replace(tuned.policies, thresholds=None, refusals=None))


def _rows(log: Log) -> tuple[jax.Array, ...]:
    return log.logprob, log.correct, log.answered, log.query_cost


def _spread(frontier: Frontier) -> np.ndarray:
    """(G,) positions of at most so many points, evenly along the frontier; some repeat, so that few numbers G occur."""
    points = np.sort(np.unique(np.asarray(frontier.lam), return_index=True)[1])  # of one λ there is one policy
    size = RUNGS if frontier.search == "selected" else min(_PRICES, -(-len(points) // _ROUND) * _ROUND)
    return points[np.linspace(0, len(points) - 1, size).round().astype(int)] if size > 1 else points


def _as_they_are(frontier: Frontier, points: np.ndarray, replicates: int) -> Replicates:
    """The policies of the frontier at some points (G,), for every replicate."""
    # By numpy, as all that follows up to `_judge`: jax compiles a programme for each shape of each step.
    fixed = Replicates(frontier.model.calibrators, frontier.policies.on_host().take(points))
    return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (replicates, *np.shape(leaf))), fixed)


@partial(compiled, runs="long")
def _judge(
    rows: tuple[jax.Array, ...],
    weights: jax.Array,
    tuned: Replicates,
    codes: jax.Array | None = None,
) -> Outcomes:
    """(B, G, 3) what becomes of queries under each replicate's policies: on the log, in the bag, out of it; or NaN.

    Args:
        rows: (logprob, correct, answered, query_cost), each (n, k).
        weights: (B, n) how often a query is in the bag, 0 for those that some model has not answered.
        tuned: each replicate's policies.
        codes: (n, k) of answers, for policies that compare them.
    """
    logprob, correct, answered, query_cost = rows
    whole = answered.all(1).astype(query_cost.dtype)

    def judge(replicate: tuple[jax.Array, Replicates]) -> Outcomes:
        weight, fitted = replicate
        confidence = calibrate_all(fitted.calibrators, logprob, answered).T
        shares = jnp.stack([whole, weight, whole * (weight == 0)])
        shares = divide(shares, shares.sum(1, keepdims=True), jnp.nan)  # of no queries, nothing is known

        def answer(policy: Policies) -> Outcomes:
            walked = walk(confidence, policy, None if codes is None else codes.T)
            wrong, refused = (shares @ mask.astype(shares.dtype) for mask in (walked.wrong(correct.T), walked.refused))
            return Outcomes(wrong, shares @ (walked.asked * query_cost.T).sum(0), refused)

        return jax.vmap(answer)(fitted.policies)

    return lax.map(judge, (weights, tuned))


def _recount(tuned: Replicates, log: Log, replicates: int, seed: int) -> Outcomes:
    """`_judge` of policies that no replicate changes, a block of queries at a time: one walk serves all replicates.

    So many of a replicate's draws fall in each block as a multinomial variate says, and there as chance will have it:
    that is drawing n of n queries, without weights (B, n) in memory.
    """
    n = log.n_queries
    rng = np.random.default_rng(seed)
    starts = np.arange(0, n, _BLOCK)
    sizes = np.minimum(_BLOCK, n - starts)
    drawn = rng.multinomial(n, sizes / n, replicates) if len(starts) > 1 else np.full((replicates, 1), n)
    width = min(_BLOCK, size_class(n))
    data = [np.asarray(column) for column in _rows(log)]
    codes = () if tuned.policies.agreements is None else (np.asarray(log.answer),)
    sums = None
    for start, size, count in zip(starts, sizes, drawn.T, strict=True):
        rows = [np.pad(column[start : start + size], ((0, width - size), (0, 0))) for column in (*data, *codes)]
        weights = np.stack([np.bincount(rng.integers(0, size, queries), minlength=width) for queries in count])
        counts = weights.astype(np.float32)
        block = [np.asarray(figure, float) for figure in _count(tuple(rows[:4]), counts, tuned, *rows[4:])]
        sums = block if sums is None else [old + new for old, new in zip(sums, block, strict=True)]
    queries, counts, money = sums or []
    with np.errstate(invalid="ignore", divide="ignore"):  # of no queries, nothing is known
        shares, money = counts / queries[:, None], money / queries[:, None]
    shares = shares.reshape(len(shares), -1, 2)
    figures = shares[..., 0], money, shares[..., 1]
    return Outcomes(
        *(
            np.stack([np.broadcast_to(figure[0], (replicates, *figure.shape[1:])), *np.split(figure[1:], 2)], axis=-1)
            for figure in figures
        )
    )


@compiled
def _count(
    rows: tuple[jax.Array, ...],
    weights: jax.Array,
    tuned: Replicates,
    codes: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sums over queries (n,): how many, (1 + 2B,), of which (1 + 2B, G·2) went wrong, were refused, and what they cost,
    (1 + 2B, G): of the log, in each bag of weights (B, n), out of each. Arguments as of `_judge`, of policies (G,).
    """
    logprob, correct, answered, query_cost = rows
    confidence = calibrate_all(tuned.calibrators, logprob, answered).T
    whole = answered.all(1)
    bags = jnp.concatenate([whole[None], weights * whole, whole & (weights == 0)])

    def answer(policy: Policies) -> tuple[jax.Array, jax.Array]:
        walked = walk(confidence, policy, None if codes is None else codes.T)
        return jnp.stack([walked.wrong(correct.T), walked.refused]), (walked.asked * query_cost.T).sum(0)

    outcomes, bills = jax.vmap(answer)(tuned.policies)
    # Whole numbers, but for shares of queries; single precision holds them exactly up to 2²⁴.
    counts = jnp.matmul(bags, outcomes.reshape(-1, len(whole)).T.astype(bags.dtype), precision="highest")
    return bags.sum(1), counts, jnp.matmul(bags.astype(query_cost.dtype), bills.T, precision="highest")


def _bands(frontier: Frontier, log: Log, replicates: _Replayed, level: float) -> Bands:
    """The intervals around every point: what lies between those that replicates have is interpolated."""
    points, tuned, outcomes, again = replicates
    replayed, selected = replay(frontier, log), frontier.search == "selected"
    bill = replayed.spent if selected else replayed.cost  # as the frontier's own costs are
    labels = max(2, round(float(log.labelled[log.complete].mean(1).sum())))  # queries that have one
    lam = np.asarray(frontier.lam, float)
    everywhere, replicated = np.arange(len(lam), dtype=float), points.astype(float)
    policies, bills = tuned.policies, outcomes.cost
    if selected:  # a budget is kept by moving along the ladder: each replicate on its own
        money = np.asarray(frontier.cost, float)[points]
        nearest = np.abs(bills[1, :, None, :, 1] - money[:, None]).argmin(-1)
        policies = jax.tree.map(lambda leaf: leaf[np.arange(len(leaf))[:, None], nearest], policies)
        followed = [for_money(part(outcomes, one), money) for one in (0, 1)]
        outcomes = jax.tree.map(lambda *figures: np.stack(figures), *followed)
    ends = []
    for figure, on_log in zip(outcomes, (replayed.error, bill, replayed.abstention), strict=True):
        fixed, own = (bills[0], bills[0]) if figure is outcomes.cost and selected else figure
        noise = np.stack([np.interp(everywhere, replicated, row) for row in sample_noise(fixed)])
        moved = np.asarray(on_log, float) + np.interp(everywhere, replicated, search_luck(fixed, own))
        if figure is outcomes.wrong and again and selected:
            # By cross-validation these have told their luck as well: of two estimates the mean is nearer.
            moved = (moved + np.asarray(frontier.error, float)) / 2
        ends.append(moved[:, None] + quantiles(noise, labels, level))
    error, cost, abstention = ends
    # Not one error (or right answer) among n labels says no more than this, also where no replicate can have one.
    least = 1 - ((1 - level) / 2) ** (1 / labels)
    error = np.stack([np.minimum(error[:, 0], 1 - least), np.maximum(error[:, 1], least)], axis=-1)
    refusing = frontier.abstain_price is not None
    loss = part(outcomes, 1).loss(lam[points][:, None], frontier.abstain_price)
    nearest = np.abs(replicated - everywhere[:, None]).argmin(1)
    cascades, frequency = frequencies(np.asarray(policies.members), frontier.models)
    figures: dict[str, Any] = {
        "error": np.clip(error, 0.0, 1.0),
        "cost": np.maximum(cost, 0.0),
        "abstention": np.clip(abstention, 0.0, 1.0) if refusing else None,
        "thresholds": threshold_intervals(frontier, policies, tuned.calibrators, level)[nearest],
        "optimism": np.interp(everywhere, replicated, mean_of_known(loss[..., 2] - loss[..., 1])),
        "frequency": frequency[nearest],
    }
    return Bands(**jax.device_put(figures), cascades=cascades, level=level, replicates=len(tuned.policies.first))
