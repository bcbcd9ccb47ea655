"""A few hundred queries of the training log, as a policy carries them: later logs are compared with these.

Drawn at random, not thinned to quantiles, so that they are a sample, and whole queries, so that the policy can be
replayed on them. Columns are numpy's arrays in one archive, in base64, as JSON knows neither infinities nor compact
numbers: log-probabilities in single precision, in which a later log is compared too, so that what was tied stays tied;
labels, and where not all answers have one, which do (queries with labels go first); costs in half precision, as
multiples of their mean; where the log tells them the seconds too, as parts of the
longest; and of the times the week. No text is kept: of the answers, where the log has them, which are equal; and of the
queries' names a hash, by which queries of another log are known to have been tuned on (`rcjax.tuning.certify`).

A policy that is tuned again carries queries of the fresh log and some of those that the one before it carried: so it
remembers, and forgets. The fresh ones get half of the places at most, so that a bad log fades as fast as it came.
"""

import base64
import io
import zipfile
import zlib
from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal

import jax
import numpy as np

from rcjax._base.checks import require
from rcjax._base.codec import Between, Names, Object, read
from rcjax.logs.cells import HandLabels
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.policy.counted import Scores

MOST_QUERIES = 400

_WHERE = "provenance.reference"

_MOST_ANSWERS = 1_800  # about 8 bytes of a policy file each, and 5 for each query

_HASHED = 4  # bytes of a name: enough, as the answers must agree too

#: How queries that were carried are named: their hash follows, in hexadecimal.
_CARRIED = "carried:"

_WEEK = 7 * 86_400  # seconds

_UNKNOWN_WEEK = -1


#: The columns: their kinds of numbers, whether there is one for each query and model ("nk"), query or model, and the
#: least and the largest; the others may be left out. NaN is in place of what is not known.
_COLUMNS = {
    "logprob": ("f", "nk", -np.inf, 0.0),
    "correct": ("bf", "nk", 0.0, 1.0),
    "cost": ("f", "nk", 0.0, np.inf),
    "mean_cost": ("f", "k", 0.0, np.inf),
    "names": ("u", "n", 0, np.inf),
    "answer": ("i", "nk", NO_ANSWER, np.inf),
    "seconds": ("f", "nk", 0.0, np.inf),
    "longest": ("f", "k", 0.0, np.inf),
    "labelled": ("b", "nk", 0, 1),
    "week": ("i", "n", _UNKNOWN_WEEK, np.inf),
}
_NEEDED = ("logprob", "correct", "cost", "mean_cost", "names")


def describe_reference(log: Log) -> dict[str, Any]:
    """Some queries of a log, always the same ones, as JSON values; `read_reference` undoes it.

    At most 400 (1,800 answers). Of queries that were carried before, and fresh ones, these get half of the places, or
    as many as are free.

    >>> import rcjax
    >>> kept = describe_reference(rcjax.sample_log(600, seed=0))
    >>> kept["queries"], len(kept["models"])
    (360, 5)
    """
    size = min(log.n_queries, MOST_QUERIES, max(1, _MOST_ANSWERS // len(log.models)))
    names, labelled = hash_names(log.queries), log.labelled
    first = None if log.hand is None else np.asarray(labelled.any(axis=1))
    rows = _drawn(carried_rows(log), first, names, size)
    answered, correct = np.asarray(log.answered)[rows], np.asarray(log.correct)[rows]
    mean = np.nan_to_num(np.asarray(log.cost, float))
    columns = {
        "logprob": np.where(answered, np.asarray(log.logprob)[rows], np.nan).astype("<f4"),
        "correct": correct if correct.dtype == bool else correct.astype("<f4"),
        "cost": _relative(np.asarray(log.query_cost)[rows], mean),
        "mean_cost": mean.astype("<f8"),
        "names": names[rows],
    }
    if log.time is not None:
        weeks = np.asarray(log.time, float)[rows] / _WEEK
        columns["week"] = np.where(np.isnan(weeks), _UNKNOWN_WEEK, np.nan_to_num(weeks)).astype("<i2")
    if log.answer is not None:
        columns["answer"] = np.asarray(log.answer)[rows].astype("<i2")
    if log.seconds is not None:
        seconds = np.asarray(log.seconds, float)
        longest = np.nan_to_num(seconds).max(0)  # of which they are parts; what is unknown is NaN
        columns |= {"seconds": _relative(seconds[rows], longest), "longest": longest.astype("<f8")}
    if not labelled[rows][answered].all():
        columns["labelled"] = labelled[rows]
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **columns)
    packed = base64.b64encode(content.getvalue()).decode("ascii")
    segments = {} if log.segment is None else {"segment": [log.segment[row] for row in rows]}
    return {"queries": size, "models": list(log.models), "columns": packed, **segments}


def carried_rows(log: Log) -> np.ndarray:
    """(n,) bool: the queries of a log that a policy carried."""
    return np.array([isinstance(name, str) and name.startswith(_CARRIED) for name in log.queries], bool)


def _drawn(carried: np.ndarray, labelled: np.ndarray | None, names: np.ndarray, size: int) -> np.ndarray:
    """Positions of `size` of n queries, drawn at random, in their order: of fresh ones half, or as many as are free.

    Args:
        carried: (n,) bool, which of them were carried before.
        labelled: (n,) bool, which of them have labels and go first; None: that makes no difference.
        names: (n,) the hashes of their names. By them carried queries are drawn: were those at the same places dropped
            each time, others would stay for ever.
        size: how many.
    """
    seed = int(names.sum(dtype=np.uint64)) if carried.any() else 0
    order = np.random.default_rng(seed).permutation(len(names))
    if labelled is not None:  # labels that are a fair sample stay one where they go first
        order = order[np.argsort(~labelled[order], kind="stable")]
    fresh, old = order[~carried[order]], order[carried[order]]
    places = max(size // 2, size - len(old))
    return np.sort(np.concatenate([fresh[:places], old[: size - min(places, len(fresh))]]))


def _relative(values: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Values as multiples of a unit, in half precision."""
    return np.minimum(values / np.where(unit > 0, unit, 1.0), np.finfo(np.float16).max).astype("<f2")


def hash_names(queries: Sequence[int | str]) -> np.ndarray:
    """(n,) the first 32 bits of the SHA-256 of each query's name: by it a query is known again, but not read.

    A query that was carried is named by its hash, which stays.

    >>> hash_names(["a", 1]).tolist() == hash_names([carried_name(hash) for hash in hash_names(["a", 1])]).tolist()
    True
    """
    return np.array([_hash(name) for name in queries], "<u4")


def _hash(name: int | str) -> int:
    if isinstance(name, str) and name.startswith(_CARRIED):
        return int(name.removeprefix(_CARRIED), 16)
    return int.from_bytes(sha256(str(name).encode("utf-8", "surrogatepass")).digest()[:_HASHED], "little")


def carried_name(hashed: int) -> str:
    """The name of a query that a policy carries, of which it knows a hash alone."""
    return f"{_CARRIED}{hashed:08x}"


def read_reference(data: Any, task: Literal["generation", "choice"]) -> Log:
    """What `describe_reference` kept, as a log, its queries named by hashes; ValueError where it is damaged."""
    try:
        held = read(Object, data, _WHERE)
        size = read(Annotated[int, Between(1, 10**15)], held.get("queries"), f"{_WHERE}.queries")
        models = read(Names, held.get("models"), f"{_WHERE}.models")
        columns = _unpacked(held.get("columns"), f"{_WHERE}.columns", {"n": size, "k": len(models)})
        segment = held.get("segment")
        told = segment is None or (isinstance(segment, tuple) and len(segment) == size)
        require(told, f"{_WHERE}.segment", f"must be {size} names", segment)
    except ValueError as problem:
        raise ValueError(f"the policy: the queries that it was tuned on are damaged: {problem}") from None
    logprob, correct = columns["logprob"], columns["correct"]
    answered = ~np.isnan(logprob)
    labelled = columns.get("labelled", answered)
    money = columns["cost"].astype(float) * columns["mean_cost"]
    fields: dict[str, Any] = {
        "logprob": logprob.astype(float),
        "correct": np.where(answered & labelled, correct, correct.dtype.type(0)),
        "query_cost": money,
        "answered": answered,
        "cost": money.sum(0) / np.maximum(answered.sum(0), 1),
    }
    if "answer" in columns:
        fields["answer"] = columns["answer"].astype(np.int32)
    if "seconds" in columns:
        fields["seconds"] = columns["seconds"].astype(float) * columns.get("longest", 1.0)
    fields = jax.device_put(fields)
    if not labelled[answered].all():
        hand = jax.device_put([labelled & answered, np.zeros((*answered.shape, 0))])
        fields["hand"] = HandLabels(*hand, judges=())
    if correct.dtype != bool:
        fields["scores"] = Scores()
    if "week" in columns:
        weeks = np.where(columns["week"] == _UNKNOWN_WEEK, np.nan, columns["week"] + 0.5)
        fields["time"] = tuple((_WEEK * weeks).tolist())
    fields["segment"] = None if segment is None else tuple(map(str, segment))
    names = tuple(map(carried_name, columns["names"].tolist()))
    return Log(models=models, queries=names, task=task, source="the policy", **fields)


def answers_by_name(log: Log, models: Sequence[str]) -> dict[int, bytes]:
    """The log-probabilities of some models, as a policy carries them, by the hash of the query's name.

    Queries that none of them has answered are left out. Names recur between logs, and so do rows where confidences are
    stated: the same query has both alike.
    """
    columns = [log.models.index(name) for name in models]
    answered = np.asarray(log.answered)[:, columns]
    cells = np.where(answered, np.asarray(log.logprob)[:, columns], np.nan).astype("<f4") + np.float32(0)  # −0 is 0
    names = hash_names(log.queries).tolist()
    return {name: cells[row].tobytes() for row, name in enumerate(names) if answered[row].any()}


def _unpacked(value: Any, where: str, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """The columns of an archive in base64; ValueError where they are not what `_COLUMNS` says.

    Args:
        value: what the file holds there.
        where: the place, for the message.
        sizes: how many queries and models there are, by the letters of `_COLUMNS`.
    """
    columns: dict[str, np.ndarray] = {}
    try:
        with np.load(io.BytesIO(base64.b64decode(read(str, value, where), validate=True))) as archive:
            columns = {name: archive[name] for name in _COLUMNS if name in archive}
    except (ValueError, TypeError, OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error):
        require(False, where, "must be columns as rcjax writes them", value)
    for name in _NEEDED:
        require(name in columns, where, f"must have a column {name}", list(columns))
    for name, column in columns.items():
        kinds, axes, low, high = _COLUMNS[name]
        shape = tuple(sizes[axis] for axis in axes)
        fits = column.dtype.kind in kinds and column.shape == shape and not ((column < low) | (column > high)).any()
        require(fits, where, f"must hold a {name} for each query and model, as rcjax writes them", column.shape)
    return columns
