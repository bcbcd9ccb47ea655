"""The clock of the benchmarks."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


def timed(call: Callable[[], Any], patience: float = float("inf")) -> tuple[float, float, Any]:
    """(seconds to compile, seconds to run, the result).

    The median of five runs counts, of fewer once they have used up `patience` seconds; compilation is the first call
    less that, tracing included. What takes ten times as long as that at first runs once: its compilation is in the run.
    """
    times = []
    while not times or (len(times) == 1 and times[0] < 10 * patience) or (len(times) < 6 and sum(times[1:]) < patience):
        start = time.perf_counter()
        result = jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    run = statistics.median(times[1:] or times)
    return times[0] - run, run, result
