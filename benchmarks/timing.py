"""The clock of the benchmarks."""

import time
from collections.abc import Callable
from typing import Any

import jax


def timed(call: Callable[[], Any], patience: float = float("inf")) -> tuple[float, float, Any]:
    """(seconds to compile, seconds to run, the result).

    The best of five runs counts, of fewer once they have used up `patience` seconds; compilation is the first call
    less that, tracing included.
    """
    times = []
    while len(times) < 2 or (len(times) < 6 and sum(times[1:]) < patience):
        start = time.perf_counter()
        result = jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return times[0] - min(times[1:]), min(times[1:]), result
