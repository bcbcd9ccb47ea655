"""Labelling in the terminal: question and answer, one key for right or wrong, and each label is saved at once."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer
from rich.rule import Rule

from rcjax._base.wording import count, visible
from rcjax.cli.console import Screen, hang, make_table
from rcjax.cli.failures import INTERRUPTED
from rcjax.cli.printing import escaped, shown

if TYPE_CHECKING:
    from rcjax.logs.label_sheet import LabelSheet, Texts

_KEYS = "y yes · n no · s skip · u undo · q quit"


_WIDEST = 100  # columns of a text: longer lines are hard to read


_SAID = {True: "right", False: "wrong", None: "skipped"}


@shown
def show_draw(log: str, document: Mapping[str, Any], back: str) -> None:
    """Print how many answers of each model are to be labelled, and how to go on where nobody is asked for them."""
    screen = Screen()
    screen.print(log)
    screen.print(f"\n{count(document['drawn'], 'answer')} to label, drawn at random")
    table = make_table("model", "answers", "labelled", "to label")
    for row in document["models"]:
        table.add_row(row["model"], f"{row['answers']:,}", f"{row['labelled']:,}", f"{row['drawn']:,}")
    screen.print(table)
    for missing, option in (("question", "--questions"), ("answer", "--answers")):
        number = document[f"without_{missing}"]
        if number:
            words = f"{number:,} of the {document['drawn']:,} show no {missing}: give {option} FILE, and another --out"
            hang(screen, "note", words)
    how = f": fill in its column correct, 1 or 0, then {back}" if back else ""
    screen.print(f"written to {document['written']}{how}", soft_wrap=True)


def ask_labels(sheet: LabelSheet, back: str) -> None:
    """Ask for the labels that are missing, one by one, until there are none or somebody leaves.

    Args:
        sheet: the table; it is written after each label.
        back: the command that takes the labels, to say how to go on.
    """
    screen = Screen()
    todo = [row for row, label in enumerate(sheet.labels) if label is None]
    if todo and not any(sheet.texts(row).answer for row in todo):
        what = "it shows no answers, which nobody can judge: draw again with --answers FILE"
        raise ValueError(f"{sheet.path}: {what}")
    asked = [row for row in range(todo[0] if todo else 0) if sheet.label(row) is not None]
    try:
        _ask_all(screen, sheet, todo, asked)
    except (KeyboardInterrupt, EOFError):
        screen.print("\n")
        _tell(screen, sheet, back)
        raise typer.Exit(INTERRUPTED) from None
    screen.print("")
    _tell(screen, sheet, back)


def _ask_all(screen: Screen, sheet: LabelSheet, todo: list[int], asked: list[int]) -> None:
    """Go through the rows that are to be asked; those `asked` can be undone."""
    position = 0
    while todo:
        if position < len(todo):
            _show(screen, sheet.texts(todo[position]), sheet.labels)
            key = _key(screen, _KEYS if asked else _KEYS.replace("u undo · ", ""))
        else:
            screen.print("\nthat was the last one")
            key = _key(screen, "u undo · q quit")
        if key == "q":
            return
        if key == "u":
            last = asked.pop()
            if last in todo:
                position = todo.index(last)
            else:
                todo.insert(position, last)
            sheet.set_label(last, None)
            continue
        label = {"y": True, "n": False, "s": None}[key]
        if label is not None:
            sheet.set_label(todo[position], label)
        screen.print(_SAID[label], style="dim")
        asked.append(todo[position])
        position += 1


def _show(screen: Screen, texts: Texts, labels: list[bool | None]) -> None:
    """What is asked about; who answered is not shown, so that nobody is judged by the name."""
    labelled = sum(label is not None for label in labels)
    screen.print("")
    screen.print(Rule(f"{labelled:,} of {len(labels):,} labelled", align="left", style="dim"))
    for name, text in zip(("question", "right answer", "answer"), texts, strict=True):
        if text or name == "answer":
            screen.print(f"\n{name}", style="bold")
            screen.print(_lines(text, min(screen.width, _WIDEST)) if text else "(empty)", soft_wrap=True)
    screen.print("")


def _lines(text: str, width: int) -> str:
    """A text with its own lines, indented and wrapped, and without what would act on a terminal."""
    lines = [visible(line) for line in text.expandtabs(4).splitlines()]
    wrapped = (textwrap.wrap(line, width - 2, drop_whitespace=False) or [""] for line in lines)
    return "\n".join(f"  {piece.rstrip()}" for pieces in wrapped for piece in pieces)


def _key(screen: Screen, keys: str) -> str:
    """The next key that is one of the keys, as they are shown."""
    screen.print(f"{'right? ' if keys[0] == 'y' else ''}{keys}: ", end="", style="dim")
    letters = {key[0] for key in keys.split(" · ")}
    while True:
        key = typer.getchar().lower()
        if key in letters:
            if key in ("u", "q"):
                screen.print("undo" if key == "u" else "")
            return key


def _tell(screen: Screen, sheet: LabelSheet, back: str) -> None:
    labels = sheet.labels
    missing = sum(label is None for label in labels)
    if not missing:
        screen.print(escaped(f"all {len(labels):,} are labelled: {back}"), soft_wrap=True)
        return
    left = "1 is left" if missing == 1 else f"{missing:,} are left"
    progress = f"saved in {sheet.path}: {len(labels) - missing:,} of {len(labels):,} are labelled, {left}"
    screen.print(escaped(progress) + "; the same command goes on", soft_wrap=True)
