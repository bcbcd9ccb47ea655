"""A few hundred queries of the training log, as a policy carries them: what later logs are compared with.

Drawn at random, not thinned to quantiles, so that they are a sample, and whole queries, so that the policy can be
replayed on them. Per model the raw log-probabilities in single precision, in which a later log is compared too, so that
what was tied stays tied; whether the answers were right, as bits, and where not all have a label, which do (queries
with labels go first); and the costs in half
precision, as multiples of their mean, without what waiting is worth; where the log tells them the seconds too, as parts
of the longest. In base64, as JSON knows neither infinities nor compact numbers. No text is kept: of the answers, where
the log has them, which are equal; and of the queries' names a hash, by which queries of another log are known to have
been tuned on (`rcjax.tuning.overlap`).
"""

import base64
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Literal

import jax
import numpy as np

from rcjax._base import json_checks as check
from rcjax.logs.cells import HandLabels
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.policy.scores import Scores

MOST_QUERIES = 400


_WHERE = "provenance.reference"


_MOST_ANSWERS = 1_800  # about 8 bytes of a policy file each, and 5 for each query


_HASHED = 4  # bytes of a name: enough, as the answers must agree too


def describe_reference(log: Log) -> dict[str, Any]:
    """At most 400 queries of a log (1,800 answers), always the same ones, as JSON values; `read_reference` undoes it.

    >>> import rcjax
    >>> kept = describe_reference(rcjax.sample_log(600, seed=0))
    >>> kept["queries"], sorted(kept["models"]["llama3.1-8b"])
    (360, ['correct', 'cost', 'logprob', 'mean_cost'])
    """
    log = log.with_waiting(0.0)
    size = min(log.n_queries, MOST_QUERIES, max(1, _MOST_ANSWERS // len(log.models)))
    order, labelled = np.random.default_rng(0).permutation(log.n_queries), log.labelled
    if log.hand is not None:  # labels that are a fair sample stay one where they go first
        order = order[np.argsort(~labelled[order].any(axis=1), kind="stable")]
    rows = np.sort(order[:size])
    logprob, correct, money, answered = (
        np.asarray(column)[rows] for column in (log.logprob, log.correct, log.query_cost, log.answered)
    )
    logprob = np.where(answered, logprob, np.nan).astype("<f4")
    unit = np.nan_to_num(np.asarray(log.cost, float))
    relative = _relative(money, unit)
    models: dict[str, dict[str, Any]] = {
        name: {
            "logprob": _packed(logprob[:, j].tobytes()),
            **_packed_labels(correct[:, j]),
            "cost": _packed(relative[:, j].tobytes()),
            "mean_cost": float(unit[j]),
        }
        for j, name in enumerate(log.models)
    }
    if log.answer is not None:
        codes = np.asarray(log.answer)[rows].astype("<i2")
        for j, name in enumerate(log.models):
            models[name]["answer"] = _packed(codes[:, j].tobytes())
    if log.seconds is not None:
        seconds = np.asarray(log.seconds)
        longest = np.nan_to_num(seconds.astype(float)).max(0)  # of which they are parts; what is unknown is NaN
        for j, name in enumerate(log.models):
            packed = _packed(_relative(seconds[rows, j], longest[j]).tobytes())
            models[name] |= {"seconds": packed, "longest": float(longest[j])}
    if not labelled[rows][answered].all():
        for j, name in enumerate(log.models):
            models[name]["labelled"] = _packed(np.packbits(labelled[rows, j]).tobytes())
    names = hash_names([log.queries[row] for row in rows])
    return {"queries": size, "models": models, "names": _packed(names.tobytes())}


def _packed_labels(correct: np.ndarray) -> dict[str, str]:
    """Labels of a model's answers: a bit for right, or where they are scores, numbers."""
    if correct.dtype == bool:
        return {"correct": _packed(np.packbits(correct).tobytes())}
    return {"score": _packed(correct.astype("<f4").tobytes())}


def _relative(values: np.ndarray, unit: np.ndarray | float) -> np.ndarray:
    """Values as multiples of a unit, in half precision."""
    return np.minimum(values / np.where(unit > 0, unit, 1.0), np.finfo(np.float16).max).astype("<f2")


def hash_names(queries: Sequence[int | str]) -> np.ndarray:
    """(n,) the first 32 bits of the SHA-256 of each query's name: by it a query is known again, but not read."""
    hashes = (sha256(str(name).encode("utf-8", "surrogatepass")).digest()[:_HASHED] for name in queries)
    return np.frombuffer(b"".join(hashes), "<u4")


def read_reference(data: Any, task: Literal["generation", "choice"], source: str = "the policy") -> Log:
    """What `describe_reference` kept, as a log, its queries named by hashes; ValueError where it is damaged."""
    try:
        held = check.items(data, _WHERE, check.as_it_is)
        size = check.whole(held.get("queries"), f"{_WHERE}.queries", 1)
        columns = check.items(held.get("models"), f"{_WHERE}.models", partial(_column, size=size))
        check.require(len(columns) > 0, f"{_WHERE}.models", "must not be empty", {})
        names = _unpacked(held.get("names"), f"{_WHERE}.names", "<u4", size)
    except ValueError as problem:
        raise ValueError(f"{source}: the queries that it was tuned on are damaged: {problem}") from None
    logprob, correct, money, answer, labelled, seconds = (
        np.stack(rows, axis=1) for rows in zip(*columns.values(), strict=True)
    )
    answered = ~np.isnan(logprob)
    fields: dict[str, Any] = jax.device_put(
        {
            "logprob": logprob.astype(float),
            "correct": np.where(answered & labelled, correct, correct.dtype.type(0)),
            "query_cost": money,
            "answered": answered,
            "cost": money.sum(0) / np.maximum(answered.sum(0), 1),
        }
    )
    if not labelled[answered].all():
        hand = jax.device_put([labelled & answered, np.zeros((*answered.shape, 0))])
        fields["hand"] = HandLabels(*hand, judges=())
    if (answer != NO_ANSWER).any():
        fields["answer"] = jax.device_put(answer)
    if np.isfinite(seconds).any():
        fields["seconds"] = jax.device_put(seconds)
    if correct.dtype != bool:
        fields["scores"] = Scores()
    return Log(models=tuple(columns), queries=tuple(names.tolist()), task=task, source=source, **fields)


def _column(value: Any, where: str, size: int) -> tuple[np.ndarray, ...]:
    """(logprob, right or its score, cost, code of the answer, has a label, the seconds), each (size,), of a model."""
    data = check.items(value, where, check.as_it_is)
    logprob = _unpacked(data.get("logprob"), f"{where}.logprob", "<f4", size)
    right = _labels(data, where, size)
    relative = _unpacked(data.get("cost"), f"{where}.cost", "<f2", size)
    unit = check.amount(data.get("mean_cost"), f"{where}.mean_cost")
    check.require(not (logprob > 0).any(), f"{where}.logprob", "must hold nothing above 0", data["logprob"])
    check.require(bool((relative >= 0).all()), f"{where}.cost", "must hold nothing below 0", data["cost"])
    answer = np.full(size, NO_ANSWER, "<i2")
    if data.get("answer") is not None:
        answer = _unpacked(data["answer"], f"{where}.answer", "<i2", size)
    bits = np.full(-(-size // 8), 255, "u1")
    if data.get("labelled") is not None:
        bits = _unpacked(data["labelled"], f"{where}.labelled", "u1", -(-size // 8))
    labelled = np.unpackbits(bits)[:size].astype(bool)
    return logprob, right, relative.astype(float) * unit, answer.astype(np.int32), labelled, _seconds(data, where, size)


def _seconds(data: Mapping[str, Any], where: str, size: int) -> np.ndarray:
    """(size,) how long the answers took, NaN where that is not known."""
    packed, at = data.get("seconds"), f"{where}.seconds"
    if packed is None:
        return np.full(size, np.nan)
    parts = _unpacked(packed, at, "<f2", size).astype(float)
    check.require(not (parts < 0).any(), at, "must hold nothing below 0", packed)
    return parts * check.amount(data.get("longest"), f"{where}.longest")


def _labels(data: Mapping[str, Any], where: str, size: int) -> np.ndarray:
    """(size,) which answers are right, or their scores."""
    if data.get("score") is None:
        bits = _unpacked(data.get("correct"), f"{where}.correct", "u1", -(-size // 8))
        return np.unpackbits(bits)[:size].astype(bool)
    scores = _unpacked(data["score"], f"{where}.score", "<f4", size)
    sound = bool(((scores >= 0) & (scores <= 1)).all())
    check.require(sound, f"{where}.score", "must hold numbers from 0 to 1", data["score"])
    return scores


def _unpacked(value: Any, where: str, kind: str, size: int) -> np.ndarray:
    """So many numbers of a kind, from base64."""
    try:
        numbers = np.frombuffer(base64.b64decode(check.name(value, where), validate=True), kind)
    except ValueError:
        numbers = np.zeros(0)
    check.require(len(numbers) == size, where, f"must be {size} numbers in base64", value)
    return numbers


def _packed(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
