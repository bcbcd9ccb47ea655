"""`rcjax grade`: verdicts for the answers of a log, without asking the models again."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax._base.wording import count
from rcjax.cli.common import require_distinct, require_libraries, require_writable
from rcjax.cli.failures import conclude, reported, terminable
from rcjax.cli.inputs import GradeScale, read_rubric
from rcjax.cli.options import AsJson, GraderNames, Rubric
from rcjax.cli.parsers import positive
from rcjax.cli.plausible import Really, require_plausible_models
from rcjax.policy.counted import JUDGED_SAME

if TYPE_CHECKING:
    from rcjax.collecting.answer_file import AnswerFile
    from rcjax.collecting.grading import Manner, Regrading
    from rcjax.collecting.plan import Plan
    from rcjax.collecting.questions import Question
    from rcjax.collecting.service_log import ShadowCalls


def grade(
    answers: Annotated[
        Path,
        typer.Argument(metavar="ANSWERS", help="The log that `rcjax collect`, or a service, has written."),
    ],
    graders: GraderNames = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            "--questions",
            metavar="FILE",
            help="The questions: a judge must see them. [default: those in the log of a service]",
        ),
    ] = None,
    models: Annotated[Path | None, typer.Option("--models", metavar="FILE", help="models.toml, for a judge.")] = None,
    rubric: Rubric = None,
    score_max: GradeScale = None,
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
            metavar="MODEL",
            help="The answers of this model take the place of right ones: whether others are the same goes to "
            "**judged_same**, for `rcjax tune --reference MODEL --same GRADER`.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Of the log of a service, which stays as it is: where its shadow calls go with their verdicts, a log "
            "to read in its place. [default: beside ANSWERS]",
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what the same grader has graded.")] = False,
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Grade the answers of a log again: the models are not asked, and the verdicts take the place of the old ones.

    Of the log of a service the answers to shadow queries are graded.
    """
    if into != "correct" and not re.fullmatch(r"judged(_\w+)?", into):
        raise typer.BadParameter(f"{into!r} is neither correct nor judged, nor judged_NAME", param_hint="--into")
    if reference is not None:
        if into not in ("correct", JUDGED_SAME):
            raise typer.BadParameter(
                f"goes without --reference, whose verdicts go to {JUDGED_SAME}", param_hint="--into"
            )
        if score_max is not None:
            raise typer.BadParameter("goes without --reference: answers are the same, or not", param_hint="--score-max")
        into = JUDGED_SAME
    with reported(as_json=json_):
        require_libraries("rcjax grade", "run", "openai")
        shadow = _shadow_calls(answers, out)
        target = answers if shadow is None else out or answers.with_name(f"{answers.stem}.judged.jsonl")
        inputs = [("ANSWERS", answers), ("--questions", questions), ("--models", models), ("--rubric", rubric)]
        require_distinct([("--out", None if shadow is None else target)], inputs)
        require_writable(target)
        import asyncio  # which takes long to import

        from rcjax.cli.collect_tables import show_grading
        from rcjax.cli.console import HowFar, busy
        from rcjax.collecting.grading import Manner
        from rcjax.collecting.plan import Plan
        from rcjax.serving.models_file import read_models

        require_plausible_models(models, really)
        settings = {} if models is None else read_models(models)
        money = None if budget is None else Decimal(str(budget))
        scale = {"score_max": score_max, "whole": reference is not None}
        plan = Plan({}, settings, None, tuple(graders or ()), read_rubric(rubric), money, **scale)
        with _opened(target, shadow) as file:
            asked = _asked(questions, shadow, file, reference)
            calls, without = _gradable(answers.name, shadow, asked, reference, graders)
            counts = {} if shadow is None else {"left_out": shadow.left_out, "not_graded": without}
            far = HowFar()
            manner = Manner(into, again, reference, calls, watch=far.note)
            with busy("grading", how_far=far), terminable():
                regraded, spent, notes = asyncio.run(_grade(plan, file, asked, manner))
            document = {name: getattr(regraded, name) for name in ("graded", "changed", "labelled", "agree")}
            document |= {"without_verdict": regraded.without, "spent": spent, "notes": notes} | counts
            document |= {} if regraded.apart is None else {"apart": regraded.apart}
            conclude(document, partial(show_grading, document, file.path), as_json=json_, problem=regraded.problem)


def _shadow_calls(answers: Path, out: Path | None) -> ShadowCalls | None:
    """What can be learnt from in the log of a service; None if it is that of a run."""
    from rcjax.collecting.service_log import is_service_log, read_shadow_calls
    from rcjax.logs.errors import LogError

    if is_service_log(answers):
        return read_shadow_calls(answers)
    if not answers.is_file():
        raise LogError(f"{answers} is missing: give the log that rcjax collect, or rcjax serve --log, has written")
    if out is not None:
        what = "goes with the log of a service: verdicts on that of rcjax collect go into it"
        raise typer.BadParameter(what, param_hint="--out")
    return None


@contextmanager
def _opened(path: Path, shadow: ShadowCalls | None) -> Iterator[AnswerFile]:
    """The file of answers, with the shadow calls of a service that it does not hold yet."""
    from rcjax.collecting.answer_file import AnswerFile
    from rcjax.logs.errors import LogError

    file = AnswerFile(path)
    try:
        if shadow is not None:
            shadow.write(file)
        if not file.answers.answered:
            raise LogError(f"{path.name}: no answers in it: was it written completely?")
        yield file
    finally:
        file.close()


def _asked(
    questions: Path | None, shadow: ShadowCalls | None, file: AnswerFile, reference: str | None
) -> dict[str, Question]:
    """The questions by id, as far as they are at hand; with a reference those that it has answered."""
    from rcjax.collecting.grading import questions_against
    from rcjax.collecting.questions import read_questions

    asked = {} if shadow is None else {**shadow.questions}
    asked |= {} if questions is None else {question.query: question for question in read_questions(questions)}
    return asked if reference is None else questions_against(file.answers, asked, reference)


def _gradable(
    name: str,
    shadow: ShadowCalls | None,
    asked: Mapping[str, Question],
    reference: str | None,
    graders: list[str] | None,
) -> tuple[Collection[str] | None, dict[str, int]]:
    """(the calls whose answers can be graded, None for all; how many cannot be, by why)."""
    from rcjax.logs.errors import LogError

    if shadow is None:
        return None, {}
    by_judge = any(re.match(r"([\w-]+=)?judge:", grader) for grader in graders or ())
    calls, without = shadow.gradable(asked, reference, by_judge)
    if without and not calls:
        reasons = "; ".join(f"{count(number, 'answer')} {why}" for why, number in without.items())
        raise LogError(f"{name}: nothing can be graded: {reasons}")
    return calls, without


async def _grade(
    plan: Plan, file: AnswerFile, questions: Mapping[str, Question], manner: Manner
) -> tuple[Regrading, float, list[str]]:
    """(what has changed, money for judges, what is to be said of them)."""
    from rcjax.collecting.grading import regrade
    from rcjax.collecting.plan import Setup

    setup = Setup(plan)
    try:
        setup.graders.require(questions.values())
        regraded = await regrade(file, questions, setup.graders, setup.budget, manner)
        return regraded, float(setup.budget.spent), [*setup.graders.remarks(), *regraded.remarks]
    finally:
        await setup.close()
