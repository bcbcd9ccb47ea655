"""The problems of a sweep: the product of settings and logs, planned into batches and solved by pure functions.

A *sample* is the part of a log that a seed selects to tune on. A *problem* is a sample, or a bootstrap replicate of it,
with every copula, search and λ. Logs with the same number of models, and numbers of queries that round up to the same
size, share a shape and thus the compiled programs. A log is padded with queries without answers.

The tables of a model are large, and exist only while a problem is solved; the points of the frontiers are kept.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._base.codec import Between, Reads, Record, freeze_json, not_empty, read_value, require
from rcjax._core.batching import take_entries
from rcjax._core.numerics import divide
from rcjax.copulas import Copula
from rcjax.copulas.families import as_family
from rcjax.logs.errors import IncompleteLogWarning, LeftOutWarning, LogError, UnlabelledWarning
from rcjax.logs.log import Log
from rcjax.logs.reading import read_log
from rcjax.model.calibrated_models import FitRecord, find_stated_in_log, fit_calibrators
from rcjax.model.calibration import Calibrator, Transform, calibrate_all
from rcjax.model.fitting import FittedRows, fit_marginals, fit_tied_pairs, pair_taus, stated_confidences
from rcjax.model.likelihood import pairs_by_likelihood
from rcjax.model.marginals import Marginal
from rcjax.policy.spec import CASCADE_SETS, CascadeSet
from rcjax.solving.bellman import AdaptiveTables, CascadePlan, SearchTables, list_cascades
from rcjax.solving.frontier.points import LossTerms, Points as FrontierPoints, PointStatus, Policies, check_lam
from rcjax.solving.optimum import adaptive_points, optimise, points_at
from rcjax.solving.quadrature import QuadratureTables, build_grid, transition_kernel
from rcjax.tuning.candidate_scores import Blending, CalibratedRows, TrainingRows, score_pairs
from rcjax.tuning.replaying.walk import walk

Points = dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Data:
    """The logs of a batch, one for each of S samples, padded to n queries."""

    logprob: jax.Array  # (S, n, k)
    correct: jax.Array  # (S, n, k) bool
    answered: jax.Array  # (S, n, k) bool
    query_cost: jax.Array  # (S, n, k)
    held_out: jax.Array  # (S, n) bool: queries to judge by, unless a problem has drawn them
    rows: jax.Array  # (S, m) the queries that a sample is tuned on, padded with a query without answers
    size: jax.Array  # (S,) the number of queries that a sample is tuned on, without the padding
    key: jax.Array  # (S, 2) keys of the random numbers of the replicates
    lam: jax.Array  # (S, L)
    values: jax.Array | None = None  # (S, k, V) raw log-probabilities that models state, padded by NaN; None: no model


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Draws:
    """The samples and replicates that U problems are tuned on."""

    sample: jax.Array  # (U,) index of the sample in `Data`
    replicate: jax.Array  # (U,) number of the replicate; 0 is the sample itself

    def rows(self, data: Data) -> jax.Array:
        """Return the (m,) rows of a problem's log: the rows of its sample, or a bootstrap draw from these rows.

        The draw depends on the problem alone, not on the other problems of the batch, and is repeated at each use.
        """
        rows, size = data.rows[self.sample], data.size[self.sample]
        key = jax.random.wrap_key_data(data.key[self.sample], impl="threefry2x32")
        drawn = jax.random.randint(jax.random.fold_in(key, self.replicate), rows.shape, 0, size, np.int32)
        return jnp.where((self.replicate > 0) & (np.arange(len(rows)) < size), rows[drawn], rows)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fit:
    """The fit of a problem, which all its copulas and searches share."""

    calibrators: Calibrator  # leading axis k
    marginals: Marginal  # leading axis k
    copulas: tuple[Copula, ...]  # for each family, the copulas of all pairs (P,)
    cost: jax.Array  # (k,)
    complete: jax.Array  # () bool: every model has answers, and every pair has common queries


def fit_problem(
    data: Data,
    draws: Draws,
    *,
    transform: Transform,
    families: tuple[type[Copula], ...],
    start: Marginal | None = None,
) -> Fit:
    """Fit one problem.

    Args:
        data: the logs.
        draws: the problem's sample and replicate, without a leading axis.
        transform: transform of the raw confidence.
        families: families of copulas.
        start: starting point of the marginals, which saves time.
    """
    logs = (data.logprob, data.correct, data.answered, data.query_cost)
    rows = draws.rows(data)
    logprob, correct, answered, spent = (column[draws.sample, rows] for column in logs)
    values = None if data.values is None else data.values[draws.sample]
    calibrators, confidence = fit_calibrators(logprob, correct, answered, transform, values)
    marginals = fit_marginals(confidence, answered, start, stated_confidences(calibrators))
    count = answered.astype(spent.dtype)
    taus = pair_taus(confidence, answered)
    if values is None:  # no model states values, so that there are no ties
        copulas = tuple(jax.vmap(family.from_tau)(taus) for family in families)
    else:
        fitted = FittedRows(marginals, confidence, answered, taus)
        tied = pairs_by_likelihood(marginals)
        copulas = tuple(fit_tied_pairs(fitted, tied, family) for family in families)
    cost = divide((spent * count).sum(0), count.sum(0))
    return Fit(calibrators, marginals, copulas, cost, (count.T @ count > 0).all())


def refit_problem(
    shared: tuple[Data, Fit], draws: Draws, *, transform: Transform, families: tuple[type[Copula], ...]
) -> Fit:
    """Fit a replicate, starting from the fit of its sample; replicate 0 is the sample, and keeps its fit.

    Args:
        shared: the logs, and the fits of all samples.
        draws: the problem's sample and replicate, without a leading axis.
        transform: transform of the raw confidence.
        families: families of copulas, as in `fit_problem`.
    """
    data, samples = shared
    sample = take_entries(samples, draws.sample)
    fit = partial(fit_problem, data, draws, transform=transform, families=families, start=sample.marginals)
    return lax.cond(draws.replicate == 0, lambda: sample, fit)


def solve_problem(
    plans: tuple[CascadePlan | None, ...], problem: tuple[Fit, jax.Array], *, panels: int
) -> tuple[Points, ...]:
    """Solve one problem for each search; the points have leading axes (C, L), copulas and λ.

    This program takes the longest to compile. It does not depend on the number of queries, so logs of all sizes share
    it.

    Args:
        plans: plan of each search; None: adaptive policies.
        problem: a fit with its λ (L,).
        panels: number of panels of the quadrature.
    """
    fit, lam = problem

    def under(family: jax.Array) -> tuple[Points, ...]:
        tables = _pair_tables(fit, family, panels)
        return tuple(_to_results(_solve(tables, lam, plan), fit) for plan in plans)

    return tuple(lax.map(under, np.arange(len(fit.copulas))))


def judge_problem(data: Data, problem: tuple[Fit, Draws, tuple[Points, ...]], *, labels: bool) -> tuple[Points, ...]:
    """Return the points of each search of one problem, with held-out error and cost; NaN without held-out queries.

    With `labels`, the last search is the best single models and pairs by the draw's labels (C = 1).
    """
    fit, draws, searches = problem
    rows = draws.rows(data)
    if labels:
        best = _search_by_labels(fit, data, draws.sample, rows)
        searches = (*searches, jax.tree.map(lambda leaf: leaf[None], _to_results(best, fit)))
    return tuple(points | _held_out_figures(data, fit, draws.sample, rows, points) for points in searches)


def _pair_tables(fit: Fit, family: jax.Array, panels: int) -> QuadratureTables:
    """Return the tables of all pairs under the copula family with the number `family`."""
    left, right = np.triu_indices(fit.cost.shape[0], 1)
    grid = jax.vmap(partial(build_grid, panels=panels))(fit.marginals)

    def kernel(copulas: Copula) -> jax.Array:
        return jax.vmap(transition_kernel)(copulas, take_entries(grid, left), take_entries(grid, right))

    # `family` is the same for all problems, so that only this family is evaluated.
    kernels = lax.switch(family, [partial(kernel, copulas) for copulas in fit.copulas])
    return QuadratureTables(fit.marginals, grid, jnp.asarray(left), jnp.asarray(right), kernels, fit.cost)


def _solve(tables: QuadratureTables, lam: jax.Array, plan: CascadePlan | None) -> FrontierPoints:
    if plan is None:
        return adaptive_points(AdaptiveTables(tables), lam)
    left, right, kernel = take_entries((tables.left, tables.right, tables.kernel), plan.pairs)
    search = SearchTables(dataclasses.replace(tables, left=left, right=right, kernel=kernel), plan)
    return points_at(search, optimise(search, lam))


def _search_by_labels(fit: Fit, data: Data, sample: jax.Array, rows: jax.Array) -> FrontierPoints:
    """Return the best single model or pair for each λ, with its error and cost by the labels of the rows."""
    lam, columns = data.lam[sample], (data.logprob, data.correct, data.answered)
    logprob, correct, answered = (column[sample, rows] for column in columns)
    training = TrainingRows(logprob, correct, answered, query_cost=jnp.broadcast_to(fit.cost, logprob.shape))
    calibrated = CalibratedRows.of(fit.calibrators, training)
    candidates, _ = score_pairs(calibrated, Blending())
    best = candidates.best(lam)
    expected = LossTerms(best.penalty, best.cost, jnp.zeros_like(lam))
    return FrontierPoints(lam, jnp.zeros_like(best.first), expected, best.policies(agreement=False))


def _to_results(points: FrontierPoints, fit: Fit) -> Points:
    """Return the points in the form of results, with a status that marks failed points."""
    error, cost, _ = points.expected
    policies = points.policies
    finite = jnp.isfinite(error) & jnp.isfinite(cost)
    status = jnp.where(fit.complete, jnp.where(finite, points.status, PointStatus.NOT_FINITE), PointStatus.NO_DATA)
    arrays = {name: getattr(policies, name) for name in ("members", "bounds", "actions")}
    return arrays | {"error": error, "cost": cost, "status": status}


def _held_out_figures(data: Data, fit: Fit, sample: jax.Array, rows: jax.Array, points: Points) -> Points:
    """Return held-out error and cost of the points, as `replay` computes them, and the number of held-out queries.

    Held out are the queries of the sample's log that are not among the problem's rows.
    """
    logs = (data.logprob, data.correct, data.answered, data.query_cost)
    logprob, correct, answered, spent = take_entries(logs, sample)
    drawn = jnp.zeros(logprob.shape[0], bool).at[rows].set(True)
    weight = (data.held_out[sample] & answered.all(1) & ~drawn).astype(spent.dtype)
    confidence = calibrate_all(fit.calibrators, logprob, answered).T
    share = divide(weight, weight.sum(), jnp.nan)

    def figures(policy: Policies) -> tuple[jax.Array, jax.Array]:
        walked = walk(confidence, policy)
        cost = (walked.asked.astype(spent.dtype) @ share) @ (share @ spent)
        return share @ walked.wrong(correct.T).astype(spent.dtype), cost

    policies = Policies(points["bounds"], points["actions"], points["members"])
    error, cost = jax.vmap(jax.vmap(figures))(policies)
    return {"held_out_error": error, "held_out_cost": cost, "held_out": weight.sum()}


#: A search of `solve_frontier`, or the best single model or pair by the labels of the log.
SweepSearch = CascadeSet | Literal["labels"]
NAMED_SEARCHES = (*CASCADE_SETS, "labels")
#: Problems per batch, on a CPU and on an accelerator. On a CPU a batch is some seconds of work, so that a killed sweep
#: loses little; an accelerator solves as many at a time as its memory allows.
PROBLEMS, MANY_PROBLEMS = 256, 4096
_MIN_PADDED = 64  # smallest padded number of queries
_BATCH_BYTES = 2**28  # most bytes of the logs and draws of a batch
_ANSWER_BYTES = 24  # bytes of one answer in a log
_MEMORY_BYTES = 2**30  # most bytes of logs in memory; further logs are read again when they are needed


def _read_searches(value: Any, place: str) -> dict[str, SweepSearch]:
    """Read searches by name: words, or tuples of cascades. The names of models are compared with each log later."""
    listed = value if isinstance(value, tuple) else (value,)
    searches = dict(value) if isinstance(value, Mapping) else {str(search): search for search in listed}
    require(bool(searches), place, "must name a search, such as 'all'", value)
    for name, search in searches.items():
        paths = isinstance(search, tuple) and search and all(isinstance(path, tuple) for path in search)
        rule = f"must be one of {', '.join(NAMED_SEARCHES)}, or a list of cascades"
        require(bool(paths) or search in NAMED_SEARCHES, f"{place}[{name!r}]", rule, search)
    return searches


def _read_families(names: tuple[str, ...], place: str) -> tuple[str, ...]:
    return tuple(as_family(name).__name__ for name in not_empty(names, place))


def _read_lambdas(lam: Any, place: str) -> int | tuple[float, ...]:
    """Read λ: a number of values, or the values, sorted."""
    return tuple(check_lam(lam).tolist()) if isinstance(lam, tuple) else read_value(_TwoOrMore, lam, place)


def _read_training_size(train: Any, place: str) -> float | int | None:
    share = isinstance(train, float) and 0 < train < 1
    return train if train is None or share else read_value(_TwoOrMore, train, place)


_TwoOrMore = Annotated[int, Between(2)]


@dataclasses.dataclass(frozen=True)
class SweepSettings(Record):
    """The settings of a sweep; ValueError names a wrong setting, and the values that it may have.

    Example:
        >>> SweepSettings(copulas=["gumbel", "survival-clayton"], lam=20).copulas
        ('Gumbel', 'SurvivalClayton')
    """

    cascades: Annotated[Any, _read_searches] = "all"
    """Searches of `solve_frontier`: "all", "full", "adaptive", "labels" (the best single model or pair by the labels),
    several of these, or lists of cascades by name."""
    copulas: Annotated[tuple[str, ...], _read_families] = ("gumbel",)
    """Families of copulas, fitted by Kendall's τ."""
    lam: Annotated[int | tuple[float, ...], Reads(freeze_json), _read_lambdas] = 50
    """Number of λ, on a grid for each log that covers its whole frontier; or the values of λ."""
    replicates: int = 0
    """Number of bootstrap replicates of each problem, in addition to the problem itself."""
    seeds: Annotated[tuple[int, ...], not_empty] = (0,)
    """Seeds, each of which draws other queries to train on, and other replicates."""
    train: Annotated[float | None, Reads(freeze_json), _read_training_size] = None
    """Share or number of queries to train on; the held-out queries judge the points. None: all."""
    batch: Annotated[int, Between(1)] | None = None
    """Most problems per batch; by default 256 on a CPU, 4,096 on an accelerator. A batch is written as a whole."""
    panels: _TwoOrMore = 9
    """Number of quadrature panels, of eight nodes each, on each model's confidences. With 9, the error is accurate to
    5e-6 except for the sharpest mixtures; `solve_frontier` uses 17, which takes 1.4 times as long."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.seeds) > 1 and not self.replicates and self.train is None:
            raise ValueError("seeds change nothing without replicates or train: give one of these, or a single seed")


class SweepFields(TypedDict, total=False):
    """The fields of `SweepSettings`, as functions take them by keyword."""

    cascades: SweepSearch | Sequence[SweepSearch] | Mapping[str, SweepSearch]
    copulas: Sequence[str]
    lam: int | Sequence[float]
    replicates: int
    seeds: Sequence[int]
    train: float | None
    batch: int | None
    panels: int


@dataclasses.dataclass(frozen=True)
class Shape:
    """The properties of a problem that its compiled program depends on."""

    models: int  # number of models
    queries: int  # rows of the padded log, at least one of them empty
    drawn: int  # rows of a padded draw
    task: str  # the task of the log, which determines the transform of the confidences
    paths: tuple[tuple[tuple[int, ...], ...] | str, ...]  # the cascades of each search
    stated: int = 0  # largest number of values that a model states; 0 if no model of the log does


@dataclasses.dataclass(frozen=True)
class Sample:
    """The part of a log that one seed selects to tune on."""

    log: str
    seed: int


@dataclasses.dataclass(frozen=True)
class Batch:
    """The problems that are solved together: replicates `first` to `last` of each sample."""

    shape: Shape
    samples: tuple[Sample, ...]
    first: int
    last: int
    room: tuple[int, ...]  # padded numbers of samples and of problems, the same for all batches of this shape

    @property
    def problems(self) -> list[tuple[Sample, int]]:
        """Samples and replicates, in the order in which they are solved."""
        return [(self.samples[number], replicate) for number, replicate in self.numbers]

    @property
    def numbers(self) -> list[tuple[int, int]]:
        """(index of the sample, replicate) of each problem."""
        return list(itertools.product(range(len(self.samples)), range(self.first, self.last + 1)))


def measure_shape(log: Log, settings: SweepSettings) -> Shape:
    """Return the shape of a log's problems; LogError if a sweep cannot use the log."""
    answers = np.asarray(log.answered)
    if not (answers.astype(np.float32).T @ answers.astype(np.float32)).all():
        raise LogError(f"{log.source}: two models share no query, or one has no answer: a sweep needs some for all")
    paths = tuple(_list_paths(log.models, search) for search in settings.cascades.values())
    drawn = size_of_training(log.n_queries, settings.train, log.source)
    values = find_stated_in_log(log)
    stated = 0 if values is None else values.shape[1]
    return Shape(len(log.models), filled_up(log.n_queries + 1), filled_up(drawn), log.task, paths, stated)


def _list_paths(models: tuple[str, ...], search: SweepSearch) -> Any:
    if search == "labels":
        return search
    paths = list_cascades(models, search)
    return "adaptive" if paths is None else tuple(paths)


def size_of_training(n: int, train: float | int | None, source: str) -> int:
    """Return the number of queries to tune on, of n; LogError if it is too small or too large."""
    size = n if train is None else round(train * n) if isinstance(train, float) else train
    if not 2 <= size <= n:
        raise LogError(f"{source}: {n} queries, of which train={train} takes {size}: a sample needs 2 to {n}")
    return size


def filled_up(n: int, fewest: int = _MIN_PADDED) -> int:
    """Round a number of rows up to one of few sizes: powers of two, and halfway between them.

    >>> [filled_up(n) for n in (3, 65, 97, 300)]
    [64, 96, 128, 384]
    """
    power = max(fewest, 1 << (n - 1).bit_length())
    half = power * 3 // 4
    return half if n <= half >= fewest and power >= 4 else power


def plan_batches(shapes: Mapping[str, Shape], settings: SweepSettings) -> list[Batch]:
    """Plan all problems of logs into batches of the size in the settings, or smaller batches that fit into memory."""
    batches: list[Batch] = []
    replicates = settings.replicates + 1
    for shape in dict.fromkeys(shapes.values()):
        alike = [name for name, other in shapes.items() if other == shape]
        samples = [Sample(name, seed) for name in alike for seed in settings.seeds]
        largest = _BATCH_BYTES // (_ANSWER_BYTES * shape.models * shape.queries + 4 * shape.drawn)
        size = max(1, min(settings.batch or PROBLEMS, largest))
        parts = [
            (tuple(chunk), part[0], part[-1])
            for chunk in _chunks(samples, max(1, size // replicates))
            for part in _chunks(range(replicates), max(1, size // len(chunk)))
        ]
        rooms = [(len(chunk), len(chunk) * (last - first + 1)) for chunk, first, last in parts]
        room = tuple(filled_up(max(sizes), fewest=1) for sizes in zip(*rooms, strict=True))
        batches += [Batch(shape, *part, room) for part in parts]
    return batches


def _chunks(items: Sequence, size: int) -> Iterator[Sequence]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def training_rows(n: int, sample: Sample, train: float | int | None, entry: Entry) -> np.ndarray:
    """Return the rows that a sample tunes on, in the order of the log.

    Args:
        n: number of rows of the log.
        sample: name of the log, and the seed.
        train: share or number of the rows to take; None: all.
        entry: entry of the log: the draw depends on the log's content, not on its name.
    """
    size = size_of_training(n, train, entry.source)
    if size == n:
        return np.arange(n)
    return np.sort(np.random.default_rng(random_state(sample, entry)).permutation(n)[:size])


def random_state(sample: Sample, entry: Entry) -> np.random.SeedSequence:
    """Return the source of a sample's random numbers, which depend on the seed and the content of the log alone."""
    return np.random.SeedSequence([sample.seed, int(entry.digest[:16], 16)])


@dataclasses.dataclass(frozen=True)
class Entry:
    """The row of a log in the table of logs: properties of the log, or the reason why it cannot be used."""

    log: str
    source: str
    models: tuple[str, ...] = ()
    cost: tuple[float, ...] = ()
    queries: int = 0
    digest: str = ""
    problem: str | None = None  # the reason why it cannot be used
    task: str = ""
    record: str = ""  # JSON of the `FitRecord` of a model that is fitted to it


def name_logs(logs: Mapping[str, Any] | Iterable[str | os.PathLike[str]]) -> dict[str, Any]:
    """Return the logs by name; the name of a file is its stem, or the paths if two stems are equal.

    >>> name_logs(["a/monday.csv", "a/tuesday.csv"])
    {'monday': 'a/monday.csv', 'tuesday': 'a/tuesday.csv'}
    """
    if isinstance(logs, Mapping):
        named = {str(name): log for name, log in logs.items()}
    else:
        paths = list(logs)
        if isinstance(logs, str | os.PathLike) or any(isinstance(path, Log) for path in paths):
            raise ValueError("logs: give a list of files, or logs by name such as {'monday': log}")
        stems = [Path(path).stem for path in paths]
        names = stems if len({*stems}) == len(stems) else [str(path) for path in paths]
        named = dict(zip(names, paths, strict=True))
    if not named:
        raise ValueError("logs is empty: give at least one log")
    return named


class Library:
    """The logs of a sweep by name, as `Log` or as a source for `read_log`; recently used ones stay in memory."""

    def __init__(self, logs: Mapping[str, Any], reading: Mapping[str, Any]) -> None:
        self._sources, self._reading = dict(logs), dict(reading)
        self._read: OrderedDict[str, Log] = OrderedDict()
        self.entries: dict[str, Entry] = {}

    def log(self, name: str) -> Log:
        """Return the log of a name, and read it if needed; LogError or OSError if it cannot be read."""
        source = self._sources[name]
        if isinstance(source, Log):
            return _fully_labelled(source)
        if name not in self._read:
            with warnings.catch_warnings():
                for kind in (IncompleteLogWarning, LeftOutWarning, UnlabelledWarning):
                    warnings.simplefilter("ignore", kind)
                self._read[name] = _fully_labelled(read_log(source, **self._reading))
            while len(self._read) > 1 and sum(map(_bytes, self._read.values())) > _MEMORY_BYTES:
                self._read.popitem(last=False)
        self._read.move_to_end(name)
        return self._read[name]

    def part(self, names: Iterable[str]) -> Library:
        """Return a library of the named logs, in memory, for another machine without the files."""
        part = Library({name: self.log(name) for name in names}, {})
        part.entries = {name: self.entries[name] for name in part._sources}
        return part

    def survey(self, settings: SweepSettings) -> dict[str, Shape]:
        """Read every log once, fill `entries`, and return the shapes of usable logs by name."""
        shapes = {}
        for name, source in self._sources.items():
            file = source.source if isinstance(source, Log) else str(source)
            try:
                log = self.log(name)
                shapes[name] = measure_shape(log, settings)
                cost = tuple(np.asarray(log.cost, float).tolist())
                record = FitRecord.of_log(log).to_json()
                del record["provenance"]["date"]  # a resumed sweep leaves the same bytes as an uninterrupted one
                known = log.source, log.models, cost, log.n_queries, record["provenance"]["digest"]
                entry = Entry(name, *known, task=log.task, record=json.dumps(record))
            except (ValueError, OSError) as problem:
                entry = Entry(name, file, problem=" ".join(str(problem).split()))
            self.entries[name] = entry
        return shapes


def _bytes(log: Log) -> int:
    return sum(np.asarray(matrix).nbytes for matrix in (log.logprob, log.correct, log.query_cost, log.answered))


def _fully_labelled(log: Log) -> Log:
    """Return the log, or raise LogError for answers without a label: a sweep does not estimate labels."""
    missing = int((np.asarray(log.answered) & ~log.labelled).sum())
    if missing:
        problem = f"{missing:,} answers have no label, and a sweep needs them all"
        raise LogError(f"{log.source}: {problem}: tune this log by itself (rcjax tune), or leave those rows out")
    return log
