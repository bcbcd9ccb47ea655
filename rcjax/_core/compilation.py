"""`jax.jit` for our largest programs, which spend seconds in XLA before the first answer."""

from collections.abc import Callable, Iterable
from functools import cache, wraps
from threading import RLock
from typing import Any, Literal

import jax

from rcjax._core.threads import cores

#: How hard LLVM tries, on the CPU: for programs that run for milliseconds, once or a few times, and for those that run
#: for a second. Measured on all of them: level 0 compiles in a third of the time, for three times the run time; level 1
#: in three quarters, for the same run time as level 3, XLA's own.
LEVELS = {"once": 0, "long": 1}


#: Threads trace one after the other: the first is then compiled while the second traces, and so on, where all at once
#: would keep each other waiting for Python's lock before XLA has anything to do.
_TRACING = RLock()


def compiled(
    function: Callable[..., Any],
    static_argnames: str | Iterable[str] = (),
    runs: Literal["often", "once", "long"] = "often",
) -> Callable[..., Any]:
    """`jax.jit`, with the options that compile fastest; for calls from Python, not from inside another `jax.jit`.

    `runs`: "once" for what runs so quickly, and so rarely, that compiling is nearly all of its time; "long" for what
    runs for a second at a time; "often" leaves it to jax's configuration.

    jax takes compiler options only for the outermost function: compose with `function` itself. What is chosen is
    seen at the first call, when the backend is known, so that importing builds nothing.
    """

    @wraps(function)
    def traced(*args, **kwargs):  # called by jax to trace it, and no more
        with _TRACING:
            return function(*args, **kwargs)

    @cache
    def program(backend, level):
        return jax.jit(traced, static_argnames=static_argnames, compiler_options=_options(backend, level))

    @wraps(function)
    def call(*args, **kwargs):
        return program(jax.default_backend(), LEVELS.get(runs))(*args, **kwargs)

    return call


def _options(backend, level):
    if backend != "cpu":
        return None
    options: dict[str, Any] = {} if level is None else {"xla_backend_optimization_level": level}
    # XLA's newer emitter of fused kernels takes 1.7 times as long to compile `fit` and `solve_frontier` as the older
    # one, for the same run time (benchmarks/speed.py). From jaxlib 0.11 on there is no choice.
    if jax.__version_info__ < (0, 11):
        options["xla_cpu_use_fusion_emitters"] = False
        # In parts for as many threads as there are: XLA's 32 take a tenth longer on two cores.
        options["xla_cpu_parallel_codegen_split_count"] = min(32, cores())
    return options or None
