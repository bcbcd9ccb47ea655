"""What `rcjax import`, `rcjax collect` and `rcjax grade` show to people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from rcjax._base.wording import budget_between, choose_unit, count, figure, not_likeliest, percent
from rcjax.cli.console import Screen, hang, make_table
from rcjax.cli.printing import shown


@shown
def show_import(summary: Mapping[str, Any], notes: Sequence[str], out: Path | None) -> None:
    """Print what was imported, model by model, what was assumed, and what to do with the file `out`, if it is there."""
    screen = Screen()
    queries, models = summary["queries"], summary["models"]
    heading = f"{count(queries, 'query')}, {summary['answered_by_all']:,} of them answered by all of "
    screen.print(heading + count(len(models), "model"), style="bold")
    screen.print(_models_table(models, "mean score" if summary.get("scored") else "accuracy"))
    for note in notes:
        hang(screen, "note", note)
    if out is not None:
        hang(screen, "written", f"to {out}")
        hang(screen, "next", _next_step(models, out))


def _next_step(models: Sequence[Mapping[str, Any]], out: Path) -> str:
    if len(models) < 2:
        return "import the answers of another model too: a cascade needs two"
    if all(row["accuracy"] is None for row in models):
        return f"rcjax label {shlex.quote(str(out))} --n 100 --out to_label.csv, or rcjax tune with --labels"
    prices = "" if all(row["cost"] is not None for row in models) else " --prices prices.toml"
    return f"rcjax tune {shlex.quote(str(out))}{prices} --budget {budget_between([row['cost'] for row in models])}"


def _models_table(
    models: Sequence[Mapping[str, Any]], accuracy: str, signals: Mapping[str, str] | None = None
) -> Table:
    """What is known of each model's answers, the cheapest model first; after a run also its `signals` and failures."""
    money = choose_unit([row["cost"] for row in models if row["cost"] is not None] or [0.0])
    run = signals is not None
    heads = ["signal"] * run + ["answers"] + ["failed"] * run + [accuracy, "better is surer", f"$ per {money.name}"]
    table = make_table("model", *heads)
    for row in sorted(models, key=lambda row: row["cost"] or 0.0):
        cells = [f"{row['answers']:,}"]
        cells = cells if signals is None else [signals[row["model"]], *cells, f"{row['failed']:,}"]
        cost = "–" if row["cost"] is None else money.show(row["cost"])
        table.add_row(row["model"], *cells, percent(row["accuracy"]), percent(row["separation"], 0), cost)
    return table


@shown
def show_probe(models: Sequence[Mapping[str, Any]]) -> None:
    """Print what each model can do."""
    screen = Screen()
    table = make_table("model", "log-probabilities", "samples", "tokens", "seconds", "signals", numbers=None)
    for row in models:
        if row["error"] is not None:
            table.add_row(row["model"], "–", "–", "–", "–", "does not answer")
            continue
        top = f"of {row['top']} tokens" if row["top"] > 1 else "own alone" if row["logprobs"] else "none"
        samples, counted = ("yes" if row[name] else "no" for name in ("samples", "counted"))
        table.add_row(row["model"], top, samples, counted, f"{row['seconds']:.2f}", ", ".join(row["signals"]))
    screen.print(table)
    for row in models:
        if row["error"] is not None:
            hang(screen, "error", f"{row['model']}: {row['error']}")
        elif row["logprobs"] and row["top"] <= 1:
            hang(
                screen,
                "note",
                f"{row['model']}: only the log-probability of its own tokens: no choice, no verification",
            )
        if row["unusable"] is not None:
            hang(screen, "note", f"{row['model']}: {row['unusable']}")
        if row["not_likeliest"]:
            hang(screen, "note", not_likeliest(row["model"], row["not_likeliest"], 1))
    cost = sum(row["cost"] for row in models)
    hang(screen, "cost", f"at most ${figure(cost)}")


@shown
def show_estimate(document: Mapping[str, Any], *, before: bool = False) -> None:
    """Print what a run will cost; on standard error where it comes `before` the run."""
    screen = Screen(stderr=before)
    rows = document["estimate"]
    likely, most = (sum(row[name] for row in rows) for name in ("likely_cost", "most_cost"))
    calls, requests = (sum(row[name] for row in rows) for name in ("calls", "requests"))
    to_make = count(calls, "call") + (f" of {count(requests, 'request')}" if requests > calls else "")
    heading = f"{count(document['questions'], 'question')}, {count(len(rows), 'model')}: {to_make} to make"
    screen.print(f"{heading}, about ${figure(likely)} (at most ${figure(most)})", style="bold")
    if document["spent"]:
        hang(screen, "spent", f"${figure(document['spent'])} by earlier runs")
    for row in rows:
        asked = count(row["questions"], "question")
        several = "" if row["calls"] == row["questions"] else f", {count(row['calls'], 'call')}"
        several += "" if row["requests"] == row["calls"] else f", {count(row['requests'], 'request')}"
        money = f"about ${figure(row['likely_cost'])}, at most ${figure(row['most_cost'])}"
        hang(screen, row["model"], f"{asked}{several}, {money}")
    for note in document["notes"]:
        hang(screen, "note", note)


@shown
def show_collected(document: Mapping[str, Any]) -> None:
    """Print what was collected, model by model, what is missing, and the next command."""
    screen = Screen()
    models = document["models"]
    answers, questions = count(document["answers"], "answer"), count(document["questions"], "question")
    heading = f"{answers} of {count(len(models), 'model')} to {questions}"
    screen.print(f"{heading}; {document['answered_by_all']:,} answered by all", style="bold")
    scored = "mean score" if document.get("scored") else "accuracy"
    screen.print(_models_table(models, scored, document["signals"]))
    for note in document["notes"]:
        hang(screen, "note", note)
    for row in models:
        if row["failed"]:
            hang(screen, "failed", f"{row['model']}: {count(row['failed'], 'call')}, the last one: {row['error']}")
    if document["silent"]:
        hang(screen, "silent", f"no answer at all: {', '.join(document['silent'])}")
    for name, why in document["stopped"].items():
        hang(screen, "stopped", f"{name}: {why}")
    _show_graded(screen, document)
    if document["grading"]:
        hang(screen, "grading", f"stopped: {document['grading']}")
    if document["budget_spent"]:
        hang(screen, "budget", "what is left of it does not cover another call")
    hang(screen, "spent", f"${figure(document['spent'])} in all, failed calls and judges included")
    hang(screen, "written", f"to {document['out']}")
    hang(screen, "next", _next(document))


def _show_graded(screen: Screen, document: Mapping[str, Any]) -> None:
    """Who has graded how many answers, and how many nobody has."""
    graders = sorted(document["graded_by"].items(), key=lambda item: -item[1])
    if graders:
        hang(screen, "graded", ", ".join(f"{count(number, 'answer')} by {name}" for name, number in graders))
        _show_ungraded(screen, document["ungraded"], document["without_reference"])


def _next(document: Mapping[str, Any]) -> str:
    """What to do first: nothing that ends as this run did."""
    out = shlex.quote(document["out"])
    if document["ungraded"] == document["answers"] and document["answers"]:
        return f"no answer is graded: rcjax grade {out} --grade …, or rcjax tune {out} --labels labels.csv"
    left = sum(row["left"] for row in document["models"])
    stopped = ", ".join(dict.fromkeys([*document["stopped"], *document["silent"]]))
    before = f"see to what stopped {stopped} (above), then " if stopped else ""
    more = f"{before}the same command {'with a larger --budget' if document['budget_spent'] else 'again'}"
    if left and document["answered_by_all"] < 30:
        return f"{more}, which asks what is missing"
    task = " --task choice" if {*document["signals"].values()} == {"choice"} else ""
    budget = budget_between([row["cost"] for row in document["models"]])
    tune = f"rcjax tune {out}{task} --budget {budget} --out policy.json"
    return f"{tune}; {more} asks the {left:,} that are missing" if left else tune


@shown
def show_grading(document: Mapping[str, Any], path: Any) -> None:
    """Print what was graded, and how far it agrees with the labels that there are."""
    screen = Screen()
    new = f"{document['changed']:,} with a verdict that they had not before"
    heading = f"{count(document['graded'], 'answer')} graded, {new}"
    screen.print(heading, style="bold")
    _show_ungraded(screen, document["without_verdict"])
    for why, number in document.get("not_graded", {}).items():
        hang(screen, "not graded", f"{count(number, 'answer')} {why}")
    labelled = document["labelled"]
    if labelled:
        hang(screen, "agreement", f"the grader {_agreement(document, labelled)}")
    for note in document["notes"]:
        hang(screen, "note", note)
    if document["spent"]:
        hang(screen, "spent", f"${figure(document['spent'])} on judges")
    hang(screen, "written", f"to {path}")
    if document.get("left_out"):
        reasons = "; ".join(f"{number:,} {why}" for why, number in document["left_out"].items())
        hang(screen, "without", f"calls that cannot be learnt from: {reasons}")


def _agreement(document: Mapping[str, Any], labelled: int) -> str:
    """How far a grader's verdicts are those of so many labels, in words."""
    labels = f"the {count(labelled, 'label')} in correct"
    if "apart" in document:
        return f"is {percent(document['apart'])} of the full score away from {labels}, on average"
    return f"agrees with {document['agree']:,} of {labels}, {percent(document['agree'] / labelled)}"


def _show_ungraded(screen: Screen, answers: int, without_reference: int = 0) -> None:
    if answers:
        why = f"; {without_reference:,} of them to questions without a right answer" if without_reference else ""
        hang(screen, "note", f"{count(answers, 'answer')} without a verdict{why}")
