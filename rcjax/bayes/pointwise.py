"""What each query says under each draw of a posterior: the terms that the posterior is conditioned on.

The log-likelihood of a query is the sum of those terms of the model at the head of `rcjax.bayes.hierarchy` that are the
query's: of its labels, of the places and densities of its confidences (scaled to (0, 1) between a model's extremes),
and of the pairs of them. It is composite, as the likelihood of the copulas is, and ranks are those of the
maximum-likelihood marginals. What is left out by leaving a query out (Vehtari, Gelman & Gabry 2017, "Practical Bayesian
model evaluation using leave-one-out cross-validation and WAIC") is these terms, so importance weights are theirs.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from rcjax._core.batching import part
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax.bayes.hierarchy import KNOTS, LEAST_SHAPE, Observations, interpolate, knots_of, mixture_terms, pair_terms
from rcjax.copulas import Copula
from rcjax.model.pair_likelihood import ATOMS, HIGHEST, SMOOTH
from rcjax.model.pairs import pairs

_BATCH = 64  # draws at a time, whose terms of all answers are held


@partial(compiled, static_argnames="family")
def query_log_likelihood(family: type[Copula], evidence: Observations, draws: dict[str, jax.Array]) -> jax.Array:
    """(D, n) log-likelihood of each query under each draw, up to a constant of the query.

    Args:
        family: of the copulas.
        evidence: what the draws are conditioned on.
        draws: as `described` has them, with `masses`; leading axis D.
    """
    alone = lax.map(lambda draw: _of_answers(evidence, draw), draws, batch_size=_BATCH)
    left, right = np.array(pairs(len(evidence.answered)), int).reshape(-1, 2).T
    if not len(left):
        return alone
    copulas = knots_of(family, evidence.z.dtype)
    weights = _spline_weights(draws["tau"], evidence.tau_range)

    def add(total: jax.Array, pair: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        i, j, weight = pair
        first, second = (part(evidence.placed, model) for model in (i, j))
        terms = pair_terms(copulas, first, second, evidence.answered[i] & evidence.answered[j])
        return total + weight @ terms, None

    return lax.scan(add, alone, (jnp.asarray(left), jnp.asarray(right), jnp.moveaxis(weights, 1, 0)))[0]


def _of_answers(evidence: Observations, draw: dict[str, jax.Array]) -> jax.Array:
    """(n,) what queries say of answers on their own under one draw: their labels, and where their confidences lie."""
    logits = draw["intercept"][:, None] + draw["slope"][:, None] * evidence.z
    labels = jnp.where(evidence.labelled, jax.nn.log_sigmoid(jnp.where(evidence.correct, logits, -logits)), 0.0)
    size = draw["concentration"]
    shapes = draw["mean"] * size, jnp.maximum((1 - draw["mean"]) * size, LEAST_SHAPE)
    smooth = mixture_terms(evidence, draw["share"], *shapes)
    side = evidence.side
    slot = jnp.where(side >= ATOMS, side - ATOMS + 3, jnp.where(side == SMOOTH, 1, jnp.where(side == HIGHEST, 2, 0)))
    mass = jnp.take_along_axis(draw["masses"], slot, axis=1)
    masses = jnp.where(evidence.answered, jnp.log(jnp.maximum(mass, jnp.finfo(mass.dtype).tiny)), 0.0)
    return (labels + smooth + masses).sum(0)


def _spline_weights(tau: jax.Array, tau_range: jax.Array) -> jax.Array:
    """(D, P, T) what `interpolate` takes of the values at each of `KNOTS`, for Kendall's τ (D, P)."""
    ends = special.expit(jnp.asarray(KNOTS[[0, -1]], tau.dtype))
    dependence = special.logit(jnp.clip(divide(tau - tau_range[0], tau_range[1], 0.5), *ends))
    knots = jnp.eye(len(KNOTS), dtype=tau.dtype)
    weigh = jnp.vectorize(lambda t: interpolate(knots, jnp.full(len(KNOTS), t)), signature="()->(t)")
    return weigh(dependence)
