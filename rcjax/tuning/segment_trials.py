"""Whether segments earn policies of their own: policies by their labels and everyone's, against one policy for all.

A segment has few labels, and everyone's are of other queries. So single models and pairs are judged by both together: a
segment's own labels have some of the weight, those of all other segments the rest (shrinkage towards the whole, as of
Stein 1956). Which weight is best, and whether any is better than one policy for all, cross-validation says.
"""

import itertools
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from rcjax._core.size_classes import fill_up, size_class
from rcjax._core.threads import side_by_side
from rcjax.logs.log import Log
from rcjax.logs.query_segments import UNTOLD
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.label_outcomes import corrected_log, expected_log
from rcjax.solving.lambda_grid import lam_range
from rcjax.tuning.choices import Targets
from rcjax.tuning.comparison import LONGER, Bar, Gain
from rcjax.tuning.contest import Contest, Entry, Losses, contest, tune_entry
from rcjax.tuning.cross_validation import PRICES
from rcjax.tuning.resampling import deal_folds

__all__ = ["FEWEST", "WEIGHTS", "SegmentTrial", "Trials", "pooled_rows", "segment_names", "try_segments"]


#: Weights of the labels of others that are tried; with all the weight it is one policy for all.
WEIGHTS = (0.0, 1 / 3, 2 / 3)


#: Complete queries of a segment, below which it has no policy of its own.
FEWEST = 30


_REPEATS = {0.0: 1, 1 / 3: 8, 2 / 3: 4}  # of a segment's own queries, so that as many others weigh what they should


_MOST_ROWS = 20_000


_FOLDS = 5


_LUCK = 0.15  # probability, about, that any segment has a policy of its own where none differs


_LEAST_GAIN = 0.002  # of error + λ·cost, for a segment to have a policy of its own


_COMMON = "common"  # the arm of one policy for all


_WEIGHED = tuple(map(str, WEIGHTS))  # those of a policy of its own


class SegmentTrial(NamedTuple):
    """What a segment gains by a policy of its own; G prices λ, numpy's arrays."""

    weight: float | None = None
    """Of the labels of others, at which its own policy does best; None where it has too few queries to try."""
    gain: Gain = Gain(0.0, 0.0)
    """On one policy for all, as a share of the loss of that, averaged over the prices, on queries left out."""
    loss: np.ndarray = np.zeros(0)
    """(G,) error + λ·cost of one policy for all."""
    error: np.ndarray = np.zeros(0)
    """(G,) the error of its own policy on queries left out."""
    earned: bool = False
    """Whether it gains enough over all prices together for a policy of its own."""


class Trials(NamedTuple):
    """What cross-validation says of all segments, by name."""

    lam: np.ndarray  # (G,) increasing
    segments: dict[str, SegmentTrial]

    @property
    def earned(self) -> tuple[str, ...]:
        """The segments that have earned a policy of their own."""
        return tuple(name for name, trial in self.segments.items() if trial.earned)


def segment_names(log: Log) -> tuple[str, ...]:
    """The segments of a log, by first appearance."""
    return tuple(dict.fromkeys(name for name in log.segment or () if name != UNTOLD))


def pooled_rows(members: np.ndarray, others: np.ndarray, weight: float) -> np.ndarray:
    """Positions of queries, a segment's own ones several times, such that the others have a share of all the weight.

    Args:
        members: (m,) positions of the segment's queries.
        others: (N,) of all others, of which at most some are taken, at random.
        weight: the share, of `WEIGHTS`.

    >>> rows = pooled_rows(np.arange(10), np.arange(10, 200), 1 / 3)
    >>> int((rows < 10).sum()), int((rows >= 10).sum())
    (80, 40)
    """
    if not weight or not len(others):
        return members
    ratio = weight / (1 - weight)
    repeats = min(_REPEATS[weight], max(1, int(_MOST_ROWS / (len(members) * (1 + ratio)))))
    repeats = max(1, min(repeats, round(len(others) / (ratio * len(members)))))
    size = min(len(others), round(repeats * ratio * len(members)))
    drawn = np.random.default_rng(0).permutation(others)[:size]
    return np.concatenate([np.tile(members, repeats), np.sort(drawn)])


def try_segments(log: Log, model: CascadeModel, head_start: float = 0.0) -> Trials:
    """Cross-validate policies of segments against one policy for all, on a grid of λ.

    Each fifth of the queries in turn is left out of calibration and choice, by the segment's labels and everyone's at
    each weight, and by everyone's alike, and then answered. All are single models and pairs, judged by the labels.

    Args:
        log: the log, of the models of `model`, with segments.
        model: the model fitted to it.
        head_start: what one policy for all gains by more than pairs, as a share of its loss: an own policy must make up
            for it.
    """
    lam = lam_range(np.asarray(log.cost, float), PRICES)
    segment, complete = np.array(log.segment, object), log.complete
    members = {name: np.flatnonzero((segment == name) & complete) for name in segment_names(log)}
    tried = {name: rows for name, rows in members.items() if len(rows) >= FEWEST and len(members) > 1}
    trials = {name: SegmentTrial() for name in members}
    if not tried:
        return Trials(lam, trials)
    fold = deal_folds(complete, _FOLDS, seed=0)
    training = [np.flatnonzero(fold != number) for number in range(_FOLDS)]
    pools = {name: [_pools(rows, segment[rows] == name) for rows in training] for name in tried}
    size = size_class(max(map(len, itertools.chain(training, *itertools.chain(*pools.values())))))
    tune = partial(_tune, expected_log(log), model, lam, size)
    common = side_by_side(lambda rows: tune(rows, log.cost), training, n=log.n_queries)

    def enter(name: str, cost: Any, number: int) -> list[Entry]:
        return [common[number], *(tune(rows, cost) for rows in pools[name][number])]

    corrected, bar = corrected_log(log), Bar(_LEAST_GAIN, NormalDist().inv_cdf(1 - _LUCK / len(tried)))
    for name, rows in tried.items():
        part = corrected.take(rows)
        of = Contest((_COMMON, *_WEIGHED), Targets(lam), partial(enter, name, part.cost), part.cost)
        trials[name] = _trial(contest(part, of, fold[rows]), bar, head_start)
    return Trials(lam, trials)


def _pools(rows: np.ndarray, inside: np.ndarray) -> list[np.ndarray]:
    """What a segment is tuned on at each weight: positions of queries, which are in it where `inside`."""
    return [pooled_rows(rows[inside], rows[~inside], weight) for weight in WEIGHTS]


def _tune(log: Log, model: CascadeModel, lam: np.ndarray, size: int, rows: np.ndarray, cost: Any) -> Entry:
    """The best single models and pairs at each price by the labels of some rows, filled up to one size."""
    columns = (np.asarray(column)[rows] for column in (log.logprob, log.correct, log.answered))
    logprob, correct, answered = fill_up(*columns, size=size)
    how = model.calibrators.transform, model.calibrators.values
    return tune_entry((logprob, correct, answered, None), cost, lam, *how)


def _trial(losses: Losses, bar: Bar, head_start: float) -> SegmentTrial:
    """What the losses of a segment's queries say."""
    gains = losses.gains(_WEIGHED, _COMMON).overall
    best = int(gains.mean.argmax())
    # By the one-standard-error rule, as much weight of others as is not shown to be worse.
    behind = losses.gains(_WEIGHED, _WEIGHED[best], base=_COMMON).overall
    best = int(np.flatnonzero(~LONGER.earned(Gain(-behind.mean, behind.se)))[-1])
    gain = gains.at(best)
    (error, other), (_, cost) = losses.means([_WEIGHED[best], _COMMON])
    return SegmentTrial(
        weight=WEIGHTS[best],
        gain=gain,
        loss=other + losses.targets.lam * cost,
        error=error,
        earned=bool(bar.earned(Gain(gain.mean - head_start, gain.se))),
    )
