"""`rcjax import`: make one log from evaluations that other programs ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from rcjax._base.wording import choose_unit, count, percent
from rcjax.cli.console import Screen, busy, make_table
from rcjax.cli.inputs import require_distinct, require_outputs
from rcjax.cli.options import AsJson, FullScore, Name
from rcjax.cli.parsers import pairs
from rcjax.cli.printing import attempt, command, conclude, shown, warn


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILES")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE")],
    format_: Name = None,
    scorer: Name = None,
    score_max: FullScore = None,
    rename: Annotated[list[str] | None, typer.Option(metavar="OLD=NEW")] = None,
    column: Annotated[list[str] | None, typer.Option(metavar="OURS=THEIRS")] = None,
    prompts: bool = False,
    json_: AsJson = False,
) -> None:
    """Make one log of evaluations that other programs ran.

    Many files become one log. Models have their names (`openai/gpt-4o-mini` becomes `gpt-4o-mini` if that is unique);
    queries have the ids of their format. Logs of calls have no labels: give `--labels` when you tune. Most files have
    no costs: then give `--prices`, too.

    Example: `rcjax import logs/*.eval --out log.parquet`

    Args:
        files: Logs of Inspect AI (.eval, .json), samples of lm-eval, runs of HELM, results of promptfoo, logs of
            LiteLLM, output of OpenAI's batches, tables of your own; or folders of them.
        out: The log: CSV, TSV, Parquet or JSON Lines.
        format_: Format of the files: **inspect**, **lm-eval**, **helm**, **promptfoo**, **litellm**, **openai-batch**,
            **table** or **wide**, a table with columns for each model. [default: by the content, except wide]
        scorer: Scorer whose scores count: a scorer of Inspect, a filter of lm-eval, …
        score_max: The full score. [default: 1]
        rename: Another name for a model; may be repeated.
        column: Name of a column in a table: `correct=is_right`, … For LiteLLM, the field with the id of the query:
            `query=metadata.requester_metadata.id`.
        prompts: Include the prompts in the log, for labelling by hand.
    """
    require_outputs({"--out": out}, {})
    require_distinct([("--out", out)], [("FILES", file) for file in files])
    from rcjax.logs.errors import LogError
    from rcjax.logs.importing.evaluations import KINDS, How, import_evaluations, write_table
    from rcjax.logs.oddities import summarise

    if out.suffix.lower() not in ("", *KINDS):
        raise LogError(f"{out.name}: a log of kind {out.suffix!r} cannot be written: give {', '.join(KINDS)}")
    renamed, columns = pairs(rename, "--rename"), pairs(column, "--column")
    settings = How(format_, scorer, renamed, columns, prompts)
    settings = settings if score_max is None else replace(settings, score_max=score_max)
    with busy("reading"):
        evaluations = import_evaluations(files, settings)
        problem = attempt(partial(write_table, evaluations.frame, out))
    if evaluations.damage is not None:
        warn(evaluations.damage)
    summary = summarise(evaluations.frame)
    document = summary | {"notes": list(evaluations.notes), "unreadable": list(evaluations.unreadable)}
    document |= {} if problem else {"out": str(out)}
    show = partial(_show_import, summary, evaluations.notes, None if problem else out)
    conclude(document, show, as_json=json_, problem=problem)


@shown
def _show_import(summary: Mapping[str, Any], notes: Sequence[str], out: Path | None) -> None:
    """Print the imported models, the remarks, and the next step with the file `out`, if it was written."""
    screen = Screen()
    queries, models = summary["queries"], summary["models"]
    heading = f"{count(queries, 'query')}, {summary['answered_by_all']:,} of them answered by all of "
    screen.print(heading + count(len(models), "model"), style="bold")
    screen.print(models_table(models, "mean score" if summary.get("scored") else "accuracy"))
    screen.hang("note", *notes)
    if out is not None:
        screen.hang("written", f"to {out}")
        screen.next_step(*next_of_answers(summary, out, _TO_LABEL))


_TO_LABEL = "no answer has a label: give them to rcjax tune with --labels, or label some by hand"

_LABELS = 100  # answers to label by hand


def next_of_answers(summary: Mapping[str, Any], out: object, unlabelled: str, **options: object) -> tuple[str, str]:
    """Return (advice, command) for a log of answers; the command accepts the log.

    Args:
        summary: `models`, and the number of queries `answered_by_all`, from `summarise`.
        out: path of the log.
        unlabelled: advice if no answer has a label.
        options: `questions` for `rcjax label`, and `task` for `rcjax tune`; None to leave one out.
    """
    from rcjax.logs.oddities import FEWEST

    models, queries = summary["models"], summary["answered_by_all"]
    if len(models) < 2:
        return "add the answers of another model: a cascade needs two", ""
    if queries < FEWEST:
        return (
            f"add more: {count(queries, 'query')} that all models answered tell too little; log a hundred",
            "",
        )
    if all(row["accuracy"] in (0, 1) for row in models) and len({row["accuracy"] for row in models}) == 1:
        return "look at the labels: they say the same of every answer, and nothing tells the models apart", ""
    if all(row["accuracy"] is None for row in models):
        n = min(_LABELS, sum(row["answers"] for row in models))
        options["task"] = None
        return unlabelled, command("label", out, n=n, **options, out="to_label.csv")
    options["questions"] = None
    words, options["match"] = "as good as the best model, for less?", "1%"
    if any(row["cost"] is None for row in models):
        words, options["prices"] = "tune, with the prices of the models in a file", "prices.toml"
    return words, command("tune", out, **options, out="policy.json")


def models_table(models: Sequence[Mapping[str, Any]], accuracy: str, signals: Mapping[str, str] | None = None) -> Table:
    """Make a table of the models, the cheapest first; after a run it includes the `signals` and the failed calls."""
    money = choose_unit([row["cost"] for row in models if row["cost"] is not None] or [0.0])
    run = signals is not None
    heads = ["signal"] * run + ["answers"] + ["failed"] * run + [accuracy, "better\nis surer", f"$ per\n{money.name}"]
    table = make_table("model", *heads, words=1 + run, unbroken=True)
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"  # nothing is cut
    for row in sorted(models, key=lambda row: row["cost"] or 0.0):
        cells = [f"{row['answers']:,}"]
        cells = cells if signals is None else [signals[row["model"]], *cells, f"{row['failed']:,}"]
        cost = "–" if row["cost"] is None else money.show(row["cost"])
        table.add_row(row["model"], *cells, percent(row["accuracy"]), percent(row["separation"], 0), cost)
    return table
