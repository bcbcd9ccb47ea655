"""A run of `rcjax collect`: the estimate, the calls with their progress, an interrupt, and what came of it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rcjax._base.wording import count
from rcjax.cli.failures import INTERRUPTED, conclude, interruptible, terminable
from rcjax.cli.printing import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rcjax.collecting.answer_file import AnswerFile, AnswerRows
    from rcjax.collecting.calls import Estimate
    from rcjax.collecting.plan import Plan, Setup
    from rcjax.collecting.questions import Question
    from rcjax.collecting.run import Run


@dataclass(frozen=True, slots=True)
class Collection:
    """What `rcjax collect` was told to do."""

    plan: Plan
    questions: list[Question]
    out: Path | None
    """The log that is written, or gone on with."""
    again: bool
    """Answers in it that are to something else than is asked now are asked for anew."""
    concurrency: int
    dry_run: bool
    as_json: bool


def run_collection(collection: Collection) -> None:
    """Ask, or say what that costs, and print what came of it; the exit status tells whether all went well."""
    import asyncio  # which takes long to import

    from rcjax.cli.collect_tables import show_collected, show_estimate
    from rcjax.collecting.run import collected

    try:
        with terminable():
            document = asyncio.run(_work(collection))
    except (asyncio.CancelledError, KeyboardInterrupt):
        warn("ended: the calls that were under way count as spent, and are asked again")
        raise typer.Exit(INTERRUPTED) from None
    if collection.dry_run or collection.out is None:
        conclude(document, partial(show_estimate, document), as_json=collection.as_json)
        return
    run = document.pop("run")
    came = collected(run)
    document |= came | {"notes": document["notes"] + came["notes"]}
    conclude(document, partial(show_collected, document), as_json=collection.as_json)
    if run.interrupted:
        raise typer.Exit(INTERRUPTED)
    if document["stopped"] or document["grading"] or document["silent"]:
        raise typer.Exit(1)


async def _work(collection: Collection) -> dict[str, Any]:
    """The estimate, and unless that is all, the run, which begins with the answers that are there.

    Raises LogError where some of them are to something else than is asked now.
    """
    from rcjax.cli.collect_tables import show_estimate
    from rcjax.collecting.answer_file import AnswerFile, AnswerRows, read_answer_file
    from rcjax.collecting.plan import Setup, assume_signals
    from rcjax.collecting.run import changes, refuse, set_aside

    out, questions = collection.out, collection.questions
    setup = Setup(collection.plan)
    try:
        setup.graders.require(questions)
        # Before anything is read in it: nobody else writes to it from here on.
        file = None if collection.dry_run or out is None else AnswerFile(out)
        try:
            there = file.answers if file else AnswerRows() if out is None else read_answer_file(out)
            differing = [] if out is None else changes(assume_signals(setup, questions, there), questions, there)
            if out is not None and not collection.again:
                refuse(differing, out)
            answers = set_aside(there, differing)
            setup.budget.spent = answers.spent
            document = _estimated(collection, setup, answers)
            if file is None:
                return document
            if not collection.as_json:
                show_estimate(document, before=True)
            for change in differing:
                file.write(change.set_aside)
            came = await _ask(collection, setup, file)
            return document | came | {"notes": document["notes"] + came["notes"]}
        finally:
            if file is not None:
                file.close()
    finally:
        await setup.close()


def _estimated(collection: Collection, setup: Setup, answers: AnswerRows) -> dict[str, Any]:
    """What is left to ask, and what that will cost."""
    from rcjax.collecting.calls import estimate
    from rcjax.collecting.plan import assume_signals

    assumed = assume_signals(setup, collection.questions, answers)
    estimates = [estimate(asked, collection.questions, answers, setup.judge_of) for asked in assumed]
    notes = [f"{asked.name}: {asked.why_alike}: its samples will be alike" for asked in assumed if asked.why_alike]
    notes += _of_two_kinds(collection.questions, estimates)
    asked = {question.query for question in collection.questions}
    others = sum(query not in asked for query, *_ in answers.answered)
    if others:
        what = "of the log are to other questions than these (ids made of the content change with it and the template)"
        notes.append(f"{count(others, 'answer')} {what}")
    return {
        "notes": notes,
        "questions": len(collection.questions),
        "spent": float(answers.spent),
        "estimate": [asdict(one) for one in estimates],
    }


def _of_two_kinds(questions: Sequence[Question], estimates: Sequence[Estimate]) -> list[str]:
    """What it costs, in words, that some questions have choices and others do not; nothing where it costs nothing."""
    choices = sum(bool(question.choices) for question in questions)
    twice = [one.model for one in estimates if one.requests > one.calls]
    if not twice or not 0 < choices < len(questions):
        return []
    what = f"{choices:,} of the {count(len(questions), 'question')} have choices, and a model has one signal for all"
    return [f"{what}: it is asked each of them twice; in a file of their own they would be asked once, by choice"]


def how_far(run: Run, started: float) -> str:
    """Of all answers of a run, how many there are, how long the slowest model takes, and what fails."""
    from rcjax.cli.console import duration, share_done

    tallies, seconds = run.tallies.values(), time.monotonic() - started
    done, whole, failed = (sum(getattr(tally, name) for tally in tallies) for name in ("done", "to_do", "failed"))
    asked = [(tally.done + tally.failed, tally.to_do) for tally in tallies if tally.stopped is None]
    left = [seconds * (to_do - ended) / ended if ended else None for ended, to_do in asked if ended < to_do]
    time_left = "" if None in left or not done else f", about {duration(max(filter(None, left), default=0.0))} left"
    return f"{share_done(done, whole)}{time_left}{f', {failed:,} failed' if failed else ''}"


async def _ask(collection: Collection, setup: Setup, file: AnswerFile) -> dict[str, Any]:
    """Ask until the end, with the progress shown, and an interrupt that lets calls under way finish."""
    from rcjax.cli.console import busy
    from rcjax.collecting.plan import choose_signals
    from rcjax.collecting.run import Run, grade_anew

    if file.lost:
        warn(f"{file.lost} calls were under way when an earlier run ended: they count as spent, and are asked again")
    models, remarks = await choose_signals(setup, collection.questions, file)
    regraded = grade_anew(file, collection.questions)
    run = Run(collection.questions, models, file, setup.budget, setup.graders, collection.concurrency)
    with busy("asking", how_far=partial(how_far, run, time.monotonic())), interruptible(run.stop):
        await run.go()
    signals_used = {asked.name: asked.signal for asked in models}
    notes = [*remarks, *([] if regraded is None else [regraded]), *setup.remarks()]
    return {"run": run, "notes": notes, "signals": signals_used, "spent": float(setup.budget.spent)}
