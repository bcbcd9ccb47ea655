"""Intervals around a frontier by the bootstrap of the whole tuning.

The queries are drawn with replacement, and the policies of the frontier answer each draw: the spread of their figures
is the sampling error. On some draws the models are fitted again, and cascades and thresholds are chosen again. The new
policies answer the queries of their draw and the queries that were not drawn: the difference is the optimism of the
search (Efron & Tibshirani 1993, "An Introduction to the Bootstrap", chapter 17). Sampling error and optimism together
estimate how far the figures in service are from the figures on the log, even if the model is wrong.
"""

import enum

import jax
import numpy as np

from rcjax._base.codec import takes
from rcjax._base.figures import interval_half_width
from rcjax._core.batching import Array, join, map_in_threads
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import corrected_log
from rcjax.solving.frontier.frontier import Frontier
from rcjax.solving.frontier.points import Bands, LossTerms, Policies, check_level
from rcjax.tuning.candidate_table import RESAMPLED_RUNGS
from rcjax.tuning.cross_validation import ENOUGH_QUERIES, CrossValidation, sample_queries
from rcjax.tuning.replaying.replay import replay
from rcjax.tuning.replaying.walk import loss_terms_on_log, require_answers, require_complete
from rcjax.tuning.search import DrawTuner, make_search

_REPLICATES_AT_ONCE = 16  # so that their figures fit in memory
_POINTS_MULTIPLE = 16  # the number of points is rounded up to a multiple, so that few shapes are compiled
_LAM_POINTS = 48  # λ at which replicates of a search by the model are solved; between these, figures are interpolated

#: Draws of a bootstrap, by default.
REPLICATES = 200

#: Draws on which policies are tuned again. 50 draws are enough for optimism, which is a mean: its error is 4 % of half
#: an interval (three real logs of 300 queries). The ends of an interval are quantiles, and need every draw.
_REFIT_DRAWS = 50

#: The optimism of a replicate is twice the optimism on the log: the noise of the log adds to the noise of the draw.
_OPTIMISM_OF_A_DRAW = 2.0


class QuerySet(enum.IntEnum):
    """The sets of queries that the figures of a draw are computed on, along their last axis."""

    LOG = 0
    IN_BAG = 1
    """Drawn queries, as often as they were drawn."""
    OUT_OF_BAG = 2
    """Queries that were not drawn."""


@takes(frontier=Frontier, log=Log)
def bootstrap(
    frontier: Frontier,
    log: Log,
    *,
    replicates: int = REPLICATES,
    level: float = 0.9,
    refit: bool | None = None,
    seed: int = 0,
    cross_validation: CrossValidation | None = None,
) -> Bands:
    """Estimate intervals around every point of a frontier, from the log that it was tuned on.

    The error and the bill of the policy in service lie within their intervals with a probability of about `level`. The
    intervals are expanded percentiles around the figures on the log, corrected for the optimism of the search: the
    out-of-bag minus the in-bag figures of policies tuned on draws. For `select_frontier`, intervals of the error are
    centred on the mean of two corrected errors: by out-of-bag queries, and by cross-validation. The share of
    abstentions has intervals as well, if models may abstain.

    Args:
        frontier: the frontier, of L points.
        log: the log that the frontier was tuned on.
        replicates: number of draws of the log's queries, with replacement; 20 or more.
        level: coverage of each interval, in (0, 1).
        refit: tune again on each of the first 50 draws: fit the calibrators (for a search by the model, the marginals
            and the copulas too), score the candidates, and choose. The blending weights, the stated values, the λ and
            the decision to compare answers stay those of the log. False: the policies stay as they are, and only the
            queries vary, which is right for policies that were fixed before this log was seen, and nearly right for a
            large log. None: tune again if there are at most 5,000 queries.
        seed: seed of the draws.
        cross_validation: cross-validation of the frontier on `log`, whose blending weights the draws share; None: the
            weights are estimated again.

    Raises ValueError for fewer than 20 replicates, a level outside (0, 1), or a frontier of `minimise` that is to be
    solved again; LogError if no query was answered by all models of the frontier.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> frontier = rcjax.solve_frontier(rcjax.fit(log), lam=[100.0, 1000.0])
    >>> bands = rcjax.tuning.bootstrap(frontier, log, replicates=20)
    >>> bands.error.shape, bool((bands.error[:, 0] < bands.error[:, 1]).all())
    ((2, 2), True)
    """
    if replicates < 20:
        raise ValueError(f"replicates is {replicates}; take at least 20, or {REPLICATES} for intervals that are stable")
    check_level(level)
    refit = log.n_queries <= ENOUGH_QUERIES if refit is None else refit
    if refit and frontier.spec.has_own_objective:
        raise ValueError("policies of an objective of your own are not solved again: use refit=False")
    log = log.select(frontier.models)
    require_complete(log, "the bootstrap")
    require_answers(frontier.policies, log)
    sample = sample_queries(log, seed)
    points = _choose_points(frontier)
    tune_draw = None
    if refit:
        blending = None if cross_validation is None else cross_validation.blending
        at_points = None if frontier.is_by_labels else points  # the model's policies are compared at the same λ
        tune_draw = make_search(frontier.spec).draw_tuner(frontier, sample, at_points, blending)
    kept, retuned = _replicate_figures(frontier, points, sample, tune_draw, replicates, seed)
    sampling_error, optimism = _sampling_error_and_optimism(frontier, points, kept, retuned)
    scale = np.sqrt(sample.n_queries / log.n_queries)
    sampling_error = jax.tree.map(lambda figure: figure * scale, sampling_error)
    return _make_bands(frontier, log, sampling_error, optimism, level)


def _replicate_figures(
    frontier: Frontier, points: np.ndarray, log: Log, tune_draw: DrawTuner | None, replicates: int, seed: int
) -> tuple[LossTerms, LossTerms | None]:
    """Return (figures of the frontier's policies, figures of policies tuned on each draw), (B, G, 3) and (S, G, 3).

    The last axis is a `QuerySet`; a set without queries has NaN. S is `_REFIT_DRAWS` at most; the second result is None
    without `tune_draw`.
    """
    corrected = corrected_log(log)
    complete = log.complete
    n = log.n_queries

    def replay_log(calibrators: Calibrator, policies: Policies) -> LossTerms:
        terms = loss_terms_on_log(calibrators, policies.on_host(), corrected, corrected.correct, corrected.query_cost)
        return jax.tree.map(lambda figure: np.asarray(figure, float), terms)

    def means(terms: LossTerms, draws: np.ndarray) -> LossTerms:
        weight = np.stack([np.bincount(draw, minlength=n) for draw in draws]) * complete
        shares = np.stack(np.broadcast_arrays(complete, weight, complete & (weight == 0)), axis=1).astype(float)
        with np.errstate(invalid="ignore"):
            shares /= shares.sum(-1, keepdims=True)

        def by_draw(figure: np.ndarray) -> np.ndarray:
            return np.moveaxis((figure @ shares.reshape(-1, n).T).reshape(-1, len(draws), len(QuerySet)), 0, 1)

        return jax.tree.map(by_draw, terms)

    draws = np.random.default_rng(seed).integers(0, n, (replicates, n))
    kept = replay_log(frontier.model.calibrators, frontier.policies.on_host().take(points))
    pieces = np.array_split(draws, -(-replicates // _REPLICATES_AT_ONCE))
    kept_on_draws = join([means(kept, piece) for piece in pieces])
    if tune_draw is None:
        return kept_on_draws, None
    retuned = map_in_threads(lambda draw: means(replay_log(*tune_draw(draw)), draw[None]), draws[:_REFIT_DRAWS], n=n)
    return kept_on_draws, join(retuned)


def _choose_points(frontier: Frontier) -> np.ndarray:
    """Choose points evenly along a frontier: (G,) indices; some repeat, so that few shapes are compiled."""
    points = np.sort(np.unique(np.asarray(frontier.lam), return_index=True)[1])  # one policy for each λ
    rounded = -(-len(points) // _POINTS_MULTIPLE) * _POINTS_MULTIPLE
    size = RESAMPLED_RUNGS if frontier.is_by_labels else min(_LAM_POINTS, rounded)
    return points[np.linspace(0, len(points) - 1, size).round().astype(int)] if size > 1 else points


def _sampling_error_and_optimism(
    frontier: Frontier, points: np.ndarray, kept: LossTerms, retuned: LossTerms | None
) -> tuple[LossTerms, LossTerms | None]:
    """Return (sampling error: figure on the log minus figure in the bag, (B, L); optimism of the search (L,)).

    `kept` and `retuned` are the results of `_replicate_figures` at the points (G,), between which figures are
    interpolated. The optimism is None if the search was not repeated.
    """
    everywhere = np.arange(len(frontier.lam), dtype=float)

    def between(rows: Array) -> np.ndarray:
        return np.stack([np.interp(everywhere, points.astype(float), row) for row in rows])

    def at_bills(terms: LossTerms) -> LossTerms:
        if not frontier.is_by_labels:
            return terms
        # Each replicate keeps the budget by moving along its own ladder. A single model that answers everything stays,
        # as no search chose it: a replicate might move to a model of nearly the same cost by chance.
        is_single = (np.asarray(frontier.members)[points].sum(1) == 1)[:, None] & (frontier.abstain_price is None)
        moved = figures_at_bill(terms, np.asarray(frontier.cost, float)[points])
        return jax.tree.map(lambda old, new: np.where(is_single, old[: len(new)], new), kept, moved)

    kept_at_bills = at_bills(kept)
    # Retuned policies trade error for cost, so their spread is no sampling error.
    sampling_error = LossTerms(
        *(
            between(figure[..., QuerySet.LOG] - figure[..., QuerySet.IN_BAG])
            for figure in (kept_at_bills.wrong, kept.cost, kept_at_bills.abstained)
        )
    )
    if retuned is None:
        return sampling_error, None
    pairs = zip(kept_at_bills, at_bills(retuned), strict=True)
    optimism = [between(search_optimism(old[: len(new)], new)[None])[0] for old, new in pairs]
    return sampling_error, LossTerms(*optimism)


def _make_bands(
    frontier: Frontier, log: Log, sampling_error: LossTerms, optimism: LossTerms | None, level: float
) -> Bands:
    """Make the intervals around every point; `optimism` is None if the search was not repeated."""
    replayed = replay(frontier, log.comparable)
    bill = replayed.promised_cost(frontier.is_by_labels)
    labels = max(2, round(float(log.labelled[log.complete].mean(1).sum())))  # complete queries with a label
    on_log = [np.asarray(figure, float) for figure in (replayed.error, bill, replayed.abstention)]
    middle = on_log if optimism is None else [figure + more for figure, more in zip(on_log, optimism, strict=True)]
    if optimism is not None and frontier.is_by_labels:
        # Cross-validation has corrected the frontier's error for optimism: the mean of both estimates is nearer.
        middle[0] = (middle[0] + np.asarray(frontier.error, float)) / 2
    error, cost, abstention = (
        centre[:, None] + percentile_intervals(spread, labels, level)
        for centre, spread in zip(middle, sampling_error, strict=True)
    )
    # The exact bound for no error (or no right answer) among the labels: no replicate has one either.
    least = 1 - ((1 - level) / 2) ** (1 / labels)
    error = np.stack([np.minimum(error[:, 0], 1 - least), np.maximum(error[:, 1], least)], axis=-1)
    error, cost, abstention = jax.device_put((np.clip(error, 0, 1), np.maximum(cost, 0), np.clip(abstention, 0, 1)))
    abstaining = frontier.abstain_price is not None
    return Bands(error, cost, level, len(sampling_error.wrong), abstention if abstaining else None)


def figures_at_bill(rungs: LossTerms, money: np.ndarray) -> LossTerms:
    """Return the figures of B ladders that follow their bills, at M bills, on S sets of queries: (B, M, S).

    On each set a ladder stands between the two rungs with the nearest bills. The rungs are in the order of their bills
    on the set, which on few queries may differ from the order of the ladder (`shares_at_bill` takes the latter).

    Args:
        rungs: (B, R, S) figures of each rung on each set of queries.
        money: (M,) bills, in money per query.

    >>> wrong, bill = np.array([[[0.4] * 3, [0.2] * 3]]), np.array([[[1.0] * 3, [3.0, 2.0, 5.0]]])
    >>> figures_at_bill(LossTerms(wrong, bill, 0 * bill), np.array([2.0])).wrong.round(2).tolist()
    [[[0.3, 0.2, 0.35]]]
    """
    order = np.argsort(rungs.cost, axis=1)
    ordered = [np.moveaxis(np.take_along_axis(np.asarray(figure, float), order, 1), 2, 1) for figure in rungs]
    costs = ordered[1].reshape(-1, order.shape[1])

    def at(figure: np.ndarray) -> np.ndarray:
        rows = [np.interp(money, cost, row) for cost, row in zip(costs, figure.reshape(costs.shape), strict=True)]
        return np.moveaxis(np.array(rows).reshape(len(order), figure.shape[1], len(money)), 1, 2)

    return LossTerms(*map(at, ordered))


def search_optimism(kept: Array, retuned: Array) -> np.ndarray:
    """Estimate the optimism of the search from replicates: figure in service minus figure on the log, (G,).

    The out-of-bag figure minus the in-bag figure is computed for the policies tuned on each draw, and for policies that
    stay as they are. The difference of both is halved, since it has the optimism of a log twice: the draw is a sample
    of the log, and the log is a sample itself (Efron & Gong 1983, "A leisurely look at the bootstrap, the jackknife,
    and cross-validation", The American Statistician 37).

    `kept` and `retuned` are (S, G, 3), the last axis a `QuerySet`.
    """

    def out_of_bag_excess(figures: Array) -> np.ndarray:
        """Return the mean excess over the replicates that have both figures, or 0 if no replicate has: (G,)."""
        more = figures[..., QuerySet.OUT_OF_BAG] - figures[..., QuerySet.IN_BAG]
        known = np.isfinite(more)
        return np.where(known, more, 0.0).sum(0) / np.maximum(known.sum(0), 1)

    return (out_of_bag_excess(retuned) - out_of_bag_excess(kept)) / _OPTIMISM_OF_A_DRAW


def percentile_intervals(spread: Array, n: int, level: float) -> np.ndarray:
    """Return the ends of bias-corrected percentile intervals around a figure on the log, minus the figure: (L, 2).

    The replicates (B, L) are differences log − draw. Their mean estimates truth − log, and is the centre. Around it lie
    the percentiles of the draws, so the tails are mirrored. These are expanded by the ratio of Student's t to the
    normal quantile, and by √(n/(n − 1)), by which a bootstrap of n queries is too narrow (Hesterberg 2015, "What
    teachers should know about the bootstrap", sections 4.1 and 4.4).

    >>> lower_draws = np.array([0.1, 0.1, 0.1, 0.2] * 50)[:, None]
    >>> percentile_intervals(lower_draws, 10_000, 0.9).round(2).tolist()  # 0.125 − 0.075 and 0.125 + 0.025
    [[0.05, 0.15]]
    """
    z = interval_half_width(level)
    freedom = max(n - 1, 1)  # Cornish and Fisher's expansion, good to 1 % from ten queries on
    student = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    spread = spread[np.isfinite(spread).all(1)]
    middle = spread.mean(0)
    tails = np.quantile(spread, [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull")
    mirrored = middle - tails[::-1]
    return (middle + mirrored * student / z * np.sqrt(n / max(n - 1, 1))).T
