"""How many labels are enough: the area under the error–cost curve against the number of queries it was tuned on.

A log is dealt into five folds, again and again. One fold is kept to be answered; of the other queries, nested subsets
of several sizes are tuned on, as single models and pairs are by default (`label_candidates`). What the policies do on
the queries kept aside, averaged over the deals, is the learning curve, and an inverse power law

    area(m) = a + b·m^(−c)        a ≥ 0, b ≥ 0, ½ ≤ c ≤ 1

carries it on beyond the log (Figueroa, Zeng-Treitler, Kandula & Ngo 2012, "Predicting sample size required for
classification performance", BMC Medical Informatics and Decision Making 12:8; Viering & Loog 2022, "The shape of
learning curves: a review", IEEE TPAMI 45(6)). The range of c is what theory knows: parameters fitted by likelihood
cost 1/m, thresholds that are best by counting m^(−2/3) (Kim & Pollard 1990, "Cube root asymptotics"), and the best of
finitely many policies m^(−1/2) at worst. One log hardly tells c: it is ¾ unless the points say otherwise, which fits
real and sampled logs (`benchmarks/learning.py`). Very small subsets learn faster than that, and have no say.

A label is a query that every model has answered, with all answers judged. Longer chains than pairs have a curve of
their own, which is not drawn here; they are used only where they do better (`select`). So are policies that go by
whether answers agree: where the largest subsets show that they gain, the curve is of the best of these and of pairs.
"""

import dataclasses
from typing import Any

import numpy as np

from rcjax._core.json_values import plain
from rcjax._core.threads import side_by_side
from rcjax.frontier.bands import check_level
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.label_outcomes import labelled_by_hand
from rcjax.replaying.curves import area_under_curve
from rcjax.solving.lambda_grid import lam_range
from rcjax.tuning.agreement_candidates import comparable_models
from rcjax.tuning.comparison import COMPARING_ALONE, Gain
from rcjax.tuning.contest import tune_entry

__all__ = ["LearningCurve", "area_of_points", "fit_power_law", "learning_curve", "tune_and_answer"]


PRICES = 24


FOLDS = 5


LEAST_QUERIES = 40


#: How far the power law is carried, in labels of the log: beyond, it would be the formula that speaks, not the log.
FURTHEST = 3.0


#: The exponent expected of a log, and how far from it one would not be surprised to find it.
EXPONENT, EXPONENT_SPREAD = 0.75, 0.1


_SIZES, _FEWEST, _FEWEST_ERRORS = 7, 20, 4


_REPLICATES = 400


_EXPONENTS = np.linspace(0.5, 1.0, 101)


@dataclasses.dataclass(frozen=True)
class LearningCurve:
    """The area under the error–cost curve by number of labels, and the power law through it; M sizes, R replicates.

    Areas are mean errors over the costs of `cost_range`, on queries that were not tuned on. They stand for policies
    tuned on m queries of this kind, averaged over which m queries those are: one log may be luckier than that.
    """

    queries: np.ndarray  # (M,) how many were tuned on, increasing
    area: np.ndarray  # (M,) mean over the deals
    area_se: np.ndarray  # (M,) its standard error as a figure of other logs of this kind; see `learning_curve`
    loss: np.ndarray  # (M,) error + λ·cost over that of the model that is best for λ, averaged over the prices
    labels: int  # n, the number of complete queries in the log
    asymptote: float  # a, the area with labels without end
    coefficient: float  # b
    exponent: float  # c
    replicates: np.ndarray  # (R, 3) the a, b, c of curves that this log might have shown
    cost_range: tuple[float, float]  # money per query: mean costs of the cheapest and of the dearest model
    agreement: bool = False  # whether policies that go by whether answers agree are among those tuned

    def predict(self, queries: Any) -> Any:
        """The area by the power law when so many queries are tuned on: a float, or an array as `queries` is.

        Raises ValueError for less than one query, or more than three times the labels of the log.
        """
        area = _power_law(np.array([self.asymptote, self.coefficient, self.exponent]), self._checked(queries))
        return float(area) if np.ndim(queries) == 0 else area

    def relative_area(self, queries: Any, level: float = 0.9) -> tuple[Any, Any, Any]:
        """(expected, low, high) area with so many queries, in per cent of the area with the labels of the log.

        `level` is the probability of the interval. Raises ValueError as `predict` does, and for a level outside (0, 1).
        """
        check_level(level)
        sizes = self._checked(queries)[..., None]
        shares = _in_per_cent(_power_law(self.replicates, sizes), _power_law(self.replicates, np.array(self.labels)))
        low, high = np.quantile(shares, [(1 - level) / 2, (1 + level) / 2], axis=-1)
        expected = _in_per_cent(self.predict(queries), self.predict(self.labels))
        interval = (expected, low, high)
        return tuple(float(figure) for figure in interval) if np.ndim(queries) == 0 else interval  # type: ignore[return-value]

    def gain(self, more: int, level: float = 0.9) -> tuple[float, float, float]:
        """(expected, low, high): by how many per cent of itself `more` labels would lower the area.

        Raises ValueError as `relative_area` does, and for less than no labels.
        """
        if more < 0:
            raise ValueError(f"more is {more}; give the number of labels to add, 0 or more")
        expected, low, high = self.relative_area(self.labels + more, level)
        return 100 - expected, 100 - high, 100 - low

    def advice(self, more: int = 200) -> str:
        """What `more` labels would bring, in a sentence; with the 90 % interval. Raises ValueError as `gain` does."""
        expected, low, high = self.gain(more)
        who = "another label" if more == 1 else f"another {more} labels"
        start = f"{who} would lower the area under the error–cost curve by"
        if expected < 0.1:
            return f"{start} less than 0.1 % (at most {max(high, 0.1):.1f} %): more labels are not what this log lacks"
        return f"{start} about {expected:.1f} % ({low:.1f} to {high:.1f} %)"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; in place of the replicates, the gain (in per cent) of half and of all as much."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del fields["replicates"]
        names = ("more", "gain", "low", "high")
        steps = (max(1, self.labels // 2), self.labels)
        gains = [dict(zip(names, (more, *self.gain(more)), strict=True)) for more in steps]
        return plain(fields | {"gains": gains})

    def _checked(self, queries: Any) -> np.ndarray:
        sizes = np.asarray(queries, float)
        if not (sizes >= 1).all():
            raise ValueError(f"cannot tell the area for {sizes.min():g} queries: give 1 or more")
        if sizes.max() > FURTHEST * self.labels:
            most = int(FURTHEST * self.labels)
            what = f"{self.labels} labels tell little about {sizes.max():.0f}"
            raise ValueError(f"{what}: ask about {most} queries in all at most, or come back with a larger log")
        return sizes


def learning_curve(log: Log, *, repeats: int = 10, seed: int = 0) -> LearningCurve:
    """The learning curve of single models and pairs tuned on the labels of a log, for 7 sizes up to 4/5 of the log.

    Where the log tells answers, policies that compare them are tuned too, if on the largest subsets their area is lower
    by more than its standard error, and by 0.4 % (`LearningCurve.agreement`).

    The queries that every model answered are dealt into five folds `repeats` times. Each fold is answered by policies
    for 24 prices, tuned on nested subsets of the others, from n/16 of them (20 at least, and where the best model errs
    less often than four times in that, up to n/5) to all, on a geometric grid. Sizes thus share their held-out
    queries, every query is held out equally often, and differences between sizes are less noisy than areas. Each
    answer is charged its model's mean cost over the log, which is taken as known.

    Deals of one log overlap, and so they vary less than other logs would. Standard errors and intervals therefore
    count a variance of 1/J + 1/4 of that between the J deals, where 1/4 is the ratio of queries held out to others
    (Nadeau & Bengio 2003, "Inference for the generalization error", Machine Learning 52). Replicates are the mean
    moved by random normal multiples of the deals' deviations, so much larger, and fitted again, with the expected
    exponent drawn anew (normal, 0.75 ± 0.1). Intervals are rather too wide than too narrow: those of 90 % held the
    true mean gain for nearly all logs of `benchmarks/learning.py`, and reach nearly down to no gain for most.

    Raises LogError for fewer than 40 complete queries, or where all models cost the same, as one model alone does;
    ValueError for fewer than 2 repeats.

    >>> import rcjax
    >>> curve = rcjax.learning_curve(rcjax.sample_log(100, seed=0).select(["llama3.2-1b", "llama3.1-70b"]), repeats=2)
    >>> curve.queries.tolist()
    [20, 25, 32, 40, 50, 63, 80]
    >>> curve.predict(200) <= curve.predict(100), curve.gain(100)[0] >= 0
    (True, True)
    """
    if repeats < 2:
        raise ValueError(f"repeats is {repeats}; take at least 2, or 10 for figures that are stable")
    log, cost = _usable(log)
    n, low, high = log.n_queries, cost.min(), cost.max()
    tests, others = _deals(n, repeats, seed)
    wrong = 1 - np.asarray(log.correct, float).mean(0)
    sizes = _sizes(n, others.shape[1], wrong.min())
    lam = lam_range(cost, PRICES)
    # Behind the others, where no size reaches, the rest of the log: all that is done to it then has one shape.
    whole = np.concatenate([others, tests], axis=1)
    overlap = np.sqrt(1 / len(tests) + tests.shape[1] / others.shape[1])

    def tuned_on(sizes: np.ndarray, compare: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(error, cost, area) of each deal and size."""
        error, charge = tune_and_answer(log, lam, tests, whole, sizes, compare)
        return error, charge, area_of_points(charge, error, low, high)

    error, charge, areas = tuned_on(sizes, False)
    compares = log.answer is not None and comparable_models(len(log.models), None)
    if compares:
        gain = (areas[:, -1] - tuned_on(sizes[-1:], True)[2][:, 0]) / max(areas[:, -1].mean(), 1e-300)
        compares = bool(COMPARING_ALONE.earned(Gain(gain.mean(), overlap * gain.std(ddof=1))))
    if compares:
        error, charge, areas = tuned_on(sizes, True)
    single = (wrong + lam[:, None] * cost).min(1)
    tuned = (error + lam * charge).mean(0)
    law, replicates = _fitted(sizes, areas, overlap, seed)
    return LearningCurve(
        queries=sizes,
        area=areas.mean(0),
        area_se=overlap * areas.std(0, ddof=1),
        loss=np.divide(tuned, single, out=np.ones_like(tuned), where=single > 0).mean(1),
        labels=n,
        asymptote=float(law[0]),
        coefficient=float(law[1]),
        exponent=float(law[2]),
        replicates=replicates,
        cost_range=(float(low), float(high)),
        agreement=compares,
    )


def _usable(log: Log) -> tuple[Log, np.ndarray]:
    """The complete queries of a log and the mean costs (k,) on them; LogError where there is no curve to draw."""
    log = labelled_by_hand(log)
    complete = int(log.complete.sum())
    if complete < LEAST_QUERIES:
        what = f"{log.source}: {complete} of {log.n_queries} queries were answered by every model"
        raise LogError(f"{what}: a learning curve needs at least {LEAST_QUERIES}")
    log = log.take(log.complete)
    cost = np.asarray(log.cost, float)
    if not cost.min() < cost.max():
        what = f"{log.source}: all models cost the same ({cost[0]:g} per query)"
        raise LogError(f"{what}: there is no error–cost curve to learn")
    return log, cost


def _sizes(n: int, most: int, error: float) -> np.ndarray:
    """(M,) sizes up to `most` for a log of n queries on which the best model errs with this frequency."""
    telling = _FEWEST_ERRORS / max(error, 1 / n)
    return np.geomspace(max(_FEWEST, min(max(n / 16, telling), most / 4)), most, _SIZES).round().astype(int)


def _deals(n: int, repeats: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(queries held out (J, T), the others in random order (J, n − T)) of J = 5·repeats deals."""
    rng = np.random.default_rng(seed)
    size = n // FOLDS
    tests, others = [], []
    for _ in range(repeats):
        order = rng.permutation(n)
        for start in range(0, FOLDS * size, size):
            tests.append(order[start : start + size])
            # Shuffled again: the small subsets of one repeat must not be the same queries for all of its folds.
            others.append(rng.permutation(np.delete(order, np.s_[start : start + size])))
    return np.array(tests), np.array(others)


def tune_and_answer(
    log: Log, lam: np.ndarray, tests: np.ndarray, others: np.ndarray, sizes: np.ndarray, compare: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(error, cost), each (J, M, L): what pairs tuned on the first m of some queries do on others, for each λ.

    Args:
        log: without gaps; answers are charged its mean costs.
        lam: (L,) in errors per unit of money.
        tests: (J, T) the queries to answer, by position, of each of J deals.
        others: (J, P) those to tune on.
        sizes: (M,) how many of these, at most P.
        compare: whether policies that compare answers are tuned too.
    """
    logprob, correct = np.asarray(log.logprob), np.asarray(log.correct)

    def tuned(deal: tuple[np.ndarray, np.ndarray]) -> list[list[np.ndarray]]:
        part, other = log.take(deal[0]), deal[1]
        answer = np.asarray(log.answer)[other] if compare else None
        figures = []
        for size in sizes:
            present = np.broadcast_to((np.arange(len(other)) < size)[:, None], (len(other), len(log.models)))
            entry = tune_entry((logprob[other], correct[other], present, answer), log.cost, lam, log.task)
            outcomes = entry.answer(part, part.correct, log.cost)
            figures.append([np.asarray(figure, float).mean(-1) for figure in (outcomes.wrong, outcomes.cost)])
        return figures

    deals = side_by_side(tuned, list(zip(tests, others, strict=True)), n=others.shape[1])
    error, charge = np.moveaxis(np.array(deals), 2, 0)
    return error, charge


def area_of_points(cost: Any, error: Any, low: float, high: float) -> np.ndarray:
    """(…) `area_under_curve` of policies that need not reach either end of the range of costs.

    More money than the dearest policy takes leaves its error as it is; so does less, down to `low`, for the cheapest.

    Args:
        cost, error: (…, L) of the policies.
        low, high: the range of costs.

    >>> area_of_points([1.0, 2.0], [0.4, 0.2], 1.0, 4.0).round(4).tolist()
    0.2333
    """
    costs, errors = np.asarray(cost, float), np.asarray(error, float)
    order = np.lexsort((errors, costs), axis=-1)
    costs, errors = (np.take_along_axis(values, order, -1) for values in (costs, errors))
    left, right = np.minimum(costs[..., :1], low), np.maximum(costs[..., -1:], high)
    costs = np.concatenate([left, costs, right], -1)
    errors = np.concatenate([errors[..., :1], errors, errors[..., -1:]], -1)
    areas = [area_under_curve(costs[index], errors[index], low, high) for index in np.ndindex(costs.shape[:-1])]
    return np.array(areas).reshape(costs.shape[:-1])


def _fitted(sizes: np.ndarray, areas: np.ndarray, overlap: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """((3,), (R, 3)): the power law through the mean of the areas (J, M), and those of its replicates."""
    mean, deviation = areas.mean(0), areas - areas.mean(0)
    deals = len(areas)
    # How hard the queries of a deal are moves all sizes alike, and with them only the asymptote.
    beside = deviation - deviation.mean(1, keepdims=True)
    variance = overlap**2 * (beside**2).sum(0) / (deals - 1)
    rng = np.random.default_rng([seed, 1])
    moved = overlap * rng.standard_normal((_REPLICATES, deals)) @ deviation / np.sqrt(deals - 1)
    expected = rng.normal(EXPONENT, EXPONENT_SPREAD, _REPLICATES)
    law = fit_power_law(sizes, mean, variance, EXPONENT)
    return law, fit_power_law(sizes, np.maximum(mean + moved, 0.0), variance, expected)


def fit_power_law(queries: Any, area: Any, variance: Any = None, expected: Any = None) -> np.ndarray:
    """(…, 3) the a ≥ 0, b ≥ 0 and c in [½, 1] of area = a + b·queries^(−c), by weighted least squares.

    For each c of a grid in steps of 0.005, a and b have a closed form.

    Args:
        queries: (M,) sizes of the training sets.
        area: (…, M) under the curve.
        variance: (M,) of the areas, which weights them; equal by default.
        expected: (…) an exponent from which c stays near where points are noisy: the squared distance, in units of 0.1,
            is added to the sum.

    >>> sizes = np.array([20, 40, 80, 160, 320])
    >>> fit_power_law(sizes, 0.2 + 0.5 * sizes**-0.7).round(6).tolist()
    [0.2, 0.5, 0.7]
    """
    sizes, areas = np.asarray(queries, float), np.asarray(area, float)[..., None, :]
    variances = np.ones(len(sizes)) if variance is None else np.asarray(variance, float)
    weight = 1 / np.maximum(variances, max(1e-9 * variances.max(), np.finfo(float).tiny ** 0.5))
    share = weight / weight.sum()
    x = sizes ** -_EXPONENTS[:, None]
    x_mean, mean = x @ share, areas @ share
    slope = ((areas - mean[..., None]) * (x - x_mean[:, None])) @ share / ((x - x_mean[:, None]) ** 2 @ share)
    b = np.maximum(slope, 0.0)
    a = mean - b * x_mean
    b = np.where(a < 0, (areas * x) @ share / (x**2 @ share), b)
    a = np.maximum(a, 0.0)
    misfit = (areas - a[..., None] - b[..., None] * x) ** 2 @ weight
    if expected is not None:
        misfit = misfit + ((_EXPONENTS - np.asarray(expected)[..., None]) / EXPONENT_SPREAD) ** 2
    best = misfit.argmin(-1)[..., None]
    chosen = (np.take_along_axis(values, best, -1)[..., 0] for values in (a, b))
    return np.stack([*chosen, _EXPONENTS[best[..., 0]]], axis=-1)


def _power_law(law: np.ndarray, queries: np.ndarray) -> np.ndarray:
    return law[..., 0] + law[..., 1] * queries ** -law[..., 2]


def _in_per_cent(area: Any, now: Any) -> Any:
    """100 where there is no area to lower."""
    return 100 * np.divide(area, now, out=np.ones(np.broadcast(area, now).shape), where=np.asarray(now) > 0)
