"""`rcjax collect`: a log from a file of questions and one of models."""

from __future__ import annotations

import asyncio
import signal as signals
import sys
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax.cli.common import require_distinct, require_libraries, require_writable
from rcjax.cli.failures import conclude, reported
from rcjax.cli.options import AsJson, positive
from rcjax.cli.printing import warn
from rcjax.cli.rubrics import read_rubric

if TYPE_CHECKING:
    from rcjax.collecting.plan import Plan
    from rcjax.collecting.questions import Question
    from rcjax.collecting.run import Run

__all__ = ["collect"]

_INTERRUPTED = 130


def collect(
    questions: Annotated[
        Path | None,
        typer.Argument(
            show_default=False,
            metavar="QUESTIONS",
            help="CSV, JSON Lines or Parquet: prompt (or messages as in the API); and query, answer, choices (A|B|C).",
        ),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option("--models", show_default=False, metavar="FILE", help="models.toml: where and at what price."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", show_default=False, metavar="FILE", help="The log, in JSON Lines; one that is there goes on."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(show_default=False, min=1, metavar="N", help="A random sample of so many questions.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
    budget: Annotated[
        Any, typer.Option(parser=positive, metavar="MONEY", help="Never spend more, over all runs of this log.")
    ] = None,
    signal: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            metavar="NAME",
            help="Confidence: **choice**, **verification**, **votes**, **stated** or **mean**. [default: what suits "
            "the questions, and what the models can do]",
        ),
    ] = None,
    grade: Annotated[
        list[str] | None,
        typer.Option(
            show_default=False,
            metavar="[KIND=]GRADER",
            help="**exact**, **choice**, **number**, **contains**, **regex:…**, **python:module:function**, "
            "**command:…** or **judge:MODEL**; again for other kinds of question. [default: what suits the answers]",
        ),
    ] = None,
    rubric: Annotated[
        Path | None,
        typer.Option(
            show_default=False, metavar="FILE", help="What a judge is asked: {question}, {reference} and {answer}."
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(show_default=False, metavar="TEXT", help="A system message before each question.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(show_default=False, metavar="TEXT", help="The prompt, with {prompt} and other columns in it."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            show_default=False, min=1, metavar="N", help="Of an answer. [default: 1024; 16 where there are choices]"
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Questions that a model is put at once.")] = 8,
    timeout: Annotated[Any, typer.Option(parser=positive, metavar="SECONDS", help="For one attempt.")] = "60",
    probe: Annotated[bool, typer.Option("--probe", help="Ask each model once, and say what it can do.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it will cost, and stop there.")] = False,
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
        from rcjax.collecting.questions import Sheet, draw, read_questions
        from rcjax.serving.models_file import read_models

        settings = read_models(models)
        _require_signal(signal)
        money = None if budget is None else Decimal(str(budget))
        words = read_rubric(rubric)
        plan = Plan(settings, settings, signal, tuple(grade or ()), words, money, max_tokens, float(timeout))
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
        asked = draw(read_questions(questions, Sheet(system, template)), limit, seed)
        _run(_Command(plan, asked, out, concurrency, dry_run, json_))


@dataclass(frozen=True, slots=True)
class _Command:
    """What `rcjax collect` was told to do."""

    plan: Plan
    questions: list[Question]
    out: Path | None
    concurrency: int
    dry_run: bool
    as_json: bool


def _require_signal(name: str | None) -> None:
    from rcjax.signals.records import NAMES

    if name is not None and name not in NAMES:
        raise typer.BadParameter(f"{name!r} is no signal: give {', '.join(NAMES)}", param_hint="--signal")


def _probe(plan: Plan, as_json: bool) -> None:
    from dataclasses import asdict

    from rcjax.cli.collect_tables import show_probe
    from rcjax.cli.console import busy
    from rcjax.collecting.plan import Crew, probe_all
    from rcjax.collecting.purse import Purse

    async def ask() -> Any:
        crew = Crew(plan, Purse(plan.budget))
        try:
            return await probe_all(crew)
        finally:
            await crew.close()

    with busy("asking"):
        abilities = asyncio.run(ask())
    document = {"models": [asdict(one) | {"signals": list(one.signals)} for one in abilities]}
    conclude(document, partial(show_probe, document["models"]), as_json=as_json)
    if any(one.error for one in abilities):
        raise typer.Exit(1)


def _run(command: _Command) -> None:
    from rcjax.cli.collect_tables import show_collected, show_estimate
    from rcjax.collecting.answer_file import AnswerFile, Answers, read_answer_file
    from rcjax.collecting.estimate import as_document, estimate, reach
    from rcjax.collecting.plan import Crew, assume_signals
    from rcjax.collecting.purse import Purse
    from rcjax.collecting.summary import collected

    async def work() -> dict[str, Any]:
        answers = read_answer_file(command.out) if command.out else Answers()
        purse = Purse(command.plan.budget, answers.spent)
        crew = Crew(command.plan, purse)
        file = None
        try:
            crew.graders.require(command.questions)
            assumed = assume_signals(crew, command.questions, answers)
            estimates = [estimate(asked, command.questions, answers) for asked in assumed]
            left = None if purse.left is None else float(purse.left)
            document = {
                "questions": len(command.questions),
                "spent": float(answers.spent),
                "estimate": as_document(estimates),
                "reach": reach(estimates, left),
            }
            if not command.as_json:
                show_estimate(document)
            if command.dry_run or command.out is None:
                return document
            file = AnswerFile(command.out)
            purse.spent = file.answers.spent
            return document | await _ask(command, crew, file)
        finally:
            if file is not None:
                file.close()
            await crew.close()

    try:
        document = asyncio.run(work())
    except asyncio.CancelledError:
        warn("ended: the calls that were under way count as spent, and are asked again")
        raise typer.Exit(_INTERRUPTED) from None
    if command.dry_run or command.out is None:
        conclude(document, lambda: None, as_json=command.as_json)
        return
    outcome = document.pop("outcome")
    document |= collected(command.out, command.questions, outcome)
    conclude(document, partial(show_collected, document), as_json=command.as_json)
    if outcome.interrupted:
        raise typer.Exit(_INTERRUPTED)
    if document["stopped"] or not document["answers"]:
        raise typer.Exit(1)


async def _ask(command: _Command, crew: Any, file: Any) -> dict[str, Any]:
    """Ask until the end, with the progress shown, and an interrupt that lets calls under way finish."""
    from rcjax.cli.collect_progress import progress
    from rcjax.collecting.plan import choose_signals
    from rcjax.collecting.run import Run

    if file.lost:
        warn(f"{file.lost} calls were under way when an earlier run ended: they count as spent, and are asked again")
    models, remarks = await choose_signals(crew, command.questions, file)
    run = Run(command.questions, models, file, crew.purse, crew.graders, command.concurrency)
    with progress(run), _interruptible(run):
        outcome = await run.go()
    signals_used = {asked.name: asked.signal for asked in models}
    return {"outcome": outcome, "notes": remarks, "signals": signals_used, "spent": float(crew.purse.spent)}


class _interruptible:  # noqa: N801 - a context, used as a function
    """A block in which the first Ctrl-C stops a run, which finishes the calls under way, and the second one ends it."""

    def __init__(self, run: Run) -> None:
        self.run, self.times = run, 0
        self.loop = asyncio.get_running_loop()
        self.task = asyncio.current_task()

    def __enter__(self) -> None:
        with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; not the main thread
            self.loop.add_signal_handler(signals.SIGINT, self._stop)

    def _stop(self) -> None:
        self.times += 1
        if self.times == 1:
            sys.stderr.write("finishing the calls under way; Ctrl-C again ends at once\n")
            self.run.stop()
        elif self.task is not None:
            self.task.cancel()

    def __exit__(self, *_: object) -> None:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            self.loop.remove_signal_handler(signals.SIGINT)
