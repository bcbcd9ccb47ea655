"""`jax.jit` for our largest programs, which spend seconds in XLA before the first answer."""

from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import Any

import jax


def compiled(function: Callable[..., Any], static_argnames: str | Iterable[str] = ()) -> Callable[..., Any]:
    """`jax.jit`, with the options that compile fastest; for calls from Python, not from inside another `jax.jit`.

    jax takes compiler options only for the outermost function: compose with `function` itself. What is chosen is
    seen at the first call, when the backend is known, so that importing builds nothing.
    """

    @cache
    def program(backend):
        return jax.jit(function, static_argnames=static_argnames, compiler_options=_options(backend))

    @wraps(function)
    def call(*args, **kwargs):
        return program(jax.default_backend())(*args, **kwargs)

    return call


def _options(backend):
    # On the CPU, XLA's newer emitter of fused kernels takes 1.7 times as long to compile `fit` and `solve_frontier`
    # as the older one, for the same run time (benchmarks/speed.py). From jaxlib 0.11 on there is no choice.
    if backend == "cpu" and jax.__version_info__ < (0, 11):
        return {"xla_cpu_use_fusion_emitters": False}
    return None
