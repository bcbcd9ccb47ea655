"""The kept sample: a few hundred queries of the training log, which a policy file carries for later comparisons.

The sample is fair, since queries are drawn at random, and holds all answers, so that a policy can be replayed on it.
JSON has neither infinities nor compact numbers. So the columns are numpy arrays in one archive, in base64:

- log-probabilities in single precision, as in comparisons with a later log, so that ties stay ties;
- labels and, if some answers lack one, the mask of labelled answers (labelled queries are drawn first);
- costs in half precision, as multiples of their mean; latencies as fractions of the maximum; times as week numbers;
- no text, but codes of equal answers, and hashes of the queries' names. By its hash a query of a later log is
  recognised as a query that the policy was tuned on (`rcjax.tuning.certify`).

A policy that is tuned again carries queries of the fresh log and some queries that its predecessor carried. Fresh
queries get half of the places, or all places that carried queries leave free, so that a bad log is soon forgotten.

`pool_logs` joins carried queries with the queries of a fresh log: a week may bring only a hundred labels, and the three
or four hundred carried queries may be stale. Carried costs are rescaled to each model's mean cost in the fresh log,
since a new price applies to all queries.
"""

import base64
import dataclasses
import io
import zipfile
import zlib
from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._base.codec import Between, Names, Object, fail, read_value, require
from rcjax.logs.log import NO_ANSWER, HandLabels, Log
from rcjax.policy.error_kind import Scores, recorded_error_kind
from rcjax.policy.policy import AbstractPolicy

MAX_QUERIES = 400

_PATH = "provenance.kept_sample"

_MAX_ANSWERS = 1_800  # about 8 bytes of a policy file each, and 5 for each query
_HASHED = 4  # bytes of a hash: enough, since log-probabilities must agree too

#: Prefix of the name of a carried query, before its hash in hexadecimal.
_CARRIED = "carried:"

_WEEK = 7 * 86_400  # seconds
_UNKNOWN_WEEK = -1

#: The columns: dtype kinds, axes ("nk": per query and model), least and largest value. An unknown value is NaN.
_COLUMNS = {
    "logprob": ("f", "nk", -np.inf, 0.0),
    "correct": ("bf", "nk", 0.0, 1.0),
    "cost": ("f", "nk", 0.0, np.inf),
    "mean_cost": ("f", "k", 0.0, np.inf),
    "names": ("u", "n", 0, np.inf),
    "signal_cost": ("f", "nk", 0.0, np.inf),
    "answer": ("i", "nk", NO_ANSWER, np.inf),
    "seconds": ("f", "nk", 0.0, np.inf),
    "longest": ("f", "k", 0.0, np.inf),
    "labelled": ("b", "nk", 0, 1),
    "week": ("i", "n", _UNKNOWN_WEEK, np.inf),
}
_NEEDED = ("logprob", "correct", "cost", "mean_cost", "names")


def describe_kept_sample(log: Log) -> dict[str, Any]:
    """Return the kept sample of a log as JSON values, always the same sample; `read_kept_sample` is the inverse.

    The sample has at most 400 queries and 1,800 answers. Fresh queries get half of the places, or as many as carried
    queries leave free.

    >>> import rcjax
    >>> kept = describe_kept_sample(rcjax.sample_log(300, seed=0))
    >>> kept["queries"], len(kept["models"])
    (300, 5)
    """
    size = min(log.n_queries, MAX_QUERIES, max(1, _MAX_ANSWERS // len(log.models)))
    names, labelled = hash_names(log.queries), log.labelled
    has_label = None if log.hand_labels is None else np.asarray(labelled.any(axis=1))
    rows = _sample_rows(carried_mask(log), has_label, names, size)
    answered, correct = np.asarray(log.answered)[rows], np.asarray(log.correct)[rows]
    mean = np.nan_to_num(np.asarray(log.cost, float))
    columns = {
        "logprob": np.where(answered, np.asarray(log.logprob)[rows], np.nan).astype("<f4"),
        "correct": correct if correct.dtype == bool else correct.astype("<f4"),
        "cost": _in_units(np.asarray(log.query_cost)[rows], mean),
        "mean_cost": mean.astype("<f8"),
        "names": names[rows],
    }
    if log.time is not None:
        weeks = np.asarray(log.time, float)[rows] / _WEEK
        columns["week"] = np.where(np.isnan(weeks), _UNKNOWN_WEEK, np.nan_to_num(weeks)).astype("<i2")
    if log.signal_cost is not None:
        columns["signal_cost"] = _in_units(np.asarray(log.signal_cost)[rows], mean)
    if log.answer is not None:
        columns["answer"] = np.asarray(log.answer)[rows].astype("<i2")
    if log.seconds is not None:
        seconds = np.asarray(log.seconds, float)
        longest = np.nan_to_num(seconds).max(0)  # the unit; an unknown latency is NaN
        columns |= {"seconds": _in_units(seconds[rows], longest), "longest": longest.astype("<f8")}
    if not labelled[rows][answered].all():
        columns["labelled"] = labelled[rows]
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **columns)
    archive = base64.b64encode(content.getvalue()).decode("ascii")
    segments = {} if log.segment is None else {"segment": [log.segment[row] for row in rows]}
    return {"queries": size, "models": list(log.models), "columns": archive, **segments}


def carried_mask(log: Log) -> np.ndarray:
    """Return an (n,) bool mask of the queries that a policy carried."""
    return np.array([isinstance(name, str) and name.startswith(_CARRIED) for name in log.queries], bool)


def _sample_rows(carried: np.ndarray, labelled: np.ndarray | None, names: np.ndarray, size: int) -> np.ndarray:
    """Draw `size` of n queries at random, labelled queries first; return their positions, ascending.

    Fresh queries get half of the places, or as many as carried queries leave free. If some queries are carried, the
    hashes of the names seed the draw, so that each tuning draws others.
    """
    seed = int(names.sum(dtype=np.uint64)) if carried.any() else 0
    order = np.random.default_rng(seed).permutation(len(names))
    if labelled is not None:  # the labels stay a fair sample
        order = order[np.argsort(~labelled[order], kind="stable")]
    fresh, carried_order = order[~carried[order]], order[carried[order]]
    places = max(size // 2, size - len(carried_order))
    return np.sort(np.concatenate([fresh[:places], carried_order[: size - min(places, len(fresh))]]))


def _in_units(values: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return values as multiples of a unit, in half precision."""
    return np.minimum(values / np.where(unit > 0, unit, 1.0), np.finfo(np.float16).max).astype("<f2")


def hash_names(queries: Sequence[int | str]) -> np.ndarray:
    """Return (n,) hashes: the first 32 bits of the SHA-256 of each query's name, which do not reveal the name.

    A carried query is named by its hash, and keeps it.

    >>> hash_names(["a", 1]).tolist() == hash_names([carried_name(hash) for hash in hash_names(["a", 1])]).tolist()
    True
    """
    return np.array([_hash(name) for name in queries], "<u4")


def _hash(name: int | str) -> int:
    if isinstance(name, str) and name.startswith(_CARRIED):
        return int(name.removeprefix(_CARRIED), 16)
    return int.from_bytes(sha256(str(name).encode("utf-8", "surrogatepass")).digest()[:_HASHED], "little")


def carried_name(hashed: int) -> str:
    """Return the name of a carried query, from its hash."""
    return f"{_CARRIED}{hashed:08x}"


def read_kept_sample(data: Any, task: Literal["generation", "choice"]) -> Log:
    """Return the kept sample of `describe_kept_sample` as a log with hashed names; ValueError if it is damaged."""
    try:
        sample = read_value(Object, data, _PATH)
        size = read_value(Annotated[int, Between(1, 10**15)], sample.get("queries"), f"{_PATH}.queries")
        models = read_value(Names, sample.get("models"), f"{_PATH}.models")
        columns = _unpack(sample.get("columns"), f"{_PATH}.columns", {"n": size, "k": len(models)})
        segment = sample.get("segment")
        fits = segment is None or (isinstance(segment, tuple) and len(segment) == size)
        require(fits, f"{_PATH}.segment", f"must be {size} names", segment)
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
    if "signal_cost" in columns:
        fields["signal_cost"] = columns["signal_cost"].astype(float) * columns["mean_cost"]
    if "answer" in columns:
        fields["answer"] = columns["answer"].astype(np.int32)
    if "seconds" in columns:
        fields["seconds"] = columns["seconds"].astype(float) * columns.get("longest", 1.0)
    fields = jax.device_put(fields)
    if not labelled[answered].all():
        hand = jax.device_put([labelled & answered, np.zeros((*answered.shape, 0))])
        fields["hand_labels"] = HandLabels(*hand, judges=())
    if correct.dtype != bool:
        fields["scores"] = Scores()
    if "week" in columns:
        weeks = np.where(columns["week"] == _UNKNOWN_WEEK, np.nan, columns["week"] + 0.5)
        fields["time"] = tuple((_WEEK * weeks).tolist())
    fields["segment"] = None if segment is None else tuple(map(str, segment))
    names = tuple(map(carried_name, columns["names"].tolist()))
    return Log(models=models, queries=names, task=task, source="the policy", **fields)


def carried_log(policy: AbstractPolicy) -> Log:
    """Return the queries that a policy carries, as a log. Raises ValueError for a policy that carries no queries."""
    sample = policy.provenance.get("kept_sample")
    if sample is None or not policy.calibrations:
        problem = "carries no queries that it was tuned on" if policy.calibrations else "is not calibrated"
        raise ValueError(f"the policy {problem}, as one made by hand: tune one")
    task = "choice" if next(iter(policy.calibrations.values())).transform == "choice" else "generation"
    return read_kept_sample(sample, task)


def answers_by_name(log: Log, models: Sequence[str]) -> dict[int, bytes]:
    """Return the log-probabilities of some models as bytes in single precision, by the hash of the query's name.

    Queries without an answer of these models are left out. Two logs may share names, and verbalised confidences are
    often equal: only queries with the same name and the same log-probabilities are the same query.
    """
    columns = [log.models.index(name) for name in models]
    answered = np.asarray(log.answered)[:, columns]
    cells = np.where(answered, np.asarray(log.logprob)[:, columns], np.nan).astype("<f4") + np.float32(0)  # −0 is 0
    names = hash_names(log.queries).tolist()
    return {name: cells[row].tobytes() for row, name in enumerate(names) if answered[row].any()}


def _unpack(value: Any, place: str, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Decode the columns of an archive in base64; ValueError if they do not fit `_COLUMNS` and the axes' `sizes`."""
    columns: dict[str, np.ndarray] = {}
    try:
        with np.load(io.BytesIO(base64.b64decode(read_value(str, value, place), validate=True))) as archive:
            columns = {name: archive[name] for name in _COLUMNS if name in archive}
    except (ValueError, TypeError, OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error):
        fail(place, "must be columns as rcjax writes them", value)
    for name in _NEEDED:
        require(name in columns, place, f"must have a column {name}", list(columns))
    for name, column in columns.items():
        kinds, axes, low, high = _COLUMNS[name]
        shape = tuple(sizes[axis] for axis in axes)
        fits = column.dtype.kind in kinds and column.shape == shape and not ((column < low) | (column > high)).any()
        require(fits, place, f"must hold a {name} for each query and model, as rcjax writes them", column.shape)
    return columns


#: Value of a field for the queries of a log that lacks it.
_UNKNOWN = {"signal_cost": 0.0, "answer": NO_ANSWER, "seconds": np.nan, "segment": "", "time": np.nan}


def pool_logs(carried: Log, fresh: Log) -> Log:
    """Return the carried queries, followed by the fresh queries, with the models of the fresh log.

    A carried query that is in the fresh log occurs once. Request settings, prices and the source are those of the fresh
    log; costs of second questions, answers, seconds, segments and times are kept only if the fresh log has them.

    >>> import rcjax
    >>> from rcjax.logs.kept_sample import describe_kept_sample, read_kept_sample
    >>> old, fresh = rcjax.sample_log(300, seed=0).split(0.5, seed=0)
    >>> carried = read_kept_sample(describe_kept_sample(old), "choice")
    >>> both = pool_logs(carried, fresh)
    >>> both.n_queries, pool_logs(carried, both).n_queries
    (300, 300)
    """
    kept = _missing_in(carried, fresh)
    if kept is None:
        return fresh
    kept = _rescale_costs(fresh, _with_models(kept, fresh.models))
    fields = {
        "queries": (*kept.queries, *fresh.queries),
        "hand_labels": _join_hand_labels(kept, fresh),
        "scores": fresh.scores or kept.scores,
        "labelled_log": None,
        "correct": _stack(kept.correct, fresh.correct),
    }
    for name in ("logprob", "query_cost", "answered"):
        fields[name] = _stack(getattr(kept, name), getattr(fresh, name))
    for name in _UNKNOWN:
        fields[name] = _join_field(name, getattr(kept, name), getattr(fresh, name), kept.n_queries)
    return dataclasses.replace(fresh, **fields).take(slice(None))  # averages the costs


def _missing_in(carried: Log, fresh: Log) -> Log | None:
    """Return the carried queries that the fresh log lacks and a model of both logs answered; None without any."""
    shared = [name for name in carried.models if name in fresh.models]
    if not shared:
        return None
    answers, fresh_answers = answers_by_name(carried, shared), answers_by_name(fresh, shared)
    missing = {name for name, row in answers.items() if fresh_answers.get(name) != row}
    is_missing = np.array([name in missing for name in hash_names(carried.queries).tolist()], bool)
    return carried.take(is_missing) if is_missing.any() else None


def _with_models(log: Log, models: tuple[str, ...]) -> Log:
    """Return a log with these models in this order; a model that the log lacks has no answers."""
    positions = np.array([log.models.index(name) if name in log.models else -1 for name in models])

    def column(values: Any, missing: Any) -> np.ndarray:
        values = np.asarray(values)
        return np.where(positions >= 0, values[:, positions], np.asarray(missing, values.dtype))

    fields: dict[str, Any] = {
        "logprob": column(log.logprob, np.nan),
        "correct": column(log.correct, 0),
        "query_cost": column(log.query_cost, 0),
        "answered": column(log.answered, False),
        "signal_cost": None if log.signal_cost is None else column(log.signal_cost, 0),
        "answer": None if log.answer is None else column(log.answer, NO_ANSWER),
        "seconds": None if log.seconds is None else column(log.seconds, np.nan),
    }
    if log.hand_labels is not None:
        labelled = column(log.hand_labels.labelled, False)
        fields["hand_labels"] = HandLabels(jnp.asarray(labelled), jnp.zeros((*labelled.shape, 0)), ())
    return dataclasses.replace(
        log, models=models, cost=np.where(positions >= 0, np.asarray(log.cost)[positions], np.nan), **fields
    )


def _rescale_costs(fresh: Log, old: Log) -> Log:
    """Rescale the costs of the old log to each model's mean cost in the fresh log, if both logs have answers of it."""
    new_cost, old_cost = np.asarray(fresh.cost, float), np.asarray(old.cost, float)
    is_known = np.isfinite(new_cost) & np.isfinite(old_cost)
    ratio = np.where(is_known & (old_cost > 0), new_cost / np.where(old_cost > 0, old_cost, 1.0), 1.0)
    cost = np.asarray(old.query_cost, float) * ratio
    signal = None if old.signal_cost is None else jnp.asarray(np.asarray(old.signal_cost, float) * ratio)
    was_free = is_known & (old_cost == 0) & np.asarray(old.answered)  # a model that was free may cost money now
    return dataclasses.replace(old, query_cost=jnp.asarray(np.where(was_free, new_cost, cost)), signal_cost=signal)


def _stack(old: Any, fresh: Any) -> jax.Array:
    dtype = np.asarray(fresh).dtype
    old = np.asarray(old)
    if old.dtype.kind == "f" and dtype.kind == "b":  # scores beside right and wrong
        dtype = old.dtype
    return jax.device_put(np.concatenate([old.astype(dtype), np.asarray(fresh).astype(dtype)]))


def _join_field(name: str, old: Any, fresh: Any, n: int) -> Any:
    """Join a field of n carried queries with the field of the fresh log; None if the fresh log lacks the field."""
    if fresh is None:
        return None
    missing = _UNKNOWN[name]
    if isinstance(fresh, tuple):
        return (*((missing,) * n if old is None else old), *fresh)
    return _stack(np.full((n, *fresh.shape[1:]), missing) if old is None else old, fresh)


def _join_hand_labels(old: Log, fresh: Log) -> HandLabels | None:
    """Join the masks of labels, and the verdicts of the fresh log's judges; None if neither log has hand labels."""
    if old.hand_labels is None and fresh.hand_labels is None:
        return None
    judges = () if fresh.hand_labels is None else fresh.hand_labels.judges
    verdicts = np.full((*np.shape(old.answered), len(judges)), np.nan)
    judged = (
        np.zeros((*np.shape(fresh.answered), 0)) if fresh.hand_labels is None else np.asarray(fresh.hand_labels.judged)
    )
    labelled = np.concatenate([old.labelled & np.asarray(old.answered), fresh.labelled & np.asarray(fresh.answered)])
    return HandLabels(*jax.device_put([labelled, np.concatenate([verdicts, judged])]), judges=judges)


def with_carried_queries(policy: AbstractPolicy, log: Log) -> Log:
    """Return a fresh log after the queries that a policy carries, if both count the same kind of errors."""
    if policy.provenance.get("kept_sample") is None or not policy.calibrations:
        return log
    nouns = recorded_error_kind(policy.provenance).noun, log.error_kind.noun
    return log if nouns[0] != nouns[1] and "difference" in nouns else pool_logs(carried_log(policy), log)
