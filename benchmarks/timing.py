"""A clock for benchmarks, and processes of their own for the calls that it times."""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
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


def alone(function: Callable[..., Any], *arguments: Any, patience: float | None = None) -> Any:
    """What a function returns in a process of its own, which is killed after `patience` seconds.

    Raises TimeoutError then, what the function raised, as a RuntimeError, or EOFError where the process died.
    """
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_answer, args=(sender, function, arguments))
    process.start()
    sender.close()  # so that the end of the process is the end of the pipe
    try:
        if not receiver.poll(patience):
            raise TimeoutError(f"not done after {patience:.0f} seconds")
        problem, result = receiver.recv()
    except EOFError:
        process.join()
        raise EOFError(f"the process ended with code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if problem is not None:
        raise RuntimeError(problem)
    return result


def _answer(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer = None, function(*arguments)
    except Exception as problem:
        answer = f"{type(problem).__name__}: {problem}", None
    sender.send(answer)
