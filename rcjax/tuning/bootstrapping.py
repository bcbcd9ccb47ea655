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

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import fill_up
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax.frontier.bands import Bands, check_level
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.policies import Policies
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibration import calibrate_all
from rcjax.model.label_outcomes import corrected_log
from rcjax.replaying.packing import require_answers
from rcjax.replaying.replay import replay
from rcjax.replaying.walk import outcomes_on_log, walk
from rcjax.tuning.candidates import RUNGS
from rcjax.tuning.intervals import for_money, quantiles, sample_noise, search_luck
from rcjax.tuning.replicates import Again, Replicates, tune_again
from rcjax.tuning.resampling import sample_queries

_ROUND = 16

_PRICES = 48  # λ at which replicates of a search by the model are solved; between them, figures are interpolated

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
    if not log.complete.any():
        raise LogError(f"{log.source}: no query was answered by all of {', '.join(log.models)}: nothing to draw again")
    require_answers(frontier.policies, log)
    sample, points = sample_queries(log, seed), _spread(frontier)
    draws = np.random.default_rng(seed).integers(0, sample.n_queries, (replicates, sample.n_queries))
    weights = np.stack([np.bincount(draw, minlength=sample.n_queries) for draw in draws]) * sample.complete
    fixed = tuned = _fixed(frontier, corrected_log(sample), points, weights)
    if refit:
        way = again(frontier, sample, None if frontier.search == "selected" else points)
        tuned = _tuned(tune_again(way, sample, draws), corrected_log(sample), weights)
    noise, luck = _noise_and_luck(frontier, points, fixed, tuned)
    noise = Outcomes(*(figure * np.sqrt(sample.n_queries / log.n_queries) for figure in noise))
    return _bands(frontier, log, noise, luck if refit else None, level)


def _fixed(frontier: Frontier, log: Log, points: np.ndarray, weights: np.ndarray) -> Outcomes:
    """`_judge` of the frontier's policies at some points (G,), which no replicate changes: they are walked once."""
    data = frontier.model.calibrators, log.logprob, log.correct, log.answered, log.query_cost
    outcomes = outcomes_on_log(*data, frontier.policies.on_host().take(points), log.answer)
    figures = [np.asarray(figure, float) for figure in outcomes]
    whole, rows = log.complete.astype(float), []
    for weight in weights:
        shares = np.stack([whole, weight, whole * (weight == 0)], axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):  # of no queries, nothing is known
            shares = shares / shares.sum(0)
        rows.append([figure @ shares for figure in figures])
    return Outcomes(*map(np.stack, zip(*rows, strict=True)))


def _tuned(tuned: Replicates, log: Log, weights: np.ndarray) -> Outcomes:
    """`_judge` of the policies of replicates."""
    # Without what walking does not need: so policies of one width are of one shape.
    policies = dataclasses.replace(tuned.policies, thresholds=None, refusals=None)
    rows = fill_up(log.logprob, log.correct, log.answered, log.query_cost)
    (weights,) = fill_up(weights.astype(log.cost.dtype), axis=1)
    codes = None if policies.agreements is None else fill_up(np.asarray(log.answer))[0]
    outcomes = _judge(tuple(rows), weights, tuned._replace(policies=policies), codes)
    return jax.tree.map(lambda figure: np.asarray(figure, float), outcomes)


def _spread(frontier: Frontier) -> np.ndarray:
    """(G,) positions of at most so many points, evenly along the frontier; some repeat, so that few numbers G occur."""
    points = np.sort(np.unique(np.asarray(frontier.lam), return_index=True)[1])  # of one λ there is one policy
    size = RUNGS if frontier.search == "selected" else min(_PRICES, -(-len(points) // _ROUND) * _ROUND)
    return points[np.linspace(0, len(points) - 1, size).round().astype(int)] if size > 1 else points


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


def _noise_and_luck(
    frontier: Frontier, points: np.ndarray, fixed: Outcomes, tuned: Outcomes
) -> tuple[Outcomes, Outcomes]:
    """How far figures of draws are from those of the log, (B, L), and by how much those of the search are lucky, (L,).

    Args:
        frontier: of L points.
        points: (G,) positions of those that were drawn; what lies between them is interpolated.
        fixed: (B, G, 3) of the frontier's policies, as `_judge`.
        tuned: (B, R, 3) of the policies of replicates: of ladders, or of policies for the prices of the points.
    """
    bills = fixed.cost
    if frontier.search == "selected":  # a budget is kept by moving along the ladder: each replicate on its own
        money = np.asarray(frontier.cost, float)[points]
        fixed, tuned = (for_money(outcomes, money) for outcomes in (fixed, tuned))
    everywhere = np.arange(len(frontier.lam), dtype=float)

    def between(rows: np.ndarray) -> np.ndarray:
        return np.stack([np.interp(everywhere, points.astype(float), row) for row in rows])

    luck = Outcomes(*(between(search_luck(*pair)[None])[0] for pair in zip(fixed, tuned, strict=True)))
    noise = [between(sample_noise(figure)) for figure in (fixed.wrong, bills, fixed.refused)]
    return Outcomes(*noise), luck


def _bands(frontier: Frontier, log: Log, noise: Outcomes, luck: Outcomes | None, level: float) -> Bands:
    """The intervals around every point; luck is None where the search was not done again."""
    replayed, selected = replay(frontier, log), frontier.search == "selected"
    bill = replayed.spent if selected else replayed.cost  # as the frontier's own costs are
    labels = max(2, round(float(log.labelled[log.complete].mean(1).sum())))  # queries that have one
    on_log = [np.asarray(figure, float) for figure in (replayed.error, bill, replayed.abstention)]
    middle = on_log if luck is None else [own + lucky for own, lucky in zip(on_log, luck, strict=True)]
    if luck is not None and selected:
        # By cross-validation these have told their luck as well: of two estimates the mean is nearer.
        middle[0] = (middle[0] + np.asarray(frontier.error, float)) / 2
    error, cost, abstention = (
        centre[:, None] + quantiles(spread, labels, level) for centre, spread in zip(middle, noise, strict=True)
    )
    # Not one error (or right answer) among n labels says no more than this, also where no replicate can have one.
    least = 1 - ((1 - level) / 2) ** (1 / labels)
    error = np.stack([np.minimum(error[:, 0], 1 - least), np.maximum(error[:, 1], least)], axis=-1)
    error, cost, abstention = jax.device_put((np.clip(error, 0, 1), np.maximum(cost, 0), np.clip(abstention, 0, 1)))
    refusing = frontier.abstain_price is not None
    return Bands(error, cost, level, len(noise.wrong), abstention if refusing else None)
