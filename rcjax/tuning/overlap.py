"""Queries that tuning does not see; which of a log were tuned on as well, and which only look so by accident.

A row is shared where the query's name, the model, its log-probability (in single precision, in which policies carry
theirs) and right or wrong all agree. Names alone recur between the splits of a benchmark, and so do values: answers of
probability 1, or stated confidences of 0.9. So what agrees is held against what accident makes agree:

- *By name, among rare values.* A value that occurs once in each of two logs, of a and b queries with m names in
  common, meets its like under the same name with probability m/ab. With c such values under other names, (c + 1)·m/ab
  accidental meetings are expected: hardly one, whatever the confidences are, and next to none where they are
  continuous. Values are those of whole queries (all models' answers), and once more those of each model alone, for
  logs with gaps.
- *By name, among common values.* Two logs of three stated confidences agree on every third query by accident; the share
  of the other log that has the same value says how often. They are shared where most of what could agree beyond that
  does.
- Of either, no less is expected than meets under the ten names before and after: where both logs are in one order, the
  easy questions first, neighbours agree as well.
- *Without names*, for policies that carry none and for queries that were numbered anew. A value that occurs exactly
  twice in both logs together is as likely to lie twice in one of them as once in each, or likelier: that holds for any
  two distributions, as 2xy ≤ x² + y². So of n such values at most about half lie once in each.

Each test alarms by accident in one of 10,000 pairs of logs at most (Chernoff's bound on a binomial tail). Where both
logs are at hand, two or three queries with continuous confidences are told of; without names, it takes 14.
"""

import base64
import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import hash_names, read_reference
from rcjax.logs.log import Log
from rcjax.policy.policy import AnyPolicy

if TYPE_CHECKING:
    from rcjax.frontier.frontier import Frontier
    from rcjax.model.cascade_model import CascadeModel

_LEVEL = 1e-4  # probability, at most, that a test alarms by accident


_MOST = 0.5  # share of what could agree beyond accident, from which common values are taken to be shared


_NEARBY = 10


_STEPS = [step for step in range(-_NEARBY, _NEARBY + 1) if step]


_UNANSWERED = -1


_HELD_OUT = 0.5  # of the queries of a log, where a guarantee is wanted and no other log given


_GAMMA, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


class OverlapWarning(UserWarning):
    """Some queries of a log that is to judge were tuned on."""


@dataclasses.dataclass(frozen=True)
class Overlap:
    """How much of a log was tuned on, as far as can be told; false where nothing was."""

    queries: int
    """Queries of the log that were tuned on."""
    rows: int
    """Their answers that were tuned on."""
    n: int
    """All queries of the log."""
    whole: bool
    """Whether it is the very log that was tuned on."""
    compared: int
    """Queries tuned on that it was compared with."""
    tuned: int
    """Queries tuned on."""

    def __bool__(self) -> bool:
        return self.queries > 0

    def describe(self) -> str:
        """How many queries were tuned on, in words.

        >>> Overlap(7, 21, 199, False, 360, 5000).describe()
        'at least 7 of its 199 queries were tuned on (of which 360 of 5,000 are known)'
        """
        if self.compared >= self.tuned:
            return f"{self.queries:,} of its {self.n:,} queries were tuned on"
        compared = f"{self.compared:,} of {self.tuned:,}"
        return f"at least {self.queries:,} of its {self.n:,} queries were tuned on (of which {compared} are known)"


class _Rows(NamedTuple):
    """A log for comparison: each query once."""

    names: np.ndarray | None  # (n,) hashed
    cells: np.ndarray  # (n, k) a number for each log-probability and correctness; −1 for no answer


def overlap(log: Log, tuned_on: Log) -> Overlap:
    """How many queries of a log are among those of another, the whole of which was tuned on.

    On the models that both have, in whichever order.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> overlap(log.take(slice(100)), log).queries, overlap(*log.split(0.5, seed=0)).queries
    (100, 0)
    """
    models = [name for name in tuned_on.models if name in log.models]
    # Python's own hash, of this process alone, takes a tenth of the time.
    names = [np.array([hash(str(name)) for name in side.queries], np.int64) for side in (log, tuned_on)]
    labelled = _is_full(log) and _is_full(tuned_on)
    new, old = (_rows(side, models, hashes, labelled) for side, hashes in zip((log, tuned_on), names, strict=True))
    return _compare(new, old, log.n_queries, tuned_on.n_queries)


def overlap_with_tuned(log: Log, tuned: "AnyPolicy | Frontier | CascadeModel") -> Overlap:
    """How many queries of a log a policy was tuned on, or a model fitted to, as far as it tells.

    By the hash of the whole log in its provenance, and by the queries that it carries. ValueError where
    that is damaged.
    """
    if isinstance(tuned, AnyPolicy):
        provenance, reference = tuned.provenance, tuned.policies[0].provenance.get("reference")
    else:
        model: Any = getattr(tuned, "model", tuned)
        provenance, reference = model.provenance, model.reference
    recorded = provenance.get("queries")
    n, size = log.n_queries, recorded if isinstance(recorded, int) else 0
    if _same_content(log, provenance):
        return Overlap(n, int(np.asarray(log.answered).sum()), n, whole=True, compared=n, tuned=n)
    if reference is None:
        return Overlap(0, 0, n, whole=False, compared=0, tuned=size)
    old = read_reference(reference, log.task)
    models = [name for name in old.models if name in log.models]
    names = _read_names(reference.get("names"), old.n_queries)
    labelled = _is_full(log) and _is_full(old)
    new = _rows(log, models, None if names is None else hash_names(log.queries), labelled)
    return _compare(new, _rows(old, models, names, labelled), n, max(size, old.n_queries))


def require_unseen(log: Log, overlap: Overlap) -> None:
    """LogError where queries of a log that is to guarantee something were tuned on."""
    if overlap.whole:
        raise LogError(f"{log.source}: the model was fitted to this very log: certify on queries that were held out")
    if overlap:
        raise LogError(f"{log.source}: {overlap.describe()}: certify on queries that were held out")


def warn_of_overlap(log: Log, overlap: Overlap) -> None:
    """An `OverlapWarning` where queries of a log that is to judge were tuned on."""
    if overlap:
        message = f"{log.source}: {overlap.describe()}, where it looks better than it is: judge by others"
        warnings.warn(message, OverlapWarning, stacklevel=3)


def _read_names(packed: Any, size: int) -> np.ndarray | None:
    if packed is None:
        return None
    try:
        names = np.frombuffer(base64.b64decode(packed, validate=True), "<u4")
        if len(names) != size:
            raise ValueError(f"they are not the names of {size} queries")
    except (TypeError, ValueError) as problem:
        where = "the queries that it was tuned on, provenance.reference.names"
        raise ValueError(f"{where}, are damaged: {problem}") from None
    return names


def _same_content(log: Log, provenance: Mapping[str, Any]) -> bool:
    """Whether it is the log tuned on, by its hash, which is that of its models in their order."""
    digest, answers = provenance.get("digest"), provenance.get("answers")
    if digest is None:
        return False
    names = tuple(answers) if isinstance(answers, Mapping) and answers else log.models
    return set(names) <= set(log.models) and log.select(names).digest == digest


def _is_full(log: Log) -> bool:
    """Whether every answer has a label."""
    return bool(log.labelled[np.asarray(log.answered)].all())


def _rows(log: Log, models: Sequence[str], names: np.ndarray | None, labelled: bool) -> _Rows:
    """The queries of a log that have an answer of these models, each once, as bootstraps repeat some.

    `labelled`: answers are the same only where they are as right, or have the same score; else, as some have no label,
    whatever they are.
    """
    columns = [log.models.index(name) for name in models]
    logprob, correct, answered = (np.asarray(matrix)[:, columns] for matrix in (log.logprob, log.correct, log.answered))
    bits = np.ascontiguousarray(logprob.astype("<f4") + np.float32(0)).view("<u4").astype(np.int64)  # −0 is 0
    cells = np.where(answered, 2 * bits + ((correct == 1) & labelled), _UNANSWERED)
    if labelled and correct.dtype != bool:  # above the bits of the confidence, those of the score
        between = np.where(answered & (correct > 0) & (correct < 1), correct, 0).astype("<f4")
        cells += between.view("<u4").astype(np.int64) << 33
    rows = np.flatnonzero(answered.any(1))
    if names is None:
        return _Rows(None, cells[rows])
    rows = rows[np.sort(np.unique(names[rows], return_index=True)[1])]
    return _Rows(names[rows], cells[rows])


def _compare(new: _Rows, old: _Rows, n: int, tuned: int) -> Overlap:
    """The overlap of the rows of a log of n queries with those of the old one, which had `tuned` queries."""
    shared, rows = np.zeros(len(new.cells), bool), 0
    if new.cells.size and old.cells.size:
        if new.names is not None and old.names is not None:
            shared, rows = _by_name(new.cells, old.cells, _namesakes(new.names, old.names))
        if not shared.any():
            shared = _by_value(new.cells, old.cells)
            rows = int((new.cells[shared] != _UNANSWERED).sum())
    queries = int(shared.sum())
    whole = queries > 0 and n == tuned and queries >= len(old.cells)
    return Overlap(queries, rows, n, whole, compared=len(old.cells), tuned=tuned)


def _namesakes(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """(n,) the row of the old log that has each name; −1 where none has."""
    order = np.argsort(old)
    row = order[np.minimum(np.searchsorted(old, new, sorter=order), len(old) - 1)]
    return np.where(old[row] == new, row, -1)


def _by_name(new: np.ndarray, old: np.ndarray, namesakes: np.ndarray) -> tuple[np.ndarray, int]:
    """((n,) whether a query is shared, how many answers of theirs are), from cells (n, k) and (m, k)."""
    named = namesakes >= 0
    whole = _View.of(*_whole_queries(new, old))
    columns = [_View.of(a, b) for a, b in zip(new.T, old.T, strict=True)]
    shared, related = whole.once & whole.meets(namesakes), False
    for views in ([whole], columns):
        meetings = [view.once & view.meets(namesakes) for view in views]
        met = np.any(meetings, axis=0)
        apart = 1 + sum(view.recurring - int(rows.sum()) for view, rows in zip(views, meetings, strict=True))
        anywhere = apart * named.sum() / (len(new) * len(old))
        nearby = sum(view.meets_nearby(namesakes, view.once) for view in views) if met.any() else 0.0
        if _accident(int(met.sum()), int(named.sum()), max(anywhere, nearby)) < _LEVEL:
            shared, related = shared | met, True
    common = named & whole.valued & ~whole.once
    could, agreeing = int(common.sum()), common & whole.meets(namesakes)
    did, expected = int(agreeing.sum()), max(float(whole.share[common].sum()), whole.meets_nearby(namesakes, common))
    if did - expected >= _MOST * (could - expected) and _accident(did, could, expected) < _LEVEL:
        shared, related = shared | agreeing, True
    shared = shared & related
    same = (new == old[namesakes]) & (new != _UNANSWERED)
    return shared, int(same[shared].sum())


def _by_value(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """(n,) whether a query is shared, by the values of whole queries that occur twice in both logs together."""
    view = _View.of(*_whole_queries(new, old))
    return view.once & (_accident(view.recurring, view.twice, view.twice / 2) < _LEVEL)


def _whole_queries(new: np.ndarray, old: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A number for all answers of each query, (n,) and (m,); −1 where some model has not answered."""
    both = np.concatenate([new, old])
    number = np.zeros(len(both), np.uint64)
    for column in both.T:  # by a hash of 63 bits: Steele, Lea & Flood 2014, "Fast splittable pseudorandom generators"
        number = (number + column.astype(np.uint64) + _GAMMA) * _MIX
        number ^= number >> np.uint64(31)
    numbers = np.where((both == _UNANSWERED).any(1), _UNANSWERED, (number >> np.uint64(1)).astype(np.int64))
    return numbers[: len(new)], numbers[len(new) :]


class _View(NamedTuple):
    """One value for each query of two logs of n and m queries."""

    new: np.ndarray  # (n,) the values
    old: np.ndarray  # (m,)
    valued: np.ndarray  # (n,) whether there is one
    once: np.ndarray  # (n,) whether it occurs once in each log
    share: np.ndarray  # (n,) of the old log's queries that have it
    recurring: int  # values that occur once in each log
    twice: int  # values that occur twice in both logs together

    @classmethod
    def of(cls, new: np.ndarray, old: np.ndarray) -> "_View":
        """Of values (n,) and (m,), −1 where there is none."""
        values, number = np.unique(np.concatenate([new, old]), return_inverse=True)
        of_new, of_old = number[: len(new)], number[len(new) :]
        here, there = (np.bincount(numbers, minlength=len(values)) for numbers in (of_new, of_old))
        real = values != _UNANSWERED
        once = real & (here == 1) & (there == 1)
        twice = int((real & (here + there == 2)).sum())
        return cls(new, old, real[of_new], once[of_new], there[of_new] / len(old), int(once.sum()), twice)

    def meets(self, rows: np.ndarray) -> np.ndarray:
        """(n,) whether the old log has the value of each query in these rows (n,) of it; no row is −1."""
        inside = (rows >= 0) & (rows < len(self.old))
        return self.valued & inside & (self.old[np.where(inside, rows, 0)] == self.new)

    def meets_nearby(self, rows: np.ndarray, mask: np.ndarray) -> float:
        """How many of some queries, mask (n,), meet their value in one row, on average, of the ten before and after."""
        some = self._replace(new=self.new[mask], valued=self.valued[mask])
        start = np.where(rows[mask] >= 0, rows[mask], -_NEARBY - 1)
        return sum(int(some.meets(start + step).sum()) for step in _STEPS) / len(_STEPS)


def _accident(count: int, n: int, expected: float) -> float:
    """Bound (Chernoff's) on the probability of so many of n, of which accident makes so many be expected."""
    if count <= expected or expected >= n:
        return 1.0
    share, chance = count / n, expected / n
    rest = (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return math.exp(-n * (share * math.log(share / chance) + rest))


def hold_out(log: Log, held_out: Log | None, confidence: float | None, judged: bool = False) -> tuple[Log, Log | None]:
    """(the queries to tune on, those of the test; None without a guarantee).

    Args:
        log: the log.
        held_out: a log for the test; None: half of the queries of `log`, drawn at random, where there is a confidence.
        confidence: of the guarantee; None for none.
        judged: whether judges' verdicts count for it. Where only labels by hand do, half of the queries that have them
            are held out: the others are of no use to the test.

    Raises LogError where the two logs share queries, or labels are too few.

    >>> import rcjax
    >>> tuned_on, tested = hold_out(rcjax.sample_log(100, seed=0), None, 0.95)
    >>> tuned_on.n_queries, tested.n_queries
    (50, 50)
    """
    if held_out is not None:
        held_out = held_out.select(log.models).with_waiting(log.second_cost)
        require_unseen(held_out, overlap(held_out, log))
        return log, held_out
    if confidence is None:
        return log, None
    if log.hand is None or judged:
        tested, rest = log.split(_HELD_OUT, seed=0)
        return rest, tested
    whole = np.flatnonzero((log.labelled | ~np.asarray(log.answered)).all(1))
    if len(whole) < 2:
        raise LogError(f"{log.source}: fewer than two queries have labels for all answers: nothing to test on")
    chosen = np.random.default_rng(0).permutation(whole)[: round(_HELD_OUT * len(whole))]
    return log.take(np.setdiff1d(np.arange(log.n_queries), chosen)), log.take(np.sort(chosen))
