"""What a sweep is over: its settings and logs, and the product of these, planned into batches of few shapes.

A *sample* is what a seed takes of a log to tune on; a *problem* is a sample, or one bootstrap replicate of it, with
every copula, search and λ. Logs of one number of models whose numbers of queries round up to the same size share a
shape, and with it the compiled programs; what fills a log up is queries that nobody answered.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from rcjax._base.checks import require
from rcjax._base.codec import Between, Record, filled, read
from rcjax.copulas.families import as_family
from rcjax.frontier.points import check_lam
from rcjax.logs.errors import IncompleteLogWarning, LeftOutWarning, LogError, UnlabelledWarning
from rcjax.logs.log import Log
from rcjax.logs.reading import read_log
from rcjax.model.calibrated import Details, stated_in
from rcjax.solving.paths import candidate_paths

#: A search of `solve_frontier`, or the best single model or pair by the log's own labels.
Search = Literal["all", "full", "adaptive", "labels"] | Sequence[Sequence[str]]
NAMED_SEARCHES = ("all", "full", "adaptive", "labels")
#: Problems of a batch on a CPU, some seconds of work, so that little is lost with a sweep that is killed; and on an
#: accelerator, which does as many at a time as its memory allows.
PROBLEMS, MANY_PROBLEMS = 256, 4096
_FEWEST = 64  # queries to which a log is filled up
_DATA = 2**28  # bytes that the logs and draws of a batch may take
_BYTES = 24  # of one answer in a log
_MOST_BYTES = 2**30  # bytes of logs that stay in memory; others are read again when it is their turn


def _searches(value: Any, where: str) -> dict[str, Search]:
    """Named searches, or tuples of cascades, by name; that these name models is seen with the logs."""
    listed = value if isinstance(value, tuple) else (value,)
    searches = dict(value) if isinstance(value, Mapping) else {str(search): search for search in listed}
    require(bool(searches), where, "must name a search, such as 'all'", value)
    for name, search in searches.items():
        paths = isinstance(search, tuple) and search and all(isinstance(path, tuple) for path in search)
        what = f"must be one of {', '.join(NAMED_SEARCHES)}, or a list of cascades"
        require(bool(paths) or search in NAMED_SEARCHES, f"{where}[{name!r}]", what, search)
    return searches


def _families(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    return tuple(as_family(name).__name__ for name in filled(names, where))


def _prices(lam: Any, where: str) -> int | tuple[float, ...]:
    """How many prices, or the prices, rising."""
    return tuple(check_lam(lam).tolist()) if isinstance(lam, tuple) else read(_TwoOrMore, lam, where)


def _share_or_number(train: Any, where: str) -> float | int | None:
    share = isinstance(train, float) and 0 < train < 1
    return train if train is None or share else read(_TwoOrMore, train, where)


_TwoOrMore = Annotated[int, Between(2)]


@dataclasses.dataclass(frozen=True)
class SweepSettings(Record):
    """What is swept over; ValueError says which setting is wrong, and what it must be.

    Example:
        >>> SweepSettings(copulas=["gumbel", "survival-clayton"], lam=20).copulas
        ('Gumbel', 'SurvivalClayton')
    """

    cascades: Annotated[Any, _searches] = "all"
    """Searches of `solve_frontier`: "all", "full", "adaptive", "labels" (the best single model or pair by the labels),
    several of these, or lists of cascades by name."""
    copulas: Annotated[tuple[str, ...], _families] = ("gumbel",)
    """Families, fitted by Kendall's τ."""
    lam: Annotated[Any, _prices] = 50
    """How many λ to solve for, on a grid of each log's own that covers all it can do; or the λ."""
    replicates: int = 0
    """Bootstrap replicates of each problem, beside the problem itself."""
    seeds: Annotated[tuple[int, ...], filled] = (0,)
    """Each takes other queries to train on, and draws other replicates."""
    train: Annotated[Any, _share_or_number] = None
    """A share or a number of queries to train on; the queries left out judge the points. None: all."""
    batch: Annotated[int, Between(1)] | None = None
    """The most problems solved at once, and written together: by default 256 on a CPU, and on an accelerator 4,096, as
    far as its memory goes at a time."""
    panels: _TwoOrMore = 9
    """Of eight quadrature nodes each, on each model's confidences: 9 tell error to 5e-6 but of the sharpest mixtures,
    17 are those of `solve_frontier`, and take 1.4 times as long."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.seeds) > 1 and not self.replicates and self.train is None:
            raise ValueError("seeds change nothing without replicates or train: give one of these, or a single seed")


@dataclasses.dataclass(frozen=True)
class Shape:
    """What problems must share to be solved by one compiled program."""

    models: int
    queries: int  # rows of the filled-up log, at least one of them empty
    drawn: int  # rows of a filled-up draw
    task: str  # which tells the transform of the confidences
    paths: tuple[tuple[tuple[int, ...], ...] | str, ...]  # the cascades of each search
    stated: int = 0  # how many values a model states, at most; 0 where no model of the log does


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one seed takes of a log to tune on."""

    log: str
    seed: int


@dataclasses.dataclass(frozen=True)
class Batch:
    """Problems that are solved together: the replicates `first` to `last` of each sample, 0 the sample itself."""

    shape: Shape
    samples: tuple[Sample, ...]
    first: int
    last: int
    room: tuple[int, ...]  # samples and problems, to which all batches of this shape are filled up

    @property
    def problems(self) -> list[tuple[Sample, int]]:
        """Samples and replicates, in the order in which they are solved."""
        return [(self.samples[number], replicate) for number, replicate in self.numbers]

    @property
    def numbers(self) -> list[tuple[int, int]]:
        """Of each problem the place of its sample, and its replicate."""
        return list(itertools.product(range(len(self.samples)), range(self.first, self.last + 1)))


def shape_of(log: Log, settings: SweepSettings) -> Shape:
    """The shape of a log's problems; LogError where it cannot be swept over."""
    answers = np.asarray(log.answered)
    if not (answers.astype(np.float32).T @ answers.astype(np.float32)).all():
        raise LogError(f"{log.source}: two models share no query, or one has no answer: a sweep needs some for all")
    paths = tuple(_paths(log.models, search) for search in settings.cascades.values())
    drawn = size_of_training(log.n_queries, settings.train, log.source)
    values = stated_in(log)
    stated = 0 if values is None else values.shape[1]
    return Shape(len(log.models), filled_up(log.n_queries + 1), filled_up(drawn), log.task, paths, stated)


def _paths(models: tuple[str, ...], search: Search) -> Any:
    if search == "labels":
        return search
    paths = candidate_paths(models, search)
    return "adaptive" if paths is None else tuple(paths)


def size_of_training(n: int, train: float | int | None, source: str) -> int:
    """How many of n queries are tuned on; LogError where there are too few."""
    size = n if train is None else round(train * n) if isinstance(train, float) else train
    if not 2 <= size <= n:
        raise LogError(f"{source}: {n} queries, of which train={train} takes {size}: a sample needs 2 to {n}")
    return size


def filled_up(n: int, fewest: int = _FEWEST) -> int:
    """The size to which n rows are filled up, so that few sizes occur: powers of two, and halfway between them.

    >>> [filled_up(n) for n in (3, 65, 97, 300)]
    [64, 96, 128, 384]
    """
    power = max(fewest, 1 << (n - 1).bit_length())
    half = power * 3 // 4
    return half if n <= half >= fewest and power >= 4 else power


def plan_batches(shapes: Mapping[str, Shape], settings: SweepSettings) -> list[Batch]:
    """All problems of the logs of these shapes, by name, in batches of the size that is wished, or as memory allows."""
    batches: list[Batch] = []
    replicates = settings.replicates + 1
    for shape in dict.fromkeys(shapes.values()):
        alike = [name for name, other in shapes.items() if other == shape]
        samples = [Sample(name, seed) for name in alike for seed in settings.seeds]
        largest = _DATA // (_BYTES * shape.models * shape.queries + 4 * shape.drawn)
        size = max(1, min(settings.batch or PROBLEMS, largest))
        together = max(1, size // replicates)
        parts = [
            (tuple(some), part[0], part[-1])
            for some in _chunks(samples, together)
            for part in _chunks(range(replicates), max(1, size // len(some)))
        ]
        rooms = [(len(some), len(some) * (last - first + 1)) for some, first, last in parts]
        room = tuple(filled_up(max(sizes), fewest=1) for sizes in zip(*rooms, strict=True))
        batches += [Batch(shape, *part, room) for part in parts]
    return batches


def _chunks(items: Sequence, size: int) -> Iterator[Sequence]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def training(n: int, sample: Sample, train: float | int | None, entry: Entry) -> np.ndarray:
    """The rows that a sample tunes on, in the log's order.

    Args:
        n: how many rows the log has.
        sample: the log by its name, and the seed.
        train: share or number of the rows to take; None: all.
        entry: what is known of the log: its content counts, and not its name.
    """
    size = size_of_training(n, train, entry.source)
    if size == n:
        return np.arange(n)
    return np.sort(np.random.default_rng(random_state(sample, entry)).permutation(n)[:size])


def random_state(sample: Sample, entry: Entry) -> np.random.SeedSequence:
    """What the random numbers of a sample come from: they depend on it alone, whatever it is solved together with."""
    return np.random.SeedSequence([sample.seed, int(entry.digest[:16], 16)])


@dataclasses.dataclass(frozen=True)
class Entry:
    """What is known of a log without reading it again: its row in the table of logs."""

    log: str
    source: str
    models: tuple[str, ...] = ()
    cost: tuple[float, ...] = ()
    queries: int = 0
    digest: str = ""
    problem: str | None = None  # why it cannot be used
    task: str = ""
    details: str = ""  # JSON: what a model that was fitted to it keeps of it
    answers: bool = False  # whether it tells what was answered, which no sweep uses


def named(logs: Mapping[str, Any] | Iterable[str | os.PathLike[str]]) -> dict[str, Any]:
    """The logs by name; those of paths are the files' names without their endings, or the paths where two are alike.

    >>> named(["a/monday.csv", "a/tuesday.csv"])
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
    """Logs by name, given as such or as what `read_log` takes."""

    def __init__(self, logs: Mapping[str, Any], reading: Mapping[str, Any]) -> None:
        self._sources, self._reading = dict(logs), dict(reading)
        self._read: OrderedDict[str, Log] = OrderedDict()
        self.entries: dict[str, Entry] = {}

    def log(self, name: str) -> Log:
        """The log of a name, read if need be; LogError or OSError where it cannot be."""
        source = self._sources[name]
        if isinstance(source, Log):
            return _fully_labelled(source)
        if name not in self._read:
            with warnings.catch_warnings():
                for kind in (IncompleteLogWarning, LeftOutWarning, UnlabelledWarning):
                    warnings.simplefilter("ignore", kind)
                self._read[name] = _fully_labelled(read_log(source, **self._reading))
            while len(self._read) > 1 and sum(map(_bytes, self._read.values())) > _MOST_BYTES:
                self._read.popitem(last=False)
        self._read.move_to_end(name)
        return self._read[name]

    def part(self, names: Iterable[str]) -> Library:
        """These logs alone, in memory: what another machine needs, which does not see the files."""
        part = Library({name: self.log(name) for name in names}, {})
        part.entries = {name: self.entries[name] for name in part._sources}
        return part

    def survey(self, settings: SweepSettings) -> dict[str, Shape]:
        """Read every log once; the shapes of those that can be swept over, by name, and `entries` of all."""
        shapes = {}
        for name, source in self._sources.items():
            origin = source.source if isinstance(source, Log) else str(source)
            try:
                log = self.log(name)
                shapes[name] = shape_of(log, settings)
                cost = tuple(np.asarray(log.cost, float).tolist())
                details = Details.of_log(log).to_json()
                del details["provenance"]["date"]  # a sweep that went on leaves the same bytes as one at once
                known = log.source, log.models, cost, log.n_queries, details["provenance"]["digest"]
                answers = log.answer is not None
                entry = Entry(name, *known, task=log.task, details=json.dumps(details), answers=answers)
            except (ValueError, OSError) as problem:
                entry = Entry(name, origin, problem=" ".join(str(problem).split()))
            self.entries[name] = entry
        return shapes


def _bytes(log: Log) -> int:
    return sum(np.asarray(matrix).nbytes for matrix in (log.logprob, log.correct, log.query_cost, log.answered))


def _fully_labelled(log: Log) -> Log:
    """The log, if every answer has a label; a sweep has no place for estimates of those that have none."""
    missing = int((np.asarray(log.answered) & ~log.labelled).sum())
    if missing:
        what = f"{missing:,} answers have no label, and a sweep needs them all"
        raise LogError(f"{log.source}: {what}: tune this log by itself (rcjax tune), or leave those rows out")
    return log
