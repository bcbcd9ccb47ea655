"""The model but for its copulas: calibrators, marginals and Kendall's τ of all pairs, on any number of devices.

On several devices the queries are laid out over a mesh of one axis. Calibration and expectation–maximisation then see
each device's own queries, and exchange sums (`rcjax._core.numerics.total`) by XLA's collectives. Kendall's τ ranks all
queries at once: there each device gets some of the pairs of models.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from rcjax._core.batching import map_entries
from rcjax._core.compilation import compiled
from rcjax._core.kendall import FEW_ENTRIES, kendall_tau, kendall_taus
from rcjax.model.calibrated import fit_calibrators
from rcjax.model.calibration import Calibrator, Transform
from rcjax.model.marginal_fitting import fit_marginal, refit_marginal
from rcjax.model.marginals import Marginal
from rcjax.model.pairs import pairs
from rcjax.policy.calibrations import NO_CONFIDENCE

_AXIS = "queries"


def fit_marginals(
    confidence: jax.Array,
    answered: jax.Array,
    near: Marginal | None = None,
    axis: str | None = None,
    stated: jax.Array | None = None,
) -> Marginal:
    """The marginals of the confidences of a log.

    Args:
        confidence: (n, k) calibrated.
        answered: (n, k) whether there is an answer.
        near: the marginals of a like log: mixtures are sought around theirs.
        axis: the name of the devices that the queries are spread over, if they are.
        stated: (k, A) the confidences that are to be atoms (`stated_confidences`); None: those of `near`, if any.
    """
    rows = confidence, answered

    def fit(confidence: jax.Array, answered: jax.Array, stated: jax.Array | None) -> Marginal:
        return fit_marginal(confidence, answered, axis, stated)

    if near is None:
        return map_entries(fit, len(confidence), (1, 1, 0))(*rows, stated)
    return map_entries(refit_marginal, len(confidence), (0, 1, 1, 0))(near, *rows, stated)


def fit_margins(
    logprob: jax.Array,
    correct: jax.Array,
    answered: jax.Array,
    transform: Transform,
    near: Marginal | None = None,
    axis: str | None = None,
    values: jax.Array | None = None,
) -> tuple[Calibrator, jax.Array, Marginal]:
    """(calibrators, confidences (n, k), marginals) of a log.

    Args:
        logprob: (n, k) raw log-probabilities.
        correct: (n, k) whether the answer is right.
        answered: (n, k) whether there is an answer.
        transform: that of the raw confidence.
        near: the marginals of a like log: mixtures are sought around theirs.
        axis: the name of the devices that the queries are spread over, if they are.
        values: (k, V) raw log-probabilities that models state (`stated_logprobs`); None: no model does.
    """
    calibrators, confidence = fit_calibrators(logprob, correct, answered, transform, axis, values)
    return calibrators, confidence, fit_marginals(confidence, answered, near, axis, stated_confidences(calibrators))


def stated_confidences(calibrators: Calibrator) -> jax.Array | None:
    """(k, V) the calibrated confidences of the values that models state, infinite behind; None where no model does.

    In place of that of no confidence, which is the least of all, the next one, which others may share.
    """
    stated = calibrators.stated
    if stated is None:
        return None
    confidence = jnp.where(stated.logprob == NO_CONFIDENCE, stated.least()[:, None], stated.confidence)
    return jnp.where(jnp.isnan(stated.logprob), jnp.inf, confidence)


def pair_taus(confidence: jax.Array, answered: jax.Array, left: ArrayLike, right: ArrayLike) -> jax.Array:
    """(P,) Kendall's τ of the confidences of pairs, on the queries that both models answered.

    Args:
        confidence: (n, k) calibrated.
        answered: (n, k) whether there is an answer.
        left, right: (P,) the models of each pair, by position.
    """

    def tau(left: jax.Array, right: jax.Array) -> jax.Array:
        return kendall_tau(confidence[:, left], confidence[:, right], answered[:, left] & answered[:, right])

    return map_entries(tau, len(confidence), (0, 0))(left, right)


# The steps of a fit, compiled one by one: all who fit logs of one size share them.
marginals_of_log = compiled(fit_marginals)


@partial(compiled, runs="long")
def taus_of_log(confidence: jax.Array, answered: jax.Array) -> jax.Array:
    """`pair_taus` of all pairs, (P,)."""
    left, right = np.array(pairs(confidence.shape[1]), int).reshape(-1, 2).T
    if len(confidence) <= FEW_ENTRIES:
        return kendall_taus(confidence, answered)[left, right]
    return pair_taus(confidence, answered, left, right)


def fit_on_devices(
    logprob: jax.Array,
    correct: jax.Array,
    answered: jax.Array,
    transform: Transform,
    devices: Sequence[Any],
    values: np.ndarray | None = None,
) -> tuple[Calibrator, Marginal, jax.Array]:
    """(calibrators, marginals, τ of all pairs (P,)) of a log, the work shared by devices.

    Args:
        logprob: (n, k) raw log-probabilities.
        correct: (n, k) whether the answer is right.
        answered: (n, k) whether there is an answer.
        transform: that of the raw confidence.
        devices: those that share it; of several processes too, each of which then holds the whole log.
        values: (k, V) raw log-probabilities that models state (`stated_logprobs`); None: no model does.

    Raises ValueError where there is no device.
    """
    if not len(devices):
        raise ValueError("devices is empty: give those that share the work, such as jax.devices(), or None")
    mesh = Mesh(np.asarray(devices), (_AXIS,))
    # As many queries for each, the last ones filled up with queries that nobody answered.
    padded = [np.pad(np.asarray(x), ((0, -len(x) % len(devices)), (0, 0))) for x in (logprob, correct, answered)]
    spread = [jax.device_put(x, NamedSharding(mesh, PartitionSpec(_AXIS))) for x in padded]
    left, right = np.array(pairs(logprob.shape[1]), int).reshape(-1, 2).T
    size = -(-len(left) // len(devices)) * len(devices)  # as many pairs for each, some of them twice
    ends = [jax.device_put(np.resize(side, size), NamedSharding(mesh, PartitionSpec(_AXIS))) for side in (left, right)]
    more = () if values is None else (jax.device_put(values, NamedSharding(mesh, PartitionSpec())),)
    calibrators, confidence, marginals = margins_on(mesh, transform, bool(more))(*spread, *more)
    taus = taus_on(mesh)(confidence, spread[2], *ends)
    fitted = jax.device_get((calibrators, marginals, taus))  # the same everywhere: any process can read them
    calibrators, marginals, taus = jax.tree.map(jnp.asarray, fitted)
    return calibrators, marginals, taus[: len(left)]


@cache
def margins_on(mesh: Mesh, transform: Transform, stating: bool = False) -> Callable[..., Any]:
    """`fit_margins` of arrays whose queries are spread over a mesh: confidences stay there, the rest is everywhere.

    Where models state values, their raw log-probabilities (k, V) come last.
    """
    ours, everywhere = PartitionSpec(_AXIS), PartitionSpec()
    outs = everywhere, ours, everywhere

    def fit(*arrays: jax.Array) -> tuple[Calibrator, jax.Array, Marginal]:
        values = arrays[3] if stating else None
        return fit_margins(*arrays[:3], transform=transform, axis=_AXIS, values=values)

    ins = (ours, ours, ours) + (everywhere,) * stating
    # Statistics are sums over the axis, so the same on all devices: what is not checked is that jax sees it.
    return jax.jit(jax.shard_map(fit, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False))


@cache
def taus_on(mesh: Mesh) -> Callable[..., Any]:
    """`pair_taus` of confidences whose queries are spread over a mesh, as the pairs are: each device ranks its own."""
    whole, ours = PartitionSpec(), PartitionSpec(_AXIS)
    some = jax.shard_map(pair_taus, mesh=mesh, in_specs=(whole, whole, ours, ours), out_specs=ours, check_vma=False)
    return jax.jit(some, out_shardings=NamedSharding(mesh, whole))
