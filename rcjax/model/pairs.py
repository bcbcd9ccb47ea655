"""The order in which pairs of models are stored everywhere, and which of them never stand in one cascade."""

from collections.abc import Sequence

import numpy as np

from rcjax._base.variants import rivals, samples_of


def pairs(k: int) -> tuple[tuple[int, int], ...]:
    """All (i, j) with i < j < k, in the order in which pairs are stored everywhere.

    >>> pairs(3)
    ((0, 1), (0, 2), (1, 2))
    """
    return tuple((i, j) for i in range(k) for j in range(i + 1, k))


def barred_pairs(models: Sequence[str], votes: bool = True) -> np.ndarray | None:
    """(k, k) bool: which two models never stand in one cascade, as they are variants of one; None where there are none.

    Without `votes` those that are one of a model's several variants, and not the first of them, are barred altogether:
    on the diagonal too.

    >>> barred_pairs(["small", "large", "small ×3"]).astype(int).tolist(), barred_pairs(["small", "large"])
    ([[0, 0, 1], [0, 0, 0], [1, 0, 0]], None)
    >>> barred_pairs(["small", "large", "small ×3"], votes=False).astype(int).tolist()
    [[0, 0, 1], [0, 0, 1], [1, 1, 1]]
    """
    places = rivals(models)
    if not places:
        return None
    barred = np.zeros((len(models), len(models)), bool)
    for pair in places:
        barred[pair] = barred[pair[::-1]] = True
        more = max(pair, key=lambda place: samples_of(models[place]))
        if not votes:
            barred[more] = barred[:, more] = True
    return barred


def barred_as_in(models: Sequence[str], members: np.ndarray) -> np.ndarray | None:
    """`barred_pairs` of a search like the one that came to some cascades, members (…, k): among votes if any has one.

    >>> barred_as_in(["small", "large", "small ×3"], np.array([[1, 1, 0]], bool)).diagonal().tolist()
    [False, False, True]
    """
    alone = barred_pairs(models, votes=False)
    return barred_pairs(models) if alone is None or np.asarray(members)[..., alone.diagonal()].any() else alone
