"""`rcjax label` and `rcjax grade`: labels by hand, by graders, by judges."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.rule import Rule

from rcjax._base.codec import visible
from rcjax._base.figures import count, format_number, percent
from rcjax.cli.app import start_jax
from rcjax.cli.collect import show_graded, show_ungraded
from rcjax.cli.console import (
    INTERRUPTED,
    Progress,
    Screen,
    busy,
    command,
    conclude,
    escape_arguments,
    escaped,
    terminable,
)
from rcjax.cli.inputs import (
    read_log,
    require_distinct,
    require_libraries,
    require_outputs,
    require_plausible_models,
    today,
)
from rcjax.cli.options import AsJson, File, Grading, LogFile, LogOptions, Model, Money, Output, Really, Seed
from rcjax.policy.error_kind import JUDGED_SAME

if TYPE_CHECKING:
    import polars as pl

    from rcjax.collecting.answer_file import AnswerFile, ShadowCalls
    from rcjax.collecting.grading import GradingOptions, Regrading
    from rcjax.collecting.plan import Plan
    from rcjax.collecting.questions import Question
    from rcjax.logs.log import Log
    from rcjax.tuning.replaying.comparing import ModelOrPolicy

_KEYS = {"y": "1", "n": "0", "s": None, "q": None}
_WIDEST = 100  # most columns of a text: longer lines are hard to read


@dataclass(frozen=True)
class BetweenOptions:
    """The options of two policies to draw answers between.

    Args:
        between: Draw from the queries that this policy, or model, and that of `--and` answer differently: both answers
            to each of N. Such labels only tell which of the two is better (`rcjax check --against`).
        and_: The other policy or model.
    """

    between: Annotated[str | None, typer.Option(metavar="MODEL|FILE")] = None
    and_: Annotated[str | None, typer.Option("--and", metavar="MODEL|FILE")] = None

    def sides(self) -> list[tuple[str, ModelOrPolicy]]:
        """Return (text, policy or model) of both options, a policy first; empty if neither is given."""
        if (self.between is None) != (self.and_ is None):
            option, partner = ("--between", "--and") if self.and_ is None else ("--and", "--between")
            problem = f"goes with {partner}: give two policies, or a model and a policy"
            raise typer.BadParameter(problem, param_hint=option)
        if self.between is None or self.and_ is None:
            return []
        sides = [(text, today(text)) for text in (self.between, self.and_)]
        sides.sort(key=lambda side: side[0] == side[1])  # the text of a model is its name
        if sides[0][0] == sides[0][1]:
            raise typer.BadParameter("is a model, as that of --and is: one must be a policy", param_hint="--between")
        return sides


def label(
    reading: Annotated[LogOptions, "labels", "prices", "task", "models", "really"],
    log: LogFile,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE")],
    n: Annotated[int, typer.Option(min=1, metavar="N")] = 100,
    ask: bool = False,
    questions: File = None,
    seed: Seed = 0,
    *,
    compared: BetweenOptions,
    json_: AsJson = False,
) -> None:
    """Draw answers from a log at random, equally many of each model, and write a table in which to label them.

    The table has the questions and the answers, if LOG or `--questions` has them, and an empty column correct: write 1
    for right, 0 for wrong. `rcjax tune LOG --labels FILE` reads it. Labels of LOG or `--labels` are in the table, too.

    Example: `rcjax label log.csv --n 100 --out to_label.csv --ask`

    Args:
        out: The table to label, a new CSV file.
        n: Number of answers to label.
        ask: Show the answers here one by one, and ask for labels; each is saved at once. The same command resumes.
        questions: File of the questions, as for rcjax collect, if LOG has no column question or prompt.
        seed: Seed of the draw.
    """
    sides = compared.sides()
    _require_table(out, reading.inputs(log) | {"--questions": questions}, ask=ask, as_json=json_)
    from rcjax.logs.labels import label_sheet, read_sheet, refuse_scores, write_sheet

    use = _use_of_labels(log, out, reading, sides)
    if out.exists() and ask:
        _ask_for_labels(out, read_sheet(out), use)
        return
    if out.exists():
        raise ValueError(f"{out}: it is there already, and stays: give another file, or go on in it with --ask")
    require_outputs({"--out": out}, {})
    start_jax()
    options = reading.options() | {"models": reading.models, "unlabelled": True}
    data = read_log(log, "their answers are drawn too", **options)
    refuse_scores(data)
    drawn, how_drawn = _draw(data, n, seed) if not sides else _draw_between(data, sides, n, seed)
    sheet = label_sheet(data, drawn, _texts(log, questions))
    write_sheet(out, sheet)
    document = {
        "drawn": len(drawn),
        "how": how_drawn,
        "models": [{"model": name, "drawn": [m for _, m in drawn].count(j)} for j, name in enumerate(data.models)],
        "written": str(out),
    }
    show = partial(_show_draw, data.describe(confidences=False), document, sheet.columns, None if ask else use)
    conclude(document, show, as_json=json_)
    if ask:
        _ask_for_labels(out, sheet, use)


def _require_table(out: Path, inputs: Mapping[str, Path | None], *, ask: bool, as_json: bool) -> None:
    """Refuse a table that is an input, or no CSV file, and `--ask` without a terminal."""
    require_distinct([("--out", out)], [*inputs.items()])
    if ask and as_json:
        raise typer.BadParameter("does not go with --json", param_hint="--ask")
    if ask and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("needs a terminal: without it, fill in the table that --out names", param_hint="--ask")
    if out.suffix.lower() != ".csv":
        raise typer.BadParameter(f"{out.name} must end in .csv", param_hint="--out")


def _use_of_labels(
    log: Path, labels: Path, reading: LogOptions, sides: Sequence[tuple[str, ModelOrPolicy]]
) -> tuple[str, str]:
    """Return (purpose, command) of the labels: to tune or, between two policies, to compare them."""
    options = reading.as_options() | {"labels": labels}
    if not sides:
        return "tune", command("tune", log, **options)
    options |= {"task": None, "models": None}  # the policy records these
    return "compare the two", command("check", sides[0][0], log, **options, against=sides[1][0])


def _draw(data: Log, n: int, seed: int) -> tuple[list[tuple[int, int]], str]:
    """Draw answers without a label; return ((query, model) of each answer by position, a description)."""
    from rcjax.logs.labels import draw_answers

    drawn = draw_answers(data, n, seed)
    return drawn, "all that lack a label" if len(drawn) < n else "drawn at random, equally many of each model"


def _draw_between(
    data: Log, sides: Sequence[tuple[str, ModelOrPolicy]], n: int, seed: int
) -> tuple[list[tuple[int, int]], str]:
    """Draw answers where two policies differ; return ((query, model) of each answer by position, a description)."""
    from rcjax.tuning.replaying.comparing import Disagreements

    (_, first), (_, second) = sides
    disagreements = Disagreements.of(first, second, data)
    cells = disagreements.draw(n, seed)
    rows = {name: row for row, name in enumerate(data.queries)}
    part = disagreements.log
    drawn = [(rows[part.queries[query]], data.models.index(part.models[model])) for query, model in cells]
    differ, queries = count(int(disagreements.differ.sum()), "query"), len({query for query, _ in cells})
    return drawn, f"those to {queries:,} of the {differ} of {data.n_queries:,} that the two answer differently"


def _texts(log: Path, questions: Path | None) -> pl.DataFrame:
    """Join the texts of the answers in a log with their questions, from the log or from a second file."""
    import polars as pl

    from rcjax.collecting.questions import conversation, read_questions, readable_prompt
    from rcjax.logs.labels import answer_texts

    texts = answer_texts(log)
    if questions is not None:
        by_id = {
            question.query: (conversation(question.messages), " or ".join(question.reference))
            for question in read_questions(questions)
        }
        columns = dict(zip(("question", "right_answer"), zip(*by_id.values(), strict=True), strict=True))
        question_texts = pl.DataFrame({"query": [*by_id], **columns})
        return texts.drop(*columns, strict=False).join(question_texts, on="query", how="left")
    if "question" in texts.columns:
        spoken_texts = [text and readable_prompt(text).encode(errors="replace").decode() for text in texts["question"]]
        return texts.with_columns(question=pl.Series(spoken_texts, dtype=pl.String))
    return texts


@escape_arguments
def _show_draw(log: str, document: Mapping[str, Any], columns: list[str], use: tuple[str, str] | None) -> None:
    screen = Screen()
    screen.print(log)
    screen.print(f"\n{count(document['drawn'], 'answer')} to label, {document['how']}")
    if "question" not in columns:
        screen.hang("note", "the table shows no questions: give --questions FILE, and another --out")
    if "answer" not in columns:
        screen.hang("note", "the table shows no answers: the log has no column text or answer")
    screen.print_path(f"written to {document['written']}")
    if use:
        screen.next_step(f"fill in its column correct, 1 or 0, then {use[0]} with it", use[1])


def _ask_for_labels(out: Path, sheet: pl.DataFrame, use: tuple[str, str]) -> None:
    import polars as pl

    from rcjax.logs.labels import write_sheet

    if "answer" not in sheet.columns:
        raise ValueError(f"{out}: it shows no answers, which nobody can judge: the log has no column text or answer")
    screen, labels, key = Screen(), sheet["correct"].to_list(), ""
    try:
        for row in [row for row, label in enumerate(labels) if label is None]:
            screen.print(Rule(f"{len(labels) - labels.count(None):,} of {len(labels):,} labelled", align="left"))
            _show_answer(screen, sheet.row(row, named=True))
            key = _read_key(screen)
            if key == "q":
                break
            labels[row] = _KEYS[key]
            write_sheet(out, sheet.with_columns(correct=pl.Series(labels, dtype=pl.String)))
    except (KeyboardInterrupt, EOFError):
        key = "\x03"
        screen.print()
    left = labels.count(None)
    progress = f"{left:,} of {len(labels):,} are left; the same command goes on" if left else "all are labelled"
    screen.print_path(escaped(f"saved in {out}: {progress}"))
    if not left:
        screen.next_step(f"{use[0]} with these labels", escaped(use[1]))
    if key == "\x03":
        raise typer.Exit(INTERRUPTED)


def _show_answer(screen: Screen, row: Mapping[str, Any]) -> None:
    """Print a question with its answer, without the name of the model, which might bias the label."""
    for name in ("question", "right_answer", "answer"):
        if row.get(name) or name == "answer":
            lines = [visible(line) for line in (row[name] or "(empty)").expandtabs(4).splitlines()]
            width = min(screen.width, _WIDEST) - 2
            wrapped = [piece for line in lines for piece in textwrap.wrap(line, width, drop_whitespace=False) or [""]]
            screen.print(f"\n{name.replace('_', ' ')}", style="bold")
            screen.print(textwrap.indent("\n".join(wrapped), "  "), soft_wrap=True)


def _read_key(screen: Screen) -> str:
    """Wait for a key that has a meaning; of several keys at once, as a letter with Enter, the first counts."""
    screen.print("\nright? y yes · n no · s skip · q quit: ", end="", style="dim")
    key = None
    while key is None:
        pressed = typer.getchar().lower()
        key = None if pressed.startswith("\x1b") else next((letter for letter in pressed if letter in _KEYS), None)
    screen.print({"y": "right", "n": "wrong", "s": "skipped", "q": ""}[key], style="dim")
    return key


@dataclass(frozen=True)
class VerdictOptions:
    """The options of verdicts: their column, and the model that answers are compared with.

    Args:
        into: Column of the verdicts. With **judged**, or **judged_NAME** for one of several judges, the labels in
            correct stay, and `rcjax tune` corrects the judge by them.
        reference: Model whose answers count as right: the verdicts whether other answers are the same go to
            **judged_same**, for `rcjax tune --reference MODEL --same GRADER`.
    """

    into: Annotated[str, typer.Option(metavar="COLUMN")] = "correct"
    reference: Model = None

    def column(self, grading: Grading) -> str:
        """Return the column of the verdicts; a usage error for options that do not go together."""
        if self.into != "correct" and not re.fullmatch(r"judged(_\w+)?", self.into):
            problem = f"{self.into!r} is neither correct nor judged, nor judged_NAME"
            raise typer.BadParameter(problem, param_hint="--into")
        if self.reference is None:
            return self.into
        if self.into not in ("correct", JUDGED_SAME):
            problem = f"cannot be combined with --reference: its verdicts go to {JUDGED_SAME}"
            raise typer.BadParameter(problem, param_hint="--into")
        if grading.score_max is not None:
            raise typer.BadParameter(
                "cannot be combined with --reference: answers are the same, or not", param_hint="--score-max"
            )
        return JUDGED_SAME


def grade(
    answers: Annotated[Path, typer.Argument(metavar="ANSWERS")],
    grading: Grading,
    questions: File = None,
    models: File = None,
    budget: Money = None,
    *,
    verdicts: VerdictOptions,
    out: Output = None,
    again: bool = False,
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Grade the answers of a log again, without asking the models: new verdicts replace the old ones.

    Of the log of a service, only answers to shadow queries are graded.

    Example: `rcjax grade answers.jsonl --grade judge:large --models models.toml`

    Args:
        answers: The log of `rcjax collect`, or of a service.
        questions: File of the questions, which a judge must see. [default: the questions in the log of a service]
        models: File of the models, models.toml, for a judge.
        budget: Limit on the money for judges.
        out: For the log of a service: the new log, with its shadow queries and their verdicts; ANSWERS stays as it is.
            [default: beside ANSWERS]
        again: Also grade answers that this grader has graded before.
    """
    column = verdicts.column(grading)
    require_libraries("rcjax grade", "run", "openai")
    shadow = _shadow_calls(answers, out)
    target = answers if shadow is None else out or answers.with_name(f"{answers.stem}.judged.jsonl")
    inputs = {"ANSWERS": answers, "--questions": questions, "--models": models, "--rubric": grading.rubric}
    require_outputs({"--out": target}, inputs if shadow is not None else {})
    import asyncio  # slow to import

    from rcjax.collecting.answer_file import AnswerFile
    from rcjax.collecting.grading import GradingOptions

    require_plausible_models(models, really)
    plan = _make_plan(grading, models, budget, is_binary=verdicts.reference is not None)
    with closing(AnswerFile(target)) as file:
        if shadow is not None:
            shadow.write(file)  # adds the calls that the file does not hold yet
        by_id = _make_questions(file, shadow, questions, verdicts.reference)
        calls = None if shadow is None else _gradable(shadow, by_id, grading, verdicts.reference, answers.name)
        progress = Progress()
        options = GradingOptions(column, again, verdicts.reference, calls, report_progress=progress.note)
        with busy("grading", progress=progress), terminable():
            regraded, spent, notes = asyncio.run(_grade(plan, file, by_id, options))
        names = ("graded", "graded_by", "changed", "labelled", "agreement")
        document = {name: getattr(regraded, name) for name in names}
        document |= {"without_verdict": regraded.without, "spent": spent, "notes": notes}
        document |= {} if shadow is None else {"left_out": shadow.left_out}
        conclude(document, partial(_show_grading, document, file.path), as_json=json_, problem=regraded.problem)


def _make_plan(grading: Grading, models: Path | None, budget: float | None, *, is_binary: bool) -> Plan:
    """Return the plan of a run that asks no model; `is_binary` says that a verdict is right or wrong, and no score."""
    from rcjax.collecting.plan import Plan
    from rcjax.serving.models_file import read_models

    settings = {} if models is None else read_models(models)
    graders, scale = tuple(grading.graders or ()), {"score_max": grading.score_max, "is_binary": is_binary}
    return Plan(models={}, judges=settings, graders=graders, rubric=grading.read_rubric(), budget=budget, **scale)


def _make_questions(
    file: AnswerFile, shadow: ShadowCalls | None, questions: Path | None, reference: str | None
) -> dict[str, Question]:
    """Return the questions by id; with a reference model, its answers are the right answers.

    Raises LogError for a file without answers.
    """
    from rcjax.collecting.grading import questions_with_answers_of
    from rcjax.collecting.questions import read_questions
    from rcjax.logs.errors import LogError

    if not file.answers.answered:
        raise LogError(f"{file.path.name}: no answers in it: was it written completely?")
    by_id = {} if shadow is None else dict(shadow.questions)
    by_id |= {question.query: question for question in read_questions(questions)} if questions else {}
    return by_id if reference is None else questions_with_answers_of(file.answers, by_id, reference)


def _gradable(
    shadow: ShadowCalls, questions: Mapping[str, Question], grading: Grading, reference: str | None, name: str
) -> frozenset[str]:
    """Return the shadow calls that can be graded. Raises LogError, with the name of the log, if there are none."""
    from rcjax.logs.errors import LogError

    by_judge = any(re.match(r"([\w-]+=)?judge:", grader) for grader in grading.graders or ())
    calls = shadow.gradable(questions, reference, by_judge)
    if not calls:
        raise LogError(f"{name}: nothing can be graded: left out are {_reasons(shadow.left_out)}")
    return calls


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
        problem = "goes with the log of a service: verdicts on that of rcjax collect go into it"
        raise typer.BadParameter(problem, param_hint="--out")
    return None


async def _grade(
    plan: Plan, file: AnswerFile, questions: Mapping[str, Question], options: GradingOptions
) -> tuple[Regrading, float, list[str]]:
    """Return (the changes, money spent on judges, remarks on them)."""
    from rcjax.collecting.grading import regrade
    from rcjax.collecting.plan import RunResources

    async with aclosing(RunResources(plan)) as resources:
        regraded = await regrade(file, questions, resources.graders, resources.budget, options)
        return regraded, float(resources.budget.spent), [*resources.graders.remarks(), *regraded.remarks]


@escape_arguments
def _show_grading(document: Mapping[str, Any], path: Any) -> None:
    screen = Screen()
    new = f"{count(document['changed'], 'verdict')} new or changed"
    heading = f"{count(document['graded'], 'answer')} graded, {new}"
    screen.print(heading, style="bold")
    if document["graded"]:
        show_graded(screen, document["graded_by"])
    show_ungraded(screen, document["without_verdict"])
    if document["labelled"]:
        labels = f"{count(document['labelled'], 'label')} in correct"
        screen.hang("agreement", f"the grader agrees with {percent(document['agreement'])} of the {labels}")
    screen.hang("note", *document["notes"])
    if document["spent"]:
        screen.hang("spent", f"${format_number(document['spent'])} on judges")
    screen.hang("written", f"to {path}")
    if document.get("left_out"):
        screen.hang("left out", f"calls {_reasons(document['left_out'])}")


def _reasons(left_out: Mapping[str, int]) -> str:
    return "; ".join(f"{number:,} {reason}" for reason, number in left_out.items())
