"""Statistics of the paper's tables: of copulas (table 4), the Markov property (table 3), correlations (appendix F)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special
from numpy.typing import ArrayLike

from rcjax._core.batching import pad_to_size_class
from rcjax._core.numerics import divide
from rcjax.copulas import Copula
from rcjax.model.fitting import pair_taus_compiled
from rcjax.model.goodness_of_fit.dependence import empirical_copula

#: Labelled answers under which a correlation is not shown.
MIN_QUERIES = 50

_NEWTON_STEPS = 30


def paper_statistic(
    copula: Copula, x: jax.Array, y: jax.Array, key: jax.Array, present: jax.Array | None = None
) -> jax.Array:
    """√n · mean_i (C_n(Û_i, V̂_i) − C(Û_i, V̂_i))², as in table 4 of the paper, with ties broken at random.

    Args:
        copula: C, fitted beforehand, by Kendall's τ in the paper.
        x, y: (n,) the confidences of the two models.
        key: of JAX, for the ties.
        present: (n,) whether both answered the query; by default all of them.

    >>> from rcjax.copulas import Gumbel
    >>> u, v = Gumbel(2.0).sample(jax.random.key(0), (500,))
    >>> bool(paper_statistic(Gumbel(2.0), u, v, jax.random.key(1)) < 0.005)
    True
    """
    present = jnp.ones(x.shape, bool) if present is None else present
    n = present.sum()
    at_random = jax.random.uniform(key, (*x.shape, 2)).T
    x, y = (jnp.argsort(jnp.lexsort((tie, values, ~present))) for tie, values in zip(at_random, (x, y), strict=True))
    empirical = empirical_copula(x, y, present)
    u, v = (jnp.minimum((rank + 1) / (n + 1), 1.0) for rank in (x, y))
    return jnp.where(present, (empirical - copula.cdf(u, v)) ** 2, 0.0).sum() / jnp.sqrt(n)


def rank_correlations(confidence: ArrayLike, correct: ArrayLike, answered: ArrayLike) -> np.ndarray:
    """(3, k, k) Kendall's τ-b of the confidences of all pairs of models: all queries, both right, both wrong.

    confidence, correct, answered (n, k), of the same models in the same order. NaN under 50 observations (appendix F of
    the paper), 1 on the diagonal.
    """
    correct, answered = np.asarray(correct, bool), np.asarray(answered, bool)
    k = answered.shape[1]
    left, right = np.triu_indices(k, 1)
    table = np.tile(np.eye(k), (3, 1, 1))
    for here, present in zip(table, (answered, answered & correct, answered & ~correct), strict=True):
        count = (present[:, left] & present[:, right]).sum(0)
        here[left, right] = here[right, left] = np.where(
            count < MIN_QUERIES, np.nan, pair_taus_compiled(*pad_to_size_class(confidence, present))
        )
    return table


@jax.jit
def logistic_test(confidence: jax.Array, correct: jax.Array, answered: jax.Array) -> jax.Array:
    """The paper's test (table 3): (k, k) log10 p of the confidence of model i as a predictor of model j's correctness.

    confidence, correct, answered (n, k), of the same models in the order in which they are asked. For each j and each
    ancestor i < j − 1, a logistic regression of "j was right" on Φ_i and on Φ_{j−1}, its Markov predictor; p by Wald's
    test. [j, i] is of the ancestor; [j, j − 1] is of the Markov predictor, its p averaged over the ancestors. NaN
    elsewhere, and where a regression has no solution. A chain makes the Markov predictor significant, and the ancestors
    not.
    """
    k = confidence.shape[1]
    triples = [(i, j) for j in range(2, k) for i in range(j - 1)]
    table = jnp.full((k, k), jnp.nan, confidence.dtype)
    if not triples:
        return table
    i, j = np.array(triples).T
    features = jnp.stack([confidence.T[i], confidence.T[j - 1]], axis=-1)
    present = (answered[:, i] & answered[:, j] & answered[:, j - 1]).T
    log_p = jax.vmap(_wald)(features, correct.T[j].astype(confidence.dtype), present.astype(confidence.dtype))
    table = table.at[j, i].set(log_p[:, 0])
    for model in range(2, k):
        mean = special.logsumexp(log_p[j == model, 1] * np.log(10.0)) - np.log((j == model).sum())
        table = table.at[model, model - 1].set(mean / np.log(10.0))
    return table


def _wald(features: jax.Array, target: jax.Array, weight: jax.Array) -> jax.Array:
    """(p,) log10 of the two-sided p-values of the p features (n, p) in a logistic regression with an intercept."""
    features = jnp.where(weight[:, None] > 0, features, 0.0)
    total = jnp.maximum(weight.sum(), 1.0)
    center = weight @ features / total
    spread = jnp.sqrt(weight @ (features - center) ** 2 / total)
    z = jnp.concatenate([jnp.ones_like(target)[:, None], divide(features - center, spread)], axis=1)

    def information(beta: jax.Array) -> tuple[jax.Array, jax.Array]:
        fitted = special.expit(z @ beta)
        return fitted, z.T @ (z * (weight * fitted * (1 - fitted))[:, None])

    def step(_, beta: jax.Array) -> jax.Array:
        fitted, matrix = information(beta)
        return beta + jnp.linalg.solve(matrix, z.T @ (weight * (target - fitted)))

    beta = jax.lax.fori_loop(0, _NEWTON_STEPS, step, jnp.zeros(z.shape[1], z.dtype))
    matrix = information(beta)[1]
    score = beta / jnp.sqrt(jnp.diag(jnp.linalg.inv(matrix)))
    # Where a line parts right from wrong, the coefficients run off and Wald's test says nothing.
    parted = jnp.all((weight == 0) | ((2 * target - 1) * (z @ beta) > 0))
    score = jnp.where(parted, jnp.nan, score)
    return (np.log(2.0) + special.log_ndtr(-jnp.abs(score[1:]))) / np.log(10.0)


def accuracy_above(confidence: np.ndarray, correct: np.ndarray) -> dict[str, np.ndarray]:
    """Accuracy of the answers above a confidence (appendix E of the paper), at every value the confidence takes.

    confidence (n,), correct (n,). Keys: `confidence`, increasing, with `share` and `accuracy` of the answers at least
    as confident.
    """
    values, inverse = np.unique(confidence, return_inverse=True)
    number = np.bincount(inverse)[::-1].cumsum()[::-1]
    right = np.bincount(inverse, weights=np.asarray(correct, float))[::-1].cumsum()[::-1]
    return {"confidence": values, "share": number / len(confidence), "accuracy": right / number}
