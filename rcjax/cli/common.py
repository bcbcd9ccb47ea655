"""What every command shares: JAX set up for the command line, outputs and libraries checked before any work."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from rcjax._base.extras import how_to_install
from rcjax._base.files import is_stream


def start_jax(cpu_devices: int | None = None, float64: bool = True, long: bool = False) -> None:
    """Switch on float64 and a folder for what is compiled, before JAX does any work.

    A CPU is one device, or so many, unless the user has said so (JAX_NUM_CPU_DEVICES). Programmes that run for a `long`
    time are compiled to run quickly, others to be compiled quickly.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's own chatter; errors still show
    import jax

    from rcjax._core.compilation import keep_programs

    jax.config.update("jax_enable_x64", float64)
    if cpu_devices is not None and getattr(jax.config, "jax_num_cpu_devices", 0) < 1:
        with suppress(RuntimeError):  # JAX works already: it has the devices that it has
            jax.config.update("jax_num_cpu_devices", cpu_devices)
    # A command runs most of its programs once: LLVM's optimisations take longer than they save. What runs for
    # seconds asks for its own (`rcjax._core.compilation`).
    jax.config.update("jax_disable_most_optimizations", not long)
    # Half of a second run is jax tracing: a tenth of it goes without looking for cycles that nobody leaves, or for
    # the Python lines behind each operation.
    gc.set_threshold(1_000_000, 50, 50)
    jax.config.update("jax_traceback_in_locations_limit", 0)
    if getattr(jax.config, "jax_compilation_cache_dir", None):  # the user chose JAX_COMPILATION_CACHE_DIR
        return
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return
    # Whole programs are quicker to load; those of a sweep are for several devices, which JAX's own cache can keep.
    if usable and (long or not keep_programs(folder)):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        # A full disk costs the time of compiling, nothing else.
        warnings.filterwarnings("ignore", message=".*persistent compilation cache.*")


def cache_folder() -> Path:
    """Return $RCJAX_CACHE_DIR, or rcjax in the user's cache folder."""
    folder = os.environ.get("RCJAX_CACHE_DIR")
    if folder:
        return Path(folder)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "rcjax" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rcjax"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rcjax"


def require_writable(path: Path | None) -> None:
    """Refuse, before any work, a file that could not be written after it."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir():
        raise OSError(f"cannot write {path}: it is a folder: give a file")
    if is_stream(path):
        if not os.access(path, os.W_OK):
            raise OSError(f"cannot write {path}: it is not writable")
        return
    if not folder.is_dir():
        raise OSError(f"cannot write {path}: there is no folder {folder}: create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"cannot write {path}: the folder {folder} is not writable")


def require_distinct(outputs: Sequence[tuple[str, Path | None]], inputs: Sequence[tuple[str, Any]]) -> None:
    """Refuse, before any work, an output that is the file of an input, by links too.

    Both are pairs of an option, or the name of an argument, and its path; None if it is absent. Raises a usage
    error that names the two. Pipes and devices may be given more than once.
    """
    taken = {_identity(path): (name, path) for name, path in inputs if path is not None}
    for option, path in outputs:
        if path is None or is_stream(path):
            continue
        if _identity(path) in taken:
            name, other = taken[_identity(path)]
            what = f"{path} must not be the file of {name}, {other}: give another one"
            raise typer.BadParameter(what, param_hint=option)


def _identity(path: str | os.PathLike[str]) -> tuple[int, int] | str:
    """What tells a file from every other one: of one that is not there yet, where links lead to."""
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def require_libraries(what: str, extra: str, *names: str) -> None:
    """Refuse, before any work, what needs a library that is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"{what} needs {name}: {how_to_install(extra)}")
