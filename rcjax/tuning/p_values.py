"""Learn then Test: exact p-values of what was counted, tests in a fixed order, limits, and queries that they take."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

from rcjax._core.binomial import binomial_tail

_HALVINGS = 60  # of [0, 1], to below the spacing of float64


_MOST_NEEDED = 100_000  # held-out queries, up to which it is told how many are needed


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


def mean_p_value(mean: float, n: int, limit: float, counted: bool) -> float:
    """`bounded_mean_p_value`, or the exact binomial tail where each of the variables is 0 or 1.

    Args:
        mean: of the variables, which are in [0, 1].
        n: how many there are.
        limit: the mean of the law that is to be refuted.
        counted: each is 0 or 1.

    >>> round(mean_p_value(0.1, 200, 0.2, counted=True), 5), round(mean_p_value(0.1, 200, 0.2, counted=False), 5)
    (0.00011, 0.00029)
    """
    return binomial_tail(round(mean * n), n, limit) if counted else bounded_mean_p_value(mean, n, limit)


def last_shown(order: Iterable[int], p_value: Callable[[int], float], level: float) -> int | None:
    """The last policy of a fixed order before the first that is not shown to keep its targets; None where none is.

    Each is tested at the full level, and none is reached past one that fails: the probability that any is accepted
    wrongly is at most the level (Angelopoulos, Bates, Candès, Jordan & Lei 2021, "Learn then Test", section 2).

    >>> last_shown([2, 0, 1], [0.04, 0.2, 0.01].__getitem__, 0.05)
    0
    """
    chosen = None
    for index in order:
        if p_value(index) > level:
            break
        chosen = index
    return chosen


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


def queries_needed(errors: int, n: int, max_error: float, level: float, noun: str) -> str:
    """How many held-out queries a target takes, in words that end a sentence, after so many errors in n queries.

    Args:
        errors, n: what was counted.
        max_error: the error that is to be guaranteed.
        level: of the test.
        noun: what errors are called.

    >>> queries_needed(10, 100, 0.12, 0.05, "error")
    '; the target takes about 800 held-out queries, if it goes on as on these'
    """
    rate = errors / n
    if rate >= max_error:
        allowed = bisect_right(range(n), level, key=lambda wrong: binomial_tail(wrong, n, max_error)) - 1
        few = f" (at most {allowed / n:.1%} on {n:,} queries)" if allowed >= 0 else ""
        return f"; more queries will not help, as the {noun} is too high{few}"
    least = math.ceil(math.log(level) / math.log1p(-max_error))  # without any error
    sizes = range(least, _MOST_NEEDED)
    enough = bisect_left(sizes, -level, key=lambda n: -binomial_tail(math.ceil(rate * n), n, max_error))
    if not rate:
        return f"; the target takes at least {least:,} held-out queries, without any {noun}"
    about = f"about {_round_up(sizes[enough]):,}" if enough < len(sizes) else f"more than {_MOST_NEEDED:,}"
    return f"; the target takes {about} held-out queries, if it goes on as on these"


def _round_up(number: int) -> int:
    """To two digits: it is an estimate."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return -(-number // unit) * unit
