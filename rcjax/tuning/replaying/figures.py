"""Figures of error–cost curves and replays: areas, intervals for the true error, differences from a reference."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.normal_law import half_width
from rcjax._base.wording import percent
from rcjax._core.compilation import is_traced
from rcjax.logs.log import Log
from rcjax.model.goodness_of_fit.reliability import wilson_interval
from rcjax.model.label_outcomes import is_whole
from rcjax.policy.counted import ERRORS, JUDGED_SAME, Counted, counted_by
from rcjax.tuning.replaying.replay import Replay, replay


def area_under_curve(cost: ArrayLike, error: ArrayLike, low: float, high: float) -> Any:
    """Compute the mean height of an error–cost curve between two costs.

    The curve joins the points by straight lines, after errors at equal costs are averaged. Its exact integral is
    divided by high − low. Methods should be compared over the range of costs that their curves share.

    The result is a number; under `jit`, `vmap` and `grad` a JAX array, NaN if the points do not cover the range.

    Args:
        cost: (L,) expected cost of each point, in any order.
        error: (L,) error probability of each point.
        low, high: ends of the range of costs, which the points must cover.

    Raises ValueError for a range that is empty or not covered, for unlike shapes and for NaN.

    >>> area_under_curve([1.0, 2.0, 4.0], [0.5, 0.25, 0.25], low=1.0, high=4.0)
    0.2916...
    """
    traced = is_traced([cost, error])
    xp: Any = jnp if traced else np
    try:
        costs, errors = (xp.asarray(values, None if traced else float) for values in (cost, error))
    except (TypeError, ValueError):
        raise TypeError("cost and error must be arrays of numbers") from None
    if costs.ndim != 1 or costs.shape != errors.shape or not costs.size:
        raise ValueError(f"cost and error have shapes {costs.shape} and {errors.shape}: give two of one length")
    order = xp.argsort(costs)
    costs, errors = costs[order], errors[order]
    if not traced:
        if not (np.isfinite(costs).all() and np.isfinite(errors).all()):
            raise ValueError("cost and error must be finite numbers, but there is a NaN or an infinity among them")
        if not low < high:
            raise ValueError(f"low must be less than high, but low is {low} and high is {high}")
        if low < costs[0] or high > costs[-1]:
            covered = f"the curve covers the costs from {costs[0]:.6g} to {costs[-1]:.6g}"
            raise ValueError(f"{covered}, which does not include all of {low:.6g} to {high:.6g}")
    total = xp.concatenate([xp.zeros(1, errors.dtype), xp.cumsum(errors)])
    first, last = (xp.searchsorted(costs, costs, side=side) for side in ("left", "right"))
    height = (total[last] - total[first]) / (last - first)  # at equal costs, their mean
    start, width = costs[:-1], xp.diff(costs)
    ends = xp.clip(xp.stack([start, costs[1:]]), low, high)
    at_ends = height[:-1] + xp.diff(height) * xp.where(width > 0, ends - start, 0) / xp.where(width > 0, width, 1)
    area = (at_ends.mean(0) * (ends[1] - ends[0])).sum() / (high - low)
    return jnp.where((costs[0] <= low) & (low < high) & (high <= costs[-1]), area, jnp.nan) if traced else float(area)


def error_interval(replayed: Replay, log: Log, level: float = 0.9) -> np.ndarray:
    """Return Wilson's interval for the true error of a replay on a log: (…, 2).

    Its sample size is the number of queries replayed, if every answer is right or wrong by a label. With scores or
    missing labels, it is the number of right or wrong answers that would have the standard error of the replay.

    >>> import rcjax
    >>> log = rcjax.sample_log(200, seed=0)
    >>> policy = rcjax.solve_frontier(rcjax.fit(log)).policy(error_cost=0.001)
    >>> low, high = error_interval(rcjax.replay(policy, log), log)
    >>> bool(0 < low < high < 1)
    True
    """
    error = np.clip(np.asarray(replayed.error, float), 0.0, 1.0)
    whole = log.scores is None and is_whole(log)
    return wilson_interval(error, replayed.n if whole else _size(error, replayed, log, level), level)


def _size(error: np.ndarray, replayed: Replay, log: Log, level: float) -> np.ndarray:
    """Return the number of right or wrong answers that would have the standard error of a replay: (…).

    Few labels may show no error, and a variance of 0. So z²/2 right and z²/2 wrong answers are added to the labels, as
    in Wilson's interval, and the variance is raised accordingly.
    """
    n, variance = replayed.n, np.asarray(replayed.error_se, float) ** 2
    if is_whole(log):
        return np.divide(error * (1 - error), variance, out=np.full(error.shape, float(n)), where=variance > 0)
    labels, square = _labels(replayed, log), half_width(level) ** 2
    centre = (labels * error + square / 2) / (labels + square)
    more = np.maximum(centre * (1 - centre) - error * (1 - error), 0.0) / labels
    return np.minimum(centre * (1 - centre) / (variance + more), n)


def _labels(replayed: Replay, log: Log) -> np.ndarray:
    """Return the effective number of labels of a replay: (…).

    As many labels would be as informative if all answers had the same probability of a label: n / Σ sⱼ/πⱼ, for models
    whose answers are a share sⱼ of all, and are labelled with probability πⱼ.
    """
    columns = [log.models.index(name) for name in replayed.models]
    of_model = np.maximum(log.labelled[:, columns].sum(0), 1)
    answered = np.asarray(log.answered)[:, columns].sum(0)
    chance = np.minimum(of_model / np.maximum(answered, 1), 1.0)
    share = np.asarray(replayed.share, float)
    part = (share / chance).sum(-1) / np.maximum(share.sum(-1), 1e-9)
    return replayed.n / np.maximum(part, 1.0)


class BesideReference(NamedTuple):
    """Differences of a policy from a reference model, and its errors by labels: shares of the queries of a log."""

    reference: str
    """Name of the reference model."""
    differs: tuple[float, float]
    """Share of answers that differ from the reference's, and its standard error."""
    errs: tuple[float, float] | None
    """Share of wrong answers, and its standard error; None without labels."""
    errs_interval: tuple[float, float] | None = None
    """90 % interval for the true share of wrong answers; None without labels."""
    counted: Counted = ERRORS
    """Kind of error that the labels count."""

    def describe(self) -> str:
        """Describe the figures in words.

        >>> BesideReference("large", (0.03, 0.01), (0.112, 0.019)).describe()
        'differs from large in 3.0 ± 1.0 % of the queries, errs on 11.2 ± 1.9 %'
        """
        differs = f"differs from {self.reference} in {_percent(self.differs)} of the queries"
        if self.errs is None:
            unknown = f"how often it errs cannot be known without labels: {self.reference} may be wrong itself"
            return f"{differs}; {unknown}, and an answer that differs may be right (rcjax label draws some to label)"
        return f"{differs}, {self.counted.does(_percent(self.errs))}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: each share with its standard error, and the ends of the interval."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self._asdict().items()
            if name != "counted"
        }


def beside_reference(policy: Any, log: Log) -> BesideReference | None:
    """Compare a policy with the reference of a log; None for a log that was read without one.

    Raises `LogError` as `replay` does.
    """
    if log.reference is None:
        return None
    differences, errors = _differences(log), log.errors if log.reference.counts == "differences" else log
    replayed = replay(policy, differences)
    name = log.reference.model
    if errors is None:
        return BesideReference(name, (float(replayed.error), float(replayed.error_se)), None)
    by_labels = replay(policy, errors)
    figures = [(float(one.error), float(one.error_se)) for one in (replayed, by_labels)]
    low, high = error_interval(by_labels, errors).tolist()
    return BesideReference(name, figures[0], figures[1], (low, high), counted_by(None, errors.scores))


def _differences(log: Log) -> Log:
    """Replace the labels of a log by whether an answer is the same as the reference's."""
    if log.hand is None or JUDGED_SAME not in log.hand.judges:
        return log
    same = np.asarray(log.hand.judged)[..., log.hand.judges.index(JUDGED_SAME)]
    judged = np.isfinite(same)
    hand = None
    if not judged[np.asarray(log.answered)].all():
        hand = dataclasses.replace(log.hand, labelled=judged, judged=np.zeros((*judged.shape, 0)), judges=())
    return dataclasses.replace(log, correct=same == 1, hand=hand, scores=None)


def _percent(figure: tuple[float, float]) -> str:
    share, se = figure
    return percent(share) if math.isnan(se) else f"{100 * share:.1f} ± {100 * se:.1f} %"
