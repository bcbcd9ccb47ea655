"""`rcjax grade`: verdicts for the answers of a log, without asking the models again, and an audit of them by hand."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax.cli.audits import audited, table_beside
from rcjax.cli.common import require_distinct, require_libraries, require_writable
from rcjax.cli.failures import conclude, reported
from rcjax.cli.interrupts import terminable
from rcjax.cli.options import AsJson, AuditSize, GraderNames, Rubric
from rcjax.cli.parsers import positive
from rcjax.cli.plausible import Really, require_plausible_models
from rcjax.cli.rubrics import read_rubric
from rcjax.policy.reference import JUDGED_SAME

if TYPE_CHECKING:
    from rcjax.collecting.answer_file import AnswerFile
    from rcjax.collecting.plan import Plan
    from rcjax.collecting.questions import Question
    from rcjax.collecting.regrade import Regrading

__all__ = ["grade"]

_AUDITED = 50  # answers, where only the file of an audit is named


def grade(
    answers: Annotated[
        Path, typer.Argument(show_default=False, metavar="ANSWERS", help="The log that `rcjax collect` has written.")
    ],
    graders: GraderNames = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            "--questions",
            show_default=False,
            metavar="FILE",
            help="The questions: a judge, and a person, must see them.",
        ),
    ] = None,
    models: Annotated[
        Path | None, typer.Option("--models", show_default=False, metavar="FILE", help="models.toml, for a judge.")
    ] = None,
    rubric: Rubric = None,
    budget: Annotated[Any, typer.Option(parser=positive, metavar="MONEY", help="Never spend more on judges.")] = None,
    into: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="Where verdicts go: **judged**, or **judged_NAME** for one of several judges, leaves the labels in "
            "correct as they are, which then correct the judge (`rcjax tune`).",
        ),
    ] = "correct",
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            show_default=False,
            metavar="MODEL",
            help="The answers of this model take the place of right ones: whether others are the same goes to "
            "**judged_same**, for `rcjax tune --reference MODEL --same GRADER`.",
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what the same grader has graded.")] = False,
    audit: AuditSize = None,
    audit_file: Annotated[
        Path | None,
        typer.Option("--audit-file", show_default=False, metavar="FILE", help="That table. [default: beside ANSWERS]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the answers in the table.")] = 0,
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Grade the answers of a log again: the models are not asked, and the verdicts take the place of the old ones.

    Without `--grade`, `--audit` leaves the verdicts as they are.
    """
    if into != "correct" and not re.fullmatch(r"judged(_\w+)?", into):
        raise typer.BadParameter(f"{into!r} is neither correct nor judged, nor judged_NAME", param_hint="--into")
    if reference is not None:
        if into not in ("correct", JUDGED_SAME):
            raise typer.BadParameter(
                f"goes without --reference, whose verdicts go to {JUDGED_SAME}", param_hint="--into"
            )
        if audit or audit_file:
            raise typer.BadParameter(
                "goes without --reference: it is of verdicts on right and wrong", param_hint="--audit"
            )
        into = JUDGED_SAME
    with reported(as_json=json_):
        require_libraries("rcjax grade", "run", "openai")
        inputs = [("ANSWERS", answers), ("--questions", questions), ("--models", models), ("--rubric", rubric)]
        table = audit_file or table_beside(answers) if audit or audit_file else None
        require_distinct([("--audit-file", table)], inputs)
        require_writable(table)
        require_writable(answers)
        from rcjax.collecting.answer_file import AnswerFile
        from rcjax.collecting.plan import Plan
        from rcjax.collecting.questions import read_questions
        from rcjax.collecting.regrade import questions_against
        from rcjax.logs.errors import LogError
        from rcjax.serving.models_file import read_models

        if not answers.is_file():
            raise LogError(f"{answers} is missing: give the log that rcjax collect has written")
        require_plausible_models(models, really)
        settings = {} if models is None else read_models(models)
        asked = {} if questions is None else {question.query: question for question in read_questions(questions)}
        money = None if budget is None else Decimal(str(budget))
        plan = Plan({}, settings, None, tuple(graders or ()), read_rubric(rubric), money)
        file = AnswerFile(answers)
        try:
            if not file.answers.answered:
                raise LogError(f"{answers.name}: no answers in it: was it written completely?")
            if reference is not None:
                asked = questions_against(file.answers, asked, reference)
            _run(_Command(plan, file, asked, into, reference, again, table, audit or 0, seed, bool(graders), json_))
        finally:
            file.close()


@dataclass(frozen=True, slots=True)
class _Command:
    """What `rcjax grade` was told to do."""

    plan: Plan
    file: AnswerFile
    questions: dict[str, Question]
    into: str
    against: str | None
    again: bool
    table: Path | None
    size: int
    seed: int
    named: bool
    as_json: bool


def _run(command: _Command) -> None:
    from rcjax.cli.collect_tables import show_grading

    document: dict[str, Any] = {}
    problem: Exception | None = None
    if command.named or command.table is None:
        with terminable():
            told, notes = asyncio.run(_grade(command))
        problem = told.problem
        document |= {
            "graded": told.graded,
            "changed": told.changed,
            "without_verdict": told.without,
            "labelled": told.labelled,
            "agree": told.agree,
            "spent": float(told.spent),
            "notes": notes,
        }
    if command.table is not None and problem is None:
        size = command.size or _AUDITED
        document["audit"] = audited(command.table, command.file.answers, command.questions, size, command.seed)
    conclude(document, partial(show_grading, document, command.file.path), as_json=command.as_json, problem=problem)


async def _grade(command: _Command) -> tuple[Regrading, list[str]]:
    """(what has changed, what is to be said of judges)."""
    from rcjax.cli.console import HowFar, busy
    from rcjax.collecting.plan import Crew
    from rcjax.collecting.purse import Purse
    from rcjax.collecting.regrade import Manner, regrade

    purse = Purse(command.plan.budget)
    crew = Crew(command.plan, purse)
    try:
        crew.graders.require(command.questions.values())
        far = HowFar()
        with busy("grading", how_far=far):
            manner = Manner(command.into, command.again, command.against, watch=far.note)
            told = await regrade(command.file, command.questions, crew.graders, purse, manner)
        return told, crew.graders.remarks()
    finally:
        await crew.close()
