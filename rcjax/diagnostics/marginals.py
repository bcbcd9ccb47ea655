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
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._compile import compiled
from rcjax._numerics import divide, open_unit
from rcjax.diagnostics.bootstrap import p_value, replicate
from rcjax.marginals import Marginal, cramer_von_mises, mixture_quantile, refit_marginal
from rcjax.margins import marginals_of_log

#: Queries × replicates that are fitted at a time.
_BATCH = 2**14
_KNOTS = 1024


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
    """√CvM of k marginals on the confidences of a log (k, n), with bootstrapped p-values, in one compiled call.

    `trained_on` is the number of queries that the marginals (leading axis k) were fitted to, none of them among
    these; 0 if they were fitted to these very confidences: then the two tests are one.
    p = (exceedances + ½)/(replicates + 1).

    >>> even = Marginal(*jnp.array([[0.0], [1.0], [0.0], [0.0]]), *jnp.array([[[0.5, 0.5]], [[1, 1]], [[1, 1]]]))
    >>> seen = marginal_test(even, jax.random.uniform(jax.random.key(0), (1, 200)), 100, jax.random.key(1), 50)
    >>> bool(seen.trained_p[0] > 0.05), bool(seen.trained[0] < 0.06)
    (True, True)
    """
    batch = _BATCH // max(confidence.shape[-1], trained_on)
    refitted = marginals_of_log(confidence.T, np.ones(confidence.T.shape, bool), None)
    data = marginals, refitted, confidence, key
    return _marginal_tests(*data, trained_on=trained_on, replicates=replicates, batch=batch)


@partial(compiled, static_argnames=("trained_on", "replicates", "batch"), runs="long")
def _marginal_tests(marginals, refitted, confidence, key, trained_on, replicates, batch):
    one = partial(_marginal_test, trained_on=trained_on, replicates=replicates, batch=batch)
    keys = jax.random.split(key, confidence.shape[0])
    return lax.map(lambda each: one(*each), (marginals, refitted, confidence, keys))


def _marginal_test(marginal, refitted, confidence, key, trained_on, replicates, batch):
    n = confidence.shape[0]
    draw_refitted = _sampler(refitted)
    keys = jax.random.split(key, replicates)

    def refit_and_judge(key):
        sample = draw_refitted(key, n)
        return cramer_von_mises(refit_marginal(refitted, sample), sample)

    def train_and_judge(key):
        sample = draw_trained(key, trained_on + n)
        return cramer_von_mises(refit_marginal(marginal, sample[:trained_on]), sample[trained_on:])

    distance = cramer_von_mises(refitted, confidence)
    p = p_value(distance, replicate(refit_and_judge, keys, batch))
    if not trained_on:
        return MarginalTest(distance, p, distance, p)
    draw_trained = _sampler(marginal)
    trained = cramer_von_mises(marginal, confidence)
    return MarginalTest(trained, p_value(trained, replicate(train_and_judge, keys, batch)), distance, p)


def _sampler(marginal):
    """A function of (key, size) that draws from a marginal: a thousand replicates share the search for quantiles.

    Between knots log x/(1 − x) of the mixture is interpolated in log z/(1 − z), with which it grows evenly at the ends.
    """
    knots = jnp.linspace(-1.0, 1.0, _KNOTS, dtype=marginal.a.dtype) * -jnp.log(jnp.finfo(marginal.a.dtype).eps)
    tiny = jnp.finfo(marginal.a.dtype).tiny
    x = jnp.clip(mixture_quantile(marginal, jax.nn.sigmoid(knots)), tiny, 1 - jnp.finfo(marginal.a.dtype).epsneg)
    heights = jnp.log(x) - jnp.log1p(-x)

    def draw(key, size):
        u = open_unit(jax.random.uniform(key, (size,), marginal.a.dtype))
        z = jnp.clip(divide(u - marginal.mass_lowest, marginal.smooth, 0.5), tiny, 1 - jnp.finfo(u.dtype).epsneg)
        inner = jax.nn.sigmoid(jnp.interp(jnp.log(z) - jnp.log1p(-z), knots, heights))
        inner = marginal.lowest + (marginal.highest - marginal.lowest) * inner
        top = jnp.where(u >= 1 - marginal.mass_highest, marginal.highest, inner)
        return jnp.where(u <= marginal.mass_lowest, marginal.lowest, top)

    return draw
