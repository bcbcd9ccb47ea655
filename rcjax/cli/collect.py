"""`rcjax collect`: a log from a file of questions and one of models."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax.cli.collect_run import Collection, run_collection
from rcjax.cli.common import require_distinct, require_libraries, require_writable
from rcjax.cli.failures import conclude, reported
from rcjax.cli.inputs import GradeScale, read_rubric
from rcjax.cli.options import AsJson, GraderNames, Rubric
from rcjax.cli.parsers import positive
from rcjax.cli.plausible import Really, require_plausible_models

if TYPE_CHECKING:
    from rcjax.collecting.plan import Plan


def collect(
    questions: Annotated[
        Path | None,
        typer.Argument(
            metavar="QUESTIONS",
            help="CSV, JSON Lines or Parquet: prompt (or messages as in the API); and query, answer, choices (A|B|C).",
        ),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option("--models", metavar="FILE", help="models.toml: where and at what price."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The log, in JSON Lines; one that is there goes on."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Ask again if the log has an answer to another question of the same id.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="A random sample of so many questions.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
    budget: Annotated[
        Any, typer.Option(parser=positive, metavar="MONEY", help="Never spend more, over all runs of this log.")
    ] = None,
    signal: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Confidence: **choice**, **verification**, **votes**, **stated** or **mean**; or a check, **json**, "
            "**regex:**…, **length**, **python:module:function**, **command:./check**. [default: what suits the "
            "questions, and what the models can do]",
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(
            min=1, max=1000, metavar="N", help="Answers of a model to each question: how many agree is its confidence."
        ),
    ] = 1,
    grade: GraderNames = None,
    rubric: Rubric = None,
    score_max: GradeScale = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message before each question.")] = None,
    template: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The prompt, with {prompt} and other columns in it."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Of an answer. [default: 1024; 16 where there are choices]"),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Questions to a model at once.")] = 8,
    timeout: Annotated[Any, typer.Option(parser=positive, metavar="SECONDS", help="Limit for one attempt.")] = "60",
    probe: Annotated[bool, typer.Option("--probe", help="Ask each model once, and say what it can do.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it will cost, and stop there.")] = False,
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Ask several models the same questions, grade what they answer, and write the log that `rcjax tune` takes.

    Each call is a line as soon as it is there: the same command goes on where it was stopped, and asks nothing twice.
    Keys come from the environment.
    """
    with reported(as_json=json_):
        if models is None:
            raise typer.BadParameter("give the file of the models: --models models.toml", param_hint="--models")
        require_libraries("rcjax collect", "run", "openai")
        from rcjax.collecting.plan import Plan
        from rcjax.collecting.questions import draw, read_questions
        from rcjax.serving.models_file import read_models

        require_plausible_models(models, really)
        settings = read_models(models)
        _require_signal(signal)
        money = None if budget is None else Decimal(str(budget))
        words = read_rubric(rubric)
        how = tuple(grade or ()), words, money, max_tokens, float(timeout), samples
        plan = Plan(settings, settings, signal, *how, score_max)
        if probe:
            _probe(plan, json_)
            return
        if questions is None or (out is None and not dry_run):
            what, where = ("QUESTIONS", "a file") if questions is None else ("--out", "answers.jsonl")
            raise typer.BadParameter(f"is missing: give {where}", param_hint=what)
        inputs = [("QUESTIONS", questions), ("--models", models), ("--rubric", rubric)]
        require_distinct([("--out", out)], inputs)
        require_writable(out)
        if out is not None and out.suffix.lower() not in (".jsonl", ".ndjson"):
            raise typer.BadParameter("the log is JSON Lines: give a name that ends in .jsonl", param_hint="--out")
        asked = draw(read_questions(questions, system, template), limit, seed)
        run_collection(Collection(plan, asked, out, again, concurrency, dry_run, json_))


def _require_signal(name: str | None) -> None:
    from rcjax.signals.records import require_signal_name

    try:
        require_signal_name("choice" if name is None else name)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="--signal") from None


def _probe(plan: Plan, as_json: bool) -> None:
    from dataclasses import asdict

    from rcjax.cli.collect_tables import show_probe
    from rcjax.cli.console import busy
    from rcjax.collecting.plan import Setup, probe_all

    async def ask() -> Any:
        setup = Setup(plan)
        try:
            return await probe_all(setup)
        finally:
            await setup.close()

    import asyncio  # which takes long to import

    with busy("asking"):
        abilities = asyncio.run(ask())
    document = {"models": [asdict(one) | {"signals": list(one.signals)} for one in abilities]}
    conclude(document, partial(show_probe, document["models"]), as_json=as_json)
    if any(one.error for one in abilities):
        raise typer.Exit(1)
