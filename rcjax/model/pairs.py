"""The order in which pairs of models are stored everywhere."""


def pairs(k: int) -> tuple[tuple[int, int], ...]:
    """All (i, j) with i < j < k, in the order in which pairs are stored everywhere.

    >>> pairs(3)
    ((0, 1), (0, 2), (1, 2))
    """
    return tuple((i, j) for i in range(k) for j in range(i + 1, k))
