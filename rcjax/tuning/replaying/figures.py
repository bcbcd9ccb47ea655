"""Figures of error–cost curves and replays: areas, intervals for the true error, what a reference and labels tell."""

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
    """Mean height of an error–cost curve between two costs.

    The curve joins the points by straight lines, after errors at equal costs are averaged; its integral, which is
    exact, is divided by high − low. To compare methods, use the range of costs that their curves share.

    A number; under `jit`, `vmap` and `grad` an array of JAX's, which is NaN if the points do not cover the range.

    Args:
        cost: (L,) expected cost of each point, in any order.
        error: (L,) its probability of error.
        low, high: the range of costs, which the points must cover.

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
    """(…, 2) interval for the true error of what was replayed on a log: Wilson's, for so many queries as tell it.

    These are all that were replayed, where each of their answers is right or wrong by a label. With scores, or where
    some answers have no label, it is as many as, all right or wrong, would have the standard error of the replay.

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
    """(…) queries that, right or wrong, would have the standard error of a replay.

    Few labels may show no error at all, and a variance of none. So z²/2 right and z²/2 wrong answers count beside the
    labels, as in Wilson's interval itself, and what these add to the variance of the labels is added here.
    """
    n, variance = replayed.n, np.asarray(replayed.error_se, float) ** 2
    if is_whole(log):
        return np.divide(error * (1 - error), variance, out=np.full(error.shape, float(n)), where=variance > 0)
    labels, square = _labels(replayed, log), half_width(level) ** 2
    centre = (labels * error + square / 2) / (labels + square)
    more = np.maximum(centre * (1 - centre) - error * (1 - error), 0.0) / labels
    return np.minimum(centre * (1 - centre) / (variance + more), n)


def _labels(replayed: Replay, log: Log) -> np.ndarray:
    """(…) labels on the answers of what was replayed, as many as would tell as much if all answers had the same chance.

    That is 1 / Σ sⱼ/mⱼ, of models with mⱼ labels that give a share sⱼ of the answers.
    """
    columns = [log.models.index(name) for name in replayed.models]
    of_model = np.maximum(log.labelled[:, columns].sum(0), 1)
    answered = np.asarray(log.answered)[:, columns].sum(0)
    chance = np.minimum(of_model / np.maximum(answered, 1), 1.0)
    share = np.asarray(replayed.share, float)
    part = (share / chance).sum(-1) / np.maximum(share.sum(-1), 1e-9)
    return replayed.n / np.maximum(part, 1.0)


class BesideReference(NamedTuple):
    """Shares of the queries of a log, each with its standard error."""

    reference: str
    differs: tuple[float, float]
    """Answers of the policy that are not the reference's."""
    errs: tuple[float, float] | None
    """Wrong answers of the policy; None if no labels tell."""
    errs_interval: tuple[float, float] | None = None
    """90 % interval for the true share of wrong answers of the policy; None if no labels tell."""
    counted: Counted = ERRORS
    """What the labels tell."""

    def describe(self) -> str:
        """In words.

        >>> BesideReference("large", (0.03, 0.01), (0.112, 0.019)).describe()
        'differs from large in 3.0 ± 1.0 % of the queries, errs on 11.2 ± 1.9 %'
        """
        differs = f"differs from {self.reference} in {_percent(self.differs)} of the queries"
        if self.errs is None:
            unknown = f"how often it errs cannot be known without labels: {self.reference} may be wrong itself"
            return f"{differs}; {unknown}, and an answer that differs may be right (rcjax label draws some to label)"
        return f"{differs}, {self.counted.does(_percent(self.errs))}"

    def to_json(self) -> dict[str, Any]:
        """As JSON values: each share with its standard error, and the ends of the interval."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self._asdict().items()
            if name != "counted"
        }


def beside_reference(policy: Any, log: Log) -> BesideReference | None:
    """What a policy does on a log that was read with a reference; None for one that was not.

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
    """The log with what is the same in place of labels."""
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
