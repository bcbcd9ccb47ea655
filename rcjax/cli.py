"""The command line: `rcjax tune`, `rcjax evaluate` and `rcjax demo`.

Importing this module is light; a command imports JAX when it starts to work. Only here, never on
`import rcjax`, are float64 and JAX's persistent compilation cache switched on: a program of the user's own
decides for itself.

Exit status: 0 fine, 1 infeasible or bad data (one line on standard error says what; with RCJAX_TRACEBACK=1 in
the environment, where it was raised), 2 usage.
"""

from __future__ import annotations

import gc
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax._options import family, fraction, money, names, positive

if TYPE_CHECKING:
    from rcjax.frontier import Frontier
    from rcjax.logs import Log
    from rcjax.policy import Policy

__all__ = ["app", "main"]

_DEMO_SHARE = 0.4  # of the cost of always asking the largest model: what `rcjax demo` may spend
_DEMO_FRESH = 10_000


class Task(StrEnum):
    """What the models did."""

    generation = "generation"
    choice = "choice"


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line with the arguments of the process."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without arrows shows question marks, not a traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()


def _version(wanted: bool) -> None:
    if wanted:
        from rcjax import __version__

        typer.echo(f"rcjax {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Confidence thresholds for LLM cascades, from a log of what the models answered.

    A cascade asks a cheap model first and a dearer one only where the cheap one is unsure. Start with
    `rcjax demo`, which needs no data; then `rcjax tune LOG` for your own.
    """


LogFile = Annotated[
    Path,
    typer.Argument(
        show_default=False,
        metavar="LOG",
        help="CSV, Parquet or JSON Lines; a row per query and model: query, model, correct, logprob (or "
        "confidence), and cost (or input_tokens, output_tokens).",
    ),
]
Prices = Annotated[
    Path | None,
    typer.Option(
        show_default=False,
        metavar="FILE",
        help="TOML or JSON: input and output price per million tokens, by model.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


@app.command(epilog="Example: `rcjax tune log.csv --budget 150/M --out policy.json`")
def tune(
    log: LogFile,
    prices: Prices = None,
    task: Annotated[Task, typer.Option(help="What the models did: wrote text, or picked a choice.")] = Task.generation,
    models: Annotated[
        Any,
        typer.Option(parser=names, metavar="A,B,…", help="Use these models, in this order. [default: by cost]"),
    ] = None,
    cascade: Annotated[
        Any,
        typer.Option(
            parser=names,
            metavar="all|full|adaptive|A,B,…",
            help="**all**: the best cascade of any of the models; **full**: every model in turn; "
            "**adaptive**: skip to a larger model when very unsure; or the models of one cascade. "
            "[default: all]",
        ),
    ] = None,
    budget: Annotated[
        Any,
        typer.Option(
            parser=money,
            metavar="MONEY",
            help="Least error at this mean cost: 0.00015 per query, 0.15/k (per thousand) or 150/M (per million).",
        ),
    ] = None,
    max_error: Annotated[
        Any, typer.Option(parser=fraction, metavar="SHARE", help="Least cost at this error: 0.05 or 5%.")
    ] = None,
    error_cost: Annotated[
        Any, typer.Option(parser=positive, metavar="MONEY", help="What one wrong answer costs you.")
    ] = None,
    lam: Annotated[
        Any,
        typer.Option(parser=positive, metavar="NUMBER", help="λ of the paper: 1 / the cost of an error."),
    ] = None,
    copula: Annotated[
        Any,
        typer.Option(
            parser=family,
            metavar="FAMILY|auto",
            help="How the confidences of two models depend on each other; **auto**: the best family for each pair. "
            "[default: gumbel]",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the policy to deploy here, as JSON; needs a target."),
    ] = None,
    frontier: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the whole frontier here, for rcjax evaluate.")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Find the best cascades for a log, at every trade-off of error and cost, and the policy for your target.

    Give at most one target: `--budget`, `--max-error`, `--error-cost` or `--lam`. Without one, the whole
    frontier is shown. Money is in the currency of the prices (shown as $), per query.
    """
    targets = {"budget": budget, "max_error": max_error, "error_cost": error_cost, "lam": lam}
    target = {name: value for name, value in targets.items() if value is not None}
    if len(target) > 1:
        raise typer.BadParameter(f"give one target, not {' and '.join(map(_option, target))}")
    if out and not target:
        raise typer.BadParameter("needs a target, such as --budget", param_hint="--out")
    if out and out == frontier:
        raise typer.BadParameter("must not be the file of --out", param_hint="--frontier")
    with _reported():
        for path in (out, frontier):
            _require_writable(path)
        _tune(log, prices, task.value, models, cascade, copula or "gumbel", target, out, frontier, json_)


def _tune(
    path: Path,
    prices: Path | None,
    task: str,
    models: tuple[str, ...] | None,
    cascade: tuple[str, ...] | None,
    copula: str,
    target: dict[str, float],
    out: Path | None,
    frontier_path: Path | None,
    as_json: bool,
) -> None:
    from rcjax._terminal import busy, print_json, show_copulas, show_policy, show_tuning, too_dear

    _start_jax()
    import rcjax

    search = cascade or ("all",)
    kinds = ("all", "full", "adaptive")
    whole = len(search) == 1 and search[0] in kinds
    with busy("reading the log"):
        # The models of one cascade are asked in the order given, whatever they cost.
        chosen = models or (None if whole else search)
        others = "the others are used where they can be"
        log = _read(rcjax.read_log, path, others, prices=prices, models=chosen, task=task)
    with busy("fitting the model and solving the frontier"):
        model = rcjax.fit(log, copula=copula)
        frontier = rcjax.solve_frontier(model, cascades=search[0] if whole else [search])
        written = frontier.to_json()
    if frontier_path:
        frontier.save(frontier_path)
    policy, problem = None, None
    try:
        policy = frontier.policy(**target) if target else None
    except rcjax.InfeasibleError as infeasible:
        cheapest = float(frontier.cost.min())
        problem = rcjax.InfeasibleError(too_dear(target["budget"], cheapest)) if "budget" in target else infeasible
    if policy and out:
        policy.save(out)
    rows = _summarise(log, model)
    if as_json and not problem:
        document = {"models": list(log.models), "model_summary": rows, "frontier": written["frontier"]}
        chosen = {"copulas": model.copula_table} if model.copula_table else {}
        print_json(document | chosen | ({"policy": policy.to_json()} if policy else {}))
    elif not as_json:
        show_tuning(log.describe(), rows, written["frontier"], frontier_path)
        if model.copula_table:
            show_copulas(model.copula_table)
        if policy:
            show_policy(policy.to_json(), target, rows, out)
    if problem:
        raise problem


@app.command(epilog="Example: `rcjax evaluate policy.json fresh_log.csv`")
def evaluate(
    policy_or_frontier: Annotated[
        Path,
        typer.Argument(show_default=False, metavar="POLICY_OR_FRONTIER", help="What `rcjax tune` wrote."),
    ],
    log: LogFile,
    prices: Prices = None,
    json_: AsJson = False,
) -> None:
    """Answer the queries of a log by a policy or frontier: the error and cost seen, beside those predicted.

    Use queries that were not in the log for tuning. Models of the log that the policy does not know are
    ignored; without `--prices`, token counts are priced as when tuning.
    """
    with _reported():
        from rcjax._terminal import busy, expectation, plain_replay, print_json, show_replay

        _start_jax()
        import rcjax

        with busy("reading"):
            subject = _load(policy_or_frontier)
            data = _read_for(subject, log, prices)
        with busy("replaying"):
            seen = plain_replay(rcjax.replay(subject, data))
        predicted = expectation(subject)
        if json_:
            print_json(seen | {"predicted": predicted})
        else:
            show_replay(data.describe(), predicted, seen)


@app.command(epilog="Example: `rcjax demo --queries 300 --seed 7`")
def demo(
    queries: Annotated[int, typer.Option(min=50, max=1_000_000, help="Queries of the log to tune on.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 2, help="Another seed samples other queries.")] = 0,
    json_: AsJson = False,
) -> None:
    """Tune a cascade of five models on a synthetic log and check it on fresh queries: no data, no network.

    The log is sampled from a model that was fitted to what five Llama models answered to real questions.
    """
    with _reported():
        from rcjax import _terminal as terminal

        _start_jax()
        import rcjax

        with terminal.busy("sampling, fitting and solving"):
            sample = rcjax.sample_log(queries + _DEMO_FRESH, seed)  # at once: two sizes would be compiled twice
            log, fresh = sample.take(slice(queries)), sample.take(slice(queries, None))
            model = rcjax.fit(log)
            frontier = rcjax.solve_frontier(model)
            budget = _DEMO_SHARE * float(log.cost[-1])
            policy = frontier.policy(budget=budget)
        with terminal.busy("replaying on fresh queries"):
            seen = terminal.plain_replay(rcjax.replay(policy, fresh))
        rows = _summarise(log, model)
        alone = _alone(fresh)
        if json_:
            facts = {"synthetic": True, "queries": queries, "seed": seed, "models": list(log.models)}
            results = {"predicted": terminal.expectation(policy), "observed": seen, "single_models": alone}
            terminal.print_json(facts | {"policy": policy.to_json()} | results)
        else:
            terminal.show_tuning(log.describe(), rows, frontier.to_json()["frontier"], None)
            terminal.show_policy(policy.to_json(), {"budget": budget}, rows, None)
            terminal.show_demo(policy.to_json(), seen, alone)


@contextmanager
def _reported() -> Iterator[None]:
    """Turn what is wrong with the data into one line and status 1; a closed pipe is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output once more at exit: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except (ValueError, OSError) as problem:
        if os.environ.get("RCJAX_TRACEBACK"):  # for bug reports
            raise
        text = str(problem)
        if isinstance(problem, OSError) and problem.filename is not None:
            text = f"{problem.filename}: {problem.strerror}"
        typer.echo(f"error: {' '.join(text.split())}", err=True)
        raise typer.Exit(1) from None


def _start_jax() -> None:
    """Switch on float64 and the persistent compilation cache, before JAX does any work."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's own chatter; errors still show
    import jax

    jax.config.update("jax_enable_x64", True)
    # Half of a second run is jax tracing: a tenth of it goes without looking for cycles that nobody leaves, or for
    # the Python lines behind each operation.
    gc.set_threshold(100_000, 50, 50)
    jax.config.update("jax_traceback_in_locations_limit", 0)
    if getattr(jax.config, "jax_compilation_cache_dir", None):  # the user chose JAX_COMPILATION_CACHE_DIR
        return
    try:
        folder = _cache_folder()
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


def _cache_folder() -> Path:
    """Return $RCJAX_CACHE_DIR, or rcjax in the user's cache folder."""
    own = os.environ.get("RCJAX_CACHE_DIR")
    if own:
        return Path(own)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "rcjax" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rcjax"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rcjax"


def _require_writable(path: Path | None) -> None:
    """Refuse, before any work, a file that could not be written after it."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir():
        raise OSError(f"cannot write {path}: it is a folder: give a file")
    if not folder.is_dir():
        raise OSError(f"cannot write {path}: there is no folder {folder}: create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"cannot write {path}: the folder {folder} is not writable")


def _read(read: Callable[..., Log], path: Path, others: str, **options: Any) -> Log:
    """Read a log; if it is incomplete, a line on standard error says so, and what becomes of the `others`."""
    import rcjax
    from rcjax.logs import MissingPricesError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rcjax.IncompleteLogWarning)
        try:
            log = read(path, **options)
        except MissingPricesError:
            advice = "give --prices FILE, or add a column cost"
            raise MissingPricesError(f"{path.name}: token counts but no prices: {advice}") from None
    complete = int(log.complete.sum())
    if complete < log.n_queries:
        counts = f"{complete:,} of {log.n_queries:,} queries have an answer of every model"
        typer.echo(f"warning: {path.name}: {counts}; {others}", err=True)
    return log


def _load(path: Path) -> Policy | Frontier:
    """Load what `rcjax tune` wrote, told by its "format"."""
    import rcjax

    try:
        kind = json.loads(path.read_bytes()).get("format")
    except (ValueError, AttributeError):
        kind = "rcjax-policy"  # not JSON, or no object: its reader says where it is broken
    if kind == "rcjax-frontier":
        return rcjax.load_frontier(path)
    if kind == "rcjax-policy":
        return rcjax.load_policy(path)
    what = "a policy or a frontier that rcjax tune wrote with --out or --frontier"
    raise ValueError(f"{path}: its format is {kind!r}: give {what}")


def _read_for(subject: Policy | Frontier, path: Path, prices: Path | None) -> Log:
    """Read the log for a replay: the models of the policy or frontier, at its prices where tokens have no others."""
    from rcjax.logs import MissingPricesError, read_answers
    from rcjax.policy import Policy

    if isinstance(subject, Policy):
        stored, transform = subject.prices, subject.calibrations[subject.first].transform
    else:
        stored, transform = subject.model.prices, subject.model.calibrators.transform
    task = "choice" if transform == "choice" else "generation"
    read = partial(_read, read_answers, path, "the others are left out", models=subject.models, task=task)
    try:
        return read(prices=prices)
    except MissingPricesError:
        if not stored:
            raise
        return read(prices=stored)


def _summarise(log: Log, model: Any) -> list[dict[str, Any]]:
    """Describe each model alone: accuracy, cost per query, calibration error, certain answers (shares)."""
    import jax
    import numpy as np

    from rcjax.calibration import expected_calibration_error

    measure = jax.jit(expected_calibration_error)
    confidence = np.asarray(model.calibrate(log.logprob))
    logprob, correct, answered = (np.asarray(each) for each in (log.logprob, log.correct, log.answered))
    rows = []
    for j, name in enumerate(log.models):
        seen = answered[:, j]
        rows.append(
            {
                "model": name,
                "answers": int(seen.sum()),
                "accuracy": float(correct[seen, j].mean()),
                "cost": float(np.asarray(log.cost)[j]),
                "calibration_error": float(measure(confidence[seen, j], correct[seen, j])),
                "certain": float((logprob[seen, j] == 0).mean()),
            }
        )
    return rows


def _alone(log: Log) -> dict[str, dict[str, float]]:
    """Return the error and the cost of asking one model always, by model."""
    import numpy as np

    error, cost = 1 - np.asarray(log.correct).mean(axis=0), np.asarray(log.cost)
    pairs = zip(log.models, error.tolist(), cost.tolist(), strict=True)
    return {name: {"error": wrong, "cost": money} for name, wrong, money in pairs}


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
