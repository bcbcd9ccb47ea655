"""What every command shares: JAX set up for the command line, files read and checked."""

from __future__ import annotations

import gc
import importlib.util
import os
import reprlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rcjax._checks import load
from rcjax._files import is_stream
from rcjax._printing import warn

if TYPE_CHECKING:
    from rcjax.diagnostics import Diagnosis
    from rcjax.frontier import Frontier
    from rcjax.joint import CascadeModel
    from rcjax.logs import Log
    from rcjax.mixture import Mixture
    from rcjax.policy import Policy

__all__ = [
    "echoed",
    "is_training_log",
    "load_tuned",
    "read_file",
    "read_for",
    "read_pair",
    "require_distinct",
    "require_libraries",
    "require_plots",
    "require_writable",
    "save_plots",
    "start_jax",
]


def start_jax(cpu_devices: int | None = None, float64: bool = True, long: bool = False) -> None:
    """Switch on float64 and the persistent compilation cache, before JAX does any work.

    A CPU is one device, or so many, unless the user has said so (JAX_NUM_CPU_DEVICES). Programmes that run for a `long`
    time are compiled to run quickly, others to be compiled quickly.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's own chatter; errors still show
    import jax

    jax.config.update("jax_enable_x64", float64)
    if cpu_devices is not None and getattr(jax.config, "jax_num_cpu_devices", 0) < 1:
        with suppress(RuntimeError):  # JAX works already: it has the devices that it has
            jax.config.update("jax_num_cpu_devices", cpu_devices)
    # A command runs most of its programmes once: LLVM's optimisations take longer than they save. What runs for
    # seconds asks for its own (`rcjax._compile`).
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
    if usable:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        # A full disk costs the time of compiling, nothing else.
        warnings.filterwarnings("ignore", message=".*persistent compilation cache.*")


def cache_folder() -> Path:
    """Return $RCJAX_CACHE_DIR, or rcjax in the user's cache folder."""
    own = os.environ.get("RCJAX_CACHE_DIR")
    if own:
        return Path(own)
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
    """Refuse, before any work, an output that is the file of an input or of another output, by links too.

    Both are pairs of an option, or the name of an argument, and its path; None where it is absent. Raises a usage
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
        taken[_identity(path)] = option, path


def _identity(path: str | os.PathLike[str]) -> tuple[int, int] | str:
    """What tells a file from every other one: of one that is not there yet, where links lead to."""
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def read_file(read: Callable[..., Log], path: Path, others: str, **options: Any) -> Log:
    """Read a log; if it is incomplete, a line on standard error says so, and what becomes of the `others`."""
    import rcjax
    from rcjax.logs import MissingPricesError

    with echoed(rcjax.LeftOutWarning):
        warnings.simplefilter("ignore", rcjax.IncompleteLogWarning)
        try:
            log = read(path, **options)
        except MissingPricesError:
            advice = "give --prices FILE, or add a column cost"
            raise MissingPricesError(f"{path.name}: token counts but no prices: {advice}") from None
    complete = int(log.complete.sum())
    if complete < log.n_queries:
        counts = f"{complete:,} of {log.n_queries:,} queries have an answer of every model"
        warn(f"{path.name}: {counts}; {others}")
    return log


@contextmanager
def echoed(category: type[Warning]) -> Iterator[None]:
    """Show warnings of one kind as lines on standard error, once the work is done."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", category)
        yield
    for each in caught:
        if issubclass(each.category, category):
            warn(each.message)
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def read_pair(log: Path, test: Path | None, others: str, models: Any, **options: Any) -> tuple[Log, Log | None]:
    """Read a log and, where there is one, a second one of the same models."""
    import rcjax

    first = read_file(rcjax.read_log, log, others, models=models, **options)
    return first, read_file(rcjax.read_log, test, others, models=first.models, **options) if test else None


def load_tuned(path: Path) -> Policy | Mixture | Frontier:
    """Load what `rcjax tune` wrote, told by its "format"; ValueError names the file and the place of what is wrong."""
    return load(path, _tuned_from_json)


def _tuned_from_json(data: Any) -> Policy | Mixture | Frontier:
    from rcjax.frontier import frontier_from_json
    from rcjax.policy import policy_from_json
    from rcjax.retuning import recorded_tuning

    kind = data.get("format") if isinstance(data, dict) else "rcjax-policy"  # whose reader says that it is no object
    if kind == "rcjax-frontier":
        return frontier_from_json(data)
    if kind not in ("rcjax-policy", "rcjax-mixture"):
        what = "a policy or a frontier that rcjax tune wrote with --out or --frontier"
        raise ValueError(f"its format is {reprlib.repr(kind)}: give {what}")
    policy = policy_from_json(data)
    recorded_tuning(policy)  # every command reads it: here what is wrong with it is told with the file's name
    return policy


def read_for(subject: Policy | Mixture | Frontier, path: Path, prices: Path | None, labels: Path | None = None) -> Log:
    """Read the log for a replay: the models of the policy or frontier, at its prices where tokens have no others."""
    from rcjax.logs import MissingPricesError, read_answers
    from rcjax.mixture import Mixture
    from rcjax.policy import Policy

    if isinstance(subject, Policy | Mixture):
        stored, transform = subject.prices, subject.transform
    else:
        stored, transform = subject.model.prices, subject.model.calibrators.transform
    task = "choice" if transform == "choice" else "generation"
    options = {"models": subject.models, "task": task, "labels": labels}
    read = partial(read_file, read_answers, path, "the others are left out", **options)
    try:
        return read(prices=prices)
    except MissingPricesError:
        if not stored:
            raise
        return read(prices=stored)


def is_training_log(
    subject: Policy | Mixture | Frontier, log: Log, path: Path, prices: Path | None, labels: Path | None
) -> bool:
    """Whether a file, read as `log` for the models of a policy, is the log that it was tuned on, by its hash."""
    from rcjax.logs import LogError, read_answers
    from rcjax.mixture import Mixture
    from rcjax.policy import Policy
    from rcjax.retuning import recorded_tuning

    if not isinstance(subject, Policy | Mixture):
        return log.digest == subject.model.provenance.get("digest")
    told, tuning = subject.provenance, recorded_tuning(subject.policies[0])
    if "digest" not in told:
        return False
    if tuning.models != log.models:  # the hash is that of all models that it was chosen from
        options: Any = {"models": tuning.models, "task": log.task, "labels": labels}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                log = read_answers(path, prices=prices or tuning.prices, **options)
        except LogError:
            return False
    return log.digest == told["digest"]


def require_libraries(what: str, extra: str, *names: str) -> None:
    """Refuse, before any work, what needs a library that is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"{what} needs {name}: pip install 'rcjax[{extra}]'")


def require_plots(folder: Path) -> None:
    """Refuse, before any work, figures that could not be drawn or written."""
    require_libraries("--plots", "plots", "matplotlib")
    if folder.exists() and not folder.is_dir():
        raise OSError(f"cannot write figures into {folder}: it is a file: give a folder")
    require_writable(folder / "figure.png" if folder.is_dir() else folder)


def save_plots(found: Diagnosis, model: CascadeModel, log: Log, folder: Path, written: list[Path]) -> None:
    """Draw every figure of a diagnosis into a folder, made if need be, and add each file to those `written`."""
    from rcjax.plots import diagnosis_figures, save_figure

    folder.mkdir(exist_ok=True)
    for name, figure in diagnosis_figures(found, model, log).items():
        path = folder / f"{name}.png"
        save_figure(figure, path)
        written.append(path)
