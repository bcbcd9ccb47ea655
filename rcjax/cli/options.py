"""Functions as commands: the options are the parameters of a function, and the fields of its records."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption
from typer.models import ArgumentInfo, ParameterInfo

from rcjax.cli import inputs
from rcjax.policy.error_kind import BY_ANSWER, Reference
from rcjax.policy.ladder import DAYS_PER_PERIOD, Period, Queries
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import Spec, SpecError

#: The panels of `--help`; the most used first.
TARGET, OUTPUT, READ = "Target: give one", "Output", "What LOG holds"
SEARCH, PROMISES, WAITING = "Models and search", "Promises", "Waiting"
PANELS = (TARGET, OUTPUT, READ, SEARCH, PROMISES, WAITING)

# Types of options: the types that their parsers return. The help of an option is in the docstring of its command,
# unless it stands here.

File = Annotated[Path | None, typer.Option(metavar="FILE")]
Output = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE")]
Text = Annotated[str | None, typer.Option(metavar="TEXT")]
Name = Annotated[str | None, typer.Option(metavar="NAME")]
Model = Annotated[str | None, typer.Option(metavar="MODEL")]
Models = Annotated[tuple[str, ...] | None, typer.Option(parser=inputs.names, metavar="A,B,…")]
Count = Annotated[int | None, typer.Option(min=1, metavar="N")]
Seed = Annotated[int, typer.Option(metavar="N")]
Money = Annotated[float | None, typer.Option(parser=inputs.positive, metavar="MONEY")]
Seconds = Annotated[float, typer.Option(parser=inputs.positive, metavar="SECONDS")]
FullScore = Annotated[float | None, typer.Option(parser=inputs.positive, metavar="NUMBER")]

_LOG = "A row per query and model, in CSV, Parquet or JSON Lines: query, model, correct, logprob or confidence, cost "
_LOG += "(or input_tokens and output_tokens), answer and time."
LogFile = Annotated[Path, typer.Argument(metavar="LOG", help=_LOG)]
LogFiles = Annotated[list[Path], typer.Argument(metavar="LOG", help=f"{_LOG} Several files, or a folder, are one log.")]
PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="File of the policy, from `rcjax tune --out`.")]
AsJson = Annotated[bool, typer.Option(help="Print one JSON document, with any error.")]
Really = Annotated[bool, typer.Option("--yes", help="Accept implausible prices, budgets and logs.")]
Prices = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|genai",
        help="Prices per million tokens, TOML: a table [MODEL] with input = 0.1, output = 0.4; other models cost as in "
        "LOG. genai: public prices, in a call log of the day of each call, else today's (`rcjax[prices]`). Also "
        "LiteLLM's and OpenRouter's lists.",
    ),
]
InUse = Annotated[AbstractPolicy | str | None, typer.Option(parser=inputs.today, metavar="MODEL|FILE")]


@dataclass(frozen=True)
class Grading:
    """The options of grading.

    Args:
        graders: Grader: **exact**, **choice**, **number**, **contains**, **call**, **json**, **regex:…**,
            **python:module:function**, **command:…** or **judge:MODEL**; give one for each kind of question.
            [default: by the answers]
        rubric: File with the prompt of a judge: {question}, {reference} and {answer}, fenced by {fence}.
        score_max: The full score that json, a judge, a function or a program gives: 10 if scores go from 0 to 10.
            [default: 1; a judge says right or wrong]
    """

    graders: Annotated[list[str] | None, typer.Option("--grade", metavar="[KIND=]GRADER")] = None
    rubric: File = None
    score_max: FullScore = None

    def read_rubric(self) -> str | None:
        """Read the rubric; None for the built-in one. Raises ValueError for a rubric without {answer}."""
        if self.rubric is None:
            return None
        try:
            rubric = self.rubric.read_text("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError(f"{self.rubric.name}: not UTF-8 text: save the file as UTF-8") from None
        if "{answer}" not in rubric:
            raise ValueError(f"{self.rubric.name}: the rubric has no {{answer}}: say where the answer goes")
        return rubric


@dataclass(frozen=True)
class BudgetOptions:
    """The options of a budget.

    Args:
        budget: Fewest errors for this money per query: 0.00015, or 150/M (per million); or for a day, week or month:
            500/month.
        queries: Number of queries in a period: amounts are then for that period. [default: as in LOG, if LOG is of a
            service]
    """

    budget: Annotated[
        float | Period | None, typer.Option(parser=inputs.budget, metavar="MONEY", rich_help_panel=TARGET)
    ] = None
    queries: Annotated[
        Queries | None, typer.Option(parser=inputs.queries, metavar="N/month", rich_help_panel=TARGET)
    ] = None

    def add_to(self, spec: Spec, *log: Path) -> Spec:
        """Add the budget to the options of tuning; a usage error for a period without a number of queries.

        Args:
            log: log of a service, or of its replicas: its queries are counted if `queries` is not given.
        """
        if not isinstance(self.budget, Period):
            return replace(spec, budget=self.budget, queries=self.queries)
        per_day = None if self.queries is None else self.queries.per_day
        if per_day is None:
            from rcjax.serving.shadow import queries_per_day

            per_day = queries_per_day(*log)
        if per_day is None:
            problem = f"is missing: say how many queries come, such as --queries 200000/{self.budget.every}"
            raise typer.BadParameter(f"{problem} (only the log of a service tells it)", param_hint="--queries")
        queries = Queries(per_day * DAYS_PER_PERIOD[self.budget.every], self.budget.every)
        return replace(spec, budget=self.budget.money / queries.number, period=self.budget, queries=queries)


@dataclass(frozen=True)
class LogOptions:
    """The options of reading a log.

    Args:
        labels: File of labels, in place of a column correct: a table of query, model and correct, or of query and
            the right answer.
        answers: File of the models' answers, for policies that compare answers, in place of a column answer: a table of
            query, model and answer (or answer_key).
        reference: A model of LOG whose answers count as right: errors are then answers that differ.
        same: Grader that has said whether an answer is that of `--reference`, by `rcjax grade LOG --reference MODEL
            --grade GRADER`. [default: answer, as policies compare]
        score_max: The full score, if labels are scores: 10 if they go from 0 to 10. The lost score is then the error.
        task: Task of the models: to write text, or to pick a choice.
        models: Use these models, in this order. [default: by cost]
    """

    prices: Prices = None
    labels: Annotated[Path | None, typer.Option(metavar="FILE", rich_help_panel=READ)] = None
    answers: Annotated[Path | None, typer.Option(metavar="FILE", rich_help_panel=READ)] = None
    reference: Annotated[str | None, typer.Option(metavar="MODEL", rich_help_panel=READ)] = None
    same: Annotated[str | None, typer.Option(metavar="GRADER", rich_help_panel=READ)] = None
    score_max: Annotated[float | None, typer.Option(parser=inputs.positive, metavar="NUMBER", rich_help_panel=READ)] = (
        None
    )
    task: Annotated[Literal["generation", "choice"], typer.Option(rich_help_panel=READ)] = "generation"
    models: Annotated[
        tuple[str, ...] | None, typer.Option(parser=inputs.names, metavar="A,B,…", rich_help_panel=SEARCH)
    ] = None
    really: Really = False

    def inputs(self, *log: Path) -> dict[str, Path | None]:
        """Return the input files by option, for `require_outputs`."""
        logs = {"LOG" if position == 0 else f"LOG {position + 1}": path for position, path in enumerate(log)}
        return {**logs, "--prices": self.prices, "--labels": self.labels, "--answers": self.answers}

    def options(self) -> dict[str, Any]:
        """Return the options of `read_log`, except the models; a usage error for `--same` without a reference."""
        options = {name: getattr(self, name) for name in ("prices", "labels", "answers", "task", "really")}
        scale = {} if self.score_max is None else {"score_max": self.score_max}
        return options | scale | {"reference": _reference(self.reference, self.same)}

    def as_options(self) -> dict[str, Any]:
        """Return the options for another command that reads the log in the same way."""
        options = {name: getattr(self, name) for name in ("prices", "labels", "answers", "reference", "same")}
        options |= {"task": None if self.task == "generation" else self.task}
        options |= {"score-max": None if self.score_max is None else f"{self.score_max:g}"}
        return options | {"models": self.models and ",".join(self.models), "yes": self.really or None}


def _reference(reference: str | None, grader: str | None) -> Reference | None:
    if reference is None:
        if grader is not None:
            problem = "needs --reference, the model whose answers the others are compared with"
            raise typer.BadParameter(problem, param_hint="--same")
        return None
    if not reference:
        raise typer.BadParameter("is empty: give the name of a model of LOG", param_hint="--reference")
    return Reference(reference, grader or BY_ANSWER)


# Functions as commands.

#: The panels that only `--help-all` shows.
_LONG = tuple(panel for panel in PANELS if panel not in (TARGET, OUTPUT))
_ALL = "rcjax.cli.help_all"
_BY_NAME = inspect.Parameter.KEYWORD_ONLY


class LongHelp(TyperCommand):
    """A command with many options: `--help` shows the most used options, `--help-all` all."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option `--help`, as a flag without a value."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.metavar = ""
        return option

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:
        """Print the help; options of the long panels only for `--help-all`."""
        options = [option for option in self.params if isinstance(option, TyperOption)]
        long_options = [option for option in options if option.rich_help_panel in _LONG]
        for option in long_options:
            option.hidden = _ALL not in ctx.meta
        super().format_help(ctx, formatter)
        for option in long_options:  # completion ignores hidden options
            option.hidden = False


def _help_all(ctx: typer.Context, is_wanted: bool) -> None:
    if is_wanted:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


_HelpAll = Annotated[bool, typer.Option(callback=_help_all, is_eager=True, help="Show every option and exit.")]


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Wrap a function for typer: its docstring is the help, and its "Args:" are the help of the options.

    A parameter that is a record becomes options for the record's fields: all offered fields for the annotation `Spec`,
    the named ones for `Annotated[Spec, "budget", …]`. A parameter of the function replaces the field of the same name.
    Options stand in the order of their panels, flags last.
    """
    text, helps = _split_docstring(function.__doc__)
    declared = inspect.signature(function, eval_str=True).parameters
    parameters: dict[str, inspect.Parameter] = {}
    records: dict[str, tuple[Any, list[str]]] = {}
    for name, parameter in declared.items():
        type_, *names = get_args(parameter.annotation) if get_origin(parameter.annotation) is Annotated else (None,)
        type_ = type_ or parameter.annotation
        if is_dataclass(type_):
            offered = [option for option in _make_record_options(type_) if not names or option.name in names]
            records[name] = type_, [option.name for option in offered if option.name not in declared]
            parameters |= {option.name: option for option in offered if option.name not in declared}
        else:
            parameters[name] = _make_option(name, parameter.annotation, parameter.default, helps.get(name, ""))
    if any(_panel(option) in _LONG for option in parameters.values()):
        parameters["help_all"] = _make_option("help_all", _HelpAll, False)
    ordered = sorted(parameters.values(), key=_sort_key)

    @wraps(function)
    def run_command(*, help_all: bool = False, **values: Any) -> None:
        try:
            for name, (type_, options) in records.items():
                fields_given = {option: values.pop(option) for option in options}
                values[name] = type_(**{option: value for option, value in fields_given.items() if value is not None})
            function(**values)
        except SpecError as problem:
            hint = problem.option and option_name(problem.option)
            raise typer.BadParameter(problem.say(option_name), param_hint=hint) from None

    run_command.__doc__ = text
    run_command.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined] - typer asks for it
    run_command.__annotations__ = {option.name: option.annotation for option in ordered}
    return run_command


def _split_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Split a docstring into (text before its "Args:", text of each argument by name).

    >>> _split_docstring("Look.\\n\\nArgs:\\n    far: How far,\\n        in miles.\\n    fast: Run.")
    ('Look.', {'far': 'How far, in miles.', 'fast': 'Run.'})
    """
    text, _, arguments = inspect.cleandoc(docstring or "").partition("\nArgs:\n")
    _, *pieces = re.split(r"^    (\w+): ", arguments.partition("\n\n")[0], flags=re.MULTILINE)
    return text.strip(), {name: " ".join(help_.split()) for name, help_ in zip(pieces[::2], pieces[1::2], strict=True)}


def option_name(name: str) -> str:
    """Return the spelling of an option on the command line.

    >>> option_name("max_error"), option_name("json_")
    ('--max-error', '--json')
    """
    return "--" + name.strip("_").replace("_", "-")


def _make_option(name: str, annotation: Any, default: Any, help_text: str = "") -> inspect.Parameter:
    """Make the parameter of a command: the type, the spelling and the help of its option."""
    type_, *annotations = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    info = copy.copy(next((entry for entry in annotations if isinstance(entry, ParameterInfo)), typer.Option()))
    info.help = help_text or info.help
    if info.parser is not None:  # typer needs no type beside a parser, and would refuse unions and tuples
        type_, default = Any, _show_default(default)
    is_flag = bool in (type_, *get_args(type_))
    if is_flag:
        info.metavar = ""  # else newer versions of typer show <bool>, as if a flag took a value
    if not isinstance(info, ArgumentInfo) and info.default is ...:  # typer keeps a given spelling in `default`
        flag = option_name(name)
        info.param_decls = (f"{flag}/--no-{flag[2:]}" if is_flag and default is not False else flag,)
    return inspect.Parameter(name, _BY_NAME, default=default, annotation=Annotated[type_, info])


def _show_default(default: Any) -> Any:
    """Return the text of a default, which typer shows, and parses: None stays; whole numbers are sizes.

    >>> _show_default(60.0), _show_default(4_000_000)
    ('60', '4MB')
    """
    if default is None or isinstance(default, str):
        return default
    return f"{default // 10**6}MB" if isinstance(default, int) else f"{default:g}"


def _make_record_options(record: Any) -> list[inspect.Parameter]:
    hints, (_, helps) = get_type_hints(record, include_extras=True), _split_docstring(record.__doc__)
    if record is Spec:
        hints = _SPEC_OPTIONS
        helps = {name: re.sub(r"`(\w+)`", lambda field: f"`{option_name(field[1])}`", helps[name]) for name in hints}
    return [
        _make_option(entry.name, hints[entry.name], entry.default, helps.get(entry.name, ""))
        for entry in fields(record)
        if entry.name in hints
    ]


def _spec_option(panel: str, metavar: str, parser: Callable[[str], Any]) -> Any:
    return Annotated[Any, typer.Option(rich_help_panel=panel, metavar=metavar, parser=parser)]


#: The fields of `Spec` that are options of commands, by name.
_SPEC_OPTIONS: dict[str, Any] = {
    "max_error": _spec_option(TARGET, "0.05|5%", inputs.fraction),
    "match": _spec_option(TARGET, "0.01|1%", inputs.fraction),
    "today": _spec_option(TARGET, "MODEL|FILE", inputs.today),
    "error_cost": _spec_option(TARGET, "MONEY", inputs.positive),
    "cascade": _spec_option(SEARCH, "SEARCH", inputs.cascade),
    "abstain_price": _spec_option(SEARCH, "0.05|5%", inputs.fraction),
    "confidence": _spec_option(PROMISES, "0.95|95%", inputs.fraction),
    "judged": Annotated[bool, typer.Option(rich_help_panel=PROMISES)],
    "intervals": Annotated[bool, typer.Option("--bands/--no-bands", rich_help_panel=SEARCH)],
    "segment": _spec_option(SEARCH, "COLUMN", str),
    "max_seconds": _spec_option(WAITING, "2|p95=4", inputs.seconds_limit),
}


def _panel(parameter: inspect.Parameter) -> str | None:
    return getattr(get_args(parameter.annotation)[1], "rich_help_panel", None)


def _sort_key(parameter: inspect.Parameter) -> tuple[int, bool]:
    """Return the sort key of a parameter: the place of its panel (0 without one), then flags last."""
    panel = _panel(parameter)
    return (1 + PANELS.index(panel) if panel in PANELS else 0), get_args(parameter.annotation)[0] is bool
