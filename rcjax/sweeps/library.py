"""The logs of a sweep: read when they are needed, kept while there is room, told of where they cannot be used."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rcjax.logs.errors import LogError
from rcjax.logs.log import IncompleteLogWarning, LeftOutWarning, Log, UnlabelledWarning
from rcjax.logs.reading import read_log
from rcjax.model.provenance import Details
from rcjax.sweeps.problems import Shape, SweepSettings, shape_of

_MOST_BYTES = 2**30  # bytes of logs that stay in memory; others are read again when it is their turn


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
