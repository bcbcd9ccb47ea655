"""The terminal: its width and colours, progress while work lasts, tables, and JSON."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["Screen", "busy", "hang", "make_table"]


class Screen(Console):
    """A console that prints text as it is, and leaves a broken pipe to the caller."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:  # called while the exception is handled; rich itself would exit with 1
        """Let the exception pass."""
        raise BrokenPipeError


@contextmanager
def busy(what: str, after: float = 1.0) -> Iterator[None]:
    """Show a spinner on standard error, if that is a terminal, once the work has taken `after` seconds."""
    screen = Screen(stderr=True)
    if not screen.is_terminal:
        yield
        return
    status = screen.status(f"{what} …")
    timer = threading.Timer(after, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # so that a spinner that is just starting is stopped, too
        status.stop()


def hang(screen: Screen, label: str, text: str) -> None:
    """Print a paragraph with its label, of up to nine characters, in the margin."""
    table = Table.grid(padding=(0, 1))
    table.add_column(min_width=11, no_wrap=True)
    table.add_column(overflow="fold")  # a path of a command to type is never cut
    table.add_row(f"  {label}", text)
    screen.print(table)


def make_table(*columns: str, numbers: int | None = None) -> Table:
    """A table with these heads; the first `numbers` columns, or by default all but the first, hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        right = i >= 1 if numbers is None else i < numbers
        table.add_column(column, justify="right" if right else "left", no_wrap=not right)
    return table
