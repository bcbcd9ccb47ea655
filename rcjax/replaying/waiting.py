"""How long the queries of a log wait under policies: seconds summed along the path that each query takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rcjax._core.compilation import compiled
from rcjax._core.size_classes import fill_up
from rcjax.frontier.policies import Policies
from rcjax.frontier.waiting_times import Seconds
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.record import recorded_waiting
from rcjax.replaying.packing import Packed, calibrated
from rcjax.replaying.walk import walk

if TYPE_CHECKING:
    from rcjax.frontier.frontier import Frontier


_AT_ONCE, _MANY = 64, 512  # policies that walk the log at a time: of a frontier, and of so many candidates or more


_MOST_ELEMENTS = 2**23  # queries × policies × models held at a time


_TAIL = 0.95  # share of the queries


_ROUNDING = 1e-9  # of sums of weights


def as_tuned(subject: AnyPolicy | Frontier, log: Log) -> Log:
    """A log with the costs that a policy or frontier counts: what a second of waiting is worth as when it was tuned.

    Raises LogError where that is not 0, and the log does not tell how long every answer took.
    """
    provenance = subject.provenance if isinstance(subject, AnyPolicy) else subject.model.provenance
    price, _ = recorded_waiting(provenance)
    try:
        return log.with_waiting(price)
    except LogError as problem:
        raise LogError(f"the policy was tuned with a price of ${price:.4g} a second: {problem}") from None


def seconds_columns(log: Log, models: tuple[str, ...], asked: np.ndarray) -> np.ndarray | None:
    """(k, n) the seconds of the queries that all those asked have answered, as `columns_of` has them; None for none."""
    if log.seconds is None:
        return None
    part = log.select([name for name, used in zip(models, asked, strict=True) if used])
    waits = np.asarray(part.seconds)[part.complete].T
    filled = np.zeros((len(models), waits.shape[1]), waits.dtype)
    filled[asked] = waits
    return filled


def paths(asked: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(weights, waits), each (…, P, n): how likely a query takes each of P paths, and the seconds along it.

    One path, but where lots decide how far a query goes: then who asks a model has asked all the likelier ones. Seconds
    are NaN from the first call on whose seconds are not known.

    Args:
        asked: (…, k, n) which models are asked, or how likely.
        seconds: (k, n) of their answers.

    >>> weights, waits = paths(np.array([[1.0], [0.25]]), np.array([[2.0], [3.0]]))
    >>> weights.tolist(), waits.tolist()
    ([[0.75], [0.25]], [[2.0], [5.0]])
    """
    waits = np.where(asked > 0, seconds, 0.0)
    if asked.dtype == bool:
        waits = waits.sum(-2, keepdims=True)
        return np.ones_like(waits), waits
    order = np.argsort(-asked, axis=-2, kind="stable")
    odds, waits = (np.take_along_axis(values, order, -2) for values in (asked.astype(float), waits))
    return -np.diff(odds, axis=-2, append=0.0), waits.cumsum(-2)


def seconds_of(weights: np.ndarray, waits: np.ndarray) -> Seconds:
    """The figures of a policy, of the queries whose seconds are known.

    Args:
        weights, waits: (P, n) as `paths` has them; the weights of a query sum to 1.

    >>> seconds = seconds_of(np.ones((1, 4)), np.array([[3.0, 1.0, 2.0, np.nan]]))
    >>> float(seconds.mean), float(seconds.p95)
    (2.0, 3.0)
    """
    known = ~np.isnan(waits).any(0)
    if not known.any():
        return Seconds(np.array(np.nan), np.array(np.nan))
    weights, waits = weights[:, known].ravel(), waits[:, known].ravel()
    order = np.argsort(waits)
    place = np.searchsorted(weights[order].cumsum(), (_TAIL - _ROUNDING) * known.sum())
    return Seconds(weights @ waits / known.sum(), waits[order[min(place, len(order) - 1)]])


def paths_of(
    packed: Packed, logprob: np.ndarray, seconds: np.ndarray, codes: np.ndarray | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """`paths` of policies, (C, P, n), some after the other.

    Args:
        packed: the policies.
        logprob, seconds: (k, n) raw log-probabilities, and seconds.
        codes: (k, n) of answers, for policies that compare them; else None.
    """
    n, policies, total = logprob.shape[1], packed.policies, len(packed.policies.first)
    data = fill_up(logprob, axis=1)[0]
    codes = None if codes is None or policies.agreements is None else fill_up(codes, axis=1)[0]
    size = max(1, min(_MANY if total > _MANY else _AT_ONCE, _MOST_ELEMENTS // data.size))
    for start in range(0, total, size):
        rows = np.minimum(np.arange(start, start + size), total - 1)
        asked = _asked(packed.calibrators, policies.take(rows), data, codes, transforms=packed.transforms)
        yield paths(np.asarray(asked)[: total - start, :, :n], seconds)


def frontier_seconds(
    packed: Packed, log: Log, models: tuple[str, ...], logprob: np.ndarray, codes: np.ndarray | None
) -> Seconds | None:
    """Those of policies (L,); None where the log tells none.

    Args:
        packed: the policies.
        log: the log.
        models: of the policies, k.
        logprob, codes: (k, n) as `columns_of` has them.
    """
    seconds = seconds_columns(log, models, packed.asked)
    if seconds is None:
        return None
    each = [seconds_of(*path) for some in paths_of(packed, logprob, seconds, codes) for path in zip(*some, strict=True)]
    return Seconds(np.array([one.mean for one in each]), np.array([one.p95 for one in each]))


@partial(compiled, static_argnames="transforms")
def _asked(
    calibrators: tuple[Any, ...],
    policies: Policies,
    logprob: jax.Array,
    codes: jax.Array | None,
    *,
    transforms: tuple[Any, ...],
) -> jax.Array:
    """(C, k, n) who is asked under policies (C,), or how likely."""
    phi = calibrated(transforms, calibrators, logprob)
    return jax.vmap(lambda policy: walk(phi, policy, codes).asked)(policies)
