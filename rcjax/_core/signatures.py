"""What a call of a compiled function looks like: by this its program is known again, without tracing it.

Equal signatures give equal programs, in another process too: same function of the same source, same versions,
machine and settings, same types and shapes of the arguments.
"""

import dataclasses
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jaxlib.version import __version__ as jaxlib_version

#: Settings of JAX that change what is compiled.
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


def signature(leaves: list[Any], tree: Any, static: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells one call from another within a process: hashable.

    Args:
        leaves: the arrays of the arguments.
        tree: how they are nested.
        static: the arguments that are no arrays.
    """
    shapes = tuple(_shape(leaf) for leaf in leaves)
    settings = tuple(getattr(jax.config, name, None) for name in _SETTINGS)
    return tree, shapes, tuple(sorted(static.items())), settings


def signature_key(function: Callable[..., Any], signature: tuple[Any, ...], options: Any) -> str | None:
    """A name for the program of a call that holds in other processes too, or None.

    There is none if the function, a type of the arguments or a static argument is not rcjax's own or Python's: the
    code of a copula family of the user's may change from run to run.
    """
    tree, shapes, static, settings = signature
    code = fingerprint()
    parts = [*_nested(tree), *(_named(value) for _, value in static)]
    if code is None or None in parts or not _is_ours(function) or "<" in function.__qualname__:
        return None
    whole = (code, _named(function), repr(tree), shapes, parts, [name for name, _ in static], settings, options)
    return hashlib.sha256(repr(whole).encode()).hexdigest()


def is_traced(leaves: list[Any]) -> bool:
    """Whether a call is part of a larger trace."""
    return any(isinstance(leaf, Tracer) for leaf in leaves)


def is_elsewhere(leaves: list[Any]) -> bool:
    """Whether some arrays of a call are not on the default device."""
    home = {_home()}
    return any(isinstance(leaf, jax.Array) and leaf.devices() != home for leaf in leaves)


def _home() -> Any:
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    return device if isinstance(device, jax.Device) else jax.devices()[0]


def _shape(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, np.ndarray):
        return leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype).name, False
    kind = jax.typeof(leaf)
    return kind.shape, kind.dtype.name, kind.weak_type


def _nested(tree: Any) -> Iterator[str | None]:
    """The names of all types in a tree, with what they hold beside arrays; None for one without a name."""
    kind = tree.node_data()
    if kind is None:  # a leaf
        return
    node, held = kind
    yield _named(node)
    yield _named(held)
    for child in tree.children():
        yield from _nested(child)


def _named(value: Any) -> str | None:
    """A text that is the same in every process and different for different values; None if there may be none."""
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
    """Whether a function or class is rcjax's own or Python's."""
    named = isinstance(value, type) or callable(value)
    return named and str(getattr(value, "__module__", "")).partition(".")[0] in ("rcjax", "builtins", "collections")


@cache
def fingerprint() -> str | None:
    """What every program depends on: rcjax's source, versions, the machine; None if the source cannot be read."""
    root = Path(__file__).parents[1]
    try:
        sources = [(path.relative_to(root).as_posix(), path.read_bytes()) for path in sorted(root.rglob("*.py"))]
    except OSError:
        return None
    if not sources:
        return None
    digest = hashlib.sha256()
    for name, content in sources:
        digest.update(f"{name} {len(content)} ".encode() + content)
    client = jax.devices()[0].client
    versions = sys.version, jax.__version__, jaxlib_version, np.__version__, client.platform_version
    machine = platform.machine(), client.platform, jax.devices()[0].device_kind, _features(), jax.process_count()
    digest.update(repr((versions, machine, os.environ.get("XLA_FLAGS"))).encode())
    return digest.hexdigest()


def _features() -> str:
    """What the processor can do, as far as the system tells: code for one may fail on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    fields = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(fields)))
