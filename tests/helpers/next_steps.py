"""The commands that screens tell people to type next: collected from the screens of all tests, and run.

`own_settings` (tests/conftest.py), which tests of commands in this process use, collects them and runs them: once for
each place that prints one and each set of its options, with what a person is to fill in filled in.
"""

import csv
import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import currentframe
from pathlib import Path

import polars as pl
import pytest

from helpers import command_line

TOKENS = "query,model,logprob,correct,input_tokens,output_tokens"

#: (who prints it, the command and its options) of what has been run in this process.
DONE: set[tuple[str, ...]] = set()


@dataclass(frozen=True)
class Step:
    """Commands as they stand on a screen."""

    line: str
    folder: Path
    """In which they were printed."""
    place: str
    """The function that prints them."""
    log: Path | None
    """The log of the command that prints them."""

    @property
    def kind(self) -> tuple[str, ...]:
        """The function that prints a step, and the commands with their options; one kind for repeated commands."""
        if self.place.endswith("again"):
            return (self.place,)
        _, command, *words = shlex.split(self.line)
        return self.place, command, *sorted(word for word in words if word.startswith("--"))

    def run(self, desk: Path) -> None:
        """Type the commands, whose files go to the folder `desk`; a check may say by the status 1 to tune again."""
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            for line in self.line.split(" && "):
                _, *words = shlex.split(line)
                filled = [self._filled(option, word, desk) for option, word in zip(["", *words], words, strict=False)]
                result = command_line.run(*filled)
                if "--yes" in result.output:  # the made-up labels of a tiny log
                    result = command_line.run(*filled, "--yes")
                fine = (0, 1) if words[0] == "check" else (0,)
                assert result.exit_code in fine, f"{line}, which {self.place} prints, fails: {result.output}"
        finally:
            os.chdir(before)

    def _filled(self, option: str, word: str, desk: Path) -> str:
        """A word of a command; what a person is to put in its place, if there is no such file."""
        if option == "--out":
            return str(desk / Path(word).name)
        if option == "--labels":
            return str(_labelled(self.folder / word, desk))
        if word.startswith("-") or (self.folder / word).exists():
            return word
        if (desk / word).exists():
            return str(desk / word)
        if word == "NEW_LOG.csv" and self.log is not None:
            return str(_labelled(self.log, desk))
        if word in ("log.csv", "NEW_LOG.csv"):  # of somebody who has seen the demo, or has new prices alone
            return str(command_line.write_log(desk / word, command_line.rows_of(0), TOKENS))
        if option == "--prices":
            return str(_prices(self.log or desk / "log.csv", desk))
        return word


def _log(words: list[str]) -> Path | None:
    """The log that a command reads, or else writes."""
    read = [words[words.index("--out") + 1]] if words[0] in ("import", "collect") else words[1:]
    return next((Path(word).resolve() for word in read if word.endswith((".csv", ".parquet", ".jsonl"))), None)


def _prices(log: Path, desk: Path) -> Path:
    """Prices of the models of a log."""
    readers = {".csv": pl.read_csv, ".parquet": pl.read_parquet, ".jsonl": pl.read_ndjson}
    path, models = desk / "prices.toml", sorted({*readers[log.suffix](log)["model"]})
    path.write_text("".join(f'["{name}"]\ninput = 0.1\noutput = {1 + i}\n' for i, name in enumerate(models)))
    return path


def _labelled(table: Path, desk: Path) -> Path:
    """A table of labels, or a log with them; of one whose labels are missing, as of `rcjax label`, a copy with some."""
    if table.suffix == ".jsonl":
        rows = [json.loads(line) for line in table.read_text("utf-8").splitlines()]
        if any(row.get("correct") is not None for row in rows):
            return table
        lines = [json.dumps(row | {"correct": int(i % 3 > 0)}) for i, row in enumerate(rows)]
        (desk / table.name).write_text("\n".join([*lines, ""]), "utf-8")
        return desk / table.name
    if table.suffix != ".csv":
        return table
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if all(row.get("correct") for row in rows):
        return table
    path = desk / table.name
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0] | {"correct": ""})
        writer.writeheader()
        writer.writerows(row | {"correct": row.get("correct") or str(int(i % 3 > 0))} for i, row in enumerate(rows))
    return path


@contextmanager
def collected(folders: pytest.TempPathFactory) -> Iterator[None]:
    """A block in which the commands of screens are collected, and those of a new kind run after the one that prints."""
    from rcjax.cli.console import Screen

    print_step, steps = Screen.next_step, list[Step]()

    def next_step(self: Screen, words: str, command: str = "") -> None:
        print_step(self, words, command)
        frame = currentframe()
        again = re.match(r"the same command with (?:a target, such as (--budget \S+), and )?(--out \S+)", words)
        if again and command_line.RUNNING:
            command = f"{shlex.join(['rcjax', *command_line.RUNNING])} {again[1] or ''} {again[2]}"
        typed = all(word.isprintable() for word in command_line.RUNNING or [])  # else it is shown escaped, for no shell
        if command and command_line.RUNNING and typed and frame is not None and frame.f_back is not None:
            log = _log(command_line.RUNNING)
            if log is None or log.exists():  # else a test's own log is none
                place = f"{frame.f_back.f_code.co_qualname}{' again' * bool(again)}"
                steps.append(Step(command, Path.cwd(), place, log))

    def run_them() -> None:
        while steps:
            step = steps.pop()
            if step.kind not in DONE:
                DONE.add(step.kind)
                step.run(folders.mktemp("next"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Screen, "next_step", next_step)
        patch.setattr(command_line, "afterwards", run_them)
        yield
