"""Pool the queries that a policy carries with those of a fresh log.

A week may bring only a hundred labels, and the three or four hundred queries that a policy carries may be stale: the
pooled log uses both. Carried costs are rescaled to each model's mean cost in the fresh log, since a new price applies
to all queries.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from rcjax.logs.cells import HandLabels
from rcjax.logs.kept_sample import answers_by_name, hash_names
from rcjax.logs.log import NO_ANSWER, Log

#: Value of a field for the queries of a log that lacks it.
_UNKNOWN = {"answer": NO_ANSWER, "seconds": np.nan, "segment": "", "time": np.nan}


def pooled(carried: Log, fresh: Log) -> Log:
    """Return the carried queries (`read_reference`) followed by those of a fresh log, with the models of the latter.

    A carried query that is in the fresh log occurs once. Request settings, prices and the source are those of the fresh
    log; answers, seconds, segments and times are kept only if the fresh log has them.

    >>> import rcjax
    >>> from rcjax.logs.kept_sample import describe_reference, read_reference
    >>> old, fresh = rcjax.sample_log(300, seed=0).split(0.5, seed=0)
    >>> carried = read_reference(describe_reference(old), "choice")
    >>> both = pooled(carried, fresh)
    >>> both.n_queries, pooled(carried, both).n_queries
    (300, 300)
    """
    old = _without(carried, fresh)
    if old is None:
        return fresh
    old = _at_costs_of(fresh, _with_models(old, fresh.models))
    fields = {
        "queries": (*old.queries, *fresh.queries),
        "hand": _labels(old, fresh),
        "scores": fresh.scores or old.scores,
        "errors": None,
        "correct": _stacked(old.correct, fresh.correct),
    }
    for name in ("logprob", "query_cost", "answered"):
        fields[name] = _stacked(getattr(old, name), getattr(fresh, name))
    for name in ("answer", "seconds", "segment", "time"):
        fields[name] = _told(name, getattr(old, name), getattr(fresh, name), old.n_queries)
    return dataclasses.replace(fresh, **fields).take(slice(None))  # averages the costs


def _without(carried: Log, fresh: Log) -> Log | None:
    """Return the carried queries that the fresh log lacks, if a model of both logs answered them; None if none."""
    both = [name for name in carried.models if name in fresh.models]
    if not both:
        return None
    here, there = answers_by_name(carried, both), answers_by_name(fresh, both)
    known = {name for name, row in here.items() if there.get(name) == row}
    new = np.array([name in here and name not in known for name in hash_names(carried.queries).tolist()], bool)
    return carried.take(new) if new.any() else None


def _with_models(log: Log, models: tuple[str, ...]) -> Log:
    """Return a log with these models in this order; a model that the log lacks has no answers."""
    place = np.array([log.models.index(name) if name in log.models else -1 for name in models])

    def column(values: Any, nothing: Any) -> np.ndarray:
        values = np.asarray(values)
        return np.where(place >= 0, values[:, place], np.asarray(nothing, values.dtype))

    fields: dict[str, Any] = {
        "logprob": column(log.logprob, np.nan),
        "correct": column(log.correct, 0),
        "query_cost": column(log.query_cost, 0),
        "answered": column(log.answered, False),
        "answer": None if log.answer is None else column(log.answer, NO_ANSWER),
        "seconds": None if log.seconds is None else column(log.seconds, np.nan),
    }
    if log.hand is not None:
        labelled = column(log.hand.labelled, False)
        fields["hand"] = HandLabels(labelled, np.zeros((*labelled.shape, 0)), ())  # type: ignore[arg-type]
    return dataclasses.replace(
        log, models=models, cost=np.where(place >= 0, np.asarray(log.cost)[place], np.nan), **fields
    )


def _at_costs_of(fresh: Log, old: Log) -> Log:
    """Rescale the costs of the old log to each model's mean cost in the fresh log, if the model answers in both."""
    now, then = np.asarray(fresh.cost, float), np.asarray(old.cost, float)
    known = np.isfinite(now) & np.isfinite(then)
    ratio = np.where(known & (then > 0), now / np.where(then > 0, then, 1.0), 1.0)
    cost = np.asarray(old.query_cost, float) * ratio
    free = known & (then == 0)  # a model that was free may cost money now
    return dataclasses.replace(old, query_cost=np.where(free & np.asarray(old.answered), now, cost))  # type: ignore[arg-type]


def _stacked(old: Any, fresh: Any) -> jax.Array:
    dtype = np.asarray(fresh).dtype
    old = np.asarray(old)
    if old.dtype.kind == "f" and dtype.kind == "b":  # scores beside right and wrong
        dtype = old.dtype
    return jax.device_put(np.concatenate([old.astype(dtype), np.asarray(fresh).astype(dtype)]))


def _told(name: str, old: Any, fresh: Any, n: int) -> Any:
    """Join a field of n carried queries, unknown if they lack it, with the fresh log's; None if the latter lacks it."""
    if fresh is None:
        return None
    nothing = _UNKNOWN[name]
    if isinstance(fresh, tuple):
        return (*((nothing,) * n if old is None else old), *fresh)
    return _stacked(np.full((n, *fresh.shape[1:]), nothing) if old is None else old, fresh)


def _labels(old: Log, fresh: Log) -> HandLabels | None:
    """Join the masks of labels, and the verdicts of the fresh log's judges; None if neither log has `hand`."""
    if old.hand is None and fresh.hand is None:
        return None
    judges = () if fresh.hand is None else fresh.hand.judges
    verdicts = np.full((*np.shape(old.answered), len(judges)), np.nan)
    judged = np.zeros((*np.shape(fresh.answered), 0)) if fresh.hand is None else np.asarray(fresh.hand.judged)
    labelled = np.concatenate([old.labelled & np.asarray(old.answered), fresh.labelled & np.asarray(fresh.answered)])
    return HandLabels(*jax.device_put([labelled, np.concatenate([verdicts, judged])]), judges=judges)
