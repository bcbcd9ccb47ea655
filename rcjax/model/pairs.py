"""The order in which pairs of models are stored everywhere, and which pairs have so many ties that Kendall's τ-b, which
counts them in no direction, would be biased.
"""

import jax
import numpy as np

from rcjax._core.compilation import compiled
from rcjax.model.marginals import Marginal


def pairs(k: int) -> tuple[tuple[int, int], ...]:
    """All (i, j) with i < j < k, in the order in which pairs are stored everywhere.

    >>> pairs(3)
    ((0, 1), (0, 2), (1, 2))
    """
    return tuple((i, j) for i in range(k) for j in range(i + 1, k))


_MOST_AT_ATOMS, _LEAST_SMOOTH = 0.05, 0.1


@compiled  # a dozen programs of one operation each, otherwise
def pairs_by_likelihood(marginals: Marginal) -> jax.Array:
    """(P,) bool: the pairs with a model of few values, whose copula is fitted by likelihood.

    That is a model whose atoms hold more than a twentieth of its answers, or whose smooth part holds less than a tenth.

    marginals: (k,) of the models.

    >>> uniform = Marginal(*map(np.asarray, ([0.0] * 2, [1.0] * 2, [0.1, 0.5], [0.1, 0.5])), *[np.ones((2, 2)) / 2] * 3)
    >>> pairs_by_likelihood(uniform).tolist()
    [True]
    """
    tied = marginals.smooth < _LEAST_SMOOTH
    if marginals.atoms is not None:
        tied |= marginals.atoms.mass.sum(-1) > _MOST_AT_ATOMS
    left, right = np.array(pairs(len(tied)), int).reshape(-1, 2).T
    return tied[left] | tied[right]
