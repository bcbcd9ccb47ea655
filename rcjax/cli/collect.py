"""`rcjax collect` and `rcjax import`: make a log from questions, or from evaluations of other programs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, aclosing, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from rcjax._base.figures import choose_unit, count, format_number, percent
from rcjax.cli.console import (
    INTERRUPTED,
    Screen,
    attempt,
    busy,
    command,
    conclude,
    duration,
    escape_arguments,
    finished_share,
    fold_names,
    interruptible,
    make_table,
    terminable,
    warn,
)
from rcjax.cli.inputs import pairs, require_distinct, require_libraries, require_outputs, require_plausible_models
from rcjax.cli.options import AsJson, Count, File, FullScore, Grading, Money, Name, Output, Really, Seconds, Seed, Text

if TYPE_CHECKING:
    from rcjax.collecting.answer_file import AnswerFile, AnswerRows
    from rcjax.collecting.plan import Capabilities, CollectedModel, Plan, RunResources
    from rcjax.collecting.questions import Question
    from rcjax.collecting.run import Run
    from rcjax.logs.importing.evaluations import Evaluations


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
    """Make a log from evaluations, or logs of calls, by other programs.

    All files become one log. A model keeps its name, without its prefix if that is unique: `openai/gpt-4o-mini` becomes
    `gpt-4o-mini`. Logs of calls have no labels, and most files have no costs: when you tune, give `--labels` and
    `--prices`.

    Example: `rcjax import logs/*.eval --out log.parquet`

    Args:
        files: Logs of Inspect AI (.eval, .json), samples of lm-eval, runs of HELM, results of promptfoo, logs of
            LiteLLM, output of OpenAI's batches, your own tables; or folders of these.
        out: The log: CSV, TSV, Parquet or JSON Lines.
        format_: Format of the files: **inspect**, **lm-eval**, **helm**, **promptfoo**, **litellm**, **openai-batch**,
            **table** or **wide**, a table with columns for each model. [default: by the content, except wide]
        scorer: Name of the scores that count, if there are several: a scorer of Inspect, a filter of lm-eval, …
        score_max: The full score. [default: 1]
        rename: Another name for a model; may be repeated.
        column: Name of a column in a table: `correct=is_right`, … For LiteLLM, the field with the id of the query:
            `query=metadata.requester_metadata.id`.
        prompts: Include the prompts in the log, for labelling by hand.
    """
    require_outputs({"--out": out}, {}, {"--out": "log"})
    require_distinct([("--out", out)], [("FILES", file) for file in files])
    from rcjax.logs.errors import LogError
    from rcjax.logs.importing.evaluations import ImportOptions, import_evaluations, write_table
    from rcjax.logs.oddities import summarise_models
    from rcjax.logs.sources import TABLES

    if out.suffix.lower() not in ("", *TABLES):
        raise LogError(f"{out.name}: a log of kind {out.suffix!r} cannot be written: give {', '.join(TABLES)}")
    renamed, columns = pairs(rename, "--rename"), pairs(column, "--column")
    settings = ImportOptions(format_, scorer, renamed, columns, prompts)
    settings = settings if score_max is None else replace(settings, score_max=score_max)
    with busy("reading"):
        evaluations = import_evaluations(files, settings)
        problem = attempt(partial(write_table, evaluations.frame, out))
    if evaluations.damage is not None:
        warn(evaluations.damage)
    summary = summarise_models(evaluations.frame)
    document = summary | {"notes": list(evaluations.notes), "unreadable": list(evaluations.unreadable)}
    document |= {} if problem else {"out": str(out)}
    show = partial(_show_import, summary, evaluations, None if problem else out)
    conclude(document, show, as_json=json_, problem=problem)


@escape_arguments
def _show_import(summary: Mapping[str, Any], evaluations: Evaluations, out: Path | None) -> None:
    screen = Screen()
    queries, models = summary["queries"], summary["models"]
    heading = f"{count(queries, 'query')}, {summary['answered_by_all']:,} of them answered by all of "
    screen.print(heading + count(len(models), "model"), style="bold")
    screen.print(models_table(models, "mean score" if summary.get("scored") else "accuracy"))
    screen.hang("note", *evaluations.notes)
    if out is not None:
        screen.hang("written", f"to {out}")
        task = "choice" if evaluations.has_letters else None
        screen.next_step(*next_of_answers(summary, out, _TO_LABEL, task=task))


_TO_LABEL = "no answer has a label: give them to rcjax tune with --labels, or label some by hand"
_LABELS = 100  # answers to label by hand


def next_of_answers(summary: Mapping[str, Any], out: object, unlabelled: str, **options: object) -> tuple[str, str]:
    """Return (advice, command) for a log of answers; the command accepts the log.

    Args:
        summary: `models`, and the numbers of `queries` and of queries `answered_by_all`, from `summarise_models`.
        out: path of the log.
        unlabelled: advice if no answer has a label.
        options: `questions` for `rcjax label`, and `task` for `rcjax tune`; None to leave one out.
    """
    from rcjax.logs.oddities import MIN_QUERIES

    models, queries = summary["models"], summary["answered_by_all"]
    if len(models) < 2:
        return "add the answers of another model: a cascade needs two", ""
    if queries < MIN_QUERIES <= (in_all := summary.get("queries", queries)):
        fact = f"{queries:,} of {in_all:,} queries have an answer of every model: too few to tune"
        return f"have all models answer the same queries, under the same ids: {fact}", ""
    if queries < MIN_QUERIES:
        return f"add more: {count(queries, 'query')} that all models answered tell too little; log a hundred", ""
    if all(row["accuracy"] in (0, 1) for row in models) and len({row["accuracy"] for row in models}) == 1:
        return "look at the labels: they say the same of every answer, and nothing tells the models apart", ""
    if all(row["accuracy"] is None for row in models):
        n = min(_LABELS, sum(row["answers"] for row in models))
        options["task"] = None
        return unlabelled, command("label", out, n=n, **options, out="to_label.csv")
    options["questions"] = None
    advice, options["match"] = "as good as the best model, for less?", "1%"
    if any(row["cost"] is None for row in models):
        advice, options["prices"] = "tune, with the prices of the models in a file", "prices.toml"
    return advice, command("tune", out, **options, out="policy.json")


def models_table(
    models: Sequence[Mapping[str, Any]], accuracy: str, signals: Mapping[str, str | None] | None = None
) -> Table:
    """Make a table of the models, the cheapest first; after a run it includes the `signals` and the failed calls."""
    money = choose_unit([row["cost"] for row in models if row["cost"] is not None] or [0.0])
    run = signals is not None
    heads = ["signal"] * run + ["answers"] + ["failed"] * run + [accuracy, "better\nis surer", f"$ per\n{money.name}"]
    table = make_table("model", *heads, text_columns=1 + run, unbroken=True)
    fold_names(table)
    for row in sorted(models, key=lambda row: row["cost"] or 0.0):
        cells = [f"{row['answers']:,}"]
        cells = cells if signals is None else [signals[row["model"]] or "–", *cells, f"{row['failed']:,}"]
        cost = "–" if row["cost"] is None else money.show(row["cost"])
        table.add_row(row["model"], *cells, percent(row["accuracy"]), percent(row["separation"], 0), cost)
    return table


@dataclass(frozen=True)
class AskingOptions:
    """The options of asking a model a question.

    Args:
        system: System message before each question.
        template: Template of the prompt, with {prompt} and other columns.
        max_tokens: Limit on the tokens of an answer, whatever models.toml says. [default: as models.toml says, or 1024;
            16 for choices]
        concurrency: Number of questions to a model at once.
        timeout: Time limit for one attempt.
    """

    system: Text = None
    template: Text = None
    max_tokens: Count = None
    concurrency: Annotated[int, typer.Option(min=1, metavar="N")] = 8
    timeout: Seconds = 60.0


def collect(
    questions: Annotated[Path | None, typer.Argument(metavar="QUESTIONS")] = None,
    models: File = None,
    out: Output = None,
    limit: Count = None,
    seed: Seed = 0,
    budget: Money = None,
    signal: Name = None,
    samples: Annotated[int, typer.Option(min=1, max=1000, metavar="N")] = 1,
    *,
    grading: Grading,
    asking: AskingOptions,
    probe: bool = False,
    dry_run: bool = False,
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Ask several models the same questions, grade their answers, and write the log for `rcjax tune`.

    Each answer is written at once: the same command resumes a stopped run, and repeats no call. Keys of endpoints come
    from the environment.

    Example: `rcjax collect questions.jsonl --models models.toml --out answers.jsonl --limit 300 --budget 5`

    Args:
        questions: CSV, JSON Lines or Parquet, a row per question: prompt (or messages as in the API); where known
            query, the right answer, choices (A|B|C), tools and response_format.
        models: File of the models, models.toml: endpoints and prices.
        out: The log, in JSON Lines; a log that exists is continued.
        limit: Ask only so many questions, drawn at random.
        seed: Seed of that draw.
        budget: Limit on the money that all runs of this log may spend.
        signal: Signal of confidence: **choice**, **verification**, **votes**, **stated** or **mean**; or a check,
            **json**, **call**, **regex:**…, **length**, **python:module:function**, **command:./check**. [default: by
            the questions and the abilities of the models]
        samples: Number of answers of a model to each question: the share that agrees is the confidence.
        probe: Ask each model one question, and report which signals it can give.
        dry_run: Estimate the cost, and ask nothing.
    """
    if models is None:
        raise typer.BadParameter("give the file of the models: --models models.toml", param_hint="--models")
    require_libraries("rcjax collect", "run", "openai")
    from rcjax.collecting.questions import read_questions, sample_questions

    require_plausible_models(models, really)
    _require_signal(signal)
    plan = _make_plan(models, signal, grading, asking, budget, samples)
    if probe:
        if dry_run:
            raise typer.BadParameter("cannot be combined with --probe, which asks each model", param_hint="--dry-run")
        _probe(plan, json_)
        return
    if questions is None:
        raise typer.BadParameter("is missing: give a file", param_hint="QUESTIONS")
    if out is None and not dry_run:
        raise typer.BadParameter("is missing: give answers.jsonl", param_hint="--out")
    _require_log(out, {"QUESTIONS": questions, "--models": models, "--rubric": grading.rubric})
    all_questions = read_questions(questions, asking.system, asking.template)
    sampled = sample_questions(all_questions, limit, seed)
    unasked = {question.query for question in all_questions} - {question.query for question in sampled}
    plan = replace(plan, unasked=unasked)
    _run(plan, sampled, questions, out, None if dry_run else asking.concurrency, json_)


def _make_plan(
    models: Path, signal: str | None, grading: Grading, asking: AskingOptions, budget: float | None, samples: int
) -> Plan:
    """Make the plan of a run from the file of the models and the options of `rcjax collect`."""
    from rcjax.collecting.plan import Plan
    from rcjax.serving.models_file import read_models

    settings = read_models(models)
    return Plan(
        models=settings,
        judges=settings,
        signal=signal,
        graders=tuple(grading.graders or ()),
        rubric=grading.read_rubric(),
        budget=budget,
        max_tokens=asking.max_tokens,
        timeout=asking.timeout,
        samples=samples,
        score_max=grading.score_max,
    )


def _require_signal(signal: str | None) -> None:
    from rcjax.policy.signals.signal import require_signal_name

    try:
        require_signal_name("choice" if signal is None else signal)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="--signal") from None


def _require_log(out: Path | None, inputs: Mapping[str, Path | None]) -> None:
    """Refuse a log that cannot be written, that is an input, or that is not in JSON Lines."""
    require_outputs({"--out": out}, inputs)
    if out is not None and out.suffix.lower() not in (".jsonl", ".ndjson"):
        raise typer.BadParameter("the log is JSON Lines: give a name that ends in .jsonl", param_hint="--out")


def _probe(plan: Plan, as_json: bool) -> None:
    import asyncio  # slow to import

    from rcjax.collecting.plan import probe_all

    with busy("asking"):
        abilities = asyncio.run(probe_all(plan))
    document = {
        "models": [
            asdict(ability) | {"signals": list(ability.signals), "wrong_signal": _wrong_signal(plan, ability)}
            for ability in abilities
        ]
    }
    conclude(document, partial(_show_probe, document["models"]), as_json=as_json)
    if any(ability.error or _wrong_signal(plan, ability) for ability in abilities):
        raise typer.Exit(1)


def _wrong_signal(plan: Plan, ability: Capabilities) -> str | None:
    """Return the chosen signal of a model that cannot give it; None if it can, or no signal was chosen."""
    from rcjax.policy.signals.reply_checks import is_reply_check

    signal = plan.models[ability.model].signal or plan.signal
    is_known = ability.error is None and signal is not None and not is_reply_check(signal)
    return signal if is_known and signal not in ability.signals else None


def _run(
    plan: Plan, questions: list[Question], source: Path, out: Path | None, concurrency: int | None, as_json: bool
) -> None:
    """Ask the models (without a `concurrency`, estimate the cost), print the results, and set the exit status."""
    import asyncio  # slow to import

    from rcjax.collecting.run import summarise_run

    try:
        with terminable():
            document, run = asyncio.run(_work(plan, questions, out, concurrency, as_json))
    except (asyncio.CancelledError, KeyboardInterrupt):
        files = () if out is None else (out, out.with_name(f"{out.name}.under-way"))
        has_asked = any(file.exists() for file in files)
        warn(f"ended: {'calls under way count as spent, and are made again' if has_asked else 'nothing was asked'}")
        raise typer.Exit(INTERRUPTED) from None
    if run is None:
        conclude(document, partial(_show_estimate, document), as_json=as_json)
        return
    results = summarise_run(run)
    document |= results | {"notes": document["notes"] + results["notes"]}
    conclude(document, partial(_show_collected, document, source), as_json=as_json)
    if run.interrupted:
        raise typer.Exit(INTERRUPTED)
    if document["stopped"] or document["grading"] or document["silent"]:
        raise typer.Exit(1)


async def _work(
    plan: Plan, questions: list[Question], out: Path | None, concurrency: int | None, as_json: bool
) -> tuple[dict[str, Any], Run | None]:
    """Return (document with the estimate, the finished run); None for the run if nothing is asked.

    Raises LogError if the log holds answers to other questions, or of models that were asked in another way.
    """
    from rcjax.collecting.answer_file import AnswerFile, AnswerRows, read_answer_file
    from rcjax.collecting.plan import RunResources, assume_signals, estimate
    from rcjax.collecting.run import require_same_settings

    async with aclosing(RunResources(plan)) as resources:
        resources.graders.require(questions)
        with ExitStack() as files:
            # Opened, and thus locked, before it is read: no other process writes to it from here on.
            log_file = None if concurrency is None or out is None else files.enter_context(closing(AnswerFile(out)))
            answers = log_file.answers if log_file else AnswerRows() if out is None else read_answer_file(out)
            assumed = assume_signals(resources, questions, answers)
            if out is not None:
                require_same_settings(assumed, questions, answers, out)
            resources.resume(answers)
            document = {
                "notes": _notes(resources, assumed, questions, answers),
                "questions": len(questions),
                "spent": float(answers.spent),
                "estimate": [
                    asdict(estimate(collected, questions, answers, resources.judge_of)) for collected in assumed
                ],
            }
            if log_file is None or concurrency is None:
                return document, None
            if not as_json:
                _show_estimate(document, before=True)
            run, notes = await _ask(resources, questions, log_file, concurrency)
            answered = {model for _, model, _ in log_file.answers.answered}
            signals = {
                collected.name: collected.signal if collected.name in answered else None for collected in run.models
            }
            document |= {"notes": document["notes"] + notes, "signals": signals}
            return document | {"spent": float(resources.budget.spent)}, run


def _notes(
    resources: RunResources, assumed: Sequence[CollectedModel], questions: Sequence[Question], answers: AnswerRows
) -> list[str]:
    from rcjax.serving.models_file import describe_listed

    notes = [
        f"{collected.name}: {collected.why_samples_equal}: its samples will be alike"
        for collected in assumed
        if collected.why_samples_equal
    ]
    notes += describe_listed(collected.respondent.settings for collected in assumed)
    ungraded = sum(resources.graders.grader_name(question) is None for question in questions)
    if ungraded:
        advice = "give right answers, or --grade judge:MODEL, or label some by hand"
        notes.append(f"{count(ungraded, 'question')} without a right answer, hence without verdicts: {advice}")
    ids, unasked = {question.query for question in questions}, resources.plan.unasked
    if beyond := sum(query in unasked for query, *_ in answers.answered):
        notes.append(f"{count(beyond, 'answer')} of the log are to questions beyond --limit, and stay in it")
    if unrelated := sum(query not in ids and query not in unasked for query, *_ in answers.answered):
        reason = "ids made of the content change with it and the template"
        notes.append(f"{count(unrelated, 'answer')} of the log are to other questions than these ({reason})")
    return notes


def describe_progress(run: Run, started: float) -> str:
    """Return the progress of a run in words: answers, time left of the slowest model, forecast bill, failures."""
    tallies, seconds = run.tallies.values(), time.monotonic() - started
    done, total, failed = (sum(getattr(tally, name) for tally in tallies) for name in ("done", "to_do", "failed"))
    running = [(tally.done + tally.failed, tally.to_do) for tally in tallies if tally.why_stopped is None]
    left = [seconds * (to_do - ended) / ended if ended else None for ended, to_do in running if ended < to_do]
    time_left = "" if None in left or not done else f", about {duration(max(filter(None, left), default=0.0))} left"
    limited = [collected.name for collected in run.models if collected.respondent.is_limited]
    waiting = f", waiting for the rate limit of {', '.join(limited)}" if limited else ""
    in_all = "" if run.forecast is None else f", about ${format_number(run.forecast)} in all"
    return f"{finished_share(done, total)}{time_left}{in_all}{f', {failed:,} failed' if failed else ''}{waiting}"


async def _ask(
    resources: RunResources, questions: Sequence[Question], file: AnswerFile, concurrency: int
) -> tuple[Run, list[str]]:
    """Ask all questions and show the progress; an interrupt lets calls under way finish."""
    from rcjax.collecting.plan import choose_signals
    from rcjax.collecting.run import Run, clear_stale_verdicts

    if file.lost_calls:
        calls = f"{count(file.lost_calls, 'call')} {'was' if file.lost_calls == 1 else 'were'}"
        lost = f"{calls} under way when an earlier run ended"
        warn(f"{lost}: their largest possible cost counts as spent, and they are made again")
    models, remarks = await choose_signals(resources, questions, file)
    regraded = clear_stale_verdicts(file, questions)
    run = Run(questions, models, file, resources, concurrency)
    with busy("asking", progress=partial(describe_progress, run, time.monotonic())), interruptible(run.stop):
        await run.ask_all()
    return run, [*remarks, *([] if regraded is None else [regraded]), *resources.remarks()]


@escape_arguments
def _show_probe(models: Sequence[Mapping[str, Any]]) -> None:
    screen = Screen()
    table = make_table("model", "log-probabilities", "samples", "tokens", "seconds", "signals")
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
            screen.hang("error", f"{row['model']}: {row['error']}")
        elif row["logprobs"] and row["top"] <= 1:
            note = "only the log-probability of its own tokens: no choice, no verification"
            screen.hang("note", f"{row['model']}: {note}")
        if row["wrong_signal"] is not None:
            able = f"it can give {', '.join(row['signals'])}"
            screen.hang("error", f"{row['model']}: its signal is {row['wrong_signal']}, and {able}")
        if row["unusable"] is not None:
            screen.hang("note", f"{row['model']}: {row['unusable']}")
    cost = sum(row["cost"] for row in models)
    screen.hang("cost", f"at most ${format_number(cost)}")


@escape_arguments
def _show_estimate(document: Mapping[str, Any], *, before: bool = False) -> None:
    """Print the estimated cost of a run; on standard error if it comes `before` the run."""
    from rcjax.collecting.plan import USUAL_CHOICE_TOKENS, USUAL_TEXT_TOKENS

    screen = Screen(stderr=before)
    rows = document["estimate"]
    likely, worst = (sum(row[name] for row in rows) for name in ("likely_cost", "max_cost"))
    calls = count(sum(row["calls"] for row in rows), "call")
    heading = f"{count(document['questions'], 'question')}, {count(len(rows), 'model')}: {calls} to make"
    screen.print(f"{heading}, about ${format_number(likely)} (at most ${format_number(worst)})", style="bold")
    if document["spent"]:
        screen.hang("spent", f"${format_number(document['spent'])} by earlier runs")
    for row in rows:
        questions = count(row["questions"], "question")
        calls_in_words = "" if row["calls"] == row["questions"] else f", {count(row['calls'], 'call')}"
        money = f"about ${format_number(row['likely_cost'])}, at most ${format_number(row['max_cost'])}"
        screen.hang(row["model"], f"{questions}{calls_in_words}, {money}")
    if second := sum(row["requests"] - row["calls"] for row in rows):
        screen.hang("requests", f"{second:,} more: a second question about each answer, for the confidence in it")
    if any(row["questions"] == document["questions"] for row in rows):  # a model without an answer so far
        tokens = f"{USUAL_TEXT_TOKENS} tokens an answer, {USUAL_CHOICE_TOKENS} where there are choices"
        limit = "or its limit if that is lower: perhaps ten times too many"
        forecast = "after twenty answers of each model a run forecasts the whole cost"
        screen.hang("assumed", f"{tokens}, {limit}; {forecast}")
    screen.hang("note", *document["notes"])


@escape_arguments
def _show_collected(document: Mapping[str, Any], source: Path) -> None:
    screen = Screen()
    models = document["models"]
    answers, questions = count(document["answers"], "answer"), count(document["questions"], "question")
    heading = f"{answers} of {count(len(models), 'model')} to {questions}"
    screen.print(f"{heading}; {document['answered_by_all']:,} answered by all", style="bold")
    scored = "mean score" if document.get("scored") else "accuracy"
    screen.print(models_table(models, scored, document["signals"]))
    screen.hang("note", *document["notes"])
    for row in models:
        if row["failed"]:
            last = "" if row["error"] in document["stopped"].values() else f", the last one: {row['error']}"
            screen.hang("failed", f"{row['model']}: {count(row['failed'], 'call')}{last}")
    if document["silent"]:
        screen.hang("silent", f"no answer at all: {', '.join(document['silent'])}")
    for reason in dict.fromkeys(document["stopped"].values()):
        names = ", ".join(name for name, stop_reason in document["stopped"].items() if stop_reason == reason)
        screen.hang("stopped", f"{names}: {reason}")
    if document["graded_by"]:
        show_graded(screen, document["graded_by"])
        show_ungraded(screen, document["ungraded"], document["without_reference"])
    if document["grading"]:
        screen.hang("grading", f"stopped: {document['grading']}")
    if document["budget_spent"]:
        screen.hang("budget", "the rest does not cover another question to all models")
    screen.hang("spent", f"${format_number(document['spent'])} in all, failed calls and judges included")
    screen.hang("written", f"to {document['out']}")
    screen.next_step(*_advise_next(document, source))


def show_graded(screen: Screen, graded_by: Mapping[str, int]) -> None:
    """Print the number of answers with a verdict, by grader."""
    graders = sorted(graded_by.items(), key=lambda item: -item[1])
    screen.hang("graded", ", ".join(f"{count(number, 'answer')} by {name}" for name, number in graders))


_UNGRADED = "no answer is graded: give --grade (rcjax grade --help), or label some by hand"
_ENOUGH = 30  # questions that all models answered, to tune on


def _advise_next(document: Mapping[str, Any], source: Path) -> tuple[str, str]:
    """Return (advice, command) for the next step, which must not fail as this run did."""
    missing = sum(row["left"] for row in document["models"])
    stopped = ", ".join(dict.fromkeys([*document["stopped"], *document["silent"]]))
    remedy = f"see to what stopped {stopped} (above), then " if stopped else ""
    repeat = f"{remedy}the same command {'with a larger --budget' if document['budget_spent'] else 'again'}"
    if missing and document["answered_by_all"] < _ENOUGH:
        return f"{repeat}, which asks what is missing", ""
    options = {
        "task": "choice" if {*document["signals"].values()} - {None} == {"choice"} else None,
        "questions": source,
    }
    advice, command_line = next_of_answers(document, document["out"], _UNGRADED, **options)
    return (f"{repeat} asks the {missing:,} that are missing; or {advice}" if missing else advice), command_line


def show_ungraded(screen: Screen, answers: int, without_reference: int = 0) -> None:
    """Print the number of answers without a verdict, and how many of these answer questions without a right answer."""
    if answers:
        detail = f"; {without_reference:,} of them to questions without a right answer" if without_reference else ""
        screen.hang("note", f"{count(answers, 'answer')} without a verdict{detail}")
