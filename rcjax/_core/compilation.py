"""`jax.jit` for rcjax's largest programs, which take seconds to compile, and their files in a private folder.

A process may store compiled programs in a folder (`store_programs`; the command line does), so that a later process
neither traces nor compiles them. JAX's own cache traces and lowers a program again to compute its key. Here the key is
the signature of the call: the function's source, the versions, the machine, the settings, and the types and shapes of
the arguments. Equal signatures give equal programs.

An executable is machine code in a pickle. It is loaded only from a folder that belongs to this user and is closed to
all others, so that nobody else can have put a file there.
"""

import dataclasses
import hashlib
import inspect
import os
import pickle
import platform
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental import serialize_executable
from jaxlib.version import __version__ as jaxlib_version

from rcjax._base.files import write_atomically
from rcjax._core.batching import count_cores, is_repeating

#: Limit of the cache folder, JAX's files included; the least recently used files are deleted first.
MAX_BYTES = 256 * 2**20

#: A full folder is emptied down to this share, so that not every new program has to delete files.
_SHARE_KEPT = 0.75

_SUFFIX = ".program"

_JAX_FOLDER = "jax"  # the folder of JAX's own cache

#: Names of files that may be deleted: stored programs, and JAX's files. The folder may also hold files of the user.
_DELETABLE = re.compile(rf"[0-9a-f]{{64}}{re.escape(_SUFFIX)}|.+-[0-9a-f]{{64}}-(cache|atime)")

Program = Callable[..., Any]


@dataclass(frozen=True)
class ProgramFiles:
    """A folder of compiled programs."""

    folder: Path

    def load(self, key: str) -> tuple[Program, Any] | None:
        """Load a program; return (the program, its result's structure with numbered leaves), or None if not stored.

        A damaged file is ignored, and so is a folder that others could write to.
        """
        path = self._path(key)
        try:
            if not _is_private(self.folder):
                return None
            content = path.read_bytes()
            if hashlib.sha256(content[32:]).digest() != content[:32]:
                return None
            executable, leaves, example, linear_algebra = pickle.loads(zlib.decompress(content[32:]))
            if linear_algebra:
                _bind_lapack()
            with suppress(OSError):
                os.utime(path)  # the time of its last use
            trees = jax.tree.structure(((0,) * leaves, {})), jax.tree.structure([0] * len(jax.tree.leaves(example)))
            # A program is compiled for the first device; there may be more.
            devices = jax.devices()[:1]
            return serialize_executable.deserialize_and_load(executable, *trees, execution_devices=devices), example
        except Exception:  # a cache must never fail a call
            return None

    def save(self, key: str, program: jax.stages.Compiled, leaves: int, example: Any) -> None:
        """Store a program; a failure, such as a full disk, is ignored.

        Args:
            key: key of the program, from `rcjax._core.compilation.signature_key`.
            program: the compiled program.
            leaves: number of the program's arguments, all arrays.
            example: structure of the program's result, with numbered leaves.
        """
        with suppress(Exception):
            executable, _, _ = serialize_executable.serialize(program)
            record = executable, leaves, example, b"lapack_" in executable  # an executable names the functions it calls
            content = zlib.compress(pickle.dumps(record), level=1)
            write_atomically(self._path(key), hashlib.sha256(content).digest() + content)
            self._make_room()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _make_room(self) -> None:
        """Delete the least recently used files of this folder and of JAX's beside it, if they exceed the limit."""
        entries = []
        for folder in (self.folder, self.folder.with_name(_JAX_FOLDER)):
            for path in folder.iterdir() if folder.is_dir() else ():
                with suppress(OSError):  # another process may have deleted it
                    if _DELETABLE.fullmatch(path.name):
                        status = path.lstat()
                        entries.append((status.st_mtime, status.st_size, path))
        size = sum(entry[1] for entry in entries)
        if size <= MAX_BYTES:
            return
        for _, file_size, path in sorted(entries):
            with suppress(OSError):
                path.unlink()
            size -= file_size
            if size <= _SHARE_KEPT * MAX_BYTES:
                return


def open_program_files(cache: Path) -> ProgramFiles | None:
    """Open the subfolder of programs in a cache folder; None if others could write to it."""
    folder = _private_folder(cache / "programs")
    return None if folder is None else ProgramFiles(folder)


def jax_folder(cache: Path) -> Path | None:
    """Return JAX's subfolder in a cache folder; None if others could write to it."""
    return _private_folder(cache / _JAX_FOLDER)


def _private_folder(folder: Path) -> Path | None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder if _is_private(folder) else None
    except OSError:
        return None


def _is_private(folder: Path) -> bool:
    """Return whether a folder belongs to this user and is closed to all others; False if the system does not tell."""
    if not hasattr(os, "geteuid"):
        return False
    status = folder.lstat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


@cache
def _bind_lapack() -> None:
    """Make JAX bind LAPACK, as it does when it lowers the first call: else a loaded program calls a null pointer."""
    jax.jit(jnp.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), jnp.float32))


#: Settings of JAX that change the compiled program.
_SETTINGS = (
    "jax_enable_x64",
    "jax_disable_most_optimizations",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_disable_jit",
)


def call_signature(leaves: list[Any], tree: Any, static: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a signature of a call, by arrays, their tree and static arguments: hashable, valid within a process."""
    shapes = tuple(_shape(leaf) for leaf in leaves)
    settings = tuple(getattr(jax.config, name, None) for name in _SETTINGS)
    return tree, shapes, tuple(sorted(static.items())), settings


def signature_key(function: Callable[..., Any], signature: tuple[Any, ...], options: Any) -> str | None:
    """Return a key for the program of a call that is valid in other processes too, or None.

    There is no key if the function, a type of the arguments or a static argument is neither rcjax's nor Python's: the
    code of a user's copula family may change from run to run.
    """
    tree, shapes, static, settings = signature
    code = source_fingerprint()
    parts = [*_nested(tree), *(_named(value) for _, value in static)]
    if code is None or None in parts or not _is_ours(function) or "<" in function.__qualname__:
        return None
    content = (code, _named(function), repr(tree), shapes, parts, [name for name, _ in static], settings, options)
    return hashlib.sha256(repr(content).encode()).hexdigest()


def is_traced(leaves: list[Any]) -> bool:
    """Return whether a call is part of a larger trace."""
    return any(isinstance(leaf, Tracer) for leaf in leaves)


def is_on_other_device(leaves: list[Any]) -> bool:
    """Return whether some arrays of a call are not on the default device."""
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    home = {default if isinstance(default, jax.Device) else jax.devices()[0]}
    return any(isinstance(leaf, jax.Array) and leaf.devices() != home for leaf in leaves)


def _shape(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, np.ndarray):
        return leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype).name, False
    kind = jax.typeof(leaf)
    return kind.shape, kind.dtype.name, kind.weak_type


def _nested(tree: Any) -> Iterator[str | None]:
    """Yield the names of all types in a tree, and of their static data; None for one without a name."""
    kind = tree.node_data()
    if kind is None:  # a leaf
        return
    node, static = kind
    yield _named(node)
    yield _named(static)
    for child in tree.children():
        yield from _nested(child)


def _named(value: Any) -> str | None:
    """Return a text that identifies a value in every process; None if there may be none."""
    if value is None or isinstance(value, bool | int | float | str | bytes | np.dtype):
        return repr(value)
    if isinstance(value, tuple | list):
        parts = [_named(part) for part in value]
        return None if None in parts else f"{type(value).__name__}({', '.join(filter(None, parts))})"
    if isinstance(value, Mapping):
        return _named([*value.items()])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return _named([type(value), *fields])
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name is not None and "<" not in name and _is_ours(value) else None


def _is_ours(value: Any) -> bool:
    """Return whether a function or class is rcjax's own or Python's."""
    named = isinstance(value, type) or callable(value)
    return named and str(getattr(value, "__module__", "")).partition(".")[0] in ("rcjax", "builtins", "collections")


@cache
def source_fingerprint() -> str | None:
    """Return a hash of rcjax's source, the versions and the machine; None if the source cannot be read."""
    root = str(Path(__file__).parents[1])
    sources = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]
    digest = hashlib.sha256()
    sources = sorted(path for path in sources if path.endswith(".py"))
    try:
        for path in sources:
            content = Path(path).read_bytes()
            digest.update(f"{path.removeprefix(root)} {len(content)} ".encode() + content)
    except OSError:
        return None
    if not sources:
        return None
    client = jax.devices()[0].client
    versions = sys.version, jax.__version__, jaxlib_version, np.__version__, client.platform_version
    machine = platform.machine(), client.platform, jax.devices()[0].device_kind, _features(), jax.process_count()
    digest.update(repr((versions, machine, os.environ.get("XLA_FLAGS"))).encode())
    return digest.hexdigest()


def _features() -> str:
    """Return the processor's model and features, if the system tells: code for one processor may fail on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    fields = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(fields)))


#: LLVM's optimization levels on the CPU: for programs that run for milliseconds, once or a few times, and for programs
#: that run for a second. Measured over all programs: level 0 compiles in a third of the time, and runs three times as
#: long; level 1 compiles in three quarters, and runs as long as at XLA's default, level 3.
LEVELS = {"once": 0, "long": 1}

_LARGE_ARRAY = 2**18  # entries of an array, from which a program runs for long

#: Threads trace one after the other, so that XLA compiles the first program while the second is traced. Concurrent
#: traces would wait for Python's global lock before XLA had anything to do.
_TRACING = RLock()

#: The folder of stored programs, if any.
_FILES: list[ProgramFiles] = []

#: Callbacks before the first compilation of a program that is not stored.
_CALLBACKS: list[Callable[[], None]] = []

#: The loaded programs of every function.
_ALL_PROGRAMS: "list[_Programs]" = []


def store_programs(cache_folder: Path | None, on_compile: Callable[[], None] | None = None) -> bool:
    """Store compiled programs below a folder from now on, or nowhere (None); return whether they are stored.

    Programs are stored on the CPU only (JAX's own cache serves accelerators), and in a private folder only.
    `on_compile` is called before the first compilation.
    """
    files = open_program_files(cache_folder) if cache_folder is not None and jax.default_backend() == "cpu" else None
    _FILES[:] = [] if files is None else [files]
    _CALLBACKS[:] = [] if on_compile is None else [on_compile]
    return bool(_FILES)


def forget_programs() -> None:
    """Release the stored programs that this process holds in memory; the files stay."""
    for programs in _ALL_PROGRAMS:
        programs.runners.clear()


def in_full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with matrix products in the full precision of their factors.

    By default XLA multiplies float32 with ten bits of mantissa on a GPU (TF32). On an H200 that changed error + λ·cost
    by 1.3e-4, against 3e-7 now, in the same time. On a CPU nothing changes.
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
    """Compile a function by `jax.jit` with the fastest compiler options; inside another `jax.jit`, leave it as it is.

    `runs` selects the optimization level: "once" for a function whose compilation takes nearly all of its time; "long"
    for one that runs for a second; "often" to decide by jax's configuration and the size of the arguments.

    The options are chosen at the first call, when the backend is known: an import compiles nothing.
    """
    static = {static_argnames} if isinstance(static_argnames, str) else {*static_argnames}
    function = in_full_precision(function)

    @wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:  # called by jax only to trace the function
        with _TRACING:
            return function(*args, **kwargs)

    @cache
    def program(backend: str, level: int | None) -> Callable[..., Any]:
        return jax.jit(traced, static_argnames=static_argnames, compiler_options=_options(backend, level))

    programs = _Programs(function, traced, static)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs))
        if is_traced(leaves):  # part of a larger program
            return function(*args, **kwargs)
        backend = jax.default_backend()
        largest = max(map(np.size, leaves), default=0)
        level = _level(runs, largest)
        # A program that JAX has loaded from its own cache cannot be saved.
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
        bound = self.parameters.bind(*args, **kwargs)
        bound.apply_defaults()  # explicit defaults mean the same program
        static = {name: value for name, value in bound.arguments.items() if name in self.static}
        leaves, tree = jax.tree.flatten({name: value for name, value in bound.arguments.items() if name not in static})
        if is_on_other_device(leaves):
            return plain(*args, **kwargs)
        call = call_signature(leaves, tree, static)
        slot = call, repr(options), *_FILES
        with self.locks.setdefault(slot, Lock()):  # another thread may be compiling it
            if slot not in self.runners:
                self.runners[slot] = self._runner(call, options, static, leaves)
            runner = self.runners[slot]
        return plain(*args, **kwargs) if runner is None else runner(*leaves)

    def _runner(
        self, call: tuple[Any, ...], options: dict[str, Any] | None, static: dict[str, Any], leaves: list[Any]
    ) -> Callable[..., Any] | None:
        """Load the program, or compile and store it; None if it has no key."""
        key = signature_key(self.function, call, options)
        if key is None:
            return None
        (files,) = _FILES
        stored = files.load(key)
        if stored is None:
            for on_compile in [*_CALLBACKS]:  # a second call by another thread does no harm
                on_compile()
            _CALLBACKS.clear()
            stored = self._compile(call[0], options, static, leaves)
            files.save(key, stored[0], len(leaves), stored[1])
        program, example = stored
        shape = jax.tree.structure(example)
        return lambda *leaves: jax.tree.unflatten(shape, program(*leaves))

    def _compile(
        self, tree: Any, options: dict[str, Any] | None, static: dict[str, Any], leaves: list[Any]
    ) -> tuple[Any, Any]:
        """Return (the compiled program of the leaves, its result's structure with numbered leaves)."""
        shapes = []

        @wraps(self.function)
        def flat(*leaves: jax.Array) -> list[jax.Array]:
            result, shape = jax.tree.flatten(self.traced(**jax.tree.unflatten(tree, leaves), **static))
            shapes.append(shape)
            return result

        program = jax.jit(flat, compiler_options=options).lower(*leaves).compile()
        return program, jax.tree.unflatten(shapes[0], range(shapes[0].num_leaves))


def _level(runs: str, largest: int) -> int | None:
    """Return LLVM's optimization level for a kind of run and a `largest` argument of so many entries; None: default."""
    if runs != "often":
        return LEVELS[runs]
    quick = jax.config.read("jax_disable_most_optimizations")
    return LEVELS["long" if is_repeating() or largest >= _LARGE_ARRAY else "once"] if quick else None


def _options(backend: str, level: int | None) -> dict[str, bool | int] | None:
    if backend != "cpu":
        return None
    options: dict[str, Any] = {} if level is None else {"xla_backend_optimization_level": level}
    # XLA's newer emitter of fused kernels compiles `fit` and `solve_frontier` 1.7 times as long as the older, for
    # the same run time (benchmarks/speed.py). From jaxlib 0.11 on only the newer emitter exists.
    if jax.__version_info__ < (0, 11):
        options["xla_cpu_use_fusion_emitters"] = False
        # One part per core: XLA's default of 32 takes a tenth longer on two cores.
        options["xla_cpu_parallel_codegen_split_count"] = min(32, count_cores())
    return options or None
