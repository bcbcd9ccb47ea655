"""How sure we are of a frontier: the bootstrap, from the queries of the log to the policies, end to end.

The queries are drawn again with replacement, and the policies of the frontier answer them: that tells the luck of the
sample. On some of the draws calibrators, marginals and copulas are fitted again, cascades and thresholds chosen again;
and these policies answer the queries of their own draw, those of the log, and those that were not drawn (Efron &
Tibshirani 1993, "An Introduction to the Bootstrap", chapter 17): that tells the luck of the search. So far are the
figures on the log from those in service; it does not rest on the model being right.
"""

import jax
import numpy as np

from rcjax._base.checks import takes
from rcjax._base.normal_law import half_width
from rcjax._core.batching import join, side_by_side
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import corrected_log
from rcjax.solving.frontier.frontier import Frontier
from rcjax.solving.frontier.points import Bands, Outcomes, check_level
from rcjax.solving.frontier.policies import Policies
from rcjax.tuning.candidates import RUNGS
from rcjax.tuning.judging import sample_queries
from rcjax.tuning.replaying.replay import replay
from rcjax.tuning.replaying.walk import outcomes_on_log, require_answers
from rcjax.tuning.search import Again, search_of

_ROUND = 16

_PRICES = 48  # λ at which replicates of a search by the model are solved; between them, figures are interpolated

_MOST_QUERIES = 5_000  # up to here everything is fitted again by default

#: Draws on which everything is tuned again: the luck of the search is a mean, which so many tell to 4 % of half an
#: interval (three real logs of 300 queries); the ends of an interval are quantiles, and need every draw.
_SEARCHED = 50

_LUCK_OF_A_DRAW = 2.0  # a replicate's policies look so much luckier than those of the log


@takes(frontier=Frontier, log=Log)
def bootstrap(
    frontier: Frontier,
    log: Log,
    *,
    replicates: int = 200,
    level: float = 0.9,
    refit: bool | None = None,
    seed: int = 0,
) -> Bands:
    """Intervals around every point of a frontier, from the log that it was tuned on.

    For error and the bill: where the figures of the policy in service will lie, with a probability of about `level`, by
    expanded percentiles around the figures on the log and the luck of the search in them. Replicates tell that by how
    much worse their policies do on queries that they were not tuned on; for the error of policies of
    `select_frontier`, the mean is taken of this and of what cross-validation has told. Thresholds are on the scale of
    the frontier's model. Where models may refuse to answer, the share of queries without one has intervals as well.

    Args:
        frontier: the frontier, of L points.
        log: the log that it was tuned on.
        replicates: how often the log's queries are drawn again, with replacement; 20 or more.
        level: the probability that each interval is to have, in (0, 1).
        refit: whether all that led to the frontier (`Frontier.search`) is done again, on the first 50 draws, with
            copulas by Kendall's τ. With False policies stay as they are and only the queries vary, which is right for
            policies that were fixed before this log was seen, and all but right for a large one; None does so above
            5,000 queries.
        seed: of the draws.

    Raises ValueError for fewer than 20 replicates, a level outside (0, 1), or a frontier of `minimise` if it is to
    be solved again; LogError where no query was answered by all models of the frontier.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> frontier = rcjax.solve_frontier(rcjax.fit(log), lam=[300.0, 3000.0])
    >>> bands = rcjax.tuning.bootstrap(frontier, log, replicates=20)
    >>> bands.error.shape, bool((bands.error[:, 0] < bands.error[:, 1]).all())
    ((2, 2), True)
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
    again = search_of(frontier.spec).again if refit else None
    tune_again = again and again(frontier, sample, None if frontier.search == "selected" else points)
    fixed, tuned = _replicated(frontier, points, sample, tune_again, replicates, seed)
    noise, luck = _noise_and_luck(frontier, points, fixed, tuned)
    noise = Outcomes(*(figure * np.sqrt(sample.n_queries / log.n_queries) for figure in noise))
    return _bands(frontier, log, noise, luck if refit else None, level)


def _replicated(
    frontier: Frontier, points: np.ndarray, log: Log, again: Again | None, replicates: int, seed: int
) -> tuple[Outcomes, Outcomes]:
    """What becomes of queries on the log, in the bag and out of it, (B, G, 3); NaN where no query is.

    Under the policies of a frontier at some points (G,), and under those that are tuned again on the first draws of the
    log, at most `_SEARCHED`; the same ones where `again` is None.
    """
    judged, whole, n = corrected_log(log), log.complete, log.n_queries

    def walked(calibrators: Calibrator, policies: Policies) -> Outcomes:
        outcomes = outcomes_on_log(calibrators, policies.on_host(), judged, judged.correct, judged.query_cost)
        return Outcomes(*(np.asarray(figure, float) for figure in outcomes))

    def means(outcomes: Outcomes, draws: np.ndarray) -> Outcomes:
        weight = np.stack([np.bincount(draw, minlength=n) for draw in draws]) * whole
        shares = np.stack(np.broadcast_arrays(whole, weight, whole & (weight == 0)), axis=1).astype(float)
        with np.errstate(invalid="ignore"):
            shares /= shares.sum(-1, keepdims=True)
        sums = (figure @ shares.reshape(-1, n).T for figure in outcomes)
        return Outcomes(*(np.moveaxis(sum_.reshape(-1, len(draws), 3), 0, 1) for sum_ in sums))

    draws = np.random.default_rng(seed).integers(0, n, (replicates, n))
    fixed = walked(frontier.model.calibrators, frontier.policies.on_host().take(points))
    pieces = np.array_split(draws, -(-replicates // _ROUND))
    fixed_on_draws = join([means(fixed, piece) for piece in pieces])
    if again is None:
        return fixed_on_draws, fixed_on_draws
    tuned = side_by_side(lambda draw: means(walked(*again(log, draw)), draw[None]), draws[:_SEARCHED], n=n)
    return fixed_on_draws, join(tuned)


def _spread(frontier: Frontier) -> np.ndarray:
    """(G,) positions of at most so many points, evenly along the frontier; some repeat, so that few numbers G occur."""
    points = np.sort(np.unique(np.asarray(frontier.lam), return_index=True)[1])  # of one λ there is one policy
    size = RUNGS if frontier.search == "selected" else min(_PRICES, -(-len(points) // _ROUND) * _ROUND)
    return points[np.linspace(0, len(points) - 1, size).round().astype(int)] if size > 1 else points


def _noise_and_luck(
    frontier: Frontier, points: np.ndarray, fixed: Outcomes, tuned: Outcomes
) -> tuple[Outcomes, Outcomes]:
    """How far figures of draws are from those of the log, (B, L), and by how much those of the search are lucky, (L,).

    Args:
        frontier: of L points.
        points: (G,) positions of those that were drawn; what lies between them is interpolated.
        fixed: (B, G, 3) of the frontier's policies, as `_replicated`.
        tuned: (S, R, 3) of the policies of the first S draws: of ladders, or of policies for the prices of the points.
    """
    bills = fixed.cost
    if frontier.search == "selected":  # a budget is kept by moving along the ladder: each replicate on its own
        money = np.asarray(frontier.cost, float)[points]
        # A model alone that answers everything was not searched for, and stays: where another one costs nearly as much,
        # moving would be chance.
        alone = (np.asarray(frontier.members)[points].sum(1) == 1)[:, None] & (frontier.abstain_price is None)
        fixed, tuned = (_stay(alone, fixed, for_money(outcomes, money)) for outcomes in (fixed, tuned))
    everywhere = np.arange(len(frontier.lam), dtype=float)

    def between(rows: np.ndarray) -> np.ndarray:
        return np.stack([np.interp(everywhere, points.astype(float), row) for row in rows])

    searched = len(tuned.wrong)
    luck = [between(search_luck(figure[:searched], of)[None])[0] for figure, of in zip(fixed, tuned, strict=True)]
    # That replicates choose other policies at a λ, which trade error for cost, says nothing of what this one does.
    noise = [between(figure[..., 0] - figure[..., 1]) for figure in (fixed.wrong, bills, fixed.refused)]
    return Outcomes(*noise), Outcomes(*luck)


def _stay(which: np.ndarray, fixed: Outcomes, moved: Outcomes) -> Outcomes:
    """(S, G, 3) of `which` (G, 1) policies as they are, of the others as moved; S, the draws that were moved."""
    return Outcomes(*(np.where(which, own[: len(there)], there) for own, there in zip(fixed, moved, strict=True)))


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


def for_money(rungs: Outcomes, money: np.ndarray) -> Outcomes:
    """(B, M, S) what becomes of queries under B ladders that follow their bills, for so much money per query (M,).

    Args:
        rungs: (B, R, S) what becomes of S sets of queries by each rung: the position on each set is where the
            rungs cost the money there, the most expensive or the cheapest rung where none does.
        money: (M,)

    >>> wrong, bill = np.array([[[0.4] * 3, [0.2] * 3]]), np.array([[[1.0] * 3, [3.0, 2.0, 5.0]]])
    >>> for_money(Outcomes(wrong, bill, 0 * bill), np.array([2.0])).wrong.round(2).tolist()
    [[[0.3, 0.2, 0.35]]]
    """
    order = np.argsort(rungs.cost, axis=1)
    ordered = [np.moveaxis(np.take_along_axis(np.asarray(figure, float), order, 1), 2, 1) for figure in rungs]
    costs = ordered[1].reshape(-1, order.shape[1])

    def at(figure: np.ndarray) -> np.ndarray:
        rows = [np.interp(money, cost, row) for cost, row in zip(costs, figure.reshape(costs.shape), strict=True)]
        return np.moveaxis(np.array(rows).reshape(len(order), figure.shape[1], len(money)), 1, 2)

    return Outcomes(*map(at, ordered))


def search_luck(fixed: np.ndarray, tuned: np.ndarray) -> np.ndarray:
    """(G,) by how much policies do worse in service than on the log.

    From figures (S, G, 3), on the log, in the bag and out of it: of policies that stay as they are, and of those that
    are tuned on each draw.

    Half of how much worse a replicate's own policies do out of their bag than in it. Where the policies of a log do
    better by a on it than the best there are, and worse by a in service, those of a draw have the noise of the log and
    that of the draw: worse by 2a out of their bag, and better by 2a in it, as they were fitted to both (Efron & Gong
    1983, "A leisurely look at the bootstrap, the jackknife, and cross-validation", The American Statistician 37).
    """

    def worse(figures: np.ndarray) -> np.ndarray:
        """(G,) mean over the replicates that know; 0 where none does."""
        more = figures[..., 2] - figures[..., 1]
        known = np.isfinite(more)
        return np.where(known, more, 0.0).sum(0) / np.maximum(known.sum(0), 1)

    return (worse(tuned) - worse(fixed)) / _LUCK_OF_A_DRAW


def quantiles(spread: np.ndarray, n: int, level: float) -> np.ndarray:
    """(L, 2) ends of an interval from replicates (B, L), wider for few queries as Student's t is than the normal.

    A bootstrap of n queries is too narrow by √((n − 1)/n) besides, and it is skewed as the figure itself is, not as
    the truth around it: the tails change sides (Hesterberg 2015, "What teachers should know about the bootstrap",
    sections 4.1 and 4.4: percentiles, expanded).
    """
    z = half_width(level)
    freedom = max(n - 1, 1)  # Cornish and Fisher's expansion, good to 1 % from ten queries on
    student = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    spread = spread[np.isfinite(spread).all(1)]
    middle = spread.mean(0)
    tails = np.quantile(spread, [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull")
    upper, lower = middle - tails
    widened = np.stack([lower, upper]) * student / z * np.sqrt(n / max(n - 1, 1))
    return (middle + widened).T
