"""Whether segments earn policies of their own: policies by their labels and everyone's, against one policy for all.

A segment has few labels, and everyone's are of other queries. So single models and pairs are judged by both together: a
segment's own labels have some of the weight, those of all other segments the rest (shrinkage towards the whole, as of
Stein 1956). Which weight is best, and whether any is better than one policy for all, cross-validation says.
"""

import dataclasses
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import numpy as np

from rcjax._core.size_classes import fill_up, size_class
from rcjax.frontier.policies import Policies
from rcjax.logs.log import Log
from rcjax.logs.segments import UNTOLD
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting_steps import calibrate_log
from rcjax.model.label_outcomes import corrected_log, expected_log
from rcjax.replaying.walk import outcomes_on_log
from rcjax.solving.lambda_grid import lam_range
from rcjax.tuning.choices import tune_by_labels
from rcjax.tuning.comparison import Bar
from rcjax.tuning.contest import gains_of
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


@dataclasses.dataclass(frozen=True)
class SegmentTrial:
    """What a segment gains by a policy of its own; G prices λ, numpy's arrays."""

    name: str
    n: int
    """Its complete queries."""
    weight: float | None
    """Of the labels of others, at which its own policy does best; None where it has too few queries to try."""
    gain: np.ndarray
    """(G,) by how much error + λ·cost is below that of one policy for all, on queries left out."""
    gain_se: np.ndarray
    """(G,) its standard error, over queries."""
    loss: np.ndarray
    """(G,) error + λ·cost of one policy for all."""
    error: np.ndarray
    """(G,) the error of its own policy on queries left out."""
    overall: float
    """The gain as a share of the loss, averaged over the prices."""
    overall_se: float
    needed: float
    """Standard errors that it must gain: the more segments are tried, the more, as one or another is lucky."""
    head_start: float = 0.0
    """What one policy for all gains by more than pairs, as such a share: an own policy must make up for it."""

    @property
    def earned(self) -> bool:
        """Whether it gains enough over all prices together for a policy of its own: so many errors, and 0.2 %."""
        figures = self.overall - self.head_start, self.overall_se
        return self.weight is not None and bool(Bar(_LEAST_GAIN, self.needed).earned(*figures, *figures))


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


def pooled_rows(own: np.ndarray, others: np.ndarray, weight: float, seed: int) -> np.ndarray:
    """Positions of queries, a segment's own ones several times, such that the others have a share of all the weight.

    Args:
        own: (m,) positions of the segment's queries.
        others: (N,) of all others, of which at most some are taken, at random.
        weight: the share, of `WEIGHTS`.
        seed: of the draw.

    >>> rows = pooled_rows(np.arange(10), np.arange(10, 200), 1 / 3, seed=0)
    >>> int((rows < 10).sum()), int((rows >= 10).sum())
    (80, 40)
    """
    if not weight or not len(others):
        return own
    ratio = weight / (1 - weight)
    repeats = min(_REPEATS[weight], max(1, int(_MOST_ROWS / (len(own) * (1 + ratio)))))
    repeats = max(1, min(repeats, round(len(others) / (ratio * len(own)))))
    size = min(len(others), round(repeats * ratio * len(own)))
    drawn = np.random.default_rng(seed).permutation(others)[:size]
    return np.concatenate([np.tile(own, repeats), np.sort(drawn)])


class _Bench(NamedTuple):
    """What policies are tuned and tried on."""

    model: CascadeModel
    log: Log  # as policies are chosen by it
    right: np.ndarray  # (n, k) as figures are told by it
    lam: np.ndarray
    size: int  # to which rows are filled up, so that programmes are shared
    held: int  # the same of rows left out

    def tune(self, rows: np.ndarray, cost: Any) -> tuple[Any, Policies]:
        """(calibrators, the best single models and pairs at each price) by the labels of some rows."""
        log, calibrators = self.log, self.model.calibrators
        columns = (np.asarray(column)[rows] for column in (log.logprob, log.correct, log.answered))
        logprob, correct, answered = fill_up(*columns, size=self.size)
        how = {"transform": calibrators.transform, "values": calibrators.values}
        fitted, _ = calibrate_log(logprob, correct, answered, **how)
        labels = logprob, correct, answered, None
        return fitted, tune_by_labels(fitted, labels, cost, self.lam)

    def loss(self, tuned: tuple[Any, Policies], rows: np.ndarray, cost: Any) -> tuple[np.ndarray, np.ndarray]:
        """(error + λ·cost, error), (G, m) each, of m queries."""
        log = self.log
        columns = np.asarray(log.logprob)[rows], self.right[rows], np.asarray(log.answered)[rows]
        logprob, right, answered = fill_up(*columns, size=self.held)
        fates = outcomes_on_log(tuned[0], logprob, right, answered, cost, tuned[1])
        wrong, money = (np.asarray(fate, float)[:, : len(rows)] for fate in (fates.wrong, fates.cost))
        return wrong + self.lam[:, None] * money, wrong


def try_segments(log: Log, model: CascadeModel, head_start: float = 0.0, seed: int = 0) -> Trials:
    """Cross-validate policies of segments against one policy for all, on a grid of λ.

    Each fifth of the queries in turn is left out of calibration and choice, by the segment's labels and everyone's at
    each weight, and by everyone's alike, and then answered. All are single models and pairs, judged by the labels.

    Args:
        log: the log, of the models of `model`, with segments.
        model: the model fitted to it.
        head_start: what one policy for all gains by more than pairs, as a share of its loss.
        seed: of the folds.
    """
    assert log.segment is not None
    lam = lam_range(np.asarray(log.cost, float), PRICES)
    segment, complete = np.array(log.segment, object), log.complete
    fold = deal_folds(complete, _FOLDS, seed)
    members = {name: np.flatnonzero((segment == name) & complete) for name in segment_names(log)}
    tried = {name: rows for name, rows in members.items() if len(rows) >= FEWEST and len(members) > 1}
    bench = _bench(log, model, lam, {name: np.flatnonzero(segment == name) for name in tried}, fold)
    costs = {name: log.take(rows).cost for name, rows in tried.items()}
    size = len(WEIGHTS) + 1
    losses = {name: np.zeros((size, len(lam), len(rows))) for name, rows in tried.items()}
    errors = {name: np.zeros((size, len(lam), len(rows))) for name, rows in tried.items()}
    for out in range(_FOLDS) if tried else ():
        train = np.flatnonzero(fold != out)
        common = bench.tune(train, log.cost)
        for name, rows in tried.items():
            left, inside = rows[fold[rows] == out], segment[train] == name
            tuned = [
                bench.tune(pooled_rows(train[inside], train[~inside], weight, seed), costs[name]) for weight in WEIGHTS
            ]
            for place, one in enumerate([*tuned, common]):
                figures = bench.loss(one, left, costs[name])
                losses[name][place][:, fold[rows] == out], errors[name][place][:, fold[rows] == out] = figures
    blank = np.zeros(len(lam))
    untried = {
        name: SegmentTrial(name, len(rows), None, blank, blank, blank, blank, 0.0, 0.0, 0.0)
        for name, rows in members.items()
    }
    needed = NormalDist().inv_cdf(1 - _LUCK / max(1, len(tried)))
    told = {name: _trial(name, losses[name], errors[name], needed, head_start) for name in tried}
    return Trials(lam, untried | told)


def _bench(log: Log, model: CascadeModel, lam: np.ndarray, own: dict[str, np.ndarray], fold: np.ndarray) -> _Bench:
    everyone = np.arange(log.n_queries)
    pools = [
        len(pooled_rows(rows, np.setdiff1d(everyone, rows), weight, 0)) for rows in own.values() for weight in WEIGHTS
    ]
    held = [np.bincount(fold[rows], minlength=_FOLDS).max() for rows in own.values()]
    right = np.asarray(corrected_log(log).correct)
    size, most = size_class(max([log.n_queries, *pools])), size_class(max([1, *map(int, held)]))
    return _Bench(model, expected_log(log), right, lam, size, most)


def _trial(name: str, losses: np.ndarray, errors: np.ndarray, needed: float, head_start: float) -> SegmentTrial:
    """What the losses (W + 1, G, n) of a segment's queries say, the last of them of one policy for all."""
    n, common = losses.shape[-1], losses[-1]
    gain, gain_se, overall, overall_se = gains_of((common - losses[:-1])[None], common[None])
    best = int(overall.argmax())
    # By the one-standard-error rule, as much weight of others as is not shown to be worse.
    behind, behind_se = gains_of((losses[:-1] - losses[best])[None], common[None])[2:]
    best = int(np.flatnonzero(behind <= behind_se)[-1])
    return SegmentTrial(
        name=name,
        n=n,
        weight=WEIGHTS[best],
        gain=gain[best],
        gain_se=gain_se[best],
        loss=common.mean(-1),
        error=errors[best].mean(-1),
        overall=float(overall[best]),
        overall_se=float(overall_se[best]),
        needed=needed,
        head_start=head_start,
    )


def pooled_calibrators(log: Log, model: CascadeModel, rows: np.ndarray) -> Any:
    """(k,) the calibrators of some rows of a log, positions that may repeat."""
    expected = expected_log(log)
    columns = (np.asarray(column)[rows] for column in (expected.logprob, expected.correct, expected.answered))
    how = {"transform": model.calibrators.transform, "values": model.calibrators.values}
    fitted, _ = calibrate_log(*fill_up(*columns), **how)
    return jax.tree.map(np.asarray, fitted)
