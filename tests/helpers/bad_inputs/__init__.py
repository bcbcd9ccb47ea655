"""Commands, and what is wrong with the files that people give them: from the two tables come the tests.

A new command joins by a row of `commands.COMMANDS`: each of its places for a file then meets a bad one of that kind. A
new bad file joins by a row of `faults.TABLE`: a command that reads that kind is held to it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple


class BadFile(NamedTuple):
    """A file that no command can use."""

    fault: str
    """What is wrong with it: the name of the test."""
    kind: str
    """What it should be: `"log"`, `"labels"`, `"prices"`, `"policy"`, `"sweep"`, `"evaluation"`,
    `"questions"`, `"models"`, `"answers"`, `"rubric"`, `"said"` (what models answered)."""
    write: Callable[[Path], Path]
    """Writes it into a folder that holds the good files (`good_files`), and returns its path."""
    says: Sequence[str]
    """What the one line of the error must hold, each of these."""


class Slot(NamedTuple):
    """A place on the command line for a file."""

    option: str
    """The option; empty for an argument, which is always there."""
    kind: str
    """The kind of file that is read, as in `BadFile`; `"output"` where one is written, `"lines"` where lines are added
    to one while the command runs, `"new"` where one is written that must not be there yet."""
    also: str = ""
    """Other options that this one needs."""
    good: str = ""
    """The good file that stands there, where it is none of the kind."""


class Command(NamedTuple):
    """A command, and the files that it reads and writes."""

    name: str
    slots: tuple[Slot, ...]
    options: str = ""
    """Options that are always there; `{models}` stands for a good file, `{folder}` for where the good files are."""
    status: int = 1
    """The exit status where a file cannot be used."""


def text_file(name: str, content: str | bytes) -> Callable[[Path], Path]:
    """A writer of a file with this name and content."""

    def write(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
