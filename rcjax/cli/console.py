"""The terminal: text without control characters, JSON, tables, progress, warnings and errors of one line.

Names of models, queries and files come from other people: an escape sequence or a line feed in a name could write
anything on a terminal. All screens pass through `escape_arguments`, and all messages through `one_line`, so that no
text is printed raw. Ctrl-C and SIGTERM stop long work. Standard library and typer only.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import shlex
import shutil
import signal
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count as counting
from pathlib import PurePath
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rcjax._base.codec import visible
from rcjax._base.figures import Money, count, format_number, percent
from rcjax._base.files import silence

if TYPE_CHECKING:  # `rcjax --help` loads nothing of the policies
    from rcjax.policy.comparison import Comparison

P = ParamSpec("P")
INTERRUPTED = 130  # the usual exit status after Ctrl-C
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "failed to map segment", "can't start new thread")  # by XLA, ld.so, Python
_TOO_LITTLE_MEMORY = "there is not enough memory: give it more, or a part of the log"
_REPORT = "if the reason is not clear, please report it with what RCJAX_TRACEBACK=1 in the environment prints"


def escaped(value: Any) -> Any:
    r"""Escape unprintable characters in texts and paths, also in lists and mappings, as Python does in a string.

    Unprintable are control characters, line breaks, marks of the direction of writing, and white space but the space.

    >>> escaped({"small\x1b[2J": ["a\u202eb", 1.5]})
    {'small\\x1b[2J': ['a\\u202eb', 1.5]}
    """
    if isinstance(value, str | PurePath):
        return visible(str(value))
    if isinstance(value, Mapping):
        return {escaped(name): escaped(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [escaped(item) for item in value]
    return value


def one_line(text: str) -> str:
    r"""Put a message on one line: strip its ends, replace line breaks by spaces, escape control characters.

    >>> one_line("first\n  second \x1b[31m")
    'first second \\x1b[31m'
    """
    return escaped(" ".join(text.split()))


def escape_arguments(show: Callable[P, None]) -> Callable[P, None]:
    """Return a function that escapes its arguments and prints them; errors of writing name standard output."""

    @functools.wraps(show)
    def show_escaped(*args: P.args, **named: P.kwargs) -> None:
        with standard_output():
            show(*map(escaped, args), **{name: escaped(value) for name, value in named.items()})  # type: ignore[arg-type]

    return show_escaped


def command(*words: object, **options: object) -> str:
    """Return a command of rcjax for a shell, with the options that are not None; True stands for a flag.

    >>> command("check", "my policy.json", "log.csv", prices=None, labels="labels.csv", yes=True)
    "rcjax check 'my policy.json' log.csv --labels labels.csv --yes"
    """
    line = ["rcjax", *map(str, words)]
    for name, value in options.items():
        if value is not None:
            line += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(line)


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output, in ASCII."""
    with standard_output():
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")


def warn(message: object, kind: str = "warning") -> None:
    """Print a line on standard error, a warning or another `kind`; in a terminal it is folded between words."""
    line = f"{kind}: {one_line(str(message))}"
    if sys.stderr.isatty():
        line = textwrap.fill(line, shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
    try:
        typer.echo(line, err=True)
    except OSError:  # standard error is closed or full
        silence(sys.stderr)


@contextmanager
def standard_output() -> Iterator[None]:
    """Name standard output in the block's errors of writing, and silence standard output after an error."""
    try:
        yield
        sys.stdout.flush()
    except OSError as problem:
        if isinstance(problem, BrokenPipeError) or problem.filename is not None or problem.errno is None:
            raise
        silence(sys.stdout)
        raise OSError(problem.errno, problem.strerror, "standard output") from problem


# Results and errors.


def attempt(write: Callable[[], object]) -> OSError | None:
    """Write a file; return the error, which is reported after the results (`conclude`)."""
    try:
        write()
    except OSError as problem:
        return problem
    return None


def conclude(
    document: Mapping[str, Any],
    show: Callable[[], None],
    *,
    as_json: bool,
    problem: Exception | None = None,
    problem_first: bool = False,
) -> None:
    """Print results, as one JSON document or by `show`; then report the problem, if any, and exit with status 1.

    A closed pipe is not an error. With `problem_first`, the problem stands before the results of `show`.
    """
    problem_first = problem_first and not as_json
    if problem_first and problem is not None:
        report(problem, as_json)
    try:
        if not as_json:
            show()
        elif problem is None:
            print_json(document)
    except BrokenPipeError:
        silence(sys.stdout)
    if problem is not None:
        if not problem_first:
            report(problem, as_json, document)
        raise typer.Exit(1)


def report(problem: BaseException, as_json: bool, document: Mapping[str, Any] | None = None) -> None:
    """Print a problem in one line; if `as_json`, add {"error": {"message", "kind"}} to the document of results.

    With RCJAX_TRACEBACK in the environment, the traceback is printed, too.
    """
    message, kind = _describe(problem)
    message = one_line(message)
    if kind != "usage" and os.environ.get("RCJAX_TRACEBACK"):
        traceback.print_exception(problem)
    if kind == "usage" and not as_json:
        from typer import rich_utils

        problem.format_message = lambda: message  # type: ignore[attr-defined]
        rich_utils.rich_format_error(problem)  # type: ignore[arg-type]
        return
    warn(message, "error")
    if as_json:
        try:
            print_json({**(document or {}), "error": {"message": message, "kind": kind}})
        except OSError:
            silence(sys.stdout)


#: The libraries that an installation for `rcjax serve` alone lacks.
_LIBRARIES = ("jax", "narwhals", "numpy", "polars", "scipy")


def _describe(problem: BaseException) -> tuple[str, str]:
    """Return (message, kind) of a problem: usage, data, infeasible, file, memory, missing or internal."""
    if (usage := getattr(problem, "format_message", None)) is not None:  # of typer
        return usage(), "usage"
    text = str(problem)
    memory = isinstance(problem, MemoryError) or any(marker in text for marker in _OUT_OF_MEMORY)
    if memory or (isinstance(problem, OSError) and problem.errno == errno.ENOMEM):
        return f"{_TOO_LITTLE_MEMORY} ({text})" if text else _TOO_LITTLE_MEMORY, "memory"
    if isinstance(problem, OSError):
        has_name = problem.filename is not None
        return f"{os.fsdecode(problem.filename)}: {problem.strerror}" if has_name else text, "file"
    if isinstance(problem, ValueError):
        frontier = sys.modules.get("rcjax.solving.frontier.frontier")  # nothing is infeasible before it is imported
        infeasible = frontier is not None and isinstance(problem, frontier.InfeasibleError)
        return text, "infeasible" if infeasible else "data"
    if isinstance(problem, ModuleNotFoundError) and (name := (problem.name or "").partition(".")[0]) in _LIBRARIES:
        return f"this needs {name}, which an installation for rcjax serve alone lacks: pip install rcjax", "missing"
    return ": ".join(filter(None, [f"unexpected {type(problem).__name__}", text, _REPORT])), "internal"


# Signals.

_FINISHING = b"finishing the calls under way; Ctrl-C again ends at once\n"


@contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM in the block as Ctrl-C; after an interrupt, a further SIGTERM is ignored."""
    with _handling(signal.SIGTERM, _terminate) as afterwards:
        try:
            yield
        except BaseException as problem:
            import asyncio  # slow to import

            # The interrupt is handled already, and the exit status must tell of it: ignore SIGTERM until the end.
            if isinstance(problem, KeyboardInterrupt | asyncio.CancelledError):
                afterwards[0] = signal.SIG_IGN
            raise


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C in a task's block call `stop`, and the second Ctrl-C end the task at once.

    The second Ctrl-C also ends a task that computes without waiting, as a user's grader may.
    """
    import asyncio

    loop, received = asyncio.get_running_loop(), list[int]()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        with suppress(OSError):
            os.write(2, _FINISHING)  # sys.stderr may be in the midst of another line
        loop.call_soon_threadsafe(stop)

    with _handling(signal.SIGINT, interrupt):
        yield


def _terminate(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # shells ignore Ctrl-C for a process in the background
        raise KeyboardInterrupt
    handler(number, frame)


@contextmanager
def _handling(number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> Iterator[list[Any]]:
    """Handle a signal in the block; the yielded list holds the handler for after the block."""
    try:
        before = signal.signal(number, handler)
    except ValueError:  # only the main thread can handle signals
        yield [None]
        return
    afterwards = [before if before is not None else signal.SIG_DFL]
    try:
        yield afterwards
    finally:
        signal.signal(number, afterwards[0])


LEVEL = 0.9  # confidence level of intervals
TERMINAL = 80  # columns

PROGRESS_INTERVAL = 10.0  # seconds between two lines of progress in a pipe

#: Set when the first program is compiled, for which people wait once; a pipe gets one line about it.
COMPILES = threading.Event()

COMPILING = "compiling, once for logs of this size"


class Screen(Console):
    """A console that prints text as it is, and leaves a broken pipe to the caller."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def print_path(self, text: str) -> None:
        """Print a line with a path or a command, without line breaks."""
        self.print(text, soft_wrap=True)

    def hang(self, label: str, *texts: str, width: int = 9) -> None:
        """Print paragraphs, each with the label in a margin of this width in columns."""
        for text in texts:
            table = Table.grid(padding=(0, 1))
            table.add_column(min_width=width + 2, no_wrap=True)
            table.add_column(overflow="fold")  # fold long paths and commands; do not cut them
            table.add_row(f"  {label}", text)
            self.print(table)

    def next_step(self, advice: str, command: str = "") -> None:
        """Print the next step, at the end of the output, and the command for it without line breaks."""
        self.print(f"Next: {advice}{':' * (bool(command) and not advice.endswith('?'))}")
        if command:
            self.print_path(f"  {command}")

    def on_broken_pipe(self) -> None:  # called while the exception is handled; rich's version exits with 1
        """Raise the exception again."""
        raise BrokenPipeError


@contextmanager
def busy(stage: str, after: float = 1.0, progress: Callable[[], str] = str) -> Iterator[None]:
    """Show the progress of long work on standard error: a spinner in a terminal, lines in a pipe.

    Args:
        after: seconds until a terminal shows a spinner, or a pipe shows that a program is compiled. A pipe gets
            another line every ten seconds.
        progress: function that returns the progress, in words; empty if it is unknown.
    """
    screen, finished, started = Screen(stderr=True), threading.Event(), time.monotonic()

    def spin() -> None:
        if finished.wait(after):
            return
        with screen.status("") as status:
            while True:
                compiling = COMPILING if COMPILES.is_set() else ""
                parts = (f"{stage} …", compiling, progress(), f"{time.monotonic() - started:.0f} s")
                status.update(Text(" ".join(filter(None, parts))))
                if finished.wait(0.2):
                    return

    def write(text: str) -> None:
        with suppress(OSError, ValueError):  # standard error is closed
            typer.echo(f"{stage}: {text}", err=True)

    def write_lines() -> None:
        next_line = started + PROGRESS_INTERVAL
        while not finished.wait(min(after, PROGRESS_INTERVAL)):
            if COMPILES.is_set():
                COMPILES.clear()
                write(COMPILING)
            elif time.monotonic() >= next_line:
                next_line += PROGRESS_INTERVAL
                write(progress() or f"{time.monotonic() - started:.0f} s so far")

    thread = threading.Thread(target=spin if screen.is_terminal else write_lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


class Progress:
    """The progress of some work in words, with the time left; `note` sets it.

    >>> progress = Progress()
    >>> progress.note(0, 4000)
    >>> progress()
    '0 of 4,000, 0 %'
    """

    def __init__(self) -> None:
        self._finished = self._total = 0
        self._started = time.monotonic()

    def note(self, finished: int, total: int) -> None:
        """Set the progress: the number of finished items, and of all items."""
        self._finished, self._total = finished, total

    def __call__(self) -> str:
        """Return the progress in words, with the time left at the pace so far; empty before the first `note`."""
        if not self._finished:
            return finished_share(0, self._total) if self._total else ""
        left = (time.monotonic() - self._started) * (self._total - self._finished) / self._finished
        return f"{finished_share(self._finished, self._total)}, about {duration(left)} left"


def staged(total: int) -> Callable[[str], AbstractContextManager[None]]:
    """Return a function that counts the stages of a command: its first call is `busy("reading, step 1 of 3")`, …"""
    numbers = counting(1)

    def steps(stage: str) -> AbstractContextManager[None]:
        number = next(numbers)
        return busy(f"{stage}, step {number} of {total}" if number <= total else stage)

    return steps


def finished_share(finished: int, total: int) -> str:
    """Return the finished share of some items, in words."""
    return f"{finished:,} of {total:,}, {100 * finished / max(total, 1):.0f} %"


def duration(seconds: float) -> str:
    """Format a duration in its largest unit.

    >>> duration(5400), duration(90), duration(0.2)
    ('2 h', '2 min', '0 s')
    """
    units = ((3600, "h"), (60, "min"), (1, "s"))
    size, unit = next((size, unit) for size, unit in units if seconds >= size or size == 1)
    return f"{seconds / size:.0f} {unit}"


def make_table(
    *heads: str,
    rows: Iterable[Iterable[str]] = (),
    text_columns: int = 1,
    unbroken: bool = False,
    lines: bool = True,
) -> Table:
    """Make a table.

    Args:
        text_columns: number of columns at the left that hold words; the others hold numbers.
        unbroken: whether numbers, and the heads above them, stay on one line.
        lines: whether lines surround the heads.
    """
    table = Table(box=box.SIMPLE_HEAD if lines else None, pad_edge=False, header_style="bold")
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i < text_columns else "right", no_wrap=unbroken or i < text_columns)
    for row in rows:
        table.add_row(*row)
    return table


def fold_names(table: Table, column: int = 0) -> None:
    """Let the names in a column of a table fold where the screen is narrow: nothing is cut."""
    table.columns[column].no_wrap, table.columns[column].overflow = False, "fold"


Unit = Literal["share", "money", "seconds", "rung"]

#: (label, unit) of each figure of a policy, expected, replayed or followed, by its name.
_FACTS: Mapping[str, tuple[str, Unit]] = {
    "error": ("{noun}", "share"),
    "abstention": ("without answer", "share"),
    "error_answered": ("{noun} among the answered", "share"),
    "cost": ("{money}", "money"),
    "position": ("mean rung, 0 cheapest", "rung"),
    "calibration_error": ("calibration error", "share"),
    "seconds": ("seconds, mean", "seconds"),
    "seconds_p95": ("seconds, 95 %", "seconds"),
}


class Fact(NamedTuple):
    """One figure of a policy."""

    label: str
    value: float
    unit: Unit
    interval: tuple[float, float] | None = None
    """Ends of its confidence interval."""
    explanation: str = ""
    """Explanation, in words."""

    def show(self, money: Money) -> str:
        """Format the value and its interval, without the unit of money.

        >>> Fact("error", 0.291, "share", (0.243, 0.335)).show(Money(1e6, "million"))
        '29.1 % (24.3–33.5)'
        """
        units = {"share": percent, "money": money.show, "seconds": brief_seconds, "rung": "{:.1f}".format}
        form = units[self.unit]
        ends = "–".join(form(end).removesuffix(" %") for end in self.interval or ())
        return f"{form(self.value)} ({ends})" if ends else form(self.value)


def facts(figures: Mapping[str, Any], money: Money, noun: str = "error") -> Iterator[Fact]:
    """Yield the figures of a policy in the order in which people read them.

    Args:
        figures: figures by name; intervals as `error_interval`, or as `error_low` and `error_high`.

    >>> [fact.label for fact in facts({"cost": 1e-4, "error": 0.2}, Money(1e6, "million"))]
    ['error', '$ per million']
    """
    for name, (label, unit) in _FACTS.items():
        if figures.get(name) is None:
            continue
        low, high = figures.get(f"{name}_interval") or (figures.get(f"{name}_low"), figures.get(f"{name}_high"))
        interval = None if low is None or high is None else (low, high)
        explanation = ""
        if name == "abstention" and figures.get("abstain_price") is not None:
            explanation = f"each counts as {100 * figures['abstain_price']:.3g} % {noun}"
        label = label.format(noun=noun, money=money.label)
        yield Fact(label, figures[name], unit, interval, explanation)


def brief_seconds(value: float | None) -> str:
    """Format seconds for a table: two digits, or three from 9.95 on.

    >>> brief_seconds(0.8342), brief_seconds(12.34), brief_seconds(None)
    ('0.83', '12.3', '–')
    """
    return "–" if value is None else format_number(value, 2 if value < 9.95 else 3)


def facts_grid(subjects: Mapping[str, Iterable[Fact]], money: Money) -> tuple[list[str], list[list[str]]]:
    """Return (labels of all facts, cells of each subject).

    The order is that of the subject with the most facts; a label that it lacks keeps its place in another subject.
    """
    rows = [{fact.label: fact.show(money) for fact in listed} for listed in subjects.values()]
    labels = [*max(rows, key=len)]
    for row in rows:
        for position, label in enumerate(row):
            if label not in labels:
                labels.insert(position, label)
    return labels, [[row.get(label, "") for label in labels] for row in rows]


def facts_rows(head: str, subjects: Mapping[str, Iterable[Fact]], money: Money) -> Table:
    """Make a table with a row for each subject, and a column for each fact."""
    heads, cells = facts_grid(subjects, money)
    return make_table(head, *heads, rows=([name, *row] for name, row in zip(subjects, cells, strict=True)))


def facts_table(subjects: Mapping[str, Iterable[Fact]], money: Money, head: str = "") -> Table:
    """Make a table with a row for each fact, and a column for each subject."""
    labels, cells = facts_grid(subjects, money)
    return make_table(head, *subjects, rows=zip(labels, *cells, strict=True))


def comparison_table(
    comparison: Comparison, money: Money, noun: str, promised: Comparison | None = None, *, is_expected: bool = False
) -> Table:
    """Make a table of the policy and its rivals: money, error, the policy's error minus the rival's.

    Args:
        comparison: comparison on the present queries.
        promised: comparison at the time of tuning; None: no column for it.
        is_expected: whether the figures are those that the tuning expects, not those of a replay.
    """
    heads = ["", money.label, noun, "policy minus\nmodel, points"]
    rows = comparison.rows(money)
    if promised is not None:
        promised_cells = {name: f"{error}\n({gap})" if gap else error for name, _, error, gap in promised.rows(money)}
        heads = [*heads, f"{noun} when tuned\n(minus model)"]
        rows = [(*row, promised_cells.get(row[0], "")) for row in rows]
    table = make_table(*heads, unbroken=True)
    price = comparison.abstain_price
    abstentions = "" if price is None else f"; each abstention counts as {price:.3g}"
    labelled = comparison.labelled
    labels = "" if labelled is None else f"; errors estimated from {labelled:,} labelled"
    queries = count(comparison.n_queries, "fresh query" if comparison.fresh else "query")
    how = "Expected on fresh queries, from" if is_expected else "Replayed on"
    title = f"On the same {queries}" if comparison.fresh else f"{how} the {queries} tuned on"
    table.title = f"{title} (± one standard error{labels}{abstentions}):"
    table.title_justify, table.title_style = "left", ""
    fold_names(table)
    for row in rows:
        table.add_row(*row)
    return table


def cascade_lines(policy: Mapping[str, Any], name: str = "") -> list[str]:
    """Describe the cascades of a policy or a ladder in lines, each after `name` and its share of the queries.

    The rungs of a ladder for a budget have their numbers: its position, in service, is a mean of these.
    """
    from rcjax.policy.comparison import MIN_SHARE
    from rcjax.policy.decisions import describe_cascade, threshold_digits

    parts, first = [(1.0, policy)], None
    if "rungs" in policy:
        low, share = divmod(policy["position"], 1)
        rungs = policy["rungs"][int(low) :]
        parts = [(1 - share, rungs[0])] + ([(share, rungs[1])] if share else [])
        first = None if policy.get("budget") is None else int(low)
    lines, digits = [], threshold_digits(part for _, part in parts)
    for number, (share, part) in enumerate(parts, first or 0):
        if share < MIN_SHARE:
            continue
        rung = "" if first is None else f"rung {number}"
        queries = f"{percent(share)} of the queries" if share < 1 - MIN_SHARE else ""
        for segment, cascade in {"": part, **part.get("segments", {})}.items():
            rest_label = "others" if part.get("segments") else ""
            label = ", ".join(filter(None, (name, rung, queries, f"segment {segment}" if segment else rest_label)))
            start, *further = describe_cascade(cascade, TERMINAL - 4, digits).split("\n")
            line = f"  {label}: {start}" if label else f"  {start}"
            fits = not further and len(line) <= TERMINAL
            lines += [line] if fits else [f"  {label}:", *(f"    {part_line}" for part_line in (start, *further))]
    return lines
