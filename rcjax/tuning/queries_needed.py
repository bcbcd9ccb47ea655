"""How many held-out queries a guarantee takes, told where it cannot be given."""

import math
from bisect import bisect_left, bisect_right

from rcjax.tuning.p_values import binomial_tail

__all__ = ["queries_needed"]


_MOST_NEEDED = 100_000  # held-out queries, up to which it is told how many are needed


def queries_needed(errors: int, n: int, max_error: float, level: float) -> str:
    """How many held-out queries a target takes, in words that end a sentence, after so many errors in n queries.

    Args:
        errors, n: what was counted.
        max_error: the error that is to be guaranteed.
        level: of the test.

    >>> queries_needed(10, 100, 0.12, 0.05)
    '; the target takes about 800 held-out queries, if it goes on to err as often as on these'
    """
    rate = errors / n
    if rate >= max_error:
        allowed = bisect_right(range(n), level, key=lambda wrong: binomial_tail(wrong, n, max_error)) - 1
        few = f": of {n:,} it may err on {allowed} at most" if allowed >= 0 else ""
        return f"; more queries will not help, as it errs too often{few}"
    least = math.ceil(math.log(level) / math.log1p(-max_error))  # without any error
    sizes = range(least, _MOST_NEEDED)
    enough = bisect_left(sizes, -level, key=lambda n: -binomial_tail(math.ceil(rate * n), n, max_error))
    if not rate:
        return f"; the target takes at least {least:,} held-out queries, none of them wrong"
    about = f"about {_round_up(sizes[enough]):,}" if enough < len(sizes) else f"more than {_MOST_NEEDED:,}"
    return f"; the target takes {about} held-out queries, if it goes on to err as often as on these"


def _round_up(number: int) -> int:
    """To two digits: it is an estimate."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return -(-number // unit) * unit
