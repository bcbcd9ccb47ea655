"""Methods that a user could take instead of rcjax: from a training log to points of cost and error on a test log.

Every method takes a model (for its calibrated confidences and mean costs), the training log and the test log, and
returns a curve: cost (P,) and error (P,) of its policies on the test log, cost at the mean cost of each model there.
`plain_pairs` counts what answers were billed instead, on both logs, and needs no model.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

import rcjax
from rcjax.policy.spec import Target
from rcjax.solving.frontier.points import lower_hull, pareto

QUANTILES = 40  # per threshold, as in the paper
#: Columns of the figures of a policy: its error and its bill on the labels, then on the other queries.
LABELS_ERROR, LABELS_BILL, ERROR, BILL = range(4)


class Curve(NamedTuple):
    """Points of cost and error on a test log."""

    cost: np.ndarray
    error: np.ndarray
    billed: np.ndarray | None = None  # what the answers themselves cost, where a replay told


class Answers(NamedTuple):
    """What the models of a cascade answered: n queries, m models."""

    confidence: np.ndarray  # (n, m) calibrated
    wrong: np.ndarray  # (n, m) 0 or 1
    cost: np.ndarray  # (m,) mean cost of one answer, or (n, m) the bills


def answers(model: rcjax.CascadeModel, log: rcjax.Log, cascade: Sequence[str]) -> Answers:
    """The answers of some models to the queries that all of the model's models answered."""
    log = log.take(log.complete)
    places = [model.models.index(name) for name in cascade]
    confidence = np.asarray(model.calibrate(log.select(model.models).logprob))[:, places]
    chosen = log.select(cascade)
    return Answers(confidence, 1.0 - np.asarray(chosen.correct), np.asarray(chosen.cost, float))


def rational_tuning(model: rcjax.CascadeModel, test: rcjax.Log, cascades="all", **options) -> Curve:
    """The frontier of `solve_frontier`, replayed."""
    return replayed(rcjax.solve_frontier(model, cascades=cascades, **options), test)


def replayed(frontier: rcjax.Frontier, test: rcjax.Log) -> Curve:
    """A frontier on a log, each policy at the models' mean costs."""
    seen = rcjax.replay(frontier, test)
    return Curve(np.asarray(seen.cost), np.asarray(seen.error), np.asarray(seen.spent))


def outcomes(data: Answers, thresholds: np.ndarray) -> Curve:
    """Error and cost of one cascade on a log at each of (P, m − 1) thresholds."""
    cost, error = np.zeros(len(thresholds)), np.zeros(len(thresholds))
    for rows in np.array_split(np.arange(len(thresholds)), max(1, thresholds.size * len(data.wrong) // 2**24)):
        reached = np.ones((len(rows), len(data.wrong)))
        for j in range(data.wrong.shape[1]):
            cost[rows] += (reached * data.cost[..., j]).mean(1)
            last = j == data.wrong.shape[1] - 1
            here = reached if last else reached * (data.confidence[:, j] > thresholds[rows, j, None])
            error[rows] += here @ data.wrong[:, j] / len(data.wrong)
            reached = reached - here
    return Curve(cost, error)


def outcomes_on_grid(data: Answers, grids: Sequence[np.ndarray]) -> Curve:
    """As `outcomes`, at every combination of the grids' thresholds: arrays with an axis for each threshold.

    The queries are counted in cells between the thresholds and the counts are summed along each axis, so that 40⁴
    combinations take a fraction of a second.
    """
    n, shape = len(data.wrong), tuple(len(grid) for grid in grids)
    # Cell c of an axis: deferred by the thresholds from c on. Past the last, never deferred.
    cells = [np.searchsorted(grid, column, side="left") for grid, column in zip(grids, data.confidence.T, strict=False)]
    error, cost = np.zeros(shape), np.full(shape, data.cost[0])
    for j in range(data.cost.size):
        before = _deferred(cells[:j], shape[:j], data.wrong[:, j]) / n
        if j < len(grids):
            before = before[..., None] - _deferred(cells[: j + 1], shape[: j + 1], data.wrong[:, j]) / n
            passed = _deferred(cells[: j + 1], shape[: j + 1], np.ones(n)) / n
            cost += data.cost[j + 1] * _aligned(passed, shape)
        error += _aligned(before, shape)
    return Curve(cost, error)


def _deferred(cells, shape, weight):
    """Total weight of the queries that all the given thresholds defer, for every combination of them."""
    total = np.zeros(tuple(size + 1 for size in shape))
    np.add.at(total, tuple(cells) or (...,), weight if cells else weight.sum())
    for axis in range(len(shape)):
        total = total.cumsum(axis)
    return total[tuple(slice(0, size) for size in shape)]


def _aligned(values, shape):
    return values.reshape(values.shape + (1,) * (len(shape) - values.ndim))


def grid_search(model: rcjax.CascadeModel, train: rcjax.Log, test: rcjax.Log, cascade: Sequence[str]) -> Curve:
    """Every combination of 40 quantiles per threshold on the training labels; those on its Pareto front are kept."""
    data = answers(model, train, cascade)
    levels = np.arange(1, QUANTILES + 1) / QUANTILES
    grids = [np.quantile(column, levels) for column in data.confidence.T[:-1]]
    found = outcomes_on_grid(data, grids)
    kept = pareto(found.cost.ravel(), found.error.ravel())
    places = np.unravel_index(kept, found.cost.shape)
    thresholds = np.stack([grid[place] for grid, place in zip(grids, places, strict=True)], axis=-1)
    return outcomes(answers(model, test, cascade), thresholds)


def best_single_or_pair(model: rcjax.CascadeModel, train: rcjax.Log, test: rcjax.Log) -> Curve:
    """Every model alone and every pair at every confidence as its threshold, chosen on the training labels."""
    seen, fresh = [], []
    for cascade in (c for size in (1, 2) for c in itertools.combinations(model.models, size)):
        data = answers(model, train, cascade)
        thresholds = np.unique(data.confidence[:, :-1], axis=0) if len(cascade) == 2 else np.zeros((1, 0))
        seen.append(outcomes(data, thresholds))
        fresh.append(outcomes(answers(model, test, cascade), thresholds))
    seen, fresh = (
        Curve(*(np.concatenate([getattr(curve, axis) for curve in curves]) for axis in ("cost", "error")))
        for curves in (seen, fresh)
    )
    kept = pareto(seen.cost, seen.error)
    return Curve(fresh.cost[kept], fresh.error[kept])


def plain_pairs(train: rcjax.Log, test: rcjax.Log) -> np.ndarray:
    """(P, 4) figures of the k models alone, then of each pair at every confidence of the labels as its threshold."""
    logs = [Columns.of(log) for log in (train, test)]
    models = range(len(train.models))
    rows = [np.stack([figure for log in logs for figure in (log.wrong.mean(0), log.cost.mean(0))], axis=1)]
    for pair in itertools.combinations(models, 2):
        thresholds = np.unique(logs[0].logprob[:, pair[0]])
        rows.append(np.stack([figure for log in logs for figure in log.pair(*pair, thresholds)], axis=1))
    return np.concatenate(rows)


class Columns(NamedTuple):
    """(n, k) what the models of a log answered."""

    logprob: np.ndarray
    wrong: np.ndarray
    cost: np.ndarray
    answer: np.ndarray | None = None  # equal numbers in a row are equal answers; None where the log has none

    @classmethod
    def of(cls, log: rcjax.Log) -> "Columns":
        """Those of a log whose models answered every query."""
        logprob, correct, cost = (np.asarray(x, float) for x in (log.logprob, log.correct, log.query_cost))
        return cls(logprob, 1 - correct, cost, None if log.answer is None else np.asarray(log.answer))

    def cascade(self, models: Sequence[int]) -> Answers:
        """The answers of some models by their places, as confident as the log says and as dear as their bills."""
        places = list(models)
        return Answers(self.logprob[:, places], self.wrong[:, places], self.cost[:, places])

    def pair(self, first: int, second: int, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(T,) error and bill where the second model answers what the first one is as confident of, or less."""
        order = np.argsort(self.logprob[:, first])
        passed = np.searchsorted(self.logprob[order, first], thresholds, side="right")

        def mean(added: np.ndarray) -> np.ndarray:
            return np.append(0.0, np.cumsum(added[order]))[passed] / len(order)

        error = self.wrong[:, first].mean() + mean(self.wrong[:, second] - self.wrong[:, first])
        return error, self.cost[:, first].mean() + mean(self.cost[:, second])


def mixture_of_two(model: rcjax.CascadeModel, train: rcjax.Log, test: rcjax.Log) -> Curve:
    """One of two models drawn at random for each query: the corners of the convex hull of the single models.

    Straight lines between the points are what the mixtures reach.
    """
    seen, fresh = (answers(model, log, model.models) for log in (train, test))
    cost, error = seen.cost, seen.wrong.mean(0)
    hull = lower_hull(cost, error)
    return Curve(fresh.cost[hull], fresh.wrong.mean(0)[hull])


def areas(curves: dict[str, Curve]) -> dict[str, float | None]:
    """Area under each curve over the costs that all of them share; None where they share no range of costs."""
    low = max(curve.cost.min() for curve in curves.values())
    high = min(curve.cost.max() for curve in curves.values())
    if not low < high:
        return dict.fromkeys(curves)
    return {name: rcjax.solving.area_under_curve(curve.cost, curve.error, low, high) for name, curve in curves.items()}


def compare_frontiers(new: rcjax.Frontier, old: rcjax.Frontier, test: rcjax.Log) -> dict[str, float]:
    """Per cent by which one frontier's error on a test log is above another's, over the costs that both cover.

    `change`: of areas under straight lines through all points. `mixed`: through the corners of the hull alone, by the
    frontier's own figures, which is what mixtures of two policies reach. `budgets`: of the mean error of the policies
    that budgets get, each a single one.
    """
    curves = {}
    for name, frontier in (("new", new), ("old", old)):
        replayed = rcjax.replay(frontier, test)
        cost, error = np.asarray(replayed.cost, float), np.asarray(replayed.error, float)
        hull = lower_hull(np.asarray(frontier.cost, float), np.asarray(frontier.error, float))
        curves[name] = Curve(cost, error), Curve(cost[hull], error[hull])
    every, corners = (areas({name: both[place] for name, both in curves.items()}) for place in (0, 1))
    costs = [np.asarray(frontier.cost, float) for frontier in (new, old)]
    low, high = max(cost.min() for cost in costs), min(cost.max() for cost in costs)
    budgets = {
        name: _by_budgets(frontier, curves[name][0].error, low, high) for name, frontier in (("new", new), ("old", old))
    }
    figures = {"change": every, "mixed": corners, "budgets": budgets}
    return {what: float(change(both["new"], both["old"]) or 0.0) for what, both in figures.items()}


def _by_budgets(frontier: rcjax.Frontier, error: np.ndarray, low: float, high: float) -> float:
    """Mean error, over budgets between two costs, of the policy that each gets: one that costs as much or less."""
    cost = np.unique(np.asarray(frontier.cost, float))
    knots = np.concatenate([[low], cost[(cost > low) & (cost < high)], [high]])
    chosen = [frontier.index_for(Target("budget", budget)) for budget in knots[:-1]]
    return float((error[chosen] * np.diff(knots)).sum() / (high - low))


def change(new: float | None, old: float | None) -> float | None:
    """Per cent by which one area is above another; None where there is none."""
    return None if new is None or old is None else 100 * (new / old - 1)


def policy_for(way: Callable[[str, float], np.ndarray], target: str, value: float) -> np.ndarray:
    """(4,) figures of a way's policy for a target; NaN where nothing meets it."""
    try:
        return way(target, value)
    except rcjax.InfeasibleError:
        return np.full(4, np.nan)
