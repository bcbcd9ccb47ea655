"""`jax.jit` for our largest programs, which spend seconds in XLA before the first answer.

A process may keep what is compiled in a folder (`keep_programs`; the command line does): then a later process neither
traces nor compiles it.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import cache, wraps
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Literal

import jax

from rcjax._core.program_files import ProgramFiles, open_program_files
from rcjax._core.signatures import is_elsewhere, is_traced, signature, signature_key
from rcjax._core.threads import cores, is_repeating

#: How hard LLVM tries, on the CPU: for programs that run for milliseconds, once or a few times, and for those that run
#: for a second. Measured on all of them: level 0 compiles in a third of the time, for three times the run time; level 1
#: in three quarters, for the same run time as level 3, XLA's own.
LEVELS = {"once": 0, "long": 1}

#: Threads trace one after the other: the first is then compiled while the second traces, and so on, where all at once
#: would keep each other waiting for Python's lock before XLA has anything to do.
_TRACING = RLock()

#: Where programs are kept, if anywhere.
_FILES: list[ProgramFiles] = []

#: The kept programs of every function.
_ALL_PROGRAMS: "list[_Programs]" = []


def keep_programs(cache_folder: Path | None) -> bool:
    """From now on keep compiled programs below this folder, or nowhere (None); whether they are kept.

    They are not where somebody else can write to the folder, and on the CPU only: elsewhere JAX's own cache has to do.
    """
    files = open_program_files(cache_folder) if cache_folder is not None and jax.default_backend() == "cpu" else None
    _FILES[:] = [] if files is None else [files]
    return bool(_FILES)


def forget_programs() -> None:
    """Let go of the kept programs that this process holds in memory; the files stay."""
    for programs in _ALL_PROGRAMS:
        programs.runners.clear()


def in_full(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose products of matrices are taken in the precision of what they multiply.

    On a GPU XLA multiplies float32 in ten bits of mantissa otherwise (TF32): on an H200 that moved error + λ·cost by
    1.3e-4 where it is now 3e-7, for the same time. On a CPU nothing changes.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return call


def compiled(
    function: Callable[..., Any],
    static_argnames: str | Iterable[str] = (),
    runs: Literal["often", "once", "long"] = "often",
) -> Callable[..., Any]:
    """`jax.jit`, with the options that compile fastest; inside another `jax.jit` it is the function itself.

    `runs`: "once" for what runs so quickly, and so rarely, that compiling is nearly all of its time; "long" for what
    runs for a second at a time; "often" leaves it to jax's configuration.

    What is chosen is seen at the first call, when the backend is known, so that importing builds nothing.
    """
    static = {static_argnames} if isinstance(static_argnames, str) else {*static_argnames}
    function = in_full(function)

    @wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:  # called by jax to trace it, and no more
        with _TRACING:
            return function(*args, **kwargs)

    @cache
    def program(backend: str, level: int | None) -> Callable[..., Any]:
        return jax.jit(traced, static_argnames=static_argnames, compiler_options=_options(backend, level))

    programs = _Programs(function, traced, static)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_traced(jax.tree.leaves((args, kwargs))):  # part of a larger program
            return function(*args, **kwargs)
        backend = jax.default_backend()
        level = _level(runs)
        # What JAX has loaded from a cache of its own cannot be saved again.
        if _FILES and not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
            return programs(program(backend, level), _options(backend, level), *args, **kwargs)
        return program(backend, level)(*args, **kwargs)

    return call


class _Programs:
    """The programs of one function, by the signature of the call."""

    def __init__(self, function: Callable[..., Any], traced: Callable[..., Any], static: set[str]) -> None:
        self.function, self.traced, self.static = function, traced, static
        self.parameters = inspect.signature(function)
        self.runners: dict[Any, Callable[..., Any] | None] = {}
        self.locks: dict[Any, Lock] = {}
        _ALL_PROGRAMS.append(self)

    def __call__(self, plain: Callable[..., Any], options: Any, *args: Any, **kwargs: Any) -> Any:
        bound = self.parameters.bind(*args, **kwargs).arguments
        static = {name: value for name, value in bound.items() if name in self.static}
        leaves, tree = jax.tree.flatten({name: value for name, value in bound.items() if name not in static})
        if is_elsewhere(leaves):
            return plain(*args, **kwargs)
        look = signature(leaves, tree, static)
        slot = look, repr(options), *_FILES
        with self.locks.setdefault(slot, Lock()):  # another thread may be at it
            if slot not in self.runners:
                self.runners[slot] = self._runner(look, options, static, leaves)
            runner = self.runners[slot]
        return plain(*args, **kwargs) if runner is None else runner(*leaves)

    def _runner(
        self,
        look: tuple[Any, ...],
        options: dict[str, Any] | None,
        static: dict[str, Any],
        leaves: list[Any],
    ) -> Callable[..., Any] | None:
        """The program that is kept, or is from now on; None if it cannot be."""
        key = signature_key(self.function, look, options)
        if key is None:
            return None
        (files,) = _FILES
        held = files.load(key)
        if held is None:
            held = self._compile(look[0], options, static, leaves)
            files.save(key, held[0], len(leaves), held[1])
        program, example = held
        shape = jax.tree.structure(example)
        return lambda *leaves: jax.tree.unflatten(shape, program(*leaves))

    def _compile(
        self, tree: Any, options: dict[str, Any] | None, static: dict[str, Any], leaves: list[Any]
    ) -> tuple[Any, Any]:
        """(the program of the leaves, what it returns with its leaves numbered)."""
        shapes = []

        @wraps(self.function)
        def flat(*leaves: jax.Array) -> list[jax.Array]:
            result, shape = jax.tree.flatten(self.traced(**jax.tree.unflatten(tree, leaves), **static))
            shapes.append(shape)
            return result

        program = jax.jit(flat, compiler_options=options).lower(*leaves).compile()
        return program, jax.tree.unflatten(shapes[0], range(shapes[0].num_leaves))


def _level(runs: str) -> int | None:
    if runs != "often":
        return LEVELS[runs]
    quick = jax.config.read("jax_disable_most_optimizations")
    return LEVELS["long" if is_repeating() else "once"] if quick else None


def _options(backend: str, level: int | None) -> dict[str, bool | int] | None:
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
