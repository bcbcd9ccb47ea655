"""A few hundred queries of the training log, as a policy carries them: what later logs are compared with.

Drawn at random, not thinned to quantiles, so that they are a sample, and whole queries, so that the policy can be
replayed on them. Columns are numpy's arrays in one archive, in base64, as JSON knows neither infinities nor compact
numbers: log-probabilities in single precision, in which a later log is compared too, so that what was tied stays tied;
labels, and where not all answers have one, which do (queries with labels go first); costs in half precision, as
multiples of their mean, without what waiting is worth; where the log tells them the seconds too, as parts of the
longest. No text is kept: of the answers, where the log has them, which are equal; and of the queries' names a hash, by
which queries of another log are known to have been tuned on (`rcjax.tuning.certify`).
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
}
_NEEDED = ("logprob", "correct", "cost", "mean_cost", "names")


def describe_reference(log: Log) -> dict[str, Any]:
    """At most 400 queries of a log (1,800 answers), always the same ones, as JSON values; `read_reference` undoes it.

    >>> import rcjax
    >>> kept = describe_reference(rcjax.sample_log(600, seed=0))
    >>> kept["queries"], len(kept["models"])
    (360, 5)
    """
    log = log.with_waiting(0.0)
    size = min(log.n_queries, MOST_QUERIES, max(1, _MOST_ANSWERS // len(log.models)))
    order, labelled = np.random.default_rng(0).permutation(log.n_queries), log.labelled
    if log.hand is not None:  # labels that are a fair sample stay one where they go first
        order = order[np.argsort(~labelled[order].any(axis=1), kind="stable")]
    rows = np.sort(order[:size])
    answered, correct = np.asarray(log.answered)[rows], np.asarray(log.correct)[rows]
    mean = np.nan_to_num(np.asarray(log.cost, float))
    columns = {
        "logprob": np.where(answered, np.asarray(log.logprob)[rows], np.nan).astype("<f4"),
        "correct": correct if correct.dtype == bool else correct.astype("<f4"),
        "cost": _relative(np.asarray(log.query_cost)[rows], mean),
        "mean_cost": mean.astype("<f8"),
        "names": hash_names([log.queries[row] for row in rows]),
    }
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


def _relative(values: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Values as multiples of a unit, in half precision."""
    return np.minimum(values / np.where(unit > 0, unit, 1.0), np.finfo(np.float16).max).astype("<f2")


def hash_names(queries: Sequence[int | str]) -> np.ndarray:
    """(n,) the first 32 bits of the SHA-256 of each query's name: by it a query is known again, but not read."""
    hashes = (sha256(str(name).encode("utf-8", "surrogatepass")).digest()[:_HASHED] for name in queries)
    return np.frombuffer(b"".join(hashes), "<u4")


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
    fields["segment"] = None if segment is None else tuple(map(str, segment))
    return Log(models=models, queries=tuple(columns["names"].tolist()), task=task, source="the policy", **fields)


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
