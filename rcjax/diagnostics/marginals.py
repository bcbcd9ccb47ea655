"""Goodness of fit of a marginal: is a model's calibrated confidence distributed as its mixture says?

The distance is √CvM = √∫ (F̂ − F)² dF, as in tables 5 and 6 of the paper, on the log that is judged: of the marginal
as trained, and of one refitted to that very log, which leaves nothing but the shape of the family to blame. p-values
by a parametric bootstrap that repeats what was done: confidences to train and to judge are drawn from the fitted
marginal, the marginal is fitted again, and the distance is taken (Stute, González Manteiga & Presedo Quindimil 1993,
"Bootstrap based goodness-of-fit-tests").
"""

import dataclasses
from functools import partial

import jax
import numpy as np
from jax import lax

from rcjax._compile import compiled
from rcjax._trees import part
from rcjax.diagnostics.bootstrap import p_value, replicate
from rcjax.marginals import Marginal, cramer_von_mises, refit_marginal
from rcjax.margins import marginals_of_log

#: Queries × replicates that are fitted at a time.
_BATCH = 2**14


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MarginalTest:
    """The goodness of fit of one model's marginal. A leading axis batches it over models."""

    trained: jax.Array  # () √CvM of the marginal as trained
    trained_p: jax.Array  # () its p-value
    refitted: jax.Array  # () √CvM of the marginal fitted to the log itself
    refitted_p: jax.Array  # () its p-value


def marginal_test(
    marginals: Marginal, confidence: jax.Array, trained_on: int, key: jax.Array, replicates: int = 1000
) -> MarginalTest:
    """√CvM of k marginals on the confidences of a log (k, n), with bootstrapped p-values.

    `trained_on` is the number of queries that the marginals (leading axis k) were fitted to, none of them among
    these; 0 if they were fitted to these very confidences: then the two tests are one. The JAX key seeds numpy's
    generator.
    p = (exceedances + ½)/(replicates + 1).

    >>> import jax.numpy as jnp
    >>> even = Marginal(*jnp.array([[0.0], [1.0], [0.0], [0.0]]), *jnp.array([[[0.5, 0.5]], [[1, 1]], [[1, 1]]]))
    >>> seen = marginal_test(even, jax.random.uniform(jax.random.key(0), (1, 200)), 100, jax.random.key(1), 50)
    >>> bool(seen.trained_p[0] > 0.05), bool(seen.trained[0] < 0.06)
    (True, True)
    """
    n = confidence.shape[-1]
    refitted: Marginal = marginals_of_log(confidence.T, np.ones(confidence.T.shape, bool), None)
    again, trained_again = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist()).spawn(2)
    judged = _tests(refitted, confidence, draw(refitted, (replicates, n), again), 0)
    if not trained_on:
        return MarginalTest(*judged, *judged)
    samples = draw(marginals, (replicates, trained_on + n), trained_again)
    return MarginalTest(*_tests(marginals, confidence, samples, trained_on), *judged)


def _tests(
    marginals: Marginal, confidence: jax.Array, samples: np.ndarray, trained_on: int
) -> tuple[jax.Array, jax.Array]:
    """(distances, p-values), each (k,), of marginals on confidences (k, n), and on samples (k, B, `trained_on` + n)."""
    batch = _BATCH // samples.shape[-1]
    return _distances(marginals, confidence, samples, trained_on=trained_on, batch=batch)


@partial(compiled, static_argnames=("trained_on", "batch"), runs="long")
def _distances(marginals, confidence, samples, trained_on, batch):
    def one(marginal, confidence, samples):
        def refit_and_judge(sample):
            # Of none to train on, all are to train and to judge.
            train, judge = (sample[:trained_on], sample[trained_on:]) if trained_on else (sample, sample)
            return cramer_von_mises(refit_marginal(marginal, train), judge)

        distance = cramer_von_mises(marginal, confidence)
        return distance, p_value(distance, replicate(refit_and_judge, samples, batch))

    return lax.map(lambda each: one(*each), (marginals, confidence, samples))


def draw(marginals: Marginal, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """(k, …) samples of some shape from each of k marginals, by numpy."""
    host = jax.tree.map(np.asarray, marginals)
    return np.stack([_draw(part(host, j), shape, rng) for j in range(len(host.lowest))])


def _draw(marginal, shape, rng):
    info = np.finfo(marginal.a.dtype)
    first, second = (rng.beta(a, b, shape) for a, b in zip(marginal.a, marginal.b, strict=True))
    inner = np.where(rng.random(shape) < marginal.proportion[0], first, second).clip(info.tiny, 1 - info.epsneg)
    u = rng.random(shape)
    inner = marginal.lowest + (marginal.highest - marginal.lowest) * inner
    top = np.where(u >= 1 - marginal.mass_highest, marginal.highest, inner)
    return np.where(u < marginal.mass_lowest, marginal.lowest, top).astype(marginal.a.dtype)
