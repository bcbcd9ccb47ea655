"""The normal law: quantiles of intervals, and tails of figures with a standard error."""

import math
from statistics import NormalDist

Z95 = 1.645
"""Standard errors of a one-sided 95 % bound, and of either side of a 90 % interval."""


def half_width(level: float) -> float:
    """Return the standard errors on either side of an interval of a level in (0, 1).

    >>> round(half_width(0.95), 2)
    1.96
    """
    return NormalDist().inv_cdf((1 + level) / 2)


def upper_tail(mean: float, se: float) -> float:
    """Return the probability of a mean so far above 0 by chance: the one-sided p-value; 0 or 1 without an error.

    >>> round(upper_tail(1.645, 1.0), 2), upper_tail(0.0, 0.0)
    (0.05, 1.0)
    """
    return math.erfc(mean / se / math.sqrt(2)) / 2 if se > 0 else float(mean <= 0)
