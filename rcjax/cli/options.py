"""Functions as commands: the parameters of a function are its options, and so are the fields of its records."""

from __future__ import annotations

import copy
import inspect
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo, ParameterInfo

from rcjax.cli import parsers
from rcjax.policy.spec import OUTPUT, PANELS, READ, SEARCH, TARGET, Spec, SpecError

if TYPE_CHECKING:
    from rcjax.policy.counted import Reference

# What options are of; the text of each is in the docstring of its command, unless it is said here.

File = Annotated[Path | None, typer.Option(metavar="FILE")]
Output = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE")]
Text = Annotated[str | None, typer.Option(metavar="TEXT")]
Name = Annotated[str | None, typer.Option(metavar="NAME")]
Model = Annotated[str | None, typer.Option(metavar="MODEL")]
Models = Annotated[Any, typer.Option(parser=parsers.names, metavar="A,B,…")]
Count = Annotated[int | None, typer.Option(min=1, metavar="N")]
Money = Annotated[Any, typer.Option(parser=parsers.positive, metavar="MONEY")]
Seconds = Annotated[Any, typer.Option(parser=parsers.positive, metavar="SECONDS")]
Share = Annotated[Any, typer.Option(parser=parsers.fraction, metavar="SHARE")]
FullScore = Annotated[Any, typer.Option(parser=parsers.positive, metavar="NUMBER")]

LogFile = Annotated[
    Path,
    typer.Argument(
        metavar="LOG",
        help="CSV, Parquet or JSON Lines, a row per query and model: query, model, correct, logprob or confidence, "
        "cost or input_tokens and output_tokens, answer if there is one.",
    ),
]
LogFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="LOG...",
        help="A log, several parts of one, or a folder of rotated parts; a column time tells when queries came.",
    ),
]
PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="What `rcjax tune --out` wrote.")]
AsJson = Annotated[bool, typer.Option(help='Print one JSON document; where something is wrong, with "error".')]
Really = Annotated[bool, typer.Option("--yes", help="Take prices, budgets and logs that look odd.")]
Prices = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|genai",
        help="Per million tokens, TOML: for each a [MODEL] with input = 0.1, output = 0.4; others cost as in LOG. "
        "genai: public prices, of the day of each call (`rcjax[prices]`). LiteLLM's and OpenRouter's lists do, too.",
    ),
]
InUse = Annotated[Any, typer.Option(parser=parsers.today, metavar="MODEL|FILE")]
CopulaFamily = Annotated[Any, typer.Option(parser=parsers.family, metavar="FAMILY|auto", rich_help_panel=SEARCH)]


@dataclass(frozen=True)
class Grading:
    """Who grades answers, as the command line says it.

    Args:
        graders: **exact**, **choice**, **number**, **contains**, **call**, **json**, **regex:…**,
            **python:module:function**, **command:…** or **judge:MODEL**; again for other kinds of question. [default:
            what suits the answers]
        rubric: What a judge is asked: {question}, {reference} and {answer}, fenced by {fence}.
        score_max: The full score that json, a judge, a function or a program gives: 10 if they go from 0 to 10.
            [default: a judge says right or wrong, the scores of others go from 0 to 1]
    """

    graders: Annotated[list[str] | None, typer.Option("--grade", metavar="[KIND=]GRADER")] = None
    rubric: File = None
    score_max: FullScore = None

    def words(self) -> str | None:
        """The text of the rubric; None for what is built in. Raises ValueError where the answer has no place in it."""
        if self.rubric is None:
            return None
        try:
            words = self.rubric.read_text("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError(f"{self.rubric.name}: not UTF-8 text: save the file as UTF-8") from None
        if "{answer}" not in words:
            raise ValueError(f"{self.rubric.name}: the rubric has no {{answer}}: say where the answer goes")
        return words


@dataclass(frozen=True)
class ReplicaOptions:
    """What replicas of a service share, as the command line says it.

    Args:
        ledger: Where replicas share what they spent: redis://host:6379 (Redis or Valkey). The variable RCJAX_LEDGER
            keeps a password out of sight.
        share: Of the money for a period, what this one of five replicas may spend: 1/5. For replicas without a ledger.
        replica: Which replica this is, in the log and the ledger. [default: the name of the host]
    """

    ledger: Annotated[str | None, typer.Option(metavar="URL", envvar="RCJAX_LEDGER", show_envvar=False)] = None
    share: Annotated[Any, typer.Option(parser=parsers.part, metavar="SHARE")] = None
    replica: Name = None

    def settings(self) -> dict[str, Any]:
        """The settings of the service that it gives; a usage error for what cannot be."""
        if self.ledger is not None and self.share is not None:
            what = "goes without --ledger: a ledger divides the money by itself"
            raise typer.BadParameter(what, param_hint="--share")
        if self.replica is not None and not re.fullmatch(r"[\w.:-]{1,64}", self.replica):
            what = f"{self.replica!r} is no name for a replica: give at most 64 letters, digits and . _ - :"
            raise typer.BadParameter(what, param_hint="--replica")
        replica = self.replica or socket.gethostname()
        return {"ledger": self.ledger, "share": 1.0 if self.share is None else self.share, "replica": replica}


@dataclass(frozen=True)
class BudgetOptions:
    """A budget, as the command line says it.

    Args:
        budget: Fewest errors for this money per query: 0.00015, or 150/M (per million); or for a day, week or month:
            500/month.
        queries: How many queries come: money is then told for that time, and may be given for a period. [default: as
            in LOG, if that is of a service]
    """

    budget: Annotated[Any, typer.Option(parser=parsers.budget, metavar="MONEY", rich_help_panel=TARGET)] = None
    queries: Annotated[Any, typer.Option(parser=parsers.queries, metavar="N/month", rich_help_panel=TARGET)] = None

    def spread(self, spec: Spec, *log: Path) -> Spec:
        """How to tune for it; a usage error where that cannot be.

        Args:
            spec: how else.
            log: perhaps that of a service, or of several replicas, whose queries are counted where nobody says how
                many come.
        """
        from rcjax.policy.ladder import PERIODS, Period, Queries

        if not isinstance(self.budget, Period):
            return replace(spec, budget=self.budget, queries=self.queries)
        per_day = None if self.queries is None else self.queries.a_day
        if per_day is None:
            from rcjax.serving.billing import queries_per_day

            per_day = queries_per_day(*log)
        if per_day is None:
            what = f"is missing: say how many queries come, such as --queries 200000/{self.budget.every}"
            raise typer.BadParameter(f"{what} (only the log of a service tells it)", param_hint="--queries")
        come = Queries(per_day * PERIODS[self.budget.every], self.budget.every)
        return replace(spec, budget=self.budget.money / come.number, period=self.budget, queries=come)


@dataclass(frozen=True)
class LogOptions:
    """How a log is read, as the command line says it.

    Args:
        labels: Which answers were right, in place of a column correct: a table of query, model, correct, or of query
            and answer (the right one).
        answers: What the models answered to the queries of LOG, so that policies may compare answers, in place of a
            column answer: a table of query, model and answer (or answer_key).
        reference: A model of LOG whose answers take the place of right ones: errors are then answers that differ.
        same: The grader by which `rcjax grade LOG --reference MODEL --grade GRADER` has told whether an answer is that
            of `--reference`. [default: answer, as policies compare]
        score_max: The full score, where labels are scores: 10 if they go from 0 to 10. Counted is the score that is
            lost.
        task: What the models did: wrote text, or picked a choice.
        models: Use these models, in this order. [default: by cost]
    """

    prices: Prices = None
    labels: Annotated[Path | None, typer.Option(metavar="FILE", rich_help_panel=READ)] = None
    answers: Annotated[Path | None, typer.Option(metavar="FILE", rich_help_panel=READ)] = None
    reference: Annotated[str | None, typer.Option(metavar="MODEL", rich_help_panel=READ)] = None
    same: Annotated[str | None, typer.Option(metavar="GRADER", rich_help_panel=READ)] = None
    score_max: Annotated[Any, typer.Option(parser=parsers.positive, metavar="NUMBER", rich_help_panel=READ)] = None
    task: Annotated[Literal["generation", "choice"], typer.Option(rich_help_panel=READ)] = "generation"
    models: Annotated[Any, typer.Option(parser=parsers.names, metavar="A,B,…", rich_help_panel=SEARCH)] = None
    really: Really = False

    def inputs(self, *log: Path) -> dict[str, Path | None]:
        """The files that are read, by the option, for `require_outputs`."""
        logs = {"LOG" if place == 0 else f"LOG {place + 1}": path for place, path in enumerate(log)}
        return {**logs, "--prices": self.prices, "--labels": self.labels, "--answers": self.answers}

    def options(self) -> dict[str, Any]:
        """What `read_log` takes, except the models; a usage error for what needs a reference."""
        given = {name: getattr(self, name) for name in ("prices", "labels", "answers", "task", "really")}
        scale = {} if self.score_max is None else {"score_max": self.score_max}
        return given | scale | {"reference": _reference(self.reference, self.same)}

    def as_options(self) -> dict[str, Any]:
        """The same as options of a command that is to read the log alike."""
        given = {name: getattr(self, name) for name in ("prices", "labels", "answers", "reference", "same")}
        given |= {"task": None if self.task == "generation" else self.task}
        given |= {"score-max": None if self.score_max is None else f"{self.score_max:g}"}
        return given | {"models": self.models and ",".join(self.models), "yes": self.really or None}


def _reference(reference: str | None, same: str | None) -> Reference | None:
    """The reference that `--reference` and `--same` name, if any; a usage error for `--same` alone."""
    if reference is None:
        if same is not None:
            what = "needs --reference, the model whose answers the others are compared with"
            raise typer.BadParameter(what, param_hint="--same")
        return None
    if not reference:
        raise typer.BadParameter("is empty: give the name of a model of LOG", param_hint="--reference")
    from rcjax.policy.counted import BY_ANSWER, Reference

    return Reference(reference, same or BY_ANSWER)


# Functions as commands.

#: The panels that come by `--help-all` alone.
_LONG = tuple(panel for panel in PANELS if panel not in (TARGET, OUTPUT))
_ALL = "rcjax.cli.help_all"
_BY_NAME = inspect.Parameter.KEYWORD_ONLY


class LongHelp(TyperCommand):
    """A command with many options: `--help` shows those that most people need, `--help-all` every one."""

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Print the help, without what only `--help-all` shows, unless it is that."""
        rest = [option for option in self.params if getattr(option, "rich_help_panel", None) in _LONG]
        for option in rest:
            option.hidden = _ALL not in ctx.meta  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)
        for option in rest:  # what is hidden is not completed
            option.hidden = False  # type: ignore[attr-defined]


def _help_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


_HelpAll = Annotated[bool, typer.Option(callback=_help_all, is_eager=True, help="Show every option and exit.")]


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """A function for typer, whose help is the docstring, and that of each option is under its "Args:".

    A parameter that is a record becomes options for the record's fields: annotated as `Spec` all that the command line
    offers, as `Annotated[Spec, "budget", …]` those that are named; a parameter of the function's own stands for the
    field of its name. Options stand in the order of their panels, flags last.
    """
    text, helps = _split(function.__doc__)
    own = inspect.signature(function, eval_str=True).parameters
    parameters: dict[str, inspect.Parameter] = {}
    records: dict[str, tuple[Any, list[str]]] = {}
    for name, parameter in own.items():
        kind, *names = get_args(parameter.annotation) if get_origin(parameter.annotation) is Annotated else (None,)
        kind = kind or parameter.annotation
        if is_dataclass(kind):
            offered = [option for option in _of_record(kind) if not names or option.name in names]
            records[name] = kind, [option.name for option in offered if option.name not in own]
            parameters |= {option.name: option for option in offered if option.name not in own}
        else:
            parameters[name] = _option(name, parameter.annotation, parameter.default, helps.get(name, ""))
    if any(_panel(one) in _LONG for one in parameters.values()):
        parameters["help_all"] = _option("help_all", _HelpAll, False)
    ordered = sorted(parameters.values(), key=_place)

    @wraps(function)
    def called(*, help_all: bool = False, **given: Any) -> None:
        try:
            for name, (kind, options) in records.items():
                values = {option: given.pop(option) for option in options}
                given[name] = kind(**{option: value for option, value in values.items() if value is not None})
            function(**given)
        except SpecError as problem:
            hint = problem.option and option_name(problem.option)
            raise typer.BadParameter(problem.say(option_name), param_hint=hint) from None

    called.__doc__ = text
    called.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined] - typer asks for it
    called.__annotations__ = {one.name: one.annotation for one in ordered}
    return called


def _split(docstring: str | None) -> tuple[str, dict[str, str]]:
    """(what a docstring says before its "Args:", the text on each of these by name).

    >>> _split("Look.\\n\\nArgs:\\n    far: How far,\\n        in miles.\\n    fast: Run.")
    ('Look.', {'far': 'How far, in miles.', 'fast': 'Run.'})
    """
    text, _, rest = inspect.cleandoc(docstring or "").partition("\nArgs:\n")
    _, *pieces = re.split(r"^    (\w+): ", rest.partition("\n\n")[0], flags=re.MULTILINE)
    return text.strip(), {name: " ".join(words.split()) for name, words in zip(pieces[::2], pieces[1::2], strict=True)}


def option_name(name: str) -> str:
    """An option as the command line has it.

    >>> option_name("max_error"), option_name("json_")
    ('--max-error', '--json')
    """
    return "--" + name.strip("_").replace("_", "-")


def _option(name: str, annotation: Any, default: Any, words: str = "") -> inspect.Parameter:
    """The parameter of a command: what its option is of, how it is spelt, and what it is for."""
    kind, *about = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    info = copy.copy(next((one for one in about if isinstance(one, ParameterInfo)), typer.Option()))
    info.help = words or info.help
    if not isinstance(info, ArgumentInfo) and info.default is ...:  # where typer keeps a name that is given
        flag, either = option_name(name), bool in (kind, *get_args(kind)) and default is not False
        info.param_decls = (f"{flag}/--no-{flag[2:]}" if either else flag,)
    return inspect.Parameter(name, _BY_NAME, default=default, annotation=Annotated[kind, info])


def _of_record(kind: Any) -> list[inspect.Parameter]:
    """The parameters of a command for the fields of a record."""
    hints, (_, helps) = get_type_hints(kind, include_extras=True), _split(kind.__doc__)
    if kind is Spec:
        return [_of_spec(field, helps[field.name]) for field in fields(Spec) if field.metadata]
    return [_option(one.name, hints[one.name], one.default, helps.get(one.name, "")) for one in fields(kind)]


def _of_spec(field: Any, words: str) -> inspect.Parameter:
    """The parameter of a command for a field of `Spec`, whose text calls other fields by their names."""
    metavar, parser = field.metadata["form"] or (None, None)
    how = {"metavar": metavar, "parser": parser and getattr(parsers, parser, str)}
    flag = [field.metadata["flag"]] if field.metadata["flag"] else []
    option = typer.Option(*flag, rich_help_panel=field.metadata["panel"], **how)
    kind, default = (bool, field.default) if metavar is None else (Any, None)
    words = re.sub(r"`(\w+)`", lambda name: f"`{option_name(name[1])}`", words)
    return _option(field.name, Annotated[kind, option], default, words)


def _panel(parameter: inspect.Parameter) -> str | None:
    return getattr(get_args(parameter.annotation)[1], "rich_help_panel", None)


def _place(parameter: inspect.Parameter) -> tuple[int, bool]:
    """The place of a parameter's panel, of which none is the first, and whether it is a flag: these come last."""
    panel = _panel(parameter)
    return (1 + PANELS.index(panel) if panel in PANELS else 0), get_args(parameter.annotation)[0] is bool
