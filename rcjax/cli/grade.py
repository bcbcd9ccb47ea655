"""`rcjax grade`: grade the answers of a log without asking the models again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing, closing
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax._base.wording import count, figure, percent
from rcjax.cli.collect import show_ungraded
from rcjax.cli.console import HowFar, Screen, busy
from rcjax.cli.inputs import require_libraries, require_outputs, require_plausible_models
from rcjax.cli.options import AsJson, File, Grading, Model, Money, Output, Really
from rcjax.cli.printing import conclude, shown, terminable
from rcjax.policy.counted import JUDGED_SAME

if TYPE_CHECKING:
    from rcjax.collecting.answer_file import AnswerFile, ShadowCalls
    from rcjax.collecting.grading import Manner, Regrading
    from rcjax.collecting.plan import Plan
    from rcjax.collecting.questions import Question


def grade(
    answers: Annotated[Path, typer.Argument(metavar="ANSWERS")],
    grading: Grading,
    questions: File = None,
    models: File = None,
    budget: Money = None,
    into: Annotated[str, typer.Option(metavar="COLUMN")] = "correct",
    reference: Model = None,
    out: Output = None,
    again: bool = False,
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Grade the answers of a log again, without asking the models; new verdicts replace the old ones.

    In the log of a service, the answers to shadow queries are graded.

    Example: `rcjax grade answers.jsonl --grade judge:large --models models.toml`

    Args:
        answers: The log of `rcjax collect`, or of a service.
        questions: File of the questions, which a judge must see. [default: the questions in the log of a service]
        models: File of the models, models.toml, for a judge.
        budget: Limit on the money for judges.
        into: Column of the verdicts. **judged**, or **judged_NAME** for one of several judges, keeps the labels in
            correct, which then correct the judge (`rcjax tune`).
        reference: Model whose answers take the place of right ones: the verdicts whether others are the same go to
            **judged_same**, for `rcjax tune --reference MODEL --same GRADER`.
        out: For the log of a service, a new log with its shadow calls and their verdicts; the log itself is kept as it
            is. [default: beside ANSWERS]
        again: Also grade answers that the same grader has graded.
    """
    if into != "correct" and not re.fullmatch(r"judged(_\w+)?", into):
        raise typer.BadParameter(f"{into!r} is neither correct nor judged, nor judged_NAME", param_hint="--into")
    if reference is not None:
        if into not in ("correct", JUDGED_SAME):
            what = f"goes without --reference, whose verdicts go to {JUDGED_SAME}"
            raise typer.BadParameter(what, param_hint="--into")
        if grading.score_max is not None:
            raise typer.BadParameter("goes without --reference: answers are the same, or not", param_hint="--score-max")
        into = JUDGED_SAME
    require_libraries("rcjax grade", "run", "openai")
    shadow = _shadow_calls(answers, out)
    target = answers if shadow is None else out or answers.with_name(f"{answers.stem}.judged.jsonl")
    inputs = {"ANSWERS": answers, "--questions": questions, "--models": models, "--rubric": grading.rubric}
    require_outputs({"--out": target}, inputs if shadow is not None else {})
    import asyncio  # slow to import

    from rcjax.collecting.answer_file import AnswerFile
    from rcjax.collecting.grading import Manner, questions_against
    from rcjax.collecting.plan import Plan
    from rcjax.collecting.questions import read_questions
    from rcjax.logs.errors import LogError
    from rcjax.serving.models_file import read_models

    require_plausible_models(models, really)
    settings = {} if models is None else read_models(models)
    money = None if budget is None else Decimal(str(budget))
    scale = {"score_max": grading.score_max, "whole": reference is not None}
    plan = Plan({}, settings, None, tuple(grading.graders or ()), grading.words(), money, **scale)
    with closing(AnswerFile(target)) as file:
        by_id, calls = {}, None
        if shadow is not None:
            shadow.write(file)  # adds the calls that the file does not hold yet
            by_id |= shadow.questions
        if not file.answers.answered:
            raise LogError(f"{target.name}: no answers in it: was it written completely?")
        by_id |= {question.query: question for question in read_questions(questions)} if questions else {}
        if reference is not None:
            by_id = questions_against(file.answers, by_id, reference)
        if shadow is not None:
            by_judge = any(re.match(r"([\w-]+=)?judge:", grader) for grader in grading.graders or ())
            calls = shadow.gradable(by_id, reference, by_judge)
            if not calls:
                raise LogError(f"{answers.name}: nothing can be graded: left out are {_reasons(shadow.left_out)}")
        far = HowFar()
        manner = Manner(into, again, reference, calls, watch=far.note)
        with busy("grading", how_far=far), terminable():
            regraded, spent, notes = asyncio.run(_grade(plan, file, by_id, manner))
        document = {name: getattr(regraded, name) for name in ("graded", "changed", "labelled", "agreement")}
        document |= {"without_verdict": regraded.without, "spent": spent, "notes": notes}
        document |= {} if shadow is None else {"left_out": shadow.left_out}
        conclude(document, partial(_show_grading, document, file.path), as_json=json_, problem=regraded.problem)


def _shadow_calls(answers: Path, out: Path | None) -> ShadowCalls | None:
    """Read the shadow calls from the log of a service; None for the log of a run."""
    from rcjax.collecting.answer_file import read_shadow_calls
    from rcjax.logs.errors import LogError

    shadow = read_shadow_calls(answers)
    if shadow is not None:
        return shadow
    if not answers.is_file():
        raise LogError(f"{answers} is missing: give the log that rcjax collect, or rcjax serve --log, has written")
    if out is not None:
        what = "goes with the log of a service: verdicts on that of rcjax collect go into it"
        raise typer.BadParameter(what, param_hint="--out")
    return None


async def _grade(
    plan: Plan, file: AnswerFile, questions: Mapping[str, Question], manner: Manner
) -> tuple[Regrading, float, list[str]]:
    """Return (the changes, money spent on judges, remarks on them)."""
    from rcjax.collecting.grading import regrade
    from rcjax.collecting.plan import Setup

    async with aclosing(Setup(plan)) as setup:
        setup.graders.require(questions.values())
        regraded = await regrade(file, questions, setup.graders, setup.budget, manner)
        return regraded, float(setup.budget.spent), [*setup.graders.remarks(), *regraded.remarks]


@shown
def _show_grading(document: Mapping[str, Any], path: Any) -> None:
    """Print the number of graded answers, and the agreement with existing labels."""
    screen = Screen()
    new = f"{document['changed']:,} with a verdict that they had not before"
    heading = f"{count(document['graded'], 'answer')} graded, {new}"
    screen.print(heading, style="bold")
    show_ungraded(screen, document["without_verdict"])
    if document["labelled"]:
        labels = f"{count(document['labelled'], 'label')} in correct"
        screen.hang("agreement", f"the grader agrees with {percent(document['agreement'])} of the {labels}")
    screen.hang("note", *document["notes"])
    if document["spent"]:
        screen.hang("spent", f"${figure(document['spent'])} on judges")
    screen.hang("written", f"to {path}")
    if document.get("left_out"):
        screen.hang("left out", f"calls {_reasons(document['left_out'])}")


def _reasons(left_out: Mapping[str, int]) -> str:
    return "; ".join(f"{number:,} {why}" for why, number in left_out.items())
