"""Exact p-values of errors and costs that were counted, and the limits that they give."""

import math
from collections.abc import Callable

from rcjax._core.binomial import binomial_tail

__all__ = ["binomial_tail", "bounded_mean_p_value", "upper_limit"]

_HALVINGS = 60  # of [0, 1], to below the spacing of float64


def bounded_mean_p_value(mean: float, n: int, limit: float) -> float:
    """p-value of the hypothesis that n independent variables in [0, 1] have an expectation of at least `limit`.

    `mean` is theirs. The Hoeffding–Bentkus inequality (Bates, Angelopoulos, Lei, Malik & Jordan 2021,
    "Distribution-free, risk-controlling prediction sets", J. ACM 68(6)): the less of exp(−n·KL(mean, limit)) and
    e·P(Bin(n, limit) ≤ ⌈n·mean⌉). It holds in finite samples and needs nothing but the mean, whatever path through
    the models a query took; betting (Waudby-Smith & Ramdas 2024) would use their spread too, but needs every query's
    cost and an order of them.

    >>> round(bounded_mean_p_value(0.1, 200, 0.2), 5), bounded_mean_p_value(0.3, 200, 0.2)
    (0.00029, 1.0)
    """
    if mean >= limit or limit <= 0:
        return 1.0
    if limit >= 1:
        return 0.0
    inside = mean * math.log(mean / limit) if mean > 0 else 0.0
    outside = (1 - mean) * (math.log1p(-mean) - math.log1p(-limit))
    hoeffding = math.exp(-n * (inside + outside))
    successes = math.ceil(n * mean - 1e-6)  # a whole number that float32 has put a hair above itself stays
    return min(1.0, hoeffding, math.e * binomial_tail(successes, n, limit))


def upper_limit(p_value: Callable[[float], float], level: float) -> float:
    """Where in [0, 1] a decreasing p-value falls to `level`; 1 where it stays above.

    Turned about, a test is a confidence limit: with the binomial tail, that of Clopper & Pearson (1934).

    >>> round(upper_limit(lambda probability: binomial_tail(9, 150, probability), 0.05), 4)
    0.1024
    """
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle) > level else (low, middle)
    return high
