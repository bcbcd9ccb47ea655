"""What `rcjax import` shows to people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rcjax._base.wording import Money, budget_between, choose_unit, count, figure, percent
from rcjax.cli.console import Screen, hang, make_table
from rcjax.cli.printing import shown


@shown
def show_import(summary: Mapping[str, Any], notes: Sequence[str], out: Path | None) -> None:
    """Print what was imported, model by model, what was assumed, and what to do with the file `out`, if it is there."""
    screen = Screen()
    queries, models = summary["queries"], summary["models"]
    heading = f"{count(queries, 'query')}, {summary['answered_by_all']:,} of them answered by all of "
    screen.print(heading + count(len(models), "model"), style="bold")
    screen.print(_table(models, "mean score" if summary.get("scored") else "accuracy"))
    for note in notes:
        hang(screen, "note", note)
    if out is not None:
        hang(screen, "written", f"to {out}")
        hang(screen, "next", _next(models, out))


def _next(models: Sequence[Mapping[str, Any]], out: Path) -> str:
    if len(models) < 2:
        return "import the answers of another model too: a cascade needs two"
    if all(row["accuracy"] is None for row in models):
        return f"rcjax label {shlex.quote(str(out))} --n 100 --out to_label.csv, or rcjax tune with --labels"
    prices = "" if all(row["cost"] is not None for row in models) else " --prices prices.toml"
    return f"rcjax tune {shlex.quote(str(out))}{prices} --budget {budget_between([row['cost'] for row in models])}"


def _table(models: Sequence[Mapping[str, Any]], accuracy: str) -> Any:
    money = choose_unit([row["cost"] for row in models if row["cost"] is not None] or [0.0])
    table = make_table("model", "answers", accuracy, "separation", f"$ per {money.name}")
    for row in sorted(models, key=lambda row: row["cost"] or 0.0):
        table.add_row(row["model"], f"{row['answers']:,}", *judged_cells(row, money))
    return table


def judged_cells(row: Mapping[str, Any], money: Money) -> tuple[str, str, str]:
    """What a summary says of a model's answers: accuracy, separation and cost, each as far as it is known."""
    separation = "–" if row["separation"] is None else figure(row["separation"])
    cost = "–" if row["cost"] is None else money.show(row["cost"])
    return percent(row["accuracy"]), separation, cost
