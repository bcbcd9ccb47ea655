"""Points of a frontier as arrays: policies, their λ, their expected figures and intervals, and their lower hull.

Policies are intervals of calibrated confidence, with an action of the model in each interval: cascades with a threshold
for each model, and policies that skip models, are one type. `rules_of_policy` converts arrays to the models, rules and
agreements of a deployed policy; `policies_from_rules` converts them back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.codec import describe_type
from rcjax._core.batching import Array, Status, as_json_values, take_entries
from rcjax.policy.decisions import Agreement, AnswerForm, Rule
from rcjax.policy.error_kind import penalised

#: Action of a model that abstains; other actions are indices of models.
ABSTAIN = -1
#: Thresholds of a model that answers every query, and of a model that answers none.
ALWAYS_ANSWER, NEVER_ANSWER = 0.0, 1.0
#: Abstention threshold of a model that does not abstain.
NEVER_ABSTAIN = 0.0
#: Index in place of a model's, where a model does not compare answers.
NO_MODEL = -1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Agreements:
    """The comparisons of answers in policies over k models; numpy or jax arrays.

    A model compares its answer with the answer of an earlier model. If they are equal, the answer is kept; if they
    differ, a later model is asked. If an answer is not known, the model's intervals of confidence decide.
    """

    earlier: Array
    """(…, k) index of the earlier model; NO_MODEL for a model that does not compare answers."""
    differ: Array
    """(…, k) index of the model to ask if the answers differ; NO_MODEL for a model that does not compare answers."""

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Agreements:
        """Return the agreements of models (…, k) that do not compare answers.

        >>> Agreements.none((2,)).earlier.tolist()
        [-1, -1]
        """
        return cls(np.full(shape, NO_MODEL, np.int32), np.full(shape, NO_MODEL, np.int32))

    @property
    def compares(self) -> Any:
        """(…, k) bool: the models that compare their answer with an earlier answer."""
        return self.earlier != NO_MODEL


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Policies:
    """Policies over k models, with R intervals of confidence for each model; numpy or jax arrays."""

    bounds: Array
    """(…, k, R) upper ends of the intervals of calibrated confidence; the last is 1."""
    actions: Array
    """(…, k, R) action in each interval: the model's own index to answer, a later index to ask, or ABSTAIN."""
    members: Array
    """(…, k) bool: the models that may be asked; the first of them is always asked."""
    agreements: Agreements | None = None
    """(…, k) comparisons of answers; None: no model compares answers."""

    @classmethod
    def from_cascades(
        cls,
        thresholds: Any,
        members: Any,
        abstain_thresholds: Any = None,
        agreements: Agreements | None = None,
    ) -> Policies:
        """Make cascades from thresholds: each member asks the next up to its threshold, and answers above it.

        The thresholds become the last bounds but one, and the abstention thresholds the bounds before.

        Args:
            thresholds: (…, k) calibrated confidence up to which a member asks the next.
            members: (…, k) bool: the models of the cascade.
            abstain_thresholds: (…, k) calibrated confidence up to which a member abstains, at most its threshold; None:
                models do not abstain.
            agreements: (…, k) comparisons between members.

        >>> policies = Policies.from_cascades(np.array([[0.7, 1.0, 0.0]]), np.array([[True, False, True]]))
        >>> policies.first.tolist(), policies.bounds[0].tolist(), policies.actions[0].tolist()
        ([0], [[0.7, 1.0], [1.0, 1.0], [0.0, 1.0]], [[2, 0], [2, 1], [2, 2]])
        """
        xp, models = thresholds.__array_namespace__(), np.arange(members.shape[-1])
        later = members[..., None, :] & (models > models[:, None])
        following = xp.where(later.any(-1), later.argmax(-1), models)
        ends, targets = [thresholds, xp.ones_like(thresholds)], [following, xp.broadcast_to(models, following.shape)]
        if abstain_thresholds is not None:
            ends, targets = [abstain_thresholds, *ends], [xp.full_like(following, ABSTAIN), *targets]
        bounds, actions = (xp.stack(columns, axis=-1) for columns in (ends, targets))
        return cls(bounds, actions, members, agreements)

    @property
    def first(self) -> Array:
        """(…) index of the model asked first."""
        return self.members.argmax(-1)

    @property
    def thresholds(self) -> Array:
        """(…, k) calibrated confidence above which each model of a cascade answers; adaptive policies have none."""
        return self.bounds[..., -2]

    def take(self, index: Any) -> Policies:
        """Return the policies at an index of the leading axes."""
        return take_entries(self, index)

    def on_host(self) -> Policies:
        """Convert the arrays to numpy."""
        return jax.tree.map(np.asarray, self)


def rules_of_policy(names: tuple[str, ...], policies: Policies, index: int, compare: AnswerForm) -> dict[str, Any]:
    """Return the `models`, `rules` and `agreements` of one policy; neighbouring rules with one action are merged.

    Args:
        names: names of the k models.
        policies: L policies, in numpy arrays.
        index: index of the policy.
        compare: comparison of answers.

    >>> policies = Policies.from_cascades(np.array([[0.7, 0.0]]), np.array([[True, True]]))
    >>> rules_of_policy(("small", "large"), policies, 0, "text")["rules"]["small"]
    (Rule(up_to=0.7, action='ask', model='large'), Rule(up_to=1.0, action='answer', model=None))
    """
    members = np.flatnonzero(policies.members[index]).tolist()
    rules = {names[j]: _to_rules(names, j, policies.bounds[index, j], policies.actions[index, j]) for j in members}
    compared = policies.agreements or Agreements.none(np.shape(policies.members))
    agreements = {}
    for j in members:
        earlier, differ = compared.earlier[index, j], compared.differ[index, j]
        if earlier != NO_MODEL:
            agreements[names[j]] = Agreement(names[earlier], names[differ], compare)
    return {"models": tuple(rules), "rules": rules, "agreements": agreements}


def policies_from_rules(orders: Sequence[tuple[str, ...]], cascades: Sequence[Any]) -> Policies:
    """Convert L policies to arrays over k models, padded to one number of intervals; numpy arrays.

    Each policy asks later models of its order only, and has `models`, `rules` and `agreements` as in `rcjax.Policy`.
    """
    shape = len(cascades), len(orders[0])
    bounds = np.ones((*shape, max(len(table) for cascade in cascades for table in cascade.rules.values())))
    actions = np.broadcast_to(np.arange(shape[1], dtype=np.int32)[:, None], bounds.shape).copy()
    members, agreements = np.zeros(shape, bool), Agreements.none(shape)
    for row, (order, cascade) in enumerate(zip(orders, cascades, strict=True)):
        index = {name: j for j, name in enumerate(order)}
        for name, table in cascade.rules.items():
            j = index[name]
            members[row, j] = True
            bounds[row, j, : len(table)] = [rule.up_to for rule in table]
            acts = [ABSTAIN if rule.action == "abstain" else index[rule.model or name] for rule in table]
            actions[row, j, : len(table)] = acts
        for name, agreement in cascade.agreements.items():
            agreements.earlier[row, index[name]] = index[agreement.earlier]
            agreements.differ[row, index[name]] = index[agreement.model]
    return Policies(bounds, actions, members, agreements if agreements.compares.any() else None)


def _to_rules(names: tuple[str, ...], j: int, bounds: Array, actions: Array) -> tuple[Rule, ...]:
    """Convert the intervals (R,) of model j to rules; drop empty intervals, and merge neighbours with one action."""
    table: list[Rule] = []
    start = 0.0
    for end, action in zip(np.asarray(bounds, float).tolist(), np.asarray(actions).tolist(), strict=True):
        if end <= start:
            continue
        asked = None if action in (j, ABSTAIN) else names[action]
        rule = Rule(end, "abstain" if action == ABSTAIN else "ask" if asked else "answer", asked)
        if table and (table[-1].action, table[-1].model) == (rule.action, rule.model):
            table.pop()
        table.append(rule)
        start = end
    return tuple(table)


class LossTerms(NamedTuple):
    """The terms of the loss of queries under a policy, or their means: numbers, or numpy or jax arrays of one shape.

    >>> LossTerms(wrong=0.1, cost=2.0, abstained=0.5).loss(lam=0.01, abstain_price=0.3)
    0.27
    """

    wrong: Array
    """Wrong answer: 0 or 1, a score lost, or a probability."""
    cost: Array
    """Money per query."""
    abstained: Array
    """Abstention: 0 or 1, or a probability; 0 where models do not abstain."""

    def penalty(self, abstain_price: float | None) -> Any:
        """Return errors, with each abstention as `abstain_price` errors; None: models do not abstain."""
        return penalised(self.wrong, self.abstained, abstain_price)

    def loss(self, lam: Any, abstain_price: float | None = None) -> Any:
        """Return error + abstain_price·abstention + λ·cost."""
        return self.penalty(abstain_price) + lam * self.cost


class PointStatus(Status):
    """Result code of the search at a λ, in `Frontier.status` and in the points of a sweep."""

    CONVERGED = 0, "converged"
    AT_BOUND = 1, "converged, with a threshold at the end of a model's range (it always or never answers)"
    NOT_CONVERGED = 2, "the iterations ran out while the loss was still falling: the thresholds may be slightly off"
    INTERPOLATED = 3, "thresholds between those of two neighbouring optima: a point that no λ leads to"
    NO_DATA = 4, "not solved: in this draw a model has no answer, or two models share no query"
    NOT_FINITE = 5, "failed: error or cost is not finite"
    INVALID_LAMBDA = 6, "failed: λ is negative or not finite"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Points:
    """L points of a frontier, one for each λ; jax arrays within compiled functions, numpy arrays elsewhere."""

    lam: Array  # (L,) error probability per unit of money
    status: Array  # (L,) `PointStatus` of each point
    expected: LossTerms  # (L,) expected terms of the loss per query
    policies: Policies  # (L,) policies


_TAIL = 0.95 - 1e-9  # share of the queries below the quantile, less the rounding of sums of weights


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Seconds:
    """Seconds that queries wait under a policy, or under each of the L policies of a frontier; numpy arrays.

    The seconds of a query are summed along its path; of two parallel calls the slower counts. A query counts if the
    seconds of its whole path are known. The figures are NaN without such queries.
    """

    mean: Array
    """(…) mean seconds per query."""
    p95: Array
    """(…) seconds within which 95 % of the queries are answered, an order statistic."""

    def to_json(self, at: Any = ...) -> dict[str, Any]:
        """Return the figures at an index of the arrays as JSON values; None for NaN.

        >>> Seconds(np.array([1.5, np.nan]), np.array([3.0, np.nan])).to_json()
        {'seconds': [1.5, None], 'seconds_p95': [3.0, None]}
        """
        figures = {"seconds": self.mean, "seconds_p95": self.p95}
        return as_json_values({name: np.asarray(figure)[at] for name, figure in figures.items()})


def summarise_seconds(waits: ArrayLike, weights: ArrayLike) -> Seconds:
    """Return mean and 95 % quantile of the seconds of queries whose seconds are known under all policies; else NaN.

    Args:
        waits: (P, n) seconds of n queries under P policies; NaN if they are not known.
        weights: (P, n) share of a query that goes by each policy; 0 for a query that does not count.

    >>> seconds = summarise_seconds(jnp.array([[3.0, 1.0, 2.0, jnp.nan]]), jnp.ones((1, 4)))
    >>> float(seconds.mean), float(seconds.p95)
    (2.0, 3.0)
    """
    waits = jnp.asarray(waits)
    known = ~jnp.isnan(waits).any(0)
    weights = jnp.where(known, weights, 0).astype(waits.dtype).ravel()
    waits = jnp.where(known, waits, jnp.inf).ravel()
    order, total = jnp.argsort(waits), weights.sum()
    place = jnp.searchsorted(weights[order].cumsum(), _TAIL * total)
    mean = jnp.where(weights > 0, weights * waits, 0).sum() / total
    return Seconds(mean, jnp.where(total > 0, waits[order[place]], jnp.nan))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bands:
    """Bootstrap intervals around the L points of a frontier; the last axis is (lower end, upper end)."""

    error: jax.Array  # (L, 2) error probability in service; for `select_frontier`, at the money of the point
    cost: jax.Array  # (L, 2) expected cost of a service that does not follow its bill, in money per query
    level: float = dataclasses.field(metadata={"static": True})  # coverage of each interval
    replicates: int = dataclasses.field(metadata={"static": True})  # number of draws of the log
    abstention: jax.Array | None = None  # (L, 2) share of queries without an answer; None: models do not abstain


def check_level(level: float) -> None:
    """Raise ValueError unless the coverage of an interval lies between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it is a probability between 0 and 1, such as 0.9")


def lam_range(cost: np.ndarray, size: int) -> np.ndarray:
    """Return λ on a geometric grid: (size,).

    At the least λ the costs (k,) hardly matter; at the greatest λ only the cheapest model is asked.
    """
    spent = np.sort(cost)
    gaps = np.diff(spent)[np.diff(spent) > 1e-9 * spent[-1]]
    unit = min([*gaps, *spent[spent > 0][:1]], default=1.0)
    return np.geomspace(1e-4 / max(spent.sum(), unit), 1.0 / unit, size)


def check_lam(lam: Any) -> np.ndarray:
    """Return the distinct λ in rising order. Raises ValueError for none, or a λ that is negative or not finite."""
    try:
        values = np.unique(np.atleast_1d(np.asarray(lam, float)))
    except (TypeError, ValueError):
        raise TypeError(f"lam must be a number or a list of numbers, not {describe_type(lam)}") from None
    if not values.size or not np.isfinite(values).all() or values[0] < 0:
        raise ValueError("lam must hold at least one finite number, none below 0")
    return values


def safe_log(values: Any) -> np.ndarray:
    """Return the logarithm of values of at least 0, such as λ or money; finite for 0."""
    return np.log(np.maximum(np.asarray(values, float), np.finfo(float).tiny))


def abstain_worth_at(abstain_price: float | None, dtype: Any) -> jax.Array | None:
    """Return the worth of an abstention, in right answers: 1 minus its price in errors, ().

    It is None if models do not abstain: for a price of 1 or more, a wrong answer costs no more than an abstention.
    """
    return None if abstain_price is None or abstain_price >= 1 else jnp.asarray(1 - abstain_price, dtype)


#: A point (cost, error).
_Point = tuple[float, float]


def area_under_curve(cost: ArrayLike, error: ArrayLike, low: float, high: float) -> float:
    """Compute the mean height of an error–cost curve between two costs.

    Straight lines join the points, after errors at equal costs are averaged; the exact integral is divided by
    high − low. Methods should be compared over the range of costs that their curves share.

    Args:
        cost: (L,) expected cost of each point, in any order.
        error: (L,) error probability of each point.
        low, high: ends of the range of costs, which the points must cover.

    Raises ValueError for a range that is empty or not covered, for unlike shapes and for NaN.

    >>> area_under_curve([1.0, 2.0, 4.0], [0.5, 0.25, 0.25], low=1.0, high=4.0)
    0.2916...
    """
    try:
        costs, errors = np.asarray(cost, float), np.asarray(error, float)
    except (TypeError, ValueError):
        raise TypeError("cost and error must be arrays of numbers") from None
    if costs.ndim != 1 or costs.shape != errors.shape or not costs.size:
        raise ValueError(f"cost and error have shapes {costs.shape} and {errors.shape}: give two of one length")
    if not (np.isfinite(costs).all() and np.isfinite(errors).all()):
        raise ValueError("cost and error must be finite numbers, but there is a NaN or an infinity among them")
    if not low < high:
        raise ValueError(f"low must be less than high, but low is {low} and high is {high}")
    costs, place, number = np.unique(costs, return_inverse=True, return_counts=True)
    if low < costs[0] or high > costs[-1]:
        covered = f"the curve covers the costs from {costs[0]:.6g} to {costs[-1]:.6g}"
        raise ValueError(f"{covered}, which does not include all of {low:.6g} to {high:.6g}")
    height = np.bincount(place, weights=errors) / number  # at equal costs, their mean
    ends = np.concatenate([[low], costs[(low < costs) & (costs < high)], [high]])
    heights = np.interp(ends, costs, height)
    return float((heights[1:] + heights[:-1]) / 2 @ np.diff(ends) / (high - low))


def pareto(cost: Array, error: Array) -> np.ndarray:
    """Return the indices of the points that are not dominated, by rising cost and falling error.

    The first of equal points is kept. Points with a figure that is not finite are ignored.

    >>> pareto(np.array([3.0, 1.0, 2.5, 9.0]), np.array([0.1, 0.5, 0.4, 0.3])).tolist()
    [1, 2, 0]
    """
    order = np.lexsort((error, cost))
    order = order[np.isfinite(cost + error)[order]]
    least = np.minimum.accumulate(np.append(np.inf, error[order]))[:-1]
    return order[error[order] < least]


def lower_hull(cost: Array, error: Array) -> np.ndarray:
    """Return the indices of the corners of the lower convex hull, by rising cost and falling error.

    Each corner is the best point at some λ (the monotone chain of Andrew 1979). Points with a figure that is not
    finite are ignored.

    >>> lower_hull(np.array([3.0, 1.0, 2.0, 9.0]), np.array([0.1, 0.5, 0.2, 0.3])).tolist()
    [1, 2, 0]
    """
    front = pareto(cost, error)
    points = list(zip(cost[front].tolist(), error[front].tolist(), strict=True))
    corners: list[int] = []
    for place, point in enumerate(points):
        while len(corners) > 1 and _is_on_or_above(points[corners[-1]], points[corners[-2]], point):
            corners.pop()
        corners.append(place)
    return front[corners]


def thin_hull(cost: Array, error: Array, most: int, tolerance: float = 0.0) -> np.ndarray:
    """Thin the corners of a hull, and return the indices of the corners that stay, both ends among them.

    A dropped corner lies below the line between its kept neighbours by at most a tolerance, which is doubled until few
    enough corners are left.

    Args:
        cost, error: (H,) figures of the corners, by rising cost.
        most: number of corners that may stay, 2 or more.
        tolerance: tolerance to start with, in errors.

    >>> cost, error = np.array([1.0, 2.0, 3.0, 9.0]), np.array([0.5, 0.3, 0.19, 0.1])
    >>> thin_hull(cost, error, 9).tolist(), thin_hull(cost, error, 3).tolist()
    ([0, 1, 2, 3], [0, 2, 3])
    """
    last, places = len(cost) - 1, [0]
    while places[-1] < last:
        start = places[-1]
        end = start + 1
        while end < last and _deepest(cost[start : end + 2], error[start : end + 2]) <= tolerance:
            end += 1
        places.append(end)
    if len(places) <= most:
        return np.array(places)
    return thin_hull(cost, error, most, max(2 * tolerance, 1e-6 * float(np.ptp(error))))


def position_weights(positions: np.ndarray, count: int) -> np.ndarray:
    """Return the shares of the queries that go by each of R rungs at positions (…) of a ladder: (…, R).

    >>> position_weights(np.array([0.0, 1.25]), 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.75, 0.25]]
    """
    return np.maximum(0.0, 1 - np.abs(positions[..., None] - np.arange(count)))


def shares_at_bill(bills: np.ndarray, money: np.ndarray) -> np.ndarray:
    """Return the shares of the queries that go by each of R rungs of a ladder that follows its bill: (…, M, R).

    Rungs are taken in the order of the ladder, by rising expected cost, although their bills on a log may not rise. For
    each amount of money, the service stands at the last position in this order whose bill is within the money, or else
    on the rung with the least bill. Only neighbouring rungs are mixed.

    Args:
        bills: (…, R) bill of each rung, in dollars per query, in the order of the ladder.
        money: (M,) dollars per query.

    >>> shares_at_bill(np.array([1.0, 4.0, 2.0]), np.array([0.5, 2.5, 9.0])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    >>> shares_at_bill(np.array([4.0, 3.0, 9.0]), np.array([6.0])).tolist()
    [[0.0, 0.5, 0.5]]
    """
    count = bills.shape[-1]
    bills, money = bills[..., None, :], money[:, None]
    within = bills <= money
    last = count - 1 - within[..., ::-1].argmax(-1, keepdims=True)
    rung = np.where(within.any(-1, keepdims=True), last, bills.argmin(-1, keepdims=True))
    low, high = (np.take_along_axis(bills, np.minimum(place, count - 1), -1) for place in (rung, rung + 1))
    is_between = (low <= money) & (money < high)
    share = np.where(is_between, (money - low) / np.where(is_between, high - low, 1.0), 0.0)
    return position_weights((rung + share)[..., 0], count)


def _deepest(cost: Array, error: Array) -> float:
    """Return the greatest distance of points below the line from the first to the last, in errors."""
    return float((np.interp(cost, cost[[0, -1]], error[[0, -1]]) - error).max())


def _is_on_or_above(middle: _Point, left: _Point, right: _Point) -> bool:
    """Return whether a point lies on or above the line between its neighbours."""
    (x, y), (x_left, y_left), (x_right, y_right) = middle, left, right
    return (x - x_left) * (y_right - y_left) <= (x_right - x_left) * (y - y_left)
