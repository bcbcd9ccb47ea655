"""The terminal: its width and colours, progress while work lasts, tables, a policy and its figures."""

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

LEVEL = 0.9  # of the intervals that are shown

TERMINAL = 80  # columns

EVERY = 10.0  # seconds between two lines of progress in a pipe

#: Set where the first program is compiled, which people wait for once; a pipe is told so in one line.
COMPILES = threading.Event()

COMPILING = "compiling, once for logs of this size"


class Screen(Console):
    """A console that prints text as it is, and leaves a broken pipe to the caller."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def print_path(self, text: str) -> None:
        """Print a line with the name of a file or a command, which is never broken."""
        self.print(text, soft_wrap=True)

    def hang(self, label: str, *texts: str, width: int = 9) -> None:
        """Print paragraphs, each with its label in the margin, which is so many columns wide."""
        for text in texts:
            table = Table.grid(padding=(0, 1))
            table.add_column(min_width=width + 2, no_wrap=True)
            table.add_column(overflow="fold")  # a path of a command to type is never cut
            table.add_row(f"  {label}", text)
            self.print(table)

    def next_step(self, words: str, command: str = "") -> None:
        """The end of what is printed: what to do next, and below it the command to type, which is never broken."""
        self.print(f"Next: {words}{':' * (bool(command) and not words.endswith('?'))}")
        if command:
            self.print_path(f"  {command}")

    def on_broken_pipe(self) -> None:  # called while the exception is handled; rich itself would exit with 1
        """Let the exception pass."""
        raise BrokenPipeError


@contextmanager
def busy(what: str, after: float = 1.0, how_far: Callable[[], str] = str) -> Iterator[None]:
    """Tell on standard error what lasts, and how far it is: a spinner once it took `after` seconds, or lines in a pipe.

    Args:
        what: the work, in words.
        after: seconds until a terminal shows it, or a pipe has a line if something is compiled; of other work a pipe
            has a line every ten seconds.
        how_far: what is done of it, in words; empty if nobody knows.
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
        with suppress(OSError, ValueError):  # nobody reads it
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

    teller = threading.Thread(target=spin if screen.is_terminal else write_lines, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


class HowFar:
    """The share of some work that is done, and the time left, in words; `note` is told both.

    >>> far = HowFar()
    >>> far.note(0, 4000)
    >>> far()
    '0 of 4,000, 0 %'
    """

    def __init__(self) -> None:
        self._done = self._whole = 0
        self._started = time.monotonic()

    def note(self, done: int, whole: int) -> None:
        """So many are done of so many."""
        self._done, self._whole = done, whole

    def __call__(self) -> str:
        """In words, the time as if the rest took as long as what is done; empty if nothing was noted yet."""
        if not self._done:
            return share_done(0, self._whole) if self._whole else ""
        left = (time.monotonic() - self._started) * (self._whole - self._done) / self._done
        return f"{share_done(self._done, self._whole)}, about {duration(left)} left"


def staged(whole: int) -> Callable[[str], AbstractContextManager[None]]:
    """A function that tells of the stages of a command: its first call is `busy("reading, step 1 of 3")`, and so on."""
    numbers = counting(1)

    def steps(what: str) -> AbstractContextManager[None]:
        number = next(numbers)
        return busy(f"{what}, step {number} of {whole}" if number <= whole else what)

    return steps


def share_done(done: int, whole: int) -> str:
    """How much of something is done, in words."""
    return f"{done:,} of {whole:,}, {100 * done / max(whole, 1):.0f} %"


def duration(seconds: float) -> str:
    """A time in its unit.

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
    whole: bool = False,
    lines: bool = True,
) -> Table:
    """A table with these heads and rows.

    Args:
        heads: of the columns.
        rows: their cells.
        words: the first columns, that hold words; the others hold numbers.
        whole: numbers, and the heads above them, are never broken.
        lines: about the heads.
    """
    table = Table(box=box.SIMPLE_HEAD if lines else None, pad_edge=False, header_style="bold")
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i < words else "right", no_wrap=whole or i < words)
    for row in rows:
        table.add_row(*row)
    return table


Unit = Literal["share", "money", "seconds", "rung"]

#: By its name among the figures of a policy, expected, replayed or followed: how people call it, and its unit.
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
    """The ends of the interval for it, or None."""
    why: str = ""
    """What there is to know of it, in words."""

    def show(self, money: Money) -> str:
        """The value and its interval in words, without the unit of money.

        >>> Fact("error", 0.291, "share", (0.243, 0.335)).show(Money(1e6, "million"))
        '29.1 % (24.3–33.5)'
        """
        one = {"share": percent, "money": money.show, "seconds": brief_seconds, "rung": "{:.1f}".format}[self.unit]
        ends = "–".join(one(end).removesuffix(" %") for end in self.interval or ())
        return f"{one(self.value)} ({ends})" if ends else one(self.value)


def facts(figures: Mapping[str, Any], money: Money, noun: str = ERRORS.noun) -> Iterator[Fact]:
    """What is known of a policy, in the order in which people read it.

    Args:
        figures: by name; ends of intervals as `error_interval`, or as `error_low` and `error_high`.
        money: the unit of money.
        noun: what is counted.

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
    """Seconds in a table: two digits, or three where there are so many.

    >>> brief_seconds(0.8342), brief_seconds(12.34), brief_seconds(None)
    ('0.83', '12.3', '–')
    """
    return "–" if value is None else figure(value, 2 if value < 9.95 else 3)


def facts_grid(subjects: Mapping[str, Iterable[Fact]], money: Money) -> tuple[list[str], list[list[str]]]:
    """(the labels of all facts, in the order of the subject that has most; the cells of each subject, in words)."""
    rows = [{fact.label: fact.show(money) for fact in listed} for listed in subjects.values()]
    labels = [*dict.fromkeys(label for row in (max(rows, key=len), *rows) for label in row)]
    return labels, [[row.get(label, "") for label in labels] for row in rows]


def facts_rows(head: str, subjects: Mapping[str, Iterable[Fact]], money: Money) -> Table:
    """A row for each subject, a column for each fact."""
    heads, cells = facts_grid(subjects, money)
    return make_table(head, *heads, rows=([name, *row] for name, row in zip(subjects, cells, strict=True)))


def facts_table(subjects: Mapping[str, Iterable[Fact]], money: Money, head: str = "") -> Table:
    """A row for each fact, a column for each subject."""
    labels, cells = facts_grid(subjects, money)
    return make_table(head, *subjects, rows=zip(labels, *cells, strict=True))


def comparison_table(comparison: Comparison, money: Money, noun: str, promised: Comparison | None = None) -> Table:
    """The policy and its rivals, a row each: money, error, and how much more or less that is than the policy's.

    Args:
        comparison: on the queries at hand.
        money: the unit of money.
        noun: what is counted.
        promised: the same when the policy was tuned; None to leave its column out.
    """
    heads = [
        f"on the same {count(comparison.queries, 'query')}\n(± one standard error)",
        money.label,
        noun,
        "points",
    ]
    rows = comparison.rows(money)
    if promised is not None:
        before = {name: ", ".join(filter(None, rest)) for name, _, *rest in promised.rows(money)}
        heads, rows = [*heads, "when tuned"], [(*row, before.get(row[0], "")) for row in rows]
    table = make_table(*heads, words=1, whole=True)
    table.columns[0].no_wrap = False  # names are folded, and no figure is cut
    for row in rows:
        table.add_row(*row)
    return table


def cascade_lines(policy: Mapping[str, Any], name: str = "") -> list[str]:
    """The cascades of the JSON form of a policy or a ladder, in lines; before each which queries go by it.

    Args:
        policy: the JSON form.
        name: with which the words begin.
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
        for segment, own in {"": part, **part.get("segments", {})}.items():
            others = "others" if part.get("segments") else ""
            words = ", ".join(filter(None, (name, queries, f"segment {segment}" if segment else others)))
            first, *more = describe_cascade(own, width=TERMINAL - 4).split("\n")
            whole = f"  {words}: {first}" if words else f"  {first}"
            fits = not more and len(whole) <= TERMINAL
            lines += [whole] if fits else [f"  {words}:", *(f"    {line}" for line in (first, *more))]
    return lines
