"""Bootstrap tests: p-values from as few replicates as needed, and the goodness of fit of a marginal.

Drawing stops once so many replicates reach the statistic that it cannot be significant (Besag & Clifford 1991,
"Sequential Monte Carlo p-values"). If the model fits, a test then needs a tenth of the replicates.

The test of a marginal asks whether a model's calibrated confidence has the fitted distribution. The distance is
√CvM = √∫ (F̂ − F)² dF, as in tables 5 and 6 of the paper, on the log under test. It is computed for the marginal as
trained, and for the marginal refitted to this log, whose distance is due to the shape of the family alone. Each
replicate repeats the procedure: training and test confidences are drawn from the fitted marginal, the marginal is
fitted again, and the distance is computed (Stute, González Manteiga & Presedo Quindimil 1993, "Bootstrap based
goodness-of-fit-tests").
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import map_in_threads, pad_to_size_class, size_class, stack, take_entries
from rcjax._core.compilation import compiled
from rcjax.model.fitting import fit_marginals_compiled
from rcjax.model.marginals import Marginal, cramer_von_mises
from rcjax.model.maximum_likelihood import fit_marginal

#: Significance level of every test.
SIGNIFICANCE_LEVEL = 0.05

#: Queries that the bootstraps of marginals and copulas use at most; their time grows with the square.
MAX_QUERIES = 500

#: Exceedances before drawing may stop: the relative standard error of the p-value is then 1/√20, a fifth.
_MIN_EXCEEDANCES = 20


def bootstrap_size(n: int) -> int:
    """Return the padded size of a bootstrap of n queries: their size class, or `MAX_QUERIES` if only n fits into it.

    >>> [bootstrap_size(n) for n in (100, 285, 480, 501)]
    [192, 384, 500, 768]
    """
    return MAX_QUERIES if n <= MAX_QUERIES < size_class(n) else size_class(n)


def exceedances_needed(replicates: int) -> int:
    """Return the number of exceedances that ends drawing: p is then above the level, whatever other replicates give.

    >>> [exceedances_needed(replicates) for replicates in (100, 1000, 10_000)]
    [20, 50, 500]
    """
    return max(_MIN_EXCEEDANCES, math.ceil(SIGNIFICANCE_LEVEL * (replicates + 1) - 0.5))


class _Drawing(NamedTuple):
    """State of the drawing of replicates, batch by batch."""

    number: jax.Array | int  # () number of batches drawn
    state: Any  # state of the caller's step
    statistic: jax.Array  # () statistic of the log; NaN before the first batch
    drawn: jax.Array  # (batches, size) statistics of the replicates; NaN if not drawn


def draw_replicates(
    step: Callable[[Any, Any], tuple[Any, Any, Any]], state: Any, batches: Any, replicates: int
) -> tuple[Any, Any, Any]:
    """Draw replicates of a statistic, batch by batch, until its p-value is known.

    Args:
        step: function of (state, batch) that returns (next state, statistic of the log (), statistics of the batch
            (size,)); NaN if the batch holds no replicate.
        state: initial state.
        batches: (batches, size, …) keys or other arrays, from `divide_into_batches`.
        replicates: greatest number of replicates.

    Returns:
        (last state, statistic of the log (), statistics of the replicates (batches · size,)). Replicates that were not
        drawn or not needed are NaN, whatever the size of a batch.

    >>> keys = jnp.arange(1.0, 1001.0)
    >>> step = lambda state, batch: (state, jnp.asarray(0.5), batch % 2)  # every other replicate exceeds a half
    >>> _, statistic, drawn = draw_replicates(step, (), divide_into_batches(keys, 64), 1000)
    >>> int(jnp.isfinite(drawn).sum()), round(float(p_value(statistic, drawn)), 3)
    (99, 0.505)
    """
    needed = exceedances_needed(replicates)
    count, size = jax.tree.leaves(batches)[0].shape[:2]

    def is_open(drawing: _Drawing) -> jax.Array:
        return (drawing.number < count) & ((drawing.drawn >= drawing.statistic).sum() < needed)

    def draw(drawing: _Drawing) -> _Drawing:
        number, state, _, drawn = drawing
        state, statistic, batch = step(state, take_entries(batches, number))
        return _Drawing(number + 1, state, statistic, drawn.at[number].set(batch))

    _, like, _ = jax.eval_shape(step, state, take_entries(batches, 0))
    undrawn, drawn = (jnp.full(shape, jnp.nan, like.dtype) for shape in ((), (count, size)))
    last = lax.while_loop(is_open, draw, _Drawing(0, state, undrawn, drawn))
    drawn = last.drawn.reshape(-1)
    exceeds = drawn >= last.statistic
    return last.state, last.statistic, jnp.where(jnp.cumsum(exceeds) - exceeds < needed, drawn, jnp.nan)


def divide_into_batches(keys: jax.Array, most: int) -> jax.Array:
    """Divide B keys into batches of equal size, `most` at most, repeating the first keys as padding: (batches, size).

    >>> divide_into_batches(jnp.arange(5), 2).tolist()
    [[0, 1], [2, 3], [4, 0]]
    """
    count = keys.shape[0]
    batches = -(-count // max(1, most))
    size = -(-count // batches)
    return jnp.concatenate([keys, keys[: batches * size - count]]).reshape(batches, size, *keys.shape[1:])


def p_value(statistic: jax.Array, replicates: jax.Array) -> jax.Array:
    """Return (exceedances + ½)/(B + 1) of a statistic () among its B finite replicates.

    It is NaN if the statistic, or every replicate, is not finite.

    >>> float(p_value(jnp.asarray(0.3), jnp.array([0.1, 0.2, 0.4])))
    0.375
    """
    valid = jnp.isfinite(replicates)
    exceeding = (valid & (replicates >= statistic)).sum()
    return jnp.where(jnp.isfinite(statistic) & valid.any(), (exceeding + 0.5) / (valid.sum() + 1), jnp.nan)


Sample = tuple[Any, Any]  # padded values, and a mask of the values present
_BATCH = 2**14  # queries × replicates fitted at a time


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MarginalTest:
    """The goodness of fit of one model's marginal; a leading axis batches it over models."""

    trained: jax.Array
    """() √CvM of the marginal as trained."""
    trained_p: jax.Array
    """() p-value of `trained`."""
    refitted: jax.Array
    """() √CvM of the marginal refitted to the log under test."""


def marginal_test(
    marginals: Marginal, confidence: jax.Array | np.ndarray, trained_on: int, key: jax.Array, replicates: int = 1000
) -> MarginalTest:
    """Test k marginals on the confidences of a log by √CvM, with bootstrap p-values.

    p = (exceedances + ½)/(replicates drawn + 1); drawing stops once p cannot be significant.

    Args:
        marginals: (k,) fitted marginals.
        confidence: (k, n) calibrated confidence.
        trained_on: number of queries that the marginals were fitted to, if these are not in the log; 0 if the marginals
            were fitted to these confidences, for a test of the refitted marginals.
        key: JAX key; it seeds numpy's generator.
        replicates: greatest number of replicates.

    >>> import jax.numpy as jnp
    >>> even = Marginal(*jnp.array([[0.0], [1.0], [0.0], [0.0]]), *jnp.array([[[0.5, 0.5]], [[1, 1]], [[1, 1]]]))
    >>> test = marginal_test(even, jax.random.uniform(jax.random.key(0), (1, 200)), 100, jax.random.key(1), 50)
    >>> bool(test.trained_p[0] > 0.05), bool(test.trained[0] < 0.06)
    (True, True)
    """
    rows = pad_to_size_class(confidence.T, np.ones(confidence.T.shape, bool))
    refitted = fit_marginals_compiled(*rows, None, _stack_atoms(marginals))
    data = jax.tree.map(np.asarray, (marginals, refitted, confidence))
    seed = np.asarray(jax.random.key_data(key)).tolist()
    models = zip(range(len(confidence)), np.random.default_rng(seed).spawn(len(confidence)), strict=True)

    def test(model: tuple[int, np.random.Generator]) -> MarginalTest:  # one model at a time: samples take memory
        index, generator = model
        return _test(take_entries(data, index), generator, trained_on, replicates)

    return stack(map_in_threads(test, models, n=confidence.shape[-1]))


def _stack_atoms(marginals: Marginal) -> jax.Array | None:
    """Return the confidences that may be atoms of the refitted marginals: (k, A).

    They include the old ends, since the confidences of a log may lie beyond.
    """
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
    samples = draw_sample(tested, (replicates, trained_on + len(confidence)), generator)
    test_samples = _filled(samples[:, trained_on:])
    training_samples = _filled(samples[:, :trained_on]) if trained_on else test_samples
    batch = max(1, _BATCH // (test_samples[0].shape[-1] + training_samples[0].shape[-1] * bool(trained_on)))
    return MarginalTest(*_distances(tested, refitted, _filled(confidence), test_samples, training_samples, batch=batch))


def _filled(values: np.ndarray) -> Sample:
    """Pad values (…, n) to the size of a bootstrap, and return them with a mask of the values present."""
    n = values.shape[-1]
    (filled,), (present,) = (
        pad_to_size_class(rows, axis=-1, size=bootstrap_size(n)) for rows in (values, np.ones(n, bool))
    )
    return filled, present


@partial(compiled, static_argnames="batch", runs="long")
def _distances(
    marginal: Marginal, refitted: Marginal, confidence: Sample, samples: Sample, training: Sample, batch: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (distance, its p-value, distance of the refitted marginal) on confidences (n,).

    The p-value compares the distance with those of B replicates: each fits a marginal to a training sample (m,), and
    measures its distance on a test sample (n,).
    """

    def refit_and_measure(sample: tuple[jax.Array, jax.Array]) -> jax.Array:
        test, train = sample
        return cramer_von_mises(fit_marginal(train, training[1], start=marginal), test, samples[1])

    distance, refitted_distance = (cramer_von_mises(law, *confidence) for law in (marginal, refitted))
    batches = jax.tree.map(lambda rows: divide_into_batches(rows, batch), (samples[0], training[0]))
    count = len(samples[0])
    _, _, distances = draw_replicates(
        lambda _, batch: ((), distance, jax.vmap(refit_and_measure)(batch)), (), batches, count
    )
    return distance, p_value(distance, distances[:count]), refitted_distance


def draw_sample(marginal: Marginal, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw an array of the given shape from a marginal that holds numpy arrays."""
    dtype = np.asarray(marginal.lowest).dtype
    info = np.finfo(dtype)
    first, second = (rng.beta(a, b, shape) for a, b in zip(marginal.a, marginal.b, strict=True))
    inner = np.where(rng.random(shape) < marginal.proportion[0], first, second).clip(info.tiny, 1 - info.epsneg)
    u = rng.random(shape)
    inner = marginal.unscale(inner)
    if marginal.atoms is not None:
        # u selects the component: the mass at the lower end first, then the atoms, and the mass at the upper end last.
        ends = marginal.mass_lowest + np.cumsum(marginal.atoms.mass)
        atom_index = np.searchsorted(ends, u, side="right")
        at_atom = (u >= marginal.mass_lowest) & (atom_index < len(ends))
        inner = np.where(at_atom, marginal.atoms.value[np.minimum(atom_index, len(ends) - 1)], inner)
    top = np.where(u >= 1 - marginal.mass_highest, marginal.highest, inner)
    return np.where(u < marginal.mass_lowest, marginal.lowest, top).astype(dtype)
