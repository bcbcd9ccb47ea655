"""Goodness of fit of a marginal.

The test asks whether a model's calibrated confidence has the fitted distribution. The distance is
√CvM = √∫ (F̂ − F)² dF, as in tables 5 and 6 of the paper, on the log under test. It is taken of the marginal as
trained, and of the marginal refitted to this log, whose distance is due to the shape of the family alone.

p-values come from a parametric bootstrap that repeats the procedure. Training and test confidences are drawn from the
fitted marginal, the marginal is fitted again, and the distance is computed (Stute, González Manteiga & Presedo
Quindimil 1993, "Bootstrap based goodness-of-fit-tests").
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import fill_up, part, side_by_side, stack
from rcjax._core.compilation import compiled
from rcjax.model.fitting import marginals_of_log
from rcjax.model.goodness_of_fit.bootstrap import bootstrap_size, in_batches, p_value, replicate
from rcjax.model.marginals import Marginal, cramer_von_mises
from rcjax.model.maximum_likelihood import fit_marginal

#: Padded values, and a mask of those present.
Sample = tuple[Any, Any]

#: Queries × replicates fitted at a time.
_BATCH = 2**14


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MarginalTest:
    """The goodness of fit of one model's marginal; a leading axis batches it over models."""

    trained: jax.Array
    """(), √CvM of the marginal as trained."""
    trained_p: jax.Array
    """(), p-value of `trained`."""
    refitted: jax.Array
    """(), √CvM of the marginal refitted to the log under test."""


def marginal_test(
    marginals: Marginal, confidence: jax.Array | np.ndarray, trained_on: int, key: jax.Array, replicates: int = 1000
) -> MarginalTest:
    """Test k marginals on the confidences of a log by √CvM, with bootstrap p-values.

    p = (exceedances + ½)/(replicates drawn + 1); drawing stops once p cannot be significant.

    Args:
        marginals: (k,) fitted marginals.
        confidence: (k, n) calibrated confidence.
        trained_on: number of queries that the marginals were fitted to, if the log has none of them; 0 if the marginals
            were fitted to these confidences: the refitted marginals are tested then.
        key: JAX key; it seeds numpy's generator.
        replicates: greatest number of replicates.

    >>> import jax.numpy as jnp
    >>> even = Marginal(*jnp.array([[0.0], [1.0], [0.0], [0.0]]), *jnp.array([[[0.5, 0.5]], [[1, 1]], [[1, 1]]]))
    >>> test = marginal_test(even, jax.random.uniform(jax.random.key(0), (1, 200)), 100, jax.random.key(1), 50)
    >>> bool(test.trained_p[0] > 0.05), bool(test.trained[0] < 0.06)
    (True, True)
    """
    rows = fill_up(confidence.T, np.ones(confidence.T.shape, bool))
    refitted = marginals_of_log(*rows, None, _masses_of(marginals))
    data = jax.tree.map(np.asarray, (marginals, refitted, confidence))
    seed = np.asarray(jax.random.key_data(key)).tolist()
    models = zip(range(len(confidence)), np.random.default_rng(seed).spawn(len(confidence)), strict=True)

    def test(model: tuple[int, np.random.Generator]) -> MarginalTest:  # model by model, since samples take memory
        index, generator = model
        return _test(part(data, index), generator, trained_on, replicates)

    return stack(side_by_side(test, models, n=confidence.shape[-1]))


def _masses_of(marginals: Marginal) -> jax.Array | None:
    """Atoms of the refitted marginals; they include the old ends, beyond which a log may go; (k, A)."""
    if marginals.atoms is None:
        return None
    ends = jnp.stack([marginals.lowest, marginals.highest], axis=-1)
    return jnp.concatenate([marginals.atoms.stated, ends], axis=-1)


def _test(
    data: tuple[Marginal, Marginal, np.ndarray], generator: np.random.Generator, trained_on: int, replicates: int
) -> MarginalTest:
    """Test the marginal of one model."""
    marginal, refitted, confidence = data
    tested = marginal if trained_on else refitted
    samples = draw(tested, (replicates, trained_on + len(confidence)), generator)
    judged = _filled(samples[:, trained_on:])
    train = _filled(samples[:, :trained_on]) if trained_on else judged
    batch = max(1, _BATCH // (judged[0].shape[-1] + train[0].shape[-1] * bool(trained_on)))
    return MarginalTest(*_judge(tested, refitted, _filled(confidence), judged, train, batch=batch))


def _filled(values: np.ndarray) -> Sample:
    """Pad values (…, n) to the size of a bootstrap, with a mask of those present."""
    n = values.shape[-1]
    (filled,), (present,) = (fill_up(rows, axis=-1, size=bootstrap_size(n)) for rows in (values, np.ones(n, bool)))
    return filled, present


@partial(compiled, static_argnames="batch", runs="long")
def _judge(
    marginal: Marginal, refitted: Marginal, confidence: Sample, samples: Sample, to_train: Sample, batch: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(distance, its p-value, distance of the refitted marginal) on confidences (n,).

    For the p-value, a marginal is fitted to each training sample (B, m), and its distance taken on the sample (B, n).
    """

    def refit_and_judge(sample: tuple[jax.Array, jax.Array]) -> jax.Array:
        judge, train = sample
        return cramer_von_mises(fit_marginal(train, to_train[1], near=marginal), judge, samples[1])

    distance, refitted_distance = (cramer_von_mises(law, *confidence) for law in (marginal, refitted))
    batches = jax.tree.map(lambda rows: in_batches(rows, batch), (samples[0], to_train[0]))
    count = len(samples[0])
    _, _, distances = replicate(lambda _, batch: ((), distance, jax.vmap(refit_and_judge)(batch)), (), batches, count)
    return distance, p_value(distance, distances[:count]), refitted_distance


def draw(marginal: Marginal, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Sample a marginal that holds numpy arrays, by numpy; an array of the given shape."""
    dtype = np.asarray(marginal.lowest).dtype
    info = np.finfo(dtype)
    first, second = (rng.beta(a, b, shape) for a, b in zip(marginal.a, marginal.b, strict=True))
    inner = np.where(rng.random(shape) < marginal.proportion[0], first, second).clip(info.tiny, 1 - info.epsneg)
    u = rng.random(shape)
    inner = marginal.lowest + (marginal.highest - marginal.lowest) * inner
    if marginal.atoms is not None:
        # u selects the component: the mass at the lower end first, then the atoms, and the mass at the upper end last.
        ends = marginal.mass_lowest + np.cumsum(marginal.atoms.mass)
        atom_index = np.searchsorted(ends, u, side="right")
        at_atom = (u >= marginal.mass_lowest) & (atom_index < len(ends))
        inner = np.where(at_atom, marginal.atoms.value[np.minimum(atom_index, len(ends) - 1)], inner)
    top = np.where(u >= 1 - marginal.mass_highest, marginal.highest, inner)
    return np.where(u < marginal.mass_lowest, marginal.lowest, top).astype(dtype)
