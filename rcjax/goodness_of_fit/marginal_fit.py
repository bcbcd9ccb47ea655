"""Goodness of fit of a marginal: is a model's calibrated confidence distributed as its mixture says?

The distance is √CvM = √∫ (F̂ − F)² dF, as in tables 5 and 6 of the paper, on the log that is judged: of the marginal
as trained, and of one refitted to that very log, which leaves nothing but the shape of the family to blame. p-values
by a parametric bootstrap that repeats what was done: confidences to train and to judge are drawn from the fitted
marginal, the marginal is fitted again, and the distance is taken (Stute, González Manteiga & Presedo Quindimil 1993,
"Bootstrap based goodness-of-fit-tests").
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import fill_up, part, side_by_side, stack
from rcjax._core.compilation import compiled
from rcjax.goodness_of_fit.bootstrap import bootstrap_size, in_batches, p_value, replicate
from rcjax.model.beta_mixture import BetaMixture
from rcjax.model.fitting import marginals_of_log
from rcjax.model.marginal_fitting import fit_marginal
from rcjax.model.marginals import Marginal, cramer_von_mises

#: Values, and which of them are there.
Sample = tuple[Any, Any]

#: Queries × replicates that are fitted at a time.
_BATCH = 2**14


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MarginalTest:
    """The goodness of fit of one model's marginal. A leading axis batches it over models."""

    trained: jax.Array  # () √CvM of the marginal as trained
    trained_p: jax.Array  # () its p-value
    refitted: jax.Array  # () √CvM of the marginal fitted to the log itself


def marginal_test(
    marginals: Marginal, confidence: jax.Array | np.ndarray, trained_on: int, key: jax.Array, replicates: int = 1000
) -> MarginalTest:
    """√CvM of k marginals on the confidences of a log, with bootstrapped p-values.

    p = (exceedances + ½)/(replicates drawn + 1): none is drawn any more once p cannot be significant.

    Args:
        marginals: (k,) the fitted marginals.
        confidence: (k, n) calibrated.
        trained_on: the number of queries that the marginals were fitted to, none of them among these; 0 if they were
            fitted to these very confidences: then it is the marginals fitted again that are tested.
        key: of JAX; it seeds numpy's generator.
        replicates: how many are drawn at most.

    >>> import jax.numpy as jnp
    >>> even = BetaMixture(*jnp.array([[0.0], [1.0], [0.0], [0.0]]), *jnp.array([[[0.5, 0.5]], [[1, 1]], [[1, 1]]]))
    >>> test = marginal_test(even, jax.random.uniform(jax.random.key(0), (1, 200)), 100, jax.random.key(1), 50)
    >>> bool(test.trained_p[0] > 0.05), bool(test.trained[0] < 0.06)
    (True, True)
    """
    rows = fill_up(confidence.T, np.ones(confidence.T.shape, bool))
    refitted = marginals_of_log(*rows, None if isinstance(marginals, BetaMixture) else marginals, _masses_of(marginals))
    data = jax.tree.map(np.asarray, (marginals, refitted, confidence))
    seed = np.asarray(jax.random.key_data(key)).tolist()
    models = zip(range(len(confidence)), np.random.default_rng(seed).spawn(len(confidence)), strict=True)

    def test(one: tuple[int, np.random.Generator]) -> MarginalTest:  # model by model, as samples take memory
        index, generator = one
        return _test(part(data, index), generator, trained_on, replicates)

    return stack(side_by_side(test, models, n=confidence.shape[-1]))


def _masses_of(marginals: Marginal) -> jax.Array | None:
    """(k, A) the values that are to be masses of a marginal fitted again: the ends too, as a log may go beyond them."""
    if marginals.atoms is None:
        return None
    ends = jnp.stack([marginals.lowest, marginals.highest], axis=-1)
    return jnp.concatenate([marginals.atoms.stated, ends], axis=-1)


def _test(
    data: tuple[Marginal, Marginal, np.ndarray], generator: np.random.Generator, trained_on: int, replicates: int
) -> MarginalTest:
    """The test of one model."""
    marginal, refitted, confidence = data
    tested = marginal if trained_on else refitted
    samples = draw(tested, (replicates, trained_on + len(confidence)), generator)
    judged = _filled(samples[:, trained_on:])
    train = _filled(samples[:, :trained_on]) if trained_on else judged
    batch = max(1, _BATCH // (judged[0].shape[-1] + train[0].shape[-1] * bool(trained_on)))
    return MarginalTest(*_judge(tested, refitted, _filled(confidence), judged, train, batch=batch))


def _filled(values: np.ndarray) -> Sample:
    """Values (…, n) filled up, with which of them are there."""
    n = values.shape[-1]
    (filled,), (present,) = (fill_up(rows, axis=-1, size=bootstrap_size(n)) for rows in (values, np.ones(n, bool)))
    return filled, present


@partial(compiled, static_argnames="batch", runs="long")
def _judge(
    marginal: Marginal, refitted: Marginal, confidence: Sample, samples: Sample, to_train: Sample, batch: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(distance, its p-value, the refitted one's distance) of a marginal on confidences (n,).

    The p-value by samples (B, n), each judged by the marginal that one of those to train on (B, m) is fitted with.
    """

    def refit_and_judge(sample: tuple[jax.Array, jax.Array]) -> jax.Array:
        judge, train = sample
        return cramer_von_mises(fit_marginal(train, to_train[1], near=marginal), judge, samples[1])

    distance, own = (cramer_von_mises(law, *confidence) for law in (marginal, refitted))
    batches = jax.tree.map(lambda rows: in_batches(rows, batch), (samples[0], to_train[0]))
    count = len(samples[0])
    _, _, distances = replicate(lambda _, some: ((), distance, jax.vmap(refit_and_judge)(some)), (), batches, count)
    return distance, p_value(distance, distances[:count]), own


def draw(marginal: Marginal, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Samples of some shape from a marginal of numpy's arrays, by numpy."""
    dtype = np.asarray(marginal.lowest).dtype
    info = np.finfo(dtype)
    inner = _draw_smooth(marginal, shape, rng).clip(info.tiny, 1 - info.epsneg)
    u = rng.random(shape)
    inner = marginal.lowest + (marginal.highest - marginal.lowest) * inner
    if marginal.atoms is not None:
        # On a scale of their own: the masses at the ends first and last, the atoms from the end of the first one on.
        ends = marginal.mass_lowest + np.cumsum(marginal.atoms.mass)
        atom_index = np.searchsorted(ends, u, side="right")
        at_atom = (u >= marginal.mass_lowest) & (atom_index < len(ends))
        inner = np.where(at_atom, marginal.atoms.value[np.minimum(atom_index, len(ends) - 1)], inner)
    top = np.where(u >= 1 - marginal.mass_highest, marginal.highest, inner)
    return np.where(u < marginal.mass_lowest, marginal.lowest, top).astype(dtype)


def _draw_smooth(marginal: Any, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Samples of the smooth part, scaled to (0, 1); of a family of one's own by quantiles."""
    if not isinstance(marginal, BetaMixture):
        return np.asarray(_quantiles(marginal, rng.random(shape)))
    first, second = (rng.beta(a, b, shape) for a, b in zip(marginal.a, marginal.b, strict=True))
    return np.where(rng.random(shape) < marginal.proportion[0], first, second)


@compiled
def _quantiles(marginal: Marginal, z: jax.Array) -> jax.Array:
    return marginal.smooth_quantile(z)
