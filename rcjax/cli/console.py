"""The terminal: text, tables, the progress of long work, and the figures of a policy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count as counting
from typing import Any, Literal, NamedTuple

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rcjax._base.wording import Money, count, describe_cascade, figure, percent
from rcjax.policy.comparison import LEAST_SHARE, Comparison
from rcjax.policy.counted import ERRORS

LEVEL = 0.9  # confidence level of intervals

TERMINAL = 80  # columns

EVERY = 10.0  # seconds between two lines of progress in a pipe

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

    def next_step(self, words: str, command: str = "") -> None:
        """Print the next step, at the end of the output, and the command for it without line breaks."""
        self.print(f"Next: {words}{':' * (bool(command) and not words.endswith('?'))}")
        if command:
            self.print_path(f"  {command}")

    def on_broken_pipe(self) -> None:  # called while the exception is handled; rich's version exits with 1
        """Raise the exception again."""
        raise BrokenPipeError


@contextmanager
def busy(what: str, after: float = 1.0, how_far: Callable[[], str] = str) -> Iterator[None]:
    """Show the progress of long work on standard error: a spinner in a terminal, lines in a pipe.

    Args:
        what: the work, in words.
        after: seconds until a terminal shows a spinner, and a pipe a line if a program is compiled; a pipe shows other
            work every ten seconds.
        how_far: function that returns the progress, in words; empty if it is unknown.
    """
    screen, done, started = Screen(stderr=True), threading.Event(), time.monotonic()

    def spin() -> None:
        if done.wait(after):
            return
        with screen.status("") as status:
            while True:
                compiling = COMPILING if COMPILES.is_set() else ""
                words = (f"{what} …", compiling, how_far(), f"{time.monotonic() - started:.0f} s")
                status.update(Text(" ".join(filter(None, words))))
                if done.wait(0.2):
                    return

    def write(progress: str) -> None:
        with suppress(OSError, ValueError):  # standard error is closed
            typer.echo(f"{what}: {progress}", err=True)

    def write_lines() -> None:
        next_line = started + EVERY
        while not done.wait(min(after, EVERY)):
            if COMPILES.is_set():
                COMPILES.clear()
                write(COMPILING)
            elif time.monotonic() >= next_line:
                next_line += EVERY
                write(how_far() or f"{time.monotonic() - started:.0f} s so far")

    thread = threading.Thread(target=spin if screen.is_terminal else write_lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class HowFar:
    """The progress of some work in words, with the time left; `note` sets it.

    >>> far = HowFar()
    >>> far.note(0, 4000)
    >>> far()
    '0 of 4,000, 0 %'
    """

    def __init__(self) -> None:
        self._done = self._total = 0
        self._started = time.monotonic()

    def note(self, done: int, total: int) -> None:
        """Set the progress: the number of finished items, and of all items."""
        self._done, self._total = done, total

    def __call__(self) -> str:
        """Return the progress in words, with the time left at the pace so far; empty before the first `note`."""
        if not self._done:
            return share_done(0, self._total) if self._total else ""
        left = (time.monotonic() - self._started) * (self._total - self._done) / self._done
        return f"{share_done(self._done, self._total)}, about {duration(left)} left"


def staged(total: int) -> Callable[[str], AbstractContextManager[None]]:
    """Return a function that counts the stages of a command: its first call is `busy("reading, step 1 of 3")`, …"""
    numbers = counting(1)

    def steps(what: str) -> AbstractContextManager[None]:
        number = next(numbers)
        return busy(f"{what}, step {number} of {total}" if number <= total else what)

    return steps


def share_done(done: int, total: int) -> str:
    """Return the finished share of some items, in words."""
    return f"{done:,} of {total:,}, {100 * done / max(total, 1):.0f} %"


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
    words: int = 1,
    unbroken: bool = False,
    lines: bool = True,
) -> Table:
    """Make a table.

    Args:
        heads: heads of the columns.
        rows: cells of the rows.
        words: number of columns at the left that hold words; the others hold numbers.
        unbroken: whether numbers, and the heads above them, stay on one line.
        lines: whether lines surround the heads.
    """
    table = Table(box=box.SIMPLE_HEAD if lines else None, pad_edge=False, header_style="bold")
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i < words else "right", no_wrap=unbroken or i < words)
    for row in rows:
        table.add_row(*row)
    return table


Unit = Literal["share", "money", "seconds", "rung"]

#: (label, unit) of each figure of a policy, expected, replayed or followed, by its name.
_FACTS: Mapping[str, tuple[str, Unit]] = {
    "error": ("{noun}", "share"),
    "abstention": ("without answer", "share"),
    "error_answered": ("{noun} among the answered", "share"),
    "cost": ("{money}", "money"),
    "position": ("rung, on average", "rung"),
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
    why: str = ""
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


def facts(figures: Mapping[str, Any], money: Money, noun: str = ERRORS.noun) -> Iterator[Fact]:
    """Yield the figures of a policy in the order in which people read them.

    Args:
        figures: figures by name; intervals as `error_interval`, or as `error_low` and `error_high`.
        money: unit of money.
        noun: noun for the counted quantity.

    >>> [fact.label for fact in facts({"cost": 1e-4, "error": 0.2}, Money(1e6, "million"))]
    ['error', '$ per million']
    """
    for name, (label, unit) in _FACTS.items():
        if figures.get(name) is None:
            continue
        low, high = figures.get(f"{name}_interval") or (figures.get(f"{name}_low"), figures.get(f"{name}_high"))
        interval = None if low is None or high is None else (low, high)
        why = ""
        if name == "abstention" and figures.get("abstain_price") is not None:
            why = f"each counts as {100 * figures['abstain_price']:.3g} % {noun}"
        label = label.format(noun=noun, money=money.label)
        yield Fact(label, figures[name], unit, interval, why)


def brief_seconds(value: float | None) -> str:
    """Format seconds for a table: two digits, or three from 9.95 on.

    >>> brief_seconds(0.8342), brief_seconds(12.34), brief_seconds(None)
    ('0.83', '12.3', '–')
    """
    return "–" if value is None else figure(value, 2 if value < 9.95 else 3)


def facts_grid(subjects: Mapping[str, Iterable[Fact]], money: Money) -> tuple[list[str], list[list[str]]]:
    """Return (labels of all facts, in the order of the subject with the most facts; cells of each subject)."""
    rows = [{fact.label: fact.show(money) for fact in listed} for listed in subjects.values()]
    labels = [*dict.fromkeys(label for row in (max(rows, key=len), *rows) for label in row)]
    return labels, [[row.get(label, "") for label in labels] for row in rows]


def facts_rows(head: str, subjects: Mapping[str, Iterable[Fact]], money: Money) -> Table:
    """Make a table with a row for each subject, and a column for each fact."""
    heads, cells = facts_grid(subjects, money)
    return make_table(head, *heads, rows=([name, *row] for name, row in zip(subjects, cells, strict=True)))


def facts_table(subjects: Mapping[str, Iterable[Fact]], money: Money, head: str = "") -> Table:
    """Make a table with a row for each fact, and a column for each subject."""
    labels, cells = facts_grid(subjects, money)
    return make_table(head, *subjects, rows=zip(labels, *cells, strict=True))


def comparison_table(comparison: Comparison, money: Money, noun: str, promised: Comparison | None = None) -> Table:
    """Make a table of the policy and its rivals: money, error, difference of the error from the policy's.

    Args:
        comparison: comparison on the present queries.
        money: unit of money.
        noun: noun for the counted quantity.
        promised: comparison at the time of tuning; None: no column for it.
    """
    heads = ["", money.label, noun, "points"]
    rows = comparison.rows(money)
    if promised is not None:
        before = {name: "\n".join(filter(None, rest)) for name, _, *rest in promised.rows(money)}
        heads, rows = [*heads, "when tuned"], [(*row, before.get(row[0], "")) for row in rows]
    table = make_table(*heads, words=1, unbroken=True)
    table.title = f"On the same {count(comparison.queries, 'query')}, beside this policy (± one standard error):"
    table.title_justify, table.title_style = "left", ""
    table.columns[0].no_wrap = False  # fold names rather than cut figures
    for row in rows:
        table.add_row(*row)
    return table


def cascade_lines(policy: Mapping[str, Any], name: str = "") -> list[str]:
    """Describe the cascades of a policy or a ladder in lines, each with the queries that it decides.

    Args:
        policy: JSON form of the policy.
        name: first words of each line.
    """
    parts = [(1.0, policy)]
    if "rungs" in policy:
        low, share = divmod(policy["position"], 1)
        rungs = policy["rungs"][int(low) :]
        parts = [(1 - share, rungs[0])] + ([(share, rungs[1])] if share else [])
        parts = [part for part in parts if part[0] >= LEAST_SHARE]
    lines = []
    for share, part in parts:
        queries = f"{percent(share)} of the queries" if len(parts) > 1 else ""
        for segment, cascade in {"": part, **part.get("segments", {})}.items():
            others = "others" if part.get("segments") else ""
            words = ", ".join(filter(None, (name, queries, f"segment {segment}" if segment else others)))
            first, *more = describe_cascade(cascade, width=TERMINAL - 4).split("\n")
            line = f"  {words}: {first}" if words else f"  {first}"
            fits = not more and len(line) <= TERMINAL
            lines += [line] if fits else [f"  {words}:", *(f"    {part_line}" for part_line in (first, *more))]
    return lines
