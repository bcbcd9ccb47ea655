"""`rcjax label`: answers drawn to be labelled by hand, as a table, and one by one in the terminal."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rcjax._base.wording import count
from rcjax.cli.common import require_distinct, require_writable, start_jax
from rcjax.cli.failures import conclude, reported
from rcjax.cli.inputs import read_file
from rcjax.cli.options import AsJson, Labels, LogFile, Models, Prices, Task, TaskOption
from rcjax.cli.plausible import Really, require_plausible_prices
from rcjax.cli.printing import warn

if TYPE_CHECKING:
    from rcjax.collecting.questions import Question
    from rcjax.logs.label_sheet import AnswerKey, LabelSheet, Texts
    from rcjax.logs.log import Log
    from rcjax.tuning.label_drawing import LabelDraw

_OTHERS = "their answers are drawn too"


SaidAnswers = Annotated[
    Path | None,
    typer.Option(
        "--answers",
        show_default=False,
        metavar="FILE",
        help="What the models answered, to show it, where LOG has no column text or answer: a table of query, model "
        "and answer.",
    ),
]


AskedQuestions = Annotated[
    Path | None,
    typer.Option(
        "--questions",
        show_default=False,
        metavar="FILE",
        help="What was asked, to show it, where LOG has no column question or prompt: the questions of rcjax collect.",
    ),
]


Targets = Annotated[
    list[str] | None,
    typer.Option("--budget", "--max-error", "--error-cost", "--lam", hidden=True),  # of former releases
]


class _Beside(NamedTuple):
    """What there is to show beside the log."""

    answers: Path | None
    questions: Sequence[Question]


def label(
    log: LogFile,
    out: Annotated[
        Path, typer.Option("--out", show_default=False, metavar="FILE", help="The table to label, a new CSV file.")
    ],
    n: Annotated[int, typer.Option("--n", min=1, metavar="N", help="How many answers to label.")] = 100,
    ask: Annotated[
        bool,
        typer.Option("--ask", help="Label them here, one by one; each is saved at once. The same command goes on."),
    ] = False,
    targets: Targets = None,
    labels: Labels = None,
    prices: Prices = None,
    task: TaskOption = Task.generation,
    models: Models = None,
    answers: SaidAnswers = None,
    questions: AskedQuestions = None,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Draw answers at random, as many of each model, and write them to a table in which to label them.

    The table shows question and answer, as far as LOG or the files beside it hold them, with an empty column correct: 1
    for right, 0 for wrong. It comes back by `rcjax tune LOG --labels FILE`; `label_probability` tells there how likely
    an answer was to be drawn. Labels that are there already, in LOG or `--labels`, go into the new table too.
    """
    if targets:
        warn("answers are drawn alike for every target: --budget, --max-error, --error-cost and --lam change nothing")
    inputs = [("LOG", log), ("--labels", labels), ("--prices", prices), ("--answers", answers)]
    require_distinct([("--out", out)], [*inputs, ("--questions", questions)])
    if ask and json_:
        raise typer.BadParameter("does not go with --json", param_hint="--ask")
    if ask and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("needs a terminal: without it, fill in the table that --out names", param_hint="--ask")
    if out.suffix.lower() != ".csv":
        raise typer.BadParameter(f"{out.name} must end in .csv", param_hint="--out")
    with reported(as_json=json_):
        from rcjax.cli.label_terminal import ask_labels, show_draw
        from rcjax.logs.label_sheet import read_sheet

        how = {"--task": task.value, "--prices": prices, "--models": models}
        if out.exists() and ask:
            _go_on(read_sheet(out), log, _way_back(log, out, how, really))
            return
        _require_new(out)
        require_writable(out)
        start_jax()
        from rcjax.collecting.questions import read_questions

        require_plausible_prices(prices, really)
        beside = _Beside(answers, () if questions is None else read_questions(questions))
        reading = {"prices": prices, "labels": labels, "answers": answers, "task": task.value, "models": models}
        data, priced = _read(log, reading)
        back = _way_back(log, out, how if priced else how | {"--prices": "prices.toml"}, really)
        _require_right_or_wrong(data)
        draw, sheet = _drawn(data, log, n, seed, out, beside)
        sheet.write()
        document = _document(data, draw, out) | _shown(sheet, len(draw.query))
        conclude(document, partial(show_draw, data.describe(), document, "" if ask else back), as_json=json_)
        if ask:
            ask_labels(sheet, back)


def _read(log: Path, reading: Mapping[str, Any]) -> tuple[Log, bool]:
    """(the log, whether it tells what answers cost): to label them, nobody needs to know that."""
    from rcjax.logs.errors import MissingPricesError
    from rcjax.logs.reading import read_log

    try:
        return read_file(read_log, log, _OTHERS, unlabelled=True, **reading), True
    except MissingPricesError:
        free = dict.fromkeys(_models_of(log), (0.0, 0.0))
        return read_file(read_log, log, _OTHERS, unlabelled=True, **{**reading, "prices": free}), False


def _models_of(log: Path) -> list[str]:
    """The names of all models in a log."""
    from rcjax.logs.checked_rows import load

    frames = load(log, lambda *_: ["model"]).frames
    return list(dict.fromkeys(str(name) for frame in frames for name in frame["model"].drop_nulls()))


def _go_on(sheet: LabelSheet, log: Path, back: str) -> None:
    """Ask for the labels that a table lacks, which must be of this log."""
    from rcjax.cli.label_terminal import ask_labels
    from rcjax.logs.label_sheet import missing_answers

    missing = missing_answers(sheet, log)
    if missing:
        of = f"{missing:,} of the {count(len(sheet.rows), 'answer')} of {sheet.path.name}"
        warn(f"{of} {'is' if missing == 1 else 'are'} not in {log.name}: is it the table of another log?")
    ask_labels(sheet, back)


def _way_back(log: Path, out: Path, reading: Mapping[str, Any], really: bool = False) -> str:
    """The command that takes the labels, with the options by which the log is read as it was here.

    >>> _way_back(Path("log.csv"), Path("my labels.csv"), {"--task": "choice", "--models": None})
    "rcjax tune log.csv --labels 'my labels.csv' --task choice"
    """
    words = ["rcjax", "tune", str(log), "--labels", str(out)]
    for option, value in reading.items():
        if value is not None and value != "generation":
            words += [option, ",".join(value) if isinstance(value, tuple) else str(value)]
    return shlex.join([*words, *["--really"] * really])


def _require_right_or_wrong(data: Log) -> None:
    """Refuse a log of scores: labels by hand say right or wrong, which beside scores would mean another thing."""
    from rcjax.logs.errors import LogError

    if data.scores is not None:
        what = "its labels are scores, and labels by hand are 1 or 0"
        advice = "give more scores by --labels, a table of query, model and correct"
        raise LogError(f"{data.source}: {what}: {advice}, or make all of it 1 or 0 (rcjax import --right-from)")


def _require_new(out: Path) -> None:
    if out.exists():
        what = "it is there already, and is not overwritten: give another file, or go on in it with --ask"
        raise ValueError(f"{out}: {what}")


def _drawn(data: Log, source: Path, number: int, seed: int, out: Path, beside: _Beside) -> tuple[LabelDraw, LabelSheet]:
    """The draw, and its table: the answers to label, then those that have a label."""
    import numpy as np

    from rcjax.cli.console import busy
    from rcjax.logs.label_sheet import LabelSheet, Texts
    from rcjax.tuning.label_drawing import draw_labels

    with busy("drawing"):
        draw = draw_labels(data, number, seed=seed)
    new = [*zip(draw.query.tolist(), draw.model.tolist(), strict=True)]
    old = [*zip(*(indices.tolist() for indices in np.nonzero(data.labelled)), strict=True)]
    answers = {cell: _answer_at(data, *cell) for cell in [*new, *old]}
    with busy("reading questions and answers"):
        texts = _texts({*answers.values()}, source, beside)
    correct = np.asarray(data.correct)
    labels = dict.fromkeys(new) | {cell: bool(correct[cell]) for cell in old}
    rows = [
        (answer, texts.get(answer, Texts()), labels[cell], float(draw.chance[cell])) for cell, answer in answers.items()
    ]
    return draw, LabelSheet.of(out, rows)


def _answer_at(data: Log, query: int, model: int) -> AnswerKey:
    from rcjax.logs.label_sheet import AnswerKey

    name, samples = data.models[model], data.hand and data.hand.samples
    if samples is None:
        return AnswerKey(str(data.queries[query]), name)
    return AnswerKey(str(data.queries[query]), name, str(samples[query, model]))


def _texts(drawn: set[AnswerKey], source: Path, beside: _Beside) -> dict[AnswerKey, Texts]:
    """What the log tells, and what the files beside it do."""
    from rcjax.collecting.questions import conversation, spoken
    from rcjax.logs.label_sheet import Texts, answer_texts, completed

    texts = {answer: one._replace(question=spoken(one.question)) for answer, one in answer_texts(source, drawn).items()}
    if beside.answers is not None:
        texts = completed(texts, answer_texts(beside.answers, drawn))
    asked = {question.query: question for question in beside.questions}
    asked_of = {
        answer: Texts(conversation(asked[answer.query].messages), " or ".join(asked[answer.query].reference))
        for answer in drawn
        if answer.query in asked
    }
    return completed(texts, asked_of)


def _shown(sheet: LabelSheet, drawn: int) -> dict[str, int]:
    """How many of the answers to label show no question, and how many no answer: the first rows of the table."""
    texts = [sheet.texts(row) for row in range(drawn)]
    return {
        "without_question": sum(not one.question for one in texts),
        "without_answer": sum(not one.answer for one in texts),
    }


def _document(data: Log, draw: LabelDraw, out: Path) -> dict[str, Any]:
    """What was drawn, in JSON values."""
    import numpy as np

    counts = np.bincount(draw.model, minlength=len(data.models))
    answers, labelled = (np.asarray(mask).sum(0) for mask in (data.answered, data.labelled))
    models = [
        {"model": name, "answers": int(all_), "labelled": int(old), "drawn": int(new)}
        for name, all_, old, new in zip(data.models, answers, labelled, counts, strict=True)
    ]
    return {"drawn": len(draw.query), "models": models, "written": str(out)}
