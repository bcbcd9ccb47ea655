"""The application of the command line: its commands, exit statuses, and the start of JAX.

Importing this module is fast; the module of a command is imported when the command is called, and JAX when it starts to
work. This module enables float64 and JAX's persistent compilation cache. `import rcjax` does not: the user's program
decides.

Exit status: 0 fine; 1 infeasible or bad data, with one line on standard error, and a traceback if RCJAX_TRACEBACK=1 is
in the environment; 2 usage. `rcjax check` is for scripts: 1 drifted, 2 any failure.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rcjax._base.files import silence
from rcjax.cli.console import INTERRUPTED, report, standard_output, warn


class CommandLine(TyperGroup):
    """The group of all commands: every failure becomes one line and an exit status.

    A closed pipe, as of `--help | head -1`, is not a failure.
    """

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option `--help`, a flag without a value, for whose default typer does not load pydantic."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default, option.metavar = False, ""
        return option

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return (name, imported command, remaining arguments) of a command line."""
        name, command, remaining = super().resolve_command(ctx, args)
        return name, load(command.name or "") if isinstance(command, _ListedCommand) else command, remaining

    def main(self, args: Sequence[str] | None = None, *rest: Any, **named: Any) -> Any:
        """Run a command and exit with its status. Each warning becomes one line."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            with warnings.catch_warnings(), standard_output():
                warnings.simplefilter("always", UserWarning)  # rcjax's warnings, also if a line repeats one
                warnings.showwarning = lambda message, *_, **__: warn(message)
                status = super().main(args, *rest, **named | {"standalone_mode": False}) or 0
        except BrokenPipeError:
            silence(sys.stdout)
            status = 0
        except SystemExit as leaving:
            if not isinstance(leaving.__context__, OSError):
                raise
            status = 0  # typer and rich exit in this way after a broken pipe
        except typer.Abort:
            status = INTERRUPTED
        except BaseException as problem:  # a panic of polars is not an Exception
            report(problem, "--json" in words)
            status = getattr(problem, "exit_code", 2 if "check" in words[:1] else 1)
        sys.exit(status)


_SETTINGS: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False}
_SETTINGS |= {"rich_markup_mode": "markdown", "context_settings": {"help_option_names": ["-h", "--help"]}}

app = typer.Typer(cls=CommandLine, no_args_is_help=True, **_SETTINGS)


def run() -> None:
    """Run the command line with the arguments of the process."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):  # a terminal without the character → shows a question mark, no traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    finally:
        gc.freeze()  # at the end of the process, collecting the cycles of JAX would take .15 s


def _open_closed_streams() -> None:
    """Open streams that the shell has closed (`>&-`) on the null device: a log file must not get their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - until the end


def _version(is_wanted: bool) -> None:
    if is_wanted:
        from rcjax._base.extras import version

        typer.echo(f"rcjax {version()}")
        raise typer.Exit


def _requirements(extras: str | None) -> None:
    if extras is not None:
        from rcjax._base.extras import print_requirements

        raise typer.Exit(print_requirements(extras))


_PRINTED = "Print what `rcjax[EXTRAS]` needs, as lines for pip, and exit: to install `serve` without JAX."


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    requirements: Annotated[
        str | None,
        typer.Option("--requirements", metavar="EXTRAS", callback=_requirements, is_eager=True, help=_PRINTED),
    ] = None,
) -> None:
    """Find out when a cheap LLM may answer and when to ask a larger one: as good as today's model, for less.

    Where to begin: `rcjax demo` without any data; `rcjax tune LOG` if you have answers in a log; `rcjax collect` if you
    have questions; `rcjax serve` if you have only an endpoint.
    """


_MAKE, _TUNE, _SERVE = "From questions to a log", "From a log to a policy", "A policy in service"

#: The commands in the order of `rcjax --help`: panel, module, purpose.
COMMANDS = {
    "collect": (_MAKE, "collect", "Ask models the same questions, and log their answers."),
    "grade": (_MAKE, "label", "Grade the answers of a log again."),
    "import": (_MAKE, "collect", "Make a log from evaluations by other programs."),
    "label": (_MAKE, "label", "Draw answers from a log, to label them by hand."),
    "tune": (_TUNE, "tune", "Find the policy for your target."),
    "evaluate": (_TUNE, "replays", "Test a policy on the queries of a log."),
    "diagnose": (_TUNE, "checks", "Test whether policies err and cost as their tuning expects."),
    "report": (_TUNE, "checks", "Write one HTML page for your team."),
    "demo": (_TUNE, "replays", "Tune on synthetic queries, without data or network."),
    "serve": (_SERVE, "serve", "Serve a policy behind OpenAI's API."),
    "key": (_SERVE, "serve", "Make a key for a client of a service."),
    "check": (_SERVE, "checks", "Test whether a policy is still right."),
    "retune": (_SERVE, "replays", "Tune a policy again, on fresh queries."),
    "sweep": ("For researchers", "tune", "Tune many logs at once."),
}


class _ListedCommand(TyperCommand):
    """A command in the list of commands, whose module is not imported yet."""


for _name, (_panel, _, _words) in COMMANDS.items():
    app.command(_name, cls=_ListedCommand, help=_words, rich_help_panel=_panel)(lambda: None)


@cache
def load(name: str) -> Any:
    """Import the command of a name, with its options, as a command of typer.

    The docstring of the command ends with an example before its "Args:".
    """
    from rcjax.cli.options import LongHelp, as_command

    _, module, _ = COMMANDS[name]
    function = as_command(getattr(import_module(f"rcjax.cli.{module}"), "import_" if name == "import" else name))
    text, _, example = (function.__doc__ or "").rpartition("\n\n")
    typer_app = typer.Typer(**_SETTINGS)
    typer_app.command(name, cls=LongHelp, help=text, epilog=example)(function)
    return typer.main.get_command(typer_app)


def start_jax(cpu_devices: int | None = None, float64: bool = True, long: bool = False) -> None:
    """Enable float64 and the folder of compiled programs, before JAX does any work.

    The CPU counts as `cpu_devices` devices, by default one, unless JAX_NUM_CPU_DEVICES says otherwise. Programs that
    run for a `long` time are compiled to run fast; others are compiled fast.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # silences XLA's remarks; errors still show
    # Threads of OpenBLAS wait for each other actively, which takes most of the time of small products.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(1_000_000, 50, 50)  # collecting cycles takes a sixth of the time of imports
    import jax

    from rcjax._core.compilation import jax_folder, store_programs
    from rcjax.cli.console import COMPILES

    jax.config.update("jax_enable_x64", float64)
    if cpu_devices is not None and getattr(jax.config, "jax_num_cpu_devices", 0) < 1:
        with suppress(RuntimeError):  # JAX has started already, and its devices are fixed
            jax.config.update("jax_num_cpu_devices", cpu_devices)
    # A command runs most of its programs once: LLVM's optimisations take longer than they save. Programs that run for
    # seconds ask for optimisations (`rcjax._core.compilation`).
    jax.config.update("jax_disable_most_optimizations", not long)
    # Tracing takes a tenth less without the Python lines behind each operation.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    if getattr(jax.config, "jax_compilation_cache_dir", None):  # the user chose JAX_COMPILATION_CACHE_DIR
        return
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return
    # Exported programs load faster; programs of a sweep are for several devices, and only JAX's cache can keep them.
    if (long or not store_programs(folder, COMPILES.set)) and (of_jax := jax_folder(folder)) is not None:
        jax.config.update("jax_compilation_cache_dir", str(of_jax))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        # A full disk costs only the time of compiling.
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
